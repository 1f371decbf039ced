"""Failure explorer: one failure of the article, what both runs return, and what its guard says to either.

Contract: every number is what :meth:`positionlib.lab.Failure.demonstrate` returned for the line's first case. Of answers with many
entries those six are shown in which the runs differ most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from positionlib import lab
from positionlib.lab.article import Line, lines
from positionlib.lab.compare import leaves
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Table, Text

MOST = 6
SIDES = {"broken": "the broken run", "right": "the right run"}


def failure_explorer(failures: Sequence[str] | None = None) -> Explorer:
    """The explorer of chapter 0x0C. ``failures`` are names of :func:`positionlib.lab.article.lines`, all 51 by default."""
    known = {f"{line.group}: {line.name}": line for line in lines()}
    chosen = [label for label, line in known.items() if failures is None or line.name in failures]
    rest = "media: chunks that forget the text"
    return Explorer(
        name="failure-explorer", title="Failure explorer", question="Would the shape have told you, and what tells you instead?",
        controls=[Control("failure", "Failure", chosen), Control("side", "Show the guard", list(SIDES), labels=list(SIDES.values()))],
        compute=lambda failure, side: _panels(known[failure], side), caption=lambda failure, side: _caption(known[failure], side),
        start={"failure": rest if rest in chosen else chosen[0], "side": "broken"})


@cache
def shown(line: Line) -> tuple[lab.Failure, lab.Demonstration]:
    """The line's first case and what it showed."""
    case = lab.get(line.cases[0])
    return case, case.demonstrate()


def entries(broken: Any, right: Any) -> list[tuple[str, str, str]]:
    """(entry, broken, right) of the ``MOST`` entries in which two answers of one shape differ most, in the order of the entries."""
    found = []
    for (path, a), (_, b) in zip(leaves(broken), leaves(right)):
        if isinstance(a, np.ndarray):
            # An undefined number differs from everything, and two of them differ in nothing.
            gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(abs(a - b), nan=np.inf))
            found += [(gap[i], f"{path}{list(i) if i else ''}" or "value", _number(a[i]), _number(b[i])) for i in np.ndindex(a.shape) if gap[i] > 0]
        elif a != b:
            found.append((np.inf, path or "value", str(a), str(b)))
    # Rounded, so that differences that are equal but for the last bit keep their order on every machine.
    largest = sorted(range(len(found)), key=lambda n: (-round(found[n][0], 9), n))[:MOST]
    return [found[n][1:] for n in sorted(largest)]


def _number(value: float) -> str:
    return f"{value + 0.0:.4g}" if abs(value) >= 1e-9 or not np.isfinite(value) else "0"


def _short(text: str, most: int = 150) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _answers(case: lab.Failure, found: lab.Demonstration) -> Table:
    if case.kind == "late_error":
        sizes = [f"{path.lstrip('.') or 'answer'}: shape {list(np.shape(leaf))}" for path, leaf in leaves(found.right)]
        return Table("The two runs", ["run", "what comes out"], [["broken", _short(str(found.differs))], ["right", _short(", ".join(sizes))]], highlight=[0])
    if case.kind == "false_claim":
        rows = [[name, claim.statement, "holds" if claim.holds else f"fails on {_short(str(claim.counterexample), 90)}"]
                for name, claim in (("broken", found.broken), ("right", found.right))]
        return Table("The two claims", ["run", "claim", "tried"], rows, highlight=[0])
    if case.kind == "excess_cost":
        rows = [[name, f"{cost.amount:,.0f} {cost.unit}"] for name, cost in (("broken", found.broken), ("right", found.right))]
        return Table("One answer, two prices", ["run", "paid"], rows, highlight=[0])
    rows = [list(row) for row in entries(found.broken, found.right)]
    return Table("The two answers, where they differ most", ["entry", "broken", "right"], rows, note="Entries count from 0.")


def _verdicts(case: lab.Failure, found: lab.Demonstration) -> tuple[Badge, Badge]:
    """What a shape check would say, and how wrong the answer is."""
    if case.kind == "late_error":
        return Badge("shape", "no answer", "warn"), Badge("answer", "an error in use", "bad")
    if case.kind == "false_claim":
        return Badge("shape", "nothing to check", "warn"), Badge("claim", "false", "bad")
    if case.kind == "excess_cost":
        times = found.broken.amount / found.right.amount
        return Badge("shape", "the same", "ok"), Badge("price", f"{times:.3g} times", "bad")
    apart = "undefined (NaN or ∞)" if np.isinf(found.differs) else f"off by {_number(found.differs)}"
    return Badge("shape", "the same", "ok"), Badge("answer", apart, "bad")


def _panels(line: Line, side: str):
    case, found = shown(line)
    refused = side == "broken"
    said = found.guard_message if refused else "accepted, without a word"
    return [Text(line.wrong), _answers(case, found),
            Badges([Badge("kind", case.kind.replace("_", " ")), *_verdicts(case, found), Badge("guard", "refuses" if refused else "accepts", "bad" if refused else "ok")]),
            Text(f"Guard {case.guard_name}: {said}")]


def _caption(line: Line, side: str) -> str:
    case, found = shown(line)
    shape = {"wrong_answer": "Both answers have one shape, so no shape check can tell them apart", "late_error": "There is no answer: the broken run raises in use",
             "false_claim": "A claim has no shape; it needs an example on which it fails", "excess_cost": "The answers are equal, the price is not"}[case.kind]
    guard = "The guard names what is wrong" if side == "broken" else "The same guard lets the right run pass: it is no blanket refusal"
    return f"{case.title} ({case.id}). {shape}. {guard}."
