"""Every mechanism of the library, small, in float64, with what the laws must know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from torch import nn

import positionlib as pl
from positionlib.terms import StateRows, Term

HEADS, D_HEAD, LIMIT = 3, 4, 16  # positions 0..LIMIT−1 have a row in every table
WIDTH = HEADS * D_HEAD


@dataclass(frozen=True, eq=False)
class Entry:
    """One mechanism in one form.

    Attributes
    ----------
    name : the exported name, then what distinguishes the form.
    build : makes the module; the parameters are filled by :func:`module`.
    head_axes : the axis of the heads in every parameter that has one, flattened with the head's width or not.
    visibility : the geometries that the mechanism admits, of "causal" and "encoder".
    call : (module, geometry) -> term, where it is not module(geometry).
    of_heads : (order) -> the mechanism with its heads in that order, where the state of a head is no parameter.
    """

    name: str
    build: Callable[[], nn.Module]
    head_axes: dict[str, int] = field(default_factory=dict)
    visibility: tuple[str, ...] = ("causal", "encoder")
    call: Callable[[nn.Module, pl.AttentionGeometry], Term] = lambda module, geometry: module(geometry)
    of_heads: Callable[[list[int]], nn.Module] | None = None

    @property
    def exported(self) -> str:
        return self.name.split(",")[0]


class Applied(nn.Module):
    """A mechanism as module(geometry) -> term, whatever else it needs."""

    def __init__(self, mechanism: nn.Module, call: Callable) -> None:
        super().__init__()
        self.mechanism, self.call = mechanism, call

    def forward(self, geometry: pl.AttentionGeometry) -> Term:
        return self.call(self.mechanism, geometry)


@cache
def module(entry: Entry) -> Applied:
    """The module of an entry, its parameters of order one: a bias of 0.02 would hide behind the content."""
    return fill(Applied(entry.build(), entry.call))


def fill(applied: nn.Module) -> nn.Module:
    """The module in float64 with the same numbers every time."""
    generator = torch.Generator().manual_seed(7)
    applied = applied.double()
    for parameter in applied.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
    return applied


def edge_types(geometry: pl.AttentionGeometry) -> torch.Tensor:
    """A label for every ordered pair of positions, so that a decode step finds the edges of the prefill."""
    return (5 * geometry.query_positions[..., :, None] + 3 * geometry.key_positions[..., None, :]) % 4


@cache
def ring() -> pl.Graph:
    """A directed ring of LIMIT nodes with a chord, and one node that no edge reaches."""
    return pl.Graph.from_edges(LIMIT, [(n, (n + 1) % (LIMIT - 1)) for n in range(LIMIT - 1)] + [(0, 5)])


def features(form: str) -> torch.Tensor:
    """What the path form reads of each of the ring's edges."""
    ids = torch.arange(LIMIT)
    return torch.stack((ids.double().sin(), ids.double().cos()), 1) if form == "paper" else torch.stack((ids % 4, ids % 3), 1)


def degree_rows(degrees: pl.GraphDegrees, geometry: pl.AttentionGeometry) -> StateRows:
    """The rows of the nodes that a call's queries are."""
    rows = degrees(ring())
    return StateRows(rows=rows.rows[geometry.query_positions], mark=rows.mark)


def shared_deberta(third_index: str) -> nn.ModuleDict:
    """A layer's terms with the content projections that they share."""
    return nn.ModuleDict({
        "layer": pl.DeBERTa(HEADS, WIDTH, 6, terms=("c2c", "c2p", "p2c"), third_index=third_index, projections="shared"),
        "query_proj": nn.Linear(WIDTH, WIDTH), "key_proj": nn.Linear(WIDTH, WIDTH)})


def alibi(form: str, visibility: tuple[str, ...] = ("causal",), **settings) -> Entry:
    make = partial(pl.ALiBi, HEADS, form=form, **settings)
    return Entry(", ".join(["ALiBi", form, *map(str, settings)]), make, visibility=visibility, of_heads=lambda order: make(head_ids=order))


def graph_bias(form: str | None, **settings) -> Entry:
    path_axes = {None: {}, "paper": {"path.hop_weight": 2}, "released": {"path.hop_weight": 2}, "direct": {"path.edge_weight": 1}}[form]
    width, hops = {None: (0, 0), "paper": (2, LIMIT), "released": (4, 3), "direct": (4, 1)}[form]

    def build() -> nn.Module:
        return pl.GraphBias(HEADS, LIMIT, path=None if form is None else pl.GraphPath(HEADS, width, hops, form=form), **settings)

    def call(bias: pl.GraphBias, geometry: pl.AttentionGeometry) -> Term:
        return bias(ring()) if form is None else bias(ring(), features(form))

    token = {"token_weight": 0} if settings else {}
    return Entry(", ".join(["GraphBias", form or "distance", *settings]), build, {"weight": 1, **token, **path_axes}, call=call)


