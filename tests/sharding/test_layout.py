"""Where the heads are: the term of a rank's module is the rank's part of the whole term, and what is not known is refused."""

from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor, nn

import positionlib as pl
from positionlib import mechanisms, terms
from positionlib.sharding import HeadAxis, HeadPartition, head_axes, shard_module, shared_parameters, slice_term, sum_gradients
from positionlib.sharding.layout import MODULES, TERMS
from tests.refusals import refused
from tests.sharding.examples import CAUSAL, D_HEAD, EXAMPLES, HEADS, filled

UNEVEN = HeadPartition(HEADS, ((3, 0), (4, 2, 1)))
PADDED = HeadPartition.split(HEADS, 3, rule="padded")


def tensors(term: terms.Term) -> dict[str, Tensor]:
    """Every tensor that a term holds, those of a mapping each by itself."""
    held = {f.name: getattr(term, f.name) for f in fields(term)}
    inner = {f"{name}.{key}": x for name, mapping in held.items() if isinstance(mapping, dict) for key, x in mapping.items()}
    return {name: x for name, x in (held | inner).items() if isinstance(x, Tensor)}


@pytest.mark.parametrize("partition", [UNEVEN, PADDED])
@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if not example.projections])
def test_a_ranks_module_makes_the_ranks_part_of_the_term(name, partition):
    example, whole = EXAMPLES[name], filled(EXAMPLES[name].build())
    term = example.call(whole, example.geometry)
    for rank in range(partition.world):
        cut, made = slice_term(term, partition, rank), example.call(shard_module(whole, partition, rank), example.geometry)
        assert type(cut) is type(made) and tensors(cut).keys() == tensors(made).keys()
        for field, x in tensors(cut).items():
            # A learned slope of a padding slot is exp(0): whatever it is, nobody reads it.
            axes = [axis for axis, length in enumerate(x.shape) if length == len(partition.head_ids(rank))][:1] if name == "alibi, learned" else []
            seen, want = (partition.keep(t.detach(), rank, axes[0]) if axes else t for t in (tensors(made)[field], x))
            assert seen.shape == want.shape and torch.allclose(seen, want, atol=1e-14), field


def test_slopes_are_those_of_the_heads_and_not_of_a_smaller_model():
    local = [shard_module(pl.ALiBi(12), HeadPartition.split(12, 3, rule="balanced"), rank).slopes for rank in range(3)]
    assert torch.equal(torch.cat(local), pl.alibi_slopes(12).double())
    assert torch.equal(local[2], pl.ALiBi(12, head_ids=range(8, 12)).slopes) and not torch.allclose(local[2], pl.alibi_slopes(4).double())
    padded = shard_module(pl.ALiBi(5), PADDED, 2).slopes
    assert padded.tolist() == [float(pl.alibi_slopes(5)[4]), 0.0]


def test_the_original_keeps_all_heads():
    whole = filled(EXAMPLES["transformer-xl"].build())
    before = {name: p.clone() for name, p in whole.named_parameters()}
    whole.weight.grad = torch.ones_like(whole.weight)
    local = shard_module(whole, UNEVEN, 0)
    assert local.weight.grad is None and local.weight.shape == (2 * D_HEAD, 6) and local.weight.requires_grad
    assert all(torch.equal(p, before[name]) for name, p in whole.named_parameters()) and whole.weight.grad.shape == whole.weight.shape
    assert torch.equal(local.weight, torch.cat((whole.weight[3 * D_HEAD : 4 * D_HEAD], whole.weight[:D_HEAD])))


def test_what_layers_share_stays_shared_in_a_stack():
    first = pl.TransformerXL(6, HEADS, D_HEAD)
    table = nn.Parameter(torch.randn(6, HEADS * D_HEAD))
    own = dict(terms=("c2p",), third_index="paper", projections="own", table=table)
    stack = nn.ModuleList([first, pl.TransformerXL(6, HEADS, D_HEAD, tie_to=first), *(pl.DeBERTa(HEADS, HEADS * D_HEAD, 3, **own) for _ in range(2))])
    local = shard_module(stack, UNEVEN, 1)
    assert local[0].content_bias is local[1].content_bias and local[0].weight is not local[1].weight and local[2].weight is local[3].weight
    assert torch.equal(local[1].content_bias, first.content_bias[[4, 2, 1]]) and [part.heads for part in local[2:]] == [3, 3]
    assert shared_parameters(local) == [local[2].weight] and head_axes(stack)["1.content_bias"] == HeadAxis(0)


