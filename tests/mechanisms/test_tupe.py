"""TUPE against loops over pairs: untied products, the CLS row and column, the unscaled relative bias, one term for all layers."""

import math

import pytest
import torch

import positionlib as pl
from positionlib.mechanisms.tupe import cls_buckets, override_cls

RULE = pl.T5Buckets(8, 20, True, "transformers")


def module(relative=None, **settings) -> pl.TUPE:
    torch.manual_seed(0)
    built = pl.TUPE(2, 6, 10, relative=relative, **settings).double()
    for weight in built.parameters():
        torch.nn.init.normal_(weight)
    return built


def by_hand(m: pl.TUPE, queries: list[int], keys: list[int]) -> torch.Tensor:
    """[H, Q, K], pair by pair, row by row of the normalised table."""
    rows = m.norm(m.weight)
    q, k = m.query_proj(rows), m.key_proj(rows)
    bias = torch.zeros(2, len(queries), len(keys), dtype=torch.float64)
    for h in range(2):
        part = slice(3 * h, 3 * h + 3)
        for a, i in enumerate(queries):
            for b, j in enumerate(keys):
                left, right = (i + 1, j + 1) if i and j else (1, 1) if i else (0, 0)
                bias[h, a, b] = q[left, part] @ k[right, part] / math.sqrt(2 * 3)
                if m.relative is not None:
                    bucket = 4 if i == 0 else 8 if j == 0 else int(m.relative.classes(torch.tensor(j - i)))
                    bias[h, a, b] += m.relative_weight[bucket, h]
    return bias


@pytest.mark.parametrize("relative", [None, RULE], ids=["A", "R"])
@pytest.mark.parametrize("queries, keys", [(list(range(7)), list(range(7))), ([6], list(range(7))), ([3, 0], [5, 0, 2]), ([0], [0])])
def test_the_bias_is_the_sum_over_pairs(relative, queries, keys):
    m, geometry = module(relative), pl.AttentionGeometry(torch.tensor(queries), torch.tensor(keys))
    assert torch.allclose(m(geometry).bias[0], by_hand(m, queries, keys), atol=1e-12)


def test_batched_positions_have_a_batched_bias():
    m, queries, keys = module(RULE), [[0, 4], [7, 2]], [[0, 1, 2], [9, 0, 3]]
    bias = m(pl.AttentionGeometry(torch.tensor(queries), torch.tensor(keys))).bias
    assert all(torch.allclose(bias[b], by_hand(m, queries[b], keys[b]), atol=1e-12) for b in range(2))


def test_the_row_is_written_after_the_column():
    first = torch.tensor([True, False, False])
    scores = override_cls(torch.arange(1.0, 10).reshape(3, 3), first, first, torch.tensor([[-1.0]]), torch.tensor([[-2.0]]))
    assert scores.tolist() == [[-1, -1, -1], [-2, 5, 6], [-2, 8, 9]]


def test_the_cls_buckets_are_the_unused_id_and_the_extra_id():
    rule, positions = pl.T5Buckets(32, 128, True), torch.arange(4)
    assert cls_buckets(rule, positions, positions).tolist() == [[16, 16, 16, 16], [32, 0, 17, 18], [32, 1, 0, 17], [32, 2, 1, 0]]
    assert 16 not in rule.classes(torch.arange(-500, 501))