GRID = pl.Grid({"row": 4, "col": LIMIT // 4}, "column_major", ("cls",))
PAGE = pl.Grid({"row": 4, "col": LIMIT // 4}, "row_major", ("cls",))  # the call's grid, read from a table of the other traversal
AXIS = pl.TimeAxis(origin=3.0, unit_seconds=5.0, clock="steps", zone=None)


def on_page(mechanism: nn.Module, geometry: pl.AttentionGeometry) -> StateRows:
    """Positions number the tokens of a grid."""
    return mechanism(geometry, PAGE)


def of_boxes(mechanism: pl.BoxEmbedding, geometry: pl.AttentionGeometry) -> StateRows:
    """A box that follows from the position of its token."""
    p = geometry.query_positions
    return mechanism(torch.stack((p % 5, p % 3, p % 5 + p % 4, p % 3 + p // 4), -1))


def on_axes(mechanism: pl.GridBias, geometry: pl.AttentionGeometry) -> Term:
    """The cell of each token on two axes, beside its position."""
    queries, keys = ({"x": p % 5, "y": p // 5} for p in (geometry.query_positions, geometry.key_positions))
    return mechanism(geometry, queries, keys)


def at_times(mechanism: pl.Time2Vec, geometry: pl.AttentionGeometry) -> StateRows:
    """A clock that does not tick evenly."""
    return mechanism(pl.Timestamps(values=geometry.query_positions**2, unit="s", clock="steps", zone=None))


PER_HEAD = {"key_table": 0, "value_table": 0}
OWN = {f"{name}_proj.{part}": 0 for name in ("pos_key", "pos_query") for part in ("weight", "bias")}
SHARED = {f"{name}_proj.{part}": 0 for name in ("query", "key") for part in ("weight", "bias")}
TXL = {"weight": 0, "content_bias": 0, "position_bias": 0}

ENTRIES = [
    Entry("Sinusoidal", lambda: pl.Sinusoidal(WIDTH, output_dtype=torch.float64)),
    Entry("Sinusoidal, concatenated, endpoint", lambda: pl.Sinusoidal(WIDTH, layout="concatenated", ladder="endpoint", output_dtype=torch.float64)),
    Entry("LearnedAbsolute", lambda: pl.LearnedAbsolute(LIMIT + 2, WIDTH, row_offset=2)),
    Entry("T5Bias, causal", lambda: pl.T5Bias(HEADS, 6, 9, bidirectional=False), {"weight": 1}, ("causal",)),
    Entry("T5Bias, bidirectional", lambda: pl.T5Bias(HEADS, 8, 9, bidirectional=True, table_layout="heads_buckets"), {"weight": 0}, ("encoder",)),
    alibi("relative"), alibi("key_index"), alibi("key_minus_last"), alibi("symmetric", ("causal", "encoder")),
    alibi("key_index", inside_scale=True, rounded=torch.bfloat16), alibi("relative", slopes=[0.5, -1.0, 0.0]),
    Entry("NoPE", pl.NoPE, visibility=("causal",)),
    Entry("ShawRelative", lambda: pl.ShawRelative(3, D_HEAD, sign="key_minus_query")),
    Entry("ShawRelative, per head", lambda: pl.ShawRelative(3, D_HEAD, sign="query_minus_key", heads=HEADS), PER_HEAD),
    Entry("EdgeRelative, per head", lambda: pl.EdgeRelative(4, D_HEAD, heads=HEADS), PER_HEAD, call=lambda m, g: m(g, edge_types(g))),
    Entry("BertRelative, relative_key", lambda: pl.BertRelative(LIMIT, D_HEAD, variant="relative_key")),
    Entry("BertRelative, relative_key_query", lambda: pl.BertRelative(LIMIT, D_HEAD, variant="relative_key_query")),
    Entry("MusicRelative, causal", lambda: pl.MusicRelative(4, D_HEAD, causal=True, heads=HEADS, sides="both"), PER_HEAD, ("causal",)),
    Entry("MusicRelative, bidirectional", lambda: pl.MusicRelative(4, D_HEAD, causal=False), visibility=("encoder",)),
    Entry("TransformerXL", lambda: pl.TransformerXL(6, HEADS, D_HEAD), TXL, ("causal",)),
    Entry("TransformerXL, clamped", lambda: pl.TransformerXL(6, HEADS, D_HEAD, clamp_len=3), TXL, ("causal",)),
    Entry("DeBERTa, paper, own", lambda: pl.DeBERTa(HEADS, WIDTH, 6, terms=("c2c", "c2p", "p2c"), third_index="paper", projections="own"), OWN),
    Entry("DeBERTa, released, buckets", lambda: pl.DeBERTa(HEADS, WIDTH, 12, terms=("c2p", "p2c"), third_index="released", projections="own",
                                                           buckets=8, edge="transformers"), OWN),
    Entry("DeBERTa, released, shared", lambda: shared_deberta("released"), SHARED,
          call=lambda m, g: m["layer"](g, query_proj=m["query_proj"], key_proj=m["key_proj"])),
    Entry("TUPE, A", lambda: pl.TUPE(HEADS, WIDTH, LIMIT), SHARED),
    Entry("TUPE, R", lambda: pl.TUPE(HEADS, WIDTH, LIMIT, relative=pl.T5Buckets(8, 9, True, "transformers")), {**SHARED, "relative_weight": 1}),
    Entry("TUPE, R, without CLS", lambda: pl.TUPE(HEADS, WIDTH, LIMIT, relative=pl.T5Buckets(8, 9), cls_position=None),
          {**SHARED, "relative_weight": 1}),
    Entry("IntegerCode", lambda: pl.IntegerCode(WIDTH, alpha=0.1)),
    Entry("NormalisedCode", lambda: pl.NormalisedCode(WIDTH, length=LIMIT)),
    Entry("BinaryCode", lambda: pl.BinaryCode(WIDTH)),
    Entry("Time2Vec", lambda: pl.Time2Vec(WIDTH, AXIS, function="sin", linear="first", missing="error", output_dtype=torch.float64), call=at_times),
    Entry("Rotary, half split", lambda: pl.Rotary(D_HEAD, pairing="half_split")),
    Entry("Rotary, interleaved, partial", lambda: pl.Rotary(D_HEAD, pairing="interleaved", rotary_dim=2, base=100.0)),
    Entry("LearnedGrid", lambda: pl.LearnedGrid(GRID, WIDTH), call=on_page),
    Entry("SeparableGrid, sum", lambda: pl.SeparableGrid({"row": (4, WIDTH), "col": (LIMIT // 4, WIDTH)}, compose="sum", leading=("cls",)), call=on_page),
    Entry("SeparableGrid, concatenate", lambda: pl.SeparableGrid({"col": (LIMIT, 4), "row": (9, WIDTH - 4)}, compose="concatenate", leading=("cls",)),
          call=on_page),
    Entry("SineGrid", lambda: pl.SineGrid(WIDTH, order=("col", "row"), layout="concatenated", output_dtype=torch.float64), call=on_page),
    Entry("BoxEmbedding", lambda: pl.BoxEmbedding(LIMIT, WIDTH), call=of_boxes),
    Entry("GridBias", lambda: pl.GridBias(HEADS, {name: pl.T5Buckets(8, 9, True) for name in ("position", "x", "y")}, inside_scale=True),
          {f"weight.{name}": 0 for name in ("position", "x", "y")}, call=on_axes),
    graph_bias(None), graph_bias(None, graph_token=True), graph_bias("paper"), graph_bias("released"), graph_bias("direct"),
    Entry("GraphDegrees", lambda: pl.GraphDegrees(4, WIDTH), call=degree_rows),
]

# Without a causal use, and why. Everything else must decode as it prefills.
NOT_CAUSAL = {
    "T5Bias, bidirectional": "the table of an encoder gives keys after the query buckets of their own; a causal geometry is refused",
    "MusicRelative, bidirectional": "a table with rows for the future; a causal geometry is refused",
    "GraphBias": "a graph has no first node: its pairs are known before any row is computed",
    "GraphDegrees": "the degree of a node counts edges to nodes that a decoder would not have seen",
}

NO_MECHANISM = {
    "Grid": "cells and their order, which LearnedGrid, SeparableGrid and SineGrid read",
    "GridResize": "a rule that reads a table at another size; its rows are LearnedGrid's",
    "TimeAxis": "the origin and unit by which Time2Vec reads a clock",
    "Timestamps": "times as their source gave them, the input of Time2Vec",
    "normalise_boxes": "a function on pages, before BoxEmbedding",
    "Graph": "the structure that GraphBias, GraphPath and GraphDegrees read",
    "GraphPath": "pair scores that GraphBias adds, here as its forms paper, released and direct",
    "SegmentMemory": "states of the caller; what they give is TransformerXL under a longer geometry",
}


def reason_without_causal_use(entry: Entry) -> str | None:
    """Why the laws of decoding do not apply to an entry, or None where they do."""
    return NOT_CAUSAL.get(entry.name) or NOT_CAUSAL.get(entry.exported)
