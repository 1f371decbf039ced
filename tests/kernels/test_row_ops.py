"""The row kernels' operators and host side: opcheck, torch.compile both ways, gradcheck, admission, what is refused."""

import pytest
import torch

from positionlib.errors import PositionRangeError, UnsupportedPositionContract
from positionlib.kernels import row_ops, rows
from positionlib.mechanisms.sinusoidal import inverse_frequencies
from tests.kernels.cases import DEVICE
from tests.refusals import refused

pytest.importorskip("triton")
N, D = 5, 6


def normal(*shape, dtype=torch.float32, grad=True):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype).requires_grad_(grad)


def calls(dtype=torch.float32):
    """{name: (function of its differentiable tensors alone, those tensors)} through the public functions."""
    ids, other = torch.tensor([3, 0, 3, 3, 1], device=DEVICE), torch.tensor([[0, 1, -1, 2, 2], [1, 1, 0, 0, -1]], device=DEVICE)
    frequency, half = inverse_frequencies(D).to(DEVICE), inverse_frequencies(4).to(DEVICE)
    present = torch.tensor([True, True, False, True, True], device=DEVICE)
    x = normal(2, N, D, dtype=dtype)
    return {
        "add_sinusoidal": (lambda x: rows.add_sinusoidal(x, ids - 2, frequency, layout="concatenated"), (x,)),
        "add_row": (lambda x, t: rows.add_row(x, t, ids, row_offset=1), (x, normal(6, D, dtype=dtype))),
        "add_grid": (lambda x, r, c: rows.add_grid(x, r, c, ids, other), (x, normal(4, D, dtype=dtype), normal(3, D, dtype=dtype))),
        "add_time2vec": (lambda x, tau, omega, phi: rows.add_time2vec(x, tau, omega, phi, function="cos", linear="last", present=present),
                         (x, normal(N, dtype=torch.float64), normal(D, dtype=dtype), normal(D, dtype=dtype))),
        "rotate": (lambda x: rows.rotate(x, other, half, pairing="interleaved"), (normal(2, 3, N, D, dtype=dtype),)),
    }


NAMES = list(calls())


@pytest.mark.parametrize("op, arguments", [
    ("add_sinusoidal", lambda: (normal(2, N, D), torch.arange(N, device=DEVICE), inverse_frequencies(D).to(DEVICE), True)),
    ("add_row", lambda: (normal(2, N, D), normal(7, D), torch.arange(N, device=DEVICE), 2)),
    ("sum_rows", lambda: (normal(2, N, D, grad=False), torch.arange(N, device=DEVICE), 7, torch.float32)),
    ("add_grid", lambda: (normal(2, N, D), normal(5, D), normal(6, D), torch.arange(N, device=DEVICE), torch.arange(N, device=DEVICE))),
    ("add_time2vec", lambda: (normal(2, N, D), normal(N, dtype=torch.float64), torch.arange(N, device=DEVICE) > 1, normal(D), normal(D), 0, False)),
    ("time2vec_gradients", lambda: (normal(2, N, D, grad=False), normal(N, dtype=torch.float64, grad=False), torch.arange(N, device=DEVICE) > 1,
                                    normal(D, grad=False), normal(D, grad=False), 0, False)),
    ("rotate", lambda: (normal(2, 3, N, D), torch.arange(N, device=DEVICE), inverse_frequencies(4).to(DEVICE), True, False)),
], ids=lambda v: v if isinstance(v, str) else "")
def test_opcheck(op, arguments):
    """Schema, fake tensors, autograd registration and tracing with dynamic shapes."""
    assert set(torch.library.opcheck(getattr(row_ops, op), arguments()).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", NAMES)
def test_compiles_both_ways_without_a_graph_break(name):
    """The host side, the operator and its gradient, in one graph: equal to the eager call."""
    function, leaves = calls()[name]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    results = []
    for f in (function, compiled):
        y = f(*leaves)
        results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    for eager, graph in zip(*results):
        assert torch.equal(eager, graph)


@pytest.mark.skipif(DEVICE == "cuda", reason="float64 is for the interpreter")
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    assert torch.autograd.gradcheck(*calls(torch.float64)[name], fast_mode=True)


@pytest.mark.skipif(DEVICE == "cuda", reason="float64 is for the interpreter")
def test_a_rotation_has_a_second_gradient():
    assert torch.autograd.gradgradcheck(*calls(torch.float64)["rotate"], fast_mode=True)


@pytest.mark.parametrize("name", ["add_row", "add_grid", "add_time2vec"])
def test_the_others_refuse_one_by_name(name):
    call, leaves = calls()[name]
    first = torch.autograd.grad(call(*leaves).square().sum(), leaves[1:], create_graph=True)
    with pytest.raises(UnsupportedPositionContract, match="one differentiation") as why_not:
        torch.autograd.grad(first[0].sum(), leaves[1])
    assert any("second derivative" in missing for missing in why_not.value.missing)


def test_a_table_that_is_fixed_costs_no_reduction(monkeypatch):
    """A finished table, as a sinusoidal one: the state's gradient passes and no ids are sorted."""
    monkeypatch.setattr(row_ops, "sum_rows", None)
    x = normal(2, N, D)
    y = rows.add_row(x, normal(7, D, grad=False), torch.arange(N, device=DEVICE))
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.ones_like(x))


