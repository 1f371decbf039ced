"""Call inspector: the rows, offsets and visibility of one positional call, beside what tensor indices alone would give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from positionlib.call import PositionCall
from positionlib.errors import PositionContractError
from positionlib.geometry import AttentionGeometry
from positionlib.manifest_rules import key_rows
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Matrices, Matrix, Table, Text

KINDS = {"decode": "decode one token", "chunk": "second chunk of a prefill", "packed": "packed, isolated", "leak": "packed, not isolated",
         "right": "padded right (encoder)", "left": "padded left (decoder)", "cross": "cross-attention"}
SIGNS = ("key_minus_query", "query_minus_key")


@dataclass(frozen=True)
class View:
    """One call as the reader sees it: the batch row of the shorter sequence, when there is a batch."""

    call: PositionCall
    rows: tuple[int, ...]         # entries of row_space that are drawn
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    geometry: AttentionGeometry
    refusal: str                  # what the library says of the call, "" when it accepts it
    batch_row: int = 0

    def side(self, tensor: Tensor) -> Tensor:
        """The drawn row of a batched side, or the side itself."""
        return tensor if tensor.ndim == 1 else tensor[self.batch_row]

    @property
    def visible(self) -> Tensor:
        seen = self.geometry.visible
        return seen if seen.ndim == 2 else seen[self.batch_row]

    @property
    def read(self) -> Tensor:
        """Visible pairs whose query is a token: a padding query reads too, but nobody uses what it returns."""
        return self.visible & torch.tensor([self.call.row_space.active_token_per_row[q] for q in self.queries])[:, None]


def _call(kind: str, lengths: tuple[int, int]) -> PositionCall:
    first, second = lengths
    if kind == "decode":
        return PositionCall.decode(first + second - 1)
    if kind == "chunk":
        return PositionCall.chunked_prefill([first, second])[1]
    if kind == "cross":
        return PositionCall.cross(first, second)
    if kind in ("packed", "leak"):
        return PositionCall.packed([first, second])
    most = max(lengths)
    mask = [[1] * n + [0] * (most - n) if kind == "right" else [0] * (most - n) + [1] * n for n in lengths]
    return PositionCall.padded(mask, side=kind, numbering="contiguous" if kind == "right" else "compressed", causal=kind == "left")


@cache
def _view(kind: str, lengths: tuple[int, int]) -> View:
    call = _call(kind, lengths)
    call = call.replace({"row_space.sequence_id_per_row": ["AB"[owner] for owner in call.row_space.sequence_id_per_row]})
    count, b = len(call.row_space.storage_rows), 0
    rows = tuple(range(count))
    if call.batch:  # the shorter sequence is the padded one
        width, b = count // call.batch, lengths.index(min(lengths))
        rows = rows[b * width:(b + 1) * width]
    queries, keys = ([r for r in side if r in rows] for side in (call.query_space.row_indices, key_rows(call)))
    geometry, refusal = call.geometry(), ""
    if kind == "leak":  # what runs when nobody asks the manifest: coordinates restart under one causal triangle over storage rows
        try:
            call.replace({"visibility.segment_isolation": "none"})
        except PositionContractError as error:
            refusal = str(error)
        positions = torch.tensor(call.row_space.logical_position_per_row)
        geometry = AttentionGeometry(positions, positions, allowed=torch.ones(count, count, dtype=torch.bool).tril(), mode="causal")
    if kind == "cross":
        try:
            geometry.offsets(SIGNS[0])
        except PositionContractError as error:
            refusal = str(error)
    return View(call, rows, tuple(queries), tuple(keys), geometry, refusal, b)


def _offsets(view: View, sign: str) -> tuple[Tensor, Tensor]:
    """Offsets of the declared coordinates, and those that counting each tensor's own rows would give."""
    local = AttentionGeometry(torch.arange(len(view.queries)), torch.arange(len(view.keys)))
    declared = AttentionGeometry(view.side(view.geometry.query_positions), view.side(view.geometry.key_positions))
    return declared.offsets(sign), local.offsets(sign)


def _borrowed(view: View) -> Tensor:
    """Visible cells whose query and key belong to different sequences."""
    owner = view.call.row_space.sequence_id_per_row
    apart = torch.tensor([[owner[q] != owner[k] for k in view.keys] for q in view.queries])
    return apart & view.read


def _cells(flags: Tensor) -> list[tuple[int, int]]:
    return [tuple(cell) for cell in flags.nonzero().tolist()]


def _labels(view: View, rows: tuple[int, ...], letter: str) -> list[str]:
    return [f"{letter}{view.call.row_space.logical_position_per_row[r]}" for r in rows]


def _table(view: View) -> Table:
    space, queries, keys = view.call.row_space, set(view.queries), set(view.keys)
    rows = [[space.storage_rows[r], space.sequence_id_per_row[r], space.stream_per_row[r], space.logical_position_per_row[r],
             "token" if space.active_token_per_row[r] else "pad", " and ".join(n for n, side in (("query", queries), ("key", keys)) if r in side)]
            for r in view.rows]
    moved = [i for i, r in enumerate(view.rows) if space.logical_position_per_row[r] != i]
    return Table("Rows", ["storage row", "sequence", "stream", "logical position", "state", "role"], rows, moved,
                 "Marked: position and place in the table differ.")


