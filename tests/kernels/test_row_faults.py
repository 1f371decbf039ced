"""Seeded faults of the row kernels: one line is changed, and a case must notice."""

import math
from functools import cache

import pytest
import torch

from positionlib import kernels
from positionlib.kernels import grid, learned, rotary, row_tile, rows, sinusoidal, time2vec, turns
from tests.kernels.cases import DEVICE
from tests.kernels.row_cases import BY_NAME, draw, error, far_apart, wanted
from tests.kernels.test_faults import altered

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and overflow are what some faults make
USERS = (sinusoidal, learned, grid, time2vec, rotary)

# what goes wrong: (module, correct text, faulty text, case that must notice)
FAULTS = {
    "whole radians do not turn": (turns, "whole * 2935890503282001226 + ", "", "sines"),
    "turns of a half width": (turns, "part, 5871781006564002453", "part, 5871781006564002453 // 2", "sines"),
    "frequency in 32 bits": (turns, "5871781006564002453).to(tl.int64)", "5871781006564002453).to(tl.int64) >> 32 << 32", "sines_across_2_31"),
    "no fold beyond a quarter turn": (turns, "tl.where(beyond_quarter, turn ^ ((1 << (BITS - 1)) - 1), turn)", "turn", "half_split"),
    "fold to the wrong side": (turns, "turn ^ ((1 << (BITS - 1)) - 1)", "-turn", "half_split"),
    "series too short": (turns, "TERMS: tl.constexpr = 10 if", "TERMS: tl.constexpr = 7 if", "sines"),
    "signs of the series": (turns, "(-1) ** k / ", "1 / ", "sines"),
    "positions rounded to float32": (sinusoidal, "n_rows).to(tl.int64)", "n_rows).to(tl.float32).to(tl.int64)", "sines_across_2_31"),
    "positions cut to 32 bits": (sinusoidal, "n_rows).to(tl.int64)", "n_rows).to(tl.int32).to(tl.int64)", "sines_across_2_31"),
    "sine and cosine exchanged": (sinusoidal, "tl.where(is_cosine, QUARTER, 0)", "tl.where(is_cosine, 0, QUARTER)", "sines"),
    "the padded channel gets a cosine": (sinusoidal, "tl.where((c < pairs)[None, :]", "tl.where((c <= pairs)[None, :]", "sines_zero_pad_in_blocks"),
    "one batch row of four": (sinusoidal, "range(TOGETHER)", "range(1)", "sines"),
    "positions of the first batch row for all": (sinusoidal, "row_values(POSITION, group * TOGETHER,", "row_values(POSITION, 0,", "sines_in_blocks"),
    "tail of the rows": (row_tile, "(n < n_rows)[:, None]", "(n <= n_rows)[:, None]", "grid"),
    "tail of the width": (row_tile, "(d < width)[None, :]", "(d <= width)[None, :]", "lookup_wide"),
    "second tile of channels": (row_tile, "tl.program_id(1) * BLOCK_D", "tl.program_id(1)", "sines_wide"),
    "row offset dropped": (learned, "tl.int64) + row_offset", "tl.int64)", "lookup"),
    "whole chunks added twice": (learned, "tail = tl.maximum(last * CHUNK, head)", "tail = head", "lookup_crowded"),
    "whole chunks left out": (learned, "range(first, last, BLOCK_S)", "range(first, first, BLOCK_S)", "lookup_crowded_batched"),
    "a chunk of two rows taken for whole": (learned, "first, last = tl.cdiv(start, CHUNK)", "first, last = start // CHUNK", "lookup_crowded"),
    "one batch row of a shared gradient": (learned, "row // n_rows + place % SHARED", "row // n_rows", "lookup_repeated"),
    "last place of a row": (learned, "(place < stop)[:, None]", "(place < stop - 1)[:, None]", "lookup_repeated"),
    "column read at the row": (grid, "row_values(COLUMN, b, n, column_stride", "row_values(ROW, b, n, row_stride", "grid"),
    "leading token has no row": (grid, "tl.where(at[:, None] == -1, 0.0, rows.to(ACC))", "rows.to(ACC)", "grid_leading"),
    "linear channel at the other end": (time2vec, "row = tl.where((d == LINEAR)", "row = tl.where((d == 0)", "times_cosine_last"),
    "time rounded to float32": (time2vec, "return tau[:, None] * omega", "return tau.to(tl.float32).to(tl.float64)[:, None] * omega", "times"),
    "phase dropped": (time2vec, " + phi[None, :]", "", "times"),
    "slope of the other sign": (time2vec, "+ COSINE * QUARTER + QUARTER", "+ COSINE * QUARTER - QUARTER", "times"),
    "slope of the linear channel": (time2vec, "slope = tl.where((d == LINEAR)[None, :], 1.0,", "slope = tl.where((d == LINEAR)[None, :], 0.0,", "times"),
    "missing times give gradients": (time2vec, "inside = (present & (n < n_rows))", "inside = (n < n_rows)", "times_missing"),
    "gradient of ω without τ": (time2vec, "tl.sum(gf * tau.to(ACC)[:, None], 0)", "tl.sum(gf, 0)", "times"),
    "rotation backwards": (rotary, "angle = p[:, None]", "angle = -p[:, None]", "interleaved"),
    "gradient turned on instead of back": (rotary, "p = -p", "p = p", "half_split"),
    "partner past the pairs": (rotary, "(d + pairs)", "(d + BLOCK_P)", "half_split_part"),
    "channels that pass lost": (rotary, "if BLOCK_REST > 0:", "if BLOCK_REST < 0:", "interleaved_part"),
    "heads of the second group": (rotary, "h = tl.cast(head, tl.int64)", "h = tl.cast(head % HEADS, tl.int64)", "half_split"),
}


