"""What every panel of an explorer shares: the base class, and the checks made when a panel is made."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from positionlib.errors import require


def finite(name: str, values: object, dimensions: int) -> np.ndarray:
    """``values`` as a non-empty float or integer array with this many dimensions, every entry finite."""
    array = np.asarray(values)
    require(array.dtype.kind in "fiub", name, array.dtype, "numbers", "Convert tensors with .numpy() and keep words in labels.")
    require(array.ndim == dimensions and array.size > 0, name, array.shape, f"a non-empty array with {dimensions} dimension(s)",
            "Reshape the values, or leave the panel out of this state.")
    require(bool(np.isfinite(array).all()), name, array[~np.isfinite(array)][:3], "finite numbers",
            "Mark hidden cells with masked=, and say infinities in words.")
    return array.astype(np.float64) if array.dtype.kind == "f" else array.astype(np.int64)


def length_is(name: str, values, expected: int) -> None:
    """Require ``expected`` entries."""
    require(len(values) == expected, name, len(values), f"{expected} entries", f"Give {name} one entry for each of the {expected}.")


def printing(panel) -> None:
    """Check how numbers are rounded and, where the panel has a scale, its ends."""
    require(panel.decimals in range(7), f"{panel.title}.decimals", panel.decimals, "0 to 6 decimals", "Fewer decimals are stored in fewer bytes.")
    limits = getattr(panel, "limits", None)
    require(limits is None or (len(limits) == 2 and limits[0] < limits[1]), f"{panel.title}.limits", limits, "None or (low, high) with low < high",
            "Leave limits out to share the range over all states.")


def hidden(panel) -> None:
    """Make the mask an array of flags, one a cell, when there is one."""
    if panel.masked is not None:
        panel._set(masked=np.asarray(panel.masked, dtype=bool))
        require(panel.masked.shape == panel.values.shape, f"{panel.title}.masked", panel.masked.shape, f"shape {panel.values.shape}",
                "Give one flag a cell.")


class Panel:
    """Base of every panel. ``nested`` names the fields that hold other descriptions."""

    nested: ClassVar[dict[str, type]] = {}

    def _set(self, **values) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def drawn(self) -> Panel:
        """The panel in the order in which it is drawn."""
        return self

    def value_range(self) -> tuple[float, float] | None:
        """Lowest and highest number, for panels whose scale is shared over the states."""
        return None

    def values_are_whole(self) -> bool:
        """Whether the panel's numbers are integers or flags, printed without decimals."""
        values = getattr(self, "values", None)
        return isinstance(values, np.ndarray) and values.dtype.kind in "iub"

    def same_as(self, other: Panel) -> bool:
        """Whether both panels would be stored as the same numbers and words (limits count only where both give them)."""
        from positionlib.widgets.packing import plain

        if type(self) is not type(other):
            return False
        mine, theirs = plain(self.drawn()), plain(other.drawn())
        if mine.get("limits") is None or theirs.get("limits") is None:
            mine.pop("limits", None), theirs.pop("limits", None)
        return mine == theirs
