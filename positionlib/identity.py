"""One identity record of a call, and the article's four identities derived from it.

========================  =========  ================================================================================================
identity                  section    may be reused when it is equal
========================  =========  ================================================================================================
``cache_identity``        0x02A      a cached coordinate, bias or key object of a request
``admission_tuple``       0x07       live state across a table migration: one tuple is admitted, and rolled back, as a whole
``bias_reuse_key``        0x09C      a materialised score bias, by the layers of one stack
``request_identity``      0x09E      derived caches of one request on one backend
========================  =========  ================================================================================================

Their fields are the article's lists. 0x02A says "at least"; the cache identity adds ``release_id`` and ``origin``, which the article's
failure-to-guard table (0x0C) asks of it, and ``visibility``: behind the first layer a key depends on what its row could read. The other
three are the article's tuples as they stand: necessary for reuse, within one checkpoint and one rule. No identity names ``cache_id`` or
``past_seen_tokens``: they say where the rows of a request are stored and how many, and no coordinate, bias or key depends on that.

A range of positions is named by its start (and its length where the identity has one). Positions that are no contiguous range, or that
differ between the rows of a batch, have no such name: ``q_start`` and ``k_start`` then hold a digest of all of them, so that two
geometries never share a key. What a manifest cannot know (table rows, device, head partition, ...) is passed to :func:`identity`; an
identity that needs a fact nobody declared is refused, since two undeclared facts would compare equal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from positionlib.errors import require
from positionlib.manifest_rules import key_rows, per_sequence

if TYPE_CHECKING:
    from positionlib.call import PositionCall

UNDECLARED = "(undeclared)"


class CacheIdentity(NamedTuple):
    """0x02A: what must agree before a cached coordinate or bias object is reused."""

    request_id: str
    sequence_ids: tuple
    committed_length: int | tuple[int, ...]
    coordinate_frame: tuple[str, str]
    offset_sign: str
    checkpoint_id: str
    adapter_id: str | None
    position_method: tuple
    dtype: tuple[str, str, str, str]
    backend: tuple[str, str]
    release_id: str
    origin: tuple[int | str, int | str]
    visibility: tuple[str, str, str, str]


class AdmissionTuple(NamedTuple):
    """0x07: what a runtime admits, and rolls back, as one."""

    release_id: str
    checkpoint_id: str
    position_method: tuple
    table_rows: int | None
    config_max_position_embeddings: int | None
    position_id_policy: str | None
    adapter_id: str | None
    runtime_backend: str


class BiasReuseKey(NamedTuple):
    """0x09C: what names one materialised score bias."""

    release_id: str
    stack_role: str
    bidirectional: bool
    num_buckets: int | None
    max_distance: int | None
    q_start: int | str
    k_start: int | str
    Q: int
    K: int
    head_count: int | None
    dtype: str
    device: str


class RequestIdentity(NamedTuple):
    """0x09E: request and derived-cache identity."""

    release_id: str
    checkpoint_id: str
    source_revision: str | None
    position_family: str
    variant: str | None
    sign_rule: str
    query_start: int | str
    key_start: int | str
    segment_ids: tuple
    table_or_slope_version: str | None
    head_partition: Any
    backend_id: str
    dtype: str


@dataclass(frozen=True)
class IdentityRecord:
    """Everything that any of the four identities looks at. The last group is not in a manifest and is declared by the caller.

    ``q_start`` / ``k_start`` : first position of a contiguous range shared by the batch, else ``sha256:`` and a digest of all positions.
    ``segment_ids`` : owners of the query rows and of the key rows. ``visibility`` : mask, polarity, isolation, and a digest of which key
    rows are active. ``dtype`` of a derived bias is ``compute_dtype``.
    """

    request_id: str
    release_id: str
    checkpoint_id: str
    adapter_id: str | None
    segment_ids: tuple[tuple, tuple]
    visibility: tuple[str, str, str, str]
    stack_role: str
    committed_length: int | tuple[int, ...]
    coordinate_frame: tuple[str, str]
    q_start: int | str
    k_start: int | str
    Q: int
    K: int
    family: str
    state_object: str | None
    relation_sign: str
    rule: str | None
    num_buckets: int | None
    max_distance: int | None
    bidirectional: bool
    head_count: int | None
    index_dtype: str
    parameter_dtype: str
    compute_dtype: str
    score_accumulation_dtype: str
    backend_id: str
    implementation_revision: str

    table_rows: int | None | str = UNDECLARED
    config_max_position_embeddings: int | None | str = UNDECLARED
    position_id_policy: str | None = UNDECLARED
    source_revision: str | None = UNDECLARED
    variant: str | None = UNDECLARED
    table_or_slope_version: str | None = UNDECLARED
    head_partition: Any = UNDECLARED
    device: str = UNDECLARED

    def differs(self, other: IdentityRecord) -> tuple[str, ...]:
        """Names of the fields in which two records differ."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))

    @property
    def position_method(self) -> tuple:
        """The configuration of the position method: family, object, sign, rule and its numbers, heads."""
        return (self.family, self.state_object, self.relation_sign, self.rule, self.num_buckets, self.max_distance, self.bidirectional, self.head_count)

    @property
    def cache_identity(self) -> CacheIdentity:
        """0x02A: reuse of a cached coordinate, bias or key object."""
        return CacheIdentity(
            self.request_id, self.segment_ids, self.committed_length, self.coordinate_frame, self.relation_sign, self.checkpoint_id,
            self.adapter_id, self.position_method,
            (self.index_dtype, self.parameter_dtype, self.compute_dtype, self.score_accumulation_dtype),
            (self.backend_id, self.implementation_revision), self.release_id, (self.q_start, self.k_start),
            self.visibility)

    @property
    def admission_tuple(self) -> AdmissionTuple:
        """0x07: admission of a checkpoint's position table; needs table_rows, config_max_position_embeddings, position_id_policy."""
        return AdmissionTuple(
            self.release_id, self.checkpoint_id, self.position_method, self._declared("table_rows"),
            self._declared("config_max_position_embeddings"), self._declared("position_id_policy"), self.adapter_id, self.backend_id)

    @property
    def bias_reuse_key(self) -> BiasReuseKey:
        """0x09C: reuse of a materialised score bias; needs device."""
        return BiasReuseKey(
            self.release_id, self.stack_role, self.bidirectional, self.num_buckets, self.max_distance, self.q_start, self.k_start,
            self.Q, self.K, self.head_count, self.compute_dtype, self._declared("device"))

    @property
    def request_identity(self) -> RequestIdentity:
        """0x09E: derived caches of a request; needs source_revision, variant, table_or_slope_version, head_partition."""
        return RequestIdentity(
            self.release_id, self.checkpoint_id, self._declared("source_revision"), self.family, self._declared("variant"), self.relation_sign,
            self.q_start, self.k_start, self.segment_ids, self._declared("table_or_slope_version"), self._declared("head_partition"),
            self.backend_id, self.compute_dtype)

    def _declared(self, name: str) -> Any:
        value = getattr(self, name)
        require(value != UNDECLARED, name, value, "a declared fact, or None where the method has none",
                f"Pass it: identity(call, {name}=...). A manifest cannot know it, and two undeclared facts would compare equal.")
        return value


