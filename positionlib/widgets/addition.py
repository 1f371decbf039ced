"""Addition as three heat maps: content, what was added, and the sum, for four ways to add a coordinate to a batch.

    X_bi = s · C_bi + P_i          (Vaswani et al. 2017, section 3.5; s = √d is the factor of its section 3.4)

Content rows are fixed random numbers, coordinate rows are :func:`positionlib.mechanisms.sinusoidal.sinusoidal_table`. The other three
programs are those of :mod:`positionlib.lab.x03`: the rows twice, one row for every token, one row for each sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from positionlib.mechanisms.sinusoidal import sinusoidal_table
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Axis, Badge, Badges, HeatMap

B, N, D = 2, 8, 16
PROGRAMS = {"once": "x + P[:n]", "twice": "x + P[:n] + P[:n]", "one row": "x + P[n]", "sequences": "x + P[:B, None]"}


@cache
def content() -> Tensor:
    """Two sequences of eight rows, width 16, standard normal, to two decimals."""
    drawn = torch.randn(B, N, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return (drawn * 100).round() / 100


def add(x: Tensor, program: str) -> Tensor:
    """The sum that a program of ``PROGRAMS`` returns for x [B, n, d]."""
    batch, n, d = x.shape
    table = sinusoidal_table(n + 1, d, output_dtype=torch.float64)
    return {"once": lambda: x + table[:n], "twice": lambda: x + table[:n] + table[:n], "one row": lambda: x + table[n],
            "sequences": lambda: x + table[:batch, None]}[program]()


def addition_heatmap(programs: Sequence[str] = tuple(PROGRAMS), scales: Sequence[float] = (0.25, 1.0, 4.0)) -> Explorer:
    """The explorer of chapter 0x03: which program, and by how much the content was scaled before the addition."""

    def parts(program: str, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        x = scale * content()
        total = add(x, program)
        return x, total - x, total

    def facts(program: str, scale: float) -> tuple[float, float, float, bool, bool]:
        x, added, total = parts(program, scale)
        own = all(not torch.allclose(added[0, i], added[0, j]) for i in range(N) for j in range(i))
        alike = float(torch.corrcoef(torch.stack((added.flatten(), total.flatten())))[0, 1])
        return float(x.norm(dim=-1).mean()), float(added.norm(dim=-1).mean()), alike, own, torch.allclose(added[0], added[1])

    def compute(program: str, scale: float) -> list:
        long, short, alike, own, shared = facts(program, scale)
        rows = Axis("sequence.token", labels=[f"{b}.{i}" for b in range(B) for i in range(N)])
        names = ("Content", "Added", "Sum")
        maps = [HeatMap(name, values.reshape(B * N, D).numpy(), rows=rows, columns=Axis("channel"), scale="diverging", limits=(-3.0, 3.0), decimals=2,
                        alt=f"{name}: two sequences of eight tokens, 16 channels.") for name, values in zip(names, parts(program, scale))]
        return [*maps, Badges([
            Badge("each token its own row", "yes" if own else "no", "ok" if own else "bad"),
            Badge("both sequences alike", "yes" if shared else "no", "ok" if shared else "bad"),
            Badge("content row, mean length", f"{long:.2f}"), Badge("added row, mean length", f"{short:.2f}"),
            Badge("correlation of sum and added", f"{alike:.2f}")])]

    def caption(program: str, scale: float) -> str:
        long, short, alike, own, shared = facts(program, scale)
        what = {"once": "Each token got the row of its position, and both sequences got the same rows.",
                "twice": "Each token got its row twice: the pattern is right and twice as strong.",
                "one row": "Every token got one row: stripes from top to bottom, and no token knows where it stands.",
                "sequences": "Every token of a sequence got one row: two blocks that number the sequences."}[program]
        weight = "longer than" if short > long else "shorter than"
        return (f"{what} The added rows are {weight} the content rows: {short:.2f} against {long:.2f}. "
                f"Correlation of the sum with what was added: {alike:.2f}. The shape is [2, 8, 16].")

    return Explorer(
        name="addition-heatmap", title="Content, coordinate, sum", question="What was added, and can you see it in the sum?",
        controls=[Control("program", "Program", tuple(programs), [PROGRAMS[p] for p in programs], "choice"),
                  Control("scale", "Content times", tuple(scales), [f"{s:g}" + (" = √16" if math.isclose(s, 4.0) else "") for s in scales], "choice")],
        compute=compute, start={"program": programs[0], "scale": scales[0]}, caption=caption)
