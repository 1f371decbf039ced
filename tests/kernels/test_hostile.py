"""Calls of the fused kernels by a hostile caller: what does not fit is refused by its name, and what fits gives the right numbers."""

import math
from dataclasses import replace

import pytest
import torch
from torch.autograd import forward_ad

import positionlib as pl
from positionlib import kernels
from positionlib.capabilities import FREQUENCY_GRADIENT
from positionlib.errors import PositionContractError, UnsupportedPositionContract
from positionlib.forms import ByClass, ByLine, ByOffset, ByRow, ByTurn
from positionlib.kernels import BiasArgs, rows
from positionlib.kernels.arguments import Call
from positionlib.kernels.ops import attention_forward
from positionlib.mechanisms.graph_bias import PairBias
from positionlib.rules import Clip
from tests.kernels.cases import DEVICE

pytest.importorskip("triton")
B, H, Q, K, D = 2, 4, 3, 5, 16


def normal(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype).to(DEVICE)


def ids(n: int, dtype=torch.int64) -> torch.Tensor:
    return torch.arange(n, dtype=dtype, device=DEVICE)


SOUND = {"q": normal(B, H, Q, D), "k": normal(B, 2, K, D), "v": normal(B, 2, K, D) + 1, "query_positions": ids(Q) + 2, "key_positions": ids(K),
         "causal": True, "scale": 0.25}
RULE = {"rule": Clip(3), "sign": "key_minus_query"}
GIVEN = torch.arange(Q * K, device=DEVICE).view(Q, K) % 7
ROWS, NUMBERS, BLIND = normal(7, D), normal(7, H), torch.ones(4, dtype=torch.bool, device=DEVICE)
LINE = ByLine(rows=normal(H, 9, D), first=-4, content_bias=normal(H, D), position_bias=normal(H, D))
BY_ROW = ByRow(query_rows=normal(1, H, Q, D), key_rows=normal(1, H, K, D))
TURNS = ByTurn(query_turns=normal(Q, 2, 8), key_turns=normal(K, 2, 8), interleaved=True)


def attend(**other) -> torch.Tensor:
    return kernels.forward(**{**SOUND, **other})


def by_class(**parts) -> dict:
    return {"form": ByClass(**parts)}


