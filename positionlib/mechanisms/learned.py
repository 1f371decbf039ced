"""Learned absolute positions (Devlin et al. 2018, section 3; Gehring et al. 2017, section 3.1).

    y_bs = x_bs + P[position_bs + row_offset]          ∂L/∂P_r = Σ over every (b, s) with that row of ∂L/∂y_bs

Contract: the coordinate is the geometry's query position; the input state changes, once; one learned table [rows, D], whose rows
are trained only as often as they are addressed; decode continues the ids. It fails by an id past the table, by a
restarted range, by a wrong row offset (OPT starts at row 2), and by being added twice. Compiled or exported, nothing looks at the
ids before torch's lookup refuses one without a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from positionlib.contract import KINDS, checked
from positionlib.errors import PositionRangeError, require, require_choice, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.padding import visible_from_mask
from positionlib.rules import integers, readable, require_ids, require_values
from positionlib.terms import StateRows

POLICIES = ("contiguous", "compress_active", "roberta", "opt", "generation_v4", "generation_v5")


class LearnedAbsolute(nn.Module):
    """module(geometry) returns the :class:`StateRows` of the query positions.

    Parameters
    ----------
    rows : table rows, special rows included. ``row_offset`` rows come before position 0 (OPT: 2, RoBERTa: padding_idx + 1).

    Raises
    ------
    PositionRangeError
        a position without a row, before any lookup, naming the position and the row count: nothing wraps around. A compiled or exported
        graph has no values to look at; there this check belongs to whoever builds the geometry.
    """

    def __init__(self, rows: int, d_model: int, *, row_offset: int = 0) -> None:
        super().__init__()
        self.row_offset = require_count("row_offset", row_offset, 0)
        rows = require_count("rows", rows)
        require(rows > self.row_offset, "rows", rows, f"more than row_offset = {row_offset}", "Leave a row for position 0.")
        self.weight = nn.Parameter(torch.empty(rows, require_count("d_model", d_model)))
        nn.init.normal_(self.weight, std=0.02)

    @property
    def capacity(self) -> int:
        """How many positions have a row."""
        return self.weight.shape[0] - self.row_offset

    @checked
    def row_ids(self, positions: Int[Tensor, "*B N"]) -> Int[Tensor, "*B N"]:
        """Table rows of logical positions, int64, checked on the host. A compiled graph has no values to look at and checks nothing."""
        positions = integers("position", positions)
        if readable(positions):
            for value in (int(positions.min()), int(positions.max())):
                if not 0 <= value < self.capacity:
                    raise PositionRangeError("position", value, f"0..{self.capacity - 1}: the table has {self.weight.shape[0]} rows, "
                                             f"{self.row_offset} of them before position 0",
                                             "Shorten the call or migrate the table to more rows; new rows are untrained.")
        return positions + self.row_offset

    @checked
    def forward(self, geometry: AttentionGeometry) -> StateRows:
        """Rows [N, D] or [B, N, D] of the geometry's query positions."""
        return StateRows(rows=nn.functional.embedding(self.row_ids(geometry.query_positions), self.weight), mark="learned_absolute")

    def extra_repr(self) -> str:
        return f"rows={self.weight.shape[0]}, d_model={self.weight.shape[1]}, row_offset={self.row_offset}"


@checked
def table_gradient(upstream: Float[Tensor, "*B N D"], row_ids: Int[Tensor, "*B N"], rows: int) -> Float[Tensor, "rows D"]:
    """∂L/∂P as an indexed reduction: each row sums the upstream gradients of the places that read it; the others stay zero.

    It is what autograd computes for the lookup, written out. Sums are made in at least float32.

    Raises
    ------
    PositionContractError
        ids that are no integers, or not one a gradient row. ``PositionRangeError``: an id outside 0..rows−1.
    """
    require(upstream.shape[:-1] == row_ids.shape, "row_ids", row_ids, f"shape {tuple(upstream.shape[:-1])}", "Give one id a gradient row.")
    rows = require_count("rows", rows)
    if readable(row_ids) and not 0 <= int(row_ids.min()) <= int(row_ids.max()) < rows:
        raise PositionRangeError("row_ids", (int(row_ids.min()), int(row_ids.max())), f"0..{rows - 1}: there are {rows} rows",
                                 "Reduce into a table of the rows the ids were made for.")
    wide = upstream.to(torch.promote_types(upstream.dtype, torch.float32)).reshape(row_ids.numel(), upstream.shape[-1])
    return wide.new_zeros(rows, upstream.shape[-1]).index_add(0, row_ids.reshape(-1), wide).to(upstream.dtype)


