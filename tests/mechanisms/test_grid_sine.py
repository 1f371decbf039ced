"""Sines on several axes, channel by channel: order of the axes, layouts, cut widths, counts of real pixels."""

import math

import pytest
import torch

import positionlib as pl
from positionlib.mechanisms.grid_sine import real_cell_coordinates
from tests.refusals import refused


def block(t: float, width: int, layout: str, base: float = 10_000.0) -> list[float]:
    phases = [t / base ** (2 * i / width) for i in range(width // 2)]
    if layout == "concatenated":
        return [math.sin(p) for p in phases] + [math.cos(p) for p in phases]
    return [f(p) for p in phases for f in (math.sin, math.cos)]


@pytest.mark.parametrize("order", [("row", "col"), ("col", "row")])
@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_each_axis_has_its_block_and_cls_is_zero(order, layout):
    grid = pl.Grid({"row": 2, "col": 3}, "row_major", ("cls",))
    module = pl.SineGrid(12, order=order, layout=layout, base=100.0, output_dtype=torch.float64)
    want = [[0.0] * 12] + [block({"row": r, "col": c}[order[0]], 6, layout, 100.0) + block({"row": r, "col": c}[order[1]], 6, layout, 100.0)
                           for r in range(2) for c in range(3)]
    rows = module(pl.AttentionGeometry.encoder(7), grid).rows
    assert torch.allclose(rows, torch.tensor(want, dtype=torch.float64), atol=1e-14)
    kept = torch.tensor([[6, 0], [1, 4]])
    assert torch.equal(module(pl.AttentionGeometry(kept, kept), grid).rows, rows[kept])
    assert module.float()(pl.AttentionGeometry.encoder(7), grid).rows.dtype == torch.float64 and not list(module.parameters())


@pytest.mark.parametrize("axes, d_model, width", [("xy", 6, 4), ("xy", 5, 4), ("xy", 2, 2), ("xyz", 10, 4), ("xyz", 13, 6), ("xyz", 12, 4)])
def test_the_next_even_blocks_are_cut_at_the_end(axes, d_model, width):
    grid = pl.Grid({axis: 2 for axis in axes}, "column_major")
    module = pl.SineGrid(d_model, order=tuple(axes), layout="interleaved", odd_width="next_even", output_dtype=torch.float64)
    rows = module(pl.AttentionGeometry.encoder(grid.tokens), grid).rows
    for token in range(grid.tokens):
        cell = [token >> n & 1 for n in range(len(axes))]
        want = [channel for t in cell for channel in block(t, width, "interleaved")][:d_model]
        assert torch.allclose(rows[token], torch.tensor(want, dtype=torch.float64), atol=1e-14)


def test_counts_of_real_pixels_start_at_1_and_repeat_over_padding():
    real = torch.tensor([[[1, 1, 0], [1, 1, 0], [0, 0, 0]]]) == 1
    found = real_cell_coordinates(real, scale=None)
    assert found["row"].tolist() == [[1, 1, 0, 2, 2, 0, 2, 2, 0]] and found["col"].tolist() == [[1, 2, 2, 1, 2, 2, 0, 0, 0]]
    scaled = real_cell_coordinates(real, scale=3.0)
    assert scaled["row"][0, 3].item() == 2 / (2 + 1e-6) * 3 and scaled["col"][0, 0].item() == 1 / (2 + 1e-6) * 3
    assert scaled["row"][0, 2].item() == 0.0  # a column of padding alone


def test_fractions_of_a_cell_are_coordinates():
    rows = pl.SineGrid(8, order=("row", "col"), layout="interleaved", output_dtype=torch.float64).at(
        {"col": torch.tensor([[0.25]]), "row": torch.tensor([[1.5]])}).rows
    assert torch.allclose(rows[0, 0], torch.tensor(block(1.5, 4, "interleaved") + block(0.25, 4, "interleaved"), dtype=torch.float64), atol=1e-14)


def test_far_cells_are_rounded_once():
    far = torch.tensor([2**31 + 1])
    module = pl.SineGrid(4, order=("row", "col"), layout="interleaved")
    rows = module.at({"row": far, "col": far}).rows
    assert rows.dtype == torch.float32 and torch.equal(rows[0, :2], torch.tensor([math.sin(2.0**31 + 1), math.cos(2.0**31 + 1)], dtype=torch.float64).float())


def test_a_compiled_graph_and_a_half_precision_state():
    grid = pl.Grid({"row": 2, "col": 3}, "row_major", ("cls",))
    module, geometry = pl.SineGrid(8, order=("col", "row"), layout="concatenated").bfloat16(), pl.AttentionGeometry.encoder(7)
    rows = module(geometry, grid).rows
    assert torch.equal(torch.compile(lambda g: module(g, grid).rows, backend="eager", fullgraph=True)(geometry), rows)
    x = torch.randn(2, 7, 8).bfloat16()
    assert torch.equal(module(geometry, grid).add_to(x), (x.float() + rows).bfloat16())


SETTINGS = dict(d_model=8, order=("row", "col"), layout="interleaved")
ZERO = torch.zeros(1)


@pytest.mark.parametrize("changes, field", [
    (dict(d_model=6), "d_model"), (dict(d_model=0), "d_model"), (dict(order=()), "order"), (dict(order=("row", "row")), "order"), (dict(order="row"), "order"),
    (dict(layout="halves"), "layout"), (dict(odd_width="cut"), "odd_width"), (dict(base=1.0), "base"), (dict(output_dtype=torch.int64), "output_dtype")])
def test_bad_settings_are_refused_at_construction(changes, field):
    refused(lambda: pl.SineGrid(**(SETTINGS | changes)), field)


@pytest.mark.parametrize("call, field", [
    (lambda m: m(pl.AttentionGeometry.encoder(4), pl.Grid({"y": 2, "x": 2}, "row_major")), "grid.axes"), (lambda m: m.at({"row": ZERO}), "coordinates"),
    (lambda m: m.at({"row": ZERO, "col": torch.zeros(2)}), "coordinates"), (lambda m: m.at({"row": ZERO, "col": ZERO / 0}), "coordinates.col"),
    (lambda m: m.at({"row": ZERO - 1, "col": ZERO}), "coordinates.row"), (lambda m: real_cell_coordinates(torch.ones(1, 2, 2), scale=None), "real"),
    (lambda m: real_cell_coordinates(torch.ones(2, 2) == 1, scale=None), "real"),
    (lambda m: real_cell_coordinates(torch.ones(1, 2, 2) == 1, scale="2pi"), "scale"),
    (lambda m: real_cell_coordinates(torch.ones(1, 2, 2) == 1, scale=0.0), "scale"), (lambda m: m(pl.AttentionGeometry.encoder(4), (2, 2)), "grid")])
def test_bad_calls_are_refused(call, field):
    refused(lambda: call(pl.SineGrid(**SETTINGS)), field)
