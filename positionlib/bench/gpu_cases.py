"""What is checked and timed on a GPU: every mechanism that attention knows, with the bars of the two passes, and the calls.

Nothing here names a kernel. A mechanism is asked of ``backend="triton"`` like a user's call: what is refused is told with the reason, and
runs by itself once the kernel admits it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms import (
    ALiBi, BertRelative, DeBERTa, EdgeRelative, Graph, GraphBias, GridBias, MusicRelative, NoPE, Rotary, ShawRelative, T5Bias, TUPE, TransformerXL,
)
from positionlib.rules import T5Buckets
from positionlib.terms import Term


class Content(nn.Module):
    """Attention without a position: the term is None."""

    def forward(self, geometry: AttentionGeometry) -> None:
        return None


class OnRows(nn.Module):
    """A mechanism that is given more than a geometry: what its rows have, made from their positions."""

    def __init__(self, mechanism: nn.Module, given: Callable[[AttentionGeometry], tuple], with_geometry: bool = True) -> None:
        super().__init__()
        self.mechanism, self.given, self.with_geometry = mechanism, given, with_geometry

    def forward(self, geometry: AttentionGeometry) -> Term:
        return self.mechanism(*((geometry,) if self.with_geometry else ()), *self.given(geometry))


@dataclass(frozen=True)
class Mechanism:
    """One row of the tables.

    Attributes
    ----------
    build : (heads, width of a head, longest position + 1) to a module whose call takes a geometry.
    causal : the visibility that the mechanism is for; None serves both ways.
    bars : the most that forward and backward may take on an H200, in bf16 at N = 8192, H = 16, D = 128, as a multiple of SDPA's flash
        backend without a bias. None where none was set.
    flex : whether FlexAttention can express it.
    """

    name: str
    build: Callable[[int, int, int], nn.Module]
    causal: bool
    bars: tuple[float, float] | None = None
    flex: bool = False


SCALAR, RELATION, SCORES = (1.15, 1.3), (1.6, 2.0), (2.2, 3.0)


def _deberta(heads: int, width: int, length: int) -> nn.Module:
    # R = 512 rows, both terms: DeBERTa-v3. A key bias moves no probability: its gradient would be rounding and nothing else.
    return DeBERTa(heads, heads * width, 512, terms=("c2c", "c2p", "p2c"), third_index="released", projections="own", buckets=256,
                   edge="exact", key_bias=False)


def _graph(heads: int, width: int, length: int) -> nn.Module:
    """Distances on a ring of all positions, the far half disconnected: what a search over a graph of this size would take hours for."""
    far, bias = 20, GraphBias(heads, 20)

    def ring(geometry: AttentionGeometry) -> tuple[Graph]:
        nodes = torch.arange(length, device=geometry.device)
        apart = (nodes[:, None] - nodes).abs()
        apart = torch.minimum(apart, length - apart)
        return (Graph(apart.masked_fill(apart > far, -1), torch.full_like(nodes, 2), torch.full_like(nodes, 2), nodes.new_full((length, length, 1), -1)),)

    return OnRows(bias, ring, with_geometry=False)


def _grid(heads: int, width: int, length: int) -> nn.Module:
    bias = GridBias(heads, {"position": T5Buckets(32, 128, edge="transformers"), "x": T5Buckets(64, 256, edge="transformers")}, inside_scale=True)
    return OnRows(bias, lambda g: ({"x": g.query_positions * 7 % 1000}, {"x": g.key_positions * 7 % 1000}))


def _tupe_r(heads: int, width: int, length: int) -> nn.Module:
    return TUPE(heads, heads * width, length, relative=T5Buckets(32, 128, edge="transformers"), finish=False)


def _edges(heads: int, width: int, length: int) -> nn.Module:
    return OnRows(EdgeRelative(8, width), lambda g: ((g.query_positions[..., :, None] * 3 + g.key_positions[..., None, :]) % 8,))


MECHANISMS: dict[str, Mechanism] = {m.name: m for m in [
    Mechanism("content", lambda heads, width, length: Content(), False, SCALAR, flex=True),
    Mechanism("nope", lambda heads, width, length: NoPE(), True, SCALAR, flex=True),
    Mechanism("rotary", lambda heads, width, length: Rotary(width, pairing="half_split"), True, SCALAR),
    Mechanism("rotary_interleaved", lambda heads, width, length: Rotary(width, pairing="interleaved"), True, SCALAR),
    Mechanism("alibi", lambda heads, width, length: ALiBi(heads, learned=True), True, SCALAR, flex=True),
    Mechanism("alibi_symmetric", lambda heads, width, length: ALiBi(heads, form="symmetric", learned=True), False, SCALAR, flex=True),
    Mechanism("t5", lambda heads, width, length: T5Bias(heads, bidirectional=False, score_scale=None), True, SCALAR, flex=True),
    Mechanism("t5_bidirectional", lambda heads, width, length: T5Bias(heads, bidirectional=True, score_scale=None), False, SCALAR, flex=True),
    Mechanism("shaw", lambda heads, width, length: ShawRelative(64, width, sign="key_minus_query"), False, RELATION),
    Mechanism("shaw_per_head", lambda heads, width, length: ShawRelative(16, width, sign="key_minus_query", heads=heads), True, RELATION),
    Mechanism("shaw_edges", _edges, False),
    Mechanism("music", lambda heads, width, length: MusicRelative(64, width, causal=True, heads=heads), True, RELATION),
    Mechanism("bert_relative", lambda heads, width, length: BertRelative(length, width, variant="relative_key_query"), False),
    Mechanism("tupe_a", lambda heads, width, length: TUPE(heads, heads * width, length, finish=False), False, RELATION),
    Mechanism("tupe_r", _tupe_r, False, RELATION),
    Mechanism("tupe_finished", lambda heads, width, length: TUPE(heads, heads * width, length), False),
    Mechanism("deberta", _deberta, False, SCORES),
    Mechanism("transformer_xl", lambda heads, width, length: TransformerXL(heads * width, heads, width), True, SCORES),
    Mechanism("transformer_xl_both_ways", lambda heads, width, length: TransformerXL(heads * width, heads, width, bidirectional=True), False, SCORES),
    Mechanism("graph", _graph, False),
    Mechanism("grid_bias", _grid, False),
]}


@dataclass(frozen=True)
class Call:
    """One call: lengths, heads, and what a row may see. ``padding`` hides keys at the end of the last batch row, ``segment`` is a length."""

    name: str
    queries: int
    keys: int
    width: int
    batch: int = 2
    heads: int = 4
    key_heads: int = 2
    padding: int = 0
    segment: int | None = None

    def geometry(self, causal: bool, device: str) -> AttentionGeometry:
        """Queries are the last rows of the keys."""
        keys = torch.arange(self.keys, device=device)
        active = torch.arange(self.keys, device=device) < torch.tensor([[self.keys]] * (self.batch - 1) + [[self.keys - self.padding]], device=device)
        owner = None if self.segment is None else keys // self.segment
        return AttentionGeometry(keys[self.keys - self.queries :], keys, causal=causal, key_active=active if self.padding else None,
                                 query_segments=None if owner is None else owner[self.keys - self.queries :], key_segments=owner)


# Odd lengths: no multiple that would let the compiler drop a mask. Two of the three have padding, so that they share compiled kernels.
CALLS = {call.name: call for call in [
    Call("padded", 333, 333, 64, padding=29), Call("decode", 1, 517, 64, padding=41), Call("wide", 301, 301, 128, segment=120)]}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
