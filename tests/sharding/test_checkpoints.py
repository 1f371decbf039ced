"""A sharded checkpoint from two ranks to three to one: every head's numbers stay its own, and what does not reconcile is refused by name."""

from dataclasses import replace

import pytest
import torch

import positionlib as pl
from positionlib.sharding import PAD, HeadAxis, HeadPartition, HeadShard, convert_shards, head_axes, join_state, shard_module, split_state
from tests.refusals import refused
from tests.sharding.examples import EXAMPLES, HEADS, filled

WITH_STATE = [name for name, example in EXAMPLES.items() if list(example.build().parameters())]
TWO, THREE, ONE = (HeadPartition.split(HEADS, world, rule=rule) for world, rule in ((2, "balanced"), (3, "padded"), (1, "chunked")))
MIXED = HeadPartition(HEADS, ((4, 1), (0, PAD, 3, 2)))


@pytest.mark.parametrize("name", WITH_STATE)
def test_two_to_three_to_one_keeps_every_head(name):
    whole = filled(EXAMPLES[name].build())
    state, axes = whole.state_dict(), head_axes(whole)
    two = split_state(state, axes, TWO)
    three = convert_shards(two[::-1], axes, THREE)  # the files of ranks come in any order
    (one,) = convert_shards(three, axes, ONE)
    assert one.head_ids == tuple(range(HEADS)) and one.state.keys() == state.keys() and all(torch.equal(one.state[n], state[n]) for n in state)
    mixed = convert_shards(three, axes, MIXED)
    for partition, shards in ((TWO, two), (THREE, three), (MIXED, mixed)):
        assert tuple(shard.head_ids for shard in shards) == partition.ranks
        for rank, shard in enumerate(shards):
            local = shard_module(whole, partition, rank).state_dict()
            assert shard.state.keys() == local.keys() and all(torch.equal(shard.state[n], local[n]) for n in local)
    assert all(torch.equal(join_state(mixed, axes)[n], state[n]) for n in state)


def test_moments_travel_as_their_parameters_do():
    module = filled(pl.T5Bias(HEADS, 8, 20, bidirectional=False))
    optimizer = torch.optim.Adam(module.parameters())
    module.weight.square().sum().backward()
    optimizer.step()
    (moments,) = optimizer.state.values()
    for name in ("exp_avg", "exp_avg_sq"):
        shards = split_state({"weight": moments[name]}, head_axes(module), TWO)
        assert torch.equal(shards[1].state["weight"], moments[name][:, 3:])
        assert torch.equal(join_state(convert_shards(shards, head_axes(module), THREE), head_axes(module))["weight"], moments[name])


def test_a_shard_owns_its_memory():
    state = {"table": torch.zeros(5), "shared": torch.zeros(2)}
    shards = split_state(state, {"table": HeadAxis(0), "shared": None}, ONE)
    state["table"] += 1
    state["shared"] += 1
    assert not shards[0].state["table"].any() and not shards[0].state["shared"].any()
    joined = join_state(shards, {"table": HeadAxis(0), "shared": None})
    shards[0].state["shared"] += 1
    assert not joined["shared"].any()


AXES = {"table": HeadAxis(1), "rows": HeadAxis(0, 2), "shared": None}
WHOLE = {"table": torch.arange(1.0, 11.0).reshape(2, 5), "rows": torch.arange(1.0, 11.0)[:, None], "shared": torch.tensor([1.0, float("nan")])}


def shards(at: int = 0, **changes) -> list[HeadShard]:
    """Three good shards, the last with a padding slot, of which one is changed; a tensor given as None is left out."""
    found = split_state(WHOLE, AXES, THREE)
    tensors = {name: value for name, value in (dict(found[at].state) | {n: t for n, t in changes.items() if n in AXES or n == "more"}).items() if value is not None}
    found[at] = replace(found[at], state=tensors, **{n: t for n, t in changes.items() if n in ("heads", "head_ids")})
    return found