def identity(call: PositionCall, **facts: Any) -> IdentityRecord:
    """The identity record of a call. ``facts`` are the declared fields of :class:`IdentityRecord`, such as ``device="cpu"``."""
    known = [f.name for f in fields(IdentityRecord) if f.default is UNDECLARED]
    unknown = sorted(set(facts) - set(known))
    require(not unknown, ", ".join(unknown), [facts[name] for name in unknown], f"one of {', '.join(known)}", "The rest is in the manifest: change the call.")
    for name, value in facts.items():
        facts[name] = tuple(value) if isinstance(value, list) else str(value) if name == "device" and value is not None else value
    space, queries, keys = call.row_space, call.query_space.row_indices, key_rows(call)
    method, numerical = call.position_method, call.numerical_state
    rule, shape, batch = method.clipping_or_bucket_rule, method.score_bias_shape, call.batch or 1
    asks, reads = space.stream_per_row[queries[0]], space.stream_per_row[keys[0]]
    declared, seen = rule.bidirectional if rule else None, call.visibility
    committed = tuple(per_sequence(call, "committed_length").values())
    return IdentityRecord(
        **dict(call.request), segment_ids=tuple(tuple(space.sequence_id_per_row[i] for i in rows) for rows in (queries, keys)),
        visibility=(seen.mask_id, seen.polarity, seen.segment_isolation, _digest(tuple(space.active_token_per_row[i] for i in keys))),
        stack_role=asks if asks == reads else f"{asks}-reads-{reads}", committed_length=committed[0] if len(set(committed)) == 1 else committed,
        coordinate_frame=(call.query_space.coordinate_frame, call.key_space.coordinate_frame),
        q_start=_start(call.query_space.logical_positions, batch), k_start=_start(call.key_space.logical_positions, batch),
        Q=len(queries) // batch, K=len(keys) // batch,
        family=method.family, state_object=method.state_object, relation_sign=method.relation_sign, rule=rule and rule.name,
        num_buckets=rule and rule.num_buckets, max_distance=rule and rule.max_distance,
        bidirectional=call.visibility.mask_id != "causal" if declared is None else declared, head_count=shape and shape[1],
        **dict(numerical), **dict(call.runtime), **facts)


def _start(positions: tuple[int, ...], batch: int) -> int | str:
    """The first position of one contiguous range, the same in every row of the batch; else a digest of all positions."""
    length = len(positions) // batch
    if positions == tuple(range(positions[0], positions[0] + length)) * batch:
        return positions[0]
    return _digest((batch, positions))


def _digest(facts: tuple) -> str:
    return "sha256:" + hashlib.sha256(repr(facts).encode()).hexdigest()
