"""Route tracer: four beats run through one layer by five routes; the tensors that changed are marked.

The case is the hand case of chapter 0x02: projections are identities and c = ln 2, so exp(S) is a power of two, and one position is
a quarter turn of the clock that the fixed rows show and that the rotation turns by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.alibi import ALiBi
from positionlib.mechanisms.nope import NoPE
from positionlib.rotation import QKTransform
from positionlib.routes import TENSORS, changed, run
from positionlib.terms import StateRows, Term
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Matrices, Matrix

BEATS = ("tap", "rest", "tap", "bell")
ROWS = {"beats": ((1, 0), (0, 0), (1, 0), (1, 1)), "equal": ((1, 0), (1, 0), (1, 0), (1, 0))}
LEARNED = ((1, 0), (0, 1), (0, 0), (-1, -1), (1, 1))  # five rows, for positions 0 to 4
ROUTES = {"mask": "causal mask", "fixed": "fixed rows", "learned": "learned rows", "bias": "score bias", "rotation": "rotation"}
C = math.log(2)


def clock(positions: Tensor) -> Tensor:
    """(sin, cos) of a quarter turn a position: (0, 1), (1, 0), (0, −1), (−1, 0), and again."""
    angle = positions.double() * (math.pi / 2)
    return torch.stack((angle.sin(), angle.cos()), -1).round()


def hand_call(route: str | None, start: int = 0) -> tuple[Term | None, AttentionGeometry]:
    """(term, geometry) of the hand case for positions start..start+3; None is content alone."""
    t = torch.arange(start, start + 4)
    full, causal = AttentionGeometry(t, t), AttentionGeometry(t, t, causal=True)
    if route == "mask":
        return NoPE()(causal), causal
    return {None: lambda: None, "fixed": lambda: StateRows(rows=clock(t), mark="clock"),
            "learned": lambda: StateRows(rows=torch.tensor(LEARNED, dtype=torch.float64)[t], mark="learned"),
            "bias": lambda: ALiBi(1, form="symmetric", slopes=[C])(full),
            "rotation": lambda: QKTransform(inverse_frequency=torch.tensor([math.pi / 2], dtype=torch.float64), pairing="interleaved")}[route](), full


@cache
def hand_run(route: str | None, start: int = 0, rows: str = "beats") -> dict[str, Tensor]:
    """The run of the hand case without its axes of length 1: X, Q, K, V and Y [4, 2], S, M and A [4, 4]."""
    eye = torch.eye(2, dtype=torch.float64)
    term, geometry = hand_call(route, start)
    content = torch.tensor(ROWS[rows], dtype=torch.float64)[None]
    seen = run(content, (eye, eye, eye), term, geometry, scale=C)
    # The last bits depend on the machine, and 1/8 would be printed as 0.12 or 0.13.
    return {name: t.squeeze().round(decimals=12) if t.is_floating_point() else t.squeeze() for name, t in seen.items()}


def route_tracer(routes: Sequence[str] = tuple(ROUTES)) -> Explorer:
    """Which tensors a route changes, against content alone or against the same route one position later."""

    def runs(route: str, against: str, rows: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return (hand_run(None, 0, rows), hand_run(route, 0, rows)) if against == "content" else (hand_run(route, 0, rows), hand_run(route, 1, rows))

    def compute(route: str, against: str, rows: str) -> list:
        before, after = runs(route, against, rows)
        names = changed(before, after)
        words = [f"{i} {word}" for i, word in enumerate(BEATS if rows == "beats" else BEATS[:1] * 4)]

        def matrix(name: str) -> Matrix:
            values = after[name].double()
            moved = ((values - before[name].double()).abs() > 1e-9).nonzero().tolist()
            if name == "S":
                values = values / C
            pairs = values.shape[1] == 4
            decimals = 2 if name in "AY" else 0
            return Matrix({"S": "S / ln 2", "M": "M (1: may read)"}.get(name, name), (values.round(decimals=decimals) + 0.0).numpy(), decimals, None,
                          [tuple(cell) for cell in moved], None, words, list("0123") if pairs else ["tap", "ring"],
                          "changed" if name in names else "as before")

        return [Badges([Badge("first changed", names[0] if names else "none", "warn" if names else "ok"),
                        Badge("changed", " ".join(names) or "none"), Badge("as before", " ".join(t for t in TENSORS if t not in names) or "none")]),
                Matrices([matrix(name) for name in "XQKV"], "Rows"), Matrices([matrix(name) for name in "SMA"], "Row reads column"),
                Matrices([matrix("Y")], "Output")]

    def caption(route: str, against: str, rows: str) -> str:
        names = changed(*runs(route, against, rows))
        who = ROUTES[route].capitalize()
        said = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)
        if against == "origin":
            who += ", four equal beats" * (rows == "equal")
            if not names:
                return f"{who}: every beat is one position later, and no tensor notices. Positions enter only as differences or as an order."
            if "S" not in names:
                return (f"{who}: one position later, {said} change and the scores do not. Both turned by the same quarter. "
                        "A key stored before the move is stale all the same.")
            return f"{who}: one position later, {said} change. This route carries the position itself."
        if rows == "equal":
            end = (". The output is among them, because the values V carry the coordinate." if "Y" in names
                   else ", but the output Y is as before: four equal values, whatever the weights.")
            return f"{who}, four equal beats: {said} change{end}"
        spared = "V" not in names
        return (f"{who}: {said} differ from the run on content alone; outlined cells are those that changed. {names[0]} comes first"
                f"{': V is as before, so only the weights know the position.' if spared else ', and everything computed from it follows.'}")

    return Explorer(
        name="route-tracer", title="Route tracer", question="Which tensor changes first, and which ones never notice?",
        controls=[Control("route", "Route", tuple(routes), [ROUTES[r] for r in routes], "choice"),
                  Control("against", "Compare", ("content", "origin"), ("with content only", "with one position later"), "choice"),
                  Control("rows", "Beats", ("beats", "equal"), ("tap rest tap bell", "tap tap tap tap"), "choice")],
        compute=compute, start={"route": "rotation" if "rotation" in routes else routes[0], "against": "content", "rows": "beats"}, caption=caption)
