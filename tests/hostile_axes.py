"""Sound calls of what came with axes, time and rotation: codes, grids, boxes, clocks, moves of rows, layers, migrated tables."""

from __future__ import annotations

import torch

import positionlib as pl
from positionlib import layers, rotation, transport
from positionlib.checkpoints import migration
from positionlib.identity import AdmissionTuple
from positionlib.mechanisms import grid, grid_document, grid_sine, naive, naive_properties, rotary, time2vec
from tests.hostile import CAUSAL, ENCODER, IDS, PAIR, Call, D, H, N, attends, made, normal, of_geometry

GRID, WIDE = pl.Grid({"row": 2, "col": 3}, "row_major", ("cls",)), pl.Grid({"row": 4, "col": 3}, "row_major", ("cls",))
ROTATION = pl.Rotary(D, pairing="half_split")(CAUSAL)
AXIS = pl.TimeAxis(origin=0.0, unit_seconds=60.0, clock="unix", zone="UTC")
CLOCK, TIMES = dict(unit="s", clock="unix", zone="UTC"), pl.Timestamps(values=IDS, unit="s", clock="unix", zone="UTC")
BUCKETS, PLACES = pl.T5Buckets(8, 20, True), {"x": IDS}
LINES = pl.SeparableGrid({"row": (2, 4), "col": (3, 4)}, compose="sum", leading=("cls",))
SINE, RESIZE = dict(order=["row", "col"], layout="interleaved"), dict(mode="bilinear", align_corners=False, antialias=False)
BOXES = torch.tensor([[0, 0, 4, 5], [1, 2, 3, 4]])
TABLE = dict(weight=normal(6, D), provenance=["trained"] * 6, row_offset=1, moments={"exp_avg": normal(6, D)}, position_ids=torch.arange(6), shards=2,
             identity=AdmissionTuple("a", "b", **{name: 6 if name.endswith(("rows", "embeddings")) else "c" for name in AdmissionTuple._fields[2:]}))


def axis_bias(rules, inside_scale, geometry, x, query_coordinates, key_coordinates):
    """A bias of one named axis and of the positions, materialised; ``x`` stands for the axis' own tensor on both sides."""
    bias = pl.GridBias(H, rules, inside_scale=inside_scale)
    bias(geometry, {"x": x}, {"x": x}).materialize(geometry.query_positions, geometry.key_positions)
    return bias(geometry, query_coordinates, key_coordinates).materialize(**PAIR)


def moved(values, axes, pad, move):
    """One field under one move."""
    return transport.transport({"field": transport.Field(values, axes, pad)}, move=move)["field"].values


def moved_geometry(**fields):
    """A geometry's rows under a move that makes a new one."""
    return transport.transport({"call": transport.GeometryRows(**fields)}, move=transport.Move.pad(N, after=1))["call"].geometry.visible


