"""Failures of 0x09: the rows move, something that belongs to them does not, and every shape stays. Also the ten kinds of input.

Convention of the section: order[m] is the old row that comes to m; boxes are x0, y0, x1, y1, y downwards; pair fields are [row, column];
a mask is True at a unit; a unit keeps its name wherever it stands.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.check.records import require_records
from positionlib.errors import require
from positionlib.lab.registry import Failure, register
from positionlib.transport import Field, Move, Rows, transport

WORDS = {1: "42", 2: "Items", 3: "Total", 4: "7", 5: "Thank", 6: "you"}
ORDER = [1, 3, 2, 0]  # the reading order of the page's rows


def page() -> dict[str, Field]:
    """Four words of an invoice, as a detector found them: 42, Items, Total, 7. ``content`` is 100 times the word's name."""
    return {"unit": Field(torch.tensor([1, 2, 3, 4]), "N", pad=0), "content": Field(torch.tensor([[100.0], [200], [300], [400]]).expand(4, 4), "N D", pad=0.0),
            "bbox": Field(torch.tensor([[6, 2, 8, 3], [0, 0, 4, 1], [0, 2, 4, 3], [6, 0, 7, 1]]), "N edges", pad=-1),
            "label": Field(torch.tensor([1, 0, 0, 1]), "N", pad=-100),
            "left_of": Field(torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]) == 1, "N N", pad=False)}


def footer() -> dict[str, Field]:
    """Two more words of the page, below the others: Thank, you."""
    return {"unit": Field(torch.tensor([5, 6]), "N", pad=0), "content": Field(torch.tensor([[500.0], [600]]).expand(2, 4), "N D", pad=0.0),
            "bbox": Field(torch.tensor([[0, 4, 4, 5], [6, 4, 8, 5]]), "N edges", pad=-1), "label": Field(torch.tensor([2, 2]), "N", pad=-100),
            "left_of": Field(torch.tensor([[0, 1], [0, 0]]) == 1, "N N", pad=False)}


def left_behind(rows: Rows, moved: Rows, *names: str, move: Move | None = None) -> dict[str, Field]:
    """``moved``, with the named fields as they were in ``rows``; a ``move`` of their own gives them the right length."""
    stale = transport({name: rows[name] for name in names}, move=move)
    return {**moved, **stale}


def positioned(rows: Rows) -> Float[Tensor, "N D"]:
    """Content plus box, number by number: the hundreds name the word, the units say where it stands."""
    return rows["content"].values + rows["bbox"].values


def right_of(rows: Rows, name: int) -> int:
    """The word on the same line, next to the right of the word ``name``, by their boxes; 0 when there is none."""
    units, boxes = rows["unit"].values.tolist(), rows["bbox"].values.tolist()
    x, y = boxes[units.index(name)][:2]
    after = [(box[0], unit) for unit, box in zip(units, boxes) if unit and box[1] == y and box[0] > x]
    return min(after)[1] if after else 0


