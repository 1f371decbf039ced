"""Calls for the fused kernel, drawn from a seed, and what each must give, in float64 from first principles.

Nothing of what is expected comes from the library: the oracle writes out scores, visibility and softmax for one query at a time. Every input
lies inside a larger buffer whose margin holds what would betray a stray read: NaN for numbers, position 0 (visible to
everyone), True for padding, segment 0. Outputs lie inside a buffer full of a sentinel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from positionlib.kernels.arguments import Call

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SENTINEL = -777.0
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
BUCKETS, FARTHEST = 8, 20  # a small T5 rule: two exact distances a side
CLIP = 9  # Shaw's rule on T5's kernel: every offset up to the last has a class of its own, so an off-by-one shows


@dataclass(frozen=True)
class Case:
    """One call. ``start`` is the position of the first query; keys start at ``origin``; ``shuffled`` permutes the keys' order."""

    name: str
    kind: str = "content"
    queries: int = 37
    keys: int = 80  # two and a half tiles of 32
    width: int = 16
    batch: int = 1
    heads: int = 2
    key_heads: int = 2
    start: int = 0
    origin: int = 0
    causal: bool = False
    padding: str = "none"  # left | right | scattered | all
    segments: bool = False
    batched: bool = False  # positions [B, N] instead of [N]
    shuffled: bool = False
    scale: float = 0.25
    loud: float = 1.0  # factor of q: large scores

    def prepared(self, t: Tensors) -> Tensors:
        """What the oracle reads in place of the inputs."""
        return t

    def extra(self, t: Tensors) -> dict:
        """Arguments of the operator that only some mechanisms have."""
        return {}

    def added(self, t: Tensors, b: int, h: int, i: int, readable: list[int], offsets: list[int]) -> torch.Tensor | float:
        """What is added to the scaled scores of query i and the keys that it may read, which lie at ``offsets`` from it."""
        return bias(self, None if t.table is None else t.table.cpu(), h, offsets)


CASES = [
    Case("content"),
    Case("causal", causal=True, queries=80),
    Case("causal_more_queries", causal=True, queries=70, keys=33, width=32),
    Case("chunk_of_a_prefill", "t5", causal=True, queries=24, start=56),
    Case("decode", "alibi_relative", causal=True, queries=1, start=79, heads=4),
    Case("decode_grouped", "t5", causal=True, queries=1, keys=50, start=49, heads=4, key_heads=2, width=64),
    Case("grouped", causal=True, queries=40, heads=6, key_heads=2),
    Case("one_key_head", "alibi_relative", causal=True, queries=40, start=40, heads=3, key_heads=1),
    Case("left_padding", "t5", batch=2, causal=True, queries=40, keys=40, padding="left", batched=True),
    Case("right_padding", "alibi_symmetric", batch=2, padding="right"),
    Case("scattered_padding", batch=2, padding="scattered"),
    Case("nobody", "t5", padding="all", queries=20),
    Case("segments", "t5", batch=2, causal=True, queries=80, segments=True),
    Case("segments_both_ways", "alibi_symmetric", segments=True, padding="right"),
    Case("rows_before_every_key", "alibi_relative", causal=True, queries=60, origin=30, keys=40),
    Case("shuffled_keys", "alibi_relative", causal=True, queries=60, shuffled=True, batched=True, batch=2),
    Case("batched_keys", "t5", batch=2, causal=True, queries=40, start=40, batched=True),
    Case("clipped", "clip", queries=40, start=15, keys=60),
    Case("decode_just_past_a_tile", causal=True, queries=1, start=32),
    Case("relative_future", "alibi_relative", queries=45, keys=70),
    Case("symmetric_wide", "alibi_symmetric", queries=33, width=48, heads=3, key_heads=3),
    Case("bidirectional_buckets", "t5", queries=65, keys=65, width=48),
    Case("scale_one", "t5", scale=1.0, queries=33),
    Case("loud", "alibi_relative", causal=True, queries=80, loud=30.0),
    Case("near_2_31", "t5", causal=True, queries=40, start=2**31 - 3, origin=2**31 - 43),
    Case("alibi_near_2_31", "alibi_relative", causal=True, queries=40, start=2**31 - 3, origin=2**31 - 43),
    Case("beyond_2_31_apart", "t5", causal=True, queries=17, start=2**40),
    Case("wide_head", "t5", causal=True, queries=36, keys=40, width=128, heads=1, key_heads=1),
    Case("one_of_each", queries=1, keys=1),
]
BY_NAME = {case.name: case for case in CASES}