@checked
def position_ids_from_mask(mask: Bool[Tensor, "B N"] | Int[Tensor, "B N"], policy: str, *, past: int = 0,
                           padding_idx: int | None = None) -> Int[Tensor, "B N"]:
    """Position ids (or table rows) of a padded batch under a named policy. ``mask`` is 1 or True for real tokens.

    - ``contiguous``: past..past+N−1 in every row; pads are counted (BERT, and GPT-2 called without position_ids).
    - ``compress_active``: real tokens count 0, 1, …; pads repeat the count before them, at least 0.
    - ``roberta``: table rows; real tokens start at padding_idx + 1 + past, pads get padding_idx (transformers 4.57, fairseq).
    - ``opt``: table rows; cumsum · mask − 1 + 2, so pads get row 1 (transformers 4.57). ``past`` columns are cut off at the left.
    - ``generation_v4``, ``generation_v5``: real tokens count 0, 1, …; pads get 1 (transformers 4.x generation) or 0 (5.x; BLOOM and
      Falcon count ALiBi's key index so).

    Raises
    ------
    PositionContractError
        a mask that is not boolean or 0/1 integers, an unknown policy, or ``roberta`` without padding_idx.
    """
    require_choice("policy", policy, POLICIES)
    require_count("past", past, 0)
    active = visible_from_mask(mask, "true_is_visible")
    count = active.long().cumsum(-1)
    if policy == "contiguous":
        return torch.arange(past, past + active.shape[-1], device=active.device).repeat(*active.shape[:-1], 1)
    if policy == "roberta":
        return (count + past) * active + require_count("padding_idx", padding_idx, 0)  # RoBERTa's is 1
    if policy == "opt":
        require(past <= active.shape[-1], "past", past, f"at most {active.shape[-1]} columns", "The mask covers past and new tokens.")
        return (count * active - 1)[..., past:] + 2
    if policy.startswith("generation"):
        return (past + count - 1).masked_fill(~active, 1 if policy == "generation_v4" else 0)
    return (past + count - 1).clamp_min(0)


@checked
def admit_position_ids(buffer: Tensor, rows: int) -> Int[Tensor, "rows"]:
    """A stored range buffer, admitted only when it is the integers 0..rows−1.

    Raises
    ------
    PositionContractError
        floats (a half-precision checkpoint that cast its index buffer), another length, or other values.
    """
    require(buffer.dtype in KINDS["Int"][1] and buffer.layout == torch.strided, "position_ids", buffer, "an integer buffer",
            "The checkpoint cast its indices: drop the buffer and regenerate arange(rows).")
    require_values("position_ids", buffer)
    flat = buffer.reshape(-1).long()
    require(torch.equal(flat, torch.arange(require_count("rows", rows), device=buffer.device)), "position_ids", buffer, f"arange({rows})",
            "Regenerate the range from the configuration.")
    return flat


@checked
def row_support(lengths: Sequence[int], rows: int) -> Int[Tensor, "rows"]:
    """c_r = how many examples are longer than r, and so address row r."""
    given = torch.tensor([require_count("lengths", n, 0) for n in lengths], dtype=torch.long)
    return (given[:, None] > torch.arange(require_count("rows", rows))[None, :]).sum(0)


@checked
def coverage(position_ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"] | Int[Tensor, "B N"], rows: int) -> Int[Tensor, "rows"]:
    """How often each row is addressed by a real token.

    Raises
    ------
    PositionRangeError
        an id of a real token outside 0..rows−1.
    """
    position_ids = integers("position_ids", position_ids)
    require(position_ids.shape == mask.shape, "position_ids", position_ids, f"shape {tuple(mask.shape)}", "Give one id a token of the mask.")
    visible = position_ids[visible_from_mask(mask, "true_is_visible")]
    if visible.numel() and not 0 <= int(visible.min()) <= int(visible.max()) < rows:
        raise PositionRangeError("position_ids", (int(visible.min()), int(visible.max())), f"0..{rows - 1}: there are {rows} rows",
                                 "Count rows of the table the ids were made for.")
    return torch.bincount(visible, minlength=require_count("rows", rows))

