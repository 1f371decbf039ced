"""Failures of the positional call (0x02A): two calls with every shape right and a different geometry.

Convention of the section: offsets are key minus query, a mask is True where a key may be read, positions count from 0.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.attention import attend
from positionlib.call import PositionCall
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.mechanisms.alibi import ALiBi
from positionlib.mechanisms.learned import LearnedAbsolute
from positionlib.padding import lengths_from_mask
from positionlib.rules import T5Buckets, alibi_slopes
from positionlib.terms import ClassBias, SlopeBias

COMMITTED, HEADS = 512, 8


def decode_bias(query: int, committed: int = COMMITTED, heads: int = HEADS) -> Float[Tensor, "1 H 1 K"]:
    """T5's causal bias of one query against ``committed`` + 1 keys; bucket r of head h holds −r·2^−(h+2), so a key further back weighs less."""
    table = -torch.arange(32.0)[:, None] * 2.0 ** -(torch.arange(heads) + 2)
    term = ClassBias(table=table, rule=T5Buckets(bidirectional=False), sign="key_minus_query")
    return term.materialize(torch.tensor([query]), torch.arange(committed + 1))


def _validate(document: dict[str, Any]) -> None:
    PositionCall(**document)


def decode_document(queries: list[int], committed: int = COMMITTED) -> dict[str, Any]:
    """The manifest of a decode call whose query side claims these positions."""
    document = PositionCall.decode(committed, len(queries)).to_dict()
    document["query_space"]["logical_positions"] = queries
    return document


def _alibi_bias(query: int) -> Float[Tensor, "1 H 1 K"]:
    geometry = PositionCall.decode(COMMITTED).geometry()
    return ALiBi(HEADS)(geometry).materialize(torch.tensor([query]), geometry.key_positions)


register(Failure(
    id="0x02A.decode-reset", section="0x02A", kind="wrong_answer", title="A decode query is built from a local arange and restarts at 0 (ALiBi)",
    broken=lambda: _alibi_bias(0), right=lambda: _alibi_bias(COMMITTED), guard=_validate, guard_name="position-manifest",
    source="article 0x02A; huggingface/transformers#19045",
    broken_subject=lambda: decode_document([0]), right_subject=lambda: decode_document([COMMITTED])))

register(Failure(
    id="0x02A.bucket-reset", section="0x02A", kind="wrong_answer", title="A cached T5 decoder builds its bias as if the query stood at 0",
    broken=lambda: decode_bias(0), right=lambda: decode_bias(COMMITTED), guard=_validate, guard_name="position-manifest",
    source="article 0x02A; huggingface/candle#899",
    broken_subject=lambda: decode_document([0]), right_subject=lambda: decode_document([COMMITTED])))


_CONTENT = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(6, 2)


def _attended(rows: Tensor, geometry: AttentionGeometry) -> Tensor:
    rows = rows[None, None]
    return attend(rows, rows.flip(-1), rows, SlopeBias(slopes=alibi_slopes(1)), geometry)


def packed_output(isolated: bool, *, reset: bool = True, first: Tensor | None = None) -> Float[Tensor, "1 1 6 2"]:
    """Attention over two packed sequences of three rows, each numbered from 0 or (``reset=False``) one after the other.

    ``first`` replaces the rows [3, 2] of the first sequence.

    Without segments all that is left is the causal triangle over storage rows, which lets the second sequence read the first.
    """
    positions, owners = torch.tensor([0, 1, 2, 0, 1, 2]) if reset else torch.arange(6), torch.tensor([0, 0, 0, 1, 1, 1])
    triangle = torch.ones(6, 6, dtype=torch.bool).tril()
    segments = {"query_segments": owners, "key_segments": owners} if isolated else {}
    geometry = AttentionGeometry(positions, positions, allowed=triangle, mode="causal", **segments)
    return _attended(_CONTENT if first is None else torch.cat((first, _CONTENT[3:])), geometry)


def alone_output() -> Float[Tensor, "1 1 3 2"]:
    """The second of the two sequences, run by itself: what its rows must give inside a packed row too."""
    return _attended(_CONTENT[3:], AttentionGeometry.causal_self(3))


def packed_document(isolation: str) -> dict[str, Any]:
    """The manifest of that packed call under one isolation rule."""
    document = PositionCall.packed([3, 3]).to_dict()
    document["visibility"]["segment_isolation"] = isolation
    return document