@dataclass
class Tensors:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    query_positions: torch.Tensor
    key_positions: torch.Tensor
    key_active: torch.Tensor | None
    query_segments: torch.Tensor | None
    key_segments: torch.Tensor | None
    table: torch.Tensor | None  # slopes [H], or [classes, H]


def inside(x: torch.Tensor, margin: float) -> torch.Tensor:
    """A strided view equal to x within a larger buffer full of ``margin``; every second element along the last axis."""
    shape = [n + 3 for n in x.shape[:-1]] + [2 * x.shape[-1] + 3]
    view = torch.full(shape, margin, dtype=x.dtype, device=x.device)
    view = view[tuple(slice(1, 1 + n) for n in x.shape[:-1])][..., 2 : 2 + 2 * x.shape[-1] : 2]
    return view.copy_(x)


def draw(case: Case, dtype: torch.dtype, seed: int = 0) -> Tensors:
    """The inputs of a case, rounded to ``dtype``; inactive keys hold NaN, as an unwritten cache slot may."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    b, kv = case.batch, (case.batch, case.key_heads, case.keys, case.width)
    q, k, v = case.loud * normal(b, case.heads, case.queries, case.width), normal(*kv), normal(*kv)
    query_positions, key_positions = case.start + torch.arange(case.queries), case.origin + torch.arange(case.keys)
    if case.shuffled:
        key_positions = key_positions[torch.randperm(case.keys, generator=generator)]
    active = {
        "none": None,
        "left": torch.arange(case.keys) >= torch.tensor([[7], [0]]),
        "right": torch.arange(case.keys) < case.keys - torch.arange(11, 11 + b)[:, None],
        "scattered": torch.rand(b, case.keys, generator=generator) > 0.4,
        "all": torch.zeros(case.keys, dtype=torch.bool),
    }[case.padding]
    if case.batched:
        shift = 5 * torch.arange(b)[:, None]
        query_positions, key_positions = query_positions + shift, key_positions + shift // 2
    segments = [torch.arange(n) // 23 if case.segments else None for n in (case.queries, case.keys)]
    table = {"content": None, "t5": normal(BUCKETS, case.heads), "clip": normal(2 * CLIP + 1, case.heads)}.get(case.kind, normal(case.heads).abs())
    if active is not None:
        hidden = ~active.expand(b, case.keys)[:, None, :, None]
        k, v = k.masked_fill(hidden, math.nan), v.masked_fill(hidden, math.nan)

    def place(x: torch.Tensor | None, margin: float, cast: torch.dtype | None = None) -> torch.Tensor | None:
        return None if x is None else inside(x.to(DEVICE, cast or x.dtype), margin)

    return Tensors(*(place(x, math.nan, dtype) for x in (q, k, v)), place(query_positions, 0), place(key_positions, 0), place(active, True),
                   place(segments[0], 0), place(segments[1], 0), None if table is None else table.to(DEVICE))


def bucket(offset: int) -> int:
    """T5's bucket of key − query, both directions, by the formula of the paper (Raffel et al. 2020, section 2.1) in float64."""
    half, n = BUCKETS // 2, abs(offset)
    exact = half // 2
    if n >= exact:
        n = min(half - 1, exact + math.floor(math.log(n / exact) / math.log(FARTHEST / exact) * (half - exact) + 1e-9))
    return n + half * (offset > 0)


def bias(case: Case, table: torch.Tensor | None, head: int, offsets: list[int]) -> torch.Tensor | float:
    """What the mechanism adds to the scaled scores of one row; offsets are key − query."""
    if case.kind == "content":
        return 0.0
    if case.kind in ("t5", "clip"):
        return table[[bucket(o) if case.kind == "t5" else CLIP + max(-CLIP, min(CLIP, o)) for o in offsets], head]
    return -table[head] * torch.tensor([abs(o) if case.kind == "alibi_symmetric" else max(-o, 0) for o in offsets], dtype=torch.float64)


