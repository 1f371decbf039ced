"""Failures of 0x05: a table of another base or ladder has the same shape and the same norm, and other wavelengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.errors import require
from positionlib.lab.registry import Claim, Failure, register
from positionlib.mechanisms.sinusoidal import Sinusoidal, inverse_frequencies, sinusoidal_table
from positionlib.rules import frequency_ladder


def check_ladder(rows: Float[Tensor, "N D"], *, base: float = 10_000.0, ladder: str = "paper", tolerance: float = 1e-4) -> None:
    """Read the frequencies back out of row 1 of an interleaved table and compare them with the declared ones.

    At t = 1 the angle of pair i is ω_i itself, at most 1 rad, so no turn is lost: ω_i = atan2(sine, cosine).

    Raises
    ------
    PositionContractError
        a pair that turns at another speed than declared, by more than ``tolerance`` (relative).
    """
    measured = torch.atan2(rows[1, 0::2].double(), rows[1, 1::2].double())
    declared = inverse_frequencies(rows.shape[-1], base=base, ladder=ladder)
    # A pair slower than 1e-12 rad a position stands still in float32; its exact speed decides nothing.
    wrong = ((measured - declared).abs() > tolerance * declared + 1e-12).nonzero().flatten().tolist()
    if wrong:
        i = wrong[0]
        require(False, f"row 1, pair {i}", f"{measured[i]:.4g} rad", f"{declared[i]:.4g} rad (base {base:.6g}, {ladder} ladder)",
                "Build the table with the base and the ladder that the checkpoint was trained with.")


class Step(NamedTuple):
    """What one pair adds to a reading: ``position`` = ``rest`` + ``turns`` · ``wavelength``, all but ``turns`` in positions."""

    pair: int
    rest: float
    turns: int
    wavelength: float
    position: float


def read_row(row: Sequence[float], base: float) -> list[Step]:
    """Read the position of an interleaved row of the paper's ladder, slowest pair first; the last step holds it, not yet rounded.

    A pair alone knows the position up to whole turns. The slowest one is taken to be in its first turn; each faster pair takes the
    number of turns that brings it nearest to the pair before. Rows rounded to two decimals are read rightly up to nine tenths of the
    longest wavelength: near a full turn the rounded slowest pair cannot tell the end from the start.
    """
    pairs, steps = len(row) // 2, []
    position = 0.45 * 2 * math.pi * base ** (1 - 1 / pairs)  # the middle of the nine tenths
    for pair in reversed(range(pairs)):
        wavelength = 2 * math.pi * base ** (pair / pairs)
        rest = math.atan2(row[2 * pair], row[2 * pair + 1]) / (2 * math.pi) % 1 * wavelength
        turns = round((position - rest) / wavelength)
        position = rest + turns * wavelength
        steps.append(Step(pair, rest, turns, wavelength, position))
    return steps


# LoFTR before 3955e99: in -a / d // 2 the floor division comes last, so the exponent steps by exactly 1 for d = 256.
_FLOORED = -math.log(10_000.0) / 256 // 2
_LOFTR_BASE = math.exp(-_FLOORED * 128)

register(Failure(
    id="0x05.wrong-base", section="0x05", kind="wrong_answer", title="A table of another base has the same shape and the same norm",
    broken=lambda: sinusoidal_table(128, 8, base=100.0), right=lambda: sinusoidal_table(128, 8),
    guard=check_ladder, guard_name="sinusoidal-ladder",
    source="article 0x0C, failure-to-guard table; a served model given another base (rotary, same ladder): vllm-project/vllm-ascend#5201"))

register(Failure(
    id="0x05.fixed-formula", section="0x05", kind="wrong_answer", title="The corrected formula under weights trained with the mistaken one",
    broken=lambda: sinusoidal_table(256, 128), right=lambda: sinusoidal_table(256, 128, base=_LOFTR_BASE),
    guard=lambda rows: check_ladder(rows, base=_LOFTR_BASE), guard_name="sinusoidal-ladder",
    source="zju3dv/LoFTR#41 (the mistake), #48 and #64 (released weights after the repair)"))

register(Failure(
    id="0x05.wrong-ladder", section="0x05", kind="wrong_answer", title="The endpoint ladder under weights trained with the paper's",
    broken=lambda: sinusoidal_table(128, 8, ladder="endpoint"), right=lambda: sinusoidal_table(128, 8),
    guard=check_ladder, guard_name="sinusoidal-ladder", source="tensorflow/tensor2tensor#1423"))

register(Failure(
    id="0x05.endpoint-one-pair", section="0x05", kind="late_error", title="With one pair the endpoint ladder divides by zero",
    broken=lambda: math.exp(-math.log(10_000.0) / (2 // 2 - 1)), right=lambda: Sinusoidal(2).inverse_frequency,
    guard=lambda ladder: frequency_ladder(1, 2, ladder=ladder), guard_name="sinusoidal-ladder",
    source="fairseq fork ofirpress/attention_with_linear_biases at 4b92f28, run with d = 2",
    broken_subject=lambda: "endpoint", right_subject=lambda: "paper"))


def _claim(statement: str, *, repeats: bool) -> Claim:
    """Whether pair 0 repeats exactly among the first 5,000 integers, in float64; the closest return is the counterexample."""
    rows = sinusoidal_table(5000, 2, output_dtype=torch.float64)
    distinct = len({tuple(row) for row in rows.tolist()})
    closest = int((rows[1:] - rows[0]).norm(dim=1).argmin()) + 1
    return Claim(statement, (distinct < len(rows)) == repeats, {"distinct rows": distinct, "closest return to row 0": closest})


def _check_claim(claim: Claim) -> None:
    require(claim.holds, "claim", claim.statement, "a statement that holds on rows 0..4999 of pair 0",
            f"Counterexample: {claim.counterexample}. The period 2π is irrational: no whole number of positions is a multiple of it.")


register(Failure(
    id="0x05.inevitable-repeat", section="0x05", kind="false_claim", title="A periodic function need not repeat on the integers",
    broken=lambda: _claim("Being periodic, pair 0 repeats among the positions 0 to 4999, which span 795 periods.", repeats=True),
    right=lambda: _claim("Pair 0 gives 5,000 different rows at the positions 0 to 4999.", repeats=False),
    guard=_check_claim, guard_name="integer-injectivity", source="article 0x05, 'periodic functions inevitably repeat'"))
