"""Failures of 0x00: a layout that is dropped or defaulted, a bias taken for a mask, and a formula taken for training."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from positionlib.attention import attend, masked_softmax
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Claim, Failure, register
from positionlib.lab.x01 import SWAP, require_coordinates
from positionlib.mechanisms.sinusoidal import Sinusoidal
from positionlib.permutation import hand_case, self_attention
from positionlib.rules import Clip
from positionlib.terms import ClassBias

# The article's slip: six pieces of text, three printed lines; a page reader that goes down the columns returns labels first.
PIECES = ("Total", "Tax", "Subtotal", "$41.20", "$3.80", "$37.40")
LINES = (0, 1, 2, 0, 1, 2)
DOLLARS = (0.0, 0.0, 0.0, 41.20, 3.80, 37.40)
ROW_BY_ROW = (0, 3, 1, 4, 2, 5)  # the same pieces in reading order, line after line
BITS = math.log(2)  # one bit of score doubles a weight


class Slip(NamedTuple):
    """The hand case of chapter 0x00: a label and an amount on each of two lines; scores are whole numbers of bits.

    x [4, 4] holds the features label, amount, dollars, line, of which the last is empty; ``place`` [4, 4] fills it with +1 or −1. The
    head's four channels are two that a rotation may turn, one that wants an amount and one that wants a label. ``lines`` is [4].
    """

    x: Float[Tensor, "4 4"]
    place: Float[Tensor, "4 4"]
    w_q: Float[Tensor, "4 4"]
    w_k: Float[Tensor, "4 4"]
    w_v: Float[Tensor, "4 1"]
    lines: Int[Tensor, "4"]


def slip() -> Slip:
    """Total $41.20 on line 0, Tax $3.80 on line 1, in reading order, float64."""

    def exact(rows: list[list[float]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.float64)

    return Slip(x=exact([[1, 0, 0, 0], [0, 1, 41.20, 0], [1, 0, 0, 0], [0, 1, 3.80, 0]]),
                place=exact([[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, -1], [0, 0, 0, -1]]),
                w_q=BITS * exact([[2, 0, 4, 0], [2, 0, 0, 4], [0, 0, 0, 0], [0, 2, 0, 0]]),
                w_k=exact([[1, 0, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]]),
                w_v=exact([[0], [0], [1], [0]]), lines=torch.tensor([0, 0, 1, 1]))


def _read(order: tuple[int, ...], positions: Int[Tensor, "6"], table: list[float]) -> Float[Tensor, "3"]:
    """The dollars that Total, Tax and Subtotal read when the pieces come in ``order``: 2 bits for an amount, plus a bias by offset."""
    amount = torch.tensor([float(piece >= 3) for piece in order], dtype=torch.float64)
    q = torch.full((1, 1, 6, 1), 2 * BITS, dtype=torch.float64)
    dollars = torch.tensor([DOLLARS[piece] for piece in order], dtype=torch.float64)
    bias = ClassBias(table=BITS * torch.tensor(table, dtype=torch.float64)[:, None], rule=Clip(len(table) // 2), sign="key_minus_query")
    read = attend(q, amount[None, None, :, None], dollars[None, None, :, None], bias, AttentionGeometry(positions, positions), backend="eager")
    return read[0, 0, [order.index(label) for label in range(3)], 0]


def read_by_line(lines: tuple[int, ...]) -> Float[Tensor, "3"]:
    """What the three labels read when pieces of one line attract each other by 2 bits."""
    return _read(tuple(range(6)), torch.tensor(lines), [0.0, 2.0, 0.0])


def read_next(order: tuple[int, ...]) -> Float[Tensor, "3"]:
    """What the three labels read when each piece attracts the one that follows it in ``order``, by 2 bits."""
    return _read(order, torch.arange(6), [0.0, 0.0, 0.0, 2.0, 0.0])


def boxes(lines: tuple[int, ...]) -> Int[Tensor, "6 4"]:
    """Boxes x0, y0, x1, y1 of the pieces, in thousandths of the page: labels in the left half, amounts in the right."""
    left = torch.tensor([100 if dollars == 0 else 600 for dollars in DOLLARS])
    top = 100 + 50 * torch.tensor(lines)
    return torch.stack((left, top, left + 200, top + 30), -1)


def require_places(found: Int[Tensor, "N 4"]) -> None:
    """Refuse boxes that put different pieces of text in one place: a page reader returned none, and something filled them in."""
    places = len({tuple(box) for box in found.tolist()})
    require(places == len(found), "boxes", f"{places} place{'s' * (places != 1)} for {len(found)} pieces", f"{len(found)} places",
            "Pass the boxes that the page reader returned. Zeros are a place too, and they are the same for every piece.")


def require_line_by_line(lines: tuple[int, ...]) -> None:
    """Refuse a reading order that returns to an earlier line."""
    back = next((i for i in range(1, len(lines)) if lines[i] < lines[i - 1]), None)
    require(back is None, "lines", list(lines), "line numbers that never fall along the reading order",
            f"Piece {back} lies on line {lines[back or 0]}: sort by line, then by column, or give the line itself as the coordinate.")


def require_hidden(weights: Float[Tensor, "Q K"], visible: Bool[Tensor, "Q K"]) -> None:
    """Refuse weights that leave anything to a key which may not be read."""
    left = float(weights[~visible].max()) if bool((~visible).any()) else 0.0
    require(left == 0.0, "weights", f"{left:.1e} on a forbidden key", "exactly 0", "Hide keys with visibility; a bias only makes them less likely.")


class Reader(NamedTuple):
    """A trained layer and the number of positions that its training used."""

    layer: nn.Module
    trained: int


class _PreviousToken(nn.Module):
    """One head that must return the token before each row, from sinusoidal rows added to the tokens' own."""

    def __init__(self, tokens: int, width: int, maker: torch.Generator) -> None:
        super().__init__()

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=maker) / shape[-1] ** 0.5)

        self.tokens, self.q, self.k, self.out = weight(tokens, width), weight(width, width), weight(width, width), weight(width, tokens)
        self.position = Sinusoidal(width)

    def forward(self, ids: Int[Tensor, "B N"], start: int) -> Float[Tensor, "B N tokens"]:
        geometry = AttentionGeometry.causal_self(ids.shape[1], start=start)
        content = self.tokens[ids]
        x = self.position.add(content, geometry)
        read = attend((x @ self.q)[:, None], (x @ self.k)[:, None], content[:, None], None, geometry, backend="eager")
        return read[:, 0] @ self.out