CALLS: dict[str, Call] = {
    "QKTransform": (lambda **fields: rotation.QKTransform(**fields).rotate(normal(1, 2, N, D), IDS),
                    dict(inverse_frequency=normal(4), pairing="interleaved", d_head=D)),
    "QKTransform.turns": (ROTATION.turns, dict(positions=IDS, dtype=torch.float64)),
    "QKTransform.rotate": (ROTATION.rotate, dict(x=normal(2, H, N, D), positions=IDS)), "attend Rotary": attends(ROTATION, CAUSAL),
    "Rotary": (made(pl.Rotary, CAUSAL), dict(d_head=D, pairing="interleaved", rotary_dim=4, base=10.0)), "Rotary()": of_geometry(pl.Rotary(D, pairing="interleaved")),
    "pairing_permutation": (rotary.pairing_permutation, dict(d_head=D, source="interleaved", target="half_split", rotary_dim=4)),
    "convert_pairing": (rotary.convert_pairing, dict(rows=normal(3, D), source="interleaved", target="half_split", rotary_dim=4)),
    "convert_pairing_weight": (rotary.convert_pairing_weight, dict(weight=normal(2 * D, 3), d_head=D, source="interleaved", target="half_split", rotary_dim=4)),
    "integer_rows": (naive.integer_rows, dict(positions=IDS, d_model=D, alpha=0.5, output_dtype=torch.float64)),
    "normalised_rows": (naive.normalised_rows, dict(positions=IDS, d_model=D, length=9, output_dtype=torch.float64)),
    "binary_rows": (naive.binary_rows, dict(positions=IDS, bits=4, overflow="wrap", output_dtype=torch.float64)),
    "IntegerCode": (made(pl.IntegerCode, CAUSAL), dict(d_model=D, alpha=0.5)), "IntegerCode()": of_geometry(pl.IntegerCode(D)),
    "NormalisedCode": (made(pl.NormalisedCode, CAUSAL), dict(d_model=D, length="current")), "NormalisedCode()": of_geometry(pl.NormalisedCode(D, length=9)),
    "BinaryCode": (made(pl.BinaryCode, CAUSAL), dict(bits=4, overflow="error")), "BinaryCode()": of_geometry(pl.BinaryCode(4)),
    **{name: (getattr(naive_properties, name), dict(rows=normal(5, 3)))
       for name in ("norm_profile", "step_profile", "distance_profile", "distinct_rows", "direction_rank")},
    "content_ratio": (naive_properties.content_ratio, dict(rows=normal(5, 3), sigma=0.5)),
    **{name: (getattr(naive_properties, name), dict(code=lambda positions, length: positions[:, None].double(), length=4, longer=6)) for name in ("extension", "measure")},
    "Timestamps": (lambda **fields: AXIS.tau(pl.Timestamps(**fields)), dict(values=IDS, **CLOCK, present=IDS > 0)),
    "TimeAxis": (lambda **fields: pl.TimeAxis(**fields).tau(TIMES), dict(origin=0.0, unit_seconds=60.0, clock="unix", zone="UTC", declared_range=(-1.0, 9.0))),
    "TimeAxis.tau": (AXIS.tau, dict(times=TIMES)), "Time2Vec()": (pl.Time2Vec(4, AXIS, function="sin", linear="first", missing="error"), dict(times=TIMES)),
    "Time2Vec": (lambda **settings: pl.Time2Vec(**settings)(TIMES),
                 dict(d_model=4, axis=AXIS, function="cos", linear="last", missing="zero_row", output_dtype=torch.float64)),
    "convert_linear_channel": (time2vec.convert_linear_channel, dict(channels=normal(3, 4), source="first", target="last")),
    "Grid": (lambda **fields: pl.Grid(**fields).coordinates(IDS), dict(sizes={"row": 2, "col": 3}, traversal="row_major", leading=["cls"])),
    "Grid size": (lambda row: pl.Grid({"row": row, "col": 3}, "column_major").coordinates(IDS), dict(row=2)),
    "Grid.coordinates": (GRID.coordinates, dict(positions=IDS)), "Grid.positions": (GRID.positions, dict(coordinates={"row": IDS // 3, "col": IDS % 3})),
    "axis_coordinates": (lambda row: grid.axis_coordinates({"row": row, "col": IDS % 3}, GRID.sizes), dict(row=IDS // 3)),
    "rectangle_defect": (grid.rectangle_defect, dict(cells=normal(2, 3, 4, 2))),
    "names": (lambda given: grid.names("leading", given), dict(given=["cls"])), "add_wide": (lambda: grid.add_wide([normal(2, 3)] * 2), {}),
    "axis_tables": (lambda: grid.axis_tables("tables", {"row": (2, 3)}), {}),
    "LearnedGrid": (lambda **settings: pl.LearnedGrid(**settings)(ENCODER, GRID), dict(grid=GRID, d_model=4, resize=None)),
    "LearnedGrid()": (pl.LearnedGrid(GRID, 4, resize=pl.GridResize(**RESIZE)), dict(geometry=ENCODER, grid=WIDE)),
    "SeparableGrid": (lambda **settings: pl.SeparableGrid(**settings)(ENCODER, GRID),
                      dict(tables={"row": (2, 4), "col": (3, 4)}, compose="concatenate", leading=["cls"])),
    "SeparableGrid()": (LINES, dict(geometry=ENCODER, grid=GRID)), "SeparableGrid.at": (LINES.at, dict(coordinates={"row": IDS // 3, "col": IDS % 3})),
    "GridResize": (lambda **settings: pl.GridResize(**settings)(normal(7, D), GRID, WIDE), RESIZE),
    "GridResize()": (pl.GridResize(**RESIZE), dict(table=normal(7, D), source=GRID, target=WIDE)),
    "SineGrid": (lambda **settings: pl.SineGrid(**settings)(ENCODER, GRID),
                 dict(d_model=D, **SINE, odd_width="error", base=10.0, output_dtype=torch.float64)),
    "SineGrid()": (pl.SineGrid(D, **SINE), dict(geometry=ENCODER, grid=GRID)), "SineGrid.at": (pl.SineGrid(D, **SINE).at, dict(coordinates={"row": IDS, "col": IDS})),
    "SineGrid.at row": (lambda row: pl.SineGrid(D, **SINE).at({"row": row, "col": IDS}), dict(row=IDS)),
    "real_cell_coordinates": (grid_sine.real_cell_coordinates, dict(real=torch.ones(2, 3, 4, dtype=torch.bool), scale=6.0)),
    "GridBias": (axis_bias, dict(rules={"position": BUCKETS, "x": BUCKETS}, inside_scale=True, geometry=ENCODER, x=IDS, query_coordinates=PLACES,
                                 key_coordinates=PLACES)),
    "AxisBias.materialize": (pl.GridBias(H, {"x": BUCKETS}, inside_scale=False)(ENCODER, PLACES, PLACES).materialize, dict(**PAIR, dtype=torch.float64)),
    "normalise_boxes": (grid_document.normalise_boxes, dict(page=(5.0, 6.0), boxes=BOXES, range=1000)),
    "BoxEmbedding": (lambda **settings: pl.BoxEmbedding(**settings)(BOXES), dict(size=9, d_model=4, d_side=2)), "BoxEmbedding()": (pl.BoxEmbedding(9, 4), dict(boxes=BOXES)),
    "Move": (transport.Move, dict(source=IDS, length=N)), "Move.permute": (transport.Move.permute, dict(order=IDS)),
    "Move.sort": (transport.Move.sort, dict(keys=normal(N))), "Move.keep": (transport.Move.keep, dict(kept=IDS > 1)),
    "Move.pad": (transport.Move.pad, dict(length=3, before=1, after=1)), "Move.chunks": (transport.Move.chunks, dict(length=5, size=2)),
    "transport": (moved, dict(values=normal(2, N, 3), axes="B N D", pad=0.0, move=transport.Move.pad(N, after=1))),
    "transport ids": (moved, dict(values=IDS, axes="N", pad=9, move=transport.Move.pad(N, before=1))),
    "transport joined": (lambda part: transport.transport({"x": transport.Field(IDS, "N", -1)}, part), dict(part={"x": transport.Field(IDS, "N", -1)})),
    "GeometryRows": (moved_geometry, dict(geometry=ENCODER, side="both", pad=0, across=True)),
    "SelfAttention": (lambda **settings: layers.SelfAttention(**settings)(normal(2, N, D), CAUSAL),
                      dict(d_model=D, heads=2, mechanism=pl.ALiBi(2), d_head=4, kv_heads=1, bias=True, post_norm=1e-5)),
    "SelfAttention()": (layers.SelfAttention(D, 2, None), dict(x=normal(2, N, D), geometry=CAUSAL, term=pl.ALiBi(2)(CAUSAL))),
    "TokenInput": (lambda **settings: layers.TokenInput(**settings)(IDS[None], ENCODER), dict(words=9, positions=pl.LearnedAbsolute(9, D), d_words=3, eps=1e-5)),
    "TokenInput()": (layers.TokenInput(9, pl.LearnedAbsolute(9, D)), dict(ids=IDS[None], geometry=ENCODER)),
    "PatchInput": (lambda **settings: layers.PatchInput(**settings)(normal(2, 2, 4, 6)),
                   dict(channels=2, patch=(2, 2), positions=pl.LearnedGrid(GRID, D), eps=1e-5)),
    "PatchInput()": (layers.PatchInput(2, (2, 2), pl.LearnedGrid(GRID, D)), dict(pixels=normal(2, 2, 4, 6))),
    "PageInput": (lambda **settings: layers.PageInput(**settings)(IDS[None, :2], pl.AttentionGeometry.encoder(2), BOXES[None]),
                  dict(words=9, token_types=2, positions=pl.LearnedAbsolute(9, D), boxes=pl.BoxEmbedding(9, D), eps=1e-5, padding_id=0)),
    "PageInput()": (layers.PageInput(9, 2, pl.LearnedAbsolute(9, D), pl.BoxEmbedding(9, D), eps=1e-5),
                    dict(ids=IDS[None, :2], geometry=pl.AttentionGeometry.encoder(2), boxes=BOXES[None], token_types=IDS[None, :2])),
    "BertInput": (lambda **settings: layers.BertInput(**settings)(IDS[None], ENCODER),
                  dict(words=9, token_types=2, d_model=D, positions=pl.LearnedAbsolute(9, D), eps=1e-5, padding_id=0)),
    "BertInput()": (layers.BertInput(9, 2, D, None, eps=1e-5), dict(ids=IDS[None], geometry=ENCODER, token_types=IDS[None] % 2)),
    "PositionTable": (migration.PositionTable, TABLE), "row_provenance": (migration.row_provenance, dict(counts=IDS, before=["trained"] * N)),
    "migrate_position_table": (migration.migrate_position_table, dict(table=migration.PositionTable(**TABLE), new_rows=9, policy="normal", release_id="d",
                                                                      checkpoint_id="e", std=0.02, generator=torch.Generator().manual_seed(0))),
    "migrate_position_table formula": (lambda rows: migration.migrate_position_table(
        migration.PositionTable(**TABLE), 9, policy="formula", release_id="d", checkpoint_id="e", formula=lambda _: rows),
        dict(rows=normal(9 - len(TABLE["weight"]), TABLE["weight"].shape[1]))),
}
