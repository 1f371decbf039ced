"""What one call of attention made of its positions, counted on demand: the article's counters (0x09E).

``counted`` is attend() with a second result. A call that is not counted does not even import this file, so its cost there is none.

========================  ============================================================================================================
counter                   what is counted
========================  ============================================================================================================
backend, fallback_reason  who ran the call; why, where that is not the backend that was wanted
bias bytes                scalars added to the scores and held at once: [1|B, H, Q, K] of a bias by pair, one line a head of a bias by
                          offset, the kernel's table of a fused one. The buffer that the scores themselves need is not counted
relation bytes            relation scores gathered for pairs, [B, H, Q, K] for each side, and the probability mass by class, or in their
                          place the rows of a line of offsets, or of a fused kernel the scores by class, [B, H, N, C] for each side, and
                          the mass. Class ids are not counted, nor the blocks of query rows that are in no run
offsets, buckets          over the pairs that the call may read; a key after its query has an offset above 0
memory length             key rows that are read and lie before the first query of their batch row: the longest such past of the batch
========================  ============================================================================================================
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.admission import Admission, admit
from positionlib.attention import AttendTrace, attend
from positionlib.capabilities import KEY_SCORE, QUERY_SCORE
from positionlib.errors import require
from positionlib.forms import ByClass, ByLine
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.deberta import DisentangledScores
from positionlib.mechanisms.shaw_variants import QueryKeyRelation
from positionlib.mechanisms.tupe import UntiedRows
from positionlib.runtime.blocks import rows_at_once
from positionlib.terms import ClassBias, Relation, ScoreBias, Term


@dataclass(frozen=True)
class PositionCounters:
    """The counters of one call. A range is None where there is none: no visible pair, no shared frame, no classes."""

    position_backend: str
    position_fallback_reason: str | None
    bias_materialized_bytes: int
    relation_materialized_bytes: int
    bucket_min: int | None
    bucket_max: int | None
    offset_min: int | None
    offset_max: int | None
    memory_length: int | None
    position_cache_hit: bool | None

    def to_dict(self) -> dict[str, Any]:
        """By the article's names, for a log or a metrics client."""
        return asdict(self)


def counted(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K Dv"], term: Term | None,
            geometry: AttentionGeometry, *, scale: float | None = None, backend: str = "auto", fallback: str | None = None,
            cache: TermCache | None = None) -> tuple[Float[Tensor, "B H Q Dv"], PositionCounters]:
    """attend(), and the counters of the call.

    Parameters
    ----------
    backend, fallback : as :func:`positionlib.admission.admit` takes them; a named fallback is counted with its reason.
    cache : where the term came from, when it came from one; else ``position_cache_hit`` is None.

    Raises
    ------
    PositionContractError, UnsupportedPositionContract
        what admit() raises.
    """
    admission = admit(q, k, v, term, geometry, backend=backend, scale=scale, fallback=fallback)
    out, trace = attend(q, k, v, term, geometry, scale=scale, backend=admission.backend, return_trace=True)
    bias, relation = _bytes(q, v, term, geometry, admission, trace)
    buckets, offsets, memory = _ranges(term, geometry)
    counters = PositionCounters(
        position_backend=admission.backend, position_fallback_reason=admission.reason if admission.missing else None,
        bias_materialized_bytes=bias, relation_materialized_bytes=relation,
        bucket_min=buckets[0], bucket_max=buckets[1], offset_min=offsets[0], offset_max=offsets[1], memory_length=memory,
        position_cache_hit=None if cache is None else cache.hit)
    return out, counters


@dataclass
class TermCache:
    """Terms kept under an identity, and whether the last one was there already.

    The identity is one of :mod:`positionlib.identity`: what it leaves out may differ between two calls that share a term. A term that
    was made with gradients belongs to one backward pass: cache it in inference.
    """

    terms: dict[tuple, Term] = field(default_factory=dict)
    hit: bool | None = None

    def fetch(self, identity: tuple, build) -> Term:
        """The term of this identity; ``build()`` makes it where there is none."""
        require(isinstance(identity, tuple) and len(identity) > 0, "identity", identity, "a tuple of facts, such as identity(call).bias_reuse_key",
                "A term without a name cannot be told from another's.")
        self.hit = identity in self.terms
        if not self.hit:
            self.terms[identity] = build()
        return self.terms[identity]


