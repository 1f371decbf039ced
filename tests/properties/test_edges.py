"""Every mechanism at the edges: one row, no row, rows without a key, huge positions, content that is not finite."""

import math

import pytest
import torch

import positionlib as pl
from tests.properties.layer import Layer, numbers
from tests.properties.mechanisms import ENTRIES, WIDTH, module

every_mechanism = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
ABSOLUTE = {"Sinusoidal"}  # rows of any position, and so another answer at another place
PHASES = {"Sinusoidal", "Rotary"}  # float64 no longer tells their angles apart beyond 2^53
# key_index multiplies slope and position, not their difference, and says that it loses digits; degrees belong to nodes, not to positions;
# boxes, cells and clocks are coordinates of the caller; the integer code outgrows every content, which is its lesson.
ELSEWHERE = {"GraphDegrees", "BoxEmbedding", "GridBias", "Time2Vec", "IntegerCode"}
FAR = [entry for entry in ENTRIES if not entry.name.startswith("ALiBi, key_index") and entry.exported not in ELSEWHERE]
TABLES = {"LearnedAbsolute", "TUPE", "GraphBias", "NormalisedCode", "BinaryCode", "LearnedGrid", "SeparableGrid", "SineGrid"}


def geometry(entry, length: int, start: int = 0, **rules) -> pl.AttentionGeometry:
    positions = torch.arange(start, start + length)
    return pl.AttentionGeometry(positions, positions, causal=entry.visibility[0] == "causal", **rules)


@every_mechanism
def test_one_row_reads_itself_and_no_row_reads_nothing(entry):
    """With one key every score gives probability 1: what is left beside the value is the value side of the relation."""
    x, term = numbers(2, 1, WIDTH, seed=3), module(entry)(geometry(entry, 1))
    out, (_, v) = Layer()(module(entry), x, geometry(entry, 1))
    beside = out - v
    assert torch.allclose(beside[0], beside[1], atol=1e-14) and bool((beside != 0).any()) == (getattr(term, "value_table", None) is not None)
    assert Layer()(module(entry), x[:, :0], geometry(entry, 0))[0].shape == (2, 3, 0, 4)


@every_mechanism
def test_rows_that_see_nothing_are_zero_with_finite_gradients(entry):
    x = numbers(2, 4, WIDTH, seed=3).requires_grad_()
    active = torch.tensor([[True] * 4, [False] * 4])
    out, _ = Layer()(module(entry), x, geometry(entry, 4, key_active=active))
    assert torch.equal(out[1], torch.zeros_like(out[1])) and bool(out[0].isfinite().all()) and bool((out[0] != 0).any())
    out.square().sum().backward()
    assert bool(x.grad.isfinite().all()) and bool((x.grad[1] == 0).all())


@every_mechanism
@pytest.mark.parametrize("content", [math.nan, math.inf, -math.inf])
def test_what_stands_in_a_hidden_row_has_no_influence(entry, content):
    x, active = numbers(2, 4, WIDTH, seed=3), torch.tensor([True, True, False, True])
    g = geometry(entry, 4, key_active=active)
    want, _ = Layer()(module(entry), x, g)
    x[:, 2] = content
    got, _ = Layer()(module(entry), x, g)
    assert torch.equal(got[:, :, active], want[:, :, active]) and bool(got[:, :, 2].isnan().all())


@pytest.mark.parametrize("entry", FAR, ids=lambda entry: entry.name)
@pytest.mark.parametrize("start", [2**31 - 1, 2**31 + 1, 2**53 + 1])
def test_far_away_a_relative_mechanism_is_the_same_and_a_table_ends(entry, start):
    x = numbers(1, 4, WIDTH, seed=3)
    near, _ = Layer()(module(entry), x, geometry(entry, 4))
    try:
        far, _ = Layer()(module(entry), x, geometry(entry, 4, start))
    except pl.PositionContractError as refusal:
        assert refusal.field in ("position", "query_positions", "positions")
        assert entry.exported in TABLES or entry.exported in PHASES and start > 2**53
        return
    if entry.exported in ABSOLUTE:
        assert start < 2**53 and not torch.allclose(far, near, atol=1e-3)
    else:
        assert entry.exported not in TABLES and torch.allclose(far, near, atol=1e-12)


@every_mechanism
def test_strides_of_the_state_change_no_answer(entry):
    x = numbers(1, 6, WIDTH, seed=3)
    strided = torch.stack((x, x + 1), -1)[..., 0]
    stretched = x[:, :1].expand(-1, 6, -1)
    assert not strided.is_contiguous()
    for got, want in ((strided, x), (stretched, stretched.contiguous())):
        assert torch.equal(Layer()(module(entry), got, geometry(entry, 6))[0], Layer()(module(entry), want, geometry(entry, 6))[0])
