"""Rotary against complex products: angles, pairings and their conversion, cached keys, and what a rotation leaves as it was."""

import cmath
import copy

import pytest
import torch
from hypothesis import given, strategies as st

import positionlib as pl
from positionlib.mechanisms.rotary import convert_pairing, convert_pairing_weight, pairing_permutation
from tests.refusals import refused

PAIRINGS = ("interleaved", "half_split")
F64 = torch.float64


def normal(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def built(pairing, d_head=8, **settings):
    return pl.Rotary(d_head, pairing=pairing, **settings)(pl.AttentionGeometry.encoder(1))


def at(term, x, position):
    """One row, rotated by one position."""
    return term.rotate(x, torch.tensor([position]))


def by_hand(row, position, pairing, rotary_dim, base=10_000.0):
    """One row, pair by pair, as a product of complex numbers."""
    out = row.clone()
    for c in range(rotary_dim // 2):
        a, b = (2 * c, 2 * c + 1) if pairing == "interleaved" else (c, c + rotary_dim // 2)
        turned = complex(row[a], row[b]) * cmath.exp(1j * position * base ** (-2 * c / rotary_dim))
        out[a], out[b] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("rotary_dim, base", [(None, 10_000.0), (6, 500.0), (2, 1e6)])
def test_every_pair_is_a_complex_product(pairing, rotary_dim, base):
    x, positions = normal(2, 3, 4, 8), torch.tensor([[0, 1, 17, 400], [3, 2, 1, 0]])
    got = built(pairing, rotary_dim=rotary_dim, base=base).rotate(x, positions)
    for b, h, n in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)):
        want = by_hand(x[b, h, n], int(positions[b, n]), pairing, rotary_dim or 8, base)
        assert torch.allclose(got[b, h, n], want, atol=1e-13, rtol=0)
    assert torch.equal(got[..., rotary_dim or 8 :], x[..., rotary_dim or 8 :])


@pytest.mark.parametrize("pairing", PAIRINGS)
@given(i=st.integers(0, 500), j=st.integers(0, 500), seed=st.integers(0, 9))
def test_a_score_holds_the_offset_alone(pairing, i, j, seed):
    term, (q, k) = built(pairing, rotary_dim=6), normal(2, 1, 1, 1, 8, seed=seed)
    score = (at(term, q, i) * at(term, k, j)).sum()
    assert float((score - (q * at(term, k, j - i)).sum()).abs()) < 1e-12
    assert float((at(term, q, i).norm() - q.norm()).abs()) < 1e-13


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_scores_and_nothing_but_scores(pairing):
    geometry = pl.AttentionGeometry.causal_self(5, start=70)
    q, k, v = normal(2, 4, 5, 8), normal(2, 2, 5, 8, seed=1), normal(2, 2, 5, 3, seed=2)  # two query heads read one key head
    out, trace = pl.attend(q, k, v, pl.Rotary(8, pairing=pairing)(geometry), geometry, return_trace=True)
    for h, i, j in torch.cartesian_prod(torch.arange(4), torch.arange(5), torch.arange(5)):
        left, right = (by_hand(x, 70 + int(n), pairing, 8) for x, n in ((q[1, h, i], i), (k[1, h // 2, j], j)))
        assert float(trace.scores[1, h, i, j]) == pytest.approx(float(left @ right) / 8**0.5, abs=1e-12)
    assert trace.bias is None and torch.allclose(out, trace.probabilities @ v.repeat_interleave(2, 1), atol=1e-14)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_key_rotated_once_stays_right_in_a_cache(pairing):
    module, whole = pl.Rotary(8, pairing=pairing), pl.AttentionGeometry.causal_self(6)
    q, k, v = normal(3, 1, 2, 6, 8)
    want, cache = pl.attend(q, k, v, module(whole), whole), k[:, :, :0]
    for t in range(6):
        step = pl.AttentionGeometry.decode(t)
        term, new = module(step), step.query_positions
        cache = torch.cat((cache, term.rotate(k[:, :, t : t + 1], new)), 2)
        got = pl.attend(term.rotate(q[:, :, t : t + 1], new), cache, v[:, :, : t + 1], None, step)
        assert torch.allclose(got, want[:, :, t : t + 1], atol=1e-14)
        assert torch.allclose(pl.attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], term, step), got, atol=1e-14)
    moved = term.rotate(cache, torch.full((6,), -2))
    assert torch.allclose(moved, term.rotate(k, torch.arange(-2, 4)), atol=1e-14), "R_Δ R_j = R_(j+Δ)"


def test_the_permutation_of_a_small_head():
    assert pairing_permutation(6, "interleaved", "half_split").tolist() == [0, 2, 4, 1, 3, 5]
    assert pairing_permutation(6, "half_split", "interleaved").tolist() == [0, 3, 1, 4, 2, 5]
    assert pairing_permutation(6, "interleaved", "half_split", rotary_dim=4).tolist() == [0, 2, 1, 3, 4, 5]
    assert pairing_permutation(6, "half_split", "half_split", rotary_dim=4).tolist() == list(range(6))


@pytest.mark.parametrize("source, target", [PAIRINGS, PAIRINGS[::-1], (PAIRINGS[0],) * 2])
@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_converted_projections_are_the_same_model(source, target, rotary_dim):
    geometry, x = pl.AttentionGeometry.causal_self(5, start=3), normal(2, 5, 7)
    weights = {"q": (normal(24, 7, seed=1), normal(24, seed=2)), "k": (normal(12, 7, seed=3), normal(12, seed=4))}  # 4 and 2 heads of width 6
    v = normal(2, 2, 5, 6, seed=5)
    names = dict(source=source, target=target, rotary_dim=rotary_dim)

    def run(pairing, weights):
        q, k = ((x @ w.T + b).unflatten(-1, (-1, 6)).transpose(1, 2) for w, b in weights.values())
        return q, k, pl.attend(q, k, v, pl.Rotary(6, pairing=pairing, rotary_dim=rotary_dim)(geometry), geometry)

    converted = {name: tuple(convert_pairing_weight(w, 6, **names) for w in pair) for name, pair in weights.items()}
    (q, k, out), (q_new, k_new, out_new) = run(source, weights), run(target, converted)
    assert torch.allclose(out_new, out, atol=1e-13)
    assert torch.equal(q_new, convert_pairing(q, **names)) and torch.equal(k_new, convert_pairing(k, **names))
    if source != target:
        assert not torch.allclose(run(target, weights)[2], out, atol=1e-3), "an unconverted checkpoint runs, and is wrong"


@pytest.mark.parametrize("source, target", [PAIRINGS, PAIRINGS[::-1]])
def test_a_cache_of_rotated_keys_converts_too(source, target):
    x, positions, names = normal(1, 2, 4, 8), torch.arange(9, 13), dict(source=source, target=target, rotary_dim=6)
    old, new = (built(p, rotary_dim=6) for p in (source, target))
    assert torch.allclose(convert_pairing(old.rotate(x, positions), **names), new.rotate(convert_pairing(x, **names), positions), atol=1e-14)


MOVES = {"bfloat16": lambda m: m.to(torch.bfloat16), "half": lambda m: torch.nn.Sequential(m).half()[0], "deepcopy": copy.deepcopy,
         "meta and back": lambda m: m.to("meta").to_empty(device="cpu")}


@pytest.mark.parametrize("move", MOVES)
def test_frequencies_survive_every_move(move):
    with torch.device("meta"):
        module = pl.Rotary(8, pairing="half_split", rotary_dim=4, base=100.0)
    for m in (module, MOVES[move](module)):
        assert m.inverse_frequency.tolist() == pytest.approx([1.0, 0.1], abs=1e-16) and m.inverse_frequency.dtype == F64
        assert m.state_dict() == {} and list(m.parameters()) == []
        assert "rotary_dim=4, base=100" in repr(m)


@pytest.mark.parametrize("dtype, unit", [(torch.bfloat16, 2**-8), (torch.float16, 2**-11), (torch.float32, 2**-23)])
def test_a_long_position_is_rounded_once(dtype, unit):
    x, positions = normal(1, 2, 5, 8, dtype=dtype), torch.arange(300_001, 300_006)
    term = pl.Rotary(8, pairing="half_split").to(dtype)(pl.AttentionGeometry.encoder(1))
    exact, got = term.rotate(x.double(), positions), term.rotate(x, positions)
    assert got.dtype == dtype and bool(((got.double() - exact).abs() <= unit * exact.abs() + 5e-7).all())


def test_huge_positions_keep_their_offset_until_float64_ends():
    term, (q, k) = built("interleaved"), normal(2, 1, 1, 1, 8)
    far = (at(term, q, 2**31 + 1) * at(term, k, 2**31 - 1)).sum()
    assert float((far - (q * at(term, k, -2)).sum()).abs()) < 1e-5
    for position in (2**53, -(2**53)):  # ω_0 = 1: the angle itself is exact
        assert torch.allclose(at(term, q, position)[0, 0, 0, :2], by_hand(q[0, 0, 0], position, "interleaved", 2)[:2], atol=1e-14)
    for position in (2**53 + 1, -(2**53) - 1):
        with pytest.raises(pl.PositionContractError, match=r"positions = 9007199254740993: expected positions up to 2\^53"):
            at(term, q, position)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradients_are_turned_back(pairing):
    term, x, g, positions = built(pairing, rotary_dim=6), normal(1, 2, 3, 8).requires_grad_(), normal(1, 2, 3, 8, seed=1), torch.tensor([5, 0, 90])
    (gradient,) = torch.autograd.grad((term.rotate(x, positions) * g).sum(), x)
    assert torch.allclose(gradient, term.rotate(g, -positions), atol=1e-14)
    assert torch.autograd.gradcheck(lambda x: term.rotate(x, positions), x)


@pytest.mark.parametrize("attempt, field", [
    (lambda: pl.Rotary(8, pairing="neox"), "pairing"), (lambda: pl.Rotary(0, pairing="half_split"), "d_head"),
    (lambda: pl.Rotary(7, pairing="half_split"), "d_head"),
    (lambda: pl.Rotary(8, pairing="half_split", rotary_dim=10), "rotary_dim"), (lambda: pl.Rotary(8, pairing="half_split", rotary_dim=3), "rotary_dim"),
    (lambda: pl.Rotary(8, pairing="half_split", rotary_dim=0), "rotary_dim"), (lambda: pl.Rotary(8, pairing="half_split", base=1.0), "base"),
    (lambda: pl.Rotary(8, pairing="half_split")(pl.AttentionGeometry.cross(2, 3)), "coordinate_frame"),
    (lambda: pairing_permutation(8, "interleaved", "llama"), "target"), (lambda: pairing_permutation(8, "gptj", "half_split"), "source"),
    (lambda: convert_pairing(torch.zeros(2, 7), source="interleaved", target="half_split"), "d_head"),
    (lambda: convert_pairing_weight(torch.zeros(12, 3), 8, source="interleaved", target="half_split"), "weight"),
    (lambda: convert_pairing_weight(torch.zeros(2, 8, 3), 8, source="interleaved", target="half_split"), "weight"),
    (lambda: built("half_split").rotate(torch.zeros(1, 1, 3, 16), torch.arange(3)), "x"),
    (lambda: built("half_split").rotate(torch.zeros(1, 3, 8), torch.arange(3)), "x"),
    (lambda: built("half_split").rotate(torch.zeros(1, 1, 3, 8).long(), torch.arange(3)), "x"),
    (lambda: built("half_split").rotate(torch.zeros(1, 3, 2, 8), torch.arange(3)), "positions"),
    (lambda: built("half_split").rotate(torch.zeros(2, 1, 3, 8), torch.arange(3)[None]), "positions"),
    (lambda: built("half_split").rotate(torch.zeros(1, 1, 3, 8), torch.arange(3.0)), "positions"),
    (lambda: pl.rotation.QKTransform(inverse_frequency=torch.ones(2, 2), pairing="half_split"), "inverse_frequency")])
def test_what_does_not_fit_is_refused_by_name(attempt, field):
    refused(attempt, field)


def test_attention_refuses_heads_of_another_width():
    geometry = pl.AttentionGeometry.encoder(3)
    with pytest.raises(pl.PositionContractError, match="heads of width 8"):
        pl.attend(*torch.zeros(3, 1, 1, 3, 16), pl.Rotary(8, pairing="half_split")(geometry), geometry)


def test_rows_that_are_not_contiguous_and_no_rows():
    term, x = built("half_split"), normal(1, 4, 2, 8).transpose(1, 2)
    assert torch.equal(term.rotate(x, torch.arange(4)), term.rotate(x.contiguous(), torch.arange(4)))
    assert term.rotate(x[:, :, :0], torch.arange(0)).shape == (1, 2, 0, 8)


@pytest.mark.parametrize("pairing, pairs", [("interleaved", ((0, 1), (2, 3))), ("half_split", ((0, 2), (1, 3)))])
def test_the_hand_case_stays_whole(pairing, pairs):
    q, k, term = pl.rotation.hand_case(pairing)
    assert q.tolist() == [1, 0, 1, 0] and k.tolist() == [2, 1, 1, 0]
    for t in range(-3, 5):
        want = list(k)
        for (a, b), turn in zip(pairs, (1j, -1)):
            z = complex(k[a], k[b]) * turn**t
            want[a], want[b] = z.real, z.imag
        assert at(term, k[None, None, None], t)[0, 0, 0].tolist() == pytest.approx([round(float(v)) for v in want], abs=1e-14)
