"""Records: what each unit carries, whatever row it stands in. A move must leave every record as it was.

    before = records(rows, "unit")          require_records(rows, moved, "unit")

A unit is a word, a patch, a frame, an event: whatever one row stands for. Its record holds the values of all fields of its row, and of
a pair field its values with every other unit, by that unit's name. A permutation, padding, dropping, chunking and joining change where
a unit stands and who is there with it; they change no value of a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from positionlib.errors import PositionContractError, require
from positionlib.transport import Field, Rows


def records(rows: Rows, unit: str) -> dict[int, dict[str, Any]]:
    """The records by the unit's name. Field ``unit`` holds the names: whole numbers [N], each once; a row with its ``pad`` is nobody's.

    A field of rows gives the values of its row; a pair field gives, as "edges to 7", its value with unit 7 as the column.

    Raises
    ------
    PositionContractError
        names that are missing, repeated or no integers [N]; a field with a batch axis, or with more than two N.
    """
    require(isinstance(rows.get(unit), Field) and rows[unit].axes == "N", unit, rows.get(unit), "a Field of names with the axes N", "Name the units before they move.")
    require(not rows[unit].values.is_floating_point() and not rows[unit].values.is_complex(), unit, rows[unit].values, "whole numbers", "Name the units by numbers.")
    names, pad = rows[unit].values.tolist(), rows[unit].pad
    at = {name: n for n, name in enumerate(names) if pad is None or name != pad}
    require(len(at) == sum(pad is None or name != pad for name in names), unit, names, "each name once", "A repeated unit is another model input.")
    found: dict[int, dict[str, Any]] = {name: {} for name in at}
    for field, value in rows.items():
        axes = value.axes.split() if isinstance(value, Field) else []
        require(axes.count("N") in (1, 2) and "B" not in axes, field, value, "a Field with one or two N and no batch", "Look at one sequence at a time.")
        first = axes.index("N")
        for name, n in at.items():
            row = value.values.select(first, n)
            if axes.count("N") == 1:
                found[name][field] = row.tolist()
            else:
                second = axes.index("N", first + 1) - 1
                found[name] |= {f"{field} to {other}": row.select(second, m).tolist() for other, m in at.items()}
    return found


def require_records(before: Rows, after: Rows, unit: str) -> None:
    """Refuse a move after which a unit carries other values. Units, and pairs, that only one side has are not compared.

    Raises
    ------
    PositionContractError
        the first value that changed, by field and unit; or a field that got lost.
    """
    require(set(before) == set(after), "fields", sorted(after), f"{sorted(before)}", "Nothing stays behind: move every field.")
    for name, differences in _differences(before, after, unit).items():
        for field, was, became in differences:
            raise PositionContractError(f"{field} of unit {name}", became, f"{was}, as before the move",
                                        "Move every field with its rows, in one call: transport(rows, move=...).")


def aligned(before: Rows, after: Rows, unit: str) -> Mapping[int, bool]:
    """For each unit that both sides have: does it carry what it carried? A field that only one side has is not compared."""
    return {name: not differences for name, differences in _differences(before, after, unit).items()}


def _differences(before: Rows, after: Rows, unit: str) -> dict[int, list[tuple[str, Any, Any]]]:
    """(field, value before, value after) of what changed, for each unit that both sides have, in the order of ``before``."""
    old, new = records(before, unit), records(after, unit)
    return {name: [(field, value, new[name][field]) for field, value in record.items() if field in new[name] and not _equal(value, new[name][field])]
            for name, record in old.items() if name in new}


def _equal(a: Any, b: Any) -> bool:
    """Equality that takes NaN for itself."""
    return a == b or repr(a) == repr(b)
