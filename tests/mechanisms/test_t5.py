"""T5's bias in its calls: decode, stacks, layouts, gradients, and the learned table of a released model."""

import numpy as np
import pytest
import torch

import positionlib as pl
from positionlib.data import mpnet_bias


def test_prefill_chunks_and_decode_give_the_same_rows():
    t5 = pl.T5Bias(3, 8, 20, bidirectional=False)
    whole = pl.AttentionGeometry.causal_self(30)
    bias = t5(whole).materialize(whole.query_positions, whole.key_positions)
    for start, stop in ((0, 11), (11, 29), (29, 30)):
        chunk = whole.slice_queries(start, stop)
        assert torch.equal(t5(chunk).materialize(chunk.query_positions, chunk.key_positions), bias[:, :, start:stop])
    step = pl.AttentionGeometry.decode(29)
    assert torch.equal(t5(step).materialize(step.query_positions, step.key_positions), bias[:, :, 29:])


def test_both_table_layouts_give_one_bias():
    a, b = (pl.T5Bias(3, 8, 20, bidirectional=True, table_layout=layout) for layout in ("buckets_heads", "heads_buckets"))
    assert a.weight.shape == (8, 3) and b.weight.shape == (3, 8)
    b.load_state_dict({"weight": a.weight.T})
    g = pl.AttentionGeometry.encoder(12)
    assert torch.equal(*(m(g).materialize(g.query_positions, g.key_positions) for m in (a, b)))


def test_a_bucket_collects_the_gradient_of_all_its_pairs():
    t5, g = pl.T5Bias(2, 8, 20, bidirectional=True).double(), pl.AttentionGeometry.encoder(9)
    upstream = torch.randn(1, 2, 9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (t5(g).materialize(g.query_positions, g.key_positions, torch.float64) * upstream).sum().backward()
    want = torch.zeros(8, 2, dtype=torch.float64)
    for i in range(9):
        for j in range(9):
            want[int(pl.t5_bucket(torch.tensor(j - i), bidirectional=True, num_buckets=8, max_distance=20))] += upstream[0, :, i, j]
    assert torch.allclose(t5.weight.grad, want, atol=1e-13)


def test_one_term_serves_every_layer_of_its_stack_and_collects_their_gradients():
    t5, g = pl.T5Bias(2, 8, 20, bidirectional=False).double(), pl.AttentionGeometry.causal_self(7)
    layers = [torch.randn(3, 1, 2, 7, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (0, 1)]
    alone = [torch.autograd.grad(pl.attend(*qkv, t5(g), g).square().sum(), t5.weight)[0] for qkv in layers]
    term = t5(g)  # owned by the stack, handed to each of its layers
    both = torch.autograd.grad(sum(pl.attend(*qkv, term, g).square().sum() for qkv in layers), t5.weight)[0]
    assert torch.allclose(both, alone[0] + alone[1], atol=1e-13) and float(alone[1].abs().max()) > 1e-3


@pytest.mark.parametrize("bidirectional, geometry", [(True, pl.AttentionGeometry.causal_self(4)), (False, pl.AttentionGeometry.encoder(4))])
def test_the_stack_and_its_table_must_agree(bidirectional, geometry):
    with pytest.raises(pl.PositionContractError, match="bidirectional"):
        pl.T5Bias(2, bidirectional=bidirectional)(geometry)


def test_cross_attention_is_refused_unless_a_frame_is_shared():
    t5 = pl.T5Bias(2, bidirectional=True)
    with pytest.raises(pl.FrameMismatchError):
        t5(pl.AttentionGeometry.cross(2, 3))
    g = pl.AttentionGeometry.cross(2, 3, query_frame="page", key_frame="page")
    assert t5(g).materialize(g.query_positions, g.key_positions).shape == (1, 2, 2, 3)


def test_a_packed_batch_has_a_batched_bias():
    t5 = pl.T5Bias(2, 8, 20, bidirectional=True)
    g = pl.AttentionGeometry(torch.tensor([[0, 1, 2], [7, 8, 9]]), torch.tensor([[0, 1, 2], [0, 5, 9]]))
    got = t5(g).materialize(g.query_positions, g.key_positions)
    for b in range(2):
        for i in range(3):
            for j in range(3):
                offset = g.key_positions[b, j] - g.query_positions[b, i]
                assert torch.equal(got[b, :, i, j], t5.table[t5.rule.classes(offset)])


def test_the_released_mpnet_table_never_addresses_bucket_16():
    table = mpnet_bias()
    rule = pl.T5Buckets(32, 128, True)
    used = rule.classes(torch.arange(-600, 601)).unique().tolist()
    assert table.shape == (32, 12) and used == [b for b in range(32) if b != 16]
    assert abs(table[16]).max() < 0.006 and min(abs(np.delete(table, 16, 0)).max(1)) > 10 * abs(table[16]).max()


@pytest.mark.parametrize("settings, field", [(dict(heads=0, bidirectional=True), "heads"), (dict(heads=2, bidirectional=True, table_layout="rows"), "table_layout"),
                                             (dict(heads=2, bidirectional=True, max_distance=8), "max_distance"), (dict(heads=2, bidirectional=True, num_buckets=31), "num_buckets")])
def test_bad_settings_are_refused_at_construction(settings, field):
    with pytest.raises(pl.PositionContractError) as caught:
        pl.T5Bias(**settings)
    assert caught.value.field == field


def test_bidirectional_has_no_default():
    with pytest.raises(TypeError):
        pl.T5Bias(2)
