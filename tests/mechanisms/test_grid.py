"""Grids against loops over cells: traversal, flat and separable tables, what a leading token reads, what the identity tells."""

import copy
import pickle
from itertools import permutations, product

import pytest
import torch

import positionlib as pl
from positionlib.mechanisms.grid import LEADING, rectangle_defect
from tests.refusals import refused

TABLES = {"row": (3, 4), "col": (5, 4)}


def grid(rows: int = 3, cols: int = 5, traversal: str = "row_major", leading: tuple[str, ...] = ()) -> pl.Grid:
    return pl.Grid({"row": rows, "col": cols}, traversal, leading)


def everyone(g: pl.Grid) -> pl.AttentionGeometry:
    return pl.AttentionGeometry.encoder(g.tokens)


def separable(compose: str = "sum", leading: tuple[str, ...] = (), tables=TABLES) -> pl.SeparableGrid:
    return pl.SeparableGrid(tables, compose=compose, leading=leading).double()


@pytest.mark.parametrize("traversal, fastest", [("row_major", "zyx"), ("column_major", "xyz")])
def test_traversal_is_the_order_of_nested_loops(traversal, fastest):
    sizes, want = {"x": 2, "y": 3, "z": 4}, {axis: [LEADING] * 2 for axis in "xyz"}
    for cell in product(*(range(sizes[axis]) for axis in reversed(fastest))):  # the last loop runs fastest
        for axis, number in zip(reversed(fastest), cell):
            want[axis].append(number)
    g = pl.Grid(sizes, traversal, ("cls", "distil"))
    found = g.coordinates(torch.arange(26))
    assert g.tokens == 26 and {axis: c.tolist() for axis, c in found.items()} == want
    assert g.positions({axis: c[2:] for axis, c in found.items()}).tolist() == list(range(2, 26))


def test_grids_are_equal_when_axes_traversal_and_leading_tokens_are():
    assert grid() == grid() and hash(grid()) == hash(grid())
    others = [grid(5, 3), grid(traversal="column_major"), grid(leading=("cls",)), pl.Grid({"a": 2, "b": 3}, "row_major")]
    assert grid() not in others and pl.Grid({"b": 3, "a": 2}, "row_major") != others[-1]


def test_a_flat_table_has_a_row_a_token_and_dropped_patches_keep_theirs():
    g, kept = grid(leading=("cls",)), torch.tensor([[0, 3, 16], [7, 0, 2]])
    m = pl.LearnedGrid(g, 4)
    assert m.weight.numel() == (1 + 3 * 5) * 4
    assert torch.equal(m(everyone(g), g).rows, m.weight) and torch.equal(m(pl.AttentionGeometry(kept[:, :2], kept), g).rows, m.weight[kept[:, :2]])
    m(pl.AttentionGeometry(kept[1], kept[1]), g).rows.sum().backward()
    assert m.weight.grad[:, 0].nonzero().flatten().tolist() == [0, 2, 7]
    with pytest.raises(pl.PositionRangeError, match="position = 16.*0..15"):
        m(pl.AttentionGeometry.encoder(17), g)


def test_a_flat_table_read_in_the_other_traversal_gives_each_cell_its_own_row():
    trained, asked = grid(leading=("cls",)), grid(leading=("cls",), traversal="column_major")
    m = pl.LearnedGrid(trained, 4)
    want = [m.weight[0]] + [m.weight[1 + 5 * r + c] for c in range(5) for r in range(3)]
    assert torch.equal(m(everyone(asked), asked).rows, torch.stack(want))


def test_equally_many_tokens_are_not_the_same_grid():
    m = pl.LearnedGrid(grid(1, 9), 4)
    error = refused(lambda: m(pl.AttentionGeometry.encoder(9), grid(3, 3)), "grid")
    assert "3 row x 3 col" in str(error) and "resize" in error.remedy
    assert refused(lambda: m(pl.AttentionGeometry.encoder(9), grid(1, 9, leading=("cls",))), "grid.leading").expected == "(), as trained"


@pytest.mark.parametrize("traversal", ["row_major", "column_major"])
@pytest.mark.parametrize("compose", ["sum", "concatenate"])
def test_separable_rows_are_made_of_the_axes(compose, traversal):
    tables = {"col": (6, 4), "row": (3, 4 if compose == "sum" else 2)}  # more columns than the grid has, and column channels first
    m, g = separable(compose, ("cls",), tables), grid(traversal=traversal, leading=("cls",))
    cells = product(range(3), range(5)) if traversal == "row_major" else ((r, c) for c in range(5) for r in range(3))
    want = [m.leading_weight[0]] + [m.weight["row"][r] + m.weight["col"][c] if compose == "sum" else torch.cat((m.weight["col"][c], m.weight["row"][r]))
                                    for r, c in cells]
    rows = m(everyone(g), g).rows
    assert torch.equal(rows, torch.stack(want)) and rows.shape[-1] == m.d_model
    batched = torch.tensor([[0, 4, 15], [9, 0, 1]])
    assert torch.equal(m(pl.AttentionGeometry(batched, batched), g).rows, rows[batched])