@cache
def previous_token_reader(trained: int = 64, *, tokens: int = 8, width: int = 64, steps: int = 150, batch: int = 8) -> Reader:
    """Train the layer on random tokens at positions 0..trained−1. Same numbers each time: nothing but these arguments decides."""
    maker = torch.Generator().manual_seed(0)
    layer = _PreviousToken(tokens, width, maker)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(steps):
        ids = torch.randint(tokens, (batch, trained), generator=maker)
        loss = nn.functional.cross_entropy(layer(ids, 0)[:, 1:].flatten(0, 1), ids[:, :-1].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Reader(layer.requires_grad_(False), trained)


def accuracy(reader: Reader, start: int, *, sequences: int = 32) -> float:
    """The share of rows whose previous token is returned, on fresh sequences of the trained length that begin at position ``start``."""
    ids = torch.randint(len(reader.layer.tokens), (sequences, reader.trained), generator=torch.Generator().manual_seed(1))
    return float((reader.layer(ids, start)[:, 1:].argmax(-1) == ids[:, :-1]).double().mean())


def require_trained(positions: tuple[int, int], trained: int = 64) -> None:
    """Refuse to vouch for positions that no training step has used; ``positions`` is the first and the last."""
    require(0 <= positions[0] <= positions[1] < trained, "positions", positions, f"positions within 0..{trained - 1}, which training used",
            "Evaluate the model there and report the result; that the formula is defined says nothing about it.")


def _tells_who_bites(positions: bool) -> Claim:
    """Whether the mean output row of "dog bites man ." differs from the one of "man bites dog ."."""
    x, *weights = hand_case()
    rows = Sinusoidal(4, output_dtype=torch.float64)
    first, second = (self_attention(rows.add(e[None], AttentionGeometry.encoder(4))[0] if positions else e, *weights)[0].mean(0) for e in (x, x[SWAP]))
    differs = bool((first - second).abs().max() > 1e-9)
    return Claim(f"All four words are there, so the layer can tell who bites, {'with' if positions else 'without'} positions.", differs,
                 None if differs else {"sentences": ["dog bites man .", "man bites dog ."], "difference": 0.0})


def _works_at(first: int) -> Claim:
    reader = previous_token_reader()
    share = accuracy(reader, first)
    statement = f"The rows of positions {first}..{first + reader.trained - 1} are defined, so the trained layer reads them."
    return Claim(statement, share > 0.9, None if share > 0.9 else {"right tokens": "fewer than 4 in 5" if share < 0.8 else "fewer than 9 in 10"})


# A row that may read one of two keys, and one that may read neither.
_VISIBLE = torch.tensor([[True, False], [False, False]])


def _biased(bias: float | None) -> Float[Tensor, "2 2"]:
    scores = torch.zeros(2, 2)
    return masked_softmax(scores, _VISIBLE) if bias is None else torch.softmax(scores.masked_fill(~_VISIBLE, bias), -1)


register(Failure(
    id="0x00.layout-defaulted", section="0x00", kind="wrong_answer", title="No boxes were passed, and zeros took their place",
    broken=lambda: read_by_line((0,) * 6), right=lambda: read_by_line(LINES), guard=require_places, guard_name="a place for each piece",
    source="huggingface/transformers at dccd2df, LayoutLMModel.forward; huggingface/transformers#12714; article 0x00, Total/Tax/Subtotal",
    broken_subject=lambda: torch.zeros(6, 4, dtype=torch.long), right_subject=lambda: boxes(LINES)))

register(Failure(
    id="0x00.column-by-column", section="0x00", kind="wrong_answer", title="The page is read down its columns, and the next piece is another label",
    broken=lambda: read_next(tuple(range(6))), right=lambda: read_next(ROW_BY_ROW), guard=require_line_by_line, guard_name="reading order",
    source="pdfminer/pdfminer.six#256; article 0x00, Total/Tax/Subtotal",
    broken_subject=lambda: LINES, right_subject=lambda: tuple(LINES[piece] for piece in ROW_BY_ROW)))

register(Failure(
    id="0x00.same-bag", section="0x00", kind="false_claim", title="Both sentences hold the same rows, and the order is gone",
    broken=lambda: _tells_who_bites(False), right=lambda: _tells_who_bites(True), guard=require_coordinates, guard_name="shuffle test of the embedding",
    source="article 0x00, dog bites man",
    broken_subject=lambda: lambda rows: rows,
    right_subject=lambda: lambda rows: Sinusoidal(4, output_dtype=torch.float64).add(rows[None], AttentionGeometry.encoder(4))[0]))

register(Failure(
    id="0x00.bias-for-mask", section="0x00", kind="wrong_answer", title="A bias of −100 stands in for a mask",
    broken=lambda: _biased(-100.0), right=lambda: _biased(None), guard=lambda weights: require_hidden(weights, _VISIBLE),
    guard_name="forbidden keys weigh exactly 0", source="article 0x00, first firewall; hyunwoongko/transformer#10"))

register(Failure(
    id="0x00.defined-is-learned", section="0x00", kind="false_claim", title="A row is defined at position 8,192, so a model trained to 64 is said to read it",
    broken=lambda: _works_at(8192), right=lambda: _works_at(0), guard=require_trained, guard_name="positions within training",
    source="article 0x00, second firewall", broken_subject=lambda: (8192, 8255), right_subject=lambda: (0, 63)))
