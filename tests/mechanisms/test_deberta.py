"""DeBERTa's three terms against loops over pairs, its two third indices, its buckets, and what it refuses."""

import math
from itertools import combinations

import pytest
import torch

import positionlib as pl
from positionlib.mechanisms.deberta import DisentangledIndex, DisentangledScores, place_absolute, score_denominator
from positionlib.terms import StateRows

TERMS = ("c2c", "c2p", "p2c")
SUBSETS = [subset for size in (1, 2, 3) for subset in combinations(TERMS, size)]
GEOMETRIES = {"square": pl.AttentionGeometry.encoder(5), "decode": pl.AttentionGeometry.decode(6, 2),
              "batched": pl.AttentionGeometry(torch.tensor([[4, 0], [1, 9]]), torch.tensor([[0, 1, 2], [9, 5, 0]]))}


def module(terms=TERMS, third_index="released", projections="own", **settings) -> pl.DeBERTa:
    torch.manual_seed(0)
    built = pl.DeBERTa(2, 6, 3, terms=terms, third_index=third_index, projections=projections, **settings).double()
    torch.nn.init.normal_(built.weight)
    return built


def qk(geometry: pl.AttentionGeometry) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    batch = geometry.batch or 1
    return tuple(torch.randn(batch, 2, n, 3, generator=g, dtype=torch.float64) for n in (geometry.query_length, geometry.key_length))


def by_hand(m: pl.DeBERTa, q, k, geometry, terms, third_index, key_rows, query_rows) -> torch.Tensor:
    """One pair at a time, straight from the equation."""
    scores = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.float64)
    shape = scores.shape
    qp, kp = (p.expand(shape[0], -1) for p in (geometry.query_positions, geometry.key_positions))
    for b, h, i, j in ((b, h, i, j) for b in range(shape[0]) for h in range(2) for i in range(shape[2]) for j in range(shape[3])):
        r, part = int(qp[b, i] - kp[b, j]), slice(3 * h, 3 * h + 3)
        forward, back = (min(max(x + 3, 0), 5) for x in (r, -r))
        total = float(q[b, h, i] @ k[b, h, j]) if "c2c" in terms else 0.0
        total += float(q[b, h, i] @ key_rows[forward, part]) if "c2p" in terms else 0.0
        total += float(k[b, h, j] @ query_rows[forward if third_index == "released" else back, part]) if "p2c" in terms else 0.0
        scores[b, h, i, j] = total / math.sqrt(3 * (1 + len(set(terms) - {"c2c"})))
    return scores


@pytest.mark.parametrize("third_index", ["paper", "released"])
@pytest.mark.parametrize("terms", SUBSETS, ids="+".join)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_subset_of_terms_is_the_sum_over_pairs(name, terms, third_index):
    geometry, m = GEOMETRIES[name], module(terms, third_index)
    q, k = qk(geometry)
    rows = [p(m.weight).detach() if p is not None else None for p in (m.pos_key_proj, m.pos_query_proj)]
    _, trace = pl.attend(q, k, k, m(geometry), geometry, return_trace=True)
    assert torch.allclose(trace.scores, by_hand(m, q, k, geometry, terms, third_index, *rows), atol=1e-12)


def test_shared_rows_go_through_the_content_projections():
    geometry, m = GEOMETRIES["square"], module(projections="shared")
    query, key = (torch.nn.Linear(6, 6).double() for _ in range(2))
    q, k = qk(geometry)
    _, trace = pl.attend(q, k, k, m(geometry, query_proj=query, key_proj=key), geometry, return_trace=True)
    assert torch.allclose(trace.scores, by_hand(m, q, k, geometry, TERMS, "released", key(m.weight).detach(), query(m.weight).detach()), atol=1e-12)
    assert [name for name, _ in m.named_parameters()] == ["weight"]


def test_the_third_index_in_numbers():
    """k = 2, d = 1, K = 1, 2, 3, Q_r = 10, 20, 30, 40: the released code and the paper on the same tensors."""
    positions, k = torch.arange(3), torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
    wanted = {"released": [[30, 40, 30], [40, 60, 60], [40, 80, 90]], "paper": [[30, 80, 120], [20, 60, 120], [10, 40, 90]]}
    for third_index, numbers in wanted.items():
        term = DisentangledScores(rule=DisentangledIndex(2), third_index=third_index, content=False, pos_key=None,
                                  pos_query=torch.tensor([10.0, 20.0, 30.0, 40.0]).reshape(1, 4, 1))
        assert term.scores(k, k, positions, positions, 1.0)[0, 0].tolist() == numbers


