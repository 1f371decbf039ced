"""Every mechanism and every kind of geometry in one small size, and what attend() makes of a call by a named backend."""

from __future__ import annotations

import torch

import positionlib as pl
from positionlib.rotation import QKTransform
from positionlib.rules import T5Buckets, frequency_ladder

B, H, N, D = 2, 4, 70, 6  # more than two blocks of queries and two tiles of keys, once those are cut to 24 and 10


def left_padded() -> pl.AttentionGeometry:
    active = torch.arange(N) >= torch.tensor([[9], [0]])
    positions = (active.cumsum(-1) - 1).clamp_min(0)
    return pl.AttentionGeometry(positions, positions, causal=True, key_active=active)


def packed(causal: bool) -> pl.AttentionGeometry:
    lengths = torch.tensor([30, 19, 21])
    segments, positions = torch.arange(3).repeat_interleave(lengths), torch.cat([torch.arange(n) for n in lengths])
    return pl.AttentionGeometry(positions, positions, causal=causal, query_segments=segments, key_segments=segments)


def scattered(seed: int = 0) -> torch.Tensor:
    return torch.rand(B, N, generator=torch.Generator().manual_seed(seed)) > 0.3


RUNS = {
    "encoder": pl.AttentionGeometry.encoder(N),
    "causal": pl.AttentionGeometry.causal_self(N, start=5),
    "decode": pl.AttentionGeometry.decode(N - 1),
    "chunk": pl.AttentionGeometry.decode(N - 40, 40),
    "packed": packed(True),
    "packed both ways": packed(False),
    "right padded": pl.AttentionGeometry.encoder(N, key_active=torch.arange(N) < torch.tensor([[N], [51]])),
    "rows before every key": pl.AttentionGeometry(torch.arange(40), torch.arange(13, 70), causal=True),
    "batch positions": pl.AttentionGeometry(torch.arange(N) + torch.tensor([[0], [31]]), torch.arange(N) + torch.tensor([[0], [31]]), causal=True),
}
OTHERS = {
    "left padded": left_padded(),
    "shuffled": pl.AttentionGeometry(torch.randperm(N, generator=torch.Generator().manual_seed(1)), torch.arange(N), causal=True),
    "scattered padding": pl.AttentionGeometry.encoder(N, key_active=scattered()),
    "allowed": pl.AttentionGeometry.encoder(N, allowed=scattered()[0] & scattered(1)[0, :, None]),
    "window": pl.AttentionGeometry.causal_self(N, allowed=torch.ones(B, N, N, dtype=torch.bool).triu(-7)),
    "no keys": pl.AttentionGeometry(torch.arange(3), torch.arange(0), causal=True),
    "no queries": pl.AttentionGeometry(torch.arange(0), torch.arange(4), causal=True),
}


def rotary(geometry: pl.AttentionGeometry) -> QKTransform:
    return QKTransform(inverse_frequency=frequency_ladder(2, 4), pairing="interleaved")


def edges(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(seed))


class Edges(pl.EdgeRelative):
    """Random edge types of whatever geometry it gets."""

    def forward(self, geometry):
        lead = () if geometry.batch is None else (geometry.batch,)
        return super().forward(geometry, edges(3, *lead, geometry.query_length, geometry.key_length))


class Axes(pl.GridBias):
    """A bias of positions and of one more axis, whose coordinates follow from them."""

    def forward(self, geometry):
        queries, keys = ({"x": p % 7} for p in (geometry.query_positions, geometry.key_positions))
        return super().forward(geometry, queries, keys)


SHORT = {  # at most one number an offset: what torch's own attention takes
    "content": lambda: lambda geometry: None,
    "rotary": lambda: rotary,
    "t5": lambda: pl.T5Bias(H, 8, 20, bidirectional=True),
    "t5 causal": lambda: pl.T5Bias(H, 8, 20, bidirectional=False, table_layout="heads_buckets"),
    "alibi": lambda: pl.ALiBi(H),
    "alibi symmetric inside": lambda: pl.ALiBi(H, form="symmetric", inside_scale=True),
    "alibi by key": lambda: pl.ALiBi(H, form="key_index"),
    "alibi to the last key": lambda: pl.ALiBi(H, form="key_minus_last"),
}
LONG = {
    "shaw": lambda: pl.ShawRelative(9, D, sign="key_minus_query"),
    "shaw by head": lambda: pl.ShawRelative(9, D, sign="query_minus_key", heads=H),
    "shaw values": lambda: pl.ShawRelative(9, D, sign="key_minus_query", sides="values"),
    "bert keys": lambda: pl.BertRelative(120, D, variant="relative_key"),
    "bert both": lambda: pl.BertRelative(120, D, variant="relative_key_query"),
    "music": lambda: pl.MusicRelative(20, D, causal=True, sides="both", heads=H),
    "transformer-xl": lambda: pl.TransformerXL(H * D, H, D, clamp_len=50),
    "deberta paper": lambda: pl.DeBERTa(H, H * D, 32, terms=("c2c", "c2p", "p2c"), third_index="paper", projections="own", buckets=16, edge="exact"),
    "deberta released": lambda: pl.DeBERTa(H, H * D, 20, terms=("c2p", "c2c", "p2c"), third_index="released", projections="own"),
    "deberta third alone": lambda: pl.DeBERTa(H, H * D, 20, terms=("p2c",), third_index="released", projections="own"),
    "tupe": lambda: pl.TUPE(H, H * D, 120, relative=T5Buckets(8, 20)),
    "tupe in parts": lambda: pl.TUPE(H, H * D, 120, relative=T5Buckets(8, 20), finish=False),
    "edges": lambda: Edges(5, D),
    "axes": lambda: Axes(H, {name: T5Buckets(8, 20) for name in ("position", "x")}, inside_scale=True),
    "falcon": lambda: pl.ALiBi(H, form="key_index", inside_scale=True, rounded=torch.bfloat16),
}


def inputs(geometry: pl.AttentionGeometry, dtype: torch.dtype = torch.float64, key_heads: int = H, width: int = D) -> list[torch.Tensor]:
    """q, k, v that require gradients."""
    generator = torch.Generator().manual_seed(7)
    shapes = ((H, geometry.query_length, D), (key_heads, geometry.key_length, D), (key_heads, geometry.key_length, width))
    return [torch.randn(B, *shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def mechanism(build, dtype: torch.dtype = torch.float64):
    torch.manual_seed(3)
    module = build()
    return module.to(dtype) if isinstance(module, torch.nn.Module) else module


def outcome(backend: str, module, geometry: pl.AttentionGeometry, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output, then a gradient for each input and each parameter; zeros where there is none."""
    leaves = [*tensors, *(module.parameters() if isinstance(module, torch.nn.Module) else ())]
    out, trace = pl.attend(*tensors, module(geometry), geometry, backend=backend, return_trace=True)
    assert trace.backend == backend and (trace.scores is None) == (backend != "eager")
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return [out.detach(), *torch.autograd.grad(out.double(), leaves, weights, materialize_grads=True)]


def fitting(names: dict, geometry: pl.AttentionGeometry) -> list[str]:
    """The mechanisms that take this geometry: causal ones refuse the others, and the reverse."""
    def takes(name: str) -> bool:
        try:
            mechanism(names[name])(geometry)
        except pl.PositionContractError:
            return False
        return True

    return [name for name in names if takes(name)]
