"""Exercises as data: a prompt, a hint, a solution, a checker, and the wrong answers that deserve their own explanation.

A fabricated one, to copy::

    def offset(query_position, key_position):
        return key_position - query_position

    def _check(answer):
        expect_close(call(answer, 5, 3), -2, mistakes=[(2, "That is query minus key: the sign is turned around.")])

    register(Exercise(
        id="0x02A.9", kind="build", minutes=2, prompt="Write offset(query_position, key_position) under key_minus_query.",
        hint="A key before the query has a negative offset.", check=_check, solution=offset,
        wrong_answers={"turned": (lambda q, k: q - k, "sign is turned around")},
    ))

:func:`verify` proves, for every registered exercise, that its solution passes, that each wrong answer receives its own explanation, and
that an answer which is no answer (None, a string, a function that raises) is met with help and not with a traceback.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from positionlib.errors import PositionContractError, require, require_choice
from positionlib.exercises.answers import Wrong
from positionlib.sections import SECTIONS, load_section, section_of

KINDS = ("recall", "build", "break")


@dataclass(frozen=True)
class Feedback:
    """What a learner reads after an attempt."""

    id: str
    passed: bool
    message: str

    def __str__(self) -> str:
        return _wrapped(f"{self.id}: {'correct' if self.passed else 'not yet'}. {self.message}")

    def _ipython_display_(self) -> None:
        """``check`` has printed the message already; a notebook need not show it twice."""


@dataclass(frozen=True)
class Exercise:
    """One exercise. ``check(answer)`` returns nothing when the answer is right and raises :class:`Wrong` when it is not.

    ``solution`` is the right value, or the right function, whose source is shown. ``wrong_answers`` maps a name to
    (answer, words that its feedback must hold).
    """

    id: str
    kind: str
    prompt: str
    minutes: int
    hint: str
    check: Callable[[Any], None]
    solution: Any
    wrong_answers: Mapping[str, tuple[Any, str]] = field(hash=False)
    praise: str = "That is it."

    def __post_init__(self) -> None:
        section = section_of(self.id)
        require(str(self.id).removeprefix(f"{section}.").isdecimal(), "id", self.id, f"{section}.<number>", "Number the exercises of a section.")
        require_choice("kind", self.kind, KINDS)
        for name in ("prompt", "hint", "praise"):
            require(isinstance(getattr(self, name), str) and bool(getattr(self, name).strip()), name, getattr(self, name),
                    "a non-empty text", f"Write the {name} of {self.id}.")
        require(type(self.minutes) is int and 1 <= self.minutes <= 30, "minutes", self.minutes, "1 to 30 whole minutes", "Split a longer exercise.")
        require(callable(self.check), "check", self.check, "a callable", "Pass the checker function itself.")
        require(len(self.wrong_answers) > 0, "wrong_answers", self.wrong_answers, "at least one likely wrong answer",
                "An exercise that explains no mistake teaches only those who need no teaching.")
        object.__setattr__(self, "wrong_answers", MappingProxyType(dict(self.wrong_answers)))

    @property
    def section(self) -> str:
        return section_of(self.id)

    def judge(self, answer: Any) -> Feedback:
        """Feedback on an answer, without printing it."""
        try:
            self.check(answer)
        except Wrong as wrong:
            return Feedback(self.id, False, str(wrong))
        except Exception as error:  # noqa: BLE001 - an answer of a kind that the checker did not foresee
            return Feedback(self.id, False, f"Your answer could not be read ({type(error).__name__}: {error}). Compare its form with the prompt.")
        return Feedback(self.id, True, self.praise)

    def solution_text(self) -> str:
        """The source of the solution when it is a function, else the value."""
        return textwrap.dedent(inspect.getsource(self.solution)).strip() if callable(self.solution) else repr(self.solution)


def _wrapped(text: str) -> str:
    """Lines of a width that a page column shows whole; the text's own line breaks stay."""
    return "\n".join(textwrap.fill(line, 72) for line in text.splitlines())


