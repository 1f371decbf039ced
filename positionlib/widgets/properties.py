"""A bench for position codes: norms, steps and distances of one code, at a length and at twice that length.

Contract: every number is one of :func:`positionlib.mechanisms.naive_properties.measure`, of rows built in float64. The verdicts are

    identity     all rows differ
    scale        no row outweighs a content row of unit channel scale:  ‖p_t‖ ≤ √d, at the length and at its double
    smoothness   all steps ‖p_{t+1} − p_t‖ are equal
    extension    no row moves when the length doubles, and every new row is a row of its own
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from positionlib.errors import PositionRangeError
from positionlib.mechanisms.naive import binary_rows, integer_rows, normalised_rows
from positionlib.mechanisms.naive_properties import Code, Properties, measure, norm_profile
from positionlib.mechanisms.sinusoidal import sinusoidal_rows
from positionlib.rules import T5Buckets, alibi_slopes
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Lines, Series

WIDE = {"output_dtype": torch.float64}
CODES = {"integer": "integer t", "fraction": "t / length", "binary": "binary digits", "learned": "learned table", "sinusoid": "sinusoid",
         "bucket": "relative bucket", "linear": "linear bias"}


def position_code(name: str, width: int, length: int) -> Code:
    """A code of :data:`CODES` with ``width`` channels. The two relative ones code the distance from a query back to a key.

    ``length`` is how many rows the learned table has; it is drawn with seed 0 and untrained. Binary digits wrap past 2^width. Buckets are
    those of a T5 decoder with ``width`` classes to distance 128, as one-hot rows; the linear bias has ALiBi's slopes of ``width`` heads.
    """
    def learned(positions, now):
        if int(positions.max()) >= length:
            raise PositionRangeError("position", int(positions.max()), f"0..{length - 1}", "The table has no more rows.")
        return torch.randn(length, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[positions] * 0.02

    return {
        "integer": lambda t, now: integer_rows(t, width, **WIDE),
        "fraction": lambda t, now: normalised_rows(t, width, length=now, **WIDE),
        "binary": lambda t, now: binary_rows(t, width, overflow="wrap", **WIDE),
        "learned": learned,
        "sinusoid": lambda t, now: sinusoidal_rows(t, width, **WIDE),
        "bucket": lambda t, now: torch.eye(width, dtype=torch.float64)[T5Buckets(width, 128, bidirectional=False).classes(-t)],
        "linear": lambda t, now: -alibi_slopes(width).double() * t[:, None],
    }[name]


def verdicts(found: Properties, width: int) -> dict[str, bool]:
    """Which of the four properties the measurements show, by the rules of this file."""
    grown = found.extension
    peak = float(found.norms.max()) * (1.0 if math.isnan(grown.growth) else max(1.0, grown.growth))
    steps = found.steps
    return {"identity": found.first_collision is None, "scale": peak <= math.sqrt(width) + 1e-9,
            "smoothness": bool(steps.min() > 0) and float(steps.max() - steps.min()) <= 1e-6 * float(steps.max()),
            "extension": float(grown.moved.max()) <= 1e-9 and grown.beyond == "continues"}


def property_bench(code: Sequence[str] = tuple(CODES), length: Sequence[int] = (16, 64, 128), width: Sequence[int] = (4, 16, 32)) -> Explorer:
    """The explorer of chapter 0x00A. At rest: the fraction of the current length, 16 rows, whose rows move when the length doubles.

    Raises
    ------
    PositionContractError
        an unknown code, a list with one value, or a width that some code cannot have (odd, or above 62).
    """
    start = {"code": "fraction" if "fraction" in code else code[0], "length": length[0], "width": 16 if 16 in width else width[0]}
    return Explorer(
        name="property-bench", title="Property bench", question="Which of the four properties does a code lack, and at which setting?",
        controls=[Control("code", "Code", list(code), labels=[CODES.get(c, c) for c in code]), Control("length", "Length n", list(length)),
                  Control("width", "Width d", list(width))],
        compute=_panels, caption=_caption, start=start)


@cache
def _measured(code: str, length: int, width: int) -> Properties:
    return measure(position_code(code, width, length), length, 2 * length)


def _panels(code, length, width):
    found, rule = _measured(code, length, width), position_code(code, width, length)
    kept, grown = verdicts(found, width), found.extension
    root, t = math.sqrt(width), np.arange(length)
    after = norm_profile(rule(torch.arange(length), 2 * length)).numpy()
    norms, steps = found.norms.numpy(), found.steps.numpy()
    closest, farthest = found.closest.numpy(), found.farthest.numpy()
    return [
        Badges([Badge(name, "yes" if yes else "no", "ok" if yes else "bad") for name, yes in kept.items()]),
        Lines("Norm of each row, over √d", t, [Series(f"at length {length}", norms / root), Series(f"at length {2 * length}", after / root, kind="points")],
              x_label="position t", y_label="norm / √d", decimals=3, limits=_limits(norms / root, after / root),
              alt=f"Norm over √d, {norms.min() / root:.3f} to {norms.max() / root:.3f} at length {length}; at length {2 * length} "
                  + ("the same." if np.allclose(norms, after) else f"the same rows reach {after.max() / root:.3f}.")),
        Lines("Step to the next row", t[:-1], [Series("step", steps, kind="step")], x_label="position t", y_label="distance", decimals=3,
              limits=_limits(steps), alt=f"Steps from {steps.min():.3f} to {steps.max():.3f}."),
        Lines("Distance of rows that are k apart", t[1:], [Series("closest", closest), Series("farthest", farthest)], x_label="offset k (positions)",
              y_label="distance", decimals=3, limits=_limits(closest, farthest),
              alt="Closest and farthest agree: distance depends on the offset alone." if np.allclose(closest, farthest, atol=1e-9) else
              f"Closest and farthest differ by up to {np.max(farthest - closest):.3f}: distance depends on more than the offset."),
        Badges([Badge("different rows", f"{found.distinct} of {length}"), Badge("steps", f"{steps.min():.3f} to {steps.max():.3f}"),
                Badge("a row moves by up to", f"{float(grown.moved.max()):.3f}"), Badge(f"rows {length} to {2 * length - 1}", grown.beyond)]),
    ]


def _limits(*values: np.ndarray) -> tuple[float, float]:
    return 0.0, max(1e-3, 1.05 * max(float(v.max()) for v in values))


def _caption(code, length, width):
    found = _measured(code, length, width)
    grown, steps, lacks = found.extension, found.steps, []
    kept, root = verdicts(found, width), math.sqrt(width)
    if not kept["identity"]:
        lacks.append(f"rows {found.first_collision[0]} and {found.first_collision[1]} are equal")
    if not kept["scale"]:
        lacks.append(f"the norm reaches {float(found.norms.max()) / root:.1f} √d, and {float(found.norms.max()) / root * grown.growth:.1f} √d at twice the length")
    if not kept["smoothness"]:
        lacks.append(f"steps range from {float(steps.min()):.2f} to {float(steps.max()):.2f}")
    if float(grown.moved.max()) > 1e-9:
        lacks.append(f"row {int(grown.moved.argmax())} moves by {float(grown.moved.max()):.2f} when the length doubles")
    elif grown.beyond != "continues":
        lacks.append("there is no row past the end" if grown.beyond == "refused" else "rows past the end repeat earlier ones")
    head = f"{CODES[code]}, {length} rows of width {width}"
    return f"{head}: " + ("; ".join(lacks) + "." if lacks else "none of the four is lacking here.")
