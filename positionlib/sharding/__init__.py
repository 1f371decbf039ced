"""Per-head state on several processes: it is cut by the same head ids as Q, K and V, and never built anew for a rank's own head count.

    partition = HeadPartition.split(heads=12, world=4, rule="balanced")
    local = shard_module(t5, partition, rank)               # the rank's slots of every per-head table; what heads share stays whole
    out = attend(q, k, v, local(geometry), geometry)        # q, k and v of the rank's heads
    out.backward(d_out)
    sum_gradients(shared_parameters(local))                 # a shared table learns from the heads of all ranks

state (0x09E of the article)               where it goes
T5, graph and grid tables, ALiBi slopes    sliced along their head axis, ids in the order of the Q heads
Shaw tables of each head; shared ones      sliced; whole on every rank, gradients summed
Transformer-XL u, v and W_r                the rows of the rank's heads
DeBERTa, TUPE                              the projections' rows of the rank's heads; table and norm shared; TUPE's scores of these heads only

:mod:`~positionlib.sharding.checkpoints` moves a checkpoint from one partition to another, :mod:`~positionlib.sharding.dtensor` reads
the partition off Q where Q, K and V are DTensors.
"""

from positionlib.sharding.checkpoints import HeadShard, convert_shards, join_state, split_state
from positionlib.sharding.collective import shared_parameters, sum_gradients
from positionlib.sharding.layout import HeadAxis, head_axes, slice_term
from positionlib.sharding.modules import shard_module
from positionlib.sharding.partition import PAD, HeadPartition

__all__ = ["PAD", "HeadAxis", "HeadPartition", "HeadShard", "convert_shards", "head_axes", "join_state", "shard_module", "shared_parameters",
           "slice_term", "split_state", "sum_gradients"]
