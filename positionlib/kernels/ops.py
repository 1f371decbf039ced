"""The fused kernels as registered operators, forward and backward, each with a fake implementation.

``positionlib::attention_forward`` has a gradient for every floating-point tensor of its ``Call``, through all of its results. The
gradient of that gradient is refused by name.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import UnsupportedPositionContract, require
from positionlib.forms import ByClass, ByLine, ByRow, ByTurn
from positionlib.kernels.admission import refusal
from positionlib.kernels.arguments import LEARNED, SCHEMA, TENSORS, Call
from positionlib.kernels.bias import BiasArgs
from positionlib.kernels.by_class import with_classes, with_value_rows
from positionlib.kernels.by_line import with_line
from positionlib.kernels.by_row import with_rows
from positionlib.kernels.by_turn import with_turns
from positionlib.kernels.checks import require_call, require_part
from positionlib.kernels.launch import accumulator, launch, launch_backward


@checked
def forward(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K D"], *,
            query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"], causal: bool, scale: float,
            key_active: Bool[Tensor, "*B K"] | None = None, query_segments: Int[Tensor, "*B Q"] | None = None,
            key_segments: Int[Tensor, "*B K"] | None = None, bias: BiasArgs | None = None,
            form: ByClass | ByLine | ByRow | ByTurn | None = None) -> Float[Tensor, "B H Q D"]:
    """Fused attention: softmax over the visible keys of scale · q·k + bias, times v, rounded once to q's dtype; and what ``form`` adds.

    Positions are integers above −2^62, up to 2^62, and their differences exact. Keys with ``key_active`` False are never loaded. Rows that see no key are zero,
    and so are the gradients of whatever no row sees.

    Raises
    ------
    UnsupportedPositionContract
        the call is not admitted; ``missing`` names what :func:`refusal` says that it lacks.
    PositionContractError
        parts that do not belong together; a bias table without one row for each head of q, a form for other heads, rows or classes or of
        another width, or one that the bias cannot stand beside.
    PositionRangeError
        a given class without a row, where the host can look without waiting for a device; elsewhere the rows that see it are NaN.
    """
    kind, table, span = (bias.kind, bias.table, bias.span) if bias is not None else ("content", None, 0)
    why_not = refusal(q, k, v, kind=kind)
    if why_not is not None:
        raise UnsupportedPositionContract("backend", "triton", "a call that the fused kernel admits", why_not.why, why_not.missing)
    if table is not None:
        require(table.shape[0] == q.shape[1], "table", table, f"{q.shape[1]} heads, as q", "Slice it by head ids.")
        require_part("table", table, q, tuple(table.shape))
    call = Call(q, k, v, query_positions, key_positions, key_active, query_segments, key_segments, table, kind, span, causal, scale)
    require_call(call)
    require(_fits(bias, form), "form", type(form).__name__, "a form that this bias can stand beside", "Give the bias as numbers by class (ByClass.bias).")
    if isinstance(form, ByRow):
        require(form.bias is None or bias is not None, "bias", bias, "the numbers by offset that the form has",
                "Give BiasArgs.from_classes(form.bias, form.rule, 'key_minus_query').")
    with torch.autocast(q.device.type, enabled=False):  # it would run the products with a form's rows in half precision
        if form is not None:
            call = {ByClass: with_classes, ByLine: with_line, ByRow: with_rows, ByTurn: with_turns}[type(form)](call, form)
        out, _, mass = attention_forward(*call)
        return with_value_rows(out, mass, form, q.dtype) if call.mass_classes else out


def _fits(bias: BiasArgs | None, form: ByClass | ByLine | ByRow | ByTurn | None) -> bool:
    """Whether both find what they need in one call: a line has the place of a table's ends, a rule has its span, turned rows have no bands."""
    if bias is None or form is None or isinstance(form, ByRow):
        return True
    if isinstance(form, ByClass):
        return bias.kind != "t5" or form.rule is None or form.rule.max_distance == bias.span
    return isinstance(form, ByTurn) and bias.kind != "t5"


