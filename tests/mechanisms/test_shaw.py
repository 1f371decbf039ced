"""Relative keys and values: loops over pairs, both schedules, gradients, decode, edges, and the released relatives."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import positionlib as pl
from positionlib.mechanisms import shaw, shaw_variants
from positionlib.mechanisms.shaw_variants import skew, skew_bidirectional, unskew
from tests.refusals import refused

B, H, D, DV = 2, 3, 4, 5
RANDOM = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=RANDOM, dtype=torch.float64)


def qkv(queries: int, keys: int, d_value: int = DV) -> tuple[torch.Tensor, ...]:
    return random(B, H, queries, D), random(B, H, keys, D), random(B, H, keys, d_value)


def of_head(table: torch.Tensor, h: int) -> torch.Tensor:
    return table if table.ndim == 2 else table[h]


def by_loops(q, k, v, geometry, row_of, key_table=None, value_table=None, also_keys=False):
    """Pair by pair. ``row_of(b, i, j)`` is a table row, or None for no relation vector."""
    visible = geometry.visible.expand(len(q), -1, -1)
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                weights, values = [], []
                for j in range(k.shape[2]):
                    if not visible[b, i, j]:
                        continue
                    row = row_of(b, i, j)
                    a = of_head(key_table, h)[row] if key_table is not None and row is not None else torch.zeros(D, dtype=q.dtype)
                    dot = q[b, h, i] @ (k[b, h, j] + a) + (k[b, h, j] @ a if also_keys else 0)
                    weights.append(torch.exp(dot / math.sqrt(D)))
                    values.append(v[b, h, j] + (of_head(value_table, h)[row] if value_table is not None and row is not None else 0))
                if weights:
                    out[b, h, i] = sum(w * x for w, x in zip(weights, values)) / sum(weights)
    return out


@pytest.mark.parametrize("heads", [None, H])
@pytest.mark.parametrize("sides", ["both", "keys", "values"])
@pytest.mark.parametrize("sign", ["key_minus_query", "query_minus_key"])
def test_every_pair_by_a_loop(heads, sides, sign):
    module = pl.ShawRelative(2, D, sign=sign, heads=heads, sides=sides, d_value=DV).double()
    g = pl.AttentionGeometry(torch.tensor([4, 9]), torch.tensor([0, 3, 4, 5, 9, 11]), key_active=torch.tensor([True, True, True, True, False, True]))
    q, k, v = qkv(2, 6)
    direction = 1 if sign == "key_minus_query" else -1

    def row(b, i, j):
        return max(-2, min(2, direction * int(g.key_positions[j] - g.query_positions[i]))) + 2

    want = by_loops(q, k, v, g, row, module.key_table, module.value_table)
    assert torch.allclose(pl.attend(q, k, v, module(g), g), want, atol=1e-12)


def test_the_article_worked_case():
    """A decode query at position 5 over keys 2..6 with k = 2 reads the rows 0, 0, 1, 2, 3."""
    term = pl.ShawRelative(2, D, sign="key_minus_query")(pl.AttentionGeometry(torch.tensor([5]), torch.arange(2, 7)))
    assert term.classes(torch.tensor([5]), torch.arange(2, 7)).tolist() == [[0, 0, 1, 2, 3]]


@pytest.mark.parametrize("heads", [None, H])
@pytest.mark.parametrize("batched", [False, True])
def test_both_schedules_agree(heads, batched):
    module = pl.ShawRelative(3, D, sign="key_minus_query", heads=heads, d_value=DV).double()
    classes = torch.randint(0, 7, (B, 5, 6) if batched else (5, 6), generator=RANDOM)
    q, p = random(B, H, 5, D), random(B, H, 5, 6).softmax(-1)
    assert torch.allclose(shaw.direct_key_scores(q, module.key_table, classes), shaw.compact_key_scores(q, module.key_table, classes), atol=1e-12)
    assert torch.allclose(shaw.direct_value_sum(p, module.value_table, classes), shaw.compact_value_sum(p, module.value_table, classes), atol=1e-12)
    one = shaw.direct_rows(module.key_table, classes)[-1, -1, 4, 5]
    assert torch.equal(one, of_head(module.key_table, -1)[int(classes[..., 4, 5].reshape(-1)[-1])])


class Sizes(TorchDispatchMode):
    """Element counts of everything that is computed."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.seen |= {result.numel()} if isinstance(result, torch.Tensor) else set()
        return result


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_the_ledger_counts_what_the_schedules_hold(per_head, batched):
    queries, keys, k = 11, 13, 3
    module = pl.ShawRelative(k, 17, sign="key_minus_query", heads=H if per_head else None, d_value=19)
    ledger = shaw.memory_ledger(B, H, queries, keys, 17, k, per_head=per_head, batched_classes=batched, d_value=19)
    assert ledger.parameters == sum(p.numel() for p in module.parameters())
    classes = torch.zeros((B, queries, keys) if batched else (queries, keys), dtype=torch.long)
    q, p = torch.randn(B, H, queries, 17), torch.randn(B, H, queries, keys)
    with torch.no_grad(), Sizes() as direct:
        assert shaw.direct_key_scores(q, module.key_table, classes).numel() == ledger.scores
        shaw.direct_value_sum(p, module.value_table, classes)
    with torch.no_grad(), Sizes() as compact:
        shaw.compact_key_scores(q, module.key_table, classes)
        shaw.compact_value_sum(p, module.value_table, classes)
    assert {ledger.direct_keys, ledger.direct_values} <= direct.seen and not {ledger.direct_keys, ledger.direct_values} & compact.seen
    assert {ledger.compact_keys, ledger.compact_values} <= compact.seen


