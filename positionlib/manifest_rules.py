"""What must hold between the parts of one positional call. Each rule names the field at fault and the remedy.

The rules look at plain numbers: no tensor exists yet when a call is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from positionlib.errors import FrameMismatchError, PositionContractError, require

if TYPE_CHECKING:
    from positionlib.call import PositionCall

_INDEX_LIMITS = {"int8": 2**7 - 1, "uint8": 2**8 - 1, "int16": 2**15 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1}


def check_call(call: PositionCall) -> None:
    """Apply every rule in turn; the first that fails raises."""
    for rule in (_rows_exist, _one_stream_a_side, _frames, _cache_owner, _continuation, _positions_agree, _index_dtype, _isolation, _bias_shape):
        rule(call)


def key_rows(call: PositionCall) -> tuple[int, ...]:
    """Entries of ``row_space`` that the keys are, whichever way the manifest names them."""
    if call.key_space.row_indices is not None:
        return call.key_space.row_indices
    slot_to_row = {slot: row for row, slot in enumerate(call.row_space.storage_rows)}
    return tuple(slot_to_row[slot] for slot in call.key_space.cache_slots)


def sequences(call: PositionCall) -> tuple[Any, ...]:
    """The sequence ids in order of first appearance."""
    return tuple(dict.fromkeys(call.row_space.sequence_id_per_row))


def per_sequence(call: PositionCall, field: str) -> dict[Any, int]:
    """A cache count by sequence id: one number applies to all, a list has one entry a sequence."""
    count, ids = getattr(call.cache, field), sequences(call)
    if isinstance(count, int):
        return dict.fromkeys(ids, count)
    require(len(count) == len(ids), f"cache.{field}", count, f"one number, or {len(ids)} in order of first appearance", "Give one count a sequence.")
    return dict(zip(ids, count))


def _sides(call: PositionCall) -> Iterator[tuple[str, tuple[int, ...], Any]]:
    yield "query_space", call.query_space.row_indices, call.query_space
    yield "key_space", key_rows(call), call.key_space


def _rows_exist(call: PositionCall) -> None:
    count, slots = len(call.row_space.storage_rows), set(call.row_space.storage_rows)
    for name, rows in (("query_space.row_indices", call.query_space.row_indices), ("key_space.row_indices", call.key_space.row_indices)):
        outside = [row for row in rows or () if row >= count]
        require(not outside, name, outside[:1], f"row indices below {count}", "Index the entries of row_space, which has that many rows.")
    unknown = [slot for slot in call.key_space.cache_slots or () if slot not in slots]
    require(not unknown, "key_space.cache_slots", unknown[:1], "slots that row_space.storage_rows lists", "Describe every cached slot in row_space.")


def _one_stream_a_side(call: PositionCall) -> None:
    for name, rows, side in _sides(call):
        streams = {call.row_space.stream_per_row[row] for row in rows}
        require(len(streams) == 1, f"{name}.row_indices", sorted(streams), "rows of one stream", "Make one call a stream.")


def _frames(call: PositionCall) -> None:
    query, key = call.query_space.coordinate_frame, call.key_space.coordinate_frame
    if query != key:
        rows, keys = call.query_space.row_indices, key_rows(call)
        streams = call.row_space.stream_per_row
        if call.position_method.relation_sign != "none" or call.visibility.mask_id == "causal":
            raise FrameMismatchError("query_space.coordinate_frame", query, f"the key frame {key!r}",
                                     "Offsets and causal order exist within one frame: use another family, or give both sides one frame.")
        if streams[rows[0]] == streams[keys[0]]:
            raise FrameMismatchError("query_space.coordinate_frame", query, f"the key frame {key!r} inside one stream",
                                     "Self-attention has one frame: cached keys and new queries must count from one origin.")
    require(call.cache.coordinate_frame == key, "cache.coordinate_frame", call.cache.coordinate_frame, f"the key frame {key!r}",
            "Cached keys keep the frame they were written in: rebuild the cache, or declare its frame.")


def _cache_owner(call: PositionCall) -> None:
    for name in ("checkpoint_id", "release_id"):
        wanted = getattr(call.request, name)
        require(getattr(call.cache, name) == wanted, f"cache.{name}", getattr(call.cache, name), f"the request's {name} {wanted!r}",
                "A cache of other weights has the right shape and the wrong keys: drop it and prefill again.")


def _continuation(call: PositionCall) -> None:
    """With a cache of the queries' own stream: the first new position of each sequence is its committed length."""
    committed, seen = per_sequence(call, "committed_length"), per_sequence(call, "past_seen_tokens")
    space, queries, keys = call.row_space, call.query_space.row_indices, key_rows(call)
    if call.cache.cache_id is None or space.stream_per_row[queries[0]] != space.stream_per_row[keys[0]]:
        return
    following = dict(committed)
    for row, position in zip(queries, call.query_space.logical_positions):
        if space.active_token_per_row[row]:
            owner = space.sequence_id_per_row[row]
            require(position == following[owner], "query_space.logical_positions", position,
                    f"{following[owner]}, because the cache holds {committed[owner]} committed positions of sequence {owner!r}",
                    "Continue from cache.committed_length; a new query does not restart at 0.")
            following[owner] += 1
    new, cached = set(queries), dict.fromkeys(committed, 0)
    for row, position in zip(keys, call.key_space.logical_positions):
        if row not in new:
            owner = space.sequence_id_per_row[row]
            cached[owner] += 1
            require(position < committed[owner] or not space.active_token_per_row[row], "key_space.logical_positions", position,
                    f"cached positions below the committed length {committed[owner]}", "A cached key cannot be ahead of its own sequence.")
    for owner, rows in cached.items():
        require(rows <= seen[owner], "cache.past_seen_tokens", seen[owner], f"at least the {rows} cached rows of sequence {owner!r} that are read",
                "Count every storage row written before this call, padding included.")


