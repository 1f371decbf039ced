"""The small attention layer of chapter 0x01, and what moves with its rows: "dog bites man .".

Its scores are multiples of ln 2: exp(score) is 1, 2 or 4, a full row of attention is counted in eighths, and the unmasked output is
made of whole numbers.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from positionlib.attention import AttendTrace, attend
from positionlib.contract import checked
from positionlib.geometry import AttentionGeometry
from positionlib.transport import Field, Move, transport

_ROWS = ((1, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 1))
_W_Q = ((2, 0, -1, 0), (0, 0, 2, 1), (0, 0, -1, 1), (1, 0, 1, 0))


def hand_case() -> tuple[Float[Tensor, "4 4"], ...]:
    """X, W_Q, W_K, W_V of the hand case, float64: one row of X a word, one column a feature."""
    identity = torch.eye(4, dtype=torch.float64)
    return torch.tensor(_ROWS, dtype=torch.float64), torch.tensor(_W_Q, dtype=torch.float64), 2 * math.log(2) * identity, 8 * identity


@checked
def self_attention(x: Float[Tensor, "n d"], w_q: Float[Tensor, "d e"], w_k: Float[Tensor, "d e"], w_v: Float[Tensor, "d f"],
                   visible: Bool[Tensor, "n n"] | None = None) -> tuple[Float[Tensor, "n f"], AttendTrace]:
    """One head over one sequence, content only: the rows Y and the trace. ``visible`` None lets every row read every row."""
    q, k, v = (x @ w for w in (w_q, w_k, w_v))
    y, trace = attend(q[None, None], k[None, None], v[None, None], None, AttentionGeometry.encoder(len(x), allowed=visible),
                      backend="eager", return_trace=True)
    return y[0, 0], trace


@checked
def carry(matrix: Float[Tensor, "n n"] | Int[Tensor, "n n"] | Bool[Tensor, "n n"], order: Int[Tensor, "n"]) -> Tensor:
    """P M Pᵀ by moving entries, so that −∞ and booleans survive: entry (i, j) of the result is entry (π(i), π(j)) of M."""
    return transport({"matrix": Field(matrix, "N N")}, move=Move.permute(order))["matrix"].values