@torch.library.custom_op("positionlib::attention_forward", mutates_args=(), schema=f"({SCHEMA}) -> (Tensor, Tensor, Tensor)")
def attention_forward(*inputs) -> tuple[Tensor, Tensor, Tensor]:
    """(out [B, H, Q, D] in q's dtype, lse [B, H, Q] and the mass of the classes [B, H, Q, C] in float32 or float64) of a ``Call``.

    lse is −∞ where a row sees nothing. With a mass, out is in the dtype of sums too: something is still to be added before it is rounded.
    """
    call = Call(*inputs)
    out, lse, mass = _results(call)
    launch(out, lse, mass if call.mass_classes else None, call)
    return out, lse, mass


@attention_forward.register_fake
def _(*inputs):
    return _results(Call(*inputs))


def _results(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    q, wide = call.q, accumulator(call.q.dtype)
    out = q.new_empty(q.shape, dtype=wide if call.mass_classes else q.dtype)
    return out, q.new_empty(q.shape[:3], dtype=wide), q.new_empty(*q.shape[:3], call.mass_classes, dtype=wide)


GRADIENTS = ", ".join(["Tensor"] * len(LEARNED))  # no list: vmap has no fallback for one


@torch.library.custom_op("positionlib::attention_backward", mutates_args=(), schema=(
    f"(Tensor d_out, Tensor? d_lse, Tensor? d_mass, Tensor out, Tensor lse, Tensor mass, bool[] wanted, {SCHEMA}) -> ({GRADIENTS})"))
def attention_backward(d_out, d_lse, d_mass, out, lse, mass, wanted, *inputs) -> tuple[Tensor, ...]:
    """Gradients of ``LEARNED``, each as its tensor; those not ``wanted`` are empty, but for q, k and v."""
    call = Call(*inputs)
    gradients = _gradients(wanted, call)
    asked = {name: t for name, t, want in zip(LEARNED, gradients, wanted) if want or name in LEARNED[:3]}
    launch_backward(asked, d_out, d_lse, d_mass if call.mass_classes else None, out, lse, mass, call)
    return gradients


@attention_backward.register_fake
def _(d_out, d_lse, d_mass, out, lse, mass, wanted, *inputs):
    return _gradients(wanted, Call(*inputs))


def _gradients(wanted: list[bool], call: Call) -> tuple[Tensor, ...]:
    """Where the gradients go, one tensor for each of ``LEARNED``."""
    learned = [getattr(call, name) if want or name in LEARNED[:3] else None for name, want in zip(LEARNED, wanted)]
    return tuple(call.q.new_empty(0) if t is None else t.new_empty(t.shape) for t in learned)


def _save(ctx, inputs, output) -> None:
    call = Call(*inputs)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *(getattr(call, name) for name in TENSORS))
    ctx.call = call._replace(**dict.fromkeys(TENSORS))


def _backward(ctx, d_out, d_lse, d_mass):
    out, lse, mass, *tensors = ctx.saved_tensors
    call = ctx.call._replace(**dict(zip(TENSORS, tensors)))
    d_out = torch.zeros_like(call.q) if d_out is None else d_out.to(call.q.dtype)  # None: only another result was used
    wanted = [ctx.needs_input_grad[Call._fields.index(name)] for name in LEARNED]
    gradients = attention_backward(d_out, d_lse, d_mass, out, lse, mass, wanted, *call)
    found = {name: gradient for name, gradient, want in zip(LEARNED, gradients, wanted) if want}
    return tuple(found.get(name) for name in Call._fields)


def _refuse(ctx, *gradients):
    missing = "a second derivative: the kernel has a forward and a backward"
    raise UnsupportedPositionContract("backend", "triton", "one differentiation", "Use backend='eager' to differentiate a gradient.",
                                      frozenset({missing}))


attention_forward.register_autograd(_backward, setup_context=_save)
attention_backward.register_autograd(_refuse)