def test_the_compact_schedule_is_not_always_the_smaller_one():
    long, short = (shaw.memory_ledger(1, 8, n, n, 64, 16) for n in (1024, 4))
    assert (long.direct_keys, long.compact_keys) == (1024 * 1024 * 64, 8 * 1024 * 33) and long.direct_keys > long.compact_keys
    assert (short.direct_keys, short.compact_keys) == (4 * 4 * 64, 8 * 4 * 33) and short.direct_keys < short.compact_keys


def test_table_gradients_carry_one_factor_of_the_scale():
    """dL/dR^K_r = Σ g_ij q_i / √d over the pairs of class r and all heads; dL/dR^V_r = Σ α_ij g_i."""
    module, g = pl.ShawRelative(2, D, sign="key_minus_query", d_value=DV).double(), pl.AttentionGeometry.causal_self(6)
    q, k, v = qkv(6, 6)
    upstream = random(B, H, 6, DV)
    out, trace = pl.attend(q, k, v, module(g), g, return_trace=True)
    trace.scores.retain_grad()
    (out * upstream).sum().backward()
    keys, values = torch.zeros(5, D, dtype=torch.float64), torch.zeros(5, DV, dtype=torch.float64)
    for i in range(6):
        for j in range(i + 1):
            row = max(-2, j - i) + 2
            keys[row] += torch.einsum("bh,bhd->d", trace.scores.grad[:, :, i, j], q[:, :, i]) / math.sqrt(D)
            values[row] += torch.einsum("bh,bhd->d", trace.probabilities[:, :, i, j], upstream[:, :, i])
    assert torch.allclose(module.key_table.grad, keys.detach(), atol=1e-12) and keys.abs().max() > 0.1
    assert torch.allclose(module.value_table.grad, values.detach(), atol=1e-12)
    assert not keys[3:].any(), "no class of the future is read under a causal mask"


def modules():
    return {"shared": pl.ShawRelative(2, D, sign="key_minus_query", d_value=DV), "per_head": pl.ShawRelative(2, D, sign="query_minus_key", heads=H, d_value=DV),
            "relative_key": pl.BertRelative(9, D, variant="relative_key"), "relative_key_query": pl.BertRelative(9, D, variant="relative_key_query"),
            "music": pl.MusicRelative(3, D, causal=True, heads=H, sides="both", d_value=DV)}


@pytest.mark.parametrize("name", modules())
def test_gradcheck_of_every_parameter(name):
    module, g = modules()[name].double(), pl.AttentionGeometry.causal_self(4)
    names, values = zip(*module.named_parameters())
    q, k, v = qkv(4, 4)

    def run(*parameters):
        term = torch.func.functional_call(module, dict(zip(names, parameters)), (g,))
        return pl.attend(q, k, v, term, g)

    assert torch.autograd.gradcheck(run, values)


