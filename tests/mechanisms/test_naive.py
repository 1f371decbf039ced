"""The naive codes by their equations, and the four properties against loops over pairs of rows."""

import itertools
import math

import pytest
import torch

import positionlib as pl
from positionlib.mechanisms.naive import binary_rows, integer_rows, normalised_rows
from positionlib.mechanisms.naive_properties import (content_ratio, direction_rank, distance_profile, distinct_rows, extension, measure, norm_profile,
                                                     step_profile)
from positionlib.mechanisms.sinusoidal import sinusoidal_rows
from tests.refusals import refused

WIDE = {"output_dtype": torch.float64}


def integer(positions, length):
    return integer_rows(positions, 4, alpha=0.5, **WIDE)


def by_current_length(positions, length):
    return normalised_rows(positions, 4, length=length, **WIDE)


def by_fixed_length(positions, length):
    return normalised_rows(positions, 4, length=16, **WIDE)


def binary(positions, length):
    return binary_rows(positions, 4)


def sinusoid(positions, length):
    return sinusoidal_rows(positions, 16, output_dtype=torch.float64)


def test_rows_equal_their_definitions():
    positions = torch.tensor([[0, 1, 7], [8, 6, 15]])
    assert integer_rows(positions, 2, alpha=-0.5).tolist() == [[[-0.5 * t] * 2 for t in row] for row in positions.tolist()]
    assert normalised_rows(positions, 3, length=16, **WIDE).tolist() == [[[t / 16] * 3 for t in row] for row in positions.tolist()]
    assert binary_rows(positions, 5).tolist() == [[[float(digit) for digit in f"{t:05b}"] for t in row] for row in positions.tolist()]
    assert binary_rows(torch.tensor([2**62 + 5, 21]), 3, overflow="wrap").tolist() == [[1, 0, 1], [1, 0, 1]]
    assert torch.equal(normalised_rows(torch.tensor([1]), 1, length=3, output_dtype=torch.bfloat16), torch.tensor([[1 / 3]], dtype=torch.float64).bfloat16())


def test_the_article_s_numbers():
    assert [normalised_rows(torch.tensor([2]), 1, length=n, **WIDE).item() for n in (5, 10)] == [0.4, 0.2]
    steps = step_profile(binary_rows(torch.arange(16), 4))
    assert steps[7] == 2.0 and steps[6] == 1.0
    assert steps.square().round().int().tolist() == [bin(t ^ (t + 1)).count("1") for t in range(15)]


@pytest.mark.parametrize("width", [1, 8, 64])
def test_a_repeated_scalar_outgrows_the_content_at_every_width(width):
    rows = integer_rows(torch.arange(100), width, alpha=-0.02, **WIDE)
    assert torch.allclose(content_ratio(rows, 0.5), 0.02 * torch.arange(100, dtype=torch.float64) / 0.5, atol=1e-12, rtol=0)
    assert direction_rank(rows) == direction_rank(rows.float()) == 1 and direction_rank(rows[:1]) == 0
    assert torch.allclose(norm_profile(rows), 0.02 * math.sqrt(width) * torch.arange(100, dtype=torch.float64), atol=1e-12, rtol=0)


def test_profiles_equal_loops_over_pairs():
    rows = torch.randn(7, 3, dtype=torch.float64)
    pairs = {(m, n): math.dist(rows[m].tolist(), rows[n].tolist()) for m, n in itertools.combinations(range(7), 2)}
    closest, farthest = distance_profile(rows)
    for k in range(1, 7):
        at_k = [d for (m, n), d in pairs.items() if n - m == k]
        assert (closest[k - 1].item(), farthest[k - 1].item()) == pytest.approx((min(at_k), max(at_k)), abs=1e-12)
    assert step_profile(rows).tolist() == pytest.approx([pairs[t, t + 1] for t in range(6)], abs=1e-12)
    assert norm_profile(rows).tolist() == pytest.approx([math.hypot(*row) for row in rows.tolist()], abs=1e-12)
    assert direction_rank(torch.cat((rows, rows @ torch.randn(3, 2, dtype=torch.float64)), 1)) == 3


