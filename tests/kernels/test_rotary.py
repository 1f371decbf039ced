"""Rotary inside the fused kernel: forward, backward, and the eager reference; and faults that must be noticed."""

from dataclasses import replace
from functools import cache

import pytest
import torch

import positionlib as pl
from positionlib import kernels
from positionlib.kernels import backward, rotary, tile
from positionlib.kernels.ops import attention_forward
from tests.kernels.cases import DEVICE, draw, error, inputs, oracle
from tests.kernels.gradients import cotangents, gradient_error, gradients, run_backward
from tests.kernels.rotary_cases import BY_NAME, CASES
from tests.kernels.test_faults import noticed
from tests.kernels.test_operator import Largest, leaves

pytest.importorskip("triton")
proof = pytest.mark.skipif(DEVICE == "cuda", reason="float64 is for the interpreter")
DTYPE = torch.float32 if DEVICE == "cuda" else torch.float64


def forward_error(case, dtype):
    t = draw(case, dtype)
    return error(case, dtype, oracle(case, t), t)


def backward_error(case, dtype):
    t = draw(case, dtype)
    back = cotangents(t)
    return gradient_error(case, dtype, gradients(case, t, *back), run_backward(case, t, *back))


@proof
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_float64_is_exact(case):
    assert forward_error(case, torch.float64) <= 1
    assert backward_error(case, torch.float64) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["half_split", "some_channels", "some_neighbours"])
def test_working_precisions(name, dtype):
    """At 16 bits a turned row is rounded before its product, as a row is that comes turned."""
    assert forward_error(BY_NAME[name], dtype) <= 1
    assert backward_error(BY_NAME[name], dtype) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["half_split", "some_neighbours", "packed_turned"])
def test_bfloat16_on_a_gpu(name):
    assert forward_error(replace(BY_NAME[name], keys=160), torch.bfloat16) <= 1
    assert backward_error(replace(BY_NAME[name], keys=160), torch.bfloat16) <= 1


# what goes wrong: (module, correct text, faulty text, case that must notice)
FAULTS = {
    "turned the other way": (rotary, "wide_a * cos - wide_b * sin, wide_a * sin + wide_b * cos", "wide_a * cos + wide_b * sin, wide_b * cos - wide_a * sin",
                             "half_split"),
    "neighbours parted as halves": (rotary, "interleaved is None", "interleaved is not None", "neighbours"),
    "partner half a head away": (rotary, "tl.where(c < pairs, c + pairs, second)", "second", "some_channels"),
    "channels that pass read at the pairs": (rotary, "tl.where(c < pairs, c, c + pairs)", "c", "some_channels"),
    "channels that pass turn": (rotary, "(c < (width // 2 if pairs is None else pairs))", "(c < width // 2)", "some_channels"),
    "tail of the head width": (rotary, "(2 * c < width)", "(c < width)", "some_channels"),
    "cosine for sine": (rotary, "at + TURNS.stride[2]", "at", "half_split"),
    "angles of the first batch row for all": (rotary, "TURNS.at + batch * TURNS.stride[0]", "TURNS.at", "left_padding_turned"),
    "keys turn as queries": (tile, "PARTS.key_turns, PARTS", "PARTS.query_turns, PARTS", "neighbours"),
    "queries do not turn": (tile, "if PARTS.query_turns is None", "if True", "half_split"),
}
BACKWARD_FAULTS = {
    "gradient turned on instead of back": (rotary, "(a * cos + b * sin)", "(a * cos - b * sin)", "half_split"),
    "neighbours' gradients exchanged": (rotary, "tl.join(back_a, back_b)", "tl.join(back_b, back_a)", "some_neighbours"),
    "dK turned back as queries": (backward, "d_k_stride, PARTS.key_turns", "d_k_stride, PARTS.query_turns", "neighbours"),
    "dQ without its scale": (backward, "d_q * scale", "d_q", "half_split"),
    "dK from keys that do not turn": (backward, "if PARTS.key_turns is None:\n        k = load_tile", "if True:\n        k = load_tile", "some_neighbours"),
    "dQ from keys that do not turn": (backward, "if PARTS.key_turns is None:\n            k = load_tile", "if True:\n            k = load_tile",
                                      "some_neighbours"),
}


@cache
def passed(name):
    """A case with what is expected of it, which the correct kernel gives."""
    case, t = BY_NAME[name], draw(BY_NAME[name], DTYPE)
    back = cotangents(t)
    want = oracle(case, t), gradients(case, t, *back)
    assert error(case, DTYPE, want[0], t) <= 1 and gradient_error(case, DTYPE, want[1], run_backward(case, t, *back)) <= 1
    return case, t, back, want


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN is what some faults make
@pytest.mark.parametrize("fault", FAULTS)
def test_the_output_notices(fault, monkeypatch, tmp_path):
    case, t, _, want = passed(FAULTS[fault][-1])
    assert noticed(FAULTS[fault], monkeypatch, tmp_path, lambda: error(case, DTYPE, want[0], t))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("fault", BACKWARD_FAULTS)
def test_the_gradients_notice(fault, monkeypatch, tmp_path):
    case, t, back, want = passed(BACKWARD_FAULTS[fault][-1])
    assert noticed(BACKWARD_FAULTS[fault], monkeypatch, tmp_path, lambda: gradient_error(case, DTYPE, want[1], run_backward(case, t, *back)))


