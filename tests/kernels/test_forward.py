"""The fused forward pass against a float64 oracle, over drawn geometries and dtypes; in the interpreter where there is no GPU."""

import math
from dataclasses import replace

import pytest
import torch

from tests.kernels.cases import BY_NAME, CASES, DEVICE, draw, error, oracle, run

pytest.importorskip("triton")
proof = pytest.mark.skipif(DEVICE == "cuda", reason="float64 is for the interpreter")


@proof
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_float64_is_exact(case):
    t = draw(case, torch.float64)
    assert error(case, torch.float64, oracle(case, t), t) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["causal", "left_padding", "segments", "decode_grouped", "shuffled_keys", "near_2_31", "alibi_near_2_31",
                                  "right_padding", "symmetric_wide"])
def test_working_precisions(name, dtype):
    """At 16 bits a tile is 128 by 64, so keys are lengthened to two and a half of those."""
    case = BY_NAME[name]
    if dtype == torch.float16 and not case.batched:
        case = replace(case, keys=2 * case.keys)
    t = draw(case, dtype)
    assert error(case, dtype, oracle(case, t), t) <= 1


def test_large_scores_at_float16_stay_finite():
    case = replace(BY_NAME["loud"], keys=160, queries=130)
    t = draw(case, torch.float16)
    assert error(case, torch.float16, oracle(case, t), t) <= 2  # probabilities near 0 and 1: the rounding of p and of out add up


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["causal", "segments", "decode_grouped", "near_2_31"])
def test_bfloat16_on_a_gpu(name):
    """bfloat16 dots are proved on a GPU only: the interpreter has no bfloat16 arithmetic."""
    case = replace(BY_NAME[name], keys=160)
    t = draw(case, torch.bfloat16)
    assert error(case, torch.bfloat16, oracle(case, t), t) <= 1


@proof
def test_bfloat16_is_widened_on_load_in_the_interpreter():
    """What can be proved of bfloat16 here: values are read right and used in float32. The last cast truncates here, hence 2^-7."""
    case = BY_NAME["segments"]
    t = draw(case, torch.bfloat16)
    out, expected = run(case, t)[0], oracle(case, t)[0]
    assert bool(((out - expected).abs() <= 2**-7 * expected.abs() + 1e-6).all())


def test_a_row_that_sees_nothing_is_exactly_zero():
    dtype = torch.float32
    for name, empty in (("nobody", slice(None)), ("rows_before_every_key", slice(0, 30))):
        out, lse = run(BY_NAME[name], draw(BY_NAME[name], dtype))
        assert torch.equal(out[:, :, empty], torch.zeros_like(out[:, :, empty])), name
        assert bool((lse[:, :, empty] == -math.inf).all()), name
    assert bool(out[:, :, 30:].abs().sum(-1).gt(0).all()), "rows that see a key must not be zeroed"


def test_decoding_token_by_token_equals_one_pass():
    """The last rows of a causal prefill, one at a time through the decoding tile, and all at once through the prefill tile."""
    whole = replace(BY_NAME["causal"], kind="alibi_relative")
    t = draw(whole, torch.float32)
    out, _ = run(whole, t)
    for i in (0, 31, 32, 79):
        step = replace(t, q=t.q[:, :, i : i + 1], query_positions=t.query_positions[i : i + 1])
        torch.testing.assert_close(run(replace(whole, queries=1, start=i), step)[0][:, :, 0], out[:, :, i], rtol=1e-5, atol=1e-6)
