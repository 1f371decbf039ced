"""Calls whose pairs read by class, and what each must give: sums over one query at a time, in float64 and without the library.

A class by offset is T5's bucket of ``cases`` for the query's numbers and the mass, and for the key's numbers Shaw's clipped query minus
key: two rules with different numbers of classes, of which an exchanged line or sign shows. A given class is drawn for each pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from tests.kernels.cases import BUCKETS, CLIP, DEVICE, FARTHEST, Case, Tensors, bias, bucket, draw, inputs, inside, poisoned, wide, written
from tests.kernels.gradients import gradient_error

NAMES = "q", "k", "v", "table", "query_scores", "key_scores", "pair_bias"


@dataclass(frozen=True)
class ClassCase(Case):
    """``reads`` names the parts: query, key, pairs and mass. ``given`` draws a class for each pair, else its offset decides."""

    reads: str = "query"
    given: bool = False


CASES = [
    ClassCase("shaw", reads="query mass", queries=40, start=15, keys=60),
    ClassCase("values_alone", reads="mass", causal=True, queries=70, keys=70),
    ClassCase("decode_grouped", reads="query key mass", causal=True, queries=1, keys=50, start=49, heads=4),
    ClassCase("left_padding", reads="query key", batch=2, causal=True, queries=40, keys=40, padding="left", batched=True),
    ClassCase("keys_alone", reads="key", queries=33, scale=0.0),
    ClassCase("shuffled_keys", reads="query key mass", causal=True, queries=45, keys=60, shuffled=True, batched=True, batch=2, heads=3, key_heads=1),
    ClassCase("near_2_31", reads="query key mass", causal=True, queries=40, start=2**31 - 3, origin=2**31 - 43),
    ClassCase("rows_before_every_key", reads="query key mass", causal=True, queries=60, origin=30, keys=40),
    ClassCase("nobody", reads="query key mass pairs", padding="all", queries=20),
    ClassCase("given", reads="query mass", given=True, segments=True, padding="right", batch=2),
    ClassCase("graph", reads="query pairs", given=True, queries=45, keys=45, padding="scattered"),
    ClassCase("given_causal", reads="query key pairs mass", given=True, causal=True, queries=40, keys=70, start=20),
    ClassCase("with_a_bias", "t5", reads="query key mass pairs", causal=True, queries=40, keys=60, start=20),
]
BY_NAME = {case.name: case for case in CASES}


def key_class(offset: int) -> int:
    """Shaw's class of query minus key (Shaw et al. 2018, equation 4)."""
    return max(-CLIP, min(CLIP, -offset)) + CLIP


def draw_parts(case: ClassCase, dtype: torch.dtype, seed: int = 0) -> tuple[Tensors, dict[str, torch.Tensor]]:
    """The inputs of ``cases``, and the parts by their names in the call; what no row may read holds NaN, or a class without a row."""
    t, generator = draw(case, dtype, seed), torch.Generator().manual_seed(seed + 1)
    sums = wide(t)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(case.batch, case.heads, *shape, generator=generator, dtype=torch.float64).to(DEVICE, sums)

    query_classes, key_classes = (BUCKETS, BUCKETS) if case.given else (BUCKETS, 2 * CLIP + 1)
    parts = {"query": normal(case.queries, query_classes), "key": normal(case.keys, key_classes), "pairs": normal(case.queries, case.keys)}
    if t.key_active is not None:
        hidden = ~t.key_active.expand(case.batch, case.keys)[:, None]
        parts["key"], parts["pairs"] = (parts[name].masked_fill(mask, math.nan) for name, mask in (("key", hidden[..., None]), ("pairs", hidden[:, :, None])))
    names = {"query": "query_scores", "key": "key_scores", "pairs": "pair_bias"}
    found = {names[name]: inside(part, math.nan) for name, part in parts.items() if name in case.reads}
    if case.given:
        ids = torch.randint(BUCKETS, (*[case.batch] * case.segments, case.queries, case.keys), generator=generator)  # of each batch row, or of all
        found["classes"] = inside(ids.to(DEVICE, torch.uint8), BUCKETS)
    else:
        offsets = range(-FARTHEST, FARTHEST + 1)
        found["class_of"] = inside(torch.tensor([[bucket(o) for o in offsets], [key_class(o) for o in offsets]], dtype=torch.int32, device=DEVICE), 99)
    return t, found


def arguments(case: ClassCase, t: Tensors, parts: dict[str, torch.Tensor]):
    """The call of the operator."""
    return inputs(case, t)._replace(span=FARTHEST, mass_classes=BUCKETS if "mass" in case.reads else 0, **parts)


