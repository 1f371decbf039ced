"""Failures of 0x06: coordinates rounded before the sine, shift blocks of the wrong sign, and claims that the algebra does not make.

Convention of the section: row = [sin, cos] per pair, columns, A(k) · row(t) = row(t + k).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.errors import require
from positionlib.lab.registry import Claim, Failure, register
from positionlib.mechanisms.sinusoidal import Sinusoidal, inverse_frequencies, sinusoidal_rows
from positionlib.mechanisms.sinusoidal_algebra import commuting_matrix, joint_shift_scores, shift_matrix, similarity
from positionlib.mechanisms.sinusoidal_precision import PrecisionReport, precision_sweep
from positionlib.rules import alibi_slopes

SECTION = "0x06"
HALF_ULP = 2.0**-9  # bfloat16 rounds a finished value in [0.5, 1] by at most this
REPORTED = torch.tensor([255, 256, 257, 258])
LONG = torch.tensor([1000, 1001, 1857, 2047])


# --- guards ---------------------------------------------------------------------------------------------------------

def check_positions(positions: Tensor) -> None:
    """Refuse positions that are no longer integers: the rows' own contract."""
    sinusoidal_rows(positions, 4)


def check_rows(found: tuple[Int[Tensor, "N"], Float[Tensor, "N D"]]) -> None:
    """Refuse rows further from the directly built ones than one rounding of the finished table explains. No row may be NaN."""
    positions, rows = found
    direct = sinusoidal_rows(positions, rows.shape[-1], output_dtype=torch.float64)
    worst = float((rows.double() - direct).abs().max())
    require(worst <= HALF_ULP, "distance from directly built rows", round(worst, 3), f"at most {HALF_ULP:.5f}",
            "Keep positions and frequencies wide, and round the finished rows once.")


def check_composition(shift: Callable[[int], Tensor]) -> None:
    """Refuse a family of shifts that is not a group of rotations: A(0) = I, A(a)A(b) = A(a + b), A(k)ᵀ = A(−k)."""
    eye = torch.eye(shift(0).shape[0], dtype=torch.float64)
    gaps = {"A(0) = I": shift(0) - eye, "A(2)A(3) = A(5)": shift(2) @ shift(3) - shift(5), "A(3)ᵀ = A(−3)": shift(3).T - shift(-3)}
    for law, gap in gaps.items():
        worst = float(gap.abs().max())
        require(worst < 1e-12, f"gap in ({law})", round(worst, 3), "0", "Turn every pair by the same kind of block, for every shift.")


def check_shift(shift: Callable[[int], Tensor]) -> None:
    """Refuse a shift that does not carry row(t) to the row built directly at t + k."""
    d_model = shift(0).shape[0]
    for t, k in ((0, 1), (7, 3), (40, -5)):
        here, there = sinusoidal_rows(torch.tensor([t, t + k]), d_model, output_dtype=torch.float64)
        worst = float((shift(k) @ here - there).abs().max())
        require(worst < 1e-12, f"distance of A({k}) · row({t}) from row({t + k}), built directly", round(worst, 3), "0",
                "Check the sign of the sines against the order [sin, cos].")


def check_offset_only(form: Float[Tensor, "D D"]) -> None:
    """Refuse a form whose score of (5, 3) changes when both positions move together."""
    scores = joint_shift_scores(form, 5, 3, range(12))
    spread = float(scores.max() - scores.min())
    require(spread < 1e-9, "spread of the score of (5 + c, 3 + c)", round(spread, 3), "0: one value for every c",
            "Use blocks a·I + b·J, or put the offset into the score itself.")


def check_falling(preference: Float[Tensor, "N"]) -> None:
    """Refuse a preference by distance 0, 1, 2, ... that rises anywhere."""
    rises = (preference[1:] >= preference[:-1]).nonzero().flatten().tolist()
    require(not rises, "distances from which the preference rises", rises[:3], "none: a fall at every step",
            "Where nearer must always win, add a score bias that says so.")


