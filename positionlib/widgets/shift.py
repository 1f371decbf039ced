"""Shift rotation: one pair of a row, moved by a block; which check notices that the block is wrong?"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch

from positionlib.mechanisms.sinusoidal import sinusoidal_rows
from positionlib.mechanisms.sinusoidal_algebra import shift_matrix
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Lines, Mark, Matrices, Matrix, Series

SPAN = 20  # shifts drawn to each side: more than SHORT points, so that the numbers are packed
CLOSE = 1e-9
BLOCKS = {"right": "as derived", "backwards": "transposed", "mirror": "one sign wrong"}


@cache
def block(kind: str, k: int, base: float) -> torch.Tensor:
    """The last 2 by 2 block of a shift of width 4, as derived or with one of two sign errors."""
    turn = shift_matrix(k, 4, base=base)[2:, 2:]
    return {"right": turn, "backwards": turn.T, "mirror": torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)) @ turn}[kind]


def pair(t: int, base: float) -> torch.Tensor:
    """The last pair [sin, cos] of the row of width 4."""
    return sinusoidal_rows(torch.tensor([t]), 4, base=base, output_dtype=torch.float64)[0, 2:]


def _checks(kind, base, t, k):
    """What each check says of the block: norms, composition, way back, comparison with a row built directly."""
    moved, eye = block(kind, k, base) @ pair(t, base), torch.eye(2, dtype=torch.float64)
    gaps = {
        "norm kept": moved.norm() - 1,
        "A(2)A(k) = A(k + 2)": block(kind, 2, base) @ block(kind, k, base) - block(kind, k + 2, base),
        "A(k)A(−k) = I": block(kind, k, base) @ block(kind, -k, base) - eye,
        "equals r(t + k)": moved - pair(t + k, base),
    }
    return {name: float(gap.abs().max()) < CLOSE for name, gap in gaps.items()}


def _compute(kind, base, t, k):
    checks = _checks(kind, base, t, k)
    shifts = np.arange(-SPAN, SPAN + 1)
    direct = [math.sin((t + int(j)) * base**-0.5) for j in shifts]
    moved = [float((block(kind, int(j), base) @ pair(t, base))[0]) for j in shifts]
    turned = block(kind, k, base) @ pair(t, base)
    labels = {"row_labels": ("sin", "cos")}
    return [
        Badges([Badge(name, "yes" if passed else "no", "ok" if passed else "bad") for name, passed in checks.items()]),
        Matrices([
            Matrix(f"A({k})", block(kind, k, base), decimals=4),
            Matrix(f"r({t})", pair(t, base)[:, None], decimals=4, **labels),
            Matrix(f"A({k}) r({t})", turned[:, None], decimals=4, **labels),
            Matrix(f"r({t + k}), built directly", pair(t + k, base)[:, None], decimals=4, **labels),
        ]),
        Lines("Sine of the pair after a shift", shifts, [Series("built directly", direct), Series("moved by the block", moved, kind="points")],
              x_label="shift (positions)", y_label="sine", limits=(-1, 1), marks=(Mark(k, "k"),),
              alt="Sine after each shift: the moved points " + ("lie on the direct curve." if kind == "right" else
                  "run the other way." if kind == "backwards" else "lie on the direct curve, but the cosines have the wrong sign.")),
    ]


def _caption(kind, base, t, k):
    checks = _checks(kind, base, t, k)
    failed = [name for name, passed in checks.items() if not passed]
    if kind == "right":
        return f"The derived block passes all four checks and carries r({t}) to r({t + k})."
    which = "Transposed" if kind == "backwards" else "With one sign wrong"
    return f"{which}, the block passes {4 - len(failed)} of 4 checks; what notices: {', '.join(failed)}."


def shift_rotation(bases=(4.0, 100.0), positions=(20, 33), shifts=(-7, -1, 1, 3, 12)) -> Explorer:
    """Which check notices a wrong block? At rest: a transposed block passes every law and still goes the wrong way."""
    return Explorer(
        name="shift-rotation", title="One pair, one shift", question="Which check notices that the block is wrong?",
        controls=[
            Control("kind", "Block", list(BLOCKS), labels=list(BLOCKS.values())),
            Control("base", "Frequency", list(bases), labels=[f"{b ** -0.5:g}" for b in bases], kind="choice"),
            Control("t", "Start t", list(positions), kind="choice"),
            Control("k", "Shift k", list(shifts)),
        ],
        compute=_compute, caption=_caption, start={"kind": "backwards", "base": bases[0], "t": positions[0], "k": 3})
