"""Grids and boxes of MAE, DETR, positional-encodings, axial-positional-embedding, LayoutLM and LayoutLMv3."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from positionlib import AttentionGeometry, BoxEmbedding, Grid, GridBias, SeparableGrid, SineGrid, T5Buckets, attend
from positionlib.mechanisms.grid_sine import real_cell_coordinates
from tests.oracles.case import Case
from tests.oracles.learned import lookup, with_table


def axial(case: Case) -> None:
    """Tables of the axes in order, added or laid side by side; the first n tokens of the grid."""
    shape, widths = case.setting("axial_shape"), case.setting("axial_dims", default=None)
    names = [f"axis{n}" for n in range(len(shape))]
    leaves = {name: case.take(name, grad=True) for name in names}
    tables = {name: (size, width) for name, size, width in zip(names, shape, widths or [case.setting("dim")] * len(shape))}
    module = SeparableGrid(tables, compose="concatenate" if widths else "sum").double()
    out = separable(module, leaves, Grid(dict(zip(names, shape)), "row_major"), case.setting("n"))[None]
    case.check("out", out)
    case.check_gradients(out, {f"grad_{name}": leaf for name, leaf in leaves.items()})


def detr_learned(case: Case) -> None:
    """Column channels first; the result is an image [B, 2d, h, w] of the tables' first rows."""
    leaves = {"col": case.take("column_embeddings", grad=True), "row": case.take("row_embeddings", grad=True)}
    batch, _, *size = case.arrays["out"].shape
    module = SeparableGrid({axis: tuple(leaf.shape) for axis, leaf in leaves.items()}, compose="concatenate").double()
    grid = image_grid(*size)
    out = separable(module, leaves, grid, grid.tokens).T.unflatten(-1, size).expand(batch, -1, -1, -1)
    case.check("out", out)
    case.check_gradients(out, {"grad_column_embeddings": leaves["col"], "grad_row_embeddings": leaves["row"]})


def separable(module: SeparableGrid, leaves: dict[str, Tensor], grid: Grid, length: int) -> Tensor:
    call = AttentionGeometry.encoder(length), grid
    return functional_call(module, {f"weight.{axis}": leaf for axis, leaf in leaves.items()}, call).rows


def image_grid(rows: int, cols: int, leading: tuple[str, ...] = ()) -> Grid:
    return Grid({"row": rows, "col": cols}, "row_major", leading)


def mae(case: Case) -> None:
    grid = image_grid(case.setting("grid"), case.setting("grid"), ("cls",) if case.setting("cls_token", default=False) else ())
    module = SineGrid(case.setting("d"), order=("col", "row"), layout="concatenated", output_dtype=torch.float64)
    case.check("pos_embed", module(AttentionGeometry.encoder(grid.tokens), grid).rows)


def detr_sine(case: Case) -> None:
    """Counts of real pixels; without a mask all are real. The scale is 2π unless named, and only used to normalise."""
    batch, channels, *size = case.arrays["out"].shape
    real = case.take("mask") if case.has("mask") else torch.ones(batch, *size, dtype=torch.bool)
    scale = (case.setting("scale", default=None) or 2 * math.pi) if case.setting("normalize") else None
    module = SineGrid(2 * case.setting("num_position_features"), order=("row", "col"), layout="interleaved",
                      base=case.setting("temperature", default=10_000), output_dtype=torch.float64)
    case.check("out", module.at(real_cell_coordinates(real, scale=scale)).rows.mT.unflatten(-1, size))


def positional_encodings(case: Case) -> None:
    axes = [axis for axis in "xyz" if axis in case.settings]
    grid = Grid({axis: case.setting(axis) for axis in axes}, "row_major")
    module = SineGrid(case.setting("d"), order=axes, layout="interleaved", odd_width="next_even", output_dtype=torch.float64)
    case.check("pe", module(AttentionGeometry.encoder(grid.tokens), grid).rows.unflatten(0, tuple(grid.sizes.values()))[None])