@pytest.mark.parametrize("given, field, says", [
    (shards(1, head_ids=(2, 1)), "ranks[1][1]", "head 1 stands in rank 0 already"), (shards(1, head_ids=(2, 5)), "ranks[1][1]", "a head of 0..4"),
    (shards(1, head_ids=(2, PAD)), "ranks", "head 3 stands in no rank"), (shards()[:2], "ranks", "head 4 stands in no rank"),
    (shards() + shards()[:1], "ranks[3][0]", "head 0 stands in rank 0 already"), (shards(1, heads=6), "shards[1].heads", "5, as shards[0] has"),
    (shards(0, heads=6), "ranks", "head 5 stands in no rank"), (shards(2, head_ids=(4,)), "shards, tensor table: parts[2]", "1 along axis 1"),
    (shards(2, head_ids=(PAD, 4)), "shards[2].state[table]", "zeros in the padding slots [0]"),
    (shards(1, table=None), "shards[1].state", "missing ['table']"), (shards(1, more=torch.zeros(1)), "shards[1].state", "unexpected ['more']"),
    (shards(1, table=torch.zeros(2, 3)), "shards, tensor table: parts[1]", "2 along axis 1: 2 heads of 1"),
    (shards(1, table=torch.zeros(3, 2)), "shards, tensor table: parts[1]", "the shape of rank 0's"),
    (shards(1, rows=torch.zeros(2, 1)), "shards, tensor rows: parts[1]", "4 along axis 0: 2 heads of 2"),
    (shards(1, table=torch.zeros(2, 2).double()), "shards, tensor table: parts[1]", "torch.float32"),
    (shards(1, table=torch.zeros(2, 2).int()), "shards[1].state[table]", "floating-point"), (shards(1, table=3), "shards[1].state[table]", "floating-point"),
    (shards(1, table=torch.zeros(2, 2, device="meta")), "shards[1].state[table]", "with values"),
    (shards(1, shared=torch.tensor([1.5, float("nan")])), "shards[1].state[shared]", "all heads share it"),
    (shards(1, shared=torch.tensor([1.0])), "shards[1].state[shared]", "all heads share it"), ([], "shards", "one a rank"), ([{}], "shards", "one a rank"),
])
def test_what_does_not_reconcile_is_named(given, field, says):
    assert torch.equal(join_state(shards(), AXES)["table"], WHOLE["table"])
    assert says in str(refused(lambda: join_state(given, AXES), field))
    refused(lambda: convert_shards(given, AXES, TWO), field)


def test_a_target_of_another_head_count_and_a_state_that_does_not_fit_are_refused():
    refused(lambda: convert_shards(shards(), AXES, HeadPartition.split(6, 2, rule="balanced")), "target")
    refused(lambda: convert_shards(shards(), AXES, 2), "target")
    refused(lambda: split_state(WHOLE, AXES, HeadPartition.split(6, 2, rule="balanced")), "state")
    refused(lambda: split_state(WHOLE, AXES | {"lost": None}, TWO), "state")
    refused(lambda: split_state(WHOLE, AXES | {"table": 1}, TWO), "axes")
    refused(lambda: split_state([1], AXES, TWO), "state")


def test_a_transposed_table_of_a_square_size_does_not_pass_for_another_layout():
    """Five buckets and five heads: only the named layout tells them apart, and the axis follows the name."""
    by_heads, by_buckets = (pl.T5Bias(5, 5, 20, bidirectional=False, table_layout=layout) for layout in ("heads_buckets", "buckets_heads"))
    assert head_axes(by_heads)["weight"] == HeadAxis(0) and head_axes(by_buckets)["weight"] == HeadAxis(1)
    with torch.no_grad():
        by_buckets.weight.copy_(by_heads.weight.T)
    cut = [split_state(module.state_dict(), head_axes(module), TWO)[1].state["weight"] for module in (by_heads, by_buckets)]
    assert torch.equal(cut[0], cut[1].T)
