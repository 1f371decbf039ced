"""What 0x00 reads from: the slip in exact fractions, the trained reader, and the milestones."""

from fractions import Fraction
from pathlib import Path

import pytest
import torch

from positionlib.data.milestones import ENTRANCES, MILESTONES
from positionlib.lab.x00 import LINES, ROW_BY_ROW, accuracy, previous_token_reader, read_by_line, read_next, slip

CENTS = (0, 0, 0, 4120, 380, 3740)  # of Total, Tax, Subtotal and the three amounts


def shares(bits):
    """Dollars that one row reads, from its scores in bits."""
    powers = [Fraction(2) ** b for b in bits]
    return float(sum(p * c for p, c in zip(powers, CENTS)) / sum(powers) / 100)


def test_the_slip_in_fractions():
    x, place, w_q, w_k, w_v, lines = slip()
    for rows, counts in ((x, (2, 8, 2, 8)), (x + place, (4, 16, 1, 4))):
        weights = torch.softmax(rows @ w_q @ (rows @ w_k).T / 2, -1)
        assert weights[0].tolist() == pytest.approx([float(Fraction(c, sum(counts))) for c in counts], abs=1e-15)
        assert (weights @ x @ w_v)[0, 0].item() == pytest.approx((counts[1] * 41.20 + counts[3] * 3.80) / sum(counts))
    assert lines.tolist() == [0, 0, 1, 1] and (place[:, 3] == 1 - 2 * lines).all()


@pytest.mark.parametrize("lines", [LINES, (0,) * 6, (2, 0, 1, 2, 0, 1)])
def test_labels_read_their_line(lines):
    wanted = [shares([2 * (piece >= 3) + 2 * (lines[piece] == lines[label]) for piece in range(6)]) for label in range(3)]
    assert read_by_line(lines).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("order", [tuple(range(6)), ROW_BY_ROW, (5, 4, 3, 2, 1, 0)])
def test_labels_read_the_next_piece(order):
    def follows(label):
        place = order.index(label) + 1
        return order[place] if place < 6 else None

    wanted = [shares([2 * (piece >= 3) + 2 * (piece == follows(label)) for piece in range(6)]) for label in range(3)]
    assert read_next(order).tolist() == pytest.approx(wanted)


def test_the_reader_knows_the_positions_of_its_training_and_is_always_the_same():
    reader = previous_token_reader()
    again = previous_token_reader.__wrapped__()
    assert all(torch.equal(a, b) for a, b in zip(reader.layer.parameters(), again.layer.parameters()))
    assert accuracy(reader, 0) > 0.95 and accuracy(reader, 64) < 0.3 and accuracy(reader, 8192) < 0.8


def test_milestones_stand_in_order_and_their_sources_are_in_the_bibliography():
    keys = (Path(__file__).parents[2] / "book/pages/references.bib").read_text("utf-8")
    for m in MILESTONES:
        entry = keys.partition("{" + m.source[0] + ",")[2].partition("\n}")[0]
        assert m.entrance in ENTRANCES and (f"arXiv:{m.arxiv}" in entry), m.name
        assert 2017 <= m.year <= m.when < m.year + 1
    assert [m.when for m in MILESTONES] == sorted(m.when for m in MILESTONES)