@pytest.mark.parametrize("order", list(permutations(["row", "col", "depth"])), ids="-".join)
def test_channels_stand_in_the_order_in_which_the_tables_are_named(order):
    """Not in that of the alphabet, in which torch would put the keys of a dict."""
    m = pl.SeparableGrid({axis: (2, len(axis)) for axis in order}, compose="concatenate")
    for axis in order:
        m.weight[axis].data.fill_(len(axis))
    want = [float(len(axis)) for axis in order for _ in axis]
    for made in (m, copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert made.at({axis: torch.tensor([1]) for axis in "row col depth".split()}).rows.tolist() == [want]


def test_explicit_coordinates_are_named_and_may_be_batched():
    m = separable()
    coordinates = {"col": torch.tensor([[4, 0], [1, 1]]), "row": torch.tensor([[2, 0], [0, 2]])}
    rows = m.at(coordinates).rows
    assert torch.equal(rows, m.weight["row"][coordinates["row"]] + m.weight["col"][coordinates["col"]])
    x = torch.randn(2, 2, 4, dtype=torch.float64)
    assert torch.equal(m.at(coordinates).add_to(x), x + rows)
    refused(lambda: m.at(coordinates).add_to(m.at(coordinates).add_to(x)), "x")


def test_parameters_of_flat_and_separable_tables():
    """R·C·D against (R + C)·D for 14 x 14 cells of width 768."""
    with torch.device("meta"):
        flat = pl.LearnedGrid(grid(14, 14), 768)
        shared = pl.SeparableGrid({"row": (14, 768), "col": (14, 768)}, compose="sum")
    assert flat.weight.numel() == 14 * 14 * 768 == 150_528 and sum(p.numel() for p in shared.parameters()) == 28 * 768 == 21_504


@pytest.mark.parametrize("rows", [
    separable()(everyone(grid()), grid()).rows,
    separable("concatenate")(everyone(grid()), grid()).rows,
    pl.SineGrid(8, order=("row", "col"), layout="interleaved", output_dtype=torch.float64)(everyone(grid()), grid()).rows,
], ids=["sum", "concatenate", "sine"])
def test_every_rectangle_of_a_separable_table_closes(rows):
    cells = rows.unflatten(0, (3, 5))
    assert rectangle_defect(cells).shape == (2, 4, rows.shape[-1]) and bool((rectangle_defect(cells).abs() < 1e-12).all())
    for (r, s), (c, d) in product(product(range(3), repeat=2), product(range(5), repeat=2)):
        assert torch.allclose(cells[r, c] + cells[s, d], cells[r, d] + cells[s, c], atol=1e-12)


def test_the_defect_of_a_flat_table_is_the_sum_of_the_squares_inside():
    cells = pl.LearnedGrid(grid(), 4).double().weight.unflatten(0, (3, 5))
    defect = rectangle_defect(cells)
    assert torch.allclose(defect[1, 2], cells[1, 2] - cells[1, 3] - cells[2, 2] + cells[2, 3])
    assert torch.allclose(defect.sum((0, 1)), cells[0, 0] - cells[0, 4] - cells[2, 0] + cells[2, 4]) and bool((defect.abs() > 1e-6).all())


def test_a_line_collects_the_gradient_of_its_cells():
    m, g = separable(leading=("cls",)), grid(leading=("cls",))
    upstream = torch.randn(16, 4, dtype=torch.float64)
    (m(everyone(g), g).rows * upstream).sum().backward()
    by_cell = upstream[1:].unflatten(0, (3, 5))
    assert torch.allclose(m.weight["row"].grad, by_cell.sum(1)) and torch.allclose(m.weight["col"].grad, by_cell.sum(0))
    assert torch.equal(m.leading_weight.grad, upstream[:1])


def test_half_precision_tables_are_added_wide_and_rounded_once():
    m = pl.SeparableGrid({axis: (1, 1) for axis in "abc"}, compose="sum").bfloat16()
    for axis, value in {"a": 256.0, "b": 1.0, "c": 1.0}.items():  # 256 + 1 is 256 in bfloat16
        m.weight[axis].data.fill_(value)
    one = pl.Grid({axis: 1 for axis in "abc"}, "row_major")
    assert m(everyone(one), one).rows.tolist() == [[258.0]] and m(everyone(one), one).rows.dtype == torch.bfloat16


class Fixed(torch.nn.Module):
    """A module at one grid: what can be exported."""

    def __init__(self, module: torch.nn.Module, g: pl.Grid) -> None:
        super().__init__()
        self.module, self.grid = module, g

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return self.module(pl.AttentionGeometry(positions, positions), self.grid).rows


@pytest.mark.parametrize("module", [pl.LearnedGrid(grid(leading=("cls",)), 4), separable(leading=("cls",)), separable("concatenate", ("cls",))],
                         ids=["flat", "sum", "concatenate"])
def test_compiled_and_exported_graphs_and_copies_give_the_same_rows(module):
    eager, (few, many) = Fixed(module, grid(leading=("cls",))), (torch.tensor([[0, 15, 3]]), torch.arange(16)[None])
    length = torch.export.Dim("length")
    exported = torch.export.export(eager, (few,), dynamic_shapes=({1: length},)).module()
    for run in (torch.compile(eager, backend="eager", fullgraph=True), exported, copy.deepcopy(eager)):
        assert torch.equal(run(many), eager(many))


@pytest.mark.parametrize("build, field", [
    (lambda: pl.Grid({}, "row_major"), "sizes"), (lambda: pl.Grid((2, 5), "row_major"), "sizes"), (lambda: pl.Grid({"a.b": 2}, "row_major"), "sizes"),
    (lambda: pl.Grid({"row": 0, "col": 2}, "row_major"), "sizes.row"), (lambda: pl.Grid({"row": 2.0}, "row_major"), "sizes.row"),
    (lambda: pl.Grid({"col": 5, "row": 2}, "row_major"), "sizes"), (lambda: grid(traversal="zigzag"), "traversal"),
    (lambda: grid(leading="cls"), "leading"), (lambda: grid(leading=("cls", "cls")), "leading"),
    (lambda: grid().coordinates(torch.tensor([0.0])), "position"), (lambda: grid().coordinates(torch.tensor([-1])), "position"),
    (lambda: grid().coordinates(torch.tensor([2**31 + 1])), "position"),
    (lambda: grid().positions({"row": torch.tensor([3]), "col": torch.tensor([0])}), "coordinates.row"),
    (lambda: grid().positions({"row": torch.tensor([0]), "col": torch.tensor([LEADING])}), "coordinates.col"),
    (lambda: grid().positions({"row": torch.tensor([0])}), "coordinates"),
    (lambda: grid().positions({"row": torch.tensor([0, 1]), "col": torch.tensor([0])}), "coordinates"),
    (lambda: pl.LearnedGrid((3, 5), 4), "grid"), (lambda: separable()(everyone(grid()), (3, 5)), "grid"), (lambda: grid(leading=None), "leading"),
    (lambda: pl.LearnedGrid(grid(), 0), "d_model"),
    (lambda: pl.SeparableGrid({}, compose="sum"), "tables"), (lambda: pl.SeparableGrid({"row": 3}, compose="sum"), "tables"),
    (lambda: pl.SeparableGrid({"row": (3, 4), "col": (5, 2)}, compose="sum"), "tables"),
    (lambda: pl.SeparableGrid({"row": (3, 0)}, compose="sum"), "tables.row.width"), (lambda: pl.SeparableGrid({"type": (3, 1)}, compose="sum"), "tables"),
    (lambda: pl.SeparableGrid({"keys": (3, 1)}, compose="sum"), "tables"), (lambda: pl.SeparableGrid({"a.b": (3, 1)}, compose="sum"), "tables"),
    (lambda: separable().to("meta")(everyone(grid()), grid()), "geometry"), (lambda: separable().to("meta").at({a: torch.arange(3) for a in TABLES}), "coordinates.row"),
    (lambda: pl.SeparableGrid(TABLES, compose="product"), "compose"),
    (lambda: separable()(everyone(grid(4)), grid(4)), "grid.sizes.row"), (lambda: separable()(everyone(grid()), pl.Grid({"row": 3}, "row_major")), "grid.axes"),
    (lambda: separable()(everyone(grid()), grid(leading=("cls",))), "grid.leading"),
    (lambda: separable().at({"row": torch.tensor([3]), "col": torch.tensor([0])}), "coordinates.row"),
])
def test_bad_grids_tables_and_calls_are_refused(build, field):
    refused(build, field)
