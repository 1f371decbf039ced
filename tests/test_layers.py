"""Whole modules: projections around attend(), written out with einsum, and what they refuse."""

import math

import pytest
import torch

import positionlib as pl
from positionlib.layers import BertInput, PageInput, PatchInput, SelfAttention, TokenInput
from tests.refusals import refused

N, D, H = 5, 6, 2
RANDOM = torch.Generator().manual_seed(2)
ENCODER = pl.AttentionGeometry.encoder(N)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=RANDOM, dtype=torch.float64)


def by_einsum(m: SelfAttention, x: torch.Tensor, d_head: int, bias: torch.Tensor | float, scale: float) -> torch.Tensor:
    """W_o Σ_h softmax(q·k · scale + bias) v, every projection cut into [heads, d_head] by hand."""
    q, k, v = (torch.einsum("bnd,hed->bhne", x, p.weight.reshape(H, d_head, D)) + (0 if p.bias is None else p.bias.reshape(H, 1, d_head))
               for p in (m.q, m.k, m.v))
    heads = (torch.einsum("bhie,bhje->bhij", q, k) * scale + bias).softmax(-1) @ v
    y = torch.einsum("bhne,dhe->bnd", heads, m.o.weight.reshape(D, H, d_head))
    return y if m.o.bias is None else y + m.o.bias


def test_attention_is_its_projections_around_the_heads():
    t5 = pl.T5Bias(H, 6, 9, bidirectional=True)
    x = random(3, N, D)
    plain, wide = SelfAttention(D, H, None).double(), SelfAttention(D, H, t5, d_head=5, bias=False).double()
    assert torch.allclose(plain(x, ENCODER), by_einsum(plain, x, 3, 0.0, 1 / math.sqrt(3)), atol=1e-12)
    bias = t5(ENCODER).materialize(ENCODER.query_positions, ENCODER.key_positions, torch.float64)
    assert torch.allclose(wide(x, ENCODER), by_einsum(wide, x, 5, bias, 1.0), atol=1e-12)
    assert [name for name, _ in wide.named_parameters()] == ["q.weight", "k.weight", "v.weight", "o.weight", "mechanism.weight"]


def test_post_norm_adds_the_input_and_normalises():
    module, x = SelfAttention(D, H, None, post_norm=0.1).double(), random(2, N, D)
    y = x + by_einsum(module, x, 3, 0.0, 1 / math.sqrt(3))
    want = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + 0.1).sqrt()
    assert torch.allclose(module(x, ENCODER), want, atol=1e-12)


def test_shared_position_projections_are_the_layers_own():
    settings = dict(terms=("c2c", "c2p", "p2c"), third_index="released")
    shared = SelfAttention(D, H, pl.DeBERTa(H, D, 3, projections="shared", **settings)).double()
    own = SelfAttention(D, H, pl.DeBERTa(H, D, 3, projections="own", **settings)).double()
    own.load_state_dict(shared.state_dict() | {f"mechanism.pos_{long}_proj.{kind}": getattr(getattr(shared, short), kind)
                                               for long, short in (("key", "k"), ("query", "q")) for kind in ("weight", "bias")})
    x = random(2, N, D)
    assert torch.equal(shared(x, ENCODER), own(x, ENCODER))
    grads = [torch.autograd.grad(m(x, ENCODER).square().sum(), m.q.weight)[0] for m in (shared, own)]
    assert not torch.allclose(*grads), "a shared projection also learns from the position terms"


def test_berts_input_is_a_sum_and_a_norm():
    table = pl.LearnedAbsolute(7, 4).double()
    module = BertInput(9, 2, 4, table, eps=1e-12, padding_id=0).double()
    ids, types = torch.tensor([[3, 0, 8]]), torch.tensor([[0, 1, 1]])
    geometry = pl.AttentionGeometry.encoder(3)
    x = torch.stack([module.words.weight[w] + module.types.weight[t] + table.weight[p] for p, (w, t) in enumerate(zip(ids[0], types[0]))])
    want = (x - x.mean(-1, keepdim=True)) / x.var(-1, unbiased=False, keepdim=True).sqrt()
    assert torch.allclose(module(ids, geometry, types)[0], want, atol=1e-9)
    module(ids, geometry, types).square().sum().backward()
    assert not module.words.weight.grad[0].any() and module.words.weight.grad[3].any(), "padding learns nothing"
    assert torch.equal(module(ids, geometry), module(ids, geometry, torch.zeros_like(ids)))