def layoutlm(case: Case) -> None:
    """LayerNorm(word + position + box + token type). Word row 0 is the padding row: no gradient."""
    leaves = {name: case.take(name, grad=True) for name in case.arrays if name.startswith("param.")}
    table = {name: leaves[f"param.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    boxes = {axis: leaves[f"param.{axis}_position_embeddings.weight"] for axis in "xyhw"}
    ids, bbox = case.take("input_ids"), case.take("bbox")
    words = F.embedding(ids, table["word"], padding_idx=case.setting("pad_token_id", default=0))
    types = case.take("token_type_ids") if case.has("token_type_ids") else torch.zeros_like(ids)
    order = case.take("position_ids") if case.has("position_ids") else torch.arange(ids.shape[1])
    positions = with_table(table["position"])
    placed = lookup(positions, order.expand_as(ids)).add_to(words + F.embedding(types, table["token_type"]))
    x = functional_call(BoxEmbedding(*boxes["x"].shape).double(), boxes, (bbox,)).add_to(placed)
    out = F.layer_norm(x, x.shape[-1:], leaves["param.LayerNorm.weight"], leaves["param.LayerNorm.bias"], case.setting("layer_norm_eps"))
    case.check("out", out)
    leaves["param.position_embeddings.weight"] = positions.weight
    case.check_gradients(out, {name.replace("param.", "grad.", 1): leaf for name, leaf in leaves.items()})


def layoutlmv3(case: Case) -> None:
    """Buckets of the position, of the left edge x0 and of the lower edge y1; the sum is divided by √d_head with the content."""
    weights = {axis: case.take(name) for axis, name in (("position", "rel_pos_bias"), ("x", "rel_pos_x_bias"), ("y", "rel_pos_y_bias")) if case.has(name)}
    line = T5Buckets(case.setting("b1"), case.setting("m1"), True, "transformers")
    page = T5Buckets(case.setting("b2"), case.setting("m2"), True, "transformers")
    positions, bbox = case.take("position_ids"), case.take("bbox")
    geometry, edges = AttentionGeometry(positions, positions), {"x": bbox[..., 0], "y": bbox[..., 3]}
    heads = case.setting("H")

    def term_of(*axes: str):
        module = GridBias(heads, {axis: line if axis == "position" else page for axis in axes}, inside_scale=True).double()
        module.load_state_dict({f"weight.{axis}": weights[axis] for axis in axes})
        given = {axis: edges[axis] for axis in axes if axis in edges}
        return module(geometry, given, given)

    for name, axes in (("bias_1d", ("position",)), ("bias_2d", ("x", "y"))):
        if all(axis in weights for axis in axes):
            case.check(name, term_of(*axes).materialize(positions, positions, torch.float64))
    term = term_of(*weights)
    for axis in edges.keys() & weights.keys():
        case.check(f"bucket_{axis}", term.classes(axis, positions, positions))
    nothing = torch.zeros(len(positions), heads, positions.shape[1], case.setting("D") // heads, dtype=torch.float64)
    case.check("bias_total", attend(nothing, nothing, nothing, term, geometry, return_trace=True)[1].scores)


SOURCES = [
    ("axial_positional_embedding", "AxialPositionalEmbedding", axial),
    ("modeling_detr.py", "DetrLearnedPositionEmbedding", detr_learned),
    ("modeling_detr.py", "DetrSinePositionEmbedding", detr_sine),
    ("pos_embed.py", "get_2d_sincos_pos_embed", mae),
    ("torch_encodings.py", "PositionalEncoding2D", positional_encodings),
    ("torch_encodings.py", "PositionalEncoding3D", positional_encodings),
    ("modeling_layoutlm.py", "LayoutLMEmbeddings", layoutlm),
    ("modeling_layoutlmv3.py", "LayoutLMv3Encoder", layoutlmv3),
]
