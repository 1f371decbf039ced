"""The host side of the fused kernels: bias arguments, the registered operator, the launch and its tile sizes.

Triton is imported at the first launch, never with the library. The operator ``positionlib::attention_forward`` has a fake
implementation and no backward: a call that needs a gradient is refused, by name, before it gets here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from positionlib.errors import UnsupportedPositionContract, require, require_choice
from positionlib.kernels.admission import KINDS, interpreted, refusal
from positionlib.rules import check_sign


@dataclass(frozen=True, eq=False)
class BiasArgs:
    """What a score function reads: ``kind`` chooses it, ``table`` holds slopes [H] or the bias by clamped offset [H, 2·span + 1].

    A bias is added to the scaled scores. One that belongs inside the scale is the same bias times the scale.
    """

    kind: str
    table: Float[Tensor, "H *offsets"]
    span: int = 0

    def __post_init__(self) -> None:
        require_choice("kind", self.kind, KINDS[1:])
        tail = (2 * self.span + 1,) if self.kind == "t5" else ()
        require(self.table.ndim == 1 + len(tail) and self.table.shape[1:] == tail, "table", self.table, f"shape {('heads', *tail)}",
                "Build it with BiasArgs.from_slopes or BiasArgs.from_classes.")
        require(self.table.numel() < 2**31, "span", self.span, "a table of fewer than 2^31 entries", "Clip at a smaller distance.")

    @classmethod
    def from_slopes(cls, slopes: Float[Tensor, "H"], form: str) -> BiasArgs:
        """ALiBi: −m_h · max(i−j, 0) for ``relative``, −m_h · |i−j| for ``symmetric``; slopes are per position."""
        return cls(f"alibi_{form}", slopes)

    @classmethod
    def from_classes(cls, table: Float[Tensor, "R H"], rule, sign: str) -> BiasArgs:
        """T5 and its kin: ``rule`` maps signed offsets to rows of ``table`` and is constant beyond ``rule.max_distance``."""
        check_sign(sign)
        if not torch.compiler.is_compiling():
            probe = torch.tensor([rule.max_distance, rule.max_distance + 1, 2 * rule.max_distance, 2**40])
            require(all(bool((ids == ids[0]).all()) for ids in (rule.classes(probe), rule.classes(-probe))), "rule", rule,
                    f"one class beyond ±{rule.max_distance}", "State the distance from which the rule no longer changes.")
        offset = torch.arange(-rule.max_distance, rule.max_distance + 1, device=table.device)  # key minus query
        classes = rule.classes(offset if sign == "key_minus_query" else -offset)
        return cls("t5", table[classes].T.contiguous(), rule.max_distance)


def forward(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K D"], *,
            query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"], causal: bool, scale: float,
            key_active: Bool[Tensor, "*B K"] | None = None, query_segments: Int[Tensor, "*B Q"] | None = None,
            key_segments: Int[Tensor, "*B K"] | None = None, bias: BiasArgs | None = None) -> Float[Tensor, "B H Q D"]:
    """Fused attention: softmax over the visible keys of scale · q·k + bias, times v, rounded once to q's dtype.

    Positions are int64, exact for any difference. Keys with ``key_active`` False are never loaded. Rows that see no key are zero.

    Raises
    ------
    UnsupportedPositionContract
        the call is not admitted; ``missing`` carries the reason of :func:`refusal`.
    PositionContractError
        a bias table without one row for each head of q.
    """
    kind, table, span = (bias.kind, bias.table, bias.span) if bias is not None else ("content", None, 0)
    why_not = refusal(q, k, v, kind=kind, table=table)
    if why_not is not None:
        raise UnsupportedPositionContract("backend", "triton", "a call that the fused kernel admits", why_not, frozenset({why_not}))
    require(table is None or table.shape[0] == q.shape[1], "table", table, f"{q.shape[1]} heads, as q", "Slice it by head ids.")
    out, _ = attention_forward(q, k, v, query_positions, key_positions, key_active, query_segments, key_segments, table, kind, span,
                               causal, scale)
    return out


@torch.library.custom_op("positionlib::attention_forward", mutates_args=())
def attention_forward(q: Tensor, k: Tensor, v: Tensor, query_positions: Tensor, key_positions: Tensor, key_active: Tensor | None,
                      query_segments: Tensor | None, key_segments: Tensor | None, table: Tensor | None, kind: str, span: int,
                      causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(out [B, H, Q, D] in q's dtype, lse [B, H, Q] in float32 or float64; −∞ where a row sees nothing)."""
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=_accumulator(q.dtype))
    launch(out, lse, q, k, v, query_positions, key_positions, key_active, query_segments, key_segments, table, kind, span, causal, scale)
    return out, lse


