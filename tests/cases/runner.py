"""Read a file of cases, run each, print a line for it, and the totals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from positionlib import PositionContractError
from tests.cases import alibi, deberta, graph, grid, learned, masks, migration, packing, padding, relative, sinusoidal, t5, time2vec, tupe
from tests.cases.expect import Call, Expectation, NotCovered

Handler = Callable[[Call, Expectation], None]
TOPICS = (padding, packing, masks, learned, migration, sinusoidal, time2vec, grid, t5, alibi, relative, deberta, tupe, graph)
HANDLERS: dict[str, Handler] = {word: handler for topic in TOPICS for word, handler in topic.HANDLERS.items()}
NOT_THE_LIBRARY = {
    "notebook_output_bundle": "published outputs are the book's concern", "notebook_output_compare": "notebook outputs are the book's concern",
    "setup_cell_check": "installation is the book's concern",
}


class CorruptFile(Exception):
    """The file is no list of cases."""


def run(path: str | Path, *, verbose: bool = False, out: TextIO | None = None) -> int:
    """Print a line a case and the totals; 1 when a case fails, else 0."""
    out, counts = out or sys.stdout, {"pass": 0, "FAIL": 0, "not covered": 0}
    for case in read(Path(path)):
        status, reason, checked = run_case(case)
        counts[status] += 1
        print(f"{case['call']['mechanism']}/{case['id']} {status}{': ' if reason else ''}{reason}", file=out)
        if verbose and checked:
            print(f"    checked: {', '.join(checked)}", file=out)
    print(f"{sum(counts.values())} cases: {', '.join(f'{n} {status}' for status, n in counts.items())}", file=out)
    return 1 if counts["FAIL"] else 0


def read(path: Path) -> list[dict]:
    """The cases, each with the fields that a run needs."""
    try:
        cases = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptFile(f"{path}: {error}") from None
    if not isinstance(cases, list) or not cases:
        raise CorruptFile(f"{path}: expected a list of cases")
    for number, case in enumerate(cases):
        good = isinstance(case, dict) and "id" in case and "expected" in case and isinstance(case.get("call"), dict)
        if not good or not isinstance(case["call"].get("mechanism"), str):
            raise CorruptFile(f"{path}: case {number} lacks id, expected, or a call with a mechanism")
    return cases


def run_case(case: dict) -> tuple[str, str, list[str]]:
    """(status, reason, what was checked)."""
    word = case["call"]["mechanism"]
    if word in NOT_THE_LIBRARY:
        return "not covered", NOT_THE_LIBRARY[word], []
    if word not in HANDLERS:
        return "not covered", f"no library call is known for {word}", []
    call, checked = Call(case["call"]), []
    try:
        expect = Expectation(case)
        HANDLERS[word](call, expect)
        expect.settle()
        checked = sorted(".".join(path) or "the value" for path in expect.checked)
        if expect.problems:
            return "FAIL", "; ".join(expect.problems), checked
        unread = sorted(set(call) - call.read)
        if unread:
            return "not covered", f"the field {', '.join(unread)} is not understood", checked
        if not checked:
            return "FAIL", "nothing was compared", checked
    except NotCovered as reason:
        return "not covered", str(reason), checked
    except PositionContractError as refusal:
        return "FAIL", f"the library refused: {refusal}", checked
    except Exception as error:  # a case that its handler cannot compute has failed, whatever went wrong
        return "FAIL", f"{type(error).__name__}: {error}", checked
    return "pass", "", checked