@pytest.mark.parametrize("name", modules())
def test_prefill_chunks_and_decode_give_the_same_rows(name):
    module, whole = modules()[name].double(), pl.AttentionGeometry.causal_self(9)
    q, k, v = qkv(9, 9)
    out = pl.attend(q, k, v, module(whole), whole)
    for start, stop in ((0, 4), (4, 8), (8, 9)):
        chunk = whole.slice_queries(start, stop)
        assert torch.allclose(pl.attend(q[:, :, start:stop], k, v, module(chunk), chunk), out[:, :, start:stop], atol=1e-12)
    for t in range(9):
        step = pl.AttentionGeometry.decode(t)
        got = pl.attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], module(step), step)
        assert torch.allclose(got, out[:, :, t : t + 1], atol=1e-12)


@pytest.mark.parametrize("heads", [None, H])
def test_typed_edges_by_a_loop(heads):
    module = pl.EdgeRelative(4, D, heads=heads, d_value=DV).double()
    positions = torch.arange(5).expand(B, -1)
    g = pl.AttentionGeometry(positions, positions, allowed=torch.rand(B, 5, 5, generator=RANDOM) > 0.3)
    edges = torch.randint(0, 4, (B, 5, 5), generator=RANDOM)
    q, k, v = qkv(5, 5)
    want = by_loops(q, k, v, g, lambda b, i, j: int(edges[b, i, j]), module.key_table, module.value_table)
    assert torch.allclose(pl.attend(q, k, v, module(g, edges), g), want, atol=1e-12)
    shared = pl.AttentionGeometry.encoder(5)
    want = by_loops(q, k, v, shared, lambda b, i, j: int(edges[0, i, j]), module.key_table, module.value_table)
    assert torch.allclose(pl.attend(q, k, v, module(shared, edges[0].to(torch.uint8)), shared), want, atol=1e-12)


def test_clipped_offsets_are_one_kind_of_edge():
    clipped, g = pl.ShawRelative(2, D, sign="key_minus_query").double(), pl.AttentionGeometry.causal_self(6)
    edges = pl.EdgeRelative(5, D).double()
    edges.load_state_dict(clipped.state_dict())
    q, k, v = qkv(6, 6, D)
    given = edges(g, g.offsets("key_minus_query").clamp(-2, 2) + 2)
    assert torch.equal(pl.attend(q, k, v, given, g), pl.attend(q, k, v, clipped(g), g))


@pytest.mark.parametrize("variant", ["relative_key", "relative_key_query"])
def test_bert_by_a_loop_in_the_other_sign(variant):
    module = pl.BertRelative(6, D, variant=variant).double()
    g = pl.AttentionGeometry(torch.tensor([[3, 5], [0, 1]]), torch.tensor([[0, 3, 5], [4, 0, 5]]))
    q, k, v = qkv(2, 3)

    def row(b, i, j):
        return int(g.query_positions[b, i] - g.key_positions[b, j]) + 5

    want = by_loops(q, k, v, g, row, module.weight, also_keys=variant == "relative_key_query")
    assert torch.allclose(pl.attend(q, k, v, module(g), g), want, atol=1e-12)


def test_bert_does_not_clip():
    module = pl.BertRelative(4, D, variant="relative_key")
    assert module(pl.AttentionGeometry.encoder(4)).rule.classes(torch.tensor([-3, 0, 3])).tolist() == [0, 3, 6]
    for geometry, offset in ((pl.AttentionGeometry.encoder(5), -4), (pl.AttentionGeometry.decode(4), 4)):
        with pytest.raises(pl.PositionRangeError) as caught:
            module(geometry)
        assert caught.value.field == "offset" and caught.value.value == offset and "7 rows" in str(caught.value)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [None, H])
def test_beyond_a_zero_padded_table_there_is_no_vector(causal, heads):
    module = pl.MusicRelative(3, D, causal=causal, heads=heads, sides="both", d_value=DV).double()
    g = (pl.AttentionGeometry.causal_self if causal else pl.AttentionGeometry.encoder)(6)
    q, k, v = qkv(6, 6)
    want = by_loops(q, k, v, g, lambda b, i, j: j - i + 2 if abs(j - i) < 3 else None, module.key_table, module.value_table)
    assert torch.allclose(pl.attend(q, k, v, module(g), g), want, atol=1e-12)
    assert module.key_table.shape[-2] == (3 if causal else 5)


def test_clipping_and_zero_padding_are_different_models():
    clipped, padded = pl.ShawRelative(2, D, sign="key_minus_query", sides="keys").double(), pl.MusicRelative(3, D, causal=False).double()
    padded.load_state_dict(clipped.state_dict())
    g = pl.AttentionGeometry.encoder(4)
    a, b = (pl.attend(*qkv_fixed, m(g), g, return_trace=True)[1].scores for qkv_fixed in [qkv(4, 4)] for m in (clipped, padded))
    far = g.offsets("key_minus_query").abs() > 2
    assert torch.allclose(a[..., ~far], b[..., ~far], atol=1e-12) and (a - b)[..., far].abs().min() > 1e-6


