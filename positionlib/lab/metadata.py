"""Failures of 0x0C in which rows move and what belongs to them stays: boxes, patches, frames, parts of a joined input, parent calls.

Convention: rows count from 0. The one relation that every guard here uses is that row i of each field is the same unit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.attention import masked_softmax
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.lab.x00 import LINES, ROW_BY_ROW, read_by_line
from positionlib.mechanisms.grid import Grid, LearnedGrid
from positionlib.mechanisms.time2vec import Time2Vec, TimeAxis, Timestamps
from positionlib.transport import Field, Move, transport

SECTION = "0x0C"
BIT = math.log(2)  # one bit of score doubles a weight


# --- guards ---------------------------------------------------------------------------------------------------------

def check_same_units(units: dict[str, Int[Tensor, "N"]]) -> None:
    """Refuse fields whose rows are not the same units in the same order; each brings the unit ids of its rows, the first one decides."""
    (first, wanted), *others = units.items()
    for name, ids in others:
        for row in (ids != wanted).nonzero().flatten().tolist()[:1]:
            require(False, f"unit of {name} row {row}", int(ids[row]), f"{int(wanted[row])}, the unit of {first} row {row}",
                    "Move all fields of a row by one transport(rows, move=...).")


class Events(NamedTuple):
    """A history in storage order: the kind of each row ("call", "result", ...), and the row of its call, −1 where it has none."""

    kinds: tuple[str, ...]
    parents: tuple[int, ...]


def check_parents(events: Events) -> None:
    """Refuse a history in which a result does not name an earlier call as its parent."""
    for row, (kind, parent) in enumerate(zip(events.kinds, events.parents)):
        if kind == "result":
            named = events.kinds[parent] if 0 <= parent < row else "nothing"
            require(named == "call", f"parent of result row {row}", f"row {parent}, {named}", "an earlier row that is a call",
                    "Carry the parent's id through every move, and look its row up afterwards.")


def check_duration(clip: tuple[Timestamps, float]) -> None:
    """Refuse frame times that do not cover the clip: the last frame and one stride must reach its end, in the times' own unit."""
    times, duration = clip
    first, second, *_, last = times.values.tolist()
    require(math.isclose(last + second - first, duration), "end of the last frame", last + second - first, f"{duration}, the length of the clip",
            "Take the stride from the frames that are left: their hop times every drop and resampling since.")


# --- cases: documents -----------------------------------------------------------------------------------------------

def sorted_page(with_lines: bool) -> dict[str, Int[Tensor, "6"]]:
    """Six pieces of text in reading order; their lines came along or stayed. ``line_of`` holds the piece whose line stands in each row."""
    pieces = Field(torch.arange(6), "N")
    move = Move.permute(torch.tensor(ROW_BY_ROW))
    moved = transport({"piece": pieces, "line_of": pieces} if with_lines else {"piece": pieces}, move=move)
    return {"piece": moved["piece"].values, "line_of": moved.get("line_of", pieces).values}


def _read_sorted(with_lines: bool) -> Float[Tensor, "3"]:
    """Dollars that Total, Tax and Subtotal read from amounts on what is taken for their own line."""
    page = sorted_page(with_lines)
    line = {int(piece): LINES[int(owner)] for piece, owner in zip(page["piece"], page["line_of"])}
    return read_by_line(tuple(line[piece] for piece in range(6)))


register(Failure(
    id="0x0C.boxes-left-behind", section=SECTION, kind="wrong_answer", title="Words are sorted into reading order, their places are not",
    broken=lambda: _read_sorted(False), right=lambda: _read_sorted(True), guard=check_same_units, guard_name="row-transport",
    source="article 0x0C; kampta/DeepLayout#2 (boxes sorted, categories not)",
    broken_subject=lambda: sorted_page(False), right_subject=lambda: sorted_page(True)))

# --- cases: images --------------------------------------------------------------------------------------------------

TRAINED, FLATTENED = Grid({"row": 2, "col": 3}, "row_major"), Grid({"row": 2, "col": 3}, "column_major")


def cells(grid: Grid) -> Int[Tensor, "6"]:
    """Cells of the tokens 0..5 of a grid, numbered row by row."""
    at = grid.coordinates(torch.arange(6))
    return 3 * at["row"] + at["col"]


def _patches(named: Grid) -> Float[Tensor, "6"]:
    """Patch brightness plus the learned number of the cell that ``named`` gives it, cell by cell; the patches come column by column."""
    module = LearnedGrid(TRAINED, 1).double()
    module.load_state_dict({"weight": torch.arange(6, dtype=torch.float64)[:, None]})
    brightness = 10 * cells(FLATTENED)[:, None].double()
    states = module(AttentionGeometry.encoder(6), named).add_to(brightness[None]).detach()[0, :, 0]
    return states[cells(FLATTENED).argsort()]


register(Failure(
    id="0x0C.patch-order", section=SECTION, kind="wrong_answer", title="Patches are flattened column by column for a table that reads rows",
    broken=lambda: _patches(TRAINED), right=lambda: _patches(FLATTENED), guard=check_same_units, guard_name="row-transport",
    source="article 0x0C; huggingface/diffusers#11309",
    broken_subject=lambda: {"patch": cells(FLATTENED), "coordinate": cells(TRAINED)},
    right_subject=lambda: {"patch": cells(FLATTENED), "coordinate": cells(FLATTENED)}))

