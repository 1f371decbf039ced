"""Failures of 0x03A: a length inside a coordinate and a cache, digits that run out, and two claims that the section does not make."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Claim, Failure, register
from positionlib.mechanisms.naive import NormalisedCode, binary_rows, integer_rows
from positionlib.mechanisms.naive_properties import content_ratio, distinct_rows
from positionlib.mechanisms.sinusoidal import sinusoidal_rows


def decoded_rows(module: nn.Module, length: int) -> Float[Tensor, "N D"]:
    """Rows as a cache receives them: token t is coded when it arrives, with t tokens before it."""
    return torch.cat([module(AttentionGeometry.decode(t)).rows for t in range(length)])


def check_cache_agrees(module: nn.Module, *, length: int = 4, tolerance: float = 1e-6) -> None:
    """Refuse a code whose rows, written token by token, are not those of one pass over the whole sequence.

    Raises
    ------
    PositionContractError
        the row that is furthest from the one of the whole pass, by more than ``tolerance``.
    """
    cached, whole = decoded_rows(module, length), module(AttentionGeometry.causal_self(length)).rows
    gap = (cached - whole).abs().amax(dim=1)
    t = int(gap.argmax())
    require(float(gap[t]) <= tolerance, f"cached row {t}", f"{cached[t, 0]:.4g} a channel", f"{whole[t, 0]:.4g}, as in one pass over {length} tokens",
            "Divide by a fixed, declared length, or take a code that needs none: a cached row cannot follow the sequence.")


def check_capacity(found: tuple[Int[Tensor, "N"], Float[Tensor, "N D"]]) -> None:
    """Refuse rows of different positions that are equal.

    Raises
    ------
    PositionContractError
        the first two positions with one row.
    """
    positions, rows = found
    _, pair = distinct_rows(rows)
    if pair:
        require(False, "row", f"one row for positions {int(positions[pair[0]])} and {int(positions[pair[1]])}", "a row of its own for every position",
                "Add a digit; m digits name 2^m positions.")


def _wrapped(bits: int) -> tuple[Int[Tensor, "N"], Float[Tensor, "N D"]]:
    """Positions 0..19 in five channels, of which the last ``bits`` hold digits."""
    positions = torch.arange(20)
    digits = binary_rows(positions, bits, overflow="wrap")
    return positions, nn.functional.pad(digits, (5 - bits, 0))


def _check_claim(claim: Claim) -> None:
    require(claim.holds, "claim", claim.statement, "a statement that holds on its example", f"Counterexample: {claim.counterexample}.")


def _share(width: int) -> float:
    return float(content_ratio(integer_rows(torch.tensor([100]), width, alpha=0.02, output_dtype=torch.float64), 1.0)[0])


def _orientation(form: Float[Tensor, "2 2"]) -> tuple[float, float]:
    """p_7ᵀ M p_4 and p_4ᵀ M p_7 for the pair of speed 1."""
    early, late = sinusoidal_rows(torch.tensor([4, 7]), 2, output_dtype=torch.float64)
    return float(late @ form @ early), float(early @ form @ late)


def _direction_claim(statement: str, form: Float[Tensor, "2 2"], *, equal: bool) -> Claim:
    there, back = _orientation(form)
    return Claim(statement, (abs(there - back) < 1e-12) == equal, {"score of (7, 4)": round(there, 3), "score of (4, 7)": round(back, 3)})


_TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
_PLAIN = torch.eye(2, dtype=torch.float64)

register(Failure(
    id="0x03A.cached-length", section="0x03A", kind="wrong_answer", title="Cached rows were divided by the length of an earlier moment",
    broken=lambda: decoded_rows(NormalisedCode(4, length="current"), 4), right=lambda: NormalisedCode(4, length="current")(AttentionGeometry.causal_self(4)).rows,
    broken_subject=lambda: NormalisedCode(4, length="current"), right_subject=lambda: NormalisedCode(4, length=8),
    guard=check_cache_agrees, guard_name="cache-agrees-with-one-pass",
    source="article 0x03A; the same fault in a rotary rule whose base follows the length: huggingface/transformers#25104"))

register(Failure(
    id="0x03A.wrapped-digits", section="0x03A", kind="wrong_answer", title="Digits that ran out give position 16 the row of position 0",
    broken=lambda: _wrapped(4), right=lambda: _wrapped(5), guard=check_capacity, guard_name="digit-capacity",
    source="article 0x03A: m digits name at most 2^m positions"))

register(Failure(
    id="0x03A.wider-dilutes", section="0x03A", kind="false_claim", title="A wider model does not dilute a repeated scalar",
    broken=lambda: Claim("At width 1024 the scalar is a smaller share of the row than at width 64.", _share(1024) < _share(64) - 1e-9,
                         {"share at 64": round(_share(64), 3), "share at 1024": round(_share(1024), 3)}),
    right=lambda: Claim("The share is |α| t / σ at every width.", all(abs(_share(d) - 2.0) < 1e-9 for d in (64, 1024))),
    guard=_check_claim, guard_name="width-cancels", source="article 0x03A: width cancels in the ratio"))

register(Failure(
    id="0x03A.no-direction", section="0x03A", kind="false_claim", title="Absolute rows can carry direction when the form is not symmetric",
    broken=lambda: _direction_claim("No score of absolute rows tells (7, 4) from (4, 7).", _TURN, equal=True),
    right=lambda: _direction_claim("The bare inner product does not tell (7, 4) from (4, 7).", _PLAIN, equal=True),
    guard=_check_claim, guard_name="form-not-rows", source="article 0x03A: the caution after the symmetric product"))
