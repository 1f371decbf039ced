"""Who holds which heads: the three rules, cutting and joining by ids, and what is refused."""

import pytest
import torch

import positionlib as pl
from positionlib.identity import identity
from positionlib.sharding import PAD, HeadPartition
from tests.refusals import refused


@pytest.mark.parametrize("heads, world, rule, ranks", [
    (5, 2, "balanced", [(0, 1, 2), (3, 4)]), (5, 2, "chunked", [(0, 1, 2), (3, 4)]), (5, 2, "padded", [(0, 1, 2), (3, 4, PAD)]),
    (5, 3, "balanced", [(0, 1), (2, 3), (4,)]), (5, 3, "padded", [(0, 1), (2, 3), (4, PAD)]),
    (7, 4, "balanced", [(0, 1), (2, 3), (4, 5), (6,)]), (10, 4, "balanced", [(0, 1, 2), (3, 4, 5), (6, 7), (8, 9)]),
    (10, 4, "chunked", [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9,)]), (4, 3, "balanced", [(0, 1), (2,), (3,)]),
    (4, 3, "padded", [(0, 1), (2, 3), (PAD, PAD)]), (3, 1, "padded", [(0, 1, 2)]), (4, 4, "chunked", [(0,), (1,), (2,), (3,)]),
])
def test_the_rules_deal_consecutive_heads(heads, world, rule, ranks):
    partition = HeadPartition.split(heads, world, rule=rule)
    assert partition == HeadPartition(heads, tuple(ranks)) and partition.world == world
    assert [partition.head_ids(rank) for rank in range(world)] == ranks


@pytest.mark.parametrize("heads", range(1, 14))
def test_the_rules_are_those_of_torch(heads):
    for world in range(1, heads + 1):
        balanced = HeadPartition.split(heads, world, rule="balanced")
        assert [list(ids) for ids in balanced.ranks] == [part.tolist() for part in torch.arange(heads).tensor_split(world)]
        chunks = [part.tolist() for part in torch.arange(heads).chunk(world)]
        if len(chunks) == world:
            assert [list(ids) for ids in HeadPartition.split(heads, world, rule="chunked").ranks] == chunks
        else:
            refused(lambda world=world: HeadPartition.split(heads, world, rule="chunked"), "ranks")


@pytest.mark.parametrize("ranks, field, says", [
    (((0, 1), (1, 2)), "ranks[1][0]", "head 1 stands in rank 0 already"), (((0, 0), (1, 2)), "ranks[0][1]", "head 0 stands in rank 0 already"),
    (((0, 1), (3,)), "ranks[1][0]", "a head of 0..2, or -1 for padding"), (((0, -2), (1, 2)), "ranks[0][1]", "a head of 0..2"),
    (((0,), (2,)), "ranks", "head 1 stands in no rank"), (((0, 1), (PAD, PAD)), "ranks", "head 2 stands in no rank"),
    (((0, 1, 2), ()), "ranks", "at least one slot"), ((), "ranks", "at least one slot"), (((0, 1.5), (2,)), "ranks[0][1]", "a head of 0..2"),
    (((0, True), (2,)), "ranks[0][1]", "a head of 0..2"), ((0, 1, 2), "ranks", "the ids of its heads"),
])
def test_head_ids_that_are_wrong_doubled_or_missing_are_named(ranks, field, says):
    assert says in str(refused(lambda: HeadPartition(3, ranks), field))


def test_a_slot_is_the_state_of_its_head():
    partition = HeadPartition(3, ((2, PAD), (0, 1)))
    state = torch.arange(12.0).reshape(2, 3, 2).requires_grad_()  # [2, heads, 2]
    first, second = partition.take(state, 0, 1), partition.take(state, 1, 1)
    assert first.tolist() == [[[4, 5], [0, 0]], [[10, 11], [0, 0]]] and second.tolist() == [[[0, 1], [2, 3]], [[6, 7], [8, 9]]]
    (gradient,) = torch.autograd.grad((first * 2).sum() + first[:, 1].sum() * 100 + (second * 3).sum(), state)
    assert gradient.tolist() == [[[3, 3], [3, 3], [2, 2]]] * 2, "a padding slot has nobody's gradient"
    assert partition.keep(first, 0, 1).tolist() == [[[4, 5]], [[10, 11]]] and torch.equal(partition.keep(second, 1, 1), second)
    assert torch.equal(partition.join([first.detach() + torch.tensor([0.0, 9.0])[:, None] * (first == 0), second], 1), state)


def test_a_head_of_several_rows_keeps_them_together():
    partition, rows = HeadPartition(2, ((1,), (0,))), torch.arange(6.0)
    parts = [partition.take(rows, rank, 0, rows=3) for rank in range(2)]
    assert [part.tolist() for part in parts] == [[3, 4, 5], [0, 1, 2]] and torch.equal(partition.join(parts, 0, rows=3), rows)


