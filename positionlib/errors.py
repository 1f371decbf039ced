"""The refusals of the library: every one names the field, the value, what was expected, and what to do."""

from __future__ import annotations

import operator

import torch


class PositionContractError(ValueError):
    """A call, a mechanism or a term was given something its contract does not allow.

    Attributes
    ----------
    field : the name of the argument or manifest field, dotted when nested (``"query_space.logical_positions"``).
    value : the value received.
    expected : what the contract allows.
    remedy : what the caller should do.
    """

    def __init__(self, field: str, value: object, expected: str, remedy: str) -> None:
        self.field, self.value, self.expected, self.remedy = field, value, expected, remedy
        super().__init__(f"{field} = {_short(value)}: expected {expected}. {remedy}")

    def __reduce__(self):
        return type(self), (self.field, self.value, self.expected, self.remedy)


class FrameMismatchError(PositionContractError):
    """Positions of two unrelated coordinate frames were about to be subtracted."""


class PositionRangeError(PositionContractError, IndexError):
    """A position has no row in a finite table."""


class UnsupportedPositionContract(PositionContractError):
    """A backend lacks a capability that the term needs; ``missing`` names what it lacks."""

    def __init__(self, field: str, value: object, expected: str, remedy: str, missing: frozenset[str] = frozenset()) -> None:
        super().__init__(field, value, expected, remedy)
        self.missing = missing

    def __reduce__(self):
        return type(self), (self.field, self.value, self.expected, self.remedy, self.missing)


def require(condition: bool, field: str, value: object, expected: str, remedy: str) -> None:
    """Raise :class:`PositionContractError` with these parts unless ``condition`` holds."""
    if not condition:
        raise PositionContractError(field, value, expected, remedy)


def whole_number(value: object) -> int | None:
    """``value`` as an int, or None when it is not one: a boolean, a float, or what no int64 holds."""
    if isinstance(value, torch.SymInt):  # a length that is traced: to read it would fix it in the graph
        return value
    try:
        # bool is an int, and so is the dtype of a one-element boolean tensor; a tensor on meta has no value.
        boolean = type(value) is not int and (isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"))
        whole = value if type(value) is int else None if boolean else operator.index(value)
    except (TypeError, RuntimeError):
        return None
    return None if whole is None or not -(2**63) <= whole < 2**63 else whole


def require_count(field: str, value: object, minimum: int = 1) -> int:
    """Return ``value`` when it is an integer of at least ``minimum`` (booleans are not counts)."""
    whole = whole_number(value)
    if whole is None or whole < minimum:
        raise PositionContractError(field, value, f"an integer of at least {minimum}", f"Pass {field} as a whole number.")
    return whole


def require_choice(field: str, value: object, choices: tuple[str, ...]) -> str:
    """Return ``value`` when it is one of the named conventions."""
    if not (isinstance(value, str) and value in choices):  # a tensor would compare entry by entry
        raise PositionContractError(field, value, "one of " + ", ".join(choices), f"Name the {field} explicitly.")
    return value


def _short(value: object) -> str:
    """A one-line form of a value: tensors and long lists by their shape or first entries."""
    shape = getattr(value, "shape", None)
    if shape is not None and getattr(value, "ndim", 0) > 0:
        return f"{type(value).__name__} of shape {tuple(shape)} and dtype {getattr(value, 'dtype', None)}"
    try:
        text = repr(value)
    except ValueError:  # thousands of digits have no text in Python
        text = f"{type(value).__name__} too long to print"
    return text if len(text) <= 120 else text[:117] + "..."
