"""TUPE inside the fused kernel: forward, backward, and the eager reference; and faults that must be noticed."""

from dataclasses import replace
from functools import cache

import pytest
import torch

import positionlib as pl
from positionlib.kernels import backward, bands, launch, tile, tupe
from positionlib.kernels.ops import attention_forward
from tests.kernels.cases import DEVICE, error, inputs, oracle
from tests.kernels.gradients import cotangents, gradient_error, gradients, run_backward
from tests.kernels.test_faults import noticed
from tests.kernels.test_operator import Largest
from tests.kernels.tupe_cases import BY_NAME, CASES

pytest.importorskip("triton")
proof = pytest.mark.skipif(DEVICE == "cuda", reason="float64 is for the interpreter")
DTYPE = torch.float32 if DEVICE == "cuda" else torch.float64


def errors(case, dtype):
    """Of the output and of the gradients, over the tolerance."""
    t = case.draw(dtype)
    back = cotangents(t)
    return error(case, dtype, oracle(case, t), t), gradient_error(case, dtype, gradients(case, t, *back), run_backward(case, t, *back))


@proof
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_float64_is_exact(case):
    assert max(errors(case, torch.float64)) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["absolute", "left_padding", "near_2_31"])
def test_working_precisions(name, dtype):
    assert max(errors(BY_NAME[name], dtype)) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["relative", "grouped", "left_padding"])
def test_bfloat16_on_a_gpu(name):
    assert max(errors(replace(BY_NAME[name], keys=160) if name != "left_padding" else BY_NAME[name], torch.bfloat16)) <= 1


# what goes wrong: (module, correct text, faulty text, case that must notice)
FAULTS = {
    "position products dropped": (tupe, "s += tl.dot(left, right, input_precision=PRECISION, out_dtype=ACC)", "pass", "absolute"),
    "row written before the column": (tupe, "s = tl.where(query_is, content", "s = tl.where(query_is & (key_is == 0), content", "absolute"),
    "CLS-to-other for both": (tupe, "content + tl.load(cls), s)", "content + tl.load(cls + PARTS.cls.stride[0]), s)", "absolute"),
    "bias joins the numbers of CLS": (tile, "s, content, position_q", "s, s, position_q", "relative"),
    "CLS by place in memory": (tile, "PARTS, q_position, k_position, head, 0", "PARTS, row, column, head, 0", "cls_elsewhere"),
    "number of another head": (tupe, "head.to(tl.int64) * PARTS.cls.stride[1]", "0", "grouped"),
    "rows of the key's head": (tile, "PARTS.key_rows2, b, head.to(tl.int64)", "PARTS.key_rows2, b, key_head", "grouped"),
    "rows of the first batch row for all": (tile, "X.at + b * X.stride[0]", "X.at", "left_padding"),
    "products scaled": (tupe, "out_dtype=ACC)", "out_dtype=ACC) * 0.25", "absolute"),
}
BACKWARD_FAULTS = {
    "products of CLS pairs get a gradient": (tupe, "tl.where(query_is | key_is, 0.0, ds)", "ds", "absolute"),
    "the corner counted twice": (tupe, "tl.where(query_is, 0.0, tl.where(key_is, ds, 0.0))", "tl.where(key_is, ds, 0.0)", "absolute"),
    "sum of the CLS row lost": (tupe, "tl.sum(tl.where(query_is, ds, 0.0), 1)", "tl.sum(tl.where(query_is, 0.0, 0.0 * ds), 1)", "absolute"),
    "ends of the bias take CLS pairs": (backward, "FOLD(outside,", "FOLD(ds,", "relative"),
    "bands of the bias take CLS pairs": (bands, "outside_cls(p * (d_p - delta[:, None]), PARTS, q_position, k_position, 0)", "p * (d_p - delta[:, None])",
                                         "relative"),
    "position rows of one query head of the group": (backward, "PARTS.d_key_rows2, b, h, column", "PARTS.d_key_rows2, b, kh, column", "grouped"),
    "gradients of a shared row from one batch row": (launch, "parts.sum(0, keepdim=True)", "parts[:1]", "packed"),
    "scaled as q": (backward, "store_rows(d_position_q,", "store_rows(d_position_q * scale,", "absolute"),
    "keys and queries of CLS exchanged for dK": (tupe, "tl.expand_dims(q_position == PARTS.cls_position, 1 - KEY_AXIS)",
                                                 "tl.expand_dims(q_position == PARTS.cls_position + KEY_AXIS, 1 - KEY_AXIS)", "absolute"),
}


@cache
def passed(name):
    """A case with what is expected of it, which the correct kernel gives."""
    case, t = BY_NAME[name], BY_NAME[name].draw(DTYPE)
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

LEARNED = "q", "k", "v", "query_rows2", "key_rows2", "cls"


def call(dtype):
    """The operator's arguments of a small call, each number of which wants a gradient; and those."""
    case = replace(BY_NAME["relative"], kind="content", queries=5, keys=7)
    arguments = inputs(case, case.draw(dtype))
    leaves = {name: getattr(arguments, name).detach().clone().requires_grad_() for name in LEARNED}
    return arguments._replace(**leaves), list(leaves.values())


def test_opcheck():
    assert set(torch.library.opcheck(attention_forward, call(torch.float32)[0]).values()) == {"SUCCESS"}


