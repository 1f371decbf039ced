"""Failures as data: what goes wrong, what is right, and the guard that catches it before anyone trusts the shape.

A case is of one declared kind, and :func:`verify` proves that it is of that kind by running it:

- ``wrong_answer``: both runs return one shape, the values differ, the guard refuses the broken side and accepts the right one;
- ``late_error``: the broken run fails only in use, with an error that is not ours; the guard refuses its subject beforehand;
- ``excess_cost``: one answer, paid for twice; both runs return a :class:`Cost`, and the guard refuses the larger one;
- ``false_claim``: both runs return a :class:`Claim`; the broken one does not hold on its counterexample.

Nothing runs when a case is registered. A guard is a check that the library itself makes, so it raises
:class:`~positionlib.errors.PositionContractError`, whose message names field, value, expectation and remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from positionlib.errors import PositionContractError, require, require_choice
from positionlib.lab.compare import difference, same_shape
from positionlib.sections import SECTIONS, load_section, section_of

KINDS = ("wrong_answer", "late_error", "excess_cost", "false_claim")


class Cost(NamedTuple):
    """What a run returned and what it paid: ``amount`` in ``unit`` (bytes, elements)."""

    answer: Any
    amount: float
    unit: str = "bytes"


class Claim(NamedTuple):
    """A statement and whether it holds on one concrete input, the ``counterexample`` when it does not."""

    statement: str
    holds: bool
    counterexample: Any = None


@dataclass(frozen=True)
class Demonstration:
    """What a case showed when it ran. ``broken`` is the exception itself where the broken run raised.

    ``differs`` is the largest absolute difference of the two answers, or the broken run's error message.
    ``guard_message`` is what the guard said of the broken side, "" when it let it pass.
    """

    broken: Any
    right: Any
    same_shape: bool
    differs: float | str
    guard_message: str
    guard_accepts_right: bool


@dataclass(frozen=True)
class Failure:
    """One failure of the lab. ``broken`` and ``right`` take no arguments and are deterministic.

    ``guard(subject)`` returns nothing or raises; its subject is what ``broken_subject`` / ``right_subject`` build, or else what the
    run returned. ``tolerance`` is the absolute difference above which two answers count as different.
    """

    id: str
    section: str
    kind: str
    title: str
    broken: Callable[[], Any]
    right: Callable[[], Any]
    guard: Callable[[Any], None]
    guard_name: str
    source: str
    broken_subject: Callable[[], Any] | None = None
    right_subject: Callable[[], Any] | None = None
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        require_choice("section", self.section, SECTIONS)
        require_choice("kind", self.kind, KINDS)
        prefix, _, slug = str(self.id).partition(".")
        require(prefix == self.section and bool(slug), "id", self.id, f"{self.section}.<slug>", "Begin the id with its section and a dot.")
        for name in ("title", "guard_name", "source"):
            require(isinstance(getattr(self, name), str) and bool(getattr(self, name).strip()), name, getattr(self, name),
                    "a non-empty text", f"Say the {name} of {self.id}.")
        for name in ("broken", "right", "guard"):
            require(callable(getattr(self, name)), name, getattr(self, name), "a callable", "A failure without a guard that runs is a story.")
        require((self.broken_subject is None) == (self.right_subject is None), "right_subject", self.right_subject,
                "both subjects or neither", "The guard must be shown the right side too.")
        require(self.kind != "late_error" or self.broken_subject is not None, "broken_subject", None,
                "a callable for a late_error", "The broken run returns nothing: say what the guard examines before the run.")

    def demonstrate(self) -> Demonstration:
        """Run both sides and the guard on both."""
        right = self.right()
        try:
            broken = self.broken()
        except Exception as error:  # noqa: BLE001 - a case may break in any way; that is what it shows
            broken = error
        message = self._guard_says(self.broken_subject() if self.broken_subject else broken)
        refused_right = self._guard_says(self.right_subject() if self.right_subject else right)
        if isinstance(broken, Exception):
            return Demonstration(broken, right, False, f"{type(broken).__name__}: {broken}", message, not refused_right)
        a, b = (x.answer if isinstance(x, Cost) else x.holds if isinstance(x, Claim) else x for x in (broken, right))
        return Demonstration(broken, right, same_shape(a, b), difference(a, b), message, not refused_right)

    def _guard_says(self, subject: object) -> str:
        try:
            self.guard(subject)
        except PositionContractError as refusal:
            return str(refusal)
        return ""


class Registry:
    """Cases by id. ``package`` names the package whose section files register themselves on demand; None for none."""

    def __init__(self, package: str | None = None) -> None:
        self._cases: dict[str, Failure] = {}
        self._package = package

    def register(self, case: Failure) -> Failure:
        """Add a case; a second one of the same id is refused."""
        require(isinstance(case, Failure), "case", case, "a Failure", "Build it with Failure(...), which checks its fields.")
        require(case.id not in self._cases, "id", case.id, "an id not yet registered", "Give the case another slug.")
        self._cases[case.id] = case
        return case

    def cases(self, section: str | None = None, kind: str | None = None) -> tuple[Failure, ...]:
        """All registered cases, in the order of the course; optionally of one section or kind."""
        if kind is not None:
            require_choice("kind", kind, KINDS)
        for wanted in SECTIONS if section is None else (section,):
            self._load(wanted)
        found = [c for c in self._cases.values() if section in (None, c.section) and kind in (None, c.kind)]
        return tuple(sorted(found, key=lambda case: SECTIONS.index(case.section)))

    def get(self, identifier: str) -> Failure:
        """The case of this id."""
        self._load(section_of(identifier))
        require(identifier in self._cases, "id", identifier, "a registered failure", f"Known: {', '.join(sorted(self._cases)) or 'none'}.")
        return self._cases[identifier]

    def verify(self, case: Failure | str) -> Demonstration:
        """Run the case and prove that it is of its kind; raises a PositionContractError that says what it failed to show."""
        case = self.get(case) if isinstance(case, str) else case
        shown = case.demonstrate()

        def prove(condition: bool, got: object, expected: str) -> None:
            require(condition, f"{case.id} ({case.kind})", got, expected, "Repair the case, or declare the kind that it shows.")

        raised = isinstance(shown.broken, Exception)
        prove(raised == (case.kind == "late_error"), shown.broken, "an error in use for late_error, a returned value for every other kind")
        if case.kind == "late_error":
            prove(not isinstance(shown.broken, PositionContractError), shown.broken, "an error that is not the guard's own")
        elif case.kind == "wrong_answer":
            prove(shown.same_shape, (shown.broken, shown.right), "answers that no shape check tells apart")
            prove(shown.differs > case.tolerance, shown.differs, f"answers more than {case.tolerance} apart")
        elif case.kind == "excess_cost":
            prove(isinstance(shown.broken, Cost) and isinstance(shown.right, Cost), shown.broken, "a Cost from both runs")
            prove(shown.differs <= case.tolerance, shown.differs, f"one answer, equal within {case.tolerance}")
            prove(shown.broken.unit == shown.right.unit and shown.broken.amount > shown.right.amount,
                  (shown.broken.amount, shown.right.amount), "a larger amount in the same unit from the broken run")
        else:
            prove(isinstance(shown.broken, Claim) and isinstance(shown.right, Claim), shown.broken, "a Claim from both runs")
            prove(not shown.broken.holds and shown.broken.counterexample is not None, shown.broken, "a claim that fails on its counterexample")
            prove(bool(shown.right.holds), shown.right, "a repaired claim that holds")
        prove(bool(shown.guard_message), shown.guard_message, "a guard that refuses the broken side")
        prove(shown.guard_accepts_right, shown.guard_accepts_right, "a guard that accepts the right side")
        return shown

    def _load(self, section: str) -> None:
        if self._package is not None:
            load_section(self._package, section)


_LAB = Registry("positionlib.lab")
register, cases, get, verify = _LAB.register, _LAB.cases, _LAB.get, _LAB.verify
