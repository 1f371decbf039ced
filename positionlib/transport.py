"""Rows and all that belongs to them, moved by one function: content, coordinates, masks, labels, pair matrices, the geometry.

    rows = {"x": Field(x, "B N D", pad=0.0), "bbox": Field(bbox, "B N 4"), "labels": Field(labels, "B N", pad=-100),
            "distance": Field(distance, "N N", pad=-1), "call": GeometryRows(geometry, "both", pad=0)}
    moved = transport(rows, move=Move.sort(reading_order))          joined = transport(image_rows, text_rows)

Row i of every field must stay the same unit (article, section 0x09). A field names its axes: N is the axis of the rows, B the batch,
any other name an axis that stays. Every N of a field moves: a pair matrix [N, N] becomes R[order][:, order] and cannot move on one
side. A row or pair that no source row provides gets the field's own ``pad``, which has no default: False for a mask, the ignored
index for labels, and for a coordinate what its reader expects.

Moves are checked by their values, on the host: they prepare data, outside a compiled graph.

Not moved: values that name rows by their number (a parent's slot). Keep them as ids of their own, or as a pair matrix of edges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from positionlib.contract import KINDS
from positionlib.errors import require, require_choice, require_count, whole_number
from positionlib.geometry import AttentionGeometry
from positionlib.rules import integers, require_values

NEW = -1  # in Move.source: a row that no source row provides
SIDES = {"both": ("N", "N"), "queries": ("N", "K"), "keys": ("Q", "N")}


@dataclass(frozen=True, eq=False)
class Move:
    """Where each row of the result comes from: row ``source[m]`` of ``length`` rows, or NEW (−1). No row goes to two places.

    ``source`` is [M], or [B, M] for an order of each batch row; what the batch shared is then expanded to it.

    Raises
    ------
    PositionContractError
        a source that is out of range or used twice, or no integers.
    """

    source: Int[Tensor, "*B M"]
    length: int

    def __post_init__(self) -> None:
        require_count("length", self.length, 0)
        source = integers("source", self.source)
        require_values("source", source)
        require(source.ndim in (1, 2) and bool(((source >= NEW) & (source < self.length)).all()), "source", self.source,
                f"[M] or [B, M] of row numbers 0..{self.length - 1}, or {NEW} for a new row", "Count the rows that are moved from 0.")
        require(bool((self._uses(source) <= 1).all()), "source", self.source, "each row at most once", "A repeated row is another model input.")
        object.__setattr__(self, "source", source)

    def _uses(self, source: Tensor) -> Int[Tensor, "*B N"]:
        count = source.new_zeros(*source.shape[:-1], self.length + 1)
        return count.scatter_add(-1, source.masked_fill(source == NEW, self.length), torch.ones_like(source))[..., : self.length]

    @property
    def creates(self) -> bool:
        """Whether some row of the result is new."""
        return bool((self.source == NEW).any())

    @classmethod
    def permute(cls, order: Int[Tensor, "*B N"]) -> Move:
        """Row order[m] comes to m."""
        order = integers("order", order)
        require_values("order", order)
        require(order.ndim in (1, 2), "order", order, "[N] or [B, N]", "Pass one order, or one for each batch row.")
        wanted = torch.arange(order.shape[-1], device=order.device)
        require(bool((order.sort().values == wanted).all()), "order", order, "each row number once", "Pass a permutation.")
        return cls(order, order.shape[-1])

    @classmethod
    def sort(cls, keys: Shaped[Tensor, "*B N"]) -> Move:
        """Rows in the order of ascending keys; equal keys keep their order."""
        known = _plain(keys) and not keys.is_meta and keys.ndim in (1, 2) and not bool(keys.isnan().any())
        require(known, "keys", keys, "[N] or [B, N] without NaN",
                "A row without a key has no place: drop it first.")
        return cls.permute(keys.argsort(dim=-1, stable=True))

    @classmethod
    def keep(cls, kept: Bool[Tensor, "*B N"]) -> Move:
        """Drop the rows where ``kept`` is False. In a batch the kept rows go first, and shorter batch rows end in new rows."""
        require(_plain(kept) and not kept.is_meta and kept.dtype == torch.bool and kept.ndim in (1, 2), "kept", kept, "booleans [N] or [B, N]",
                "State the polarity and compare: mask == 1 (True = stays).")
        order, count = (~kept).long().argsort(dim=-1, stable=True), kept.sum(-1, keepdim=True)
        slots = torch.arange(int(count.max()) if count.numel() else 0, device=kept.device)
        return cls(order[..., : len(slots)].masked_fill(slots >= count, NEW), kept.shape[-1])

    @classmethod
    def pad(cls, length: int, *, before: int = 0, after: int = 0) -> Move:
        """All rows, with so many new ones in front and behind."""
        rows = torch.arange(require_count("length", length, 0))
        return cls(torch.nn.functional.pad(rows, (require_count("before", before, 0), require_count("after", after, 0)), value=NEW), length)

    @classmethod
    def chunks(cls, length: int, size: int) -> list[Move]:
        """The moves that cut the rows into pieces of ``size``; the last may be shorter."""
        return [cls(piece, length) for piece in torch.arange(require_count("length", length)).split(require_count("size", size))]

    def inverse(self) -> Move:
        """The way back, which drops the new rows.

        Raises
        ------
        PositionContractError
            the move drops a row: nothing brings it back.
        """
        require(bool((self._uses(self.source) == 1).all()), "source", self.source, "every row kept", "Keep what was dropped, or move the original again.")
        order = self.source.argsort(dim=-1, stable=True)  # new rows come first
        return Move(order[..., order.shape[-1] - self.length :], order.shape[-1])


@dataclass(frozen=True, eq=False)
class Field:
    """Values and the names of their axes: "B N D", "N", "H N N". ``pad`` fills what no source row provides; None refuses such a move.

    Raises
    ------
    PositionContractError
        names that do not fit the shape, no N, a B that is not first, or a pad that the dtype cannot hold.
    """

    values: Shaped[Tensor, "*axes"]
    axes: str
    pad: bool | int | float | None = None

    def __post_init__(self) -> None:
        require(isinstance(self.axes, str), "axes", self.axes, "the names of the axes", "Write them with blanks between: 'B N D'.")
        names = self.axes.split()
        require(_plain(self.values) and len(names) == self.values.ndim, "values", self.values, f"a tensor with the axes {self.axes}",
                "Name every axis once: N for rows, B for the batch, anything else for what stays.")
        require("N" in names and "B" not in names[1:], "axes", self.axes, "an N, and no B but the first", "Put the batch first.")
        require(self.pad is None or _holds(self.values.dtype, self.pad), "pad", self.pad, f"a value of {self.values.dtype}", "Name a value that the field can hold: False in a mask.")


@dataclass(frozen=True, eq=False)
class GeometryRows:
    """A geometry whose rows move along: ``side`` says whether they are its queries, its keys, or both (self-attention).

    New rows stand at position ``pad``, are inactive keys, and belong to segment −1. ``across`` says whether rows of parts that are
    joined may read one another; causality, activity and segments decide as well.
    """

    geometry: AttentionGeometry
    side: str
    pad: int | None = None
    across: bool | None = None

    def __post_init__(self) -> None:
        require(isinstance(self.geometry, AttentionGeometry), "geometry", self.geometry, "an AttentionGeometry", "Build it with call.geometry().")
        require_choice("side", self.side, tuple(SIDES))

    def fields(self, *needed: str) -> dict[str, Field]:
        """The geometry's tensors that move, by name; ``needed`` ones that it does without are written out as all True."""
        (q, k), g = SIDES[self.side], self.geometry
        if "key_active" in needed and g.key_active is None:
            g = replace(g, key_active=torch.ones_like(g.key_positions, dtype=torch.bool))
        if "allowed" in needed and g.allowed is None:
            g = replace(g, allowed=torch.ones(g.query_length, g.key_length, dtype=torch.bool, device=g.device))
        spec = {"query_positions": (q, self.pad), "key_positions": (k, self.pad), "key_active": (k, False), "query_segments": (q, NEW),
                "key_segments": (k, NEW), "allowed": (f"{q} {k}", False)}
        return {name: Field(t, axes if t.ndim == len(axes.split()) else f"B {axes}", pad)
                for name, (axes, pad) in spec.items() if (t := getattr(g, name)) is not None and "N" in axes}


