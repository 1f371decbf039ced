"""What a case asks for, and whether the library's answers meet it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping

import torch

from positionlib import PositionContractError


class NotCovered(Exception):
    """The library, or this runner, has no counterpart of the case; the text is the reason."""


class Call(Mapping):
    """The fields of a call. It remembers which were read, so that none is ignored in silence."""

    def __init__(self, fields: dict) -> None:
        self._fields, self.read = fields, {"mechanism"}

    def __getitem__(self, name: str):
        if name not in self._fields:
            raise NotCovered(f"the call has no field {name}")
        self.read.add(name)
        return self._fields[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def get(self, name: str, default=None):
        return self[name] if name in self._fields else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def choose(self, name: str, choices: dict[str, object], default: str | None = None):
        """The library's word for one of the case's words."""
        word = self.get(name, default)
        if word not in choices:
            raise NotCovered(f"{name} {word!r} is not understood")
        return choices[word]


class Expectation:
    """``expected`` of one case: each part is checked by a value, a statement or a refusal."""

    def __init__(self, case: dict) -> None:
        self.expected, self.wrong = case["expected"], case.get("wrong_value")
        self.tolerance = tolerance(case.get("tolerance", "exact"))
        self.checked: set[tuple[str, ...]] = set()
        self.problems: list[str] = []
        self.results: list[object] = []

    def keys(self, pattern: str) -> Iterator[re.Match]:
        """Matches of the pattern among the names in ``expected``."""
        for name in self.expected if isinstance(self.expected, dict) else ():
            if found := re.fullmatch(pattern, name):
                yield found

    def asks(self, *path: str) -> bool:
        part = self.expected
        for name in path:
            if not isinstance(part, dict) or name not in part:
                return False
            part = part[name]
        return True

    def at(self, *path: str) -> object:
        self.checked.add(path)
        part = self.expected
        for name in path:
            part = part[name]
        return part

    def value(self, result: object, *path: str) -> None:
        """The library's value against the one at this path, if the case asks for it there."""
        if not self.asks(*path):
            return
        got = plain(result)
        self.results.append(got)
        gap = distance(self.at(*path), got, *self.tolerance)
        if gap:
            self.problems.append(f"{'.'.join(path) or 'value'}: {gap}")

    def holds(self, truth: bool, *path: str, says: str | None = None) -> None:
        """A true/false, or a statement in words that the handler knows: ``says`` is what must stand in it."""
        if not self.asks(*path):
            return
        stated = self.at(*path)
        if not isinstance(stated, bool) and (says is None or says not in str(stated)):
            raise NotCovered(f"the statement {stated!r} is not understood")
        if bool(truth) != (stated if isinstance(stated, bool) else True):
            self.problems.append(f"{'.'.join(path)}: {stated!r} does not hold")

    def refused(self, attempt: Callable[[], object], *path: str, mention: tuple[str, ...] = ()) -> None:
        """The attempt must raise the library's own error, whose message names ``mention`` and what the text calls for by "naming"."""
        if not self.asks(*path):
            return
        label, text = ".".join(path), self.at(*path)
        if not isinstance(text, str) or not re.search("(?i)refus|error", text):
            raise NotCovered(f"the refusal {text!r} is not understood")
        mention = (*mention, *re.findall(r"\b(?:\d+|\w*_\w*)\b", text.partition("naming")[2]))
        try:
            attempt()
        except PositionContractError as refusal:
            missing = [word for word in mention if word not in str(refusal)]
            if missing:
                self.problems.append(f"{label}: the refusal does not name {', '.join(missing)}: {refusal}")
        except Exception as error:
            self.problems.append(f"{label}: {text!r}, but it raised {type(error).__name__}: {error}")
        else:
            self.problems.append(f"{label}: {text!r}, but it was accepted")

    def either(self, attempt: Callable[[], object], *path: str, mention: tuple[str, ...] = ()) -> None:
        """A refusal, when one is listed, or one of the listed values."""
        options = self.at(*path, "either")
        try:
            got = plain(attempt())
        except PositionContractError as refusal:
            if not any(isinstance(option, str) and option.startswith("refuse") for option in options):
                self.problems.append(f"refused, which is not listed: {refusal}")
            missing = [word for word in mention if word not in str(refusal)]
            if missing:
                self.problems.append(f"the refusal does not name {', '.join(missing)}: {refusal}")
            return
        self.results.append(got)
        if all(isinstance(option, str) or distance(option, got, *self.tolerance) for option in options):
            self.problems.append(f"{got} is none of the listed values")

    def settle(self) -> None:
        """No result may be the fault's own value; every expectation must have been looked at."""
        right = list(leaves(self.expected))
        for wrong in leaves(self.wrong):
            if any(distance(wrong, known, *self.tolerance) is None for known in right):
                continue
            if any(distance(wrong, part, *self.tolerance) is None for result in self.results for part in sublists(result)):
                self.problems.append(f"the library returns the reported wrong value {wrong}")
        missed = [".".join(path) or "of this form" for path in paths(self.expected)
                  if not any(path[: len(known)] == known for known in self.checked)]
        if missed and not self.problems:
            raise NotCovered(f"the expectation {', '.join(missed)} is not understood")


