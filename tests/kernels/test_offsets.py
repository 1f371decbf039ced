"""Tensors beyond 2^31 elements: every axis of every tensor of an attention call, forward and backward, and seeded 32-bit offsets that must show.

The last entry along one axis lies 2^31 elements or more after the first, which an offset cut to 32 bits would look for before it, where there
are zeros. Memory is reserved and, but for the entries, never touched. Strides change no arithmetic, so the results have the same bits.
"""

from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from positionlib.kernels import backward, bands, classes, rotary, tile, transformer_xl, tupe
from tests.kernels import cases, class_cases, gradients, line_cases, rotary_cases, tupe_cases
from tests.kernels.cases import DEVICE, Case
from tests.kernels.class_cases import ClassCase
from tests.kernels.line_cases import LineCase
from tests.kernels.rotary_cases import Turned
from tests.kernels.row_cases import far_apart
from tests.kernels.test_faults import noticed
from tests.kernels.tupe_cases import Untied

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="not run: the memory is the host's, and a GPU does not interpret")
SEEN = {"padding": "scattered", "segments": True, "causal": True, "batched": True}
# A call has three entries along the axis that is far apart, and one along others where that is not the same axis of another tensor of it.
SIZES = {0: dict(batch=3, queries=1, keys=2), 1: dict(queries=3, keys=3), 2: dict(queries=3, keys=3), 3: dict(queries=3, keys=3)}
HEADS = {0: 1, 1: 3, 2: 1, 3: 1}
CALLS = {
    "bias": Case("bias", "t5", **SEEN),
    "classes": ClassCase("classes", reads="query key mass pairs", batched=True),
    "given": ClassCase("given", reads="query mass pairs", given=True, segments=True),
    "halves": Turned("halves", pairs=7, batched=True),
    "neighbours": Turned("neighbours", interleaved=True),
    "tupe": Untied("tupe", batched=True),
    "line": LineCase("line", first=-2, rows=5),
}
MODULES = cases, class_cases, gradients, line_cases, rotary_cases, tupe_cases


def results(name: str, axis: int) -> list[torch.Tensor]:
    """The gradients of a call, whose backward pass reads what its forward pass wrote, wherever ``cases.inside`` puts its tensors."""
    heads = 3 if name == "line" else HEADS[axis]
    case = replace(CALLS[name], heads=heads, key_heads=heads, **SIZES[axis])
    if isinstance(case, ClassCase):
        family = line_cases if isinstance(case, LineCase) else class_cases
        drawn = line_cases.draw_line(case, torch.float16) if family is line_cases else class_cases.draw_parts(case, torch.float16)
        return list(family.run_backward(case, *drawn, class_cases.cotangents(case, drawn[0])).values())
    t = case.draw(torch.float16) if isinstance(case, Untied) else cases.draw(case, torch.float16)
    return list(gradients.run_backward(case, t, *gradients.cotangents(t)).values())


@cache
def plain(name, axis):
    return results(name, axis)


def place_far(monkeypatch, axis):
    """Every tensor that a case makes from now on is far apart along one axis, where it has more than one entry there."""
    for module in MODULES:
        if hasattr(module, "inside"):
            monkeypatch.setattr(module, "inside", lambda x, margin: far_apart(x, axis) if x.ndim > axis and x.shape[axis] > 1 else x.clone())
        if hasattr(module, "written"):
            monkeypatch.setattr(module, "written", lambda view: view.double().cpu())


def differ(name, axis):
    """Whether any result has other bits than that of a small call: 2, or 0."""
    return 2 * (not all(map(torch.equal, results(name, axis), plain(name, axis))))


@pytest.mark.parametrize("axis", SIZES)
@pytest.mark.parametrize("name", CALLS)
def test_strides_beyond_2_31_elements_change_no_bit(name, axis, monkeypatch):
    plain(name, axis)
    place_far(monkeypatch, axis)
    assert not differ(name, axis)