def _plain(values: object) -> bool:
    return isinstance(values, Tensor) and values.layout == torch.strided and any(values.dtype in dtypes for _, dtypes, _ in KINDS.values())


def _holds(kind: torch.dtype, pad: object) -> bool:
    """Whether a dtype has this value; NaN and the infinities are floats."""
    if isinstance(pad, bool) or kind == torch.bool:
        return isinstance(pad, bool) and kind == torch.bool
    whole = whole_number(pad)
    if kind.is_floating_point:
        return (isinstance(pad, float) or whole is not None) and not torch.finfo(kind).max < abs(pad) < math.inf
    return whole is not None and torch.iinfo(kind).min <= whole <= torch.iinfo(kind).max


Rows = Mapping[str, Field | GeometryRows]


def transport(*parts: Rows, move: Move | None = None) -> dict[str, Field | GeometryRows]:
    """Join the parts along N, if there are several, and then move all fields of the result alike.

    Joining keeps each part's coordinates as they are; a pair of rows from two parts gets the field's ``pad``.

    Raises
    ------
    PositionContractError
        a field whose N or B is not that of the others, new rows or pairs without a named ``pad``, parts that differ in names, axes,
        dtypes or pads, or joined geometries without ``across``. The error's ``field`` is the name of the field.
    """
    require(len(parts) > 0, "parts", parts, "at least one bundle of fields", "Pass a dict of Field by name.")
    require(all(isinstance(part, Mapping) for part in parts), "parts", parts, "mappings of fields by name", "Pass a dict of Field by name.")
    require(move is None or isinstance(move, Move), "move", move, "a Move", "Make one: Move.permute(order).")
    for name, value in ((name, value) for part in parts for name, value in part.items()):
        require(isinstance(value, Field | GeometryRows), name, value, "a Field or GeometryRows", "Declare its axes: Field(values, 'B N D').")
    require(len({frozenset(part) for part in parts}) == 1, "parts", [sorted(part) for part in parts], "the same fields in each", "Nothing stays behind.")
    for part in parts:  # before they are joined: two parts may lack each other's rows and have the right sum
        _check_sizes(part, None)
    rows = parts[0] if len(parts) == 1 else {name: _join(name, [part[name] for part in parts]) for name in parts[0]}
    if move is None:
        return dict(rows)
    _check_sizes(rows, move)
    return {name: _moved(name, value, move) for name, value in rows.items()}


