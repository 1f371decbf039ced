"""Calls of the fused kernel with scores of positions: products of rows, T5's bias, numbers in place of those with CLS. Expected is the sum, pair by pair."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tests.kernels import cases
from tests.kernels.cases import DEVICE, Case, Tensors, inside, wide


@dataclass
class UntiedTensors(Tensors):
    query_rows2: torch.Tensor  # [1 or B, H, Q, D]
    key_rows2: torch.Tensor
    cls: torch.Tensor | None  # [2, H]: other to CLS, CLS to other


@dataclass(frozen=True)
class Untied(Case):
    """``at`` is the position of CLS, None where there is none. Each batch row has rows of its own where its positions are."""

    at: int | None = 0

    def draw(self, dtype: torch.dtype, seed: int = 0) -> UntiedTensors:
        plain, generator = cases.draw(self, dtype, seed), torch.Generator().manual_seed(seed + 100)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE)

        batch = self.batch if self.batched else 1
        rows = (inside(0.5 * normal(batch, self.heads, n, self.width).to(dtype), math.nan) for n in (self.queries, self.keys))
        return UntiedTensors(**vars(plain), query_rows2=next(rows), key_rows2=next(rows),
                             cls=None if self.at is None else inside(normal(2, self.heads).to(wide(plain)), math.nan))

    def extra(self, t: UntiedTensors) -> dict:
        return {"query_rows2": t.query_rows2, "key_rows2": t.key_rows2, "cls": t.cls, "cls_position": self.at or 0}

    def added(self, t: UntiedTensors, b: int, h: int, i: int, readable: list[int], offsets: list[int]) -> torch.Tensor:
        own = b if self.batched else 0
        a = t.key_rows2[own, h].cpu().double()[readable] @ t.query_rows2[own, h, i].cpu().double() + super().added(t, b, h, i, readable, offsets)
        if self.at is None:
            return a
        query, cls = int(t.query_positions.expand(self.batch, -1)[b, i]), t.cls[:, h].cpu().double()
        return torch.stack([cls[1] if query == self.at else cls[0] if query + offset == self.at else pair for offset, pair in zip(offsets, a)])


CASES = [
    Untied("absolute", queries=40, keys=40),
    Untied("relative", "t5", queries=37, keys=37),
    Untied("without_cls", "clip", queries=20, keys=45, at=None),
    Untied("cls_elsewhere", "t5", queries=20, keys=36, start=5, at=9, padding="right", batch=2, shuffled=True),
    Untied("grouped", queries=20, keys=33, heads=4, key_heads=2, width=48),
    Untied("left_padding", "t5", batch=2, queries=34, keys=34, padding="left", batched=True),
    Untied("packed", "t5", batch=2, queries=30, keys=30, segments=True),
    Untied("one_query", "t5", queries=1, keys=50, start=0, heads=3, key_heads=1),
    Untied("causal", "t5", causal=True, queries=33, keys=33, at=2),
    Untied("nobody", queries=17, padding="all"),
    Untied("near_2_31", "t5", queries=18, keys=36, start=2**31 - 10, origin=2**31 - 20, at=2**31 - 3),
]
BY_NAME = {case.name: case for case in CASES}
