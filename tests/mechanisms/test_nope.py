"""NoPE adds nothing, and depends on the causal mask."""

import pytest
import torch

import positionlib as pl


def test_nope_is_content_attention_under_the_causal_mask():
    g = pl.AttentionGeometry.causal_self(5)
    q, k, v = torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out, trace = pl.attend(q, k, v, pl.NoPE()(g), g, return_trace=True)
    want = (q @ k.mT / 2).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf).softmax(-1) @ v
    assert torch.allclose(out, want, atol=1e-14) and trace.bias is None


def test_uniform_rows_average_their_prefix():
    g, v = pl.AttentionGeometry.causal_self(3), torch.tensor([2.0, 6.0, 1.0], dtype=torch.float64).view(1, 1, 3, 1)
    zeros = torch.zeros(1, 1, 3, 1, dtype=torch.float64)
    once = pl.attend(zeros, zeros, v, pl.NoPE()(g), g)
    assert once.flatten().tolist() == [2, 4, 3] and pl.attend(zeros, zeros, once, pl.NoPE()(g), g).flatten().tolist() == [2, 3, 3]


def test_a_geometry_that_shows_the_future_is_refused():
    with pytest.raises(pl.PositionContractError, match="causal"):
        pl.NoPE()(pl.AttentionGeometry.encoder(3))