REFUSED = {
    "another batch": ("k", {"k": normal(3, 2, K, D)}),
    "three key heads for four": ("k", {"k": normal(B, 3, K, D), "v": normal(B, 3, K, D)}),
    "no key head": ("k", {"k": normal(B, 0, K, D), "v": normal(B, 0, K, D)}),
    "fewer values than keys": ("v", {"v": normal(B, 2, 4, D)}),
    "values of another width": ("v", {"v": normal(B, 2, K, 32)}),
    "wider keys": ("k", {"k": normal(B, 2, K, 32)}),
    "values of another dtype": ("v", {"v": normal(B, 2, K, D).half()}),
    "no batch axis": ("q", {"q": normal(H, Q, D)}),
    "no tensor": ("q", {"q": None}),
    "fewer positions than rows": ("query_positions", {"query_positions": ids(2)}),
    "positions of another batch": ("key_positions", {"key_positions": ids(3 * K).view(3, K)}),
    "positions of a further axis": ("key_positions", {"key_positions": ids(K).expand(B, 1, K)}),
    "fractional positions": ("query_positions", {"query_positions": ids(Q) + 0.5}),
    "positions whose difference wraps": ("key_positions", {"key_positions": ids(K) + 2**63 - K}),
    "positions whose difference is 2^63": ("query_positions", {"query_positions": ids(Q) - 2**62, "key_positions": ids(K) + 2**62 - K + 1}),
    "padding as numbers": ("key_active", {"key_active": ids(K)}),
    "padding of other keys": ("key_active", {"key_active": BLIND}),
    "segments of the keys alone": ("key_segments", {"key_segments": ids(K)}),
    "segments of the queries alone": ("key_segments", {"query_segments": ids(Q)}),
    "causal by a tensor": ("causal", {"causal": torch.tensor(True)}),
    "scale that is no number": ("scale", {"scale": math.nan}),
    "a bias that is a tensor": ("bias", {"bias": NUMBERS}),
    "a form by offset": ("form", {"form": ByOffset()}),
    "rows and nothing to say whose": ("classes", by_class(query_rows=ROWS)),
    "numbers and nothing to say whose": ("classes", by_class(bias=NUMBERS)),
    "a rule beside given classes": ("classes", by_class(**RULE, classes=GIVEN, query_rows=ROWS)),
    "classes of nothing": ("classes", by_class(classes=GIVEN)),
    "a rule without a last distance": ("rule", by_class(rule=object(), sign="key_minus_query", query_rows=ROWS)),
    "query rows of fewer classes": ("query_rows", by_class(**RULE, query_rows=ROWS[:5])),
    "key rows of fewer classes": ("key_rows", by_class(**RULE, key_rows=ROWS[:5])),
    "value rows of fewer classes": ("value_rows", by_class(classes=GIVEN, query_rows=ROWS, value_rows=ROWS[:5])),
    "numbers of fewer classes": ("bias", by_class(**RULE, bias=NUMBERS[:5])),
    "numbers of one head": ("bias", by_class(**RULE, bias=NUMBERS[:, :1])),
    "whole numbers for rows": ("query_rows", by_class(**RULE, query_rows=ROWS.long())),
    "a class past the rows": ("classes", by_class(classes=GIVEN + 1, query_rows=ROWS)),
    "a class before the rows": ("classes", by_class(classes=GIVEN - 1, query_rows=ROWS)),
    "a class that wraps": ("classes", by_class(classes=GIVEN + 2**32, query_rows=ROWS)),
    "classes by a condition": ("classes", by_class(classes=GIVEN > 3, query_rows=ROWS)),
    "classes of fewer keys": ("classes", by_class(classes=GIVEN[:, :1], query_rows=ROWS)),
    "numbers of fewer pairs": ("pair_bias", by_class(pair_bias=normal(1, H, Q, 1))),
    "numbers of a pair for one head": ("pair_bias", by_class(pair_bias=normal(1, 1, Q, K))),
    "no bias of the content": ("content_bias", {"form": replace(LINE, content_bias=None)}),
    "a line without an end": ("rows", {"form": replace(LINE, rows=normal(H, 1, D))}),
    "a line that starts between offsets": ("first", {"form": replace(LINE, first=-4.5)}),
    "no key rows": ("key_rows", {"form": replace(BY_ROW, key_rows=None)}),
    "CLS of another head count": ("cls", {"form": replace(BY_ROW, cls=normal(2, 2), cls_position=0)}),
    "CLS nowhere": ("cls_position", {"form": replace(BY_ROW, cls=normal(2, H))}),
    "a bias that the form alone has": ("bias", {"form": replace(BY_ROW, rule=Clip(3), bias=NUMBERS)}),
    "turns of fewer keys": ("key_turns", {"form": replace(TURNS, key_turns=normal(2, 2, 8))}),
    "more pairs than channels": ("query_turns", {"form": replace(TURNS, query_turns=normal(Q, 2, 9), key_turns=normal(K, 2, 9))}),
    "other pairs for the keys": ("key_turns", {"form": replace(TURNS, key_turns=normal(K, 2, 4))}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_its_name(name):
    """Before a kernel reads it: on a GPU it would read past the end of a tensor."""
    field, other = REFUSED[name]
    with pytest.raises(PositionContractError) as refused:
        attend(**other)
    assert refused.value.field == field and refused.value.expected and refused.value.remedy


@pytest.mark.parametrize("name, build", {
    "a table of fewer classes": lambda: BiasArgs.from_classes(NUMBERS[:5], Clip(3), "key_minus_query"),
    "a table of more classes": lambda: BiasArgs.from_classes(normal(9, H), Clip(3), "key_minus_query"),
    "slopes in a list": lambda: BiasArgs.from_slopes([0.5, 0.25], "relative"),
    "whole slopes": lambda: BiasArgs.from_slopes(ids(4), "relative"),
}.items())
def test_a_bias_that_is_no_table_is_refused(name, build):
    with pytest.raises(PositionContractError) as refused:
        build()
    assert refused.value.field == "table"


def test_integers_of_any_width_and_wide_numbers_change_no_answer():
    """Positions of a byte do not wrap, nor do classes; numbers of a pair in float64 do not change the dtype of a tile."""
    pairs, short = normal(1, H, Q, K), {"query_positions": ids(Q, torch.uint8) + 2, "key_positions": ids(K, torch.int32)}
    want = attend(**by_class(classes=GIVEN, query_rows=ROWS, pair_bias=pairs))
    assert torch.equal(attend(**short, **by_class(classes=GIVEN.to(torch.uint8), query_rows=ROWS, pair_bias=pairs.double())), want)
    q, k, v = (SOUND[name] for name in ("q", "k", "v"))
    geometry = pl.AttentionGeometry(SOUND["query_positions"], SOUND["key_positions"], causal=True)
    term, gradients = PairBias(pairs=normal(H, K, K, dtype=torch.float64).requires_grad_()), []
    for backend in ("triton", "eager"):
        gradients += torch.autograd.grad(pl.attend(q, k, v, term, geometry, backend=backend).square().sum(), term.pairs)
    assert gradients[0].dtype == torch.float64
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_a_given_class_of_any_size_has_a_row_or_none():
    """Where the host does not look the kernel does, in the integers' own width: 2^32 + 1 is no class 1, and its row is NaN."""
    scores = torch.zeros(B, H, Q, 7, device=DEVICE)
    classes = GIVEN.clone()
    classes[1, 2] = 2**32 + 1
    call = Call(*(SOUND[name] for name in ("q", "k", "v", "query_positions", "key_positions")), None, None, None, None, "content", 0, False, 0.25,
                classes=classes, query_scores=scores)
    out, plain = attention_forward(*call)[0], attention_forward(*call._replace(classes=GIVEN))[0]
    assert out[:, :, 1].isnan().all() and torch.equal(out[:, :, ::2], plain[:, :, ::2])


TRANSFORMED = {
    "attention": lambda x: attend(q=x.expand(B, H, Q, D)),
    "rows of a table": lambda x: rows.add_row(x.expand(1, Q, D), ROWS, ids(Q)),
    "rotation": lambda x: rows.rotate(x.expand(1, 1, Q, D), ids(Q), torch.ones(8, device=DEVICE), pairing="interleaved"),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_that_would_lose_a_gradient_are_refused(name):
    """A tangent of zeros would look like an answer."""
    call, x = TRANSFORMED[name], normal(D)

    def dual(x):
        with forward_ad.dual_level():
            return call(forward_ad.make_dual(x, x))

    for transform in (lambda: torch.func.jvp(call, (x,), (x,)), lambda: torch.func.grad(lambda x: call(x).sum())(x), lambda: dual(x)):
        with pytest.raises(UnsupportedPositionContract, match="transform"):
            transform()


def test_a_transform_is_refused_in_a_graph_too():
    """Its tangent would be zeros; where a graph may break, the call refuses by name."""
    with pytest.raises(UnsupportedPositionContract, match="transform"):
        torch.compile(lambda q: torch.func.jvp(lambda q: attend(q=q), (q,), (q,)), backend="eager")(SOUND["q"])


@pytest.mark.parametrize("bias", [None, "t5"])
def test_several_cotangents_at_once(bias):
    """As torch.autograd asks for a Jacobian, and as torch.func.vmap around autograd does."""
    leaves = [SOUND["q"].clone().requires_grad_(), normal(7, H).requires_grad_()][: 1 + (bias is not None)]
    out = attend(q=leaves[0], bias=bias and BiasArgs.from_classes(leaves[1], Clip(3), "key_minus_query"))
    several = normal(3, *out.shape)
    want = [torch.stack(of_one) for of_one in zip(*(torch.autograd.grad(out, leaves, one, retain_graph=True) for one in several))]
    for seen in (torch.autograd.grad(out, leaves, several, is_grads_batched=True, retain_graph=True),
                 torch.func.vmap(lambda one: torch.autograd.grad(out, leaves, one, retain_graph=True))(several)):
        assert all(torch.equal(a, b) for a, b in zip(seen, want))


@pytest.mark.parametrize("bias", [None, "t5"])
def test_vmap_calls_the_kernel_for_each_row(bias):
    table = normal(2, 7, H)

    def run(q, table):
        return attend(q=q, bias=bias and BiasArgs.from_classes(table, Clip(3), "key_minus_query"))

    queries = torch.stack((SOUND["q"], SOUND["q"] * 2))
    assert torch.equal(torch.func.vmap(run)(queries, table), torch.stack([run(*one) for one in zip(queries, table)]))


@pytest.mark.parametrize("name", ["query_turns", "key_turns"])
def test_turns_that_are_trained_are_refused(name):
    """Their gradient would be none, beside that of q."""
    form = replace(TURNS, **{name: getattr(TURNS, name).clone().requires_grad_()})
    with pytest.raises(UnsupportedPositionContract) as refused:
        attend(form=form)
    assert refused.value.field == name and FREQUENCY_GRADIENT in refused.value.missing
    with torch.no_grad():
        assert torch.equal(attend(form=form), attend(form=TURNS))


def test_autocast_changes_no_answer():
    """The products with a form's rows are the host's, and stay in the dtype of sums."""
    form = by_class(**RULE, query_rows=ROWS, key_rows=ROWS, value_rows=ROWS)
    want = attend(**form)
    with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
        assert torch.equal(attend(**form), want)


def test_tupe_is_made_under_autocast():
    """Its projections are rounded, as autocast asks; the term they make is one of a single dtype, on every backend."""
    torch.manual_seed(0)
    module = pl.TUPE(H, H * D, 8, relative=pl.T5Buckets(8, 20, True), finish=False).to(DEVICE)
    geometry = pl.AttentionGeometry(ids(Q), ids(K))
    with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
        outs = [pl.attend(SOUND["q"], SOUND["k"], SOUND["v"], module(geometry), geometry, backend=backend) for backend in ("triton", "eager")]
    torch.testing.assert_close(*outs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(outs[0], pl.attend(SOUND["q"], SOUND["k"], SOUND["v"], module(geometry), geometry, backend="eager"), rtol=1e-2, atol=1e-2)


def test_a_row_whose_scores_are_no_numbers_has_no_log_sum_exp():
    """Minus infinity would say that it sees nothing, and the gradient of a value that it sees would be a number."""
    k, v, far = SOUND["k"].clone(), SOUND["v"].clone().requires_grad_(), ids(K) + 2
    k[0, 0, 1] = math.nan  # at position 3, of heads 0 and 1
    call = Call(SOUND["q"], k, v, ids(Q) + 1, far, None, None, None, None, "content", 0, True, 0.25)
    out, lse, _ = attention_forward(*call)
    assert (lse[:, :, 0] == -math.inf).all() and not out[:, :, 0].any()  # position 1 sees nothing
    assert torch.equal(lse[0, 0].isnan(), torch.tensor([False, False, True], device=DEVICE)) and lse[0, :2, 2].isnan().all()
    assert lse[0, 2:, 1:].isfinite().all() and lse[1, :, 1:].isfinite().all()
    assert torch.autograd.grad(out.sum(), v)[0][0, 0, 0].isnan().all()


def test_no_rows_and_no_keys_are_no_distance():
    nobody = pl.AttentionGeometry(ids(0), ids(0), causal=True)
    nothing = torch.zeros(B, H, 0, D, device=DEVICE)
    assert pl.attend(nothing, nothing, nothing, pl.TransformerXL(8, H, D).to(DEVICE)(nobody), nobody, backend="triton").shape == nothing.shape


# --- rows ------------------------------------------------------------------------------------------------------------

X, FREQUENCY = normal(1, Q, 8), torch.tensor([1.0, 0.5, 0.25, 0.125], device=DEVICE)
TIMES, OMEGA = torch.tensor([0.5, math.nan, 2.0], dtype=torch.float64, device=DEVICE), normal(8)


def timed(tau=TIMES, omega=OMEGA, **other):
    return rows.add_time2vec(X, tau, omega, **{"phi": OMEGA + 1, "function": "sin", "linear": "first", **other})


@pytest.mark.parametrize("field, call", {
    "x": lambda: rows.add_row(X.to_sparse(), normal(7, 8), ids(Q)), "table": lambda: rows.add_row(X, [[0.0] * 8], ids(Q)),
    "row_table": lambda: rows.add_grid(X, None, normal(7, 8), ids(Q), ids(Q)), "column_table": lambda: rows.add_grid(X, normal(7, 8), None, ids(Q), ids(Q)),
    "inverse_frequency": lambda: rows.rotate(X[None], ids(Q), FREQUENCY.to(torch.complex64), pairing="interleaved"),
    "tau": lambda: timed(tau=None), "omega": lambda: timed(omega=[1.0] * 8), "phi": lambda: timed(phi=None), "present": lambda: timed(present=[True] * 3),
}.items())
def test_rows_of_what_is_no_tensor_are_refused(field, call):
    with pytest.raises(PositionContractError) as refused:
        call()
    assert refused.value.field == field


def test_an_absent_time_reaches_no_gradient_whatever_it_holds():
    """0 · NaN would be NaN for every frequency."""
    present, gradients = ~TIMES.isnan(), []
    for tau in (TIMES, TIMES.nan_to_num()):
        leaves = [t.clone().requires_grad_() for t in (tau, OMEGA, OMEGA + 1)]
        gradients.append(torch.autograd.grad(timed(*leaves[:2], phi=leaves[2], present=present).sum(), leaves))
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(*gradients))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_angle_gives_no_number(bad):
    """A fraction of a turn is an integer, which has no NaN: the channel has to say so beside it, and the others stay as they are."""
    spoiled = torch.where(torch.arange(4, device=DEVICE) == 2, bad, FREQUENCY)
    for call, channels in ((lambda w: rows.add_sinusoidal(X, ids(Q), w, layout="interleaved"), [4, 5]),
                           (lambda w: rows.rotate(X[None], ids(Q), w, pairing="half_split")[0], [2, 6])):
        wrong, right, lost = call(spoiled), call(FREQUENCY), torch.isin(torch.arange(8, device=DEVICE), torch.tensor(channels, device=DEVICE))
        assert wrong[..., lost].isnan().all() and torch.equal(wrong[..., ~lost], right[..., ~lost])
    times = torch.tensor([1.0, bad, 2.0], dtype=torch.float64, device=DEVICE)
    out = timed(times)
    assert out[:, 1, 1:].isnan().all() and out[:, ::2].isfinite().all()