@attention_forward.register_fake
def _(q, k, v, query_positions, key_positions, key_active, query_segments, key_segments, table, kind, span, causal, scale):
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=_accumulator(q.dtype))


def launch(out, lse, q, *rest) -> None:
    """Run the kernel into ``out`` and ``lse``, of any strides. Arguments as for the operator."""
    if out.numel() == 0:
        return
    from positionlib.kernels import tile

    grid, arguments, options = launch_arguments(out, lse, q, *rest)
    with torch.cuda.device_of(q):
        tile.forward_tile[grid](*arguments, **options)


def launch_arguments(out, lse, q, k, v, query_positions, key_positions, key_active, query_segments, key_segments, table, kind, span,
                     causal, scale) -> tuple[tuple[int], tuple, dict]:
    """(grid, positional arguments, constants and compiler options) of ``forward_tile`` for one call: one program a query tile and head."""
    import triton.language as tl

    batch, heads, queries, width = q.shape
    rows = [query_positions, key_positions, None if key_active is None else key_active.view(torch.uint8), query_segments, key_segments]
    rows = [None if t is None else t.expand(batch, t.shape[-1]) for t in rows]  # stride 0 where the batch shares one row
    sizes = tile_sizes(width, queries, q.element_size())
    arguments = (
        q, k, v, out, lse, *rows, None if table is None else table.to(lse.dtype).contiguous(),
        q.stride(), k.stride(), v.stride(), out.stride(), lse.stride(), *((0, 0) if t is None else t.stride() for t in rows),
        heads, heads // k.shape[1], queries, k.shape[2], width, span, scale,
    )  # fmt: skip
    options = {"SCORE": score_function(kind), "CAUSAL": causal, "UPCAST": q.dtype == torch.bfloat16 and interpreted(),
               "ACC": tl.float64 if lse.dtype == torch.float64 else tl.float32, "PRECISION": "ieee", **sizes}
    return (-(-queries // sizes["BLOCK_M"]) * batch * heads,), arguments, options


def score_function(kind: str):
    """The ``@triton.jit`` function behind one of ``KINDS``."""
    from positionlib.kernels import alibi, nope, t5

    return {"content": nope.content, "alibi_relative": alibi.alibi_relative, "alibi_symmetric": alibi.alibi_symmetric, "t5": t5.t5}[kind]


def tile_sizes(width: int, queries: int, element_size: int) -> dict[str, int]:
    """Tile and pipeline sizes, chosen so that what ``compile`` reports for sm_80 and sm_90 stays within its bars."""
    block_d = max(16, 1 << (width - 1).bit_length())
    decoding = queries <= 16  # one short tile of queries, the smallest that a tensor core takes
    if element_size > 2:  # full float32 precision runs without tensor cores: small tiles, to stay in registers
        m, n, warps, stages = 32 if block_d <= 64 else 16, 32, 8, 2
    elif block_d <= 64:
        m, n, warps, stages = 128, 64, 8, 3
    elif block_d <= 128:
        m, n, warps, stages = 128, 32, 8, 3
    else:
        m, n, warps, stages = 64, 32, 8, 2
    if decoding:
        m, n, warps, stages = 16, 32, 8 if element_size > 2 else 4, 3
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_D": block_d, "SCAN": 1024, "num_warps": warps, "num_stages": stages}


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