class Registry:
    """Exercises by id. ``package`` names the package whose section files register themselves on demand; None for none."""

    def __init__(self, package: str | None = None) -> None:
        self._exercises: dict[str, Exercise] = {}
        self._package = package

    def register(self, exercise: Exercise) -> Exercise:
        """Add an exercise; a second one of the same id is refused."""
        require(isinstance(exercise, Exercise), "exercise", exercise, "an Exercise", "Build it with Exercise(...), which checks its fields.")
        require(exercise.id not in self._exercises, "id", exercise.id, "an id not yet registered", "Give the exercise the next number.")
        self._exercises[exercise.id] = exercise
        return exercise

    def get(self, identifier: str) -> Exercise:
        """The exercise of this id."""
        self._load(section_of(identifier))
        require(identifier in self._exercises, "id", identifier, "a registered exercise",
                f"Known: {', '.join(sorted(self._exercises)) or 'none'}.")
        return self._exercises[identifier]

    def identifiers(self, section: str | None = None) -> tuple[str, ...]:
        """The ids of one section, or of the whole course in reading order."""
        for wanted in SECTIONS if section is None else (section,):
            self._load(wanted)
        found = [e for e in self._exercises.values() if section in (None, e.section)]
        return tuple(e.id for e in sorted(found, key=lambda e: (SECTIONS.index(e.section), int(e.id.partition(".")[2]))))

    def check(self, identifier: str, answer: Any) -> Feedback:
        """Judge an answer, print the feedback and return it."""
        feedback = self.get(identifier).judge(answer)
        print(feedback)
        return feedback

    def hint(self, identifier: str) -> None:
        """Print the hint."""
        print(_wrapped(self.get(identifier).hint))

    def solution(self, identifier: str) -> None:
        """Print the solution."""
        print(self.get(identifier).solution_text())

    def verify(self, exercise: Exercise | str) -> None:
        """Prove the exercise: the solution passes, every wrong answer gets its own explanation, nonsense gets help."""
        exercise = self.get(exercise) if isinstance(exercise, str) else exercise

        def prove(condition: bool, got: object, expected: str) -> None:
            require(condition, exercise.id, got, expected, "Repair the exercise's checker, or what it lists.")

        verdict = exercise.judge(exercise.solution)
        prove(verdict.passed, verdict.message, "a solution that passes")
        prove(bool(exercise.solution_text()), exercise.solution, "a solution that can be shown")
        messages: dict[str, str] = {}
        for name, (answer, words) in exercise.wrong_answers.items():
            verdict = exercise.judge(answer)
            prove(not verdict.passed, name, "a wrong answer that is refused")
            prove(bool(words.strip()) and words in verdict.message, verdict.message, f"feedback on {name!r} that says {words!r}")
            messages[name] = verdict.message
        prove(len(set(messages.values())) == len(messages), messages, "an explanation of its own for every wrong answer")
        for nonsense in (None, "", "no such answer", object(), float("nan"), [], {}, _raises, _returns_nothing):
            try:
                exercise.check(nonsense)
            except Wrong as wrong:
                prove(bool(str(wrong).strip()), nonsense, "help for an answer that is none")
                continue
            except Exception as error:
                raise PositionContractError(exercise.id, nonsense, "help for an answer that is none",
                                            f"The checker let {type(error).__name__} escape: use call() and the expect_ helpers.") from error
            prove(False, nonsense, "an answer that is none to be refused")

    def _load(self, section: str) -> None:
        if self._package is not None:
            load_section(self._package, section)


def _raises(*args: Any, **kwargs: Any) -> None:
    raise ZeroDivisionError("the learner divided by zero")


def _returns_nothing(*args: Any, **kwargs: Any) -> None:
    return None


_COURSE = Registry("positionlib.exercises")
register, get, identifiers, check = _COURSE.register, _COURSE.get, _COURSE.identifiers, _COURSE.check
hint, solution, verify = _COURSE.hint, _COURSE.solution, _COURSE.verify