@pytest.mark.parametrize("rows, found", [([0, 1, 2], (3, None)), ([0, 1, 1, 0], (2, (1, 2))), ([3, 4, 5, 3, 4], (3, (0, 3))), ([0.0, -0.0], (1, (0, 1)))])
def test_collisions_are_counted_and_the_first_is_named(rows, found):
    assert distinct_rows(torch.tensor(rows, dtype=torch.float32)[:, None].expand(-1, 3)) == found


def test_the_integer_is_distinct_even_and_unbounded():
    m = measure(integer, 8, 64)
    assert (m.distinct, m.first_collision, m.rank) == (8, None, 1) and m.steps.tolist() == [1.0] * 7
    assert torch.equal(m.closest, m.farthest) and m.closest.tolist() == [float(k) for k in range(1, 8)]
    assert m.extension.moved.tolist() == [0.0] * 8 and m.extension.beyond == "continues" and m.extension.growth == pytest.approx(9.0)


def test_the_current_length_moves_every_row_and_the_fixed_one_ends():
    m = measure(by_current_length, 5, 10)
    assert m.extension.moved.tolist() == pytest.approx([2 * t / 10 for t in range(5)]), "√4 (t/5 − t/10)"
    assert m.steps.tolist() == pytest.approx([2 / 5] * 4) and m.extension.beyond == "continues" and m.extension.growth == pytest.approx(0.9 / 0.8)
    fixed = measure(by_fixed_length, 5, 10)
    assert fixed.extension.moved.tolist() == [0.0] * 5 and fixed.steps.tolist() == [2 / 16] * 4
    assert extension(by_fixed_length, 5, 17).beyond == "refused"


def test_binary_digits_are_bounded_and_uneven():
    m = measure(binary, 16, 17)
    assert (m.distinct, m.rank, m.norms.max().item()) == (16, 4, 2.0)
    assert m.closest[0] == 1.0 and m.farthest[0] == 2.0 and m.extension.beyond == "refused" and math.isnan(m.extension.growth)
    wrapped = measure(lambda t, n: binary_rows(t, 4, overflow="wrap"), 15, 20)
    assert (wrapped.extension.beyond, wrapped.first_collision) == ("collides", None)
    assert distinct_rows(binary_rows(torch.arange(20), 4, overflow="wrap")) == (16, (0, 16))


def test_a_sinusoid_is_bounded_even_and_continues():
    m = measure(sinusoid, 32, 500)
    assert m.norms.tolist() == pytest.approx([math.sqrt(8)] * 32) and direction_rank(sinusoid(torch.arange(32), 32)[:, :4]) == 4
    assert torch.allclose(m.closest, m.farthest, atol=1e-12) and m.extension.moved.tolist() == [0.0] * 32
    assert (m.extension.beyond, m.extension.growth) == ("continues", pytest.approx(1.0))


def test_a_learned_table_ends_and_a_bucket_repeats():
    table = pl.LearnedAbsolute(16, 4)

    def learned(positions, length):
        return table(pl.AttentionGeometry(positions, positions)).rows

    assert measure(learned, 12, 16).extension.beyond == "continues" and measure(learned, 16, 17).extension.beyond == "refused"
    rule = pl.T5Buckets(8, 16, bidirectional=False)
    m = measure(lambda t, n: torch.eye(8)[rule.classes(-t)], 16, 40)
    classes = rule.classes(-torch.arange(16)).tolist()
    later = next(t for t in range(16) if classes[t] in classes[:t])
    assert m.first_collision == (classes.index(classes[later]), later) and m.distinct == len(set(classes)) and m.extension.beyond == "collides"


def test_collisions_of_old_rows_are_not_blamed_on_the_new_ones():
    values = torch.tensor([[1.0], [1.0], [2.0], [3.0], [2.0]])
    assert extension(lambda t, n: values[t], 3, 4).beyond == "continues" and extension(lambda t, n: values[t], 3, 5).beyond == "collides"
    assert extension(lambda t, n: values[t] - 1, 2, 4).growth == math.inf, "all old rows are zero"
    assert math.isnan(extension(lambda t, n: 0 * values[t], 2, 4).growth), "all rows are zero: none has grown"


