"""Attention over a part of the keys, and how parts become the whole: the arithmetic of every tile loop, as three small functions.

    m = max_j s_ij      l = Σ_j exp(s_ij − m)      o = Σ_j exp(s_ij − m) v_j        out = o / l      lse = m + log l

Two parts meet in a common maximum m' = max(m_a, m_b): each l and o is multiplied by its own exp(m − m') and added (Milakov and Gimelshein
2018, algorithm 3; Dao et al. 2022, algorithm 1). So parts may be tiles of one loop, chunks of a cache or the shares of several devices, of
any size and in any order. ``merge`` with a part that sees nothing changes nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from positionlib.contract import checked


class Partial(NamedTuple):
    """What one part hands on for each query row. A row that has seen nothing holds m = −∞, l = 0, o = 0."""

    m: Float[Tensor, "*B Q 1"]
    l: Float[Tensor, "*B Q 1"]  # noqa: E741
    o: Float[Tensor, "*B Q D"]


@checked
def partial(scores: Float[Tensor, "*B Q K"], visible: Bool[Tensor, "*B Q K"], values: Float[Tensor, "*B K D"]) -> Partial:
    """The keys of one part: finished scores, True where the query may read the key, and the part's own values."""
    hidden = scores.masked_fill(~visible, -math.inf)
    m = hidden.amax(-1, keepdim=True) if scores.shape[-1] else hidden.new_full((*hidden.shape[:-1], 1), -math.inf)
    p = torch.exp(hidden - _finite(m))
    return Partial(m, p.sum(-1, keepdim=True), p @ values)


@checked
def merge(a: Partial, b: Partial) -> Partial:
    """Both parts together. The order does not matter, nor where the cuts are: merging is commutative and associative."""
    m = torch.maximum(a.m, b.m)
    from_a, from_b = (torch.exp(part.m - _finite(m)) for part in (a, b))
    return Partial(m, a.l * from_a + b.l * from_b, a.o * from_a + b.o * from_b)


@checked
def finish(part: Partial) -> tuple[Float[Tensor, "*B Q D"], Float[Tensor, "*B Q 1"]]:
    """(output, log of the sum of exponentials): zeros and −∞ for a row that has seen no key."""
    seen = part.l > 0
    divisor = torch.where(seen, part.l, 1.0)
    return part.o / divisor, torch.where(seen, part.m + torch.log(divisor), -math.inf)


def _finite(m: Float[Tensor, "*B Q 1"]) -> Float[Tensor, "*B Q 1"]:
    """What may be subtracted: nothing seen yet has −∞, and −∞ − (−∞) is no number."""
    return m.masked_fill(m == -math.inf, 0.0)