# --- the operator and its host side ---------------------------------------------------------------------------------


def call(interleaved):
    """The operator's arguments of a small call in which six of eight pairs turn."""
    case = replace(BY_NAME["neighbours"], queries=5, keys=7, pairs=6, interleaved=interleaved, causal=True)
    return inputs(case, draw(case, torch.float32))


@pytest.mark.parametrize("interleaved", [False, True])
def test_opcheck(interleaved):
    args, _ = leaves(call(interleaved)[:3])
    assert set(torch.library.opcheck(attention_forward, call(interleaved)._replace(q=args[0], k=args[1], v=args[2])).values()) == {"SUCCESS"}


@proof
@pytest.mark.parametrize("interleaved", [False, True])
def test_gradcheck(interleaved):
    case = replace(BY_NAME["neighbours"], queries=5, keys=7, pairs=6, interleaved=interleaved, causal=True)
    arguments = inputs(case, draw(case, torch.float64))
    floats = [x.detach().clone().requires_grad_() for x in arguments[:3]]
    assert torch.autograd.gradcheck(lambda q, k, v: attention_forward(*arguments._replace(q=q, k=k, v=v))[:2], floats, fast_mode=True)


PADDED = (torch.arange(20) - torch.tensor([[4], [0]])).clamp_min(0)
GEOMETRIES = {
    "causal": pl.AttentionGeometry.causal_self(20, start=3),
    "left padded": pl.AttentionGeometry(PADDED, PADDED, causal=True, key_active=torch.arange(20) >= torch.tensor([[4], [0]])),
    "decode near 2^31": pl.AttentionGeometry(torch.tensor([2**31 + 1]), torch.arange(2**31 - 30, 2**31 + 2), causal=True),
    "shuffled both ways": pl.AttentionGeometry(torch.arange(20).flip(0), torch.randperm(33, generator=torch.Generator().manual_seed(0))),
}


@pytest.mark.parametrize("pairing", ["interleaved", "half_split"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_agrees_with_the_eager_reference(name, pairing):
    """Both take their angles from the term; turning and the gradients' way back are each one's own."""
    geometry = GEOMETRIES[name].to(DEVICE)
    make = torch.Generator().manual_seed(1)
    shapes = (4, geometry.query_length), (2, geometry.key_length), (2, geometry.key_length)
    q, k, v = (torch.randn(2, *shape, 32, generator=make).to(DEVICE).requires_grad_() for shape in shapes)
    term = pl.Rotary(32, pairing=pairing, rotary_dim=24)(geometry)
    out, trace = pl.attend(q, k, v, term, geometry, backend="triton", return_trace=True)
    assert trace.backend == "triton"
    want = pl.attend(q, k, v, term, geometry, backend="eager")
    torch.testing.assert_close(out, want, rtol=1e-5, atol=2e-6)
    for seen, right in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, want))):
        torch.testing.assert_close(seen, right, rtol=1e-4, atol=1e-5 * float(right.abs().max()))


def test_the_host_side_compiles_without_a_graph_break():
    geometry, q = pl.AttentionGeometry.causal_self(6).to(DEVICE), torch.randn(1, 2, 6, 16, device=DEVICE, requires_grad=True)
    module = pl.Rotary(16, pairing="half_split")

    def model(q):
        return pl.attend(q, q, q, module(geometry), geometry, backend="triton")

    seen, want = torch.compile(model, backend="aot_eager", fullgraph=True)(q), model(q)
    assert torch.equal(seen, want)
    assert torch.equal(*(torch.autograd.grad(x.square().sum(), q)[0] for x in (seen, want)))


def test_what_the_kernel_lacks_of_a_rotation_is_refused():
    geometry, q = pl.AttentionGeometry.causal_self(3).to(DEVICE), torch.randn(1, 2, 3, 16, device=DEVICE)
    learned = pl.rotation.QKTransform(inverse_frequency=torch.ones(8, device=DEVICE, requires_grad=True), pairing="half_split")
    with pytest.raises(pl.UnsupportedPositionContract) as no:
        pl.attend(q, q, q, learned, geometry, backend="triton")
    assert no.value.missing == {"gradient of the frequencies"}
    with torch.no_grad():
        torch.testing.assert_close(*(pl.attend(q, q, q, learned, geometry, backend=b) for b in ("triton", "eager")))
    with pytest.raises(pl.PositionContractError, match="heads of width 32"):
        pl.attend(q, q, q, pl.Rotary(32, pairing="half_split")(geometry), geometry, backend="triton")


def test_nothing_of_size_q_times_k():
    """The largest tensor is the table of angles, as wide as a row of q at most."""
    geometry, q = pl.AttentionGeometry.causal_self(300).to(DEVICE), torch.randn(1, 1, 300, 16, device=DEVICE, requires_grad=True)
    with Largest() as seen:
        pl.attend(q, q, q, pl.Rotary(16, pairing="interleaved")(geometry), geometry, backend="triton").sum().backward()
    assert 0 < seen.nbytes <= 2 * q.untyped_storage().nbytes() < 300 * 300