def test_scores_and_the_scale_of_content():
    m, geometry = module(RULE), pl.AttentionGeometry.encoder(5)
    q, k = torch.randn(2, 3, 2, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    term = m(geometry)
    _, trace = pl.attend(q, k, k, term, geometry, return_trace=True)
    assert trace.scale == 1 / math.sqrt(2 * 3)
    want = q @ k.mT / math.sqrt(6) + by_hand(m, list(range(5)), list(range(5)))
    assert torch.allclose(trace.scores, want, atol=1e-12)


def test_without_a_cls_every_pair_is_its_product():
    m, positions = module(RULE, cls_position=None), torch.arange(4)
    bias = m(pl.AttentionGeometry(positions, positions)).bias[0]
    assert torch.allclose(bias, m.row_scores(positions + 1, positions + 1) + m.relative_weight[RULE.classes(positions - positions[:, None])].movedim(-1, 0))


def test_cls_may_stand_elsewhere():
    moved, positions = module(cls_position=3), torch.arange(5)
    bias = moved(pl.AttentionGeometry(positions, positions)).bias[0]
    scores = moved.row_scores(torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert torch.allclose(bias[:, 3], scores[:, :1, 0].expand(-1, 5)) and torch.allclose(bias[:, [0, 1, 2, 4], 3], scores[:, 1, 1:].expand(-1, 4))


def test_one_term_serves_all_layers_and_collects_their_gradients():
    m, geometry = module(RULE), pl.AttentionGeometry.encoder(4)
    q = torch.randn(1, 2, 4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def layers(term_of_layer):
        x = q
        for _ in range(2):
            x = pl.attend(x, x, x, term_of_layer(), geometry)
        return torch.autograd.grad(x.square().sum(), list(m.parameters()))

    term = m(geometry)
    for once, twice in zip(layers(lambda: term), layers(lambda: m(geometry))):
        assert torch.allclose(once, twice, atol=1e-12) and bool(once.ne(0).any())


@pytest.mark.parametrize("relative", [None, RULE], ids=["A", "R"])
def test_gradients_of_every_parameter(relative):
    m, geometry = module(relative), pl.AttentionGeometry(torch.tensor([2, 0]), torch.tensor([0, 1, 2]))
    names = [n for n, _ in m.named_parameters()]
    assert len(names) == (7 if relative is None else 8)

    def bias(*weights):
        return torch.func.functional_call(m, dict(zip(names, weights)), (geometry,)).bias

    assert torch.autograd.gradcheck(bias, tuple(p.detach().clone().requires_grad_() for p in m.parameters()))


@pytest.mark.parametrize("changes, field", [
    (dict(heads=0), "heads"), (dict(d_model=7), "d_model"), (dict(max_length=0), "max_length"), (dict(relative=pl.T5Buckets(8, 20, False)), "relative"),
    (dict(relative=32), "relative"), (dict(cls_position=4), "cls_position"), (dict(cls_position=-1), "cls_position")])
def test_bad_settings_are_refused_at_construction(changes, field):
    with pytest.raises(pl.PositionContractError) as caught:
        pl.TUPE(**(dict(heads=2, d_model=6, max_length=4) | changes))
    assert caught.value.field == field


def test_a_position_without_a_row_is_refused():
    assert module()(pl.AttentionGeometry.encoder(10)).bias.shape == (1, 2, 10, 10)
    with pytest.raises(pl.PositionRangeError, match=r"position = 10.*0\.\.9.*11 rows"):
        module()(pl.AttentionGeometry.decode(10))


def test_a_term_made_for_other_positions_or_heads_is_refused():
    term, q = module()(pl.AttentionGeometry.encoder(3)), torch.zeros(1, 2, 3, 3, dtype=torch.float64)
    with pytest.raises(pl.PositionContractError, match="query_positions"):
        pl.attend(q, q, q, term, pl.AttentionGeometry.causal_self(3, start=1))
    with pytest.raises(pl.PositionContractError, match="3 heads"):
        pl.attend(*(torch.zeros(1, 3, 3, 3),) * 3, term, pl.AttentionGeometry.encoder(3))
    with pytest.raises(pl.FrameMismatchError):
        module()(pl.AttentionGeometry.cross(2, 3))
    with pytest.raises(pl.PositionContractError, match="bidirectional"):
        cls_buckets(pl.T5Buckets(8, 20, False), torch.arange(2), torch.arange(2))


@pytest.mark.parametrize("relative, cls_position", [(None, 0), (RULE, 0), (RULE, None)], ids=["A", "R", "R without CLS"])
def test_the_parts_are_the_bias_and_hold_nothing_of_size_q_times_k(relative, cls_position):
    whole, parts = (module(relative, cls_position=cls_position, finish=finish) for finish in (True, False))
    geometry = pl.AttentionGeometry(torch.tensor([[3, 0, 8, 1, 2], [4, 7, 0, 5, 6]]), torch.tensor([[5, 0, 2, 1, 9, 4, 3], [0, 1, 2, 3, 4, 5, 6]]))
    term = parts(geometry)
    assert torch.equal(term.finished().bias, whole(geometry).bias) and term.score_scale == whole.scale
    assert all(5 * 7 not in (t.shape[-2:].numel(), t.numel()) for t in vars(term).values() if isinstance(t, torch.Tensor))
    q, k = (torch.randn(2, 2, n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) for n in (5, 7))
    out = [pl.attend(q, k, k, t, geometry) for t in (term, whole(geometry))]
    assert torch.equal(*out)
    some = pl.attend(q[:, :, 1:4], k, k, term.slice_queries(1, 4), geometry.slice_queries(1, 4))
    assert torch.allclose(some, out[1][:, :, 1:4], atol=1e-12)


@pytest.mark.parametrize("relative", [None, RULE], ids=["A", "R"])
def test_rows_hand_a_backend_everything(relative):
    """Product, bias by offset and the two numbers of CLS, put together here pair by pair, are the bias."""
    queries, keys = torch.tensor([3, 0, 8]), torch.tensor([5, 0, 2, 9])
    term = module(relative, finish=False)(pl.AttentionGeometry(queries, keys))
    rows, want = term.by_row(), term.finished().bias[0]
    for h in range(2):
        for a, i in enumerate(queries.tolist()):
            for b, j in enumerate(keys.tolist()):
                pair = rows.query_rows[0, h, a] @ rows.key_rows[0, h, b]
                if relative is not None:
                    pair = pair + rows.bias[rows.rule.classes(torch.tensor(j - i)), h]
                pair = rows.cls[1, h] if i == rows.cls_position else rows.cls[0, h] if j == rows.cls_position else pair
                assert torch.allclose(pair, want[h, a, b], atol=1e-12)


def test_parts_serve_all_layers_and_collect_their_gradients():
    m, geometry = module(RULE, finish=False), pl.AttentionGeometry.encoder(4)
    x = torch.randn(1, 2, 4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gradients = []
    for term in (m(geometry), m(geometry).finished()):
        y = pl.attend(x, x, x, term, geometry)
        gradients.append(torch.autograd.grad(pl.attend(y, y, y, term, geometry).square().sum(), list(m.parameters())))
    assert all(torch.allclose(*pair, atol=1e-12) and bool(pair[0].ne(0).any()) for pair in zip(*gradients))


def test_parts_made_for_other_positions_are_refused():
    term, q = module(finish=False)(pl.AttentionGeometry.encoder(3)), torch.zeros(1, 2, 3, 3, dtype=torch.float64)
    with pytest.raises(pl.PositionContractError, match="query_positions"):
        pl.attend(q, q, q, term, pl.AttentionGeometry.causal_self(3, start=1))
