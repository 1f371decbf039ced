"""NoPE depth: rows by the library's own attention, captions and badges by what the rows say."""
import itertools

import numpy as np
import pytest
import torch

import positionlib as pl
from positionlib.widgets.nope_depth import DEPTHS, MASKS, SWAPS, TEXTS, nope_depth

STATES = list(itertools.product(DEPTHS, MASKS, TEXTS))


@pytest.fixture(scope="module")
def widget():
    return nope_depth()


def attended(rows, depth, mask):
    """Attention with all scores 0, ``depth`` times."""
    g = pl.AttentionGeometry.causal_self(len(rows)) if mask == "causal" else pl.AttentionGeometry.encoder(len(rows))
    v = torch.tensor(rows, dtype=torch.float64).view(1, 1, -1, 1)
    for _ in range(depth):
        v = pl.attend(torch.zeros_like(v), torch.zeros_like(v), v, None, g)
    return v.flatten().numpy()


@pytest.mark.parametrize("depth, mask, text", STATES)
def test_a_state_is_attention_with_equal_scores(widget, depth, mask, text):
    badges, grids, lines = widget.state(depth=depth, mask=mask, text=text)
    first, second = attended(TEXTS[text], depth, mask), attended(SWAPS[text], depth, mask)
    for matrix, want in zip(grids.items, (first, second)):
        np.testing.assert_allclose(matrix.values[:, 0], want, rtol=0, atol=5.1e-4)
    differ = [i for i in range(len(first)) if abs(first[i] - second[i]) > 1e-9]
    assert [badge.value for badge in badges.items] == [", ".join(map(str, differ)) or "none", len(first) - 1 in differ]
    assert grids.items[0].highlight == tuple((i, 0) for i in differ)
    gaps = [attended(TEXTS[text], d, mask)[-1] - attended(SWAPS[text], d, mask)[-1] for d in DEPTHS]
    np.testing.assert_allclose(lines.series[0].values, gaps, rtol=0, atol=5.1e-4)
    caption = widget.caption_of(depth=depth, mask=mask, text=text)
    assert ("Order is gone" in caption) == (mask == "none" and depth > 0)
    assert ("different prefixes" in caption) == (mask == "causal" and depth > 0 and abs(gaps[depth]) > 1e-9)
    if "only row" in caption:
        assert f"only row {', '.join(map(str, differ))} differs" in caption and gaps[depth] == 0


def test_at_rest_it_is_the_case_by_hand(widget):
    assert widget.choice == {"depth": 2, "mask": "causal", "text": "8 0"}
    assert [m.values[:, 0].tolist() for m in widget.state(**widget.choice)[1].items] == [[8, 6], [0, 2]]


def test_stored_size(widget):
    assert widget.size < 40_000