@pytest.mark.parametrize("length", [1, 2, 5])
def test_skewing_by_brute_force(length):
    masked, both, aligned = random(2, length, length), random(2, length, 2 * length - 1), random(2, length, length)
    for i in range(length):
        for j in range(length):
            assert torch.equal(skew_bidirectional(both)[:, i, j], both[:, i, j - i + length - 1])
            if j <= i:
                assert torch.equal(skew(masked)[:, i, j], masked[:, i, j - i + length - 1])
                assert torch.equal(unskew(aligned)[:, i, j - i + length - 1], aligned[:, i, j])


@pytest.mark.parametrize("causal", [True, False])
def test_skewed_products_are_the_gathered_ones(causal):
    module = pl.MusicRelative(3, D, causal=causal).double()
    g = (pl.AttentionGeometry.causal_self if causal else pl.AttentionGeometry.encoder)(7)
    q, k, v = qkv(7, 7)
    scores = pl.attend(q, k, v, module(g), g, return_trace=True)[1].scores
    aligned = (skew if causal else skew_bidirectional)(q @ module.rows_in_order(7).mT)
    difference = (q @ k.mT + aligned) / math.sqrt(D) - scores
    assert difference[..., g.visible].abs().max() < 1e-12


GEOMETRY = pl.AttentionGeometry.encoder(3)


@pytest.mark.parametrize("attempt, field", [
    (lambda: pl.ShawRelative(0, 4, sign="key_minus_query"), "max_distance"),
    (lambda: pl.ShawRelative(2, 4, sign="relative"), "sign"),
    (lambda: pl.ShawRelative(2, True, sign="key_minus_query"), "d_head"),
    (lambda: pl.ShawRelative(2, 4, sign="key_minus_query", heads=0), "heads"),
    (lambda: pl.ShawRelative(2, 4, sign="key_minus_query", sides="none"), "sides"),
    (lambda: pl.ShawRelative(2, 4, sign="key_minus_query")(pl.AttentionGeometry.cross(2, 3)), "coordinate_frame"),
    (lambda: pl.EdgeRelative(2, 4)(GEOMETRY, torch.full((3, 3), 2)), "edge_types"),
    (lambda: pl.EdgeRelative(2, 4)(GEOMETRY, torch.full((3, 3), -1)), "edge_types"),
    (lambda: pl.EdgeRelative(2, 4)(GEOMETRY, torch.zeros(3, 3)), "edge_types"),
    (lambda: pl.EdgeRelative(2, 4)(GEOMETRY, torch.zeros(3, 2, dtype=torch.long)), "edge_types"),
    (lambda: pl.EdgeRelative(2, 4)(GEOMETRY, torch.zeros(2, 3, 3, dtype=torch.long)), "edge_types"),
    (lambda: pl.BertRelative(4, 4, variant="absolute"), "variant"),
    (lambda: pl.MusicRelative(4, 4, causal=1), "causal"),
    (lambda: pl.MusicRelative(4, 4, causal=True)(GEOMETRY), "causal"),
    (lambda: pl.MusicRelative(4, 4, causal=True, sides="values").rows_in_order(3), "key_table"),
    (lambda: pl.attend(*(torch.zeros(1, 2, 3, 6),) * 3, pl.BertRelative(4, 4, variant="relative_key_query")(GEOMETRY), GEOMETRY), "weight"),
    (lambda: pl.attend(*(torch.zeros(1, 2, 3, 4),) * 3, pl.ShawRelative(2, 4, sign="key_minus_query", heads=3)(GEOMETRY), GEOMETRY), "key_table"),
    (lambda: shaw_variants.ZeroPadded(3, True).classes(torch.zeros(2)), "offset"),
    (lambda: skew(torch.zeros(3, 4)), "compact"),
    (lambda: skew_bidirectional(torch.zeros(3, 3)), "compact"),
    (lambda: shaw.memory_ledger(1, 1, 0, 1, 4, 2), "queries"),
])
def test_bad_input_is_refused_by_name(attempt, field):
    refused(attempt, field)


def test_a_sign_has_no_default():
    with pytest.raises(TypeError):
        pl.ShawRelative(2, 4)