def oracle(case: Case, t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, log-sum-exp) in float64, one query at a time: keys that a row may not read do not exist for it. Autograd can follow."""
    t = case.prepared(t)

    def rows(x):
        return None if x is None else x.cpu().expand(case.batch, -1).tolist()

    query_positions, key_positions, active = rows(t.query_positions), rows(t.key_positions), rows(t.key_active)
    query_segments, key_segments = rows(t.query_segments), rows(t.key_segments)
    q, k, v = (x.cpu().double() for x in (t.q, t.k, t.v))
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.full(q.shape[:-1], -math.inf, dtype=torch.float64)
    for b in range(case.batch):
        for i in range(case.queries):
            offsets = [p - query_positions[b][i] for p in key_positions[b]]
            readable = [j for j, o in enumerate(offsets) if (not case.causal or o <= 0) and (active is None or active[b][j])
                        and (query_segments is None or query_segments[b][i] == key_segments[b][j])]
            if not readable:
                continue
            for h in range(case.heads):
                key_head = h // (case.heads // case.key_heads)
                scores = case.scale * (k[b, key_head, readable] @ q[b, h, i]) + case.added(t, b, h, i, readable, [offsets[j] for j in readable])
                lse[b, h, i] = torch.logsumexp(scores, 0)
                out[b, h, i] = torch.softmax(scores, 0) @ v[b, key_head, readable]
    return out, lse


def run(case: Case, t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch into poisoned outputs; refuse a touched margin. Returns (out, lse) in float64."""
    from positionlib.kernels import launch

    out, lse = poisoned(t.q), poisoned(t.q[..., 0], wide(t))
    launch.launch(out, lse, None, inputs(case, t))
    return written(out), written(lse)


def inputs(case: Case, t: Tensors) -> Call:
    """The arguments of the operator. The table is laid out by offset, which autograd can follow."""
    from positionlib.kernels import BiasArgs
    from positionlib.rules import Clip, T5Buckets

    kind, span, table = case.kind, 0, t.table
    if kind in ("t5", "clip"):
        rule = Clip(CLIP) if kind == "clip" else T5Buckets(BUCKETS, FARTHEST, bidirectional=True)
        args = BiasArgs.from_classes(t.table, rule, "key_minus_query")
        kind, span, table = args.kind, args.span, args.table
    return Call(t.q, t.k, t.v, t.query_positions, t.key_positions, t.key_active, t.query_segments, t.key_segments, table, kind, span,
                case.causal, case.scale)._replace(**case.extra(t))


def wide(t: Tensors) -> torch.dtype:
    return torch.float64 if t.q.dtype == torch.float64 else torch.float32


def poisoned(like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A strided output full of NaN within a buffer full of the sentinel."""
    return inside(torch.full(like.shape, math.nan, dtype=dtype or like.dtype, device=DEVICE), SENTINEL)


def written(view: torch.Tensor) -> torch.Tensor:
    """What a kernel wrote, in float64; an output that left its margin alone."""
    buffer = torch.empty(0, dtype=view.dtype, device=DEVICE).set_(view.untyped_storage())
    touched = int((buffer != SENTINEL).sum()) - view.numel()
    assert touched == 0, f"{touched} elements of the margin were written"
    return view.double().cpu()


def error(case: Case, dtype: torch.dtype, expected: tuple[torch.Tensor, torch.Tensor], t: Tensors) -> float:
    """Largest error of out and of lse, relative to the largest value expected, over the dtype's tolerance: good up to 1."""
    worst = 0.0
    for seen, want in zip(run(case, t), expected):
        hidden = want == -math.inf
        assert bool((seen[hidden] == -math.inf).all()), "a row that sees nothing must have lse = -inf"
        if hidden.all():
            continue
        gap = (seen - want)[~hidden].abs().max() / want[~hidden].abs().max().clamp_min(1e-300 if want.any() else 1.0)
        worst = max(worst, math.inf if math.isnan(gap) else float(gap))
    return worst / TOLERANCE[dtype]