def _positions_agree(call: PositionCall) -> None:
    for name, rows, side in _sides(call):
        for row, position in zip(rows, side.logical_positions):
            wanted = call.row_space.logical_position_per_row[row]
            require(position == wanted, f"{name}.logical_positions", position, f"{wanted}, the logical position of row {row}",
                    "A row has one coordinate: take it from row_space, never from a storage index.")


def _index_dtype(call: PositionCall) -> None:
    limit, largest = _INDEX_LIMITS[call.numerical_state.index_dtype], max(call.row_space.logical_position_per_row)
    require(largest <= limit, "numerical_state.index_dtype", call.numerical_state.index_dtype, f"an integer type that holds position {largest}",
            "Use int64 for positions.")


def _isolation(call: PositionCall) -> None:
    space, kind = call.row_space, call.visibility.segment_isolation
    if kind == "batch_rows":
        for name, rows, _ in _sides(call):
            owners = [space.sequence_id_per_row[row] for row in rows]
            ids = sequences(call)
            each = len(rows) // len(ids)
            require(owners == [owner for owner in ids for _ in range(each)], f"{name}.row_indices", owners[:8],
                    "equally many rows of every sequence, one sequence after the other",
                    "A batch is rectangular: pad it, or pack the sequences and isolate them by sequence_ids.")
    if kind == "none":
        owner_of: dict[tuple[str, int], Any] = {}
        for row in key_rows(call):
            owner, place = space.sequence_id_per_row[row], (space.stream_per_row[row], space.logical_position_per_row[row])
            if space.active_token_per_row[row] and owner_of.setdefault(place, owner) != owner:
                raise PositionContractError(
                    "visibility.segment_isolation", "none", f"isolation, because sequences {owner_of[place]!r} and {owner!r} share position {place[1]}",
                    "Reset coordinates need isolated segments: use sequence_ids, or number the packed rows continuously.")


def _bias_shape(call: PositionCall) -> None:
    shape = call.position_method.score_bias_shape
    if shape is None:
        return
    batched = call.visibility.segment_isolation == "batch_rows"
    batch = len(sequences(call)) if batched else 1
    wanted = (len(call.query_space.row_indices) // batch, len(key_rows(call)) // batch)
    require(shape[2:] == wanted and shape[0] in (1, batch), "position_method.score_bias_shape", shape,
            f"[{'1 or ' + str(batch) if batch > 1 else '1'}, heads, {wanted[0]}, {wanted[1]}]",
            "The bias has one entry a query and key of this call; it never broadcasts along them.")
