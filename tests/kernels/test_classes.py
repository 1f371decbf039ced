"""What pairs read by class, in the fused kernel: forward and backward against the float64 oracle, and seeded faults that the cases notice."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from positionlib.kernels import backward, bands, classes, launch, tile
from positionlib.kernels.arguments import LEARNED, Call
from positionlib.kernels.ops import attention_backward, attention_forward
from tests.kernels.cases import BUCKETS, DEVICE
from tests.kernels.class_cases import BY_NAME, arguments, cotangents, draw_parts, forward_error, gradients, oracle, run, run_backward
from tests.kernels.gradients import gradient_error
from tests.kernels.test_faults import noticed

pytest.importorskip("triton")
proof = pytest.mark.skipif(DEVICE == "cuda", reason="float64 is for the interpreter")
DTYPE = torch.float32 if DEVICE == "cuda" else torch.float64


@cache
def forward_case(name, dtype=DTYPE):
    case = BY_NAME[name]
    drawn = draw_parts(case, dtype)
    return case, drawn, oracle(case, *drawn)


@cache
def backward_case(name, dtype=DTYPE):
    case = BY_NAME[name]
    drawn = draw_parts(case, dtype)
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


@pytest.mark.parametrize("name", ["shaw", "left_padding", "near_2_31", "given", "graph"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_working_precisions(name, dtype):
    assert measured(name, dtype) <= 1 and measured_backward(name, dtype) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["shaw", "left_padding", "given_causal"])
def test_bfloat16_on_a_gpu(name):
    assert measured(name, torch.bfloat16) <= 1 and measured_backward(name, torch.bfloat16) <= 1


def test_the_same_bits_every_time():
    """Sums by class are added in the order of the tiles, whatever the order of the programs."""
    case, drawn, back, _ = backward_case("given_causal", torch.float32)
    first, again = run_backward(case, *drawn, back), run_backward(case, *drawn, back)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert torch.equal(run(case, *drawn)[2], run(case, *drawn)[2])


def test_the_mass_of_a_row_is_one_or_nothing():
    for name in ("shaw", "rows_before_every_key", "nobody"):
        case, drawn, _ = forward_case(name)
        _, lse, mass = run(case, *drawn)
        torch.testing.assert_close(mass.sum(-1), (lse > -math.inf).double(), rtol=0, atol=1e-6 if DTYPE == torch.float32 else 1e-12)


def test_a_class_without_a_row_spoils_the_rows_that_see_it_and_no_other():
    """Where no host has looked, as in a compiled graph: nothing is read or written beyond the tables."""
    case, (t, parts), _ = forward_case("given_causal", torch.float32)
    ids = parts["classes"].clone()
    ids[10, 25], ids[3, 60] = BUCKETS, 255  # the second one is hidden: key 60 comes after query 23
    out, _, mass = run(case, t, parts | {"classes": ids})
    spoiled = torch.arange(case.queries) == 10
    assert torch.equal(out.isnan().any(-1), spoiled.expand(1, case.heads, -1))
    assert torch.equal(mass[:, :, ~spoiled], run(case, t, parts)[2][:, :, ~spoiled])


@proof
@pytest.mark.parametrize("name", ["shaw", "given_causal", "with_a_bias"])
def test_gradcheck(name):
    """The gradients of all three results are those that finite differences find."""
    case = replace(BY_NAME[name], queries=5, keys=9, start=4, heads=1, key_heads=1, batch=1, padding="none", segments=False)
    call = arguments(case, *draw_parts(case, torch.float64))
    learned = [name for name in LEARNED if getattr(call, name) is not None]

    def results(*leaves):
        return attention_forward(*call._replace(**dict(zip(learned, leaves))))

    assert torch.autograd.gradcheck(results, [getattr(call, name).detach().clone().requires_grad_() for name in learned], fast_mode=True)


@pytest.mark.parametrize("name", ["given_causal", "with_a_bias"])
def test_opcheck(name):
    """Schema, fake tensors, autograd registration and tracing of both passes with dynamic shapes."""
    call = arguments(BY_NAME[name], *draw_parts(BY_NAME[name], torch.float32))
    call = Call(*(x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in call))
    assert set(torch.library.opcheck(attention_forward, call).values()) == {"SUCCESS"}
    call = Call(*(x.detach() if isinstance(x, torch.Tensor) else x for x in call))  # of a second derivative there is a refusal
    results = attention_forward(*call)
    wanted = [getattr(call, name) is not None for name in LEARNED]
    back = [torch.randn_like(call.q), *(torch.randn_like(x) for x in results[1:])]
    assert set(torch.library.opcheck(attention_backward, (*back, *results, wanted, *call)).values()) == {"SUCCESS"}


# what goes wrong: (module, correct text, faulty text, case that must notice, whether in the gradients)
FAULTS = {
    "class of the offset turned round": (classes, "tl.maximum(offset, -span)", "tl.maximum(-offset, -span)", "shaw", False),
    # The cases' rules end before span, at 9: a clamp at 8 loses the last class of a key.
    "clamp one class short": (classes, "tl.maximum(offset, -span), span)", "tl.maximum(offset, -span), span // 2 - 2)", "keys_alone", False),
    "one line of classes for both tables": (classes, "LINE * PARTS.class_of.stride[0]", "0 * PARTS.class_of.stride[0]", "left_padding", False),
    "given classes transposed": (classes, "i.to(tl.int64) * stride[1] + j.to(tl.int64) * stride[2]", "j.to(tl.int64) * stride[1] + i.to(tl.int64) * stride[2]",
                                 "graph", False),
    "given classes of the first batch row": (classes, "PARTS.classes.at + b * stride[0]", "PARTS.classes.at", "given", False),
    "key scores of the query": (classes, "entries(PARTS.key_scores, b, h, j,", "entries(PARTS.key_scores, b, h, i,", "keys_alone", False),
    "scores of the first head": (classes, "X.at + b * X.stride[0] + h * X.stride[1]", "X.at + b * X.stride[0]", "shaw", False),
    "given numbers not added": (classes, "s += entries(PARTS.pair_bias, b, h, i, j, has)", "s += 0", "graph", False),
    "last class of a tile lost from the mass": (classes, "range(least, greatest + 1)", "range(least, greatest)", "shaw", False),
    "mass without the sum of the weights": (tile, "p = tl.exp(s - tl.where(seen, lse, 0.0)[:, None])", "p = tl.exp(s - m[:, None])", "shaw", False),
    "mass of an empty row": (tile, "tl.where(seen, lse, 0.0)", "lse", "rows_before_every_key", False),
    "a tile replaces what was summed": (classes, "tl.load(at, mask=has_row, other=0.0) + of_class", "of_class", "given", False),
    "mass of hidden classes": (classes, "known = has & (c >= 0)", "known = has & (c > 0)", "given", False),
    "gradient of the mass not in ds": (backward, "d_p = add_mass_gradient(d_p, PARTS, c, b, h, row[:, None], has)", "d_p = d_p", "shaw", True),
    "gradient of the mass not in dK": (backward, "d_p = add_mass_gradient(d_p, PARTS, c, b, h, row[None, :], has)", "d_p = d_p", "values_alone", True),
    "the mass's part of δ": (launch, "(d_mass * mass).sum(-1)", "0 * (d_mass * mass).sum(-1)", "values_alone", True),
    "gradient of the query's numbers by the key's class": (backward, "PARTS.d_query_scores, ds, c,", "PARTS.d_query_scores, ds, key_c,", "left_padding", True),
    "gradient of the key's numbers by the query's class": (backward, "PARTS.d_key_scores, ds, key_c,", "PARTS.d_key_scores, ds, c,", "left_padding", True),
    "gradient of the last class": (classes, "range(least, greatest + 1)", "range(least, greatest)", "shaw", True),
    "gradients not cleared": (launch, "gradients[name].zero_()", "gradients[name]", "shaw", True),
    "gradient of given numbers transposed": (backward, "pointers(PARTS.d_pair_bias, b, h, row[:, None], column[None, :])",
                                             "pointers(PARTS.d_pair_bias, b, h, column[None, :], row[:, None])", "graph", True),
    "gradient of given numbers past the keys": (backward, "(column < n_keys)[None, :])", "(column < n_keys + 1)[None, :])", "graph", True),
    "scores of the keys without their classes": (backward, "add_parts(s, PARTS, c, key_c, b, h, row[None, :], column[:, None], has)", "s", "shaw", True),
    "a bias's gradient without the classes": (bands, "add_parts(s, PARTS, c, key_c, b, h, row[:, None], column[None, :], has)", "s", "with_a_bias", True),
    "a bias's gradient without the mass": (bands, "d_p = add_mass_gradient(d_p, PARTS, c, b, h, row[:, None], has)", "d_p = d_p", "with_a_bias", True),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are what some faults make
@pytest.mark.parametrize("fault", FAULTS)
def test_the_cases_notice(fault, monkeypatch, tmp_path):
    *change, name, of_gradients = FAULTS[fault]
    assert noticed((*change, name), monkeypatch, tmp_path, lambda: measured_backward(name) if of_gradients else measured(name))
