"""Parts of the keys, merged in any cut and any order, are the plain softmax; a row that sees nothing is zeros."""
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import positionlib as pl
from positionlib.runtime.partial import Partial, finish, merge, partial

B, Q, K, D = 2, 5, 11, 3


@pytest.fixture
def call():
    generator = torch.Generator().manual_seed(0)
    scores = 5 * torch.randn(B, Q, K, generator=generator, dtype=torch.float64)
    visible = torch.rand(B, Q, K, generator=generator) < 0.7
    visible[0, 1], visible[:, 3, :4] = False, False  # one row sees nothing; one sees nothing in the first parts
    return scores, visible, torch.randn(B, K, D, generator=generator, dtype=torch.float64)


def plain(scores, visible, values):
    """Softmax by numpy, row by row, over the visible keys alone."""
    out, lse = np.zeros((B, Q, D)), np.full((B, Q, 1), -math.inf)
    for b, i in itertools.product(range(B), range(Q)):
        s, v = scores[b, i][visible[b, i]].numpy(), values[b][visible[b, i]].numpy()
        if len(s):
            w = np.exp(s - s.max())
            out[b, i], lse[b, i] = w @ v / w.sum(), s.max() + math.log(w.sum())
    return out, lse


def in_parts(call, bounds):
    scores, visible, values = call
    return [partial(scores[..., a:z], visible[..., a:z], values[:, a:z]) for a, z in itertools.pairwise(bounds)]


@pytest.mark.parametrize("bounds", [(0, 11), (0, 4, 11), (0, 1, 2, 3, 11), tuple(range(12)), (0, 0, 5, 5, 11)], ids=str)
def test_any_cut_is_the_plain_softmax(call, bounds):
    total = None
    for part in in_parts(call, bounds):
        total = part if total is None else merge(total, part)
    for got, want in zip(finish(total), plain(*call)):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


def test_order_and_grouping_do_not_matter(call):
    a, b, c = in_parts(call, (0, 4, 6, 11))
    want = merge(merge(a, b), c)
    for got in (merge(a, merge(b, c)), merge(merge(c, a), b), merge(c, merge(b, a))):
        for x, y in zip(got, want):
            torch.testing.assert_close(x, y, rtol=1e-13, atol=1e-13)


def test_a_part_that_sees_nothing_changes_nothing(call):
    scores, visible, values = call
    whole = partial(*call)
    for got in (merge(whole, nothing := partial(scores, torch.zeros_like(visible), values)), merge(nothing, whole)):
        assert all(torch.equal(x, y) for x, y in zip(got, whole))
    out, lse = finish(merge(nothing, nothing))
    assert not out.any() and bool((lse == -math.inf).all())


def test_it_is_what_attend_computes():
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 1, 2, 9, 4, generator=generator, dtype=torch.float64)
    geometry = pl.AttentionGeometry.causal_self(9)
    want, trace = pl.attend(q, k, v, pl.ALiBi(2)(geometry), geometry, return_trace=True)
    parts = [partial(trace.scores[..., j:j + 2], geometry.visible[:, j:j + 2], v[..., j:j + 2, :]) for j in range(0, 9, 2)]
    total = parts[0]
    for part in parts[1:]:
        total = merge(total, part)
    torch.testing.assert_close(finish(total)[0], want, rtol=1e-12, atol=1e-12)


def test_the_state_by_hand():
    """Scores 0, 0 then 1, 2 in units of ln 2: weights 1, 1, 2, 4 of 8."""
    scores, every, values = math.log(2) * torch.tensor([[0.0, 0, 1, 2]]).double(), torch.ones(1, 4, dtype=torch.bool), 8 * torch.eye(4).double()
    first, second = (partial(scores[:, s], every[:, s], values[s]) for s in (slice(0, 2), slice(2, 4)))
    both = merge(first, second)
    assert float(first.l) == 2 and float(second.l) == 1.5 and float(both.l) == pytest.approx(float(Fraction(2, 4) + Fraction(3, 2)))
    np.testing.assert_allclose(finish(both)[0], [[1, 1, 2, 4]], rtol=1e-14)


def test_large_scores_do_not_overflow():
    scores = torch.tensor([[1e4, -1e4, 1e4]], dtype=torch.float64)
    parts = [partial(scores[:, j:j + 1], torch.ones(1, 1, dtype=torch.bool), torch.full((1, 1), float(j)).double()) for j in range(3)]
    assert finish(merge(merge(*parts[:2]), parts[2]))[0].item() == 1.0  # the mean of the values 0 and 2


@pytest.mark.parametrize("change, field", [
    ({"visible": torch.ones(5, 11)}, "visible"), ({"values": torch.ones(2, 10, 3).double()}, "values"), ({"scores": torch.ones(5, 11).long()}, "scores")])
def test_what_does_not_fit_is_refused_by_name(call, change, field):
    with pytest.raises(pl.PositionContractError) as refusal:
        partial(**dict(zip(("scores", "visible", "values"), call)) | change)
    assert refusal.value.field == field


def test_a_tuple_is_no_part():
    with pytest.raises(pl.PositionContractError):
        merge((1, 2, 3), Partial(*torch.zeros(3, 1, 1)))
