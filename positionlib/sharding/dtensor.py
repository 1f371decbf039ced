"""DTensors at the seams: attention whose partition is read off Q, and a rank's parameters as parts of whole tensors.

A mechanism computes with its rank's plain tensors. What a DTensor adds is the record of where the rest is: Q's own placement says which
heads are here, so that no second account of them can disagree, and torch.distributed.checkpoint can write or reshard parameters by it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from positionlib.attention import attend
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.sharding.layout import head_axes, slice_term
from positionlib.sharding.partition import HeadPartition
from positionlib.terms import Term


def partition_of(x: DTensor) -> tuple[HeadPartition, int]:
    """(partition, this process's rank) of x [B, H, N, D], which must be sharded along its heads over a mesh of one dimension.

    Raises
    ------
    PositionContractError
        no DTensor, another placement or mesh, or heads that leave a rank without one.
    """
    require(isinstance(x, DTensor) and x.ndim == 4, "x", type(x).__name__, "a DTensor [B, H, N, D]", "Split the heads before attending.")
    mesh = x.device_mesh
    require(mesh.ndim == 1 and tuple(x.placements) == (Shard(1),), "x", f"{x.placements} on a mesh of {mesh.ndim}",
            "(Shard(dim=1),) on a mesh of one dimension",
            "Redistribute it along its heads, on the dimension of the mesh that deals them.")
    return HeadPartition.split(x.shape[1], mesh.size(), rule="chunked"), mesh.get_local_rank()


def attend_heads(q: DTensor, k: DTensor, v: DTensor, term: Term | None, geometry: AttentionGeometry, *, scale: float | None = None,
                 backend: str = "auto") -> DTensor:
    """:func:`positionlib.attention.attend` of q, k, v [B, H, N, D] that are sharded along their heads; the output is placed as q is.

    Keys and values of fewer heads than there are ranks may be replicated: each rank reads the heads of its queries, and their gradients are
    summed over the ranks.

    ``term`` is of all heads: each rank cuts its own slots out. Gradients of the module's parameters are then those of the rank's heads,
    zeros elsewhere: :func:`positionlib.sharding.sum_gradients` of all its parameters makes them whole.

    Raises
    ------
    PositionContractError
        what :func:`partition_of` and attend() refuse, and key heads whose groups of query heads are on other ranks.
    """
    partition, rank = partition_of(q)
    keys, values = (_local_heads(name, x, q, partition, rank) for name, x in (("k", k), ("v", v)))
    part = None if term is None else slice_term(term, partition, rank)
    out = attend(q.to_local(), keys, values, part, geometry, scale=scale, backend=backend)
    shape = torch.Size((*q.shape[:3], v.shape[3]))
    return DTensor.from_local(out.contiguous(), q.device_mesh, q.placements, run_check=False, shape=shape, stride=torch.empty(shape, device="meta").stride())


def _local_heads(name: str, x: DTensor, q: DTensor, partition: HeadPartition, rank: int) -> Tensor:
    """The key heads that this rank's queries read."""
    heads, size = q.shape[1], q.shape[1] // max(x.shape[1], 1)
    replicated = isinstance(x, DTensor) and x.ndim == 4 and tuple(x.placements) == (Replicate(),)
    keys = None if replicated else partition_of(x)[0]
    require(x.device_mesh == q.device_mesh and heads == size * x.shape[1] and (replicated or keys.grouped(size) == partition), name,
            f"{x.shape[1]} heads, {'on every rank' if replicated else keys.ranks}", f"key heads on the ranks of their query heads, {partition.ranks}, or all on every rank",
            "Deal whole groups of heads, or replicate the key heads.")
    if not replicated:
        return x.to_local()
    ids = torch.tensor(partition.key_heads(size, rank), device=x.device)
    return x.to_local(grad_placements=[Partial()]).index_select(1, ids)


def as_dtensors(local: nn.Module, partition: HeadPartition, mesh: DeviceMesh) -> dict[str, DTensor]:
    """The parameters of a rank's module (:func:`positionlib.sharding.shard_module`) as DTensors of the whole model's shapes: a view, no copy.

    Raises
    ------
    PositionContractError
        a partition that is not DTensor's own: consecutive heads, ⌈L/W⌉ rows of an axis of length L a rank, no padding. Two heads of three
        rows on two ranks are; five are not, since ⌈15/2⌉ rows would cut one in two. Cut such a checkpoint with ``split_state``.
    """
    require(isinstance(mesh, DeviceMesh) and mesh.ndim == 1 and mesh.size() == partition.world, "mesh", mesh, f"one dimension of {partition.world} ranks",
            "Take the mesh of the group that deals the heads.")
    parameters, found = dict(local.named_parameters(remove_duplicate=False)), {}
    for name, axis in head_axes(local).items():
        parameter = parameters[name].detach()
        shape, placement = list(parameter.shape), Replicate()
        if axis is not None:
            shape[axis.axis] = length = partition.heads * axis.rows
            placement = Shard(axis.axis)
            rows = [[head * axis.rows + row for head in ids for row in range(axis.rows)] for ids in partition.ranks]
            require(rows == [chunk.tolist() for chunk in torch.arange(length).chunk(partition.world)], "partition", partition.ranks,
                    f"what DTensor makes of the {length} rows of {name}", "Use split_state for any other partition.")
        found[name] = DTensor.from_local(parameter, mesh, [placement], run_check=False, shape=torch.Size(shape),
                                         stride=torch.empty(shape, device="meta").stride())
    return found