def _check_sizes(rows: Rows, move: Move | None) -> None:
    """Refuse fields whose N or B is not that of the others, or of the move."""
    flat = [(f"{name}.{inner}" if inner else name, field) for name, value in rows.items()
            for inner, field in ({"": value} if isinstance(value, Field) else value.fields()).items()]
    length = move.length if move is not None else _size(flat[0][1], "N") if flat else 0
    batches = [move.source.shape[0]] if move is not None and move.source.ndim == 2 else [_size(field, "B") for _, field in flat]
    batch = next((b for b in batches if b is not None), None)
    for name, field in flat:
        require(all(n == length for a, n in zip(field.axes.split(), field.values.shape) if a == "N"), name, field.values, f"{length} rows on each N of "
                f"{field.axes}", "Bring every field of these rows, or none.")
        require(_size(field, "B") in (None, batch), name, field.values, f"a batch of {batch}", "Leave the batch axis out of what is shared.")


def _size(field: Field, axis: str) -> int | None:
    names = field.axes.split()
    return field.values.shape[names.index(axis)] if axis in names else None


def _moved(name: str, value: Field | GeometryRows, move: Move) -> Field | GeometryRows:
    if isinstance(value, GeometryRows):
        # A new key must be one that nobody reads.
        fields = value.fields("key_active") if move.creates else value.fields()
        moved = {inner: _moved(f"{name}.{inner}", field, move).values for inner, field in fields.items()}
        return replace(value, geometry=replace(value.geometry, **moved))
    require(value.pad is not None or not move.creates, name, value.pad, "a pad for new rows", "Name it: False in a mask, the ignored index in labels.")
    values, axes = value.values, value.axes
    if move.source.ndim == 2 and axes.split()[0] != "B":
        values, axes = values.expand(move.source.shape[0], *values.shape), f"B {axes}"
    for axis in (i for i, a in enumerate(axes.split()) if a == "N"):
        values = _take(values, axis, move.source, value.pad)
    return replace(value, values=values, axes=axes)