def tolerance(stated: object) -> tuple[float, float]:
    """(absolute, relative)."""
    if stated == "exact":
        return 0.0, 0.0
    if isinstance(stated, dict) and set(stated) <= {"abs", "rel"} and stated:
        return float(stated.get("abs", 0)), float(stated.get("rel", 0))
    raise NotCovered(f"the tolerance {stated!r} is not understood")


def plain(result: object) -> object:
    """Tensors and tuples as nested lists."""
    if isinstance(result, torch.Tensor):
        return result.detach().cpu().tolist()
    if isinstance(result, dict):
        return {str(key): plain(value) for key, value in result.items()}
    return [plain(part) for part in result] if isinstance(result, (list, tuple)) else result


def distance(stored: object, got: object, absolute: float, relative: float) -> str | None:
    """None when two nested values agree; else where and by how much they differ at worst."""
    if isinstance(stored, dict):
        if not isinstance(got, dict) or set(stored) != set(got):
            return f"{got!r} for {stored!r}"
        gaps = [(name, distance(stored[name], got[name], absolute, relative)) for name in stored]
        return next((f"{name}: {gap}" for name, gap in gaps if gap), None)
    a, b = list(numbers(stored)), list(numbers(got))
    if shape(stored) != shape(got):
        return f"shape {shape(got)} for {shape(stored)}"
    worst, error = None, -1.0
    for index, (x, y) in enumerate(zip(a, b)):
        if isinstance(x, (int, float)) and isinstance(y, (int, float)):
            gap = abs(x - y) if math.isfinite(x) and math.isfinite(y) else (0.0 if x == y else math.inf)
            near = gap <= absolute + relative * abs(x)
        else:
            gap, near = math.inf, x == y
        if not near and gap > error:
            worst, error = f"error {gap:.3g} at entry {index}: {y!r} for {x!r}", gap
    return worst


def numbers(value: object) -> Iterator[object]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from numbers(part)
    else:
        yield value


def shape(value: object) -> object:
    """Nested lengths, which tell ragged lists apart too."""
    return [shape(part) for part in value] if isinstance(value, (list, tuple)) else 0


def leaves(value: object) -> Iterator[object]:
    """The lists in a value: itself, or those under its names. Words are no values."""
    if isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, list):
        yield value


def paths(value: object, start: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Names down to everything that is not a dict."""
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from paths(part, (*start, name))
    else:
        yield start


def sublists(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for part in value.values():
            yield from sublists(part)
    elif isinstance(value, list):
        yield value
        for part in value:
            yield from sublists(part)
