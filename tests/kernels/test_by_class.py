"""Terms whose pairs read by class through attend(): the fused kernel against the eager reference, with the gradient of every table."""

import pytest
import torch

import positionlib as pl
from positionlib import kernels
from positionlib.attention import attend
from positionlib.errors import PositionContractError, PositionRangeError
from positionlib.forms import ByClass, ByLine, ByTurn
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.graph_bias import PairBias
from positionlib.rules import Clip
from positionlib.terms import Relation
from tests.kernels.cases import DEVICE
from tests.kernels.test_operator import Largest
from tests.refusals import refused

pytest.importorskip("triton")
H, D, N = 4, 16, 40


def deberta(*terms, third="paper", **settings):
    """Without a bias of the positions' keys: it adds one number to all scores of a row, so that its gradient is the rounding of a zero."""
    return lambda: pl.DeBERTa(H, H * D, 12, terms=terms, third_index=third, projections="own", key_bias=False, **settings)


CAUSAL = {"causal": True, "key_active": torch.arange(N) != 5}
BOTH_WAYS = {"query_segments": torch.arange(20) // 9 + 1, "key_segments": torch.arange(N) // 14}
MECHANISMS = {
    "shaw": (lambda: pl.ShawRelative(9, D, sign="key_minus_query"), CAUSAL),
    "shaw by head, other sign": (lambda: pl.ShawRelative(5, D, sign="query_minus_key", heads=H), BOTH_WAYS),
    "shaw keys": (lambda: pl.ShawRelative(9, D, sign="key_minus_query", sides="keys", heads=H), CAUSAL),
    "shaw values": (lambda: pl.ShawRelative(9, D, sign="key_minus_query", sides="values"), BOTH_WAYS),
    "music": (lambda: pl.MusicRelative(12, D, causal=True, sides="both"), CAUSAL),
    "bert keys": (lambda: pl.BertRelative(50, D, variant="relative_key"), CAUSAL),
    "bert both": (lambda: pl.BertRelative(50, D, variant="relative_key_query"), BOTH_WAYS),
    "deberta paper": (deberta("c2c", "c2p", "p2c"), CAUSAL),
    "deberta released, buckets": (deberta("c2c", "c2p", "p2c", third="released", buckets=8, edge="official"), BOTH_WAYS),
    "deberta third term, paper, buckets": (deberta("c2c", "p2c", buckets=8, edge="transformers"), BOTH_WAYS),
    "deberta second term": (deberta("c2c", "c2p", buckets=8, edge="exact"), CAUSAL),
    "deberta without content": (deberta("c2p", "p2c", third="released"), BOTH_WAYS),
}


def qkv(queries=20, keys=N, key_heads=2, batch=2):
    make = torch.Generator().manual_seed(1)
    shapes = (H, queries), (key_heads, keys), (key_heads, keys)
    return [torch.randn(batch, h, n, D, generator=make).to(DEVICE).requires_grad_() for h, n in shapes]


def agree(term, geometry, tensors, parameters):
    """Both backends: the output, and the gradients of q, k, v and every parameter that the term reads; without c2c they reach k or q alone."""
    leaves = [*tensors, *parameters]
    out, trace = attend(*tensors, term(), geometry, backend="triton", return_trace=True)
    assert trace.backend == "triton"
    want = attend(*tensors, term(), geometry, backend="eager")
    torch.testing.assert_close(out, want, rtol=1e-5, atol=4e-6)
    for seen, right in zip(*(torch.autograd.grad(x.square().sum(), leaves, materialize_grads=True) for x in (out, want))):
        torch.testing.assert_close(seen, right, rtol=1e-4, atol=2e-5 * float(right.abs().max()))


@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms_agree_with_the_eager_reference(name):
    build, rules = MECHANISMS[name]
    torch.manual_seed(3)
    module = build().to(DEVICE)
    geometry = AttentionGeometry(torch.arange(20, 40), torch.arange(N), **rules).to(DEVICE)
    agree(lambda: module(geometry), geometry, qkv(), module.parameters())


def test_edge_types_of_each_batch_row():
    module = pl.EdgeRelative(5, D, heads=H).to(DEVICE)
    positions = torch.arange(20).expand(2, 20)
    geometry = AttentionGeometry(positions, positions).to(DEVICE)
    types = torch.randint(0, 5, (2, 20, 20), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    agree(lambda: module(geometry, types), geometry, qkv(keys=20), module.parameters())


RING = pl.Graph.from_edges(7, [(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (5, 6)])
ORDER = torch.tensor([3, 0, 6, 2, 4, 1, 5])


@pytest.mark.parametrize("token", [False, True], ids=["", "token"])
@pytest.mark.parametrize("form", [None, "paper"], ids=["distances", "path"])
def test_graphs_agree_with_the_eager_reference(form, token):
    """Nodes in another order; with a graph token, id 0 is the token."""
    torch.manual_seed(3)
    module = pl.GraphBias(H, 4, path=None if form is None else pl.GraphPath(H, 3, 4, form=form), graph_token=token).to(DEVICE)
    nodes = torch.cat((torch.zeros(1, dtype=torch.long), ORDER + 1)) if token else ORDER
    geometry = AttentionGeometry(nodes, nodes, key_active=torch.arange(len(nodes)) != 2).to(DEVICE)
    graph = pl.Graph(*(x.to(DEVICE) for x in (RING.distance, RING.in_degree, RING.out_degree, RING.path_edges)))
    edges = () if form is None else (torch.randn(6, 3, device=DEVICE),)
    assert module(graph, *edges).by_class(geometry.query_positions, geometry.key_positions, 1.0).classes.dtype == torch.uint8
    agree(lambda: module(graph, *edges), geometry, qkv(queries=len(nodes), keys=len(nodes), key_heads=4), module.parameters())


@pytest.mark.parametrize("inside_scale", [False, True])
def test_a_given_number_for_each_pair(inside_scale):
    pairs = torch.randn(H, 7, 7, device=DEVICE, requires_grad=True)
    geometry = AttentionGeometry(ORDER, ORDER).to(DEVICE)
    agree(lambda: PairBias(pairs=pairs, inside_scale=inside_scale), geometry, qkv(queries=7, keys=7), [pairs])


def test_an_unwritten_slot_reaches_no_table():
    """Keys that nobody may read hold NaN, as a cache does; the table that meets the keys trains all the same."""
    module = deberta("c2c", "c2p", "p2c")().to(DEVICE)
    geometry = AttentionGeometry(torch.arange(20, 40), torch.arange(N), causal=True, key_active=torch.arange(N) < 30).to(DEVICE)
    q, k, v = (x.detach() for x in qkv())
    k, v = (x.masked_fill((torch.arange(N, device=DEVICE) >= 30)[:, None], torch.nan).requires_grad_() for x in (k, v))
    agree(lambda: module(geometry), geometry, [q.requires_grad_(), k, v], module.parameters())


def test_float16_rounds_once():
    """The values of a relation are added before the output is rounded: half a unit of the last place, and what float16 weights lose."""
    torch.manual_seed(3)
    module = pl.ShawRelative(9, D, sign="key_minus_query").to(DEVICE)
    geometry = AttentionGeometry(torch.arange(20, 40), torch.arange(N), causal=True).to(DEVICE)
    tensors = [x.detach().half() for x in qkv()]
    exact = attend(*(x.double() for x in tensors), module.double()(geometry), geometry, backend="eager")
    seen = attend(*tensors, module.float()(geometry), geometry, backend="triton")
    assert seen.dtype == torch.float16 and float((seen.double() - exact).abs().max()) < 1e-3


def test_nothing_of_size_q_times_k():
    """Forward and backward make nothing larger than N · C numbers, of which there are three a side here."""
    n = 600
    q = torch.randn(1, 1, n, D, dtype=torch.float16, device=DEVICE, requires_grad=True)
    module = pl.ShawRelative(3, D, sign="key_minus_query").to(DEVICE)
    geometry = AttentionGeometry.causal_self(n).to(DEVICE)
    with Largest() as seen:
        attend(q, q, q, module(geometry), geometry, backend="triton").sum().backward()
    assert 0 < seen.nbytes <= n * D * 4 < n * n and module.key_table.grad.abs().sum() > 0


def test_what_has_no_class_is_refused():
    q, k, v = qkv()
    far = AttentionGeometry(torch.arange(100, 120), torch.arange(N)).to(DEVICE)
    term = Relation(key_table=torch.zeros(99, D, device=DEVICE), value_table=None, rule=pl.BertRelative(50, D, variant="relative_key").rule,
                    sign="query_minus_key")
    with pytest.raises(PositionRangeError, match="offset"):
        attend(q, k, v, term, far, backend="triton")


@pytest.mark.parametrize("name", ["query_rows", "key_rows", "value_rows"])
def test_rows_for_other_heads_are_refused(name):
    q, k, v = (x.detach() for x in qkv())
    rules = {"query_positions": torch.arange(20, device=DEVICE), "key_positions": torch.arange(N, device=DEVICE), "causal": True, "scale": 1.0}
    for shape in ((3, 7, D), (7, D + 1)):
        form = ByClass(rule=pl.ShawRelative(3, D, sign="key_minus_query").rule, sign="key_minus_query", **{name: torch.zeros(shape, device=DEVICE)})
        with pytest.raises(PositionContractError, match=name):
            kernels.forward(q, k, v, form=form, **rules)


def test_a_bias_that_a_form_cannot_stand_beside_is_refused():
    """Each pair of them would give a number that is wrong without a word: another table's span, a line's ends, bands of rows that did not turn."""
    with torch.device(DEVICE):
        q, positions, rows, none = torch.randn(1, 2, 4, 16), torch.arange(4), torch.randn(2, 7, 16), torch.zeros(2, 16)
        t5 = kernels.BiasArgs.from_classes(torch.randn(11, 2), Clip(5), "key_minus_query")
        alibi = kernels.BiasArgs.from_slopes(torch.rand(2), "relative")
        still = torch.stack((torch.ones(4, 8), torch.zeros(4, 8)), 1)  # cosine 1, sine 0
        narrow = ByClass(rule=Clip(3), sign="key_minus_query", query_rows=rows)
        zeros = ByClass(rule=Clip(5), sign="key_minus_query", query_rows=torch.zeros(2, 11, 16))
        line = ByLine(rows=rows, first=-3, content_bias=none, position_bias=none)
        turn = ByTurn(query_turns=still, key_turns=still, interleaved=False)

    def run(bias, form=None):
        return kernels.forward(q, q, q, query_positions=positions, key_positions=positions, causal=False, scale=0.25, bias=bias, form=form)

    for bias, form in ((t5, narrow), (t5, line), (t5, turn), (alibi, line)):
        refused(lambda: run(bias, form), "form")
    for bias, form in ((t5, zeros), (alibi, turn)):  # which add nothing
        torch.testing.assert_close(run(bias, form), run(bias), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(run(alibi, narrow), run(alibi))
