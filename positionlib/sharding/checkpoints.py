"""A checkpoint that is cut by heads, and its way from one partition to another: join by head id, then cut again.

The head ids travel with each rank's tensors, so neither the order of the files nor their number decides which head a slot is. What does
not reconcile is refused by name: head ids that are wrong, doubled or missing, tensors that are missing, unexpected or of another shape or
dtype, shared tensors that differ between ranks, and padding that is not zero.

The optimizer's moments have the axes of their parameters: convert them as two more states. A single step count belongs to no head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from positionlib.errors import PositionContractError, require, whole_number
from positionlib.sharding.layout import Axes, HeadAxis
from positionlib.sharding.partition import PAD, HeadPartition


@dataclass(frozen=True, eq=False)
class HeadShard:
    """One rank's part of a checkpoint.

    Attributes
    ----------
    heads : head count of the model, all ranks together.
    head_ids : the head of every slot, PAD where a slot is padding.
    state : the rank's tensors by the names of :func:`positionlib.sharding.head_axes`.
    """

    heads: int
    head_ids: tuple[int, ...]
    state: Mapping[str, Tensor]


def split_state(state: Mapping[str, Tensor], axes: Axes, partition: HeadPartition) -> list[HeadShard]:
    """The shards of a whole state under a partition, one a rank; each owns its memory.

    Raises
    ------
    PositionContractError
        a tensor that is missing, unexpected, or not H heads long.
    """
    _check_partition("partition", partition)
    _check_names("state", state, _check_axes(axes))

    def part(name: str, rank: int) -> Tensor:
        whole, axis = state[name].detach(), axes[name]
        return whole.clone() if axis is None else partition.take(whole, rank, axis.axis, rows=axis.rows)

    return [HeadShard(partition.heads, ids, {name: part(name, rank) for name in axes}) for rank, ids in enumerate(partition.ranks)]


def join_state(shards: Sequence[HeadShard], axes: Axes) -> dict[str, Tensor]:
    """The whole state, heads in their own order, from the shards of all ranks in any order.

    Raises
    ------
    PositionContractError
        whatever the module's text lists; ``field`` names the shard and the tensor.
    """
    require(isinstance(shards, Sequence) and len(shards) > 0 and all(isinstance(shard, HeadShard) for shard in shards), "shards", shards,
            "a list of HeadShard, one a rank", "Read the files of all ranks.")
    partition = HeadPartition(shards[0].heads, tuple(shard.head_ids for shard in shards))
    _check_axes(axes)
    for at, shard in enumerate(shards):
        require(whole_number(shard.heads) == partition.heads, f"shards[{at}].heads", shard.heads, f"{partition.heads}, as shards[0] has",
                "Take the shards of one model.")
        _check_names(f"shards[{at}].state", shard.state, axes)
    return {name: _joined(name, shards, axes[name], partition) for name in axes}


def convert_shards(shards: Sequence[HeadShard], axes: Axes, target: HeadPartition) -> list[HeadShard]:
    """The same checkpoint under another partition.

    Raises
    ------
    PositionContractError
        what :func:`join_state` refuses, or a target of another head count.
    """
    _check_partition("target", target)
    whole = join_state(shards, axes)
    require(target.heads == whole_number(shards[0].heads), "target", target.heads, f"{shards[0].heads} heads, as the shards have",
            "Heads are dealt anew, not made or dropped.")
    return split_state(whole, axes, target)


def _joined(name: str, shards: Sequence[HeadShard], axis: HeadAxis | None, partition: HeadPartition) -> Tensor:
    parts = [shard.state[name].detach() for shard in shards]
    if axis is None:
        for at, part in enumerate(parts):
            same = (part.dtype, part.shape) == (parts[0].dtype, parts[0].shape) and torch.equal(part.nan_to_num(), parts[0].nan_to_num())
            require(same, f"shards[{at}].state[{name}]", part, "the numbers of shards[0], since all heads share it",
                    "Its gradients were not summed over the ranks: which of the two tables is right, nobody can tell.")
        return parts[0].clone()
    try:
        whole = partition.join(parts, axis.axis, rows=axis.rows)
    except PositionContractError as refused:
        raise PositionContractError(f"shards, tensor {name}: {refused.field}", refused.value, refused.expected, refused.remedy) from None
    for at, (part, ids) in enumerate(zip(parts, partition.ranks)):
        padding = [slot for slot, head in enumerate(ids) if head == PAD]
        held = part.unflatten(axis.axis, (len(ids), axis.rows)).index_select(axis.axis, torch.tensor(padding, dtype=torch.int64))
        require(not bool(held.any()), f"shards[{at}].state[{name}]", part, f"zeros in the padding slots {padding}",
                "A trained slot belongs to a head: the head ids are not this file's.")
    return whole


def _check_partition(field: str, partition: object) -> None:
    require(isinstance(partition, HeadPartition), field, partition, "a HeadPartition", "Name who holds which heads.")


def _check_axes(axes: object) -> Axes:
    known = isinstance(axes, Mapping) and all(isinstance(name, str) and (axis is None or isinstance(axis, HeadAxis)) for name, axis in axes.items())
    require(known, "axes", axes, "a HeadAxis or None by parameter name", "Take them from head_axes(module).")
    return axes


def _check_names(field: str, state: object, axes: Axes) -> None:
    require(isinstance(state, Mapping), field, state, "tensors by name", "Pass a state dict.")
    missing, unexpected = sorted(axes.keys() - state.keys()), sorted(str(name) for name in state.keys() - axes.keys())
    require(not missing and not unexpected, field, sorted(map(str, state)), f"exactly the tensors of axes; missing {missing}, unexpected {unexpected}",
            "Nothing is left behind: drop what belongs elsewhere yourself.")
    for name, tensor in state.items():
        dense = isinstance(tensor, Tensor) and tensor.dtype.is_floating_point and tensor.layout == torch.strided and not tensor.is_meta
        require(dense, f"{field}[{name}]", tensor, "a dense floating-point tensor with values", "Load the tensors first.")