register(Failure(
    id="0x02A.packed-leak", section="0x02A", kind="wrong_answer", title="Packed coordinates restart, but nothing isolates the sequences",
    broken=lambda: packed_output(isolated=False), right=lambda: packed_output(isolated=True), guard=_validate, guard_name="segment-isolation",
    source="article 0x02A; huggingface/nanoVLM#204",
    broken_subject=lambda: packed_document("none"), right_subject=lambda: packed_document("sequence_ids")))

# True = padding: three tokens and two pads, then one token and four pads.
PAD_FLAGS = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]]).bool()


register(Failure(
    id="0x02A.wrong-polarity", section="0x02A", kind="wrong_answer", title="One boolean padding mask is read with the opposite meaning",
    broken=lambda: lengths_from_mask(PAD_FLAGS, "true_is_visible"), right=lambda: lengths_from_mask(PAD_FLAGS, "true_is_masked"),
    guard=lambda polarity: PositionCall.padded(PAD_FLAGS, side="right", polarity=polarity), guard_name="padding-side",
    source="NVIDIA/TransformerEngine#614", broken_subject=lambda: "true_is_visible", right_subject=lambda: "true_is_masked"))


def cursor_starts(twice: bool, start: int = 10, lengths: tuple[int, ...] = (4, 4, 3)) -> Int[Tensor, "C"]:
    """First position of each chunk. ``twice`` adds the loop's own offset to a cursor that has already moved."""
    calls = PositionCall.chunked_prefill(list(lengths), start=start)
    moved = torch.tensor([call.cache.committed_length for call in calls])
    return moved + (moved - start if twice else 0)


register(Failure(
    id="0x02A.double-cursor", section="0x02A", kind="wrong_answer", title="A chunk loop adds its offset to a cursor that already moved",
    broken=lambda: cursor_starts(twice=True), right=lambda: cursor_starts(twice=False), guard=_validate, guard_name="position-manifest",
    source="mlx-node/mlx-node#33",
    broken_subject=lambda: decode_document([18, 19, 20, 21], 14), right_subject=lambda: decode_document([14, 15, 16, 17], 14)))

register(Failure(
    id="0x02A.chunk-at-the-end", section="0x02A", kind="wrong_answer", title="Every query of a chunk is given the last key's position",
    broken=lambda: torch.full((2,), 6), right=lambda: torch.tensor(PositionCall.decode(5, 2).query_space.logical_positions),
    guard=_validate, guard_name="position-manifest", source="BERT relative_key with a cache, transformers 4.57.6",
    broken_subject=lambda: decode_document([6, 6], 5), right_subject=lambda: decode_document([5, 6], 5)))


def _sliced(rows: int) -> Float[Tensor, "3 2"]:
    """A table's slice 5:8 for three tokens after a past of 5; one remaining row broadcasts without a word."""
    table = torch.arange(2.0 * rows).reshape(rows, 2)
    return torch.zeros(3, 2) + table[5:8]


register(Failure(
    id="0x02A.one-id-for-three", section="0x02A", kind="wrong_answer", title="A slice past the table returns one row, which broadcasts to three tokens",
    broken=lambda: _sliced(6), right=lambda: _sliced(8),
    guard=lambda rows: LearnedAbsolute(rows, 2)(PositionCall.decode(5, 3).geometry()), guard_name="table-range",
    source="BERT embeddings with past_key_values_length, transformers 4.57.6", broken_subject=lambda: 6, right_subject=lambda: 8))


def _cached_read(key_weight: float) -> Float[Tensor, "1 1 1 1"]:
    """One query of the new weights reads three cached keys that were projected with ``key_weight``."""
    hidden = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    key = (hidden * key_weight)[None, None, :, None]
    return attend(torch.ones(1, 1, 1, 1, dtype=torch.float64), key, hidden[None, None, :, None], None, AttentionGeometry.decode(2))


def _served(cache_release: str) -> dict[str, Any]:
    document = PositionCall.decode(2, release_id="r2").to_dict()
    document["cache"]["release_id"] = cache_release
    return document


register(Failure(
    id="0x02A.old-release-cache", section="0x02A", kind="wrong_answer", title="Cached keys of the previous release are read by the new one",
    broken=lambda: _cached_read(key_weight=-1.0), right=lambda: _cached_read(key_weight=1.0), guard=_validate, guard_name="cache-identity",
    source="article 0x02A and 0x07 (a cache of a previous release)", broken_subject=lambda: _served("r1"), right_subject=lambda: _served("r2")))
