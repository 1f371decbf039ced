"""attend() against plain loops in float64, over geometries, dtypes and terms."""

import math

import numpy as np
import pytest
import torch

import positionlib as pl
from positionlib.attention import masked_softmax
from positionlib.rules import Clip, frequency_ladder
from positionlib.rotation import QKTransform
from positionlib.terms import ClassBias, Relation, SlopeBias


def loop_attention(q, k, v, visible, scale, bias=None):
    """Softmax attention one query at a time, over the visible keys alone: there is no mask to get wrong."""
    B, H, Q, _ = q.shape
    out = torch.zeros(B, H, Q, v.shape[-1], dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            kv_head = h * k.shape[1] // H
            for i in range(Q):
                seen = [j for j in range(k.shape[2]) if visible[b, i, j]]
                if not seen:
                    continue
                s = [scale * float(q[b, h, i].double() @ k[b, kv_head, j].double()) + (0 if bias is None else float(bias[b, h, i, j])) for j in seen]
                w = [math.exp(x - max(s)) for x in s]
                out[b, h, i] = sum(x * v[b, kv_head, j].double() for x, j in zip(w, seen)) / sum(w)
    return out


def inputs(B=2, H=4, Q=5, K=5, D=6, kv_heads=None, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    heads = kv_heads or H
    return [torch.randn(B, h, n, D, generator=g, dtype=torch.float64).to(dtype) for h, n in ((H, Q), (heads, K), (heads, K))]


GEOMETRIES = {
    "encoder": pl.AttentionGeometry.encoder(5),
    "causal": pl.AttentionGeometry.causal_self(5),
    "decode": pl.AttentionGeometry.decode(3, 5),
    "left padded": pl.AttentionGeometry.causal_self(5, key_active=torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]).bool()),
    "packed": pl.AttentionGeometry(torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 1, 2, 0, 1]), causal=True, query_segments=torch.tensor([0, 0, 0, 1, 1]),
                                   key_segments=torch.tensor([0, 0, 0, 1, 1])),
}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention_equals_the_loop(name, kv_heads):
    g = GEOMETRIES[name]
    q, k, v = inputs(Q=g.query_length, K=g.key_length, kv_heads=kv_heads)
    visible = g.visible.expand(2, g.query_length, g.key_length)
    got = pl.attend(q, k, v, None, g)
    assert torch.allclose(got, loop_attention(q, k, v, visible, 1 / math.sqrt(6)), atol=1e-13, rtol=0)


def test_a_bias_is_added_outside_the_scale_and_inside_only_by_name():
    g, (q, k, v) = pl.AttentionGeometry.causal_self(5), inputs()
    slopes = pl.alibi_slopes(4)
    i, j = torch.arange(5)[:, None], torch.arange(5)[None, :]
    bias = -(slopes[:, None, None] * (i - j).clamp_min(0)).expand(2, 4, 5, 5)
    visible, scale = g.visible.expand(2, 5, 5), 1 / math.sqrt(6)
    assert torch.allclose(pl.attend(q, k, v, pl.ALiBi(4)(g), g), loop_attention(q, k, v, visible, scale, bias), atol=1e-13, rtol=0)
    inside = pl.attend(q, k, v, pl.ALiBi(4, inside_scale=True)(g), g)
    assert torch.allclose(inside, loop_attention(q, k, v, visible, scale, bias * scale), atol=1e-13, rtol=0)


def test_t5_does_not_divide_by_the_root_of_the_width():
    g, (q, k, v) = pl.AttentionGeometry.encoder(5), inputs()
    t5 = pl.T5Bias(4, 8, 16, bidirectional=True).double().requires_grad_(False)
    bias = torch.stack([torch.stack([t5.table[t5.rule.classes(torch.tensor(j - i))] for j in range(5)]) for i in range(5)]).permute(2, 0, 1).expand(2, 4, 5, 5)
    visible = g.visible.expand(2, 5, 5)
    assert torch.allclose(pl.attend(q, k, v, t5(g), g), loop_attention(q, k, v, visible, 1.0, bias), atol=1e-13, rtol=0)
    mpnet = pl.T5Bias(4, 8, 16, bidirectional=True, score_scale=None).double()
    mpnet.load_state_dict(t5.state_dict())
    assert torch.allclose(pl.attend(q, k, v, mpnet(g), g), loop_attention(q, k, v, visible, 1 / math.sqrt(6), bias), atol=1e-13, rtol=0)