INPUT = BertInput(9, 2, 4, pl.LearnedAbsolute(3, 4), eps=1e-12)


@pytest.mark.parametrize("call, error, field", [
    (lambda: SelfAttention(7, 2, None), pl.PositionContractError, "d_model"),
    (lambda: SelfAttention(6, 0, None), pl.PositionContractError, "heads"),
    (lambda: SelfAttention(6, 2, None, d_head=0), pl.PositionContractError, "d_head"),
    (lambda: SelfAttention(6, 2, None)([[[0.0]]], ENCODER), pl.PositionContractError, "x"),
    (lambda: SelfAttention(6, 2, None)(torch.zeros(5, 6), ENCODER), pl.PositionContractError, "x"),
    (lambda: SelfAttention(6, 2, None)(torch.zeros(1, 5, 4), ENCODER), pl.PositionContractError, "x"),
    (lambda: SelfAttention(6, 2, None)(torch.zeros(1, 4, 6), ENCODER), pl.PositionContractError, "query_positions"),
    (lambda: BertInput(0, 2, 4, None, eps=1e-12), pl.PositionContractError, "words"),
    (lambda: INPUT(torch.tensor([1, 2]), ENCODER), pl.PositionContractError, "ids"),
    (lambda: INPUT(torch.tensor([[1.0]]), ENCODER), pl.PositionContractError, "ids"),
    (lambda: INPUT(torch.tensor([[1, 2]]), pl.AttentionGeometry.encoder(2), torch.tensor([[0]])), pl.PositionContractError, "token_types"),
    (lambda: INPUT(torch.tensor([[1, 9]]), pl.AttentionGeometry.encoder(2)), pl.PositionRangeError, "ids"),
    (lambda: INPUT(torch.tensor([[1, -1]]), pl.AttentionGeometry.encoder(2)), pl.PositionRangeError, "ids"),
    (lambda: INPUT(torch.tensor([[1, 2]]), pl.AttentionGeometry.encoder(2), torch.tensor([[0, 2]])), pl.PositionRangeError, "token_types"),
    (lambda: INPUT(torch.tensor([[1, 2, 3, 4]]), pl.AttentionGeometry.encoder(4)), pl.PositionRangeError, "position"),
    (lambda: INPUT(torch.tensor([[1, 2]]), pl.AttentionGeometry.encoder(3)), pl.PositionContractError, "query_positions"),
    (lambda: BertInput(9, 2, 4, None, eps=1e-12)(torch.tensor([[1, 2]]), pl.AttentionGeometry.encoder(3)), pl.PositionContractError, "query_positions"),
    (lambda: BertInput(9, 2, 4, None, eps=1e-12).to("meta")(torch.tensor([[1, 2]]), pl.AttentionGeometry.encoder(2)), pl.PositionContractError, "ids"),
])
def test_what_does_not_fit_is_refused(call, error, field):
    assert isinstance(refused(call, field), error)


def test_grouped_queries_share_their_key_heads():
    grouped = SelfAttention(D, H, None, d_head=3, kv_heads=1).double()
    whole = SelfAttention(D, H, None, d_head=3).double()
    whole.load_state_dict({name: torch.cat([t] * H) if name[0] in "kv" else t for name, t in grouped.state_dict().items()})
    x = random(2, N, D)
    assert grouped.k.weight.shape == (3, D) and torch.allclose(grouped(x, ENCODER), whole(x, ENCODER), atol=1e-13)
    for kv_heads in (0, 3, 4, 1.5):
        refused(lambda: SelfAttention(D, H, None, d_head=3, kv_heads=kv_heads), "kv_heads")