def test_the_scale_counts_the_enabled_terms():
    assert [score_denominator(4, t) for t in ([], ["c2p"], ["p2c"], ["c2p", "p2c"])] == [2, math.sqrt(8), math.sqrt(8), math.sqrt(12)]
    assert module(("c2c",))(GEOMETRIES["square"]).score_scale == 1 / math.sqrt(3)


def test_prefill_chunks_and_decode_give_the_same_rows():
    whole, m = pl.AttentionGeometry.causal_self(8), module()
    q, k = qk(whole)
    _, trace = pl.attend(q, k, k, m(whole), whole, return_trace=True)
    step = pl.AttentionGeometry.decode(7)
    _, last = pl.attend(q[:, :, 7:], k, k, m(step), step, return_trace=True)
    assert torch.allclose(last.scores, trace.scores[:, :, 7:], atol=1e-14)


def test_a_row_that_sees_nothing_is_zero():
    geometry = pl.AttentionGeometry.encoder(3, allowed=torch.tensor([[True, True, True], [False] * 3, [True, False, True]]))
    q, k = qk(geometry)
    out = pl.attend(q, k, k, module()(geometry), geometry)
    assert bool((out[:, :, 1] == 0).all()) and bool((out[:, :, [0, 2]] != 0).all())


@pytest.mark.parametrize("projections", ["own", "shared"])
@pytest.mark.parametrize("third_index", ["paper", "released"])
def test_gradients_of_every_parameter(third_index, projections):
    m, geometry = module(third_index=third_index, projections=projections), pl.AttentionGeometry.decode(3, 2)
    content = {n: torch.nn.Linear(6, 6).double() for n in ("query_proj", "key_proj")} if projections == "shared" else {}
    names = [n for n, _ in m.named_parameters()]
    assert len(names) == (5 if projections == "own" else 1)
    q, k = (t.requires_grad_() for t in qk(geometry))

    def scores(q, k, *weights):
        term = torch.func.functional_call(m, dict(zip(names, weights)), (geometry,), content)
        return term.scores(q, k, geometry.query_positions, geometry.key_positions, term.score_scale)

    assert torch.autograd.gradcheck(scores, (q, k, *(p.detach().clone().requires_grad_() for p in m.parameters())))


def test_a_stack_shares_one_table():
    first = module()
    second = module(table=first.weight)
    (second(GEOMETRIES["square"]).pos_key.sum() + first(GEOMETRIES["square"]).pos_key.sum()).backward()
    assert second.weight is first.weight
    assert torch.allclose(first.weight.grad, (first.pos_key_proj.weight.sum(0) + second.pos_key_proj.weight.sum(0)).expand(6, -1))


def exact_bucket(n: int, buckets: int, far: int) -> int:
    """⌈log⌉ without a logarithm: the smallest m with (n/mid)^(mid−1) ≤ ((far−1)/mid)^m."""
    mid, last = buckets // 2, far - 1
    n = min(n, last)
    return n if n <= mid else mid + next(m for m in range(mid) if n ** (mid - 1) * mid**m <= last**m * mid ** (mid - 1))


@pytest.mark.parametrize("buckets, far", [(4, 8), (6, 9), (8, 16), (32, 128), (10, 6 + 1), (256, 512)])
def test_exact_buckets_are_those_of_whole_numbers(buckets, far):
    rule, offset = DisentangledIndex(far, buckets, "exact"), torch.arange(-3 * far, 3 * far + 1)
    want = torch.tensor([(1 if r > 0 else -1) * exact_bucket(abs(r), buckets, far) for r in offset.tolist()])
    assert torch.equal(rule.signed_buckets(offset), want)
    assert torch.equal(rule.classes(offset), want + buckets) and int(rule.classes(offset).min()) == 1


def test_beyond_the_table_the_two_releases_differ():
    official, hf = (DisentangledIndex(512, 256, edge) for edge in ("official", "transformers"))
    far = torch.tensor([-5000, -512, 511, 512, 5000])
    assert official.signed_buckets(far).tolist() == [-255, -255, 255, 255, 255] and official.classes(far).tolist() == [1, 1, 511, 511, 511]
    assert hf.signed_buckets(far).tolist() == [-465, -256, 255, 256, 465] and hf.classes(far).tolist() == [0, 0, 511, 511, 511]


