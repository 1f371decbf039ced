"""One attention layer over rows of states, the geometries that are drawn for it, and how both are cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import settings
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor, nn

import positionlib as pl
from positionlib.terms import StateRows
from tests.properties.mechanisms import HEADS, LIMIT, WIDTH

LONGEST = 7
# A law is checked for every mechanism, so each takes its share of the profile's examples.
SHARE = settings(max_examples=max(1, settings.default.max_examples // 5))


def numbers(*shape: int, seed: int) -> Float[Tensor, "*shape"]:
    """Standard normal numbers that depend on the seed alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True)
class Layer:
    """Projections of one layer. ``order`` permutes its heads."""

    order: tuple[int, ...] = tuple(range(HEADS))

    def heads(self, x: Float[Tensor, "B N W"], seed: int) -> Float[Tensor, "B H N D"]:
        """One of the three projections, split into heads."""
        weight = numbers(WIDTH, WIDTH, seed=seed) / WIDTH**0.5
        return (x @ weight).unflatten(-1, (HEADS, -1)).transpose(1, 2)[:, list(self.order)]

    def __call__(self, mechanism: nn.Module, x: Float[Tensor, "B Q W"], geometry: pl.AttentionGeometry,
                 cache: tuple[Tensor, Tensor] | None = None) -> tuple[Float[Tensor, "B H Q D"], tuple[Tensor, Tensor]]:
        """(output, keys and values): queries are the rows x, keys are the cache's and theirs."""
        term = mechanism(geometry)
        if isinstance(term, StateRows):
            x, term = term.add_to(x), None
        q, k, v = (self.heads(x, seed) for seed in (1, 2, 3))
        if cache is not None:
            k, v = (torch.cat((old, new), 2) for old, new in zip(cache, (k, v)))
        return pl.attend(q, k, v, term, geometry), (k, v)


def part(geometry: pl.AttentionGeometry, queries: slice, keys: slice) -> pl.AttentionGeometry:
    """The geometry of some query rows over some key rows."""
    g = geometry.slice_queries(queries.start, queries.stop)
    return replace(g, key_positions=g.key_positions[..., keys], key_active=None if g.key_active is None else g.key_active[..., keys],
                   key_segments=None if g.key_segments is None else g.key_segments[..., keys],
                   allowed=None if g.allowed is None else g.allowed[..., keys])


@dataclass(frozen=True)
class Prompt:
    """A packed batch: rows x [B, N, W], and its runs of rows, which do not read one another."""

    x: Float[Tensor, "B N W"]
    geometry: pl.AttentionGeometry
    runs: tuple[slice, ...]


@st.composite
def prompts(draw: st.DrawFn, visibility: str) -> Prompt:
    """Runs with starts of their own, keys that are hidden, pairs that are: shared by the batch or not."""
    batch, sizes = draw(st.integers(1, 2)), draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda s: sum(s) <= LONGEST))
    length, ends = sum(sizes), [sum(sizes[: i + 1]) for i in range(len(sizes))]
    starts = st.lists(st.integers(0, LIMIT - 4), min_size=len(sizes), max_size=len(sizes))
    rows = [torch.cat([torch.arange(a, a + n) for a, n in zip(draw(starts), sizes)]) for _ in range(draw(st.sampled_from((1, batch))))]
    positions = rows[0] if len(rows) == 1 else torch.stack(rows)
    segments = torch.repeat_interleave(torch.tensor(sizes))

    def bits(*shape: int) -> Tensor | None:
        lead = draw(st.sampled_from((None, (), (batch,))))
        if lead is None:
            return None
        return numbers(*lead, *shape, seed=draw(st.integers(0, 99))) > -1.0  # most keys stay visible

    geometry = pl.AttentionGeometry(positions, positions, causal=visibility == "causal", key_active=bits(length),
                                    query_segments=segments, key_segments=segments, allowed=bits(length, length))
    x = numbers(batch, length, WIDTH, seed=draw(st.integers(0, 99)))
    return Prompt(x, geometry, tuple(slice(end - size, end) for end, size in zip(ends, sizes)))