def test_modules_give_their_rows_to_the_state():
    decode, causal = pl.AttentionGeometry.decode(4, 2), pl.AttentionGeometry.causal_self(3)
    assert pl.IntegerCode(2, alpha=2.0)(decode).rows.tolist() == [[8.0, 8.0], [10.0, 10.0]]
    assert torch.equal(pl.NormalisedCode(3, length="current")(decode).rows, normalised_rows(torch.tensor([4, 5]), 3, length=6))
    assert torch.equal(pl.NormalisedCode(3, length=10)(decode).rows, normalised_rows(torch.tensor([4, 5]), 3, length=10))
    assert pl.BinaryCode(3)(decode).rows.tolist() == [[1, 0, 0], [1, 0, 1]]
    for length in ("current", 10):
        assert pl.NormalisedCode(3, length=length)(pl.AttentionGeometry.encoder(0)).rows.shape == (0, 3)
    for module in (pl.IntegerCode(2), pl.NormalisedCode(2, length=9), pl.BinaryCode(2)):
        term = module(causal)
        x = term.add_to(torch.ones(2, 3, 2, dtype=torch.bfloat16))
        assert torch.equal(x, (1 + term.rows.double()).bfloat16().expand(2, -1, -1)) and list(module.parameters()) == []
        refused(lambda: term.add_to(x), "x")
        assert torch.equal(torch.compile(module, fullgraph=True, backend="aot_eager")(causal).rows, term.rows)


@pytest.mark.parametrize("build, field", [
    (lambda: integer_rows(torch.tensor([1.0]), 2), "positions"), (lambda: integer_rows(torch.tensor([1]), 2, alpha=0), "alpha"),
    (lambda: integer_rows(torch.tensor([1]), 2, alpha=math.inf), "alpha"), (lambda: integer_rows(torch.tensor([1]), 0), "d_model"),
    (lambda: integer_rows(torch.tensor([1]), 2, output_dtype=torch.int64), "output_dtype"),
    (lambda: normalised_rows(torch.tensor([5]), 2, length=5), "positions"),
    (lambda: normalised_rows(torch.tensor([-1]), 2, length=5), "positions"), (lambda: normalised_rows(torch.tensor([0]), 2, length=0), "length"),
    (lambda: binary_rows(torch.tensor([8]), 3), "positions"), (lambda: binary_rows(torch.tensor([-1]), 3, overflow="wrap"), "positions"),
    (lambda: binary_rows(torch.tensor([1]), 63), "bits"), (lambda: binary_rows(torch.tensor([1]), 3, overflow="clip"), "overflow"),
    (lambda: pl.NormalisedCode(2, length="batch"), "length"), (lambda: pl.BinaryCode(0), "bits"), (lambda: pl.BinaryCode(2, overflow="clip"), "overflow"),
    (lambda: pl.IntegerCode(0), "d_model"), (lambda: norm_profile(torch.ones(2, 3, 4)), "rows"), (lambda: norm_profile(torch.ones(0, 3)), "rows"),
    (lambda: norm_profile(torch.tensor([[math.nan]])), "rows"), (lambda: norm_profile(torch.ones(2, 3).long()), "rows"),
    (lambda: content_ratio(torch.ones(2, 3), 0), "sigma"),
    (lambda: measure(integer, 4, 4), "longer"), (lambda: measure(integer, 0, 4), "length"), (lambda: measure(lambda t, n: torch.ones(1, 2), 4, 5), "rows")])
def test_what_makes_no_sense_is_refused(build, field):
    refused(build, field)


def test_one_row_has_no_neighbour():
    m = measure(sinusoid, 1, 2)
    assert len(m.steps) == len(m.closest) == len(m.farthest) == 0 and m.distinct == 1
