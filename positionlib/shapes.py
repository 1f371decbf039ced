"""The shape ledger: the tensors of a positional call, each made by the library and read against the annotation that stands in its source.

    bytes(T) = w_T · Π_a ℓ(a)        a call is accepted when one ℓ gives every tensor T, on every axis, the length ℓ(axis name)

An annotation names axes by letters. Within one scope equal letters are equal lengths; nothing says which axis is time. So the ledger
finds what changed its size, and no exchange of two axes of one length. :attr:`Line.twin` is a value that shows it: the shape and the
dtype of its line, another meaning.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args, get_type_hints

import torch
from jaxtyping import jaxtyped
from torch import Tensor, nn

from positionlib.errors import PositionContractError, require, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.layers import BertInput
from positionlib.mechanisms.grid import Grid
from positionlib.mechanisms.grid_document import BoxEmbedding, normalise_boxes
from positionlib.mechanisms.learned import LearnedAbsolute, position_ids_from_mask, table_gradient
from positionlib.mechanisms.shaw import direct_rows
from positionlib.mechanisms.sinusoidal import Sinusoidal, inverse_frequencies, sinusoidal_rows, sinusoidal_table
from positionlib.mechanisms.t5 import T5Bias
from positionlib.mechanisms.time2vec import TimeAxis, Timestamps
from positionlib.mechanisms.transformer_xl import SegmentMemory
from positionlib.rules import Clip, T5Buckets
from positionlib.terms import StateRows


def annotation(owner: object, name: str = "return") -> Any:
    """The jaxtyping annotation that a function gives an argument or its result, or a class one of its attributes."""
    hint = get_type_hints(owner)[name]
    choices = [choice for choice in (hint, *get_args(hint)) if hasattr(choice, "dim_str")]
    require(bool(choices), name, hint, "an annotation of a tensor", "Name an argument, an attribute or a result that is one.")
    return choices[0] if len(choices) == 1 or hint in choices else hint


def written(hint: Any) -> str:
    """An annotation as its source has it: ``Float "*B N D"``."""
    choices = [choice for choice in (hint, *get_args(hint)) if hasattr(choice, "dim_str")]
    return f'{"|".join(choice.dtype.__name__ for choice in choices)} "{choices[0].dim_str}"'


def read_together(tensors: Mapping[str, tuple[Tensor, Any]]) -> None:
    """Read named (tensor, annotation) pairs in one scope of jaxtyping.

    Raises
    ------
    PositionContractError
        a tensor of another dtype or rank, or an axis whose letter already stands for another length; ``field`` is its name.
    """
    refused = None
    with jaxtyped("context"):
        for name, (tensor, hint) in tensors.items():
            if not isinstance(tensor, hint):
                refused = name, tensor, written(hint)
                break
    if refused:
        name, tensor, words = refused
        require(False, name, tensor, f"{words}, with the lengths that its letters have in this call", "Look for the axis that was lost, added or moved.")


def call(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """The function's result, after its tensor arguments and its result were read together against its own annotations."""
    hints = get_type_hints(function)
    values = inspect.signature(function).bind(*args, **kwargs).arguments
    values = {**values, "return": function(*args, **kwargs)}
    read_together({name: (value, hints[name]) for name, value in values.items()
                   if isinstance(value, Tensor) and any(hasattr(part, "dim_str") for part in (hints[name], *get_args(hints[name])))})
    return values["return"]