def check_apart(report: PrecisionReport) -> None:
    """Refuse a declared range in which two rows are one."""
    require(report.first_collision is None, "first_collision", report.first_collision, "no two equal rows in the declared range",
            "Widen the table, shorten the range, or store it in a wider dtype.")


# --- broken runs ----------------------------------------------------------------------------------------------------

def rows_of(phases: Float[Tensor, "N P"]) -> Float[Tensor, "N D"]:
    """[sin, cos, sin, cos, ...] of given phases."""
    return torch.stack((phases.sin(), phases.cos()), -1).flatten(1)


def rows_from_cast_positions(positions: Int[Tensor, "N"] = REPORTED, d_model: int = 4) -> Float[Tensor, "N D"]:
    """The integers in bfloat16, everything after them in float64."""
    return rows_of(positions.to(torch.bfloat16).double()[:, None] * inverse_frequencies(d_model))


def rows_under_autocast(positions: Int[Tensor, "N"] = REPORTED, d_model: int = 4) -> Float[Tensor, "N D"]:
    """Both operands float32, but the outer product runs as a matmul inside a bfloat16 autocast region."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        phases = positions.float()[:, None] @ inverse_frequencies(d_model).float()[None, :]
    return rows_of(phases.double())


def rows_from_cast_frequencies(positions: Int[Tensor, "N"] = LONG, d_model: int = 8) -> Float[Tensor, "N D"]:
    """A frequency buffer that followed module.to(bfloat16); positions and phases stay wide."""
    return rows_of(positions.double()[:, None] * inverse_frequencies(d_model).to(torch.bfloat16).double())


def module_rows(positions: Int[Tensor, "N"] = LONG, d_model: int = 8) -> Float[Tensor, "N D"]:
    """The library's module after the same move: its frequencies stay float64."""
    frequencies = Sinusoidal(d_model).to(torch.bfloat16).inverse_frequency
    return rows_of(positions.double()[:, None] * frequencies)


def true_shift(k: int) -> Float[Tensor, "4 4"]:
    return shift_matrix(k, 4)


def transposed_shift(k: int) -> Float[Tensor, "4 4"]:
    """Every block transposed: the right block for rows [cos, sin], the wrong one for [sin, cos]."""
    return shift_matrix(k, 4).T


def reflected_shift(k: int) -> Float[Tensor, "4 4"]:
    """One sign wrong in the fast pair: [[cos, sin], [sin, −cos]] is a mirror, and keeps every norm."""
    block = shift_matrix(k, 4)
    block[1, :2] *= -1
    return block


def _moved(shift: Callable[[int], Tensor]) -> Float[Tensor, "4"]:
    return shift(2) @ (shift(3) @ sinusoidal_rows(torch.tensor([7]), 4, output_dtype=torch.float64)[0])


def cross_frequency() -> Float[Tensor, "4 4"]:
    """One entry: the fast sine of the query times the slow sine of the key."""
    form = torch.zeros(4, 4, dtype=torch.float64)
    form[0, 2] = 1.0
    return form


# --- cases ----------------------------------------------------------------------------------------------------------

def _rows(positions, d_model):
    return sinusoidal_rows(positions, d_model, output_dtype=torch.float64)


register(Failure(
    id="0x06.cast-positions", section=SECTION, kind="wrong_answer", title="Positions cast to the activation dtype",
    broken=rows_from_cast_positions, right=lambda: _rows(REPORTED, 4), guard=check_positions, guard_name="integer-positions",
    source="pytorch/pytorch#137774", broken_subject=lambda: REPORTED.to(torch.bfloat16), right_subject=lambda: REPORTED))
