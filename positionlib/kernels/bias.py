"""What a score function reads besides the scores: slopes, or a bias laid out by clamped offset."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.errors import PositionRangeError, require, require_choice, require_count
from positionlib.kernels.admission import KINDS
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
        tail = (2 * require_count("span", self.span) + 1,) if self.kind == "t5" else ()
        floats = isinstance(self.table, Tensor) and self.table.layout == torch.strided and self.table.dtype.is_floating_point
        require(floats and self.table.ndim == 1 + len(tail) and self.table.shape[1:] == tail, "table", self.table,
                f"floating point of shape {('heads', *tail)}", "Build it with BiasArgs.from_slopes or BiasArgs.from_classes.")
        require(self.table.numel() < 2**31, "span", self.span, "a table of fewer than 2^31 entries", "Clip at a smaller distance.")

    @classmethod
    def from_slopes(cls, slopes: Float[Tensor, "H"], form: str) -> BiasArgs:
        """ALiBi: −m_h · max(i−j, 0) for ``relative``, −m_h · |i−j| for ``symmetric``; slopes are per position."""
        return cls(f"alibi_{form}", slopes)

    @classmethod
    def from_classes(cls, table: Float[Tensor, "R H"], rule, sign: str) -> BiasArgs:
        """T5 and its kin: ``rule`` maps signed offsets to rows of ``table`` and is constant beyond ``rule.max_distance``."""
        rows = require_rule(rule).num_classes
        require(isinstance(table, Tensor) and table.layout == torch.strided and table.ndim == 2 and len(table) == rows, "table", table, f"[{rows}, heads]",
                "Orient it as [classes, heads].")
        return cls("t5", _ByOffset.apply(table, classes_by_offset(rule, sign, table.device)), rule.max_distance)


def require_rule(rule: object) -> object:
    """The rule, when it maps offsets to so many classes that stop changing at a distance it names."""
    known = all(hasattr(rule, name) for name in ("num_classes", "classes", "max_distance"))
    require(known, "rule", rule, "a rule with num_classes, classes(offset) and max_distance", "T5Buckets and Clip are two.")
    return rule


def classes_by_offset(rule, sign: str, device: torch.device) -> Int[Tensor, "W"]:
    """Class of each key-minus-query offset from −span to span, span = ``rule.max_distance``; the class stays the same beyond, or there is none."""
    check_sign(sign)
    if not torch.compiler.is_compiling():
        probe = torch.tensor([rule.max_distance, rule.max_distance + 1, 2 * rule.max_distance, 2**40])
        try:
            same = all(bool((ids == ids[0]).all()) for ids in (rule.classes(probe), rule.classes(-probe)))
        except PositionRangeError:
            same = True  # the rule refuses such an offset wherever it occurs
        require(same, "rule", rule, f"one class beyond ±{rule.max_distance}", "State the distance from which the rule no longer changes.")
    offset = torch.arange(-rule.max_distance, rule.max_distance + 1, device=device)
    return rule.classes(offset if sign == "key_minus_query" else -offset)


class _ByOffset(torch.autograd.Function):
    """[R, H] → [H, W], column w from row classes[w]. The gradient is a one-hot product in float64: indexing would add with atomics."""

    generate_vmap_rule = True

    @staticmethod
    def forward(table, classes):
        return table[classes].T.contiguous()

    @staticmethod
    def setup_context(ctx, inputs, output):
        table, classes = inputs
        ctx.save_for_backward(classes)
        ctx.rows = table.shape[0]

    @staticmethod
    def backward(ctx, grad):
        (classes,) = ctx.saved_tensors
        one_hot = classes == torch.arange(ctx.rows, device=classes.device)[:, None]
        return (one_hot.double() @ grad.T.double()).to(grad.dtype), None