# --- cases: sound ---------------------------------------------------------------------------------------------------

CLIP_MS = 80.0  # eight frames of 10 ms, of which every second one is kept


def frame_times(stride: float) -> Timestamps:
    """Times of the four frames that were kept, when one frame is taken to last ``stride`` milliseconds."""
    return Timestamps(values=stride * torch.arange(4, dtype=torch.float64), unit="ms", clock="clip", zone=None)


def _frames(stride: float) -> Float[Tensor, "4 3"]:
    module = Time2Vec(3, TimeAxis(origin=0.0, unit_seconds=0.01, clock="clip", zone=None), function="sin", linear="first", missing="error",
                      output_dtype=torch.float64)
    with torch.no_grad():
        module.omega.copy_(torch.tensor([1.0, 0.5, 0.25]))
        module.phi.zero_()
    return module(frame_times(stride)).rows.detach()


register(Failure(
    id="0x0C.timestamp-stride", section=SECTION, kind="wrong_answer", title="Every second frame is dropped, the times keep the old stride",
    broken=lambda: _frames(10.0), right=lambda: _frames(20.0), guard=check_duration, guard_name="time-stride",
    source="article 0x0C; spotify/basic-pitch#199 (frame number times hop, after frames were removed)",
    broken_subject=lambda: (frame_times(10.0), CLIP_MS), right_subject=lambda: (frame_times(20.0), CLIP_MS)))

# --- cases: joined inputs -------------------------------------------------------------------------------------------

VALUES = torch.tensor([7.0, 9.0, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)  # of units 0..5: two words, then four patches of a 2 x 2 image


def joined(with_metadata: bool) -> dict[str, Int[Tensor, "6"]]:
    """The image goes in front of the text. ``place_of`` holds the unit whose flag and cell stand in each row of the result."""
    text, image = Field(torch.arange(2), "N"), Field(torch.arange(2, 6), "N")
    moved = transport(*({"unit": part, "place_of": part} for part in ((image, text) if with_metadata else (text, image))))
    return {"unit": transport({"unit": image}, {"unit": text})["unit"].values, "place_of": moved["place_of"].values}


def _pointed(with_metadata: bool) -> Float[Tensor, "4"]:
    """What a question about each of the four cells reads: patches alone, half the weight for each step away from the cell."""
    rows = joined(with_metadata)
    visible, cell = rows["place_of"] >= 2, (rows["place_of"] - 2).clamp_min(0)
    at = torch.stack((cell // 2, cell % 2), -1)
    asked = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    scores = -BIT * (asked[:, None] - at[None]).abs().sum(-1).double()
    return masked_softmax(scores, visible.expand(4, 6)) @ VALUES[rows["unit"]]


register(Failure(
    id="0x0C.concat-metadata", section=SECTION, kind="wrong_answer", title="An image is put in front of the text, its cells still name the old rows",
    broken=lambda: _pointed(False), right=lambda: _pointed(True), guard=check_same_units, guard_name="row-transport",
    source="article 0x0C; vllm-project/vllm#48833 (media taken for another after recomputation)",
    broken_subject=lambda: joined(False), right_subject=lambda: joined(True)))

# --- cases: tool calls ----------------------------------------------------------------------------------------------

KINDS = ("user", "call", "call", "result", "result")
PARENTS = (-1, -1, -1, 2, 1)  # the second call's result came first
AMOUNTS = torch.tensor([0.0, 12.0, 30.0, 0.0, 0.0], dtype=torch.float64)  # what each call asked for


def _amounts(parents: tuple[int, ...], front: int = 0) -> Float[Tensor, "2"]:
    """The amount that each result connects with, when its parent weighs 16 times as much as any other earlier row.

    ``front`` blank rows stand before the history.
    """
    n = len(KINDS) + front
    amounts = torch.cat((torch.zeros(front, dtype=torch.float64), AMOUNTS))
    parent = torch.tensor((-1,) * front + parents)
    scores = 4 * BIT * (parent[:, None] == torch.arange(n)).double()
    return (masked_softmax(scores, torch.ones(n, n, dtype=torch.bool).tril()) @ amounts)[-2:]


register(Failure(
    id="0x0C.parent-dropped", section=SECTION, kind="wrong_answer", title="A history keeps its events and loses which call each result answers",
    broken=lambda: _amounts((-1,) * 5), right=lambda: _amounts(PARENTS), guard=check_parents, guard_name="event-parents",
    source="article 0x0C; datarobot-oss/datarobot-genai#335 (parents that name no message)",
    broken_subject=lambda: Events(KINDS, (-1,) * 5), right_subject=lambda: Events(KINDS, PARENTS)))


def _shifted(parents: tuple[int, ...]) -> Events:
    return Events(("system", *KINDS), (-1, *parents))


_MOVED_PARENTS = tuple(p + 1 if p >= 0 else p for p in PARENTS)
register(Failure(
    id="0x0C.parent-by-slot", section=SECTION, kind="wrong_answer", title="A system message goes in front, parents are still old row numbers",
    broken=lambda: _amounts(PARENTS, front=1), right=lambda: _amounts(_MOVED_PARENTS, front=1), guard=check_parents, guard_name="event-parents",
    source="article 0x0C, tool and event dependency metadata",
    broken_subject=lambda: _shifted(PARENTS), right_subject=lambda: _shifted(_MOVED_PARENTS)))
