"""Sound calls of what deals heads to ranks: partitions, cuts of terms and modules, and checkpoints on their way."""

from __future__ import annotations

import positionlib as pl
from positionlib import sharding
from positionlib.sharding import HeadPartition, HeadShard
from tests.hostile import CAUSAL, Call, D, H, normal

PARTITION = HeadPartition.split(H, 2, rule="balanced")
T5 = pl.T5Bias(H, 8, 16, bidirectional=False)
AXES, STATE = sharding.head_axes(T5), T5.state_dict()
SHARDS = sharding.split_state(STATE, AXES, PARTITION)


def joined(heads, head_ids, weight):
    """The whole state from two shards, of which the second is given in parts."""
    return sharding.join_state([SHARDS[0], HeadShard(heads=heads, head_ids=head_ids, state={"weight": weight})], AXES)


CALLS: dict[str, Call] = {
    "HeadPartition": (HeadPartition, dict(heads=3, ranks=((0, 2), (1,)))), "HeadPartition rank": (lambda ids: HeadPartition(3, ((0,), ids)), dict(ids=(1, 2))),
    "HeadPartition head": (lambda head: HeadPartition(3, ((0, 1), (head,))), dict(head=2)),
    "HeadPartition.split": (HeadPartition.split, dict(heads=5, world=2, rule="padded")), "HeadPartition.head_ids": (PARTITION.head_ids, dict(rank=1)),
    "HeadPartition.grouped": (PARTITION.grouped, dict(size=2)), "HeadPartition.key_heads": (PARTITION.key_heads, dict(size=2, rank=1)),
    "HeadPartition.take": (PARTITION.take, dict(state=normal(2, 2 * H, D), rank=1, axis=1, rows=2)),
    "HeadPartition.keep": (PARTITION.keep, dict(state=normal(2, 2, D), rank=0, axis=1)),
    "HeadPartition.join": (PARTITION.join, dict(parts=[normal(3, 2), normal(3, 2)], axis=1, rows=1)),
    "HeadPartition.join part": (lambda part: PARTITION.join([normal(3, 2), part], 1), dict(part=normal(3, 2))),
    "head_axes": (sharding.head_axes, dict(module=T5)), "shard_module": (sharding.shard_module, dict(module=T5, partition=PARTITION, rank=1)),
    "slice_term": (sharding.slice_term, dict(term=T5(CAUSAL), partition=PARTITION, rank=0)),
    "split_state": (sharding.split_state, dict(state=STATE, axes=AXES, partition=PARTITION)),
    "split_state tensor": (lambda weight: sharding.split_state({"weight": weight}, AXES, PARTITION), dict(weight=normal(8, H))),
    "join_state": (sharding.join_state, dict(shards=SHARDS, axes=AXES)), "join_state shard": (joined, dict(heads=H, head_ids=(2, 3), weight=normal(8, 2))),
    "convert_shards": (sharding.convert_shards, dict(shards=SHARDS, axes=AXES, target=HeadPartition.split(H, 3, rule="padded"))),
}