@proof
def test_gradcheck():
    arguments, leaves = call(torch.float64)
    assert torch.autograd.gradcheck(lambda *x: attention_forward(*arguments._replace(**dict(zip(LEARNED, x))))[:2], leaves, fast_mode=True)


def mechanism(cls_position=0, relative=pl.T5Buckets(8, 20, True, "transformers"), finish=False):
    torch.manual_seed(0)
    module = pl.TUPE(4, 64, 40, relative=relative, cls_position=cls_position, finish=finish)
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return module.to(DEVICE, DTYPE)


PADDED = (torch.arange(20) - torch.tensor([[4], [0]])).clamp_min(0)
GEOMETRIES = {
    "encoder": pl.AttentionGeometry.encoder(20),
    "left padded": pl.AttentionGeometry(PADDED, PADDED, key_active=torch.arange(20) >= torch.tensor([[4], [0]])),
    "packed": pl.AttentionGeometry(torch.arange(20) % 9, torch.arange(20) % 9, query_segments=torch.arange(20) // 9, key_segments=torch.arange(20) // 9),
    "other rows than keys": pl.AttentionGeometry(torch.tensor([5, 0, 39]), torch.randperm(36, generator=torch.Generator().manual_seed(0))),
}


@pytest.mark.parametrize("settings", [{"relative": None}, {}, {"cls_position": None}, {"cls_position": 3}], ids=["A", "R", "R without CLS", "R, CLS at 3"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_agrees_with_the_eager_reference(name, settings):
    """Parts and finished bias, kernel and eager: one answer, and the same gradients of every parameter of the module."""
    geometry = GEOMETRIES[name].to(DEVICE)
    make = torch.Generator().manual_seed(1)
    shapes = (4, geometry.query_length), (2, geometry.key_length), (2, geometry.key_length)
    q, k, v = (torch.randn(2, *shape, 16, generator=make).to(DEVICE, DTYPE).requires_grad_() for shape in shapes)
    outs, gradients = [], []
    for backend, finish in (("triton", False), ("eager", True)):
        module = mechanism(**settings, finish=finish)
        out, trace = pl.attend(q, k, v, module(geometry), geometry, backend=backend, return_trace=True)
        assert trace.backend == backend
        outs.append(out)
        gradients.append(torch.autograd.grad(out.square().sum(), (q, k, v, *module.parameters())))
    close(*outs)
    for pair in zip(*gradients):
        close(*pair)


def close(seen, right):
    """At float64 nearly exact. Scores are as large as 50 here, so float32 loses two digits, in the kernel and in the reference alike."""
    tolerance = 1e-11 if DTYPE == torch.float64 else 1e-5
    torch.testing.assert_close(seen, right, rtol=tolerance, atol=tolerance * max(1.0, float(right.detach().abs().max())))


def test_one_term_serves_two_layers():
    geometry, x = pl.AttentionGeometry.encoder(20).to(DEVICE), torch.randn(1, 4, 20, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE, DTYPE)
    gradients = []
    for backend in ("triton", "eager"):
        module = mechanism()
        term = module(geometry)
        y = pl.attend(x, x, x, term, geometry, backend=backend)
        gradients.append(torch.autograd.grad(pl.attend(y, y, y, term, geometry, backend=backend).square().sum(), tuple(module.parameters())))
    for pair in zip(*gradients):
        close(*pair)


def test_what_the_kernel_lacks_is_refused():
    """A finished bias is a number a pair; rows of another width than the heads have no tile."""
    geometry, q = pl.AttentionGeometry.encoder(3).to(DEVICE), torch.zeros(1, 4, 3, 16, device=DEVICE, dtype=DTYPE)
    with pytest.raises(pl.UnsupportedPositionContract, match="UntiedScores") as no:
        pl.attend(q, q, q, mechanism(finish=True)(geometry), geometry, backend="triton")
    assert no.value.missing == {"scores by pair"}
    wide = torch.zeros(1, 4, 3, 32, device=DEVICE, dtype=DTYPE)
    with pytest.raises(pl.UnsupportedPositionContract) as no:
        pl.attend(wide, wide, wide, mechanism()(geometry), geometry, backend="triton")
    assert no.value.missing == {"position width 16"}
    with pytest.raises(pl.PositionContractError, match="query_positions"):
        pl.attend(q, q, q, mechanism()(pl.AttentionGeometry.causal_self(3, start=1).to(DEVICE)), geometry, backend="triton")
    with pytest.raises(pl.PositionContractError, match="2 heads"):
        pl.attend(q[:, :2], q[:, :2], q[:, :2], mechanism()(geometry), geometry, backend="triton")


def test_nothing_of_size_q_times_k():
    """Forward and backward, from the module's table to its gradient: the largest tensor is a gradient of rows in float32."""
    n = 300
    geometry = pl.AttentionGeometry.encoder(n).to(DEVICE)
    torch.manual_seed(0)
    module = pl.TUPE(1, 16, n, relative=pl.T5Buckets(8, 20), finish=False).to(DEVICE)
    q = torch.randn(1, 1, n, 16, device=DEVICE, requires_grad=True)
    with Largest() as seen:
        pl.attend(q, q, q, module(geometry), geometry, backend="triton").sum().backward()
    assert 0 < seen.nbytes <= 2 * q.untyped_storage().nbytes() < n * n
    assert all(bool(p.grad.any()) for p in module.parameters())