def _size(*tensors: Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def _bytes(q: Tensor, v: Tensor, term: Term | None, geometry: AttentionGeometry, admission: Admission, trace: AttendTrace) -> tuple[int, int]:
    """(bias bytes, relation bytes) of the backend that ran the call."""
    if trace.backend == "triton":
        return _fused_bytes(q, term, geometry, trace.scale)
    if trace.backend != "eager" and admission.line is not None:
        line = admission.line
        return _size(line.bias), _size(line.query_rows, line.key_rows, line.value_rows)
    (batch, heads, queries, _), keys = q.shape, geometry.key_length
    wide = torch.promote_types(q.dtype, torch.float32)
    rows = queries if trace.backend == "eager" else min(queries, rows_at_once(batch * heads * keys))  # else one block of the reference
    scores = batch * heads * rows * keys * wide.itemsize
    if isinstance(term, ScoreBias):
        return _size(term.slice_queries(0, rows).materialize(geometry.query_positions[..., :rows], geometry.key_positions, wide)), 0
    if isinstance(term, UntiedRows):  # the reference makes the bias of all pairs from them
        return _size(term.slice_queries(0, rows).finished().bias), 0
    if isinstance(term, Relation):
        mass = batch * heads * rows * term.rule.num_classes * wide.itemsize
        return 0, (term.key_table is not None) * scores + (term.value_table is not None) * mass
    held = [t for t in _fields(term) if isinstance(t, Tensor) and t.is_floating_point() and t.shape[-2:] == (queries, keys)]
    return _size(*held), len(admission.needs & {QUERY_SCORE, KEY_SCORE}) * scores


def _fields(term: Term | None) -> tuple:
    return () if term is None else tuple(vars(term).values())


def _fused_bytes(q: Tensor, term: Term | None, geometry: AttentionGeometry, scale: float) -> tuple[int, int]:
    from positionlib.runtime.fused import bias_args, form_of

    table, form = bias_args(term, scale), form_of(q, term, geometry, scale)
    if not isinstance(form, ByClass):
        return _size(table and table.table), _size(form.rows) if isinstance(form, ByLine) else 0
    by_row = q.shape[0] * q.shape[1] * torch.promote_types(q.dtype, torch.float32).itemsize
    rows = (form.query_rows, geometry.query_length), (form.key_rows, geometry.key_length), (form.value_rows, geometry.query_length)
    return _size(form.bias, form.pair_bias), sum(by_row * length * t.shape[-2] for t, length in rows if t is not None)


def _ranges(term: Term | None, geometry: AttentionGeometry) -> tuple[tuple, tuple, int | None]:
    """((bucket_min, bucket_max), (offset_min, offset_max), memory_length)."""
    visible, shared = geometry.visible, geometry.query_frame == geometry.key_frame
    buckets = [_range(ids, visible) for ids in _classes(term, geometry)]
    known = [bounds for bounds in buckets if bounds != (None, None)]
    bucket = (min(low for low, _ in known), max(high for _, high in known)) if known else (None, None)
    if not shared or geometry.query_length == 0:
        return bucket, (None, None), None
    past = (geometry.key_positions < geometry.query_positions.amin(-1, keepdim=True)) & visible.any(-2)
    return bucket, _range(geometry.offsets("key_minus_query"), visible), int(past.sum(-1).max())


def _classes(term: Term | None, geometry: AttentionGeometry) -> list[Tensor]:
    """Class ids [*B, Q, K] of the pairs, one tensor for each table that is read by them."""
    if isinstance(term, ClassBias):
        return [term.rule.classes(geometry.offsets(term.sign))]
    if isinstance(term, Relation):
        return [term.classes(geometry.query_positions, geometry.key_positions)]
    if isinstance(term, QueryKeyRelation):
        return [term.rule.classes(geometry.offsets("query_minus_key"))]
    if isinstance(term, DisentangledScores):
        index = term.indices(geometry.query_positions, geometry.key_positions)
        return [index[name] for name, rows in (("c2p", term.pos_key), ("p2c", term.pos_query)) if rows is not None]
    return []


def _range(ids: Tensor, visible: Tensor) -> tuple[int, int] | tuple[None, None]:
    ids, visible = torch.broadcast_tensors(ids, visible)
    seen = ids[visible]
    return (int(seen.min()), int(seen.max())) if len(seen) else (None, None)