def _compute(kind, lengths, sign):
    view = _view(kind, lengths)
    visible, rows, columns = view.visible, _labels(view, view.queries, "q"), _labels(view, view.keys, "k")
    leaked = _borrowed(view) if kind != "cross" else torch.zeros_like(visible)
    seen = Matrix("1: the query may read the key", visible.int().numpy(), 0, None, _cells(leaked), ~visible.numpy(), rows, columns)
    badges = [Badge("Q × K", f"{len(view.queries)} × {len(view.keys)}"), Badge("mask", "rows stored up to the query's" if kind == "leak" else view.call.visibility.mask_id)]
    if kind == "cross":
        badges.append(Badge("frames", "target, source"))
        return [Badges(badges), _table(view), Matrices([seen], "Queries in rows, keys in columns"), Text(view.refusal)]
    declared, local = _offsets(view, sign)
    wrong = (declared != local) & view.read & ~leaked  # a pair that may not be read has no right offset
    hidden = ~view.read.numpy()
    badges += [Badge("offsets within a sequence wrong when counted by index", f"{int(wrong.sum())} of {int((view.read & ~leaked).sum())}", "bad" if wrong.any() else "ok"),
               Badge("pairs across sequences", int(leaked.sum()), "bad" if leaked.any() else "ok")]
    named = "k − q" if sign == SIGNS[0] else "q − k"
    pair = [Matrix(f"{named}, from the call", declared.numpy(), 0, None, _cells(leaked), hidden, rows, columns, "logical positions"),
            Matrix(f"{named}, from tensor indices", local.numpy(), 0, None, _cells(wrong), hidden,
                   [f"q{i}" for i in range(len(rows))], [f"k{j}" for j in range(len(columns))], "each tensor counted from 0")]
    panels = [Badges(badges), _table(view), Matrices(pair, "Offsets of the readable pairs"), Matrices([seen], "Who may read whom")]
    return panels + ([Text(view.refusal)] if view.refusal else [])


def _caption(kind, lengths, sign):
    view = _view(kind, lengths)
    if kind == "cross":
        return "Target positions and source positions count from two origins: there is no offset to show, and the library refuses to subtract."
    declared, local = _offsets(view, sign)
    wrong, total = int(((declared != local) & view.read).sum()), int(view.read.sum())
    if kind in ("decode", "chunk"):
        start = view.call.query_space.logical_positions[0]
        return (f"The new rows start at position {start}, behind {start} cached ones. Counted from 0 in their own tensor they get {wrong} of {total} "
                f"offsets wrong, in a matrix of the same {len(view.queries)} × {len(view.keys)}.")
    if kind == "packed":
        return (f"Sequence B restarts at 0. Inside a sequence storage indices give the same offsets ({wrong} of {total} wrong): here only the "
                "coordinate itself moved, which an absolute method reads.")
    if kind == "leak":
        borrowed = _borrowed(view)
        furthest = int((declared if sign == SIGNS[0] else -declared)[borrowed].max())
        reached = f"Key minus query there reaches +{furthest}" if sign == SIGNS[0] else f"Query minus key there reaches −{furthest}"
        return (f"Positions restart, yet {int(borrowed.sum())} marked cells let B read A. {reached}: rows that were stored "
                "before B seem to come after it. The manifest refuses this call.")
    pads = sum(not view.call.row_space.active_token_per_row[r] for r in view.rows)
    if not pads:
        return "Two rows of one length: nothing is padded, and positions equal columns. Choose unequal lengths."
    if kind == "right":
        return (f"The shorter row ends in padding ({pads} of its columns). Contiguous numbering counts it and no query reads it: each token's "
                "position is its column.")
    return (f"The shorter row begins with padding, numbered 0 and read by nobody. Its first token has position 0 in column {pads}. Offsets between "
            f"tokens survive counting by column ({wrong} of {total} wrong); absolute positions do not.")


def call_inspector(lengths=((4, 2), (3, 3), (2, 4), (5, 3))) -> Explorer:
    """What does this call mean? At rest: one token decoded after five; an index-built offset matrix is wrong in every cell."""
    return Explorer(
        name="call-inspector", title="Call inspector", question="Which facts of a call does no shape tell?",
        controls=[Control("kind", "Call", list(KINDS), labels=list(KINDS.values()), kind="choice"),
                  Control("lengths", "Lengths", list(lengths), labels=[f"{a} and {b}" for a, b in lengths], kind="choice"),
                  Control("sign", "Sign", list(SIGNS), labels=["key minus query", "query minus key"])],
        compute=_compute, start={"kind": "decode", "lengths": lengths[0], "sign": SIGNS[0]}, caption=_caption)
