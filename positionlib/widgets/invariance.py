"""Invariance: slide query and key together; which bilinear forms notice, and which can tell before from after?"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from positionlib.mechanisms.sinusoidal_algebra import commuting_matrix, joint_shift_scores, shift_matrix
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Lines, Matrices, Matrix, Series

WIDTH, SLIDES, START = 4, 48, 12  # START leaves room for a key twelve positions after the query
FORMS = {"identity": "I", "even": "Blocks aI", "oriented": "Blocks aI + bJ", "crossed": "One crossed entry", "swapped": "Pairs swapped"}


def _pair(*values):
    return torch.tensor(values, dtype=torch.float64)


def form(name: str) -> torch.Tensor:
    """A 4 by 4 form by name; a = (0.8, 0.3), b = (0.6, −0.2)."""
    if name == "identity":
        return torch.eye(WIDTH, dtype=torch.float64)
    if name in ("even", "oriented"):
        return commuting_matrix(_pair(0.8, 0.3), _pair(0.6, -0.2) if name == "oriented" else _pair(0.0, 0.0))
    if name == "swapped":
        return torch.eye(WIDTH, dtype=torch.float64)[[2, 3, 0, 1]]
    crossed = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    crossed[0, 2] = 1.0
    return crossed


@cache
def _scores(name, offset, base):
    """Scores of (START + c, START − offset + c), c = 0..SLIDES − 1: the key is ``offset`` positions before the query."""
    return joint_shift_scores(form(name), START, START - offset, range(SLIDES), base=base).numpy()


def _spread(name, offset, base):
    scores = _scores(name, offset, base)
    return float(scores.max() - scores.min())


def _moves(name, base):
    """Largest entry of A(1)ᵀ M A(1) − M: zero exactly when M commutes with every shift."""
    step = shift_matrix(1, WIDTH, base=base)
    return float((step.T @ form(name) @ step - form(name)).abs().max())


def _compute(name, offset, base):
    forward, backward = _scores(name, offset, base), _scores(name, -offset, base)
    flat = _spread(name, offset, base) < 1e-9
    same = bool(np.abs(forward - backward).max() < 1e-9)
    return [
        Badges([
            Badge("spread while sliding", f"{_spread(name, offset, base):.3f}", "ok" if flat else "bad"),
            Badge("sees the offset alone", "yes" if _moves(name, base) < 1e-9 else "no", "ok" if _moves(name, base) < 1e-9 else "bad"),
            Badge("tells before from after", "no" if same else "yes"),
        ]),
        Lines("Score while both positions slide", np.arange(SLIDES),
              [Series(f"key {offset} before", forward), Series(f"key {offset} after", backward)],
              x_label="common shift c (positions)", y_label="score", limits=(-2.2, 2.2),
              alt="The score " + ("stays flat while both positions slide." if flat else "moves while both positions slide.")),
        Matrices([Matrix("M", form(name), decimals=1)]),
    ]


def _caption(name, offset, base):
    if _moves(name, base) >= 1e-9:
        return f"{FORMS[name]}: the offset stays {offset}, the score moves by {_spread(name, offset, base):.3f}."
    same = np.abs(_scores(name, offset, base) - _scores(name, -offset, base)).max() < 1e-9
    return f"{FORMS[name]}: flat, so the form sees the offset alone" + (
        ", and it cannot tell before from after." if same else "; before and after get different scores.")


def invariance_explorer(offsets=(1, 2, 5, 12), bases=(4.0, 100.0, 10_000.0)) -> Explorer:
    """Which forms see the offset alone, and which see its sign? At rest: blocks aI + bJ do both."""
    return Explorer(
        name="invariance", title="Slide query and key together", question="Which forms see the offset alone, and which see its sign?",
        controls=[Control("name", "Form M", list(FORMS), labels=list(FORMS.values())), Control("offset", "Offset", list(offsets)),
                  Control("base", "Base", list(bases), labels=[f"{b:,.0f}" for b in bases], kind="choice")],
        compute=_compute, caption=_caption, start={"name": "oriented", "offset": 2, "base": bases[-1]})
