"""A rank's own mechanism: a copy of the whole one that holds the slots of the rank's heads."""

from __future__ import annotations

import copy

from torch import nn

from positionlib.contract import checked
from positionlib.errors import require
from positionlib.mechanisms import ALiBi
from positionlib.sharding.layout import head_axes
from positionlib.sharding.partition import PAD, HeadPartition


@checked
def shard_module(module: nn.Module, partition: HeadPartition, rank: int) -> nn.Module:
    """A copy of a mechanism, or of a container of them, for one rank: per-head parameters are cut by head ids, shared ones stay whole.

    The copy is called as the original is. With shared projections DeBERTa's call passes the rank's own rows of them. Parameters that
    modules share stay shared: put the layers of a stack into one ``ModuleList``. The original keeps all heads.

    Raises
    ------
    PositionContractError
        a module that is no mechanism with heads, or one that was built for another head count than the partition's.
    """
    ids, axes, local, done = partition.head_ids(rank), head_axes(module), copy.deepcopy(module), set()
    for name, parameter in local.named_parameters(remove_duplicate=False):
        if axes[name] is not None and id(parameter) not in done:
            parameter.grad, parameter.data = None, partition.take(parameter.data, rank, axes[name].axis, rows=axes[name].rows)
            done.add(id(parameter))
    for part in local.modules():
        if isinstance(part, ALiBi):  # its slopes are numbers, in no state dict
            require(len(part._slopes) == partition.heads, "slopes", len(part._slopes),
                    f"{partition.heads}, one a head of the model", "Shard the module of all heads.")
            part._slopes = tuple(0.0 if head == PAD else part._slopes[head] for head in ids)
        if hasattr(part, "heads"):
            part.heads = len(ids)
        if isinstance(part, nn.Linear):
            part.out_features = len(part.weight)
    return local
