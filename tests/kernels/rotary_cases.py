"""Calls of the fused kernel whose queries and keys turn as they are loaded. Expected is the plain oracle of rows turned here, pair by pair."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from tests.kernels.cases import DEVICE, Case, Tensors, inside, wide


@dataclass(frozen=True)
class Turned(Case):
    """``pairs`` pairs of channels turn, neighbours where ``interleaved``, else channels c and c + pairs."""

    pairs: int = 8
    interleaved: bool = False

    def prepared(self, t: Tensors) -> Tensors:
        """The same call with its rows turned, in float64."""
        return replace(t, q=self.turned(t.q, t.query_positions), k=self.turned(t.k, t.key_positions))

    def turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        channels, at = list(x.cpu().double().unbind(-1)), positions.cpu().double()
        at = (at[:, None] if at.ndim == 2 else at).expand(x.shape[0], 1, -1)  # of all heads alike
        for c in range(self.pairs):
            first, second = (2 * c, 2 * c + 1) if self.interleaved else (c, c + self.pairs)
            (a, b), cos, sin = (channels[first], channels[second]), torch.cos(at * self.frequency(c)), torch.sin(at * self.frequency(c))
            channels[first], channels[second] = a * cos - b * sin, a * sin + b * cos
        return torch.stack(channels, -1)

    def frequency(self, c: int) -> float:
        return 100.0 ** (-c / self.pairs)

    def extra(self, t: Tensors) -> dict:
        """Cosines and sines [*B, N, 2, P] within a margin of NaN."""
        omega = torch.tensor([self.frequency(c) for c in range(self.pairs)], dtype=torch.float64, device=DEVICE)
        angles = [p.double()[..., None] * omega for p in (t.query_positions, t.key_positions)]
        queries, keys = (inside(torch.stack((a.cos(), a.sin()), -2).to(wide(t)), math.nan) for a in angles)
        return {"query_turns": queries, "key_turns": keys, "interleaved": self.interleaved}


CASES = [
    Turned("half_split", causal=True, queries=40, keys=40),
    Turned("neighbours", queries=20, keys=40, start=15, interleaved=True, heads=4),
    Turned("some_channels", queries=20, keys=36, width=48, pairs=8, key_heads=1),
    Turned("some_neighbours", queries=33, keys=20, width=32, pairs=5, interleaved=True),
    Turned("decode_turned", causal=True, queries=1, keys=50, start=49, heads=4, interleaved=True, padding="scattered"),
    Turned("left_padding_turned", batch=2, causal=True, queries=40, keys=40, padding="left", batched=True),
    Turned("shuffled_turned", causal=True, queries=35, keys=40, start=2**31 - 3, origin=2**31 - 43, shuffled=True, interleaved=True),
    Turned("packed_turned", batch=2, causal=True, queries=30, keys=30, segments=True, width=64, pairs=16),
]
BY_NAME = {case.name: case for case in CASES}