@pytest.mark.parametrize("shared", [True, False])
def test_a_relation_changes_scores_and_values(shared):
    g, (q, k, v) = pl.AttentionGeometry.encoder(4), inputs(Q=4, K=4, H=2)
    generator = torch.Generator().manual_seed(1)
    shape = (5, 6) if shared else (2, 5, 6)
    keys, values = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    got = pl.attend(q, k, v, Relation(key_table=keys, value_table=values, rule=Clip(2), sign="key_minus_query"), g)
    want = torch.zeros_like(got)
    for b in range(2):
        for h in range(2):
            a_k, a_v = (keys, values) if shared else (keys[h], values[h])
            for i in range(4):
                row = [max(-2, min(2, j - i)) + 2 for j in range(4)]
                e = torch.stack([q[b, h, i] @ (k[b, h, j] + a_k[row[j]]) / math.sqrt(6) for j in range(4)])
                want[b, h, i] = sum(p * (v[b, h, j] + a_v[row[j]]) for j, p in enumerate(e.softmax(0)))
    assert torch.allclose(got, want, atol=1e-13, rtol=0)
    assert not torch.allclose(pl.attend(q, k, v, Relation(key_table=keys, value_table=None, rule=Clip(2), sign="key_minus_query"), g), want, atol=1e-3)


@pytest.mark.parametrize("pairing", ["interleaved", "half_split"])
def test_a_rotation_leaves_only_the_offset_in_the_scores(pairing):
    term = QKTransform(inverse_frequency=frequency_ladder(2, 4), pairing=pairing)  # rotates 4 of 6 channels
    q, k, v = inputs()
    near, far = (pl.AttentionGeometry.causal_self(5, start=s) for s in (0, 1000))
    a, b = (pl.attend(q, k, v, term, g, return_trace=True) for g in (near, far))
    assert torch.allclose(a[1].scores, b[1].scores, atol=1e-12) and torch.allclose(a[0], b[0], atol=1e-12)
    pairs = [(0, 1), (2, 3)] if pairing == "interleaved" else [(0, 2), (1, 3)]
    x = term.rotate(q, near.query_positions)[0, 0, 3]
    for (first, second), w in zip(pairs, (1.0, 0.01)):
        turned = complex(q[0, 0, 3, first], q[0, 0, 3, second]) * complex(math.cos(3 * w), math.sin(3 * w))
        assert float(x[first]) == pytest.approx(turned.real, abs=1e-14) and float(x[second]) == pytest.approx(turned.imag, abs=1e-14)
    assert torch.equal(x[4:], q[0, 0, 3, 4:])


def test_rows_that_see_nothing_give_zeros_and_finite_gradients():
    g = pl.AttentionGeometry(torch.arange(4), torch.tensor([2, 3]), causal=True)
    q, k, v = (t.requires_grad_() for t in inputs(B=1, H=1, Q=4, K=2))
    out = pl.attend(q, k, v, None, g)
    assert torch.equal(out[0, 0, :2], torch.zeros(2, 6, dtype=torch.float64)) and bool((out[0, 0, 2] == v[0, 0, 0]).all())
    out.sum().backward()
    assert all(bool(torch.isfinite(t.grad).all()) for t in (q, k, v)) and bool((q.grad[0, 0, :2] == 0).all())


def test_no_keys_at_all_is_an_empty_row():
    g = pl.AttentionGeometry(torch.arange(3), torch.arange(0), causal=True)
    q, k, v = inputs(B=1, H=1, Q=3, K=0)
    assert torch.equal(pl.attend(q, k, v, None, g), torch.zeros(1, 1, 3, 6, dtype=torch.float64))


def test_hidden_scores_have_no_influence():
    scores = torch.tensor([[1.0, math.nan, 2.0], [1.0, math.inf, 2.0], [1.0, 1e30, 2.0]], requires_grad=True)
    p = masked_softmax(scores, torch.tensor([True, False, True]).expand(3, 3))
    assert torch.equal(p, torch.tensor([1.0, 2.0]).softmax(0)[[0, 0, 1]].where(torch.tensor([True, False, True]), torch.tensor(0.0)).expand(3, 3))
    p[:, 0].sum().backward()
    assert bool(torch.isfinite(scores.grad).all()) and bool((scores.grad[:, 1] == 0).all())