@pytest.mark.parametrize("edge", ["exact", "official", "transformers"])
@pytest.mark.parametrize("buckets, far", [(4, 8), (6, 9), (10, 18), (32, 128), (256, 300)])
def test_thresholds_and_the_formula_agree(buckets, far, edge):
    rule, offset = DisentangledIndex(far, buckets, edge), torch.arange(-2 * far, 2 * far + 1)
    assert torch.equal(rule.classes(offset), (rule.signed_buckets(offset) + buckets).clamp(0, 2 * buckets - 1))


def test_the_official_rounding_overflows_in_one_cell():
    for buckets, far, cell in ((6, 9, 6), (10, 18, 10), (8, 16, 7), (32, 128, 31), (256, 512, 255)):
        official, exact = (DisentangledIndex(far, buckets, edge).signed_buckets(torch.arange(far)) for edge in ("official", "exact"))
        assert torch.equal(official[:-1], exact[:-1]) and int(official[-1]) == cell
    # At 4, 8 the machine decides, and the checkpoint's cell can be pinned.
    cells = [int(DisentangledIndex(8, 4, "official", overflow).signed_buckets(torch.tensor([-7]))) for overflow in (None, False, True)]
    assert cells == [-3, -3, -4]


def test_absolute_rows_enter_where_the_release_adds_them():
    x, rows = torch.ones(1, 2, 3), StateRows(rows=torch.full((2, 3), 4.0), mark="absolute")
    got = {(p, s): [float(t[0, 0, 0]) for t in place_absolute(x, rows, placement=p, stage=s)] for p in ("input", "mask_decoder") for s in ("input", "mask_decoder")}
    assert got == {("input", "input"): [5, 5], ("input", "mask_decoder"): [1, 1], ("mask_decoder", "input"): [1, 1], ("mask_decoder", "mask_decoder"): [5, 1]}
    with pytest.raises(pl.PositionContractError, match="placement"):
        place_absolute(x, rows, placement="everywhere", stage="input")


@pytest.mark.parametrize("changes, field, says", [
    (dict(terms=("c2c", "p2p")), "terms", "IndexError"), (dict(terms="c2p"), "terms", "list"), (dict(terms=()), "terms", "different terms"),
    (dict(terms=("c2p", "c2p")), "terms", "different"), (dict(terms=("q2k",)), "terms", "c2c, c2p, p2c"), (dict(third_index="both"), "third_index", "paper, released"),
    (dict(projections="none"), "projections", "own, shared"), (dict(buckets=4), "edge", "exact"), (dict(edge="exact"), "edge", "without buckets"),
    (dict(buckets=5, edge="exact", max_distance=9), "buckets", "even"), (dict(buckets=8, edge="exact", max_distance=5), "max_distance", "6.."),
    (dict(overflow=True), "overflow", "official"), (dict(max_distance=0), "max_distance", "at least 1"), (dict(d_model=7), "d_model", "multiple"),
    (dict(table=torch.zeros(6, 6)), "table", "Parameter")])
def test_bad_settings_are_refused_at_construction(changes, field, says):
    settings = dict(heads=2, d_model=6, max_distance=3, terms=TERMS, third_index="paper", projections="own") | changes
    with pytest.raises(pl.PositionContractError, match=says) as caught:
        pl.DeBERTa(**settings)
    assert caught.value.field == field


def test_conventions_have_no_default():
    for missing in ("terms", "third_index", "projections"):
        settings = dict(terms=TERMS, third_index="paper", projections="own")
        del settings[missing]
        with pytest.raises(TypeError):
            pl.DeBERTa(2, 6, 3, **settings)


def test_calls_that_do_not_fit_are_refused():
    geometry = GEOMETRIES["square"]
    linear = torch.nn.Linear(6, 6)
    with pytest.raises(pl.PositionContractError, match="query_proj"):
        module()(geometry, query_proj=linear)
    with pytest.raises(pl.PositionContractError, match="key_proj"):
        module(projections="shared")(geometry, query_proj=linear)
    with pytest.raises(pl.FrameMismatchError):
        module()(pl.AttentionGeometry.cross(2, 3))
    with pytest.raises(pl.PositionContractError, match="pos_key"):
        q = torch.zeros(1, 3, 5, 3, dtype=torch.float64)
        pl.attend(q, q, q, module()(geometry), geometry)
    with pytest.raises(pl.PositionContractError, match="offset"):
        DisentangledIndex(3).classes(torch.tensor([0.5]))
    with pytest.raises(pl.PositionContractError, match="position_terms"):
        score_denominator(4, ["c2p", "c2p"])
