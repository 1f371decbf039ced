"""Compare what two runs of a failure returned: same shape, and how far apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np


def leaves(value: object) -> Iterator[tuple[str, object]]:
    """(path, leaf) of a value: arrays and tensors are leaves, as are numbers; lists of numbers become one array."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from ((f".{key}{path}", leaf) for path, leaf in leaves(value[key]))
    elif isinstance(value, (list, tuple)) and not _rectangular(value):
        for i, item in enumerate(value):
            yield from ((f"[{i}]{path}", leaf) for path, leaf in leaves(item))
    else:
        yield "", _array(value)


def same_shape(a: object, b: object) -> bool:
    """True when a shape check could not tell the two values apart: same structure, same shapes, same type where there is no shape."""
    left, right = list(leaves(a)), list(leaves(b))
    return [p for p, _ in left] == [p for p, _ in right] and all(_form(x) == _form(y) for (_, x), (_, y) in zip(left, right))


def difference(a: object, b: object) -> float:
    """Largest absolute difference; infinite where shapes differ, where one side is NaN, or where non-numbers are unequal."""
    if not same_shape(a, b):
        return math.inf
    return max((_leaf_difference(x, y) for (_, x), (_, y) in zip(leaves(a), leaves(b))), default=0.0)


def _leaf_difference(x: object, y: object) -> float:
    if not isinstance(x, np.ndarray):
        return 0.0 if x == y else math.inf
    if not x.size:
        return 0.0
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    gap = np.where(same, 0.0, np.abs(np.where(same, 0.0, x) - np.where(same, 0.0, y)))
    return float(np.where(np.isnan(gap), np.inf, gap).max())


def _form(leaf: object) -> object:
    return leaf.shape if isinstance(leaf, np.ndarray) else type(leaf)


def _rectangular(items: list | tuple) -> bool:
    """True for a rectangular nest of plain numbers, which is one array and not a structure."""
    try:
        return np.asarray(items).dtype.kind in "biuf"
    except (TypeError, ValueError):  # ragged, or holding tensors that numpy cannot read
        return False


def _array(value: object) -> object:
    if hasattr(value, "detach"):  # a torch tensor, without importing torch here; float64 holds every half precision exactly
        value = value.detach().cpu()
        value = value.double() if value.dtype.is_floating_point else value
        value = value.numpy()
    if isinstance(value, (bool, int, float, list, tuple, np.number, np.bool_, np.ndarray)):
        array = np.asarray(value)
        return array.astype(np.float64) if array.dtype.kind in "biuf" else array
    return value