def test_a_mechanism_that_asks_for_more_than_a_geometry_gets_its_term_from_the_caller():
    rule, graph = pl.T5Buckets(8, 16, True), pl.Graph.from_edges(N, [(n, n + 1) for n in range(N - 1)])
    places = {"x": torch.tensor([3, 1, 4, 1, 5])}
    boxes, nodes, x = pl.GridBias(H, {"x": rule}, inside_scale=True), pl.GraphBias(H, N), random(1, N, D)
    for mechanism, term in ((boxes, boxes(ENCODER, places, places)), (nodes, nodes(graph))):
        module = SelfAttention(D, H, mechanism.double()).double()
        bias = term.materialize(ENCODER.query_positions, ENCODER.key_positions, torch.float64)
        want = by_einsum(module, x, 3, bias / math.sqrt(3) if mechanism is boxes else bias, 1 / math.sqrt(3))
        assert torch.allclose(module(x, ENCODER, term), want, atol=1e-6)
        refused(lambda: module(x, ENCODER), "term")


def test_a_token_input_projects_then_adds_then_normalises():
    module, ids = TokenInput(9, pl.LearnedAbsolute(8, 4, row_offset=2), d_words=3, eps=0.1).double(), torch.tensor([[1, 8, 0]])
    geometry = pl.AttentionGeometry(torch.tensor([5, 0, 3]), torch.tensor([5, 0, 3]))
    x = module.words.weight[ids[0]] @ module.project.weight.T + module.positions.weight[torch.tensor([7, 2, 5])]
    want = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 0.1).sqrt()
    assert torch.allclose(module(ids, geometry)[0], want, atol=1e-12)
    plain = TokenInput(9, pl.LearnedAbsolute(8, 4))
    assert torch.equal(plain(ids, geometry)[0], plain.words.weight[ids[0]] + plain.positions.weight[torch.tensor([5, 0, 3])])
    refused(lambda: plain(torch.tensor([[1, 9, 0]]), geometry), "ids")
    refused(lambda: plain(ids, ENCODER), "query_positions")


def test_patches_are_cut_row_by_row_behind_cls():
    grid = pl.Grid({"row": 2, "col": 3}, "row_major", ("cls",))
    module, pixels = PatchInput(2, (2, 3), pl.LearnedGrid(grid, D), eps=0.1).double(), random(1, 2, 4, 9)
    torch.nn.init.normal_(module.cls)
    weight, bias = module.projection.weight.flatten(1), module.projection.bias
    cells = [weight @ pixels[0, :, 2 * r : 2 * r + 2, 3 * c : 3 * c + 3].flatten() + bias for r in range(2) for c in range(3)]
    x = torch.stack([module.cls, *cells]) + module.positions.weight
    want = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 0.1).sqrt()
    assert torch.allclose(module(pixels)[0], want, atol=1e-12)
    for bad in (random(1, 2, 5, 9), random(1, 3, 4, 9), random(1, 2, 1, 9), pixels.float()):
        refused(lambda: module(bad), "pixels")
    refused(lambda: module(random(1, 2, 6, 6)), "grid")
    refused(lambda: PatchInput(2, 2, pl.LearnedGrid(grid, D)), "patch")
    refused(lambda: PatchInput(2, (2, 3), pl.LearnedGrid(pl.Grid({"row": 2, "col": 3}, "row_major"), D)), "positions.grid")


def test_a_page_adds_its_boxes_before_the_norm():
    boxes = torch.tensor([[[0, 1, 2, 3], [1, 1, 1, 1]]])
    module = PageInput(9, 2, pl.LearnedAbsolute(7, 4), pl.BoxEmbedding(5, 4), eps=0.1).double()
    ids, geometry = torch.tensor([[3, 1]]), pl.AttentionGeometry.encoder(2)
    x = module.words.weight[ids] + module.types.weight[0] + module.positions.weight[:2] + module.boxes(boxes).rows
    want = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 0.1).sqrt()
    assert torch.allclose(module(ids, geometry, boxes), want, atol=1e-12)