def test_what_lies_in_padding_has_no_influence_not_even_as_nan():
    active = torch.tensor([True, False, True, True, False])
    g, (q, k, v) = pl.AttentionGeometry.causal_self(5, key_active=active), inputs()
    want = pl.attend(q, k, v, None, g)
    for fill in (math.nan, math.inf, -math.inf):
        k[:, :, ~active], v[:, :, ~active] = fill, fill
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        out = pl.attend(*leaves, None, g)
        assert torch.equal(out, want)
        out.sum().backward()
        assert bool(torch.isfinite(leaves[0].grad).all()) and bool((leaves[2].grad[:, :, ~active] == 0).all())


@pytest.mark.parametrize("bad", range(3), ids=["query", "key", "value"])
def test_what_is_not_finite_spoils_no_other_gradient(bad):
    segments = torch.tensor([0, 0, 1, 1])
    g, tensors = pl.AttentionGeometry.encoder(4, query_segments=segments, key_segments=segments), inputs(Q=4, K=4)
    tensors[bad][:, :, 3] = math.nan
    leaves = [t.requires_grad_() for t in tensors]
    out = pl.attend(*leaves, None, g)
    out[:, :, :2].sum().backward()
    assert bool(out[:, :, :2].isfinite().all()) and bool(out[:, :, 3].isnan().all())
    assert all(bool(t.grad.isfinite().all()) for t in leaves)


def test_the_reference_runs_on_meta():
    g, q = pl.AttentionGeometry.causal_self(4, device="meta"), torch.empty(1, 2, 4, 8, device="meta")
    out = pl.attend(q, q, q, pl.ALiBi(2)(g), g)
    assert out.is_meta and out.shape == q.shape


