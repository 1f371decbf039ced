"""Seeded faults: one line of the kernel is changed, and a case of the grid must notice."""

import importlib.util
import sys
from functools import cache

import pytest
import torch

from positionlib import kernels
from positionlib.kernels import alibi, backward, bands, launch, t5, tile
from tests.kernels.cases import BY_NAME, DEVICE, draw, error, oracle
from tests.kernels.gradients import cotangents, gradient_error, gradients, run_backward

pytest.importorskip("triton")
DTYPE = torch.float32 if DEVICE == "cuda" else torch.float64
LOOPS = tile, backward, bands

# what goes wrong: (module, correct text, faulty text, case that must notice)
FAULTS = {
    "mask polarity": (tile, "visible & (offset <= 0)", "visible & (offset >= 0)", "causal"),
    "causal hides the key at the query itself": (tile, "visible & (offset <= 0)", "visible & (offset < 0)", "causal"),
    "causal shows one key too many": (tile, "visible & (offset <= 0)", "visible & (offset <= 1)", "shuffled_keys"),
    "loop stops one key early": (tile, "tl.where(inside, index + 1, 0)", "tl.where(inside, index, 0)", "decode_just_past_a_tile"),
    "sum of values not rescaled": (tile, "o = o * rescale[:, None] + ", "o = o + ", "content"),
    "sum of weights not rescaled": (tile, "l = l * rescale + ", "l = l + ", "content"),
    "maximum not subtracted": (tile, "p = tl.exp(s - finite[:, None])", "p = tl.exp(s)", "loud"),
    "empty tile gives inf - inf": (tile, 'tl.where(m_new == float("-inf"), 0.0, m_new)', "m_new", "nobody"),
    "tail of the keys": (tile, "readable = column < n_keys", "readable = column < n_keys + 1", "content"),
    "tail of the queries": (tile, "has_row, has_d = row < n_queries,", "has_row, has_d = row < n_queries + 1,", "content"),
    "tail of the head width": (tile, "d < width", "d < BLOCK_D", "symmetric_wide"),
    "padding ignored": (tile, "if KEY_ACTIVE is not None:", "if False:", "scattered_padding"),
    "segments ignored": (tile, "if q_segment is not None:", "if False:", "segments_both_ways"),
    "sign of the offset": (tile, "k_position[None, :] - q_position[:, None]", "q_position[:, None] - k_position[None, :]", "bidirectional_buckets"),
    "positions rounded to float32": (tile, "k_position[None, :] - q_position[:, None]",
                                     "k_position.to(tl.float32)[None, :] - q_position.to(tl.float32)[:, None]", "near_2_31"),
    "positions cut to 32 bits": (tile, "k_position[None, :] - q_position[:, None]",
                                 "k_position.to(tl.int32)[None, :] - q_position.to(tl.int32)[:, None]", "beyond_2_31_apart"),
    "positions of the first batch row for all": (tile, "ROW + b * stride[0]", "ROW", "batched_keys"),
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


BACKWARD_FAULTS = {
    "row sum δ not subtracted": (backward, "(d_p - delta[:, None])", "d_p", "content"),
    "row sum δ not subtracted for keys": (backward, "(d_p - delta[None, :])", "d_p", "content"),
    "gradient of the log-sum-exp added": (backward, "delta -= ", "delta += ", "content"),
    "probabilities without their sum": (backward, "p = tl.exp(s - lse[:, None])", "p = tl.exp(s)", "relative_future"),
    "probabilities without their sum for keys": (backward, "p = tl.exp(s - lse[None, :])", "p = tl.exp(s)", "relative_future"),
    "empty row gives inf - inf": (backward, 'tl.where(lse == float("-inf"), 0.0, lse)', "lse", "rows_before_every_key"),
    "scale lost from dQ": (backward, "d_q * scale", "d_q", "content"),
    "scale lost from dK": (backward, "d_k * scale", "d_k", "content"),
    "dK of one query head of the group": (backward, "for member in range(group)", "for member in range(1)", "grouped"),
    "query heads of the group": (backward, "key_head * group + member", "key_head + member * key_heads", "grouped"),
    "key head": (backward, "(head // group)", "(head % group)", "grouped"),
    "dK from one query too late": (backward, "n_queries, nearest, ", "n_queries, nearest + 1, ", "causal"),
    "dQ sees one key too few": (backward, "tl.max(q_position, 0), SCAN", "tl.max(q_position, 0) - 1, SCAN", "decode_just_past_a_tile"),
    "dK sees the future": (backward, "k_segment, CAUSAL, 1)", "k_segment, False, 1)", "causal"),
    "dK crosses segments": (backward, "q_segment, k_segment, CAUSAL, 1)", "None, None, CAUSAL, 1)", "segments_both_ways"),
    "padding gets a gradient": (backward, "readable[:, None] & has_row", "(column < n_keys)[:, None] & has_row", "scattered_padding"),
    "offset of dK reversed": (backward, "k_position[:, None] - q_position[None, :]", "q_position[None, :] - k_position[:, None]",
                              "bidirectional_buckets"),
    "tail of the keys in dK": (backward, "column < n_keys, has_d)", "column < n_keys + 1, has_d)", "content"),
    "slope's gradient of the wrong sign": (alibi, "tl.sum(-ds * ", "tl.sum(ds * ", "relative_future"),
    "slope's gradient of the future": (alibi, "tl.maximum(-offset.to(ds.dtype), 0.0)", "-offset.to(ds.dtype)", "relative_future"),
    "first entry of a table lost": (t5, "offset <= -span", "offset < -span", "clipped"),
    "last entry of a table lost": (t5, "offset >= span", "offset > span", "clipped"),
    "first offset of a band lost": (bands, "for c in range(BAND)", "for c in range(1, BAND)", "clipped"),
    "band one offset too early": (bands, "low = 1 - span + ", "low = -span + ", "clipped"),
    "band from one key too late": (bands, "2**63 - 1), 0) + low", "2**63 - 1), 0) + low + 1", "clipped"),
    "last offset of a table not written": (bands, "inner = low + slot < last - span", "inner = low + slot < last - span - 1", "clipped"),
    "table's gradient of the first batch row": (launch, "inner.sum(0)", "inner[0]", "left_padding"),
    "ends of the table exchanged": (launch, "first, last = ends", "last, first = ends", "clipped"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are what some faults make
@pytest.mark.parametrize("fault", FAULTS)
def test_the_grid_notices(fault, monkeypatch, tmp_path):
    case, t, expected = forward_case(FAULTS[fault][-1])
    assert noticed(FAULTS[fault], monkeypatch, tmp_path, lambda: error(case, DTYPE, expected, t))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("fault", BACKWARD_FAULTS)
def test_the_gradients_notice(fault, monkeypatch, tmp_path):
    case, t, back, wanted = backward_case(BACKWARD_FAULTS[fault][-1])
    assert noticed(BACKWARD_FAULTS[fault], monkeypatch, tmp_path, lambda: gradient_error(case, DTYPE, wanted, run_backward(case, t, *back)))


@cache
def forward_case(name):
    """A case with its oracle, which the correct kernel passes."""
    case, t = BY_NAME[name], draw(BY_NAME[name], DTYPE)
    expected = oracle(case, t)
    assert error(case, DTYPE, expected, t) <= 1
    return case, t, expected


@cache
def backward_case(name):
    """The same for the gradients."""
    case, t = BY_NAME[name], draw(BY_NAME[name], DTYPE)
    back = cotangents(t)
    wanted = gradients(case, t, *back)
    assert gradient_error(case, DTYPE, wanted, run_backward(case, t, *back)) <= 1
    return case, t, back, wanted


def noticed(fault, monkeypatch, folder, measure):
    module, correct, faulty, _ = fault
    bring(monkeypatch, module, altered(module, correct, faulty, folder))
    if module not in (*LOOPS, launch):  # the loops have the functions of a mechanism by name: they are loaded once more
        for loop in LOOPS:
            bring(monkeypatch, loop, altered(loop, "", "", folder))
    try:
        return measure() > 1
    except AssertionError:
        return True  # a margin was written, or an empty row was not empty


def bring(monkeypatch, module, other):
    """Put another module in its place for whoever imports it from now on."""
    monkeypatch.setitem(sys.modules, module.__name__, other)
    monkeypatch.setattr(kernels, module.__name__.rpartition(".")[2], other)


def altered(module, correct, faulty, folder):
    """The kernel module with one text replaced at every place where it stands, loaded from a file of its own."""
    with open(module.__file__) as file:
        source = file.read()
    assert correct in source, f"{correct!r} is no longer in {module.__name__}: update the fault"
    name = f"altered_{module.__name__.rpartition('.')[2]}"
    path = folder / f"{name}.py"
    path.write_text(source.replace(correct, faulty))
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
