"""Failures of 0x00A: a coordinate that is a fraction of a length changes its meaning when that length does."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.errors import require
from positionlib.lab.registry import Failure, register
from positionlib.mechanisms.naive import normalised_rows
from positionlib.mechanisms.naive_properties import Code, extension


def check_length_free(code: Code, *, length: int = 5, longer: int = 10, tolerance: float = 1e-6) -> None:
    """Refuse a code whose rows 0..length−1 move when the sequence grows to ``longer`` rows.

    Raises
    ------
    PositionContractError
        the row that moves most, by more than ``tolerance``.
    """
    moved = extension(code, length, longer).moved
    t = int(moved.argmax())
    require(float(moved[t]) <= tolerance, f"row {t}", f"moved by {moved[t]:.4g}", f"one row at length {length} and at length {longer}",
            "Divide by a fixed, declared length, or take a code that needs none.")


def sentence_weights(sentences: int, width: int, *, length: int) -> Float[Tensor, "S E"]:
    """(1 − s/L) − (e/E)(1 − 2s/L) for sentence s and channel e: what the memory network of the case multiplies sentence s with.

    ``length`` is L. The released code takes it from the padded batch.
    """
    s = torch.arange(sentences, dtype=torch.float64)[:, None] / length
    e = torch.arange(width, dtype=torch.float64) / width
    return (1 - s) - e * (1 - 2 * s)


def check_batch_free(rows: Float[Tensor, "S E"], *, tolerance: float = 1e-6) -> None:
    """Refuse sentence weights that a story would not get alone.

    Raises
    ------
    PositionContractError
        the first sentence whose weights differ, by more than ``tolerance``.
    """
    alone = sentence_weights(*rows.shape, length=len(rows))
    wrong = ((rows.double() - alone).abs().amax(dim=1) > tolerance).nonzero().flatten().tolist()
    if wrong:
        s = wrong[0]
        require(False, f"weights of sentence {s}", [round(v, 4) for v in rows[s].tolist()],
                f"{[round(v, 4) for v in alone[s].tolist()]}, as without a batch",
                "Divide by the story's own number of sentences, not by the batch's.")


def _by_current(positions: Tensor, length: int) -> Tensor:
    return normalised_rows(positions, 4, length=length, output_dtype=torch.float64)


def _by_ten(positions: Tensor, length: int) -> Tensor:
    return normalised_rows(positions, 4, length=10, output_dtype=torch.float64)


def _read(code: Code, *, fitted: int, now: int) -> Float[Tensor, "N"]:
    """Positions 0..4 as a reader sees them that was fitted at one length and is used at another; it knows p = t · slope."""
    slope = code(torch.tensor([1]), fitted)[0, 0]
    return code(torch.arange(5), now)[:, 0] / slope


register(Failure(
    id="0x00A.current-length", section="0x00A", kind="wrong_answer", title="A fraction of the current length names another position in a longer text",
    broken=lambda: _read(_by_current, fitted=5, now=10), right=lambda: _read(_by_ten, fitted=5, now=10),
    broken_subject=lambda: _by_current, right_subject=lambda: _by_ten, guard=check_length_free, guard_name="length-free-coordinate",
    source="article 0x00A and 0x03A: normalising by the current length changes what a coordinate means"))

register(Failure(
    id="0x00A.batch-length", section="0x00A", kind="wrong_answer", title="A story's position weights depend on what it is batched with",
    broken=lambda: sentence_weights(4, 4, length=8), right=lambda: sentence_weights(4, 4, length=4),
    guard=check_batch_free, guard_name="batch-free-coordinate",
    source="dandelin/Dynamic-memory-networks-plus-Pytorch#2; babi_main.py and babi_loader.py at 31f19dd"))
