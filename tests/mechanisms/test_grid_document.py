"""Boxes against exact fractions and loops: normalisation by the page, refusals that name the box, shared tables."""

import math
from fractions import Fraction

import pytest
import torch

import positionlib as pl
from tests.refusals import refused

BOXES = torch.tensor([[[0, 0, 19, 19], [7, 9, 13, 11], [5, 5, 5, 5]], [[1, 9, 8, 15], [0, 0, 0, 0], [9, 6, 18, 14]]])


@pytest.mark.parametrize("page", [(2000, 1000), (1654, 2339), (7, 3), (1000, 1000), (2**31 + 1, 2999)])
@pytest.mark.parametrize("upper", [1000, 999, 1])
def test_integer_boxes_are_divided_exactly(page, upper):
    generator = torch.Generator().manual_seed(0)
    corners = torch.stack([torch.randint(0, side + 1, (50, 2), generator=generator).sort(-1).values for side in page], -1)  # [50, corner, axis]
    boxes = corners.flatten(1)
    want = [[math.floor(Fraction(int(c) * upper, page[n % 2])) for n, c in enumerate(box)] for box in boxes]
    assert pl.normalise_boxes(page, boxes, upper).tolist() == want
    assert pl.normalise_boxes(page, boxes.reshape(5, 10, 4).int(), upper).tolist() == [want[i : i + 10] for i in range(0, 50, 10)]


def test_boxes_in_points_are_rounded_down():
    assert pl.normalise_boxes((612.0, 792.0), torch.tensor([[61.25, 79.2, 306.0, 792.0]], dtype=torch.float64), 1000).tolist() == [[100, 100, 500, 1000]]


@pytest.mark.parametrize("box, field, says", [
    ([100, 50, 2100, 1000], "box 1 x1", "0..2000"), ([100, 50, 150, 1001], "box 1 y1", "0..1000"), ([-1, 0, 5, 5], "box 1 x0", "0..2000"),
    ([20, 0, 10, 5], "box 1 x1", "at least x0 = 20"), ([0, 9, 10, 5], "box 1 y1", "at least y0 = 9"), ([0.0, math.nan, 1.0, 1.0], "box 1 y0", "0..1000")])
def test_a_bad_box_is_named_with_its_coordinate(box, field, says):
    error = refused(lambda: pl.normalise_boxes((2000, 1000), torch.tensor([[0, 0, 1, 1], box]), 1000), field)
    assert says in error.expected
    assert refused(lambda: pl.normalise_boxes((2000, 1000), torch.tensor([[[0, 0, 1, 1], box]]), 1000), field.replace("1", "0, 1", 1)).value == error.value or \
        math.isnan(error.value)


def test_rows_are_sums_over_shared_tables():
    m = pl.BoxEmbedding(20, 4).double()
    rows = m(BOXES).rows
    for b in range(2):
        for n, (x0, y0, x1, y1) in enumerate(BOXES[b].tolist()):
            assert torch.allclose(rows[b, n], m.x[x0] + m.x[x1] + m.y[y0] + m.y[y1] + m.h[y1 - y0] + m.w[x1 - x0], atol=1e-12)
    assert torch.equal(m(BOXES[1]).rows, rows[1])
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    assert torch.equal(m(BOXES).add_to(x), x + rows)


def test_an_edge_collects_the_gradient_of_both_its_sides():
    m = pl.BoxEmbedding(20, 4).double()
    m(BOXES).rows.sum().backward()
    for table, left, right in ((m.x, BOXES[..., 0], BOXES[..., 2]), (m.y, BOXES[..., 1], BOXES[..., 3])):
        assert table.grad[:, 0].tolist() == torch.bincount(torch.cat((left, right)).flatten(), minlength=20).tolist()
    for table, extent in ((m.h, BOXES[..., 3] - BOXES[..., 1]), (m.w, BOXES[..., 2] - BOXES[..., 0])):
        assert table.grad[:, 0].tolist() == torch.bincount(extent.flatten(), minlength=20).tolist()


def test_six_rows_are_added_wide_and_rounded_once():
    m = pl.BoxEmbedding(2, 1).bfloat16()
    for table, value in ((m.x, 256.0), (m.y, 1.0), (m.h, 1.0), (m.w, 1.0)):
        table.data.fill_(value)
    assert m(torch.zeros(1, 4).long()).rows.tolist() == [[516.0]]  # two x, two y, h, w: 512 + 4; bit by bit it stays 512


def test_a_compiled_graph_gives_the_same_rows():
    m = pl.BoxEmbedding(20, 4)
    assert torch.equal(torch.compile(lambda boxes: m(boxes).rows, backend="eager", fullgraph=True)(BOXES), m(BOXES).rows)


@pytest.mark.parametrize("build, field", [
    (lambda: pl.BoxEmbedding(0, 4), "size"), (lambda: pl.BoxEmbedding(20, 0), "d_model"), (lambda: pl.BoxEmbedding(19, 4)(BOXES), "box 0, 0 x1"),
    (lambda: pl.BoxEmbedding(20, 4)(BOXES.float()), "boxes"), (lambda: pl.BoxEmbedding(20, 4)(BOXES[0, 0]), "boxes"),
    (lambda: pl.BoxEmbedding(20, 4)(BOXES[..., [2, 1, 0, 3]]), "box 0, 0 x1"), (lambda: pl.BoxEmbedding(20, 4)(BOXES - 2**31), "box 0, 0 x0"),
    (lambda: pl.normalise_boxes((2000, 0), BOXES, 1000), "page"), (lambda: pl.normalise_boxes((2000,), BOXES, 1000), "page"),
    (lambda: pl.normalise_boxes(("2000", 1000), BOXES, 1000), "page"), (lambda: pl.normalise_boxes((2000, 1000), BOXES.tolist(), 1000), "boxes"),
    (lambda: pl.normalise_boxes((2000, 1000), BOXES[..., :3], 1000), "boxes"), (lambda: pl.normalise_boxes((2000, 1000), BOXES > 0, 1000), "boxes"),
    (lambda: pl.normalise_boxes((2000, 1000), BOXES, 0), "range")])
def test_bad_tables_boxes_and_pages_are_refused(build, field):
    refused(build, field)


def test_rows_side_by_side_stand_in_the_order_of_the_corners():
    module = pl.BoxEmbedding(20, 3, d_side=2)
    rows = module(BOXES).rows
    for place in ((0, 0), (0, 1), (1, 0), (1, 2)):
        x0, y0, x1, y1 = BOXES[place].tolist()
        want = torch.cat((module.x[x0], module.y[y0], module.x[x1], module.y[y1], module.h[y1 - y0], module.w[x1 - x0]))
        assert torch.equal(rows[place], want) and len(want) == 16
    refused(lambda: pl.BoxEmbedding(20, 3, d_side=0), "d_side")
