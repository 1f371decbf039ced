"""One array against another: integers and booleans exactly, floats within the tolerance that the manifest states."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Difference:
    """How far a result is from the stored array, at its worst entry. ``problem`` is None when it is near enough."""

    error: float
    problem: str | None


def tolerance_for(spec: object, name: str) -> tuple[float, float] | None:
    """(rtol, atol) of one array, or None when the manifest states none for it.

    ``spec`` is {rtol, atol}, or groups of them by name. A group "a/b" holds the arrays a, b, a_* and b_*, "gradients" those that
    begin with grad_; the longest name wins, and "default" or a bare {rtol, atol} beside the groups serves the rest.
    """
    if not isinstance(spec, dict):
        return None
    groups = {part.strip().replace("gradients", "grad"): value for key, value in spec.items() if isinstance(value, dict) for part in re.split(r"[/,]", key)}
    fitting = [part for part in groups if name == part or name.startswith((f"{part}_", f"{part}."))]
    chosen = groups[max(fitting, key=len)] if fitting else groups.get("default", spec)
    if not any(isinstance(chosen.get(key), (int, float)) for key in ("rtol", "atol")):
        return None
    return float(chosen.get("rtol", 0)), float(chosen.get("atol", 0))


def difference(stored: np.ndarray, result: object, tolerance: tuple[float, float] | None, where: np.ndarray | None = None) -> Difference:
    """Compare entry by entry; ``where`` is False for entries that the source leaves undefined."""
    got = result.detach().cpu() if isinstance(result, torch.Tensor) else np.asarray(result)
    got = (got.float() if isinstance(result, torch.Tensor) and got.dtype == torch.bfloat16 else got)
    got = got.numpy() if isinstance(got, torch.Tensor) else got
    if got.shape != stored.shape:
        return Difference(float("inf"), f"shape {got.shape}, stored {stored.shape}")
    defined = np.ones(stored.shape, bool) if where is None else np.broadcast_to(where, stored.shape)
    if stored.size == 0 or not defined.any():
        return Difference(float("inf"), "no entry to compare")
    if stored.dtype.kind in "biu":
        if got.dtype.kind not in "biu":
            return Difference(float("inf"), f"dtype {got.dtype}, stored {stored.dtype}")
        wrong = (got.astype(np.int64) != stored.astype(np.int64)) & defined
        error = float(np.abs(got.astype(np.int64) - stored.astype(np.int64))[defined].max())
        return Difference(error, _at(wrong, stored, got, "exactly"))
    if tolerance is None:
        return Difference(float("inf"), "the manifest states no tolerance for it")
    a, b = stored.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    # Infinities and NaN count as values: they must stand in the same entries.
    same = finite | (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.where(finite, np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)), np.where(same, 0, np.inf))
    allowed = tolerance[1] + tolerance[0] * np.abs(np.where(np.isfinite(a), a, 0))
    return Difference(float(gap[defined].max()), _at((gap > allowed) & defined, stored, got, f"rtol {tolerance[0]:g}, atol {tolerance[1]:g}", gap))


def _at(wrong: np.ndarray, stored: np.ndarray, got: np.ndarray, rule: str, gap: np.ndarray | None = None) -> str | None:
    if not wrong.any():
        return None
    worst = np.where(wrong, np.abs(stored.astype(np.float64) - got) if gap is None else gap, -1)
    index = tuple(int(i) for i in np.unravel_index(int(worst.argmax()), stored.shape))
    return f"error {worst.max():.3g} at {list(index)}: {got[index]} for {stored[index]} ({rule}; {int(wrong.sum())} of {stored.size} entries)"
