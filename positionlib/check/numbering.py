"""Do the coordinates follow the tokens? One diagnosis a sequence: what was fed against what its k-th token must have.

An absolute family needs first + k, whatever the padding. A relative one reads differences, so that a whole sequence may be shifted, but
new tokens must continue the numbering of the cached ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from positionlib.check.families import Family
from positionlib.check.feed import Feed
from positionlib.check.findings import Finding, finding, pads


@dataclass(frozen=True, eq=False)
class Sequence:
    """One sequence of a call: its batch row, its number in a packed row, and the columns of its new tokens (counted after the cache)."""

    row: int
    number: int
    columns: Int[Tensor, "n"]
    packed: bool

    @property
    def name(self) -> str:
        return f"sequence {self.number} of row {self.row}" if self.packed else f"row {self.row}"


def sequences(call: Feed) -> Iterator[Sequence]:
    """The sequences of every row that have new tokens, in the order of their first one."""
    for row in range(call.batch):
        columns = call.new[row].nonzero().flatten()
        if call.segments is None:
            if len(columns):
                yield Sequence(row, 0, columns, packed=False)
            continue
        owners, order = call.segments[row, columns].sort(stable=True)
        parts = columns[order].split(owners.unique_consecutive(return_counts=True)[1].tolist())
        for number, part in enumerate(sorted(parts, key=lambda part: int(part[0]))):
            yield Sequence(row, number, part, packed=True)


def fed_ids(call: Feed, family: Family) -> Int[Tensor, "B N"]:
    """The ids that the model works with: those passed in, where it reads them, or its own."""
    if call.position_ids is not None and family.coordinate == "position_ids":
        return call.position_ids
    return family.own_ids(call.active, call.past)


def check_numbering(call: Feed, family: Family) -> list[Finding]:
    """Findings about positions, at most one a sequence, and about the range of the table."""
    fed, found = fed_ids(call, family), []
    if call.position_ids is not None and family.coordinate != "position_ids":
        found.append(finding("positions-unread", None, "position_ids", f"{family.name} takes its coordinate from {family.coordinate}, never from position_ids"))
    wanted = family.ids(call.active, call.past)
    for sequence in sequences(call):
        fault = _Diagnosis(call, family, fed, wanted, sequence).fault()
        if fault:
            found.append(finding(fault[0], sequence.row, "position_ids", f"{sequence.name} {fault[1]}"))
    rows = fed + family.row_offset
    for row in range(call.batch if family.absolute else 0):
        low, high = int(rows[row].min()), int(rows[row].max())
        if low < 0:
            found.append(finding("negative", row, "position_ids", f"row {row} holds position {low - family.row_offset}, which reads no row of the table"))
        if call.table_rows is not None and high >= call.table_rows:
            found.append(finding("range", row, "position_ids", f"row {row} reaches table row {high}, and the table has {call.table_rows}"))
    return found


class _Diagnosis:
    """The rules that name a fault, tried in order: the first that explains the ids is the one reported."""

    def __init__(self, call: Feed, family: Family, fed: Tensor, wanted: Tensor, sequence: Sequence) -> None:
        self.call, self.family, self.sequence, self.fed_rows, self.wanted_rows = call, family, sequence, fed, wanted
        row, self.columns = sequence.row, sequence.columns
        cached = call.active[row, : call.past]
        self.fed, self.cached = fed[row, self.columns], int(cached.sum()) if not sequence.packed else 0
        self.hidden = call.past - self.cached if not sequence.packed else 0  # cached columns that are padding
        self.pads_before = int((~call.new[row, : self.columns[0]]).sum())
        self.pads_behind = int(self.hidden and call.past - 1 - cached.nonzero()[-1]) if self.cached else 0
        reads = call.cache_positions is not None and family.coordinate == "position_ids"
        self.known = call.cache_positions[row, cached] if reads and self.cached else None
        self.start = self._start()
        self.count = torch.arange(len(self.fed))
        self.shift = self.fed - self.start - self.count

    def _start(self) -> int:
        """The id that the first new token must have."""
        first, fed = self.family.first, int(self.fed[0])
        # A window of a packed row may begin inside a document.
        inside = self.sequence.packed and self.sequence.number == 0 and fed > first
        if self.family.absolute:
            return fed if inside else first + self.cached
        if not self.cached:
            return fed
        if self.known is not None:
            return int(self.known[-1]) + 1
        # Ids that go on at the storage column were counted so in the cache too: its last token stands in its own column.
        return self.call.past - self.pads_behind if fed == self.call.past else first + self.cached

    def fault(self) -> tuple[str, str] | None:
        """(code, what is wrong with the sequence), or None."""
        if self.family.absolute and self.known is not None and (lead := int(self.known[0]) - self.family.first):
            if int(self.shift[0]) != lead:
                return "cache-convention", f"has its cached tokens numbered from {int(self.known[0])}, and its new ones from {int(self.fed[0])}"
        if not self.shift.any():
            return None
        if len(self.fed) > 1 and bool((self.fed == self.fed[0]).all()):
            return "one-position", f"has one position, {int(self.fed[0])}, for all of its {len(self.fed)} tokens"
        steady = bool((self.shift == self.shift[0]).all())
        return (self._another_row() or (self._continues_wrongly() if self.cached else self._starts_wrongly())) if steady else self._uneven()

    def _another_row(self) -> tuple[str, str] | None:
        row, call = self.sequence.row, self.call
        if self.sequence.packed or torch.equal(self.fed, call.past + self.columns + self.family.first):
            return None  # ids that count columns are right for every row without padding
        alike = ((self.fed_rows[row] == self.wanted_rows) | ~call.new).all(-1) & (call.active != call.active[row]).any(-1)
        others = (alike & (call.new.sum(-1) > 1)).nonzero().flatten().tolist()  # one token alone may hold any row's position by chance
        return ("row-swapped", f"carries the positions of row {others[0]}") if others else None

    def _starts_wrongly(self) -> tuple[str, str]:
        shift, family = int(self.shift[0]), self.family
        if self.sequence.number and int(self.fed[0]) == int(self.columns[0]) - int(self.call.new[self.sequence.row].nonzero()[0]) + family.first:
            return "packed-continues", f"starts at position {int(self.fed[0])}, which it never sees when it is alone"
        if shift == self.pads_before:
            return "left-pad-counted", f"is left-padded but its positions count pads: the prompt is shifted by {shift}"
        return self._by_offset(shift) or ("shifted", f"starts at position {int(self.fed[0])} where {self.start} is due")

    def _by_offset(self, shift: int) -> tuple[str, str] | None:
        if shift and shift == self.family.row_offset:
            return "offset-twice", f"has the row offset {shift} in its ids, and {self.family.name} adds it again"
        if shift and shift == -self.family.first:
            return "offset-missing", f"starts at {int(self.fed[0])}, and {self.family.name}'s ids start at {self.start}"
        return None

    def _continues_wrongly(self) -> tuple[str, str]:
        first, shift, start = int(self.fed[0]), int(self.shift[0]), self.start
        if first in (self.family.first, 0):
            return "decode-restarts", f"restarts at position {first} although {self.cached} tokens are cached: {start} is due"
        if self.pads_behind and shift == self.pads_behind and not self.family.absolute:
            return "pads-between", f"counts the {pads(shift)} between its cached tokens and its new ones"
        if self.hidden and shift == self.hidden:
            return "decode-counts-pads", f"decodes at storage column {first}: it counts the {pads(self.hidden)} in the cache, and {start} is due"
        if self.hidden and shift == -self.hidden:
            return "cache-convention", f"has its cached tokens numbered up to {start - 1}, and its new ones from {first}"
        if shift in (self.cached, self.call.past):
            return "cursor-twice", f"decodes at position {first}: the committed length is added twice, and {start} is due"
        return self._by_offset(shift) or ("shifted", f"decodes at position {first} where {start} is due")

    def _uneven(self) -> tuple[str, str]:
        fed, due, first = self.fed, self.start + self.count, self.family.first
        for dtype in (torch.bfloat16, torch.float16):
            if torch.equal(due.to(dtype).long(), fed):
                at = int(self.shift.nonzero()[0])
                return "rounded", f"has positions rounded to {str(dtype).removeprefix('torch.')}: {int(due[at])} became {int(fed[at])}"
        if torch.equal(fed.flip(0), fed.min() + self.count):
            return "reversed", f"is numbered backwards, from {int(fed[0])} down to {int(fed[-1])}"
        if found := self._another_row():
            return found
        step = fed.diff()
        at = int((step != 1).nonzero()[0]) + 1
        column, before, after = int(self.columns[at]), int(fed[at - 1]), int(fed[at])
        back = step[step != 1]
        if bool((fed[1:][step != 1] == first).all()) and bool((back <= 0).all()):
            return "restarts", f"restarts at position {after} in column {column}, and nothing separates what stands before it"
        between = int(self.columns[at] - self.columns[at - 1]) - 1
        if between and step[at - 1] == between + 1:
            return "pads-between", f"counts the {pads(between)} before column {column}: its position jumps from {before} to {after}"
        if bool((step > 0).all()):
            return "gap", f"jumps from position {before} to {after} in column {column}"
        if bool((step >= 0).all()):
            return "repeated", f"has position {after} twice, in column {column} again"
        return "disordered", f"goes from position {before} to {after} in column {column}"
