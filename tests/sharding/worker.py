"""What each of three gloo processes computes with its own heads, alone, in pairs and together; the test reads it from a file.

A world of one or two is a group of the three, so that three processes are started and not six.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import positionlib as pl
from positionlib.sharding import PAD, HeadPartition, shard_module, shared_parameters, sum_gradients
from positionlib.sharding.dtensor import as_dtensors, attend_heads, partition_of
from tests.sharding.examples import D_HEAD, EXAMPLES, HEADS, drawn, filled, projections

PARTITIONS = {world: {rule: HeadPartition.split(HEADS, world, rule=rule) for rule in ("balanced", "padded")} for world in (1, 2, 3)}
BY_DTENSOR = ("alibi", "t5", "shaw, shared", "shaw, per head", "transformer-xl", "deberta", "tupe-r", "grid bias", "rotary")
PARTITIONS[2]["any order"] = HeadPartition(HEADS, ((4, 1), (0, PAD, 3, 2)))


def attended(name: str, partition: HeadPartition, rank: int, group: dist.ProcessGroup) -> dict[str, torch.Tensor]:
    """The output and all gradients of one rank. The loss is ⟨out, d_out⟩ over the rank's heads; shared gradients are summed over the ranks."""
    example, (*qkv, d_out) = EXAMPLES[name], drawn()
    local = shard_module(filled(example.build()), partition, rank)
    given = projections(name)
    for projection in given.values():
        for kind, parameter in list(projection.named_parameters()):
            setattr(projection, kind, nn.Parameter(partition.take(parameter.detach(), rank, 0, rows=D_HEAD)))
    q, k, v = (partition.take(x, rank, 1).requires_grad_() for x in qkv)
    out = pl.attend(q, k, v, example.call(local, example.geometry, **given), example.geometry)
    (partition.keep(out, rank, 1) * partition.keep(partition.take(d_out, rank, 1), rank, 1)).sum().backward()
    sum_gradients(shared_parameters(local), group)
    of_projections = {f"{side}.{kind}": p.grad for side, projection in given.items() for kind, p in projection.named_parameters()}
    return {"out": out.detach(), "q": q.grad, "k": k.grad, "v": v.grad, **{n: p.grad for n, p in local.named_parameters()}, **of_projections}


def one_key_head(deal: Callable, everywhere: Callable, attend: Callable) -> list[torch.Tensor]:
    """The output of five query heads that read one key head under T5's bias, and the gradients of q, k and v."""
    example, (q, k, v, d_out) = EXAMPLES["t5"], drawn()
    inputs = deal(q).requires_grad_(), everywhere(k[:, :1]).requires_grad_(), everywhere(v[:, :1]).requires_grad_()
    out = attend(*inputs, example.call(filled(example.build()), example.geometry), example.geometry)
    out.backward(deal(d_out))
    return [out.detach(), *(x.grad for x in inputs)]


def from_dtensors(group: dist.ProcessGroup) -> dict[str, dict[str, torch.Tensor]]:
    """Attention over DTensors under terms of all heads, and the parameters of a rank as DTensors made whole again."""
    mesh, found = DeviceMesh.from_group(group, "cpu"), {}
    for name in BY_DTENSOR:
        example, (*qkv, d_out) = EXAMPLES[name], drawn()
        whole = filled(example.build())
        q, k, v = (distribute_tensor(x, mesh, [Shard(1)]).requires_grad_() for x in qkv)
        out = attend_heads(q, k, v, example.call(whole, example.geometry), example.geometry)
        out.backward(distribute_tensor(d_out, mesh, [Shard(1)]))
        sum_gradients(whole.parameters(), group)
        found[name] = {"out": out.full_tensor().detach(), **{n: x.grad.full_tensor() for n, x in zip("qkv", (q, k, v))},
                       **{n: p.grad for n, p in whole.named_parameters()}}
    deal, everywhere = (partial(distribute_tensor, device_mesh=mesh, placements=[place]) for place in (Shard(1), Replicate()))
    found["one key head"] = [x.full_tensor() for x in one_key_head(deal, everywhere, attend_heads)]
    partition, rank = partition_of(q)
    local = shard_module(filled(EXAMPLES["shaw, per head"].build()), partition, rank)
    found["state"] = {name: tensor.full_tensor() for name, tensor in as_dtensors(local, partition, mesh).items()}
    whole, xl = distribute_tensor(drawn()[0], mesh, [Replicate()]), shard_module(filled(EXAMPLES["transformer-xl"].build()), partition, rank)
    four = distribute_tensor(drawn()[0][:, :4].repeat(1, 2, 1, 1), mesh, [Shard(1)])
    found["refused"] = {what: refusal(*call) for what, call in {
        "placement": (partition_of, whole), "plain": (partition_of, drawn()[0]), "doubled": (attend_heads, q, distribute_tensor(drawn()[0][:, :3], mesh, [Replicate()]), v, None, EXAMPLES["nope"].geometry), "groups": (attend_heads, q, four, four, None, EXAMPLES["nope"].geometry),
        "a head in two": (as_dtensors, xl, partition, mesh), "another world": (as_dtensors, local, HeadPartition.split(HEADS, 4, rule="padded"), mesh),
        "order": (as_dtensors, local, HeadPartition.split(HEADS, mesh.size(), rule="padded") if mesh.size() > 1 else HeadPartition(2, ((1, 0),)), mesh)}.items()}
    return found


def refusal(call, *arguments) -> str:
    """What a call is refused with; nothing where it gives an answer."""
    try:
        call(*arguments)
    except pl.PositionContractError as refused:
        return f"{refused.field}: {refused}"
    return ""


def main(rank: int, folder: str) -> None:
    """One process of three: everything it finds goes to a file of its own."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a fresh machine may have no address for its own name
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=max(PARTITIONS))
    groups = {world: dist.new_group(range(world)) for world in PARTITIONS}
    found = {}
    for world in PARTITIONS:
        if rank < world:
            found[world] = {"heads": {(rule, name): attended(name, partition, rank, groups[world]) for rule, partition in PARTITIONS[world].items() for name in EXAMPLES},
                            "dtensors": from_dtensors(groups[world])}
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
