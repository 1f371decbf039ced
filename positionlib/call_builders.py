"""How a positional call is put together from rows, continued, compiled to tensors and told as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import torch

from positionlib.errors import PositionContractError, require, require_choice
from positionlib.geometry import AttentionGeometry
from positionlib.manifest import SCHEMA
from positionlib.manifest_rules import key_rows, per_sequence, sequences
from positionlib.padding import visible_from_mask

if TYPE_CHECKING:
    from positionlib.call import PositionCall

NUMBERINGS = ("contiguous", "compressed", "fixed_pad")


class Row(NamedTuple):
    """One row of the row space."""

    owner: int | str
    stream: str
    position: int
    active: bool


@dataclass(frozen=True)
class Options:
    """What every builder accepts by keyword. Ids default to "unnamed": name them before two releases can meet.

    ``method`` is a :class:`~positionlib.manifest.PositionMethod` or a dict of its fields; of a score bias, ``heads`` fills in the shape
    [1, heads, Q, K] of each call.
    """

    request_id: str = "unnamed"
    release_id: str = "unnamed"
    checkpoint_id: str = "unnamed"
    adapter_id: str | None = None
    cache_id: str = "unnamed"
    method: Any = None
    heads: int | None = None
    index_dtype: str = "int64"
    parameter_dtype: str = "float32"
    compute_dtype: str = "float32"
    score_accumulation_dtype: str = "float32"
    backend_id: str = "eager"
    implementation_revision: str = "unnamed"


def counts(field: str, values: Any, minimum: int = 1) -> list[int]:
    """Whole numbers of at least ``minimum``; numpy and torch integers are taken, booleans and floats refused."""
    values = values.tolist() if hasattr(values, "tolist") else values
    require(isinstance(values, (list, tuple)) and len(values) > 0, field, values, "a non-empty list of whole numbers", f"Pass {field} as a list.")
    for value in values:
        require(not isinstance(value, bool) and hasattr(value, "__index__") and value.__index__() >= minimum, field, value,
                f"whole numbers of at least {minimum}", "Count tokens with integers.")
    return [value.__index__() for value in values]


def token_mask(mask: Any, side: str | None, polarity: str) -> list[list[bool]]:
    """A token mask [B, S] as booleans, True = token; its padding side is checked when asserted."""
    rectangle = "a rectangle [B, S] of booleans or of integers 0 and 1, with B and S of at least 1"
    try:
        tensor = torch.as_tensor(mask, device="cpu")  # also where a model is built on the meta device
    except (TypeError, ValueError, RuntimeError):
        raise PositionContractError("mask", mask, rectangle, "Pad the rows to one length; give 1 for tokens and 0 for padding.") from None
    require(tensor.ndim == 2 and tensor.numel() > 0, "mask", mask, rectangle, "Wrap a single sequence in a list.")
    active = visible_from_mask(tensor, polarity).tolist()
    if side is not None:
        require_choice("side", side, ("left", "right"))
        for b, row in enumerate(active):
            require(row == sorted(row, reverse=side == "right"), "side", side, f"padding only on the {side} of row {b}, which is {[int(a) for a in row]}",
                    "Correct the side or the mask's polarity, or leave side out.")
    return active


def number(active: list[list[bool]], numbering: str, first: int, pad: int | None) -> list[list[int]]:
    """Logical positions [B, S] of a token mask under one numbering policy."""
    require_choice("numbering", numbering, NUMBERINGS)
    counts("first_position", [first], minimum=0)
    require((pad is not None) == (numbering == "fixed_pad"), "pad_position", pad, "a position with fixed_pad, and None otherwise",
            "Name the position that padding takes.")
    if numbering == "contiguous":
        return [[first + column for column in range(len(row))] for row in active]
    padding = first if pad is None else counts("pad_position", [pad], minimum=0)[0]
    # accumulate counts the tokens up to and including each column, so the k-th token (from 0) reads k + 1.
    return [[first + rank - 1 if token else padding for token, rank in zip(row, accumulate(row))] for row in active]


def self_attention(rows: Sequence[Row], queries: Iterable[int], mask_id: str, isolation: str, cached: tuple[Any, Any] | None,
                   options: dict[str, Any]) -> dict[str, Any]:
    """Fields of a call whose keys are all the rows, in one frame."""
    return assemble(rows, queries, range(len(rows)), "sequence", "sequence", mask_id, isolation, cached, options)


def assemble(rows: Sequence[Row], queries: Iterable[int], keys: Iterable[int], query_frame: str, key_frame: str, mask_id: str, isolation: str,
             cached: tuple[Any, Any] | None, options: dict[str, Any]) -> dict[str, Any]:
    """Fields of a call. ``cached`` is (committed_length, past_seen_tokens), or None for a call without a cache."""
    unknown = sorted(set(options) - {f.name for f in fields(Options)})
    require(not unknown, ", ".join(unknown), [options[name] for name in unknown], "a builder option", f"Options: {', '.join(f.name for f in fields(Options))}.")
    o, queries, keys = Options(**options), list(queries), list(keys)
    owner = {"checkpoint_id": o.checkpoint_id, "release_id": o.release_id}
    return {
        "schema": SCHEMA,
        "request": {"request_id": o.request_id, **owner, "adapter_id": o.adapter_id},
        "row_space": {"storage_rows": list(range(len(rows))), "sequence_id_per_row": [r.owner for r in rows], "stream_per_row": [r.stream for r in rows],
                      "logical_position_per_row": [r.position for r in rows], "active_token_per_row": [r.active for r in rows]},
        "query_space": {"row_indices": queries, "logical_positions": [rows[i].position for i in queries], "coordinate_frame": query_frame},
        "key_space": {"row_indices": keys if cached is None else None, "cache_slots": None if cached is None else keys,
                      "logical_positions": [rows[i].position for i in keys], "coordinate_frame": key_frame},
        "position_method": _method(o, queries, keys, len({r.owner for r in rows}) if isolation == "batch_rows" else 1),
        "visibility": {"mask_id": mask_id, "polarity": "true_is_visible", "segment_isolation": isolation},
        "cache": {"cache_id": None if cached is None else o.cache_id, "committed_length": 0 if cached is None else cached[0],
                  "past_seen_tokens": 0 if cached is None else cached[1], "coordinate_frame": key_frame, **owner},
        "numerical_state": {"index_dtype": o.index_dtype, "parameter_dtype": o.parameter_dtype, "compute_dtype": o.compute_dtype,
                            "score_accumulation_dtype": o.score_accumulation_dtype},
        "runtime": {"backend_id": o.backend_id, "implementation_revision": o.implementation_revision},
    }


def _method(o: Options, queries: list[int], keys: list[int], batch: int) -> dict[str, Any]:
    plain = {"family": "none", "state_object": None, "relation_sign": "none", "clipping_or_bucket_rule": None, "score_bias_shape": None}
    given = o.method.model_dump(mode="json") if hasattr(o.method, "model_dump") else dict(o.method or {})
    if given.get("family") == "bias" and o.heads is not None:
        given["score_bias_shape"] = [1, o.heads, len(queries) // batch, len(keys) // batch]
    return {**plain, **given}


def continuation(call: PositionCall, new_tokens: int) -> dict[str, Any]:
    """Fields of the call after ``call``: its keys become the cache, and each sequence continues from its own last coordinate."""
    require(call.mode != "cross", "append", call.mode, "a self-attention call", "Target rows do not extend the source: append to the decoder's own call.")
    space, keys = call.row_space, key_rows(call)
    columns = zip(space.sequence_id_per_row, space.stream_per_row, space.logical_position_per_row, space.active_token_per_row)
    table = [Row(*values) for values in columns]
    old: dict[Any, list[Row]] = {owner: [] for owner in sequences(call)}
    for i in keys:
        old[table[i].owner].append(table[i])
    committed = {owner: max([count, *(row.position + 1 for row in old[owner] if row.active)])
                 for owner, count in per_sequence(call, "committed_length").items()}
    asked = Counter(table[i].owner for i in call.query_space.row_indices)
    seen = {owner: count + asked[owner] for owner, count in per_sequence(call, "past_seen_tokens").items()}
    new = {owner: [Row(owner, table[keys[0]].stream, start + i, True) for i in range(new_tokens)] for owner, start in committed.items()}
    # A batch keeps each sequence on its own row; in a packed row the new tokens of all sequences follow the old ones.
    order = [(rows, owner) for owner in old for rows in (old, new)] if call.batch else [(rows, owner) for rows in (old, new) for owner in old]
    placed = [(row, rows is new) for rows, owner in order for row in rows[owner]]
    counts_before = [tuple(count.values()) if len(count) > 1 else next(iter(count.values())) for count in (committed, seen)]
    shape = call.position_method.score_bias_shape
    options = {**dict(call.request), **dict(call.numerical_state), **dict(call.runtime), "cache_id": call.cache.cache_id or "unnamed",
               "method": call.position_method, "heads": shape and shape[1]}
    document = self_attention([row for row, _ in placed], [i for i, (_, fresh) in enumerate(placed) if fresh], call.visibility.mask_id,
                              call.visibility.segment_isolation, tuple(counts_before), options)
    document["query_space"]["coordinate_frame"] = call.query_space.coordinate_frame
    for side in ("key_space", "cache"):
        document[side]["coordinate_frame"] = call.key_space.coordinate_frame
    return {**document, "visibility": call.visibility}


def compile_geometry(call: PositionCall, device: torch.device | str | None, mask: torch.Tensor | None) -> AttentionGeometry:
    """The tensors of a call; see :meth:`PositionCall.geometry`."""
    space, queries, keys = call.row_space, call.query_space.row_indices, key_rows(call)
    shape = (-1,) if call.batch is None else (call.batch, -1)

    def tensor(values: Sequence[Any], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device).reshape(shape)

    known = call.visibility.mask_id in ("full", "causal")
    require(known == (mask is None), "mask", mask, f"{'no tensor' if known else 'a bool tensor [Q, K] or [B, Q, K]'} for mask_id {call.visibility.mask_id!r}",
            "Masks full and causal are compiled; every other mask_id names a tensor that the caller supplies.")
    if mask is not None:
        require(isinstance(mask, torch.Tensor) and mask.dtype == torch.bool, "mask", mask, "a bool tensor", "State the comparison: mask == 1.")
        mask = (mask if call.visibility.polarity == "true_is_visible" else ~mask).to(device)
    active = [space.active_token_per_row[i] for i in keys]
    isolated = call.visibility.segment_isolation == "sequence_ids"
    number_of = {owner: i for i, owner in enumerate(sequences(call))}
    if all(isinstance(owner, int) for owner in number_of):
        number_of = {owner: owner for owner in number_of}
    return AttentionGeometry(
        query_positions=tensor(call.query_space.logical_positions), key_positions=tensor(call.key_space.logical_positions),
        causal=call.visibility.mask_id == "causal", key_active=None if all(active) else tensor(active, torch.bool),
        query_segments=tensor([number_of[space.sequence_id_per_row[i]] for i in queries]) if isolated else None,
        key_segments=tensor([number_of[space.sequence_id_per_row[i]] for i in keys]) if isolated else None, allowed=mask,
        query_frame=call.query_space.coordinate_frame, key_frame=call.key_space.coordinate_frame, mode=call.mode,
        scheme_id="/".join(quote(part, safe="") for part in (call.request.release_id, call.request.checkpoint_id, call.position_method.family)))


def describe(call: PositionCall, limit: int) -> str:
    """The row table of a call as text; see :meth:`PositionCall.explain`."""
    space, queries, keys = call.row_space, set(call.query_space.row_indices), set(key_rows(call))
    committed, seen = call.cache.committed_length, call.cache.past_seen_tokens
    sides = f"{len(queries)} queries ({call.query_space.coordinate_frame}), {len(keys)} keys ({call.key_space.coordinate_frame})"
    lines = [f"{call.mode} call: {sides}, mask {call.visibility.mask_id}, isolation {call.visibility.segment_isolation}",
             f"cache: {call.cache.cache_id or 'none'}, committed {committed}, past seen {seen}; method: {call.position_method.family}",
             f"{'row':>5} {'storage':>8} {'sequence':>9} {'stream':>8} {'position':>9} {'token':>6}  role"]
    count = len(space.storage_rows)
    edge = count if count <= limit else max(limit // 2, 1)
    for i in range(count):
        if i == edge and count > limit:
            lines.append(f"  ... {count - 2 * edge} rows")
        if edge <= i < count - edge and count > limit:
            continue
        role = " ".join(name for name, side in (("query", queries), ("key", keys)) if i in side)
        lines.append(f"{i:>5} {space.storage_rows[i]:>8} {space.sequence_id_per_row[i]:>9} {space.stream_per_row[i]:>8} "
                     f"{space.logical_position_per_row[i]:>9} {'yes' if space.active_token_per_row[i] else 'pad':>6}  {role}")
    return "\n".join(lines)