@pytest.mark.parametrize("change, named", [
    ({"x": torch.zeros(1, 2, 4, dtype=torch.int32)}, "torch.int32"),
    ({"trained": (torch.zeros(4, dtype=torch.complex64),)}, "torch.complex64"),
    ({"fixed": (torch.zeros(2, requires_grad=True),)}, "gradient of the frequencies"),
    ({"fixed": (torch.zeros(2, device="meta"),)}, "device meta: x is on cpu"),
    ({"x": torch.zeros(1, 2, 4, device="meta")}, "device meta"),
    ({"interpreted": False}, "device cpu"),
])
def test_each_refusal_names_what_is_missing(monkeypatch, change, named):
    monkeypatch.setattr(rows, "interpreted", lambda: change.get("interpreted", True))
    arguments = {"x": torch.zeros(1, 2, 4)} | {k: v for k, v in change.items() if k != "interpreted"}
    assert named in rows.refusal(arguments.pop("x"), **arguments)


def test_admitted(monkeypatch):
    monkeypatch.setattr(rows, "interpreted", lambda: True)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert rows.refusal(torch.zeros(1, 2, 4, dtype=dtype), trained=(torch.zeros(4, requires_grad=True),), fixed=(torch.zeros(2),)) is None


def test_a_refused_call_is_not_run():
    frequency = inverse_frequencies(D).to(DEVICE).requires_grad_()
    with pytest.raises(UnsupportedPositionContract, match="frequencies") as raised:
        rows.add_sinusoidal(normal(2, N, D), torch.arange(N, device=DEVICE), frequency, layout="interleaved")
    assert raised.value.missing


def bad(name, **change):
    """A call of the named function with one argument wrong."""
    ids = torch.arange(N, device=DEVICE)
    good = {
        "add_sinusoidal": {"x": normal(2, N, D), "positions": ids, "inverse_frequency": inverse_frequencies(D).to(DEVICE), "layout": "interleaved"},
        "add_row": {"x": normal(2, N, D), "table": normal(7, D), "positions": ids, "row_offset": 1},
        "add_grid": {"x": normal(2, N, D), "row_table": normal(5, D), "column_table": normal(6, D), "rows": ids, "columns": ids},
        "add_time2vec": {"x": normal(2, N, D), "tau": normal(N, dtype=torch.float64), "omega": normal(D), "phi": normal(D), "function": "sin",
                         "linear": "first"},
        "rotate": {"x": normal(2, 3, N, D), "positions": ids, "inverse_frequency": inverse_frequencies(4).to(DEVICE), "pairing": "half_split"},
    }[name]
    return lambda: getattr(rows, name)(**good | change)


FLOATS = torch.arange(5.0, device=DEVICE)


@pytest.mark.parametrize("name, change, field", [
    ("add_sinusoidal", {"x": torch.zeros(N, D, device=DEVICE)}, "x"),
    ("add_sinusoidal", {"positions": FLOATS}, "positions"),
    ("add_sinusoidal", {"positions": FLOATS[:4].long()}, "positions"),
    ("add_sinusoidal", {"positions": torch.arange(N, device="meta")}, "positions.device"),
    ("add_sinusoidal", {"inverse_frequency": FLOATS[:2].double()}, "inverse_frequency"),
    ("add_sinusoidal", {"layout": "half_split"}, "layout"),
    ("add_row", {"table": torch.zeros(7, 1, device=DEVICE)}, "table"),
    ("add_row", {"row_offset": -1}, "row_offset"),
    ("add_grid", {"column_table": torch.zeros(6, 5, device=DEVICE)}, "column_table"),
    ("add_grid", {"columns": FLOATS}, "columns"),
    ("add_time2vec", {"tau": FLOATS}, "tau"),
    ("add_time2vec", {"present": FLOATS}, "present"),
    ("add_time2vec", {"present": FLOATS[:4] > 0}, "present"),
    ("add_time2vec", {"omega": FLOATS}, "omega"),
    ("add_time2vec", {"function": "tanh"}, "function"),
    ("add_time2vec", {"linear": "middle"}, "linear"),
    ("rotate", {"x": torch.zeros(2, N, D, device=DEVICE)}, "x"),
    ("rotate", {"pairing": "concatenated"}, "pairing"),
    ("rotate", {"inverse_frequency": FLOATS[:4].double()}, "inverse_frequency"),
    ("rotate", {"positions": FLOATS[:1].long().expand(3, 5)}, "positions"),
])
def test_what_does_not_fit_is_named(name, change, field):
    bad(name)()
    refused(bad(name, **change), field)


@pytest.mark.parametrize("name, change, field, value", [
    ("add_row", {"row_offset": 3}, "positions", 4),
    ("add_row", {"positions": torch.arange(-1, 4, device=DEVICE)}, "positions", -1),
    ("add_grid", {"rows": torch.arange(1, 6, device=DEVICE)}, "rows", 5),
    ("add_grid", {"columns": torch.arange(-2, 3, device=DEVICE)}, "columns", -2),
])
def test_an_id_without_a_row_is_refused_before_the_launch(name, change, field, value):
    with pytest.raises(PositionRangeError) as raised:
        bad(name, **change)()
    assert (raised.value.field, raised.value.value) == (field, value)
