"""Resizing against filters written out by hand: pixel centres, both kernels, antialias, integer sizes, other traversals."""

import math

import pytest
import torch

import positionlib as pl
from tests.refusals import refused


def grid(rows: int, cols: int, traversal: str = "row_major", leading: tuple[str, ...] = ("cls",)) -> pl.Grid:
    return pl.Grid({"row": rows, "col": cols}, traversal, leading)


def kernel(mode: str, x: float, antialias: bool) -> float:
    """Triangle, or the cubic with a = −0.75; the antialiased cubic has a = −0.5."""
    x, a = abs(x), -0.5 if antialias else -0.75
    if mode == "bilinear":
        return max(0.0, 1 - x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def matrix(size: int, new: int, mode: str, align_corners: bool, antialias: bool) -> torch.Tensor:
    """[new, size]: what each new line reads of the old ones. Lines past the edge repeat it, except under antialias."""
    weights = torch.zeros(new, size, dtype=torch.float64)
    step = (size - 1) / (new - 1) if align_corners and new > 1 else 0.0 if align_corners else size / new
    for i in range(new):
        centre, wide = (i * step if align_corners else (i + 0.5) * step - 0.5), max(step, 1.0) if antialias else 1.0
        if mode == "bilinear" and not antialias:
            centre = max(centre, 0.0)
        for j in range(-3 * size, 4 * size):
            if antialias and not 0 <= j < size:
                continue
            weights[i, min(max(j, 0), size - 1)] += kernel(mode, (j - centre) / wide, antialias)
    return weights / weights.sum(1, keepdim=True)


RULES = [("bilinear", False, False), ("bilinear", True, False), ("bilinear", False, True), ("bicubic", False, False), ("bicubic", True, False),
         ("bicubic", False, True)]


@pytest.mark.parametrize("mode, align_corners, antialias", RULES)
@pytest.mark.parametrize("source, target", [((3, 3), (4, 5)), ((4, 5), (2, 7)), ((1, 9), (3, 3)), ((7, 6), (2, 3)), ((3, 4), (3, 4))])
def test_cells_are_weighted_lines_and_leading_rows_are_copied(mode, align_corners, antialias, source, target):
    table = torch.randn(2, 1 + math.prod(source), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rule = pl.GridResize(mode, align_corners, antialias)
    rows, cols = (matrix(n, m, mode, align_corners, antialias) for n, m in zip(source, target))
    want = torch.einsum("ir,jc,brcd->bijd", rows, cols, table[:, 1:].unflatten(1, source)).flatten(1, 2)
    found = rule(table, grid(*source), grid(*target))
    assert torch.equal(found[:, 0], table[:, 0]) and torch.allclose(found[:, 1:], want, atol=1e-12)


@pytest.mark.parametrize("mode, picks", [("nearest", [0, 0, 1, 1, 2]), ("nearest-exact", [0, 0, 1, 2, 2])])
def test_the_two_nearest_rules_pick_other_lines(mode, picks):
    table = torch.arange(3.0)[:, None]
    assert pl.GridResize(mode, False, False)(table, grid(3, 1, leading=()), grid(5, 1, leading=())).flatten().tolist() == picks


def test_area_is_the_mean_of_what_a_cell_covers():
    table = torch.arange(16.0)[:, None]
    assert pl.GridResize("area", False, False)(table, grid(4, 4, leading=()), grid(2, 2, leading=())).flatten().tolist() == [2.5, 4.5, 10.5, 12.5]


def test_each_grid_is_read_in_its_own_traversal():
    table, rule = torch.randn(7, 2, dtype=torch.float64), pl.GridResize("bicubic", False, False)
    by_columns = table[[0] + [1 + 3 * r + c for c in range(3) for r in range(2)]]
    plain = rule(table, grid(2, 3), grid(4, 5))
    assert torch.equal(rule(by_columns, grid(2, 3, "column_major"), grid(4, 5)), plain)
    assert torch.equal(rule(table, grid(2, 3), grid(4, 5, "column_major")), plain[[0] + [1 + 5 * r + c for c in range(5) for r in range(4)]])


@pytest.mark.parametrize("lines", [61, 111, 126, 127, 117])
def test_no_line_is_lost_where_a_float_factor_loses_one(lines):
    resized = pl.GridResize("bicubic", False, False)(torch.randn(27 * 27, 1), grid(27, 27, leading=()), grid(lines, 61, leading=()))
    assert resized.shape == (lines * 61, 1)


def test_a_bfloat16_table_is_interpolated_wide_and_rounded_once():
    table, rule = torch.randn(10, 4).bfloat16(), pl.GridResize("bicubic", False, True)
    found = rule(table, grid(3, 3), grid(2, 5))
    assert found.dtype == torch.bfloat16 and torch.equal(found, rule(table.float(), grid(3, 3), grid(2, 5)).bfloat16())


def test_a_module_with_a_rule_reads_other_grids_and_trains_through_it():
    rule, (source, target) = pl.GridResize("bicubic", False, False), (grid(3, 3), grid(2, 4, "column_major"))
    module = pl.LearnedGrid(source, 3, resize=rule).double()
    kept = torch.tensor([[0, 3, 8], [5, 0, 2]])
    assert torch.equal(module(pl.AttentionGeometry(kept, kept), target).rows, rule(module.weight, source, target)[kept])
    assert torch.autograd.gradcheck(lambda w: rule(w, source, target), module.weight.detach().clone().requires_grad_())
    compiled = torch.compile(lambda geometry: module(geometry, target).rows, backend="eager", fullgraph=True)
    assert torch.equal(compiled(pl.AttentionGeometry.encoder(9)), module(pl.AttentionGeometry.encoder(9), target).rows)


@pytest.mark.parametrize("build, field", [
    (lambda: pl.GridResize("lanczos", False, False), "mode"), (lambda: pl.GridResize("bicubic", None, False), "align_corners"),
    (lambda: pl.GridResize("nearest", True, False), "align_corners"), (lambda: pl.GridResize("area", False, True), "antialias"),
    (lambda: pl.GridResize("bicubic", False, False)(torch.zeros(9, 1), grid(3, 3), grid(4, 4)), "table"),
    (lambda: pl.GridResize("bicubic", False, False)(torch.zeros(10, 1), grid(3, 3), grid(4, 4, leading=())), "target.leading"),
    (lambda: pl.GridResize("bicubic", False, False)(torch.zeros(10, 1), grid(3, 3), pl.Grid({"y": 3, "x": 3}, "row_major", ("cls",))), "target"),
    (lambda: pl.GridResize("bicubic", False, False)(torch.zeros(4, 1), pl.Grid({"t": 4}, "row_major"), pl.Grid({"t": 5}, "row_major")), "target"),
])
def test_bad_rules_and_grids_are_refused(build, field):
    refused(build, field)
