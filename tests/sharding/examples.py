"""Every mechanism with per-head or shared parameters, five heads, and how it is called; the same on every process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import positionlib as pl
from positionlib.terms import Term

HEADS, D_HEAD, QUERIES, BATCH = 5, 4, 7, 2
D_MODEL = HEADS * D_HEAD
CAUSAL, ENCODER = pl.AttentionGeometry.causal_self(QUERIES), pl.AttentionGeometry.encoder(QUERIES)
GRAPH = pl.Graph.from_edges(QUERIES, [(n, n + 1) for n in range(QUERIES - 1)] + [(4, 0)])
FEATURES, CATEGORIES = torch.arange(21.0, dtype=torch.float64).sin().reshape(7, 3), torch.arange(7)[:, None] % 3
TYPES = (torch.arange(QUERIES)[:, None] * 3 + torch.arange(QUERIES)) % 4
PLACES = {"x": torch.tensor([0, 3, 1, 4, 1, 5, 9])}
BUCKETS = pl.T5Buckets(8, 20, True)


@dataclass(frozen=True)
class Example:
    """``call`` makes the term of a module for all heads or for a rank's; ``projections`` says that it is given the layer's own."""

    build: Callable[[], nn.Module]
    geometry: pl.AttentionGeometry = CAUSAL
    call: Callable[..., Term] = lambda module, geometry, **given: module(geometry, **given)
    projections: bool = False


def deberta(projections: str, **settings) -> Callable[[], nn.Module]:
    return lambda: pl.DeBERTa(HEADS, D_MODEL, projections=projections, terms=("c2c", "c2p", "p2c"), **settings)


def graph(form: str, width: int, hops: int, edges: Tensor) -> Example:
    far = int(GRAPH.distance.max())
    return Example(lambda: pl.GraphBias(HEADS, far, path=pl.GraphPath(HEADS, width, hops or far, form=form)), ENCODER, lambda module, _: module(GRAPH, edges))


EXAMPLES: dict[str, Example] = {
    "alibi": Example(lambda: pl.ALiBi(HEADS)),
    "alibi, learned": Example(lambda: pl.ALiBi(HEADS, learned=True)),
    "t5": Example(lambda: pl.T5Bias(HEADS, 8, 20, bidirectional=False)),
    "t5, heads first": Example(lambda: pl.T5Bias(HEADS, 8, 20, bidirectional=True, table_layout="heads_buckets"), ENCODER),
    "shaw, shared": Example(lambda: pl.ShawRelative(2, D_HEAD, sign="key_minus_query"), ENCODER),
    "shaw, per head": Example(lambda: pl.ShawRelative(2, D_HEAD, sign="key_minus_query", heads=HEADS)),
    "edges, per head": Example(lambda: pl.EdgeRelative(4, D_HEAD, heads=HEADS), ENCODER, lambda module, geometry: module(geometry, TYPES)),
    "music": Example(lambda: pl.MusicRelative(3, D_HEAD, causal=True, heads=HEADS, sides="both")),
    "bert": Example(lambda: pl.BertRelative(QUERIES, D_HEAD, variant="relative_key_query"), ENCODER),
    "transformer-xl": Example(lambda: pl.TransformerXL(6, HEADS, D_HEAD, clamp_len=4)),
    "deberta": Example(deberta("own", max_distance=3, third_index="paper"), ENCODER),
    "deberta, shared projections": Example(deberta("shared", max_distance=20, third_index="released", buckets=8, edge="exact"), ENCODER, projections=True),
    "tupe-a": Example(lambda: pl.TUPE(HEADS, D_MODEL, QUERIES), ENCODER),
    "tupe-r": Example(lambda: pl.TUPE(HEADS, D_MODEL, QUERIES, relative=BUCKETS), ENCODER),
    "tupe-r, rows": Example(lambda: pl.TUPE(HEADS, D_MODEL, QUERIES, relative=BUCKETS, finish=False), ENCODER),
    "graph, paper": graph("paper", 3, 0, FEATURES),
    "graph, released": graph("released", 3, 2, CATEGORIES),
    "graph, direct": graph("direct", 3, 1, CATEGORIES),
    "grid bias": Example(lambda: pl.GridBias(HEADS, {"position": BUCKETS, "x": BUCKETS}, inside_scale=True), ENCODER,
                         lambda module, geometry: module(geometry, PLACES, PLACES)),
    "rotary": Example(lambda: pl.Rotary(D_HEAD, pairing="half_split")),
    "nope": Example(lambda: pl.NoPE()),
}


def filled(module: nn.Module, seed: int = 5) -> nn.Module:
    """The module in float64, with parameters that are the same on every process and not near zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator) * 0.5)
    return module


def projections(name: str) -> dict[str, nn.Module]:
    """The query and key projections of a layer of all heads, where the example's call is given them."""
    return {f"{side}_proj": filled(nn.Linear(D_MODEL, D_MODEL), seed) for seed, side in enumerate(("query", "key"))} if EXAMPLES[name].projections else {}


def drawn() -> list[Tensor]:
    """q, k, v [B, H, N, D] and a gradient of the output, float64, the same on every process."""
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(BATCH, HEADS, QUERIES, D_HEAD, dtype=torch.float64, generator=generator) for _ in range(4)]