def test_a_nan_in_one_packed_sequence_stays_there():
    segments = torch.tensor([0, 0, 1, 1])
    g, (q, k, v) = pl.AttentionGeometry.encoder(4, query_segments=segments, key_segments=segments), inputs(Q=4, K=4)
    k[:, :, 3] = v[:, :, 3] = math.nan
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = pl.attend(*leaves, None, g)
    out[:, :, :2].sum().backward()
    assert bool(out[:, :, :2].isfinite().all()) and bool(out[:, :, 2:].isnan().all())
    assert all(bool(t.grad[:, :, :2].isfinite().all()) for t in leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_reach_the_reference(dtype):
    g, (q, k, v) = pl.AttentionGeometry.causal_self(5), inputs(dtype=torch.float32)
    want = pl.attend(q, k, v, pl.ALiBi(4)(g), g)
    with torch.autocast("cpu", dtype=dtype):
        out, trace = pl.attend(q, k, v, pl.ALiBi(4)(g), g, return_trace=True)
    assert trace.scores.dtype == torch.float32 and torch.equal(out, want)


def test_the_softmax_of_a_long_half_precision_row_sums_to_one():
    p = masked_softmax(torch.zeros(1, 70_000, dtype=torch.float16), torch.ones(1, 70_000, dtype=torch.bool))
    assert float(p.double().sum()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("term", [Relation(key_table=None, value_table=torch.ones(5, 1), rule=Clip(2), sign="key_minus_query"),
                                  Relation(key_table=torch.ones(1, 5, 6), value_table=None, rule=Clip(2), sign="key_minus_query")])
def test_no_table_broadcasts_over_heads_or_channels(term):
    with pytest.raises(pl.PositionContractError, match="table"):
        pl.attend(*inputs(), term, pl.AttentionGeometry.causal_self(5))


def test_no_bias_broadcasts():
    with pytest.raises(pl.PositionContractError, match="slopes"):
        SlopeBias(slopes=torch.ones(4, 1))

    class OneRow(SlopeBias):
        def materialize(self, query_positions, key_positions, dtype=torch.float32):
            return super().materialize(query_positions[..., :1], key_positions, dtype)

    with pytest.raises(pl.PositionContractError, match="bias"):
        pl.attend(*inputs(), OneRow(slopes=torch.ones(4)), pl.AttentionGeometry.causal_self(5))


def test_an_explicit_scale_wins():
    g, (q, k, v) = pl.AttentionGeometry.causal_self(5), inputs()
    got = pl.attend(q, k, v, None, g, scale=0.5)
    assert torch.allclose(got, loop_attention(q, k, v, g.visible.expand(2, 5, 5), 0.5), atol=1e-13, rtol=0)
    assert torch.equal(pl.attend(q, k, v, None, g, scale=np.float32(0.5)), got)
    term = pl.T5Bias(4, 8, 16, bidirectional=False)(g)
    assert pl.attend(q, k, v, term, g, scale=0.5, return_trace=True)[1].scale == 0.5, "over T5's own 1.0"
    assert pl.attend(q, k, v[..., :2], None, g, return_trace=True)[1].scale == 1 / math.sqrt(6), "the width is that of q, not of v"
    for bad in (math.nan, True, "1", 10**400):
        with pytest.raises(pl.PositionContractError, match="scale"):
            pl.attend(q, k, v, None, g, scale=bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_rounds_once_at_the_end(dtype):
    """Both sides read the rounded inputs, so a float16 or bfloat16 result may miss by half a unit in its last place, and no more."""
    g, (q, k, v) = pl.AttentionGeometry.causal_self(5, start=300), inputs(dtype=dtype)
    term = pl.ALiBi(4)(g)
    got, want = pl.attend(q, k, v, term, g), pl.attend(*(t.double() for t in (q, k, v)), term, g)
    half_unit = 0.0 if dtype == torch.float32 else 0.5 * torch.finfo(dtype).eps
    assert got.dtype == dtype and bool(((got.double() - want).abs() <= half_unit * want.abs() + 2e-6).all())


def test_positions_far_apart_keep_their_distance():
    g = pl.AttentionGeometry(torch.tensor([2**31 + 1]), torch.tensor([2**31 - 1, 2**31, 2**31 + 1]), causal=True)
    bias = pl.ALiBi(1)(g).materialize(g.query_positions, g.key_positions)
    assert bias.tolist() == [[[[-2 * 2.0**-8, -(2.0**-8), 0.0]]]]


def test_gradients_pass_gradcheck():
    g, (q, k, v) = pl.AttentionGeometry.decode(2, 3, key_active=torch.tensor([0, 1, 1, 1, 1]).bool()), inputs(B=1, H=2, Q=3, K=5, D=4)
    table = torch.randn(8, 2, dtype=torch.float64)
    rule = pl.T5Buckets(8, 20, False)

    def run(q, k, v, table):
        return pl.attend(q, k, v, ClassBias(table=table, rule=rule, sign="key_minus_query"), g)

    assert torch.autograd.gradcheck(run, [t.requires_grad_() for t in (q, k, v, table)])


def test_the_trace_says_what_ran_and_why():
    g, (q, k, v) = pl.AttentionGeometry.encoder(5), inputs()
    _, auto = pl.attend(q, k, v, None, g, return_trace=True)
    _, named = pl.attend(q, k, v, None, g, backend="eager", return_trace=True)
    assert auto.backend == named.backend == "eager" and "cpu" in auto.reason and named.reason == "asked for"
    assert torch.allclose(auto.probabilities.sum(-1), torch.ones(2, 4, 5, dtype=torch.float64))


@pytest.mark.parametrize("change, field", [
    (lambda q, k, v, g: (q[0], k, v, None, g), "q"), (lambda q, k, v, g: (q, k.float(), v, None, g), "k"), (lambda q, k, v, g: (q, k, v[:, :, :4], None, g), "v"),
    (lambda q, k, v, g: (q, k[..., :4], v, None, g), "k"), (lambda q, k, v, g: (q, k[:, :3], v[:, :3], None, g), "k"),
    (lambda q, k, v, g: (q, k, v, None, pl.AttentionGeometry.decode(4)), "query_positions"), (lambda q, k, v, g: (q, k, v, pl.ALiBi(4), g), "term"),
    (lambda q, k, v, g: (q, k, v, pl.Sinusoidal(6)(g), g), "term"), (lambda q, k, v, g: (q, k, v, pl.ALiBi(2)(g), g), "term"),
    (lambda q, k, v, g: (q, k, v, SlopeBias(slopes=torch.ones(1)), g), "term"),
    (lambda q, k, v, g: (q, k, v, pl.NoPE()(g), pl.AttentionGeometry.encoder(5)), "geometry.causal"),
    (lambda q, k, v, g: (q, k, v, None, pl.AttentionGeometry.encoder(5, key_active=torch.ones(3, 5).bool())), "geometry.batch")])
def test_calls_that_do_not_fit_are_refused(change, field):
    g = pl.AttentionGeometry.causal_self(5)
    with pytest.raises(pl.PositionContractError) as caught:
        pl.attend(*change(*inputs(), g))
    assert caught.value.field == field and caught.value.remedy


def test_a_mask_is_boolean():
    with pytest.raises(pl.PositionContractError, match="polarity"):
        masked_softmax(torch.zeros(2, 2), torch.zeros(2, 2))
