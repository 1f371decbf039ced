"""Seeded faults: one line of the kernel is changed, and a case of the grid must notice."""

import importlib.util
import math

import pytest
import torch

from positionlib import kernels
from positionlib.kernels import alibi, t5, tile
from tests.kernels.cases import BY_NAME, DEVICE, draw, error, oracle

pytest.importorskip("triton")
DTYPE = torch.float32 if DEVICE == "cuda" else torch.float64

# what goes wrong: (module, correct text, faulty text, case that must notice)
FAULTS = {
    "mask polarity": (tile, "visible & (offset <= 0)", "visible & (offset >= 0)", "causal"),
    "causal hides the key at the query itself": (tile, "visible & (offset <= 0)", "visible & (offset < 0)", "causal"),
    "causal shows one key too many": (tile, "visible & (offset <= 0)", "visible & (offset <= 1)", "shuffled_keys"),
    "loop stops one key early": (tile, "tl.where(within, column + 1, 0)", "tl.where(within, column, 0)", "decode_just_past_a_tile"),
    "sum of values not rescaled": (tile, "o = o * rescale[:, None] + ", "o = o + ", "content"),
    "sum of weights not rescaled": (tile, "l = l * rescale + ", "l = l + ", "content"),
    "maximum not subtracted": (tile, "p = tl.exp(s - finite[:, None])", "p = tl.exp(s)", "loud"),
    "empty tile gives inf - inf": (tile, 'tl.where(m_new == float("-inf"), 0.0, m_new)', "m_new", "nobody"),
    "tail of the keys": (tile, "readable = column < n_keys", "readable = column < n_keys + 1", "content"),
    "tail of the queries": (tile, "has_row, has_d = row < n_queries,", "has_row, has_d = row < n_queries + 1,", "content"),
    "tail of the head width": (tile, "d < width", "d < BLOCK_D", "symmetric_wide"),
    "padding ignored": (tile, "readable & (tl.load(active_at, mask=readable, other=0) != 0)", "readable", "scattered_padding"),
    "segments ignored": (tile, "visible & (q_segment[:, None] == ", "visible & (0 * q_segment[:, None] <= ", "segments_both_ways"),
    "sign of the offset": (tile, "k_position[None, :] - q_position[:, None]", "q_position[:, None] - k_position[None, :]", "bidirectional_buckets"),
    "positions rounded to float32": (tile, "k_position[None, :] - q_position[:, None]",
                                     "k_position.to(tl.float32)[None, :] - q_position.to(tl.float32)[:, None]", "near_2_31"),
    "positions cut to 32 bits": (tile, "k_position[None, :] - q_position[:, None]",
                                 "k_position.to(tl.int32)[None, :] - q_position.to(tl.int32)[:, None]", "beyond_2_31_apart"),
    "positions of the first batch row for all": (tile, "KEY_POSITION + b * key_position_stride[0]", "KEY_POSITION", "batched_keys"),
    "scale dropped": (tile, "out_dtype=ACC) * scale", "out_dtype=ACC)", "content"),
    "bias inside the scale": (tile, "s = SCORE(s, offset, head, TABLE, span)", "s = SCORE(s / scale, offset, head, TABLE, span) * scale",
                              "relative_future"),
    "key head": (tile, "(head // group)", "(head % group)", "grouped"),
    "log-sum-exp without its maximum": (tile, "m + tl.log(divisor)", "tl.log(divisor)", "content"),
    "slope of another head": (alibi, "m_h = tl.load(TABLE + head)", "m_h = tl.load(TABLE + head // 2)", "relative_future"),
    "future not clamped": (alibi, "tl.maximum(-offset.to(s.dtype), 0.0)", "-offset.to(s.dtype)", "relative_future"),
    "clamp one short on the left": (t5, "tl.maximum(offset, -span)", "tl.maximum(offset, 1 - span)", "clipped"),
    "clamp one short on the right": (t5, "-span), span)", "-span), span - 1)", "clipped"),
    "row of the table": (t5, "head * (2 * span + 1)", "head * (2 * span)", "bidirectional_buckets"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are what some faults make
@pytest.mark.parametrize("fault", FAULTS)
def test_the_grid_notices(fault, monkeypatch, tmp_path):
    module, correct, faulty, name = FAULTS[fault]
    case = BY_NAME[name]
    t = draw(case, DTYPE)
    expected = oracle(case, t)
    assert error(case, DTYPE, expected, t) <= 1, "the correct kernel passes the same case"
    monkeypatch.setattr(kernels, module.__name__.rpartition(".")[2], altered(module, correct, faulty, tmp_path))
    try:
        noticed = error(case, DTYPE, expected, t)
    except AssertionError:
        noticed = math.inf  # a margin was written, or an empty row was not empty
    assert noticed > 1, f"{fault}: not noticed by {name}"


def altered(module, correct, faulty, folder):
    """The kernel module with one text replaced at every place where it stands, loaded from a file of its own."""
    with open(module.__file__) as file:
        source = file.read()
    assert correct in source, f"{correct!r} is no longer in {module.__name__}: update the fault"
    path = folder / "altered.py"
    path.write_text(source.replace(correct, faulty))
    spec = importlib.util.spec_from_file_location(f"altered_{module.__name__.rpartition('.')[2]}", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
