"""The fused kernels as registered operators, forward and backward, each with a fake implementation.

``positionlib::attention_forward`` has a gradient for q, k, v and the table, through both of its results. The gradient of that
gradient is refused by name.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from positionlib.errors import UnsupportedPositionContract, require
from positionlib.kernels.admission import refusal
from positionlib.kernels.bias import BiasArgs
from positionlib.kernels.launch import accumulator, launch, launch_backward


def forward(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K D"], *,
            query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"], causal: bool, scale: float,
            key_active: Bool[Tensor, "*B K"] | None = None, query_segments: Int[Tensor, "*B Q"] | None = None,
            key_segments: Int[Tensor, "*B K"] | None = None, bias: BiasArgs | None = None) -> Float[Tensor, "B H Q D"]:
    """Fused attention: softmax over the visible keys of scale · q·k + bias, times v, rounded once to q's dtype.

    Positions are int64, exact for any difference. Keys with ``key_active`` False are never loaded. Rows that see no key are zero,
    and so are the gradients of whatever no row sees.

    Raises
    ------
    UnsupportedPositionContract
        the call is not admitted; ``missing`` names what :func:`refusal` says that it lacks.
    PositionContractError
        a bias table without one row for each head of q.
    """
    kind, table, span = (bias.kind, bias.table, bias.span) if bias is not None else ("content", None, 0)
    why_not = refusal(q, k, v, kind=kind)
    if why_not is not None:
        raise UnsupportedPositionContract("backend", "triton", "a call that the fused kernel admits", why_not.why, why_not.missing)
    require(table is None or table.shape[0] == q.shape[1], "table", table, f"{q.shape[1]} heads, as q", "Slice it by head ids.")
    out, _ = attention_forward(q, k, v, query_positions, key_positions, key_active, query_segments, key_segments, table, kind, span,
                               causal, scale)
    return out


@torch.library.custom_op("positionlib::attention_forward", mutates_args=())
def attention_forward(q: Tensor, k: Tensor, v: Tensor, query_positions: Tensor, key_positions: Tensor, key_active: Tensor | None,
                      query_segments: Tensor | None, key_segments: Tensor | None, table: Tensor | None, kind: str, span: int,
                      causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(out [B, H, Q, D] in q's dtype, lse [B, H, Q] in float32 or float64; −∞ where a row sees nothing)."""
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=accumulator(q.dtype))
    launch(out, lse, q, k, v, query_positions, key_positions, key_active, query_segments, key_segments, table, kind, span, causal, scale)
    return out, lse


@attention_forward.register_fake
def _(q, k, v, query_positions, key_positions, key_active, query_segments, key_segments, table, kind, span, causal, scale):
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=accumulator(q.dtype))


@torch.library.custom_op("positionlib::attention_backward", mutates_args=())
def attention_backward(d_out: Tensor, d_lse: Tensor | None, out: Tensor, lse: Tensor, with_table: bool, q: Tensor, k: Tensor, v: Tensor,
                       query_positions: Tensor, key_positions: Tensor, key_active: Tensor | None, query_segments: Tensor | None,
                       key_segments: Tensor | None, table: Tensor | None, kind: str, span: int, causal: bool,
                       scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the table, each as its tensor; the last is empty unless ``with_table``."""
    d_q, d_k, d_v = (t.new_empty(t.shape) for t in (q, k, v))
    d_table = table.new_empty(table.shape) if with_table else q.new_empty(0)
    launch_backward(d_q, d_k, d_v, d_table if with_table else None, d_out, d_lse, out, lse, q, k, v, query_positions, key_positions,
                    key_active, query_segments, key_segments, table, kind, span, causal, scale)
    return d_q, d_k, d_v, d_table


@attention_backward.register_fake
def _(d_out, d_lse, out, lse, with_table, q, k, v, query_positions, key_positions, key_active, query_segments, key_segments, table, *rest):
    return *(t.new_empty(t.shape) for t in (q, k, v)), table.new_empty(table.shape) if with_table else q.new_empty(0)


def _save(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *inputs[:9])
    ctx.rest = inputs[9:]


def _backward(ctx, d_out, d_lse):
    out, lse, *inputs = ctx.saved_tensors
    d_out = torch.zeros_like(out) if d_out is None else d_out  # only the log-sum-exp was used
    with_table = ctx.needs_input_grad[8]
    d_q, d_k, d_v, d_table = attention_backward(d_out, d_lse, out, lse, with_table, *inputs, *ctx.rest)
    return d_q, d_k, d_v, *[None] * 5, d_table if with_table else None, *[None] * 4


def _refuse(ctx, *gradients):
    missing = "a second derivative: the kernel has a forward and a backward"
    raise UnsupportedPositionContract("backend", "triton", "one differentiation", "Use backend='eager' to differentiate a gradient.",
                                      frozenset({missing}))


attention_forward.register_autograd(_backward, setup_context=_save)
attention_backward.register_autograd(_refuse)
