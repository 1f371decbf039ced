"""Sinusoidal rows against the formula in Python floats, and the life of the module's buffer."""

import copy
import math

import pytest
import torch

import positionlib as pl
from positionlib.mechanisms.sinusoidal import (ODD_WIDTHS, convert_layout, convert_layout_weight, inverse_frequencies, layout_permutation, sinusoidal_rows,
                                               sinusoidal_table)
from tests.refusals import refused


def formula(position, d_model, base=10_000.0):
    """PE(pos, 2i) = sin, PE(pos, 2i+1) = cos, one channel at a time."""
    return [(math.cos if c % 2 else math.sin)(position / base ** (2 * (c // 2) / d_model)) for c in range(d_model)]


@pytest.mark.parametrize("d_model", [2, 4, 8, 64])
@pytest.mark.parametrize("base", [100.0, 10_000.0, 1e6])
def test_rows_equal_the_formula(d_model, base):
    positions = torch.tensor([0, 1, 2, 17, 255, 256, 257, 5000, 2**24 + 1])
    got = sinusoidal_rows(positions, d_model, base=base, output_dtype=torch.float64)
    want = torch.tensor([formula(p, d_model, base) for p in positions.tolist()], dtype=torch.float64)
    assert torch.allclose(got, want, atol=5e-8, rtol=0)  # p·ω at p = 2²⁴ carries 2²⁴·2⁻⁵² radians
    assert torch.allclose(got[:5], want[:5], atol=1e-12, rtol=0)


def test_a_chunk_is_the_slice_of_the_long_table():
    whole = sinusoidal_table(40, 16)
    assert torch.equal(sinusoidal_table(7, 16, offset=30), whole[30:37])
    g = pl.AttentionGeometry.decode(33, 4)
    assert torch.equal(pl.Sinusoidal(16)(g).rows, whole[33:37])


def test_layouts_convert_both_ways_and_carry_the_weight_along():
    inter, concat = (sinusoidal_table(9, 6, layout=layout, output_dtype=torch.float64) for layout in ("interleaved", "concatenated"))
    assert layout_permutation(6, "interleaved", "concatenated").tolist() == [0, 2, 4, 1, 3, 5]
    assert torch.equal(convert_layout(inter, source="interleaved", target="concatenated"), concat)
    assert torch.equal(convert_layout(concat, source="concatenated", target="interleaved"), inter)
    weight = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = convert_layout_weight(weight, source="interleaved", target="concatenated")
    assert torch.allclose(concat @ moved.T, inter @ weight.T, atol=1e-14) and not torch.allclose(concat @ weight.T, inter @ weight.T, atol=0.1)


def test_odd_widths_follow_the_named_policy():
    with pytest.raises(pl.PositionContractError, match="d_model = 5"):
        sinusoidal_table(3, 5)
    s, c = math.sin, math.cos
    marian = [1 / 10_000 ** (2 * i / 5) for i in range(3)]
    assert sinusoidal_rows(torch.tensor([2]), 5, layout="concatenated", odd_width="drop_last_cosine", output_dtype=torch.float64)[0].tolist() == pytest.approx(
        [s(2 * w) for w in marian] + [c(2 * w) for w in marian[:2]], abs=1e-14)
    zero = [1.0, 1 / 10_000 ** (2 / 4)]
    for layout, want in (("interleaved", [s(2), c(2), s(2 * zero[1]), c(2 * zero[1]), 0]), ("concatenated", [s(2), s(2 * zero[1]), c(2), c(2 * zero[1]), 0])):
        got = sinusoidal_rows(torch.tensor([2]), 5, layout=layout, odd_width="zero_pad", output_dtype=torch.float64)[0]
        assert got.tolist() == pytest.approx(want, abs=1e-14)
    even = sinusoidal_rows(torch.tensor([2]), 6, output_dtype=torch.float64)[0, :5]
    assert torch.equal(sinusoidal_rows(torch.tensor([2]), 5, odd_width="next_even", output_dtype=torch.float64)[0], even)


@pytest.mark.parametrize("policy", ODD_WIDTHS)
def test_even_widths_do_not_depend_on_the_odd_policy(policy):
    assert torch.equal(sinusoidal_table(5, 8, odd_width=policy), sinusoidal_table(5, 8))


def test_positions_stay_integers_until_the_phase():
    rows = sinusoidal_rows(torch.tensor([256, 257]), 4, output_dtype=torch.float64)
    assert torch.allclose(rows[1], torch.tensor(formula(257, 4), dtype=torch.float64), atol=1e-12) and float((rows[0] - rows[1]).norm()) > 0.5
    for floats in (torch.tensor([256.0]), torch.tensor([256.0], dtype=torch.bfloat16)):
        with pytest.raises(pl.PositionContractError, match="positions"):
            sinusoidal_rows(floats, 4)
    with pytest.raises(pl.PositionContractError, match="construction_dtype"):
        sinusoidal_table(4, 4, construction_dtype=torch.bfloat16)


MOVES = {
    "bfloat16": lambda m: m.to(torch.bfloat16), "half": lambda m: m.half(), "float64": lambda m: m.to(torch.float64), "deepcopy": copy.deepcopy,
    "meta and back": lambda m: m.to("meta").to_empty(device="cpu"), "parent to bfloat16": lambda m: torch.nn.Sequential(m).bfloat16()[0],
    "state dict": lambda m: (lambda n: (n.load_state_dict(m.state_dict(), strict=True), n)[1])(pl.Sinusoidal(8)),
}


@pytest.mark.parametrize("move", MOVES)
def test_frequencies_survive_every_move(move):
    m = MOVES[move](pl.Sinusoidal(8))
    assert torch.equal(m.inverse_frequency, inverse_frequencies(8)) and m.inverse_frequency.dtype == torch.float64
    rows = m(pl.AttentionGeometry.causal_self(3, start=1000)).rows
    assert torch.equal(rows, sinusoidal_table(3, 8, offset=1000))


def test_built_on_meta_and_materialised():
    with torch.device("meta"):
        m = pl.Sinusoidal(8)
    assert torch.equal(m.inverse_frequency, inverse_frequencies(8)), "no checkpoint brings the frequencies: they are real at once"
    assert torch.equal(m.to_empty(device="cpu").inverse_frequency, inverse_frequencies(8))


def test_a_meta_model_loaded_by_assignment_has_its_frequencies():
    with torch.device("meta"):
        m = torch.nn.ModuleDict({"p": pl.Sinusoidal(8), "l": torch.nn.Linear(2, 2)})
    m.load_state_dict(torch.nn.ModuleDict({"l": torch.nn.Linear(2, 2)}).state_dict(), assign=True)
    assert torch.equal(m["p"](pl.AttentionGeometry.encoder(3)).rows, sinusoidal_table(3, 8))


@pytest.mark.parametrize("policy", ["drop_last_cosine", "zero_pad", "next_even"])
def test_odd_rows_convert_under_their_own_policy(policy):
    inter, concat = (sinusoidal_table(5, 7, odd_width=policy, layout=layout) for layout in ("interleaved", "concatenated"))
    assert torch.equal(convert_layout(inter, source="interleaved", target="concatenated", odd_width=policy), concat)
    assert torch.equal(convert_layout(concat, source="concatenated", target="interleaved", odd_width=policy), inter)
    with pytest.raises(pl.PositionContractError, match="odd_width"):
        convert_layout(inter, source="interleaved", target="concatenated")


def test_nothing_is_trained_and_nothing_is_saved():
    m = pl.Sinusoidal(8)
    assert list(m.parameters()) == [] and m.state_dict() == {} and not m.inverse_frequency.requires_grad


def test_adding_names_the_axes():
    g, x = pl.AttentionGeometry.encoder(3), torch.zeros(3, 3, 4)
    rows = sinusoidal_table(3, 4)
    assert torch.equal(pl.Sinusoidal(4).add(x, g), rows.expand(3, 3, 4))
    assert torch.equal(pl.Sinusoidal(4).add(x, g, batch_first=False), rows[:, None].expand(3, 3, 4))
    with pytest.raises(pl.PositionContractError, match="sinusoidal"):
        once = pl.Sinusoidal(4).add(x, g)
        pl.Sinusoidal(4).add(once, g)
    with pytest.raises(pl.PositionContractError, match="sinusoidal"):
        once = pl.Sinusoidal(4).add(x, g, batch_first=False)
        pl.Sinusoidal(4).add(once, g, batch_first=False)


def test_a_bfloat16_state_is_rounded_once():
    g, x = pl.AttentionGeometry.causal_self(2, start=1000), torch.full((1, 2, 4), 0.3, dtype=torch.bfloat16)
    want = (x.double() + torch.tensor([formula(1000, 4), formula(1001, 4)])).to(torch.bfloat16)
    assert torch.equal(pl.Sinusoidal(4, output_dtype=torch.float64)(g).add_to(x), want)


@pytest.mark.parametrize("settings, field", [(dict(d_model=1), "d_model"), (dict(d_model=8, base=0.5), "base"), (dict(d_model=8, layout="mixed"), "layout"),
                                             (dict(d_model=2, ladder="endpoint"), "d_model"), (dict(d_model=8, odd_width="cut"), "odd_width")])
def test_bad_settings_are_refused_at_construction(settings, field):
    with pytest.raises(pl.PositionContractError) as caught:
        pl.Sinusoidal(**settings)
    assert caught.value.field == field


def test_a_phase_that_its_dtype_cannot_tell_from_the_next_is_refused():
    for dtype, limit in ((torch.float64, 2**53), (torch.float32, 2**24)):
        rows = sinusoidal_rows(torch.tensor([limit, 1 - limit]), 4, construction_dtype=dtype, output_dtype=torch.float64)
        assert rows[0, 0].item() == pytest.approx(math.sin(limit), abs=1e-6)
        for far in (limit + 1, -limit - 1, 2**62):
            refused(lambda: sinusoidal_rows(torch.tensor([0, far]), 4, construction_dtype=dtype), "positions")
