"""Judging one answer: run a learner's function safely, and explain a wrong value instead of only refusing it.

A checker calls these and returns nothing when the answer is right. A learner's code runs only inside :func:`call`: types are looked
at before values, so that no method of an unknown object (``__eq__``, ``__len__``, ``__repr__``) is ever called.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

_NUMBERS = (bool, int, float, np.number, np.bool_)


class Wrong(Exception):
    """An answer is not right; the text says why, to the learner."""


def call(answer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a learner's function on copies of the arguments; what it raises becomes an explanation."""
    if not callable(answer):
        raise Wrong(f"Pass the function itself, without calling it: got {_kind(answer)}.")
    try:
        return answer(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a learner may raise anything, and must get an explanation
        steps = [s for s in traceback.extract_tb(error.__traceback__) if s.filename != __file__]
        where = f" at its line {steps[-1].lineno} ({steps[-1].line})" if steps and steps[-1].line else ""
        raise Wrong(f"Your function raised {type(error).__name__}: {_text(error)}{where}. It was called with "
                    f"{', '.join([*map(show, args), *(f'{k}={show(v)}' for k, v in kwargs.items())]) or 'no arguments'}.") from None


def expect_close(got: Any, expected: Any, *, atol: float = 0.0, mistakes: Sequence[tuple[Any, str]] = ()) -> None:
    """Compare numbers, arrays or tensors. ``mistakes`` lists (wrong value, explanation) pairs for the errors a learner is likely to make."""
    want = _numbers(expected, "the expected value")
    have = _numbers(got, "Your answer")
    for value, explanation in mistakes:  # before the shape test: a wrong shape can be the very mistake that is explained
        wrong = _numbers(value, "a listed mistake")
        if wrong.shape == have.shape and np.allclose(wrong, have, rtol=0.0, atol=max(atol, 1e-9), equal_nan=True):
            raise Wrong(explanation)
    if have.shape != want.shape:
        raise Wrong(f"Your answer has shape {list(have.shape)}; expected {list(want.shape)}. Check which axis is which, and what is kept.")
    if np.isnan(have).any() and not np.isnan(want).any():
        raise Wrong(f"Your answer holds {int(np.isnan(have).sum())} NaN. Look for 0/0, inf - inf, a log of zero, or a softmax over nothing.")
    off = ~np.isclose(have, want, rtol=0.0, atol=atol, equal_nan=True)
    if off.any():
        first = tuple(int(i) for i in np.argwhere(off)[0])
        place = f" at index {list(first)}" if first else ""
        raise Wrong(f"{int(off.sum())} of {off.size} values differ; the first{place} is {have[first]:g}. Work that one out by hand.")


def expect_choice(got: Any, correct: str, explanations: Mapping[str, str]) -> None:
    """Compare a choice such as "b"; ``explanations`` holds one text for every wrong choice."""
    choices = sorted([correct, *explanations])
    if type(got) is not str:
        raise Wrong(f"Answer with one of {', '.join(map(repr, choices))}, as text; got {_kind(got)}.")
    choice = got.strip().lower()
    if choice == correct:
        return
    if choice not in explanations:
        raise Wrong(f"{_clip(repr(got))} is not one of {', '.join(map(repr, choices))}.")
    raise Wrong(explanations[choice])


def show(value: Any) -> str:
    """A short form of an argument for a message; objects of unknown types are named, not printed."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return str(value.tolist()) if np.prod(value.shape) <= 8 else f"{_kind(value)} of shape {list(value.shape)}"
    return _clip(repr(value)) if type(value) in (bool, int, float, str, type(None), list, tuple, dict) else _kind(value)


def _numbers(value: Any, whose: str) -> np.ndarray:
    """``value`` as a float64 array, or an explanation of what it is instead."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.double() if not value.is_complex() else value.to(torch.complex128)).numpy()
    if value is None:
        raise Wrong(f"{whose} is None: does every path of the function end in `return`?")
    if isinstance(value, _NUMBERS) or (isinstance(value, (list, tuple)) and _plain(value)):
        try:
            return np.asarray(value, dtype=np.float64)
        except (ValueError, OverflowError):
            raise Wrong(f"{whose} is a list whose rows differ in length, or a number too large: give a rectangular list.") from None
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.astype(np.float64)
    raise Wrong(f"{whose} is {_kind(value)}; expected a number, a list of numbers, an array or a tensor.")


def _plain(items: list | tuple, depth: int = 0) -> bool:
    return depth < 16 and all(isinstance(x, _NUMBERS) or (isinstance(x, (list, tuple)) and _plain(x, depth + 1)) for x in items)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _text(error: BaseException) -> str:
    """The error's own text; formatting it runs the learner's code again, and may fail again."""
    try:
        return _clip(str(error))
    except Exception:  # noqa: BLE001
        return "(an error that cannot be printed)"


def _clip(text: str, width: int = 200) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