def oracle(case: ClassCase, t: Tensors, parts: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(out, log-sum-exp, mass of the classes) in float64: keys that a row may not read do not exist for it. Autograd can follow."""
    def rows(x):
        return None if x is None else x.cpu().expand(case.batch, -1).tolist()

    query_positions, key_positions, active = rows(t.query_positions), rows(t.key_positions), rows(t.key_active)
    query_segments, key_segments = rows(t.query_segments), rows(t.key_segments)
    q, k, v = (x.cpu().double() for x in (t.q, t.k, t.v))
    table = None if t.table is None else t.table.cpu()
    by_query, by_key, by_pair = (None if name not in parts else parts[name].cpu().double() for name in NAMES[4:])
    given = None if "classes" not in parts else parts["classes"].cpu().long().expand(case.batch, -1, -1)
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.full(q.shape[:-1], -math.inf, dtype=torch.float64)
    mass = torch.zeros(*q.shape[:-1], BUCKETS, dtype=torch.float64)
    for b in range(case.batch):
        for i in range(case.queries):
            offsets = [p - query_positions[b][i] for p in key_positions[b]]
            readable = [j for j, o in enumerate(offsets) if (not case.causal or o <= 0) and (active is None or active[b][j])
                        and (query_segments is None or query_segments[b][i] == key_segments[b][j])]
            if not readable:
                continue
            c = [bucket(offsets[j]) for j in readable] if given is None else given[b, i, readable].tolist()
            key_c = [key_class(offsets[j]) for j in readable] if given is None else c
            for h in range(case.heads):
                key_head = h // (case.heads // case.key_heads)
                s = case.scale * (k[b, key_head, readable] @ q[b, h, i]) + bias(case, table, h, [offsets[j] for j in readable])
                if by_query is not None:
                    s = s + by_query[b, h, i, c]
                if by_key is not None:
                    s = s + by_key[b, h, readable, key_c]
                if by_pair is not None:
                    s = s + by_pair[b, h, i, readable]
                p = torch.softmax(s, 0)
                lse[b, h, i], out[b, h, i] = torch.logsumexp(s, 0), p @ v[b, key_head, readable]
                mass[b, h, i] = torch.zeros(BUCKETS, dtype=torch.float64).index_add(0, torch.tensor(c), p)
    return out, lse, mass


def run(case: ClassCase, t: Tensors, parts: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Launch into poisoned outputs; refuse a touched margin. Returns what the oracle does, in float64."""
    from positionlib.kernels import launch

    call = arguments(case, t, parts)
    out, lse = poisoned(t.q, wide(t) if call.mass_classes else None), poisoned(t.q[..., 0], wide(t))
    mass = poisoned(torch.empty(*t.q.shape[:3], BUCKETS), wide(t)) if call.mass_classes else None
    launch.launch(out, lse, mass, call)
    return tuple(written(x) for x in (out, lse, mass) if x is not None)


def forward_error(case: ClassCase, dtype: torch.dtype, want: tuple[torch.Tensor, ...], seen: tuple[torch.Tensor, ...]) -> float:
    """Largest error of a result, relative to the largest value expected of it, over the dtype's tolerance: good up to 1."""
    hidden = want[1] == -math.inf
    assert torch.equal(seen[1] == -math.inf, hidden), "a row that sees nothing must have lse = -inf"
    finite = [dict(enumerate((x[0], x[1].masked_fill(hidden, 0.0), *x[2:]))) for x in (want[: len(seen)], seen)]
    return gradient_error(case, dtype, *finite)


def cotangents(case: ClassCase, t: Tensors, seed: int = 2) -> tuple[torch.Tensor, ...]:
    """∂L/∂ of out, lse and mass, in strided views within NaN."""
    generator = torch.Generator().manual_seed(seed)
    shapes, dtypes = (t.q.shape, t.q.shape[:3], (*t.q.shape[:3], BUCKETS)), (t.q.dtype, wide(t), wide(t))
    return tuple(inside(torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype), math.nan) for shape, dtype in zip(shapes, dtypes))


def gradients(case: ClassCase, t: Tensors, parts: dict[str, torch.Tensor], back: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """Gradients by autograd through the oracle."""
    own = {name: getattr(t, name) for name in NAMES[:4] if getattr(t, name) is not None} | {name: parts[name] for name in NAMES[4:] if name in parts}
    leaves = {name: x.detach().cpu().double().requires_grad_() for name, x in own.items()}
    results = oracle(case, replace(t, **{name: leaves[name] for name in NAMES[:4] if name in leaves}),
                     parts | {name: leaves[name] for name in NAMES[4:] if name in leaves})
    loss = sum((x.masked_fill(x == -math.inf, 0.0) * g.cpu().double()).sum() for x, g in zip(results[: 2 + ("mass" in case.reads)], back))
    if not loss.requires_grad:  # no row sees anything
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)))


def run_backward(case: ClassCase, t: Tensors, parts: dict[str, torch.Tensor], back: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """Launch into poisoned outputs; refuse a touched margin. Returns gradients in float64, the table's folded to its own layout."""
    from positionlib.kernels import launch

    if t.table is not None:
        t = replace(t, table=t.table.detach().requires_grad_())
    call = arguments(case, t, parts)
    out, lse = (inside(torch.zeros_like(x), math.nan) for x in (t.q.to(wide(t)) if call.mass_classes else t.q, t.q[..., 0].to(wide(t))))
    mass = inside(torch.zeros(*t.q.shape[:3], BUCKETS, dtype=wide(t), device=DEVICE), math.nan) if call.mass_classes else None
    found = {name: poisoned(getattr(call, name)) for name in NAMES if getattr(call, name) is not None}
    torch.use_deterministic_algorithms(True)  # fills what empty() returns with NaN: also the scratch must be written before it is read
    try:
        with torch.no_grad():
            launch.launch(out, lse, mass, call)
            launch.launch_backward(found, back[0], back[1], back[2] if call.mass_classes else None, out, lse, mass, call)
    finally:
        torch.use_deterministic_algorithms(False)
    seen = {name: written(x) for name, x in found.items()}
    if "table" in seen:
        seen["table"] = torch.autograd.grad(call.table, t.table, seen["table"].to(call.table))[0].double().cpu()
    return seen
