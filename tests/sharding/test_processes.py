"""One, two and three gloo processes, uneven and padded heads, against one call of all heads: outputs and every gradient within 1e-12."""

from functools import cache

import pytest
import torch
import torch.multiprocessing as multiprocessing

import positionlib as pl
from positionlib.sharding import HeadAxis, head_axes
from tests.sharding import worker
from tests.sharding.examples import D_HEAD, EXAMPLES, drawn, filled, projections

CLOSE = 1e-12
OF_HEADS = dict.fromkeys(("out", "q", "k", "v"), HeadAxis(1)) | {f"{side}_proj.{kind}": HeadAxis(0, D_HEAD) for side in ("query", "key") for kind in ("weight", "bias")}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What every rank of every world found: {world: [rank 0's, rank 1's, …]}."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(worker.main, (str(folder),), max(worker.PARTITIONS))
    found = [torch.load(folder / f"{rank}.pt") for rank in range(max(worker.PARTITIONS))]
    return {world: [found[rank][world] for rank in range(world)] for world in worker.PARTITIONS}


@cache
def alone(name: str) -> dict[str, torch.Tensor]:
    """The same loss of all heads in this process."""
    example, (*qkv, d_out) = EXAMPLES[name], drawn()
    whole, given = filled(example.build()), projections(name)
    q, k, v = (x.requires_grad_() for x in qkv)
    out = pl.attend(q, k, v, example.call(whole, example.geometry, **given), example.geometry)
    out.backward(d_out)
    of_projections = {f"{side}.{kind}": p.grad for side, projection in given.items() for kind, p in projection.named_parameters()}
    return {"out": out.detach(), "q": q.grad, "k": k.grad, "v": v.grad, **{n: p.grad for n, p in whole.named_parameters()}, **of_projections}


@pytest.mark.parametrize("world, rule", [(world, rule) for world, rules in worker.PARTITIONS.items() for rule in rules])
@pytest.mark.parametrize("name", EXAMPLES)
def test_ranks_together_give_what_one_process_gives(ranks, name, world, rule):
    partition, wanted = worker.PARTITIONS[world][rule], alone(name)
    axes = OF_HEADS | head_axes(EXAMPLES[name].build())
    parts = [rank["heads"][rule, name] for rank in ranks[world]]
    assert all(part.keys() == wanted.keys() for part in parts)
    for field, want in wanted.items():
        # A key bias adds one number to all scores of a row, which the softmax takes away: its gradient is nothing.
        assert want.abs().max() > 1e-3 or field.endswith("key_proj.bias"), f"{field} proves nothing when it is zero"
        found = [part[field] for part in parts]
        seen = [partition.join(found, axes[field].axis, rows=axes[field].rows)] if axes[field] else found
        assert max(float((x - want).abs().max()) for x in seen) < CLOSE, field


@pytest.mark.parametrize("world", worker.PARTITIONS)
@pytest.mark.parametrize("name", worker.BY_DTENSOR)
def test_dtensors_carry_the_partition_to_the_term(ranks, name, world):
    wanted = alone(name)
    for rank in ranks[world]:
        seen = rank["dtensors"][name]
        assert seen.keys() == wanted.keys()
        assert max(float((seen[field] - wanted[field]).abs().max()) for field in wanted) < CLOSE


@pytest.mark.parametrize("world", worker.PARTITIONS)
def test_ranks_share_a_key_head_that_is_on_all_of_them(ranks, world):
    wanted = worker.one_key_head(torch.Tensor.clone, torch.Tensor.clone, pl.attend)
    for rank in ranks[world]:
        assert max(float((x - y).abs().max()) for x, y in zip(rank["dtensors"]["one key head"], wanted, strict=True)) < CLOSE


@pytest.mark.parametrize("world", worker.PARTITIONS)
def test_a_ranks_parameters_are_parts_of_the_whole_ones(ranks, world):
    whole = dict(filled(EXAMPLES["shaw, per head"].build()).named_parameters())
    for rank in ranks[world]:
        seen = rank["dtensors"]["state"]
        assert seen.keys() == whole.keys() and all(torch.equal(seen[name], whole[name]) for name in whole)


@pytest.mark.parametrize("world", worker.PARTITIONS)
def test_what_a_dtensor_cannot_carry_is_refused(ranks, world):
    for rank in ranks[world]:
        said = rank["dtensors"]["refused"]
        assert said["plain"].startswith("x: x = 'Tensor': expected a DTensor [B, H, N, D]")
        assert "Replicate()" in said["placement"] and "(Shard(dim=1),)" in said["placement"]
        assert said["another world"].startswith("mesh: ") and "ranks. Take the mesh" in said["another world"]
        # 5 query heads and 8 key heads share no groups, and 20 rows of Transformer-XL's W_r on three ranks are cut 7, 7, 6: through a head.
        assert said["doubled"].startswith("k: ") and "3 heads, on every rank" in said["doubled"]
        assert said["groups"].startswith("k: ") and said["order"].startswith("partition: ")
        assert bool(said["a head in two"]) == (world > 1) and (world == 1 or "20 rows of weight" in said["a head in two"])
