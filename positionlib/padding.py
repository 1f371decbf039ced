"""Masks, lengths and readouts of padded and packed batches. Every mask states its polarity; nothing is guessed from its values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import PositionContractError, require, require_choice, require_count
from positionlib.rules import require_values

POLARITIES = ("true_is_visible", "true_is_masked")


@checked
def visible_from_mask(mask: Bool[Tensor, "*shape"] | Int[Tensor, "*shape"], polarity: str) -> Bool[Tensor, "*shape"]:
    """True = may be read, from a boolean or 0/1 mask whose polarity is named.

    Raises
    ------
    PositionContractError
        an unnamed polarity, or a mask of floats or of other integers: an additive mask has no polarity left to state.
    """
    require_choice("polarity", polarity, POLARITIES)
    if mask.dtype != torch.bool:
        require_values("mask", mask)
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise PositionContractError("mask", mask, "booleans, or integers 0 and 1",
                                        "An additive mask has lost its polarity: compare it yourself, as in mask == 0.")
        mask = mask == 1
    return mask if polarity == "true_is_visible" else ~mask


@checked
def lengths_from_mask(mask: Bool[Tensor, "B N"] | Int[Tensor, "B N"], polarity: str) -> Int[Tensor, "B"]:
    """How many positions of each row may be read."""
    return visible_from_mask(mask, polarity).sum(-1)


@checked
def lengths_from_segments(segment_ids: Int[Tensor, "N"]) -> Int[Tensor, "S"]:
    """Lengths of the runs of equal ids in a packed row.

    Raises
    ------
    PositionContractError
        an id that comes back after another one: its rows are not one sequence.
    """
    require_values("segment_ids", segment_ids)
    ids, lengths = torch.unique_consecutive(segment_ids, return_counts=True)
    require(ids.unique().numel() == ids.numel(), "segment_ids", segment_ids.tolist(), "each id in one run",
            "Give the later run an id of its own.")
    return lengths


@checked
def cu_seqlens(lengths: Sequence[int]) -> Int[Tensor, "S+1"]:
    """0, l_0, l_0 + l_1, …: where each sequence of a packed row starts, and where the last one ends. ``lengths`` is a list, array or tensor."""
    starts = [0, *accumulate(require_count("lengths", n, 0) for n in lengths)]
    require(starts[-1] < 2**62, "lengths", lengths, "fewer than 2^62 rows in all", "A length counts rows.")
    return torch.tensor(starts)


@checked
def masked_mean(states: Float[Tensor, "*B N D"], active: Bool[Tensor, "*B N"]) -> Float[Tensor, "*B D"]:
    """Mean of the active rows; zeros where there is none. What stands in a padding row, even NaN, has no influence."""
    require(active.shape == states.shape[:-1], "active", active, f"shape {tuple(states.shape[:-1])}, one flag a row", "Match the states.")
    wide = states.to(torch.promote_types(states.dtype, torch.float32)).masked_fill(~active[..., None], 0.0)
    return (wide.sum(-2) / active.sum(-1, keepdim=True).clamp_min(1)).to(states.dtype)


@checked
def position_drift(trained_ids: Sequence[int], served_ids: Sequence[int], special_ids: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """(id, trained position, served position) of every content token whose coordinate moved.

    Special tokens are left out on both sides, and the content tokens are paired in order; a doubled BOS shifts them all by one.

    Raises
    ------
    PositionContractError
        the two calls hold different content.
    """
    special = set(special_ids)
    trained, served = ([(t, p) for p, t in enumerate(ids) if t not in special] for ids in (trained_ids, served_ids))
    require([t for t, _ in trained] == [t for t, _ in served], "served_ids", list(served_ids), "the same content tokens in the same order",
            "Compare two encodings of one text.")
    return tuple((t, a, b) for (t, a), (_, b) in zip(trained, served) if a != b)