class Lengths(NamedTuple):
    """B sequences, n rows in each, width d, h heads, Q query rows, K key rows, L table rows. M = K − Q rows of memory."""

    B: int
    n: int
    d: int
    h: int
    Q: int
    K: int
    L: int = 8

    def of(self, axis: str) -> int:
        """Length of one axis of the ledger: a letter, a number, or what follows from the letters."""
        derived = {"d/2": self.d // 2, "d/h": self.d // self.h, "M": self.K - self.Q, "S": self.K, "T": self.Q}
        return int(axis) if axis.isdigit() else derived[axis] if axis in derived else getattr(self, axis)


@dataclass(frozen=True, eq=False)
class Line:
    """One object of the ledger: its axes there, the annotation that its maker gives it, the tensor, and a twin of other meaning."""

    name: str
    axes: str
    maker: str
    hint: Any
    tensor: Tensor
    changed: str
    twin: Callable[[], Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def accepts(self, tensor: Tensor) -> bool:
        """Whether shape and dtype of a tensor are this line's, and its annotation holds."""
        return tensor.shape == self.tensor.shape and tensor.dtype == self.tensor.dtype and isinstance(tensor, self.hint)


def ledger(sizes: Lengths, *, device: str = "cpu") -> list[Line]:
    """Every object of the article's shape ledger, made by a call of this library and read as it was made.

    The rows of a patch grid are two lines, one an axis. On ``device="meta"`` nothing is filled, and twins are not to be asked for;
    elsewhere a twin differs from its line from Q < K and n > 2 on.

    Raises
    ------
    PositionContractError
        sizes that are no counts, heads that do not divide the width, an odd width, more queries than keys, or a table too short; and
        any line whose tensor is not what its annotation or the ledger says.
    """
    for name, value in zip(Lengths._fields, sizes):
        require_count(name, value)
    require(sizes.d % (2 * sizes.h) == 0, "d", sizes.d, f"a multiple of 2 · {sizes.h} heads", "Heads divide the width, pairs divide a head.")
    require(sizes.Q <= sizes.K <= sizes.L >= sizes.n, "L", sizes.L, f"Q = {sizes.Q} <= K = {sizes.K} <= L and n = {sizes.n} <= L", "Give the table enough rows.")
    with torch.device(device), torch.no_grad():
        lines = [*_absolute(sizes), *_pairwise(sizes), *_streams(sizes), *_coordinates(sizes)]
    for line in lines:
        read_together({line.name: (line.tensor, line.hint)})
        wanted = tuple(sizes.of(axis) for axis in line.axes.split())
        require(line.shape == wanted, line.name, line.tensor, f"[{line.axes}] = {wanted}", "Correct the line or the ledger.")
    return lines


def _states(s: Lengths, rows: int) -> Tensor:
    return torch.arange(s.B * rows * s.d, dtype=torch.float32).reshape(s.B, rows, s.d)


def _absolute(s: Lengths) -> list[Line]:
    ids, ahead = torch.arange(s.B * s.n).reshape(s.B, s.n) % 11, torch.arange(s.n)[None]
    x, rows_of, module = _states(s, s.n), annotation(StateRows, "rows"), Sinusoidal(s.d)
    words = BertInput(11, 1, s.d, None, eps=1e-12)
    call(words.forward, ids, AttentionGeometry.encoder(s.n))
    column, table = torch.arange(s.L)[:, None], call(sinusoidal_table, s.L, s.d)
    buffer = StateRows(rows=table[None], mark="table").rows
    here = AttentionGeometry(ahead, ahead)
    summed = call(module.add, x, here)
    mask = (torch.arange(s.n)[None] > 0) | (torch.arange(s.B)[:, None] % 2 == 1)
    numbered = call(position_ids_from_mask, mask, "compress_active")
    learned = LearnedAbsolute(s.L, s.d)
    row_ids = call(learned.row_ids, numbered)
    found = learned(AttentionGeometry(numbered, numbered)).rows
    call(table_gradient, found, row_ids, s.L)
    ladder = call(inverse_frequencies, s.d)
    again = module(here).rows
    return [
        Line("input_ids", "B n", "BertInput: ids", annotation(BertInput.forward, "ids"), ids, "tokens in reverse", lambda: ids.flip(1)),
        Line("X_content", "B n d", "Sinusoidal.add: x", annotation(Sinusoidal.add, "x"), x, "rows in reverse", lambda: x.flip(1)),
        Line("position", "L 1", "sinusoidal_rows: positions", annotation(sinusoidal_rows, "positions"), column, "counted from 1", lambda: column + 1),
        Line("div_term", "d/2", "inverse_frequencies", annotation(inverse_frequencies), ladder, "base 100", lambda: inverse_frequencies(s.d, base=100.0)),
        Line("pe", "L d", "sinusoidal_table", annotation(sinusoidal_table), table, "cosines last", lambda: sinusoidal_table(s.L, s.d, layout="concatenated")),
        Line("pe buffer", "1 L d", "StateRows.rows", rows_of, buffer, "counted from 1", lambda: sinusoidal_table(s.L, s.d, offset=1)[None]),
        Line("pe[:, :n]", "1 n d", "Sinusoidal: rows", rows_of, again, "counted from 1", lambda: module(AttentionGeometry(ahead + 1, ahead + 1)).rows),
        Line("X + pe[:, :n]", "B n d", "Sinusoidal.add", annotation(Sinusoidal.add), summed, "added twice", lambda: x + 2 * again),
        Line("position_ids", "B n", "position_ids_from_mask", annotation(position_ids_from_mask), numbered, "pads counted",
             lambda: position_ids_from_mask(mask, "contiguous")),
        Line("P", "L d", "table_gradient", annotation(table_gradient), learned.weight, "rows moved by one", lambda: learned.weight.roll(1, 0)),
        Line("P[position_ids]", "B n d", "LearnedAbsolute: rows", rows_of, found, "read one row on", lambda: learned.weight.roll(-1, 0)[row_ids]),
        Line("attention_mask", "B n", "position_ids_from_mask: mask", annotation(position_ids_from_mask, "mask"), mask, "polarity", lambda: ~mask),
    ]


def _pairwise(s: Lengths) -> list[Line]:
    geometry = AttentionGeometry.decode(s.K - s.Q, s.Q)
    query, key = geometry.query_positions, geometry.key_positions
    offset = call(geometry.offsets, "key_minus_query")
    clip, buckets = Clip(2), T5Buckets(bidirectional=False)
    shaw = nn.init.normal_(torch.empty(clip.num_classes, s.d // s.h))
    rows = call(direct_rows, shaw, clip.classes(offset))
    t5 = T5Bias(s.h, bidirectional=False)
    nn.init.normal_(t5.weight)
    term = t5(geometry)
    return [
        Line("query_positions", "Q", "AttentionGeometry", annotation(AttentionGeometry, "query_positions"), query, "restarted at 0", lambda: query - query[0]),
        Line("key_positions", "K", "AttentionGeometry", annotation(AttentionGeometry, "key_positions"), key, "newest first", lambda: key.flip(0)),
        Line("relative_offsets", "Q K", "AttentionGeometry.offsets", annotation(AttentionGeometry.offsets), offset, "sign", lambda: -offset),
        Line("Shaw rows", "1 1 Q K d/h", "direct_rows", annotation(direct_rows), rows, "sign", lambda: direct_rows(shaw, clip.classes(-offset))),
        Line("T5 bucket ids", "Q K", "T5Buckets.classes", annotation(T5Buckets.classes), call(buckets.classes, offset), "sign", lambda: buckets.classes(-offset)),
        Line("scalar bias", "1 h Q K", "ClassBias.materialize", annotation(type(term).materialize), call(term.materialize, query, key), "newest first",
             lambda: term.materialize(query, key.flip(0))),
    ]


def _streams(s: Lengths) -> list[Line]:
    # The one state that is time first: article and release differ here, and no shape tells them apart when B = M.
    hint, past = annotation(SegmentMemory, "states"), s.K - s.Q
    memory = SegmentMemory(1, max(past, 1), "time_first").update([_states(s, s.K).transpose(0, 1)[s.Q :]]).states[0]
    cross, module = AttentionGeometry.cross(s.Q, s.K), Sinusoidal(s.d)
    streams = {"source": (_states(s, s.K), cross.key_positions), "target": (_states(s, s.Q), cross.query_positions)}
    lines = [Line("XL memory", "M B d", "SegmentMemory.states", hint, memory, "stored batch first", lambda: memory.transpose(0, 1).reshape(memory.shape))]
    for name, (state, at) in streams.items():
        summed = call(module.add, state, AttentionGeometry(at, at))
        lines.append(Line(f"{name} states", f"B {name[0].upper()} d", "Sinusoidal.add", annotation(Sinusoidal.add), summed,
                          "counted from 1", lambda state=state, at=at: module.add(state, AttentionGeometry(at + 1, at + 1))))
    return lines


def _coordinates(s: Lengths) -> list[Line]:
    count = torch.arange(s.B * s.n).reshape(s.B, s.n)
    corner = torch.stack((count % 5, count % 3), -1)
    boxes = call(normalise_boxes, (16, 16), torch.cat((corner, corner + 2), -1), 16)
    places = BoxEmbedding(17, s.d)(boxes)
    grid = Grid({"row": 2, "col": (s.n + 1) // 2}, "row_major")
    other = Grid(grid.sizes, "column_major")
    cells = grid.coordinates(torch.arange(s.n).expand(s.B, s.n))
    axis = get_args(get_type_hints(Grid.coordinates)["return"])[1]
    raw = Timestamps(values=count * 5 + 3, unit="ms", clock="session", zone=None, present=count % 3 != 2)
    clock, x = TimeAxis(0, 1, "session", None), _states(s, s.n)
    tau = call(clock.tau, raw)
    return [
        Line("layout boxes", "B n 4", "normalise_boxes", annotation(normalise_boxes), boxes, "x and y exchanged", lambda: boxes[..., [1, 0, 3, 2]]),
        *(Line(f"patch {name}", "B n", f"Grid.coordinates: {name}", axis, cells[name], "column by column",
               lambda name=name: other.coordinates(torch.arange(s.n).expand(s.B, s.n))[name]) for name in grid.axes),
        Line("time indices", "B n", "TimeAxis.tau", annotation(TimeAxis.tau), tau, "ms read as s",
             lambda: clock.tau(Timestamps(values=raw.values, unit="s", clock="session", zone=None, present=raw.present))),
        Line("event: has a time", "B n", "Timestamps.present", annotation(Timestamps, "present"), raw.present, "polarity", lambda: ~raw.present),
        Line("X_positioned", "B n d", "StateRows.add_to", annotation(StateRows.add_to), call(places.add_to, x), "coordinates forgotten", lambda: x),
    ]


def refuses(check: Callable[[], object]) -> str:
    """What a check says when it refuses, "" when it accepts."""
    try:
        check()
    except PositionContractError as refusal:
        return str(refusal)
    return ""
