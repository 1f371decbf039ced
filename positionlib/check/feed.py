"""One call as a user feeds it: ids, mask, positions, cache, as tensors of one size.

B rows of N new columns follow P cached columns; K = P + N columns in all, and a pair mask may show further, empty slots. Every mask
is 1 where a column is a token, or where a query may read a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from positionlib.contract import KINDS
from positionlib.errors import PositionContractError, require, require_count
from positionlib.geometry import LARGEST_POSITION
from positionlib.padding import visible_from_mask
from positionlib.rules import integers

ARRAYS = ("input_ids", "attention_mask", "position_ids", "lengths", "cache_positions", "segment_ids", "cu_seqlens", "pair_mask")
NUMBERS = ("cache_length", "pad_token_id", "bos_token_id", "eos_token_id", "table_rows")
# What a file may ask for: a pair mask of 8,192 tokens, a batch of 4 million, and sequences that can be looked at one by one.
PAIRS, CELLS, SEQUENCES = 2**26, 2**22, 2**12
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # tokenised files hold them, and torch has no arithmetic for them


@dataclass(frozen=True, eq=False)
class Feed:
    """One call. ``active`` is True for tokens; ``mask_covers`` says what the given mask covered: ``all``, ``new``, or ``none`` when none was given."""

    active: Bool[Tensor, "B K"]
    past: int
    mask_covers: str
    input_ids: Int[Tensor, "B N"] | None = None
    position_ids: Int[Tensor, "B N"] | None = None
    cache_positions: Int[Tensor, "B P"] | None = None
    segments: Int[Tensor, "B N"] | None = None
    pairs: Bool[Tensor, "B N S"] | None = None
    lengths: Int[Tensor, "B"] | None = None
    boundaries: tuple[int, ...] | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    table_rows: int | None = None

    @property
    def new(self) -> Bool[Tensor, "B N"]:
        return self.active[:, self.past:]

    @property
    def batch(self) -> int:
        return self.active.shape[0]


def feed(fields: Mapping[str, Any]) -> Feed:
    """The call that these fields describe; ``ARRAYS`` and ``NUMBERS`` list them, and any may be left out that the others make up for.

    Parameters
    ----------
    fields : ``input_ids`` [B, N] (or [N], one row); ``attention_mask`` [B, P + N], or [B, N] of the new columns; ``position_ids`` [B, N] or
        [N], shared; ``lengths`` [B] tokens a row, cached ones included; ``cache_length`` P, columns in the cache, padding included;
        ``cache_positions`` [B, P], the ids under which they were written; ``segment_ids`` [B, N] or ``cu_seqlens`` [S + 1] of packed
        sequences; ``pair_mask`` [N, S], [B, N, S] or [B, 1, N, S]; three token ids; ``table_rows`` of the position table.

    Raises
    ------
    PositionContractError
        unknown fields, floats, ragged or huge arrays, sizes that do not fit together.
    """
    require(isinstance(fields, Mapping), "fields", fields, "arrays by name", "Pass a dict.")
    unknown = sorted(set(map(str, fields)) - {*ARRAYS, *NUMBERS})
    require(not unknown, "fields", unknown[:4], "known fields", f"They are {', '.join(ARRAYS + NUMBERS)}.")
    arrays = {name: _array(name, fields[name]) for name in ARRAYS if fields.get(name) is not None}
    numbers = {name: _number(name, fields[name]) for name in NUMBERS if fields.get(name) is not None}
    past = numbers.pop("cache_length", arrays["cache_positions"].shape[-1] if "cache_positions" in arrays else 0)
    rows, new = _size(arrays, past)
    require(rows <= SEQUENCES and rows * (past + new) <= CELLS, "cache_length" if past > CELLS else "batch", f"{rows} rows of {past + new} columns",
            f"at most {SEQUENCES} rows, and {CELLS} columns in all", "Check a part of the batch.")
    mask, covers = arrays.get("attention_mask"), "none"
    if mask is not None:
        mask = _fit("attention_mask", _rows("attention_mask", mask), rows, (past + new, new), f"[{rows}, {past + new}], the cache and the new columns")
        mask, covers = visible_from_mask(mask, "true_is_visible"), "all" if mask.shape[-1] == past + new else "new"
    active = torch.ones(rows, past + new, dtype=torch.bool)
    if mask is not None:
        active[:, -mask.shape[-1]:] = mask
    lengths = arrays.get("lengths")
    require(lengths is None or lengths.shape == (rows,), "lengths", lengths, f"[{rows}], one a row", "Count the tokens of each row.")
    require(mask is not None or lengths is None or bool((lengths >= past + new).all()), "attention_mask", None, "a mask beside the lengths",
            "A length does not say on which side the padding is.")
    values = {name: _fit(name, integers(name, _rows(name, arrays[name])), rows, (new if name != "cache_positions" else past,), f"[{rows}, {width}]")
              for name, width in (("input_ids", new), ("position_ids", new), ("segment_ids", new), ("cache_positions", past)) if name in arrays}
    boundaries = arrays.get("cu_seqlens")
    require(boundaries is None or (rows == 1 and boundaries.ndim == 1), "cu_seqlens", boundaries, "[S + 1] beside one packed row",
            "Pack the sequences into one row.")
    require(boundaries is None or "segment_ids" not in values, "cu_seqlens", boundaries, "cu_seqlens or segment_ids", "Give one of the two.")
    boundaries = None if boundaries is None else tuple(boundaries.tolist())
    segments = values.pop("segment_ids", None)
    require(past == 0 or segments is None and boundaries is None, "cache_length", past, "0 for a packed call",
            "A manifest can say which cached row belongs to which sequence: write one.")
    if boundaries is not None and boundaries_fit(boundaries, new):
        ends = torch.tensor(boundaries[1:])
        segments = torch.bucketize(torch.arange(new), ends, right=True)[None]
    count = 0 if segments is None else segments.unique().numel()
    require(count <= SEQUENCES, "segment_ids", f"{count} sequences", f"at most {SEQUENCES}", "Check a part of the batch.")
    return Feed(active, past, covers, segments=segments, pairs=_pairs(arrays.get("pair_mask"), rows, new, past), lengths=lengths, boundaries=boundaries,
                **values, **numbers)


def boundaries_fit(boundaries: tuple[int, ...], new: int) -> bool:
    """Whether the boundaries of a packed row begin at 0, never fall, and end at its length."""
    return len(boundaries) > 1 and boundaries[0] == 0 and boundaries[-1] == new and list(boundaries) == sorted(boundaries)


def _array(name: str, values: Any) -> Tensor:
    try:
        array = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise PositionContractError(name, values, "a rectangle of whole numbers below 2^63", "Pad the rows to one length.") from None
    held = array.layout == torch.strided and not array.is_meta
    if held and array.dtype in UNSIGNED:
        array = array.long()
        require(bool((array >= 0).all()), name, values, "entries below 2^63", "Positions fit an int64.")
    require(held and array.dtype in KINDS["Int"][1] + KINDS["Bool"][1], name, array, "a dense array of integers or booleans",
            "Keep ids, masks and positions whole: a float has already lost some (bfloat16 merges 256 and 257), an additive mask its polarity.")
    limit = PAIRS if name == "pair_mask" else CELLS
    require(array.ndim > 0 and 0 < array.numel() <= limit, name, array, f"a list of 1 to {limit} entries", "Check a part of the batch.")
    low, high = int(array.min()), int(array.max())
    require(-LARGEST_POSITION < low and high <= LARGEST_POSITION, name, max(high, -low), "entries above -2^62, up to 2^62", "Their differences must fit an int64.")
    return array


def _number(name: str, value: Any) -> int:
    value = require_count(name, value.item() if getattr(value, "size", None) == 1 else value, 0)
    require(value <= LARGEST_POSITION, name, value, "at most 2^62", "Ids and lengths fit an int64.")
    return value


def _rows(name: str, array: Tensor) -> Tensor:
    require(array.ndim in (1, 2), name, array, "[B, N] or [N]", "Give one entry a column of each row; a pair mask has its own field, pair_mask.")
    return array if array.ndim == 2 else array[None]


def _size(arrays: dict[str, Tensor], past: int) -> tuple[int, int]:
    """(B, N) from the first array that knows N; position ids may be one shared row."""
    for name in ("input_ids", "segment_ids", "position_ids"):
        if name in arrays:
            rows = max(_rows(n, arrays[n]).shape[0] for n in (name, "attention_mask") if n in arrays)
            return rows, arrays[name].shape[-1]
    require("attention_mask" in arrays, "input_ids", None, "input_ids, position_ids, segment_ids or attention_mask", "Say how many columns the call has.")
    mask = _rows("attention_mask", arrays["attention_mask"])
    require(mask.shape[-1] > past, "attention_mask", mask, f"more than the {past} cached columns", "Cover the new tokens too, or give input_ids.")
    return mask.shape[0], mask.shape[-1] - past


def _fit(name: str, array: Tensor, rows: int, widths: tuple[int, ...], expected: str) -> Tensor:
    require(array.shape[-1] in widths and array.shape[0] in ((1, rows) if name == "position_ids" else (rows,)), name, array, expected,
            "Give the arrays of one and the same call.")
    return array.expand(rows, -1)


def _pairs(pairs: Tensor | None, rows: int, new: int, past: int) -> Tensor | None:
    if pairs is None:
        return None
    expected = f"[{new}, S], [{rows}, {new}, S] or [{rows}, 1, {new}, S] with S of at least {past + new}"
    pairs = pairs[:, 0] if pairs.ndim == 4 and pairs.shape[1] == 1 else pairs
    pairs = pairs[None] if pairs.ndim == 2 else pairs
    require(pairs.ndim == 3 and pairs.shape[0] in (1, rows) and pairs.shape[1] == new and pairs.shape[2] >= past + new, "pair_mask", pairs, expected,
            "One entry a query and key of this call.")
    require(rows * pairs.shape[1] * pairs.shape[2] <= PAIRS, "pair_mask", pairs, f"at most {PAIRS} entries for all rows", "Check a part of the batch.")
    return visible_from_mask(pairs, "true_is_visible").expand(rows, -1, -1)