def _take(values: Tensor, axis: int, source: Tensor, pad: object) -> Tensor:
    if bool((source == NEW).any()):
        # New rows read one row of padding behind the others, which also serves a field of no rows.
        blank = values.new_full((*values.shape[:axis], 1, *values.shape[axis + 1 :]), pad)
        source = source.masked_fill(source == NEW, values.shape[axis])
        values = torch.cat((values, blank), axis)
    source = source.to(values.device)  # after its values were looked at, which a meta tensor has not
    if source.ndim == 1:
        return values.index_select(axis, source)
    return values.take_along_dim(source.reshape(len(source), *(source.shape[1] if i == axis else 1 for i in range(1, values.ndim))), axis)


def _join(name: str, values: list[Field | GeometryRows]) -> Field | GeometryRows:
    first = values[0]
    require(all(type(v) is type(first) for v in values), name, values, "one kind of field", "Join a geometry to a geometry.")
    if isinstance(first, GeometryRows):
        return _join_geometries(name, values)
    same = {(v.axes, v.values.dtype, str(v.values.device), repr(v.pad), *(n for a, n in zip(v.axes.split(), v.values.shape) if a != "N")) for v in values}
    require(len(same) == 1, name, same, "the same axes, dtype, device, pad and sizes in each part", "Declare the field alike in all parts.")
    lengths = [_size(v, "N") for v in values]
    along, *others = (i for i, a in enumerate(first.axes.split()) if a == "N")
    require(first.pad is not None or not others, name, first.pad, "a pad for pairs of rows from two parts", "Name it: False in a mask, −1 for no path.")
    blocks = [v.values for v in values]
    for axis in others:
        blocks = [_take(block, axis, Move.pad(n, before=sum(lengths[:i]), after=sum(lengths[i + 1 :])).source, first.pad)
                  for i, (block, n) in enumerate(zip(blocks, lengths))]
    return replace(first, values=torch.cat(blocks, along))


def _join_geometries(name: str, values: list[GeometryRows]) -> GeometryRows:
    first, kept = values[0], ("causal", "query_frame", "key_frame", "mode", "scheme_id")
    require(all(v.side == "both" for v in values), f"{name}.side", [v.side for v in values], "both in all parts",
            "Only parts that are queries and keys at once have pairs of their own.")
    require(all(isinstance(v.across, bool) and v.across == first.across for v in values), f"{name}.across", [v.across for v in values],
            "one boolean for all parts", "Say whether rows of different parts may read one another.")
    rules = {(v.pad, v.geometry.query_segments is None, *(getattr(v.geometry, rule) for rule in kept)) for v in values}
    require(len(rules) == 1, name, rules, "one pad, " + ", ".join(kept) + ", and segments in all or none", "Compile the parts alike.")
    needed = {n for n in ("key_active", "allowed") if any(getattr(v.geometry, n) is not None for v in values)}
    opened = [v.fields(*needed, *(() if first.across else ("allowed",))) for v in values]
    joined = {n: _join(f"{name}.{n}", [fields[n] if n != "allowed" else replace(fields[n], pad=first.across) for fields in opened]) for n in opened[0]}
    return replace(first, geometry=replace(first.geometry, **{n: field.values for n, field in joined.items()}))
