"""Which heads of a model each rank holds, and in which order.

    ranks[r] = (a_0, a_1, …)        slot s of every per-head tensor of rank r belongs to head a_s of 0..H−1, or to nobody: PAD

Every head stands in exactly one slot. All per-head state is cut by these ids from the state of all heads; whatever depends on a head's
number or on their count (ALiBi's slopes) is right in no other way. A padding slot is filled with zeros, and what comes out of it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import PositionRangeError, require, require_choice, require_count, whole_number

PAD = -1  # in the place of a head id: a slot that belongs to no head
RULES = ("balanced", "chunked", "padded")


@dataclass(frozen=True)
class HeadPartition:
    """The heads 0..heads−1 of a model, dealt to ranks: one tuple of head ids a rank, in the order of its slots.

    Equal partitions compare equal and hash alike: pass one as the ``head_partition`` of :func:`positionlib.identity.identity`.

    Raises
    ------
    PositionContractError
        an id that is no head, a head in two slots or in none, a rank without a slot; the message names the head and its ranks.
    """

    heads: int
    ranks: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        heads = require_count("heads", self.heads)
        listed = isinstance(self.ranks, Sequence) and all(isinstance(ids, Sequence) and len(ids) > 0 for ids in self.ranks)
        require(listed and len(self.ranks) > 0, "ranks", self.ranks, "for each rank the ids of its heads, at least one slot",
                "Use fewer ranks, or give a rank without heads a padding slot.")
        ranks = tuple(tuple(whole_number(h) for h in ids) for ids in self.ranks)
        holder: dict[int, int] = {}
        for rank, ids in enumerate(ranks):
            for slot, head in enumerate(ids):
                require(head is not None and PAD <= head < heads, f"ranks[{rank}][{slot}]", self.ranks[rank][slot],
                        f"a head of 0..{heads - 1}, or {PAD} for padding",
                        "Count heads over all ranks.")
                require(head == PAD or head not in holder, f"ranks[{rank}][{slot}]", head,
                        f"each head once; head {head} stands in rank {holder.get(head)} already",
                        "A doubled head would be counted twice, and the head in whose place it stands not at all.")
                holder[head] = rank
        lost = next((head for head in range(heads) if head not in holder), None)
        require(lost is None, "ranks", self.ranks, f"all of the heads 0..{heads - 1}; head {lost} stands in no rank", "Give every head a slot.")
        object.__setattr__(self, "heads", heads)
        object.__setattr__(self, "ranks", ranks)

    @classmethod
    @checked
    def split(cls, heads: int, world: int, *, rule: str) -> HeadPartition:
        """Consecutive heads for each of ``world`` ranks. No head count tells the rules apart where it divides; where it does not, they differ:

        - ``balanced``: the first H mod W ranks hold one head more (torch.tensor_split);
        - ``chunked``: ⌈H/W⌉ heads a rank, the last one holds what is left (torch.chunk, DTensor's Shard);
        - ``padded``: as ``chunked``, filled up with padding slots to ⌈H/W⌉.

        Raises
        ------
        PositionContractError
            more ranks than heads, an unknown rule, or a chunk that leaves a rank without a head.
        """
        heads, world = require_count("heads", heads), require_count("world", world)
        require(world <= heads, "world", world, f"at most {heads} ranks, one a head", "Use fewer ranks.")
        size, left = divmod(heads, world)
        if require_choice("rule", rule, RULES) == "balanced":
            starts = [r * size + min(r, left) for r in range(world + 1)]
        else:
            starts = [min(r * -(-heads // world), heads) for r in range(world + 1)]
        ranks = [tuple(range(*ends)) for ends in zip(starts, starts[1:])]
        if rule == "padded":
            ranks = [ids + (PAD,) * (-(-heads // world) - len(ids)) for ids in ranks]
        return cls(heads, tuple(ranks))

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @checked
    def head_ids(self, rank: int) -> tuple[int, ...]:
        """The ids of a rank's slots, PAD included."""
        if not 0 <= rank < self.world:
            raise PositionRangeError("rank", rank, f"0..{self.world - 1}", "Count ranks of the group that shares the heads.")
        return self.ranks[rank]

    @checked
    def grouped(self, size: int) -> HeadPartition:
        """The partition of the query heads where this one deals the key heads: ``size`` consecutive query heads follow each key head."""
        size = require_count("size", size)
        members = [[[PAD] * size if h == PAD else range(h * size, (h + 1) * size) for h in ids] for ids in self.ranks]
        return HeadPartition(self.heads * size, tuple(tuple(q for group in ids for q in group) for ids in members))

    @checked
    def key_heads(self, size: int, rank: int) -> tuple[int, ...]:
        """The key heads that a rank's query heads read where this partition deals query heads, ``size`` consecutive ones to a key head.

        Where key heads are fewer than ranks, several ranks hold the same one: keep keys and values of all heads on every rank, select these,
        and sum the gradients of what made them over the ranks. Each stands once where equally many slots in a row read it, as grouped
        attention asks, else once a slot.

        Raises
        ------
        PositionContractError
            a size that does not divide the heads.
        """
        size = require_count("size", size)
        require(self.heads % size == 0, "size", size, f"a divisor of {self.heads} heads", "Every key head has as many query heads.")
        read: list[int] = []
        for head in self.head_ids(rank):
            read.append(head // size if head != PAD else read[-1] if read else 0)  # a padding slot reads anything: it is dropped
        runs = [(key, len(list(slots))) for key, slots in groupby(read)]
        return tuple(key for key, _ in runs) if len({length for _, length in runs}) == 1 else tuple(read)

    @checked
    def take(self, state: Float[Tensor, "*shape"], rank: int, axis: int, *, rows: int = 1) -> Float[Tensor, "*shape"]:
        """A rank's slots of the state of all heads, whose ``axis`` counts heads, or ``rows`` rows a head. Padding slots are zeros without gradient.

        Raises
        ------
        PositionContractError
            an axis that is not there or not H · rows long, as of state that was built for a rank's own head count.
        """
        axis, ids = require_count("axis", axis, 0), torch.tensor(self.head_ids(rank), device=state.device)
        by_head = _by_head("state", state, axis, self.heads, rows)
        picked = by_head.index_select(axis, ids.clamp_min(0))
        empty = (ids == PAD).reshape(-1, *[1] * (picked.ndim - 1 - axis))
        return picked.masked_fill(empty, 0.0).flatten(axis, axis + 1)

    @checked
    def keep(self, state: Float[Tensor, "*shape"], rank: int, axis: int) -> Float[Tensor, "*shape"]:
        """A rank's own tensor without its padding slots: what is done with an output before anything is made of it."""
        axis, ids = require_count("axis", axis, 0), self.head_ids(rank)
        _by_head("state", state, axis, len(ids), 1)
        return state.index_select(axis, torch.tensor([slot for slot, h in enumerate(ids) if h != PAD], dtype=torch.int64, device=state.device))

    def join(self, parts: Sequence[Float[Tensor, "*shape"]], axis: int, *, rows: int = 1) -> Float[Tensor, "*shape"]:
        """The state of all heads, head 0 first, from the tensors of all ranks, rank 0 first: the way back from :meth:`take`.

        Raises
        ------
        PositionContractError
            not one tensor a rank, tensors that do not fit together, or an axis without ``rows`` rows for each of a rank's slots.
        """
        axis = require_count("axis", axis, 0)
        tensors = isinstance(parts, Sequence) and all(
            isinstance(part, Tensor) and part.dtype.is_floating_point and part.layout == torch.strided for part in parts)
        require(tensors and len(parts) == self.world, "parts", parts, f"a list of {self.world} dense floating-point tensors, one a rank",
                "Gather them in the order of the ranks.")
        by_slot = [_by_head(f"parts[{rank}]", part, axis, len(ids), rows) for rank, (part, ids) in enumerate(zip(parts, self.ranks))]
        for rank, (part, slots) in enumerate(zip(parts, by_slot)):
            same = (slots.shape[:axis], slots.shape[axis + 1 :], slots.dtype, slots.device) == (
                by_slot[0].shape[:axis], by_slot[0].shape[axis + 1 :], by_slot[0].dtype, by_slot[0].device)
            require(same, f"parts[{rank}]", part,
                    f"{parts[0].dtype} on {parts[0].device}, and the shape of rank 0's but for the heads", "Take them from one model.")
        slot = {head: at for at, head in enumerate(h for ids in self.ranks for h in ids)}
        order = torch.tensor([slot[head] for head in range(self.heads)], device=parts[0].device)
        return torch.cat(by_slot, axis).index_select(axis, order).flatten(axis, axis + 1)


def _by_head(field: str, state: Tensor, axis: int, heads: int, rows: int) -> Tensor:
    """``state`` with its head axis in two: heads, and the rows of each."""
    require(axis < state.ndim, "axis", axis, f"an axis of {field}, which has {state.ndim}", "Count from 0.")
    wanted = heads * require_count("rows", rows)
    require(state.shape[axis] == wanted, field, state, f"{wanted} along axis {axis}: {heads} heads of {rows}", "Cut the state of all heads by head ids.")
    return state.unflatten(axis, (heads, rows))