@pytest.mark.parametrize("name, shared", [
    ("alibi", []), ("t5", []), ("shaw, shared", ["key_table", "value_table"]), ("shaw, per head", []), ("bert", ["weight"]), ("transformer-xl", []),
    ("deberta", ["weight"]), ("tupe-r", ["norm.bias", "norm.weight", "weight"]), ("graph, paper", []), ("graph, released", ["path.edge_weight"]), ("graph, direct", []),
    ("grid bias", []),
])
def test_what_all_heads_share(name, shared):
    module = EXAMPLES[name].build()
    assert sorted(n for n, axis in head_axes(module).items() if axis is None) == shared
    assert {id(p) for p in shared_parameters(module)} == {id(module.get_parameter(n)) for n in shared}


def test_every_mechanism_and_every_term_of_the_library_is_known():
    """A new one needs its line in positionlib/sharding/layout.py: without it, it is refused."""
    of_the_state = {"BinaryCode", "BoxEmbedding", "Graph", "GraphDegrees", "Grid", "GridResize", "IntegerCode", "LearnedAbsolute", "LearnedGrid", "NormalisedCode",
                    "SegmentMemory", "SeparableGrid", "SineGrid", "Sinusoidal", "Time2Vec", "TimeAxis", "Timestamps", "normalise_boxes"}
    assert {known.__name__ for known in MODULES} == {*mechanisms.__all__, "GraphPath"} - of_the_state

    def below(kind):
        return {kind}.union(*(below(sub) for sub in kind.__subclasses__()))

    of_heads = {kind for kind in below(terms.Term) - below(terms.StateRows) if kind.__name__ not in ("Term", "ScoreBias", "Decomposition", "NodeBias", "Untied")}
    assert {kind for kind in of_heads if kind.__module__.startswith(("positionlib.terms", "positionlib.rotation", "positionlib.mechanisms"))} == set(TERMS)


def test_an_unknown_parameter_or_term_is_refused():
    class Longer(pl.T5Bias):
        """A mechanism of a user's own, which inherits no knowledge of where its heads are."""

    @dataclass(frozen=True, eq=False, kw_only=True)
    class Other(terms.ClassBias):
        pass

    assert "Longer" in str(refused(lambda: head_axes(Longer(HEADS, bidirectional=False)), "weight"))
    refused(lambda: head_axes(pl.LearnedAbsolute(4, 6)), "weight")
    refused(lambda: shard_module(nn.ModuleDict({"a": pl.T5Bias(HEADS, bidirectional=False), "b": nn.Linear(2, 2)}), UNEVEN, 0), "b.weight")
    table = pl.T5Bias(HEADS, bidirectional=False)(CAUSAL)
    refused(lambda: slice_term(Other(table=table.table, rule=table.rule, sign=table.sign), UNEVEN, 0), "term")
    refused(lambda: slice_term(pl.Sinusoidal(6)(CAUSAL), UNEVEN, 0), "term")


@pytest.mark.parametrize("name", ["alibi", "t5", "shaw, per head", "transformer-xl", "tupe-r", "grid bias"])
def test_state_that_was_built_for_a_shard_is_refused(name):
    other = HeadPartition.split(HEADS + 1, 2, rule="balanced")
    module, example = EXAMPLES[name].build(), EXAMPLES[name]
    refused(lambda: shard_module(module, other, 0), "slopes" if name == "alibi" else "state")
    refused(lambda: slice_term(example.call(module, example.geometry), other, 0), "state")
    local = shard_module(module, UNEVEN, 0)
    refused(lambda: shard_module(local, UNEVEN, 0), "slopes" if name == "alibi" else "state")


def test_a_sum_of_nothing_or_over_no_ranks_is_refused():
    for given in (None, 3, [torch.zeros(2)]):
        refused(lambda: sum_gradients(given), "parameters")
    refused(lambda: sum_gradients([nn.Parameter(torch.zeros(2))]), "group")