register(Failure(
    id="0x06.autocast-phase", section=SECTION, kind="wrong_answer", title="Integer positions, but the phase runs under autocast",
    broken=rows_under_autocast, right=lambda: _rows(REPORTED, 4), guard=check_rows, guard_name="finite-precision",
    source="huggingface/transformers#29285; huggingface/diffusers#13922",
    broken_subject=lambda: (REPORTED, rows_under_autocast()), right_subject=lambda: (REPORTED, _rows(REPORTED, 4).to(torch.bfloat16))))
register(Failure(
    id="0x06.cast-frequencies", section=SECTION, kind="wrong_answer", title="The frequency buffer follows the module to bfloat16",
    broken=rows_from_cast_frequencies, right=module_rows, guard=check_rows, guard_name="finite-precision",
    source="huggingface/transformers#25681; InternLM/InternLM#239",
    broken_subject=lambda: (LONG, rows_from_cast_frequencies()), right_subject=lambda: (LONG, module_rows())))
register(Failure(
    id="0x06.transposed-shift", section=SECTION, kind="wrong_answer", title="A transposed block keeps the norm and every group law",
    broken=lambda: _moved(transposed_shift), right=lambda: _moved(true_shift), guard=check_shift, guard_name="direct-construction",
    source="article 0x06, on sign errors", broken_subject=lambda: transposed_shift, right_subject=lambda: true_shift))
register(Failure(
    id="0x06.reflected-block", section=SECTION, kind="wrong_answer", title="One wrong sign makes a mirror of a rotation",
    broken=lambda: _moved(reflected_shift), right=lambda: _moved(true_shift), guard=check_composition, guard_name="group-laws",
    source="article 0x06", broken_subject=lambda: reflected_shift, right_subject=lambda: true_shift))
register(Failure(
    id="0x06.distance-penalty", section=SECTION, kind="false_claim", title="The similarity of two rows as a distance penalty",
    broken=lambda: Claim("the dot product of two rows falls with every step of distance",
                         bool(similarity(torch.tensor(4), 4) < similarity(torch.tensor(3), 4)), (3, 4)),
    right=lambda: Claim("an ALiBi bias falls with every step of distance", bool(alibi_slopes(8).min() > 0)),
    guard=check_falling, guard_name="monotone-preference", source="article 0x06",
    broken_subject=lambda: similarity(torch.arange(64), 4), right_subject=lambda: -alibi_slopes(8)[0] * torch.arange(64)))
register(Failure(
    id="0x06.projection-keeps-offset", section=SECTION, kind="false_claim", title="Learned projections keep the score a function of the offset",
    broken=lambda: Claim("row(m)ᵀ M row(n) depends on m − n for every M", _constant(cross_frequency()), "M with one cross-frequency entry"),
    right=lambda: Claim("row(m)ᵀ M row(n) depends on m − n when M has blocks a·I + b·J", _constant(_blocks())),
    guard=check_offset_only, guard_name="joint-shift", source="article 0x06",
    broken_subject=cross_frequency, right_subject=lambda: _blocks()))
register(Failure(
    id="0x06.always-unique", section=SECTION, kind="false_claim", title="Stored rows are unique because the real ones are",
    broken=lambda: Claim("a float16 table of width 2 has 4,096 different rows", _narrow().first_collision is None, _narrow().first_collision),
    right=lambda: Claim("a float16 table of width 64 has 4,096 different rows", _wide().first_collision is None),
    guard=check_apart, guard_name="finite-precision", source="article 0x06", broken_subject=lambda: _narrow(), right_subject=lambda: _wide()))


def _blocks() -> Tensor:
    return commuting_matrix(torch.tensor([0.8, 0.3]), torch.tensor([0.6, -0.2]))


def _constant(form: Tensor) -> bool:
    scores = joint_shift_scores(form, 5, 3, range(12))
    return bool((scores - scores[0]).abs().max() < 1e-9)


def _narrow() -> PrecisionReport:
    return precision_sweep(4096, 2, dtype=torch.float16)


def _wide() -> PrecisionReport:
    return precision_sweep(4096, 64, dtype=torch.float16)