# which offset is 32 bits wide: (module, correct text, faulty text, call and axis that must notice)
FAULTS = {
    "batch row": (tile, "b, key_head = batch.to(tl.int64)", "b, key_head = batch", ("bias", 0)),
    "head of the queries": (tile, "q_at = Q + b * q_stride[0] + head.to(tl.int64)", "q_at = Q + b * q_stride[0] + head", ("bias", 1)),
    "head of the keys": (tile, "(head // group).to(tl.int64)", "head // group", ("bias", 1)),
    "head of the output": (tile, "OUT + b * out_stride[0] + head.to(tl.int64)", "OUT + b * out_stride[0] + head", ("bias", 1)),
    "head of the log-sum-exp": (tile, "lse_stride[0] + head.to(tl.int64)", "lse_stride[0] + head", ("bias", 1)),
    "row of the log-sum-exp": (tile, "row.to(tl.int64) * lse_stride[2]", "row * lse_stride[2]", ("bias", 2)),
    "row of a tile that is read": (tile, "at = BASE + i.to(tl.int64)[:, None] * stride_i + j.to(tl.int64)[None, :] * stride_j\n    tile",
                                   "at = BASE + i[:, None] * stride_i + j.to(tl.int64)[None, :] * stride_j\n    tile", ("bias", 2)),
    "channel of a tile that is read": (tile, "j.to(tl.int64)[None, :] * stride_j\n    tile", "j[None, :] * stride_j\n    tile", ("bias", 3)),
    "row of a tile that is written": (tile, "i.to(tl.int64)[:, None] * stride_i + j.to(tl.int64)[None, :] * stride_j\n    tl.store",
                                      "i[:, None] * stride_i + j.to(tl.int64)[None, :] * stride_j\n    tl.store", ("bias", 2)),
    "position": (tile, "b * stride[0] + i.to(tl.int64) * stride[1], mask=has_i", "b * stride[0] + i * stride[1], mask=has_i", ("bias", 1)),
    "padding": (tile, "b * stride[0] + column.to(tl.int64) * stride[1]", "b * stride[0] + column * stride[1]", ("bias", 1)),
    "batch row and head, backward": (backward, "batch.to(tl.int64), head.to(tl.int64)", "batch, head", ("bias", 0)),
    "row of a sum, backward": (backward, "(head // group).to(tl.int64), row.to(tl.int64)", "(head // group).to(tl.int64), row", ("bias", 2)),
    "batch row of the keys' gradients": (backward, "d < width, batch.to(tl.int64)", "d < width, batch", ("bias", 0)),
    "head of the keys' gradients": (backward, "key_head.to(tl.int64)", "key_head", ("bias", 1)),
    "query head of the keys' gradients": (backward, "h = head.to(tl.int64)\n", "h = head\n", ("bias", 1)),
    "batch row of a band": (bands, "(chunk // chunks).to(tl.int64)", "(chunk // chunks)", ("bias", 0)),
    "head of a band": (bands, "head.to(tl.int64), (head // group).to(tl.int64)", "head, head // group", ("bias", 1)),
    "row of numbers by class": (classes, "first.to(tl.int64) * X", "first * X", ("classes", 2)),
    "class of numbers by class": (classes, "second.to(tl.int64) * X", "second * X", ("classes", 3)),
    "row of a sum by class": (classes, "row.to(tl.int64) * SUMS", "row * SUMS", ("classes", 2)),
    "query of a given class": (classes, "i.to(tl.int64) * stride[1] + j", "i * stride[1] + j", ("given", 1)),
    "key of a given class": (classes, "j.to(tl.int64) * stride[2]", "j * stride[2]", ("given", 2)),
    "row that turns": (rotary, "at = ROWS + n.to(tl.int64)", "at = ROWS + n", ("halves", 2)),
    "channel that turns": (rotary, "second.to(tl.int64)[None, :] * rows_stride[3]", "second[None, :] * rows_stride[3]", ("halves", 3)),
    "line that turns": (rotary, "d.to(tl.int64)[None, :] * rows_stride[3]", "d[None, :] * rows_stride[3]", ("neighbours", 3)),
    "row of an angle": (rotary, "n.to(tl.int64)[:, None] * TURNS.stride[1]", "n[:, None] * TURNS.stride[1]", ("halves", 1)),
    "pair of an angle": (rotary, "c.to(tl.int64)[None, :] * TURNS.stride[3]", "c[None, :] * TURNS.stride[3]", ("halves", 3)),
    "head of CLS's numbers": (tupe, "head.to(tl.int64) * PARTS.cls", "head * PARTS.cls", ("tupe", 1)),
    "head of position rows": (tile, "load_rows(PARTS.query_rows2, b, head.to(tl.int64)", "load_rows(PARTS.query_rows2, b, head", ("tupe", 1)),
    "head of a line": (tile, "PARTS.offset_rows.at + head.to(tl.int64)", "PARTS.offset_rows.at + head", ("line", 0)),
    "row of a line": (transformer_xl, "t.to(tl.int64)[:, None]", "t[:, None]", ("line", 1)),
    "channel of a line": (transformer_xl, "d.to(tl.int64)[None, :] * stride[2]", "d[None, :] * stride[2]", ("line", 2)),
    "last row of a line": (transformer_xl, "(length - 1).to(tl.int64)", "(length - 1)", ("line", 1)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # an overflow is what they make
@pytest.mark.parametrize("fault", FAULTS)
def test_an_offset_cut_to_32_bits_is_noticed(fault, monkeypatch, tmp_path):
    *change, (name, axis) = FAULTS[fault]
    plain(name, axis)
    place_far(monkeypatch, axis)
    assert noticed((*change, name), monkeypatch, tmp_path, partial(differ, name, axis))
