"""The fused backward pass against autograd through the float64 oracle, over drawn geometries and dtypes."""

from dataclasses import replace

import pytest
import torch

from positionlib.kernels import launch
from tests.kernels.cases import BY_NAME, CASES, DEVICE, draw
from tests.kernels.gradients import cotangents, gradient_error, gradients, run_backward

pytest.importorskip("triton")
proof = pytest.mark.skipif(DEVICE == "cuda", reason="float64 is for the interpreter")


def measured(case, dtype):
    t = draw(case, dtype)
    back = cotangents(t)
    return gradient_error(case, dtype, gradients(case, t, *back), run_backward(case, t, *back))


# What these add to the others is in the forward pass, or in a fault's or a chunk's case.
SLOW = "scale_one", "loud", "batched_keys", "segments", "bidirectional_buckets"


@proof
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=[pytest.mark.slow] * (c.name in SLOW)) for c in CASES])
def test_float64_is_exact(case):
    assert measured(case, torch.float64) <= 1


@pytest.mark.parametrize("name, dtype", [
    *((name, torch.float32) for name in ("left_padding", "near_2_31", "alibi_near_2_31")),
    *((name, torch.float16) for name in ("causal", "left_padding", "decode_grouped", "shuffled_keys", "near_2_31", "alibi_near_2_31")),
])
def test_working_precisions(name, dtype):
    """At 16 bits probabilities and ds are rounded before their products, and so was out, which enters δ."""
    assert measured(BY_NAME[name], dtype) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["causal", "segments", "decode_grouped", "near_2_31"])
def test_bfloat16_on_a_gpu(name):
    assert measured(replace(BY_NAME[name], keys=160), torch.bfloat16) <= 1


@proof
def test_bfloat16_is_widened_on_load_in_the_interpreter():
    """Gradients of bfloat16 inputs are those of the same numbers in float32, but for the last cast and the rounding of out."""
    case = BY_NAME["left_padding"]
    t = draw(case, torch.bfloat16)
    back = cotangents(t)
    seen, want = run_backward(case, t, *back), gradients(case, t, *back)
    for name, right in want.items():
        assert bool(((seen[name] - right).abs() <= 2**-7 * right.abs() + 2**-7 * right.abs().max()).all()), name


def test_what_nobody_sees_has_a_gradient_of_exactly_zero():
    """Empty rows pass nothing to q; padding, and keys after every query, get nothing: not even the NaN that they hold."""
    t = draw(BY_NAME["rows_before_every_key"], torch.float32)
    seen = run_backward(BY_NAME["rows_before_every_key"], t, *cotangents(t))
    assert torch.equal(seen["q"][:, :, :30], torch.zeros_like(seen["q"][:, :, :30])) and bool(seen["q"][:, :, 30:].any(-1).all())
    assert torch.equal(seen["k"][:, :, 30:], torch.zeros_like(seen["k"][:, :, 30:])) and bool(seen["v"][:, :, :30].any(-1).all())
    t = draw(BY_NAME["scattered_padding"], torch.float32)
    seen = run_backward(BY_NAME["scattered_padding"], t, *cotangents(t))
    for name in ("k", "v"):
        assert torch.equal(seen[name].any(-1).any(1), t.key_active.cpu()), name


@proof
def test_chunks_of_rows_add_up(monkeypatch):
    """The table's gradient is made in chunks of rows: here two and a half of them in each of two batch rows."""
    monkeypatch.setattr(launch, "CHUNK", 32)
    assert measured(replace(BY_NAME["segments"], padding="right", heads=1, key_heads=1), torch.float64) <= 1


@proof
def test_two_keys_at_one_position_share_their_entry():
    """No order and no distinctness of positions is assumed: two keys may stand at the same place."""
    case = replace(BY_NAME["clipped"], batch=1)
    t = draw(case, torch.float64)
    t.key_positions.copy_(t.key_positions // 2 * 2)
    back = cotangents(t)
    assert gradient_error(case, torch.float64, gradients(case, t, *back), run_backward(case, t, *back)) <= 1