def inputs(first: int = 1) -> dict[str, dict[str, Field]]:
    """The ten kinds of input of the article's table, four units each, with all their coordinates. ``first`` names the first unit.

    What is one value for a whole image or stream (a crop, a speaker, a coordinate frame) stands in every row: after a join the rows of
    two images have two crops. The side of the padding is read off ``active``.
    """
    n = torch.arange(first, first + 4)
    s = n / 10.0

    def box(k: int) -> Field:
        return Field(torch.stack((n, n + k, n + 1, n + k + 1), 1), "N edges", pad=-1)

    def row(values: Tensor) -> Field:
        return Field(values, "N", pad=float("nan") if values.is_floating_point() else -1)

    def pair(shift: int) -> Field:
        return Field((n[:, None] + shift) == n[None], "N N", pad=False)

    kinds = {
        "text": {"position": row(n), "after_bos": row(n - 1), "active": Field(n > 0, "N", pad=False)},
        "source": {"source_position": row(n - first)},
        "target": {"target_position": row(n - first)},
        "image": {"row": row(n // 2), "col": row(n % 2), "patch": row(n), "crop": Field(torch.stack((s, s + 1, s + 2), 1), "N left_top_scale", pad=0.0)},
        "document": {"bbox": box(0), "page_id": row(n // 3), "reading_order": row(n * 3 % 5), "line": row(n // 2), "block": row(n // 4),
                     "table_row": row(n % 3), "table_col": row(n % 2)},
        "screen": {"box": box(2), "z_order": row(9 - n), "role": row(n % 3), "label_for": pair(1)},
        "audio": {"timestamp": row(s), "frame": row(n * 2), "duration": row(s + 0.5), "speaker": row(n % 2)},
        "video": {"time": row(s), "row": row(n % 2), "col": row(n // 2), "tubelet": row(n * 4)},
        "event": {"index": row(n), "timestamp": row(s), "parent": row(n - 1), "depends_on": pair(-1), "status": row(n % 3)},
        "action": {"step": row(n), "horizon": row(8 + n), "frame": row(n % 2)},
    }
    return {name: {"unit": Field(n, "N", pad=0), "x": Field(s[:, None].expand(4, 2), "N D", pad=0.0), **fields} for name, fields in kinds.items()}


def moves(a: Rows, b: Rows) -> dict[str, dict[str, Field]]:
    """Four rows ``a`` under the five moves; the last one joins four other rows ``b`` in front."""
    return {"sort": transport(a, move=Move.permute(torch.tensor(ORDER))), "pad": transport(a, move=Move.pad(4, before=1, after=1)),
            "chunk": transport(a, move=Move.chunks(4, 3)[0]), "drop": transport(a, move=Move.keep(torch.tensor([True, False, True, True]))),
            "concat": transport(b, a)}


def _after(rows: Rows):
    """The guard of one page: every word keeps its record."""
    return lambda moved: require_records(rows, moved, "unit")


SORT = Move.permute(torch.tensor(ORDER))


def sorted_page(*stale: str) -> dict[str, Field]:
    """The page in reading order, with the named fields left as the detector gave them."""
    return left_behind(page(), transport(page(), move=SORT), *stale)


register(Failure(
    id="0x09.bbox-left-behind", section="0x09", kind="wrong_answer", title="The words are sorted, their boxes are not",
    broken=lambda: positioned(sorted_page("bbox")), right=lambda: positioned(sorted_page()), guard=_after(page()), guard_name="records",
    broken_subject=lambda: sorted_page("bbox"), right_subject=sorted_page, source="article 0x09 and 0x0C; kampta/DeepLayout#2"))


def padded_page(side: str) -> dict[str, Field]:
    """The page with one pad in front; the boxes are padded on the named side."""
    boxes = Move.pad(4, before=1) if side == "left" else Move.pad(4, after=1)
    return left_behind(page(), transport(page(), move=Move.pad(4, before=1)), "bbox", move=boxes)


register(Failure(
    id="0x09.padded-elsewhere", section="0x09", kind="wrong_answer", title="The words are padded on the left, their boxes on the right",
    broken=lambda: padded_page("right")["bbox"].values, right=lambda: padded_page("left")["bbox"].values, guard=_after(page()), guard_name="records",
    broken_subject=lambda: padded_page("right"), right_subject=lambda: padded_page("left"),
    source="article 0x0C, document geometry detaches from rows; huggingface/transformers#14493"))


def joined_page(*, swapped: bool) -> dict[str, Field]:
    """The footer in front of the page; ``swapped`` joins the boxes in the other order."""
    boxes = transport({"bbox": page()["bbox"]}, {"bbox": footer()["bbox"]}) if swapped else {}
    return {**transport(footer(), page()), **boxes}


register(Failure(
    id="0x09.joined-elsewhere", section="0x09", kind="wrong_answer", title="Two parts are joined in one order, their boxes in the other",
    broken=lambda: joined_page(swapped=True)["bbox"].values, right=lambda: joined_page(swapped=False)["bbox"].values, guard=_after(page()), guard_name="records",
    broken_subject=lambda: joined_page(swapped=True), right_subject=lambda: joined_page(swapped=False),
    source="article 0x0C, multimodal concat changes row order without moving metadata"))


def frames(*, stride: bool) -> dict[str, Field]:
    """Frames 0, 2, 3 of four, 1/8 s apart; ``stride`` numbers the kept ones anew and multiplies by the old stride."""
    audio = {"unit": Field(torch.arange(1, 5), "N", pad=0), "timestamp": Field(torch.arange(4) / 8, "N", pad=float("nan"))}
    kept = transport(audio, move=Move.keep(torch.tensor([True, False, True, True])))
    return {**kept, "timestamp": replace(kept["timestamp"], values=torch.arange(3) / 8)} if stride else kept


register(Failure(
    id="0x09.old-stride", section="0x09", kind="wrong_answer", title="A frame is dropped, and time is counted again with the old stride",
    broken=lambda: frames(stride=True)["timestamp"].values, right=lambda: frames(stride=False)["timestamp"].values,
    guard=_after({"unit": Field(torch.arange(1, 5), "N", pad=0), "timestamp": Field(torch.arange(4) / 8, "N")}), guard_name="records",
    broken_subject=lambda: frames(stride=True), right_subject=lambda: frames(stride=False), source="article 0x0C, audio and video timestamps use the wrong stride"))


def events(*, dropped: bool) -> dict[str, Field]:
    """Four events joined to four later ones; ``dropped`` writes a new edge matrix with nothing in it."""
    joined = transport(inputs(1)["event"], inputs(5)["event"])
    return {**joined, "depends_on": replace(joined["depends_on"], values=torch.zeros(8, 8, dtype=torch.bool))} if dropped else joined


register(Failure(
    id="0x09.edges-dropped", section="0x09", kind="wrong_answer", title="Two traces of events are joined, their dependency edges are not",
    broken=lambda: events(dropped=True)["depends_on"].values, right=lambda: events(dropped=False)["depends_on"].values,
    guard=_after(inputs(1)["event"]), guard_name="records", broken_subject=lambda: events(dropped=True), right_subject=lambda: events(dropped=False),
    source="article 0x0C, tool/event dependency metadata is dropped"))

LEFT = torch.tensor([2, -1, -1, 1])  # the row of the word on the left, in detection order; −1: none


def renumber(rows: Int[Tensor, "N"], move: Move) -> Int[Tensor, "M"]:
    """Row numbers as values after a move that keeps every row: they move with their rows, and are then named anew."""
    moved = transport({"rows": Field(rows, "N", pad=-1)}, move=move)["rows"].values
    return torch.where(moved < 0, moved, move.inverse().source[moved.clamp(min=0)])


def check_neighbours(rows: Int[Tensor, "N"]) -> None:
    """Refuse row numbers of the sorted page that do not name the word on the left."""
    units, named = sorted_page()["unit"].values.tolist(), rows.tolist()
    wanted = {1: 3, 4: 2}  # 42 has Total on its left, 7 has Items
    for unit, at in zip(units, named):
        got = units[at] if at >= 0 else None
        require(got == wanted.get(unit), f"left of {WORDS[unit]}", WORDS.get(got), f"{WORDS.get(wanted.get(unit))}",
                "A value that is a row number must be named anew: source_row → move.inverse().source[source_row].")


register(Failure(
    id="0x09.row-numbers", section="0x09", kind="wrong_answer", title="A column of row numbers is sorted like any other and keeps its old numbers",
    broken=lambda: LEFT[ORDER], right=lambda: renumber(LEFT, SORT), guard=check_neighbours, guard_name="named anew",
    source="article 0x0C, multimodal concat: geometry still points to old row indices"))
