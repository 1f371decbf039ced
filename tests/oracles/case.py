"""One case while it runs: its settings, the arrays it reads and the arrays it compares."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from tests.oracles.compare import difference, tolerance_for


class NotCovered(Exception):
    """The library has no counterpart of what the case computes; the text is the reason."""


class Unreadable(Exception):
    """The case contradicts its own manifest entry, or lacks what its source needs."""


class Case:
    """Arrays are either taken (inputs) or checked (results). What is neither is reported, never skipped."""

    def __init__(self, entry: dict, arrays: dict[str, np.ndarray], inputs: Case | None = None) -> None:
        """``inputs`` is the other case whose inputs this one shares, if its settings say so."""
        self.entry, self.arrays, self.inputs = entry, arrays, inputs
        self.source: dict = entry["source"]
        self.settings: dict = entry.get("settings") or {}
        self.taken: set[str] = set()
        self.errors: dict[str, float] = {}
        self.problems: list[str] = []

    def has(self, *names: str) -> bool:
        return all(name in self.arrays for name in names)

    def setting(self, *names: str, default: object = ...) -> object:
        """The first of these settings that is present."""
        for name in names:
            if name in self.settings:
                return self.settings[name]
        if default is ...:
            raise Unreadable(f"the settings lack {' or '.join(names)}")
        return default

    def array(self, name: str) -> np.ndarray:
        """An input as NumPy holds it."""
        if name not in self.arrays:
            raise Unreadable(f"the array {name} is missing")
        self.taken.add(name)
        return self.arrays[name]

    def take(self, name: str, *, grad: bool = False) -> Tensor:
        """An input as a tensor of the stored dtype; ``grad`` makes it a leaf that gradients are asked of."""
        return torch.from_numpy(self.array(name).copy()).requires_grad_(grad)

    def check(self, name: str, result: object, *, where: object = None) -> None:
        """Compare a result with the stored array of that name, if the case has one."""
        if name not in self.arrays:
            return
        found = difference(self.arrays[name], result, tolerance_for(self.entry.get("tolerance"), name), None if where is None else np.asarray(where))
        self.errors[name] = found.error
        if found.problem:
            self.problems.append(f"{name}: {found.problem}")

    def check_bound(self, name: str, measured: float) -> None:
        """The stored number is a largest error over more rows than the case keeps: what is measured may not exceed it."""
        bound = float(self.array(name))
        self.errors[name] = measured
        if not measured <= bound * (1 + 1e-9) + 1e-12:
            self.problems.append(f"{name}: measured {measured:.3g}, at most {bound:.3g} is possible")

    def check_gradients(self, output: Tensor, leaves: dict[str, Tensor]) -> None:
        """Gradients of Σ output², for those leaves whose gradient array (the key) the case holds."""
        wanted = {name: leaf for name, leaf in leaves.items() if name in self.arrays}
        if wanted:
            for name, gradient in zip(wanted, torch.autograd.grad(output.square().sum(), list(wanted.values()), retain_graph=True)):
                self.check(name, gradient)

    def unknown(self) -> Iterable[str]:
        """Arrays of the file that were neither taken nor compared."""
        return sorted(set(self.arrays) - self.taken - set(self.errors))
