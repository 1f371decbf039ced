"""The sweep against brute force over all pairs, and against the documented aliases."""

import time

import pytest
import torch

from positionlib.errors import PositionContractError
from positionlib.mechanisms.sinusoidal import inverse_frequencies, sinusoidal_rows
from positionlib.mechanisms.sinusoidal_precision import _closest, first_position_alias, precision_sweep


@pytest.mark.parametrize("dtype, alias", [(torch.bfloat16, (256, 257)), (torch.float16, (2048, 2049)), (torch.float32, (2**24, 2**24 + 1))])
def test_first_alias_is_where_the_dtype_merges_integers(dtype, alias):
    assert first_position_alias(dtype) == alias
    boundary = torch.tensor(range(alias[0] - 3, alias[1] + 1))
    assert torch.tensor(alias).to(dtype).unique().numel() == 1 and boundary[:-1].to(dtype).unique().numel() == 4
    with pytest.raises(PositionContractError, match="dtype"):
        first_position_alias(torch.int64)


def brute_force(length, d_model, base, dtype, cast, start):
    positions = torch.arange(start, start + length)
    if cast == "positions":
        rounded = positions.to(dtype).to(torch.int64)
        rows = sinusoidal_rows(rounded, d_model, base=base, output_dtype=torch.float64)
    else:
        rows = sinusoidal_rows(positions, d_model, base=base, output_dtype=torch.float64)
        rows = rows.to(dtype).double() if cast == "table" else rows
    gaps = (rows[:, None] - rows[None]).norm(dim=-1)
    gaps.fill_diagonal_(float("inf"))
    same = (gaps == 0).nonzero()
    later = [(i, j) for i, j in same.tolist() if i < j]
    first = min(later, key=lambda p: (p[1], p[0])) if later else None
    return None if first is None else (first[0] + start, first[1] + start), rows.unique(dim=0).shape[0], float(gaps.min())


CASES = [(300, 8, 10_000.0, torch.bfloat16, "positions", 0), (300, 8, 10_000.0, torch.bfloat16, "table", 0), (300, 4, 100.0, torch.bfloat16, "table", 0),
         (300, 2, 10_000.0, torch.bfloat16, "table", 0), (200, 16, 1e6, torch.float16, "table", 2000), (200, 16, 1e4, torch.float16, "positions", 2000),
         (300, 4, 50.0, torch.float32, "none", 7), (40, 6, 10_000.0, torch.float32, "positions", 2**24 - 20)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(str(x).replace("torch.", "") for x in c))
def test_the_sweep_equals_brute_force(case):
    length, d_model, base, dtype, cast, start = case
    collision, distinct, smallest = brute_force(*case)
    report = precision_sweep(length, d_model, base=base, dtype=dtype, cast=cast, start=start)
    assert report.first_collision == collision and report.distinct_rows == distinct
    assert report.minimum_distance == pytest.approx(smallest, abs=1e-12)


def test_rounding_may_reorder_the_closest_pairs():
    """Rows 20 and 63 are pulled together until they pass the pair that is closest before rounding."""
    exact = sinusoidal_rows(torch.arange(100), 4, base=50.0, output_dtype=torch.float64)
    pair, closest = _closest(exact, exact, inverse_frequencies(4, base=50.0))
    assert pair != (20, 63)
    stored, gap = exact.clone(), exact[63] - exact[20]
    pull = 0.5 * (1 - 0.9 * closest / float(gap.norm())) * gap
    stored[20], stored[63] = exact[20] + pull, exact[63] - pull
    assert float(gap.norm()) > closest
    assert _closest(stored, exact, inverse_frequencies(4, base=50.0)) == ((20, 63), pytest.approx(0.9 * closest))


def test_casting_positions_collides_where_casting_the_table_does_not():
    early = precision_sweep(400, 16, cast="positions")
    late = precision_sweep(400, 16, cast="table")
    assert early.first_collision == (256, 257) and early.minimum_distance == 0.0
    assert late.first_collision is None and late.distinct_rows == 400 and late.minimum_distance > 1.0


def test_a_long_range_takes_seconds():
    begin = time.perf_counter()
    report = precision_sweep(2**17, 64, dtype=torch.bfloat16)
    assert report.distinct_rows == 2**17 and report.first_collision is None and time.perf_counter() - begin < 20


@pytest.mark.parametrize("settings, field", [(dict(length=1, d_model=8), "length"), (dict(length=9, d_model=7), "d_model"), (dict(length=9, d_model=8, cast="phase"), "cast"),
                                             (dict(length=9, d_model=8, start=-1), "start"), (dict(length=9, d_model=8, start=65_530, dtype=torch.float16, cast="positions"), "dtype")])
def test_bad_sweeps_are_refused(settings, field):
    with pytest.raises(PositionContractError) as caught:
        precision_sweep(**settings)
    assert caught.value.field == field
