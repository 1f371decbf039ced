"""Which rows of a call are runs: consecutive positions, so that a pair's offset is the sum of two indices.

With the queries taken last first, row i of a run and key j are offset ``first + i + j`` apart. What depends on an offset is then one line
of numbers or rows, and a block of pairs is a strided view of it: no index tensor, nothing gathered, nothing of size Q·K stored.
A padded batch, a decode step and packed sequences are runs; a scattered mask or shuffled positions are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from positionlib.capabilities import BIAS, CAUSAL, FAR, FREE, KEY_BIAS, SCATTERED, UNBOUNDED, Refusal
from positionlib.forms import ByOffset
from positionlib.geometry import AttentionGeometry
from positionlib.rotation import QKTransform
from positionlib.terms import Term, VisibilityOnly

SHORTEST = 16  # a shorter run, unless it is all of a batch row's queries, costs more by itself than among the rows that are no run
LARGEST = 1e30  # a product beyond it could overflow where it is hidden, and infinity plus −infinity is NaN


@dataclass(frozen=True)
class Run:
    """Query rows that read one run of keys alone. ``first`` is the offset, key minus query, of the last query and the first key."""

    batch: slice
    queries: slice
    keys: slice
    first: int


@dataclass(frozen=True, eq=False)
class Plan:
    """A call cut into runs. ``rest`` lists (batch row, query rows) that are no runs; a row in neither list sees no key."""

    runs: list[Run]
    rest: list[tuple[int, slice]]
    causal: bool
    low: int  # offset at the start of the line
    by_offset: ByOffset


def plan(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], v: Float[Tensor, "B H K Dv"], term: Term | None,
         geometry: AttentionGeometry, scale: float) -> Plan | Refusal:
    """The call's runs and the term along their line of offsets, or the reason why there is no such plan.

    Every key row has its query head. A number that is not finite, or large enough to overflow a score, refuses the plan: the runs mask
    by adding −∞, which neither survives.
    """
    if geometry.allowed is not None:
        return Refusal("an arbitrary visibility matrix", (FREE,))
    runs, rest = _cut(geometry, len(q), _positions_matter(term, geometry))
    rows = sum((r.queries.stop - r.queries.start) * len(range(*r.batch.indices(len(q)))) for r in runs)
    if not runs or 2 * rows < len(q) * q.shape[2]:
        return Refusal("fewer than half of the query rows lie in runs of consecutive positions", (SCATTERED,))
    low = min(r.first for r in runs)
    width = max(r.first + r.queries.stop - r.queries.start + r.keys.stop - r.keys.start - 1 for r in runs) - low
    if width > 4 * (q.shape[2] + k.shape[2]):
        return Refusal("offsets too far apart for one line", (FAR,))
    offsets = torch.arange(low, low + width, device=q.device)
    by_offset = ByOffset() if term is None else term.by_offset(offsets, scale, q.dtype)
    if by_offset is None:
        return Refusal(f"{type(term).__name__} depends on more than the offset", term=term, has=(CAUSAL, BIAS, KEY_BIAS))
    if not _fits(by_offset, q, v, width):
        return Refusal(f"{type(term).__name__} of other heads or widths", term=term)
    if not _tame(q, k, v, runs, by_offset, scale):
        return Refusal("a number that is not finite, or large enough to overflow a score", (UNBOUNDED,))
    return Plan(runs, rest, geometry.causal, low, by_offset)


def _positions_matter(term: Term | None, geometry: AttentionGeometry) -> bool:
    return geometry.causal or not (term is None or isinstance(term, (VisibilityOnly, QKTransform)))


def _cut(geometry: AttentionGeometry, batch: int, positions_matter: bool) -> tuple[list[Run], list[tuple[int, slice]]]:
    g, cuts = geometry, []
    for b in range(batch if g.batch is not None else 1):
        row = [None if t is None else t if t.ndim == 1 else t[b]
               for t in (g.query_positions, g.query_segments, g.key_positions, g.key_segments, g.key_active)]
        if not positions_matter:
            row[0], row[2] = (torch.arange(n, device=g.device) for n in (g.query_length, g.key_length))
        cuts.append(_cut_row(*row, g.causal))
    runs, rest, b = [], [], 0
    for (found, left), same in groupby(cuts):
        size = len(list(same)) if g.batch is not None else batch
        runs += [Run(slice(b, b + size), queries, keys, first) for queries, keys, first in found]
        rest += [(row, rows) for row in range(b, b + size) for rows in left]
        b += size
    return runs, rest


def _cut_row(query_positions: Int[Tensor, "Q"], query_segments: Int[Tensor, "Q"] | None, key_positions: Int[Tensor, "K"],
             key_segments: Int[Tensor, "K"] | None, key_active: Bool[Tensor, "K"] | None, causal: bool) -> tuple[list, list]:
    """([(query rows, key rows, first offset)], [query rows that are no run]) of one batch row."""
    key_spans = _spans(key_positions, key_segments, key_active)
    found, left = [], []
    for start, stop, position, segment in (query_spans := _spans(query_positions, query_segments, None)):
        seen = [s for s in key_spans if s[3] == segment and (not causal or s[2] <= position + stop - 1 - start)]
        if len(seen) == 1 and (stop - start >= SHORTEST or len(query_spans) == 1):
            k_start, k_stop, k_position, _ = seen[0]
            found.append((slice(start, stop), slice(k_start, k_stop), k_position - (position + stop - 1 - start)))
        elif seen and left and left[-1].stop == start:
            left[-1] = slice(left[-1].start, stop)
        elif seen:
            left.append(slice(start, stop))
    return found, left


def _spans(positions: Int[Tensor, "N"], segments: Int[Tensor, "N"] | None,
           active: Bool[Tensor, "N"] | None) -> list[tuple[int, int, int, int | None]]:
    """(start, stop, first position, segment) of the longest stretches of consecutive positions in one segment; inactive rows are in none."""
    if len(positions) == 0:
        return []
    cut = positions[1:] != positions[:-1] + 1
    for labels in (segments, active):
        if labels is not None:
            cut = cut | (labels[1:] != labels[:-1])
    starts = [0, *(cut.nonzero().flatten() + 1).tolist()]
    position, segment, active = (None if t is None else t[starts].tolist() for t in (positions, segments, active))
    return [(start, stop, position[n], segment and segment[n]) for n, (start, stop) in enumerate(zip(starts, [*starts[1:], len(positions)]))
            if active is None or active[n]]


def _fits(by_offset: ByOffset, q: Tensor, v: Tensor, width: int) -> bool:
    """Whether nothing would broadcast over heads or channels; where it would, the reference says so in the term's own words."""
    heads, depth = q.shape[1], q.shape[3]
    shapes = {"bias": [(heads, width)], "content_bias": [(heads, depth)], "value_rows": [(width, v.shape[3]), (heads, width, v.shape[3])]}
    shapes["query_rows"] = shapes["key_rows"] = [(width, depth), (heads, width, depth)]
    return all(getattr(by_offset, name) is None or getattr(by_offset, name).shape in allowed for name, allowed in shapes.items())


def _tame(q: Tensor, k: Tensor, v: Tensor, runs: list[Run], by_offset: ByOffset, scale: float) -> bool:
    """Whether everything that the runs read is finite, and no score can overflow. What nobody reads may be anything."""
    def largest(*tensors: Tensor | None) -> float:
        # In the order in which it lies in memory: aminmax copies anything else.
        lying = [t.detach().permute(sorted(range(t.ndim), key=t.stride, reverse=True)) for t in tensors if t is not None and t.numel()]
        ends = [torch.stack(torch.aminmax(t)) for t in lying]
        return float(torch.stack(ends).abs().amax()) if ends else 0.0  # NaN goes through

    queries = largest(*(q[r.batch, :, r.queries] for r in runs), by_offset.content_bias)
    keys = largest(*(k[r.batch, :, r.keys] for r in runs), by_offset.query_rows, by_offset.key_rows)
    others = largest(*(v[r.batch, :, r.keys] for r in runs), by_offset.value_rows, by_offset.bias)
    return 4 * q.shape[3] * max(queries, keys) * keys * max(1.0, abs(scale)) < LARGEST and others < LARGEST