def test_a_hidden_nan_does_not_reach_a_padding_slot():
    assert HeadPartition(1, ((0,), (PAD,))).take(torch.tensor([float("nan")]), 1, 0).tolist() == [0.0]


def test_key_heads_take_their_query_heads_along():
    keys = HeadPartition(3, ((2, PAD), (0, 1)))
    assert keys.grouped(2) == HeadPartition(6, ((4, 5, PAD, PAD), (0, 1, 2, 3)))
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 4, 4, dtype=torch.float64, generator=generator) for heads in (6, 3, 3))
    geometry, slopes = pl.AttentionGeometry.causal_self(4), pl.ALiBi(6)
    whole = pl.attend(q, k, v, slopes(geometry), geometry)
    for rank in range(2):
        cut = [partition.take(x, rank, 1) for partition, x in ((keys.grouped(2), q), (keys, k), (keys, v))]
        part = pl.attend(*cut, pl.sharding.slice_term(slopes(geometry), keys.grouped(2), rank), geometry)
        wanted = whole[:, [h for h in keys.grouped(2).head_ids(rank) if h != PAD]]
        assert torch.allclose(keys.grouped(2).keep(part, rank, 1), wanted, atol=1e-14)


@pytest.mark.parametrize("ranks, read", [
    (((0, 1), (2, 3), (4,), (5,)), [(0,), (0, 1), (1,), (1,)]),  # fewer key heads than ranks
    (((1, 2, 3), (0, PAD, 4, 5)), [(0, 0, 1), (0, 1)]),  # unequal runs; a padding slot goes with its neighbour
    (((PAD, 3), (5, 2, 1, 0, 4)), [(0, 1), (1, 0, 0, 0, 1)]), (((PAD,), (0, 1, 2, 3, 4, 5)), [(0,), (0, 1)])])
def test_several_ranks_read_the_same_key_head(ranks, read):
    queries = HeadPartition(6, ranks)
    assert [queries.key_heads(3, rank) for rank in range(len(ranks))] == read
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 4, 4, dtype=torch.float64, generator=generator, requires_grad=True) for heads in (6, 2, 2))
    geometry, slopes = pl.AttentionGeometry.causal_self(4), pl.ALiBi(6)
    whole = pl.attend(q, k, v, slopes(geometry), geometry)
    wanted = torch.autograd.grad(whole.square().sum(), (q, k, v))
    loss = 0
    for rank, keys in enumerate(read):
        local = pl.attend(queries.take(q, rank, 1), k[:, keys], v[:, keys], pl.sharding.slice_term(slopes(geometry), queries, rank), geometry)
        loss = loss + queries.keep(local, rank, 1).square().sum()
    found = torch.autograd.grad(loss, (q, k, v))
    assert all(torch.allclose(x, y, atol=1e-13, rtol=0) for x, y in zip(found, wanted))


STATE, HALVES = torch.zeros(2, 4), HeadPartition(4, ((0, 1), (2, 3)))


@pytest.mark.parametrize("call, field", [
    (lambda: HeadPartition.split(3, 4, rule="balanced"), "world"), (lambda: HeadPartition.split(4, 2, rule="even"), "rule"),
    (lambda: HeadPartition.split(4, 3, rule="chunked"), "ranks"), (lambda: HALVES.head_ids(2), "rank"), (lambda: HALVES.head_ids(-1), "rank"),
    (lambda: HALVES.take(STATE, 0, 0), "state"), (lambda: HALVES.take(STATE, 0, 2), "axis"), (lambda: HALVES.take(STATE, 0, 1, rows=2), "state"),
    (lambda: HALVES.keep(STATE, 0, 1), "state"), (lambda: HALVES.grouped(0), "size"),
    (lambda: HALVES.key_heads(3, 0), "size"), (lambda: HALVES.key_heads(2, 2), "rank"), (lambda: HALVES.join([STATE[:, :2]], 1), "parts"),
    (lambda: HALVES.join([STATE[:, :2], STATE[:, :3]], 1), "parts[1]"), (lambda: HALVES.join([STATE[:, :2], STATE[:1, :2]], 1), "parts[1]"),
    (lambda: HALVES.join([STATE[:, :2], STATE[:, :2].double()], 1), "parts[1]"),
])
def test_refusals(call, field):
    refused(call, field)


def test_a_partition_is_part_of_a_requests_identity():
    call = pl.PositionCall.decode(committed_length=4)
    facts = dict(source_revision="c", variant="d", table_or_slope_version="e")
    keys = {rule: identity(call, head_partition=HeadPartition.split(5, 2, rule=rule), **facts).request_identity for rule in ("balanced", "chunked", "padded")}
    assert keys["balanced"] == keys["chunked"] != keys["padded"] and hash(keys["balanced"]) == hash(keys["chunked"])