def install(monkeypatch, module, changed):
    """Put the changed module in place, and its functions where others have imported them by name."""
    monkeypatch.setattr(kernels, module.__name__.rpartition(".")[2], changed)
    for user in USERS:
        for name, value in vars(changed).items():
            if name in vars(user) and vars(user)[name] is vars(module)[name]:
                monkeypatch.setattr(user, name, value)


@cache
def passed(name):
    """The arguments of ``error`` for a case that the correct kernel has passed; several faults share one."""
    case, dtype = BY_NAME[name], torch.float32 if DEVICE == "cuda" or "2_31" in name else torch.float64
    t = draw(case, dtype)
    want = wanted(case, t)
    assert error(case, dtype, want, t) <= 1, "the correct kernel passes the same case"
    return case, dtype, want, t


@pytest.mark.parametrize("fault", FAULTS)
def test_a_case_notices(fault, monkeypatch, tmp_path):
    module, correct, faulty, name = FAULTS[fault]
    case, dtype, want, t = passed(name)
    install(monkeypatch, module, altered(module, correct, faulty, tmp_path))
    try:
        noticed = error(case, dtype, want, t)
    except AssertionError:
        noticed = math.inf  # a margin was written
    assert noticed > 1, f"{fault}: not noticed by {name}"


@pytest.mark.skipif(DEVICE == "cuda", reason="the memory is the host's")
def test_an_offset_cut_to_32_bits_is_noticed(monkeypatch, tmp_path):
    x, table = far_apart(torch.arange(1.0, 121.0).half().reshape(3, 5, 8), 0), torch.zeros(5, 8, dtype=torch.float16)
    install(monkeypatch, row_tile, altered(row_tile, "(tl.program_id(0) // tiles).to(tl.int64)", "(tl.program_id(0) // tiles)", tmp_path))
    seen = rows.add_row(x, table, torch.arange(5))
    assert torch.equal(seen[:2], x[:2]) and seen[2].abs().max() == 0
