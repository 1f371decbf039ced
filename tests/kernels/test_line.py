"""One row an offset in the fused kernel: forward and backward against the float64 oracle, and seeded faults that the cases notice."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from positionlib.kernels import backward, bands, launch, tile, transformer_xl
from positionlib.kernels.arguments import LEARNED, Call
from positionlib.kernels.ops import attention_backward, attention_forward
from tests.kernels.cases import DEVICE
from tests.kernels.class_cases import cotangents, forward_error
from tests.kernels.gradients import gradient_error
from tests.kernels.line_cases import BY_NAME, arguments, draw_line, gradients, oracle, run, run_backward
from tests.kernels.test_faults import noticed

pytest.importorskip("triton")
proof = pytest.mark.skipif(DEVICE == "cuda", reason="float64 is for the interpreter")
DTYPE = torch.float32 if DEVICE == "cuda" else torch.float64


@cache
def forward_case(name, dtype=DTYPE):
    drawn = draw_line(BY_NAME[name], dtype)
    return BY_NAME[name], drawn, oracle(BY_NAME[name], *drawn)


@cache
def backward_case(name, dtype=DTYPE):
    case, drawn = BY_NAME[name], draw_line(BY_NAME[name], dtype)
    back = cotangents(case, drawn[0])
    return case, drawn, back, gradients(case, *drawn, back)


def measured(name, dtype=DTYPE):
    case, drawn, want = forward_case(name, dtype)
    return forward_error(case, dtype, want, run(case, *drawn))


def measured_backward(name, dtype=DTYPE):
    case, drawn, back, want = backward_case(name, dtype)
    return gradient_error(case, dtype, want, run_backward(case, *drawn, back))


@proof
@pytest.mark.parametrize("name", BY_NAME)
def test_float64_is_exact(name):
    assert measured(name) <= 1 and measured_backward(name) <= 1


@pytest.mark.parametrize("name", ["both_ends", "left_padding", "near_2_31"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_working_precisions(name, dtype):
    """At 16 bits ds is rounded before its product with the rows, as before its product with the keys."""
    assert measured(name, dtype) <= 1 and measured_backward(name, dtype) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["causal", "left_padding", "gaps"])
def test_bfloat16_on_a_gpu(name):
    assert measured(name, torch.bfloat16) <= 1 and measured_backward(name, torch.bfloat16) <= 1


def test_the_same_bits_every_time():
    case, drawn, back, _ = backward_case("both_ends", torch.float32)
    first, again = run_backward(case, *drawn, back), run_backward(case, *drawn, back)
    assert all(torch.equal(first[name], again[name]) for name in first)


def small(name, dtype):
    """The operator's arguments for a few queries and keys."""
    case = replace(BY_NAME[name], queries=5, keys=9, start=4, first=-3, rows=6, heads=1, key_heads=1)
    return arguments(case, *draw_line(case, dtype))


@proof
def test_gradcheck():
    """The gradients of both results are those that finite differences find."""
    call = small("causal", torch.float64)
    learned = [name for name in LEARNED if getattr(call, name) is not None]

    def results(*leaves):
        return attention_forward(*call._replace(**dict(zip(learned, leaves))))[:2]

    assert torch.autograd.gradcheck(results, [getattr(call, name).detach().clone().requires_grad_() for name in learned], fast_mode=True)


def test_opcheck():
    """Schema, fake tensors, autograd registration and tracing of both passes with dynamic shapes."""
    call = small("both_ends", torch.float32)
    leaves = Call(*(x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in call))
    assert set(torch.library.opcheck(attention_forward, leaves).values()) == {"SUCCESS"}
    out, lse, mass = attention_forward(*call)
    back = torch.randn_like(out), torch.randn_like(lse), None, out, lse, mass, [getattr(call, name) is not None for name in LEARNED]
    assert set(torch.library.opcheck(attention_backward, (*back, *call)).values()) == {"SUCCESS"}


# what goes wrong: (module, correct text, faulty text, case that must notice, whether in the gradients)
FAULTS = {
    "row of the next offset": (transformer_xl, "(place + begin * WINDOW) %", "(place + begin * WINDOW + 1) %", "causal", False),
    "line turned round": (transformer_xl, "q_position - span + begin", "q_position + span + begin", "both_ends", False),
    "far offsets read nothing": (transformer_xl, "tl.maximum(from_begin, -begin * WINDOW)", "from_begin", "both_ends", False),
    "clamp one short": (transformer_xl, "length - 1 - begin * WINDOW", "length - 2 - begin * WINDOW", "both_ends", False),
    "windows before those held taken for held": (transformer_xl, "(held <= begin) & (begin < held_stop)", "begin < held_stop", "gaps", False),
    "one round of windows alone": (transformer_xl, "last // WINDOW + 1, RING)", "first // WINDOW + 1, RING)", "gaps", False),
    "last window lost": (transformer_xl, "tl.minimum(begin + RING, last // WINDOW + 1)", "tl.minimum(begin + RING, last // WINDOW)", "both_ends", False),
    "scale left out": (transformer_xl, "out_dtype=ACC) * scale", "out_dtype=ACC)", "causal", False),
    "rows of the first head": (tile, "PARTS.offset_rows.at + head.to(tl.int64) * PARTS.offset_rows.stride[0]", "PARTS.offset_rows.at", "causal", False),
    "scores without the rows": (backward, "s += z", "s += 0", "two_rows", True),
    "windows of other queries": (backward, "held, held_stop = 0, 0  # of", "held, held_stop = 0, 99  # of", "both_ends", True),
    "first key of a run lost": (transformer_xl, "j >= first_key", "j > first_key", "both_ends", True),
    "last key of a run lost": (transformer_xl, "j < stop_key)", "j < stop_key - 1)", "both_ends", True),
    "first run alone": (transformer_xl, "while first_key < ds.shape[1]", "while first_key < 1", "shuffled_keys", True),
    "runs taken for one": (transformer_xl, "(k_position - j != start)", "(start != start)", "shuffled_keys", True),
    "first end of the line twice": (transformer_xl, "tl.maximum(first, 1)", "tl.maximum(first, 0)", "both_ends", True),
    "last end of the line twice": (transformer_xl, "length - 1, SLAB", "length, SLAB", "both_ends", True),
    "first end lost": (transformer_xl, "offset + span <= 0", "offset + span < 0", "two_rows", True),
    "last end lost": (transformer_xl, "offset + span >= length - 1", "offset + span > length - 1", "two_rows", True),
    "scale lost from the second queries": (backward, "PARTS.offset_count) * scale", "PARTS.offset_count)", "two_rows", True),
    "scale lost from the rows": (bands, "d_rows * scale", "d_rows", "both_ends", True),
    "scale lost from the ends": (launch, "call.scale * end", "end", "two_rows", True),
    "ends exchanged": (launch, "first, last = ((call.scale", "last, first = ((call.scale", "two_rows", True),
    "rows of the first batch row": (launch, "inner.sum(0), last[:, None]), 1))", "inner[0], last[:, None]), 1))", "left_padding", True),
    "band one row early": (bands, "(1 + band * BAND)", "(band * BAND)", "both_ends", True),
    "row of a band's last offset not written": (bands, "inner = low + slot < last - span", "inner = low + slot < last - span - 1", "both_ends", True),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are what some faults make
@pytest.mark.parametrize("fault", FAULTS)
def test_the_cases_notice(fault, monkeypatch, tmp_path):
    *change, name, of_gradients = FAULTS[fault]
    assert noticed((*change, name), monkeypatch, tmp_path, lambda: measured_backward(name) if of_gradients else measured(name))
