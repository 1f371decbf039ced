"""How panels are stored: words and short lists as JSON, longer arrays as integers in one shared block of bytes.

A number ``v`` is stored as ``round(v * 10**decimals) - low`` in the smallest of uint8, uint16 and int32, so that what a page
shows is exactly the number Python had, rounded. An array whose bytes are already in the block (the same array in
another state, or a slice of its rows) is stored as a place in it and costs nothing. Vectors read on hover keep float64.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from positionlib.errors import PositionContractError
from positionlib.widgets.panel import Panel
from positionlib.widgets.panels import Badges, Bars, HeatMap, Lines, Matrices, Table, Text

TYPES = {"u1": np.dtype("<u1"), "u2": np.dtype("<u2"), "i4": np.dtype("<i4"), "f8": np.dtype("<f8")}
KINDS = {kind.__name__: kind for kind in (HeatMap, Lines, Bars, Matrices, Table, Badges, Text)}
SHORT = 32  # below this many entries a JSON list is smaller than a place in the block


class Packed:
    """An array on its way into the block."""

    def __init__(self, kind: str, low: int, decimals: int, codes: np.ndarray) -> None:
        self.kind, self.low, self.decimals, self.shape = kind, low, decimals, list(codes.shape)
        self.data = codes.astype(TYPES[kind]).tobytes()


def scaled(values: np.ndarray, decimals: int) -> np.ndarray:
    """The integers ``round(v * 10**decimals)`` of an array, half to even as ``numpy.round``."""
    if values.dtype.kind in "iub":
        return values.astype(np.int64) * 10**decimals
    return np.rint(values * 10.0**decimals).astype(np.int64)


def pack(values: np.ndarray, decimals: int | None, limits: tuple[float, float] | None, name: str) -> Packed:
    """Integers of ``values``. ``limits`` fixes the offset and the type, so that equal rows become equal bytes."""
    if decimals is None:
        return Packed("f8", 0, 0, values)
    codes = scaled(values, decimals)
    low, high = int(codes.min()), int(codes.max())
    if limits is not None:
        low, high = (min(low, int(scaled(np.asarray(limits[0], float), decimals))), max(high, int(scaled(np.asarray(limits[1], float), decimals))))
    if high - low < 2**8:
        return Packed("u1", low, decimals, codes - low)
    if high - low < 2**16:
        return Packed("u2", low, decimals, codes - low)
    if -(2**31) <= low and high < 2**31:
        return Packed("i4", 0, decimals, codes)
    raise PositionContractError(name, (values.min(), values.max()), f"numbers that fit 32 bits with {decimals} decimals",
                                "Use fewer decimals or a larger unit.")


def rounded(values: np.ndarray, decimals: int | None) -> list:
    """The array as nested JSON lists of rounded numbers (``decimals`` None: all digits)."""
    if decimals is None:
        return values.tolist()
    if values.dtype.kind == "b":
        return values.astype(int).tolist()
    if values.dtype.kind in "iu":
        return values.tolist()
    return (scaled(values, decimals) / 10.0**decimals).tolist()


def _hover(vector, store) -> list:
    """A hover vector: words as they are, numbers with all their digits (the page prints six)."""
    if any(isinstance(v, str) for v in vector):
        return [str(v) for v in vector]
    return store(np.asarray(vector, dtype=np.float64), None, None, "hover")


def _cell_hover(cells: dict, decimals: int, store) -> dict:
    """A matrix rounded to ``decimals``, or the two vectors whose product the page multiplies out."""
    return {name: {"rows": _hover(cell[0], store), "columns": _hover(cell[1], store)} if isinstance(cell, tuple)
            else store(np.asarray(cell), decimals, None, name) for name, cell in cells.items()}


def _defaults(kind: type) -> dict:
    """The fields that may be left out of storage, with their plain defaults."""
    return {f.name: f.default for f in fields(kind) if f.name != "decimals" and (f.default is None or isinstance(f.default, (str, bool, int, tuple)))}


def _encode(panel: Panel, store, decimals: int, limits) -> dict:
    decimals, limits = getattr(panel, "decimals", decimals), getattr(panel, "limits", limits)
    defaults, stored = _defaults(type(panel)), {}
    for f in fields(panel):
        value = getattr(panel, f.name)
        if f.name == "decimals" and panel.values_are_whole():
            value = 0
        if f.name in defaults and value is defaults[f.name] or isinstance(value, (tuple, dict)) and not value:
            continue
        if f.name in panel.nested:
            many = isinstance(value, tuple)
            value = [_encode(v, store, decimals, limits) for v in value] if many else _encode(value, store, decimals, limits)
        elif f.name in ("row_hover", "column_hover"):
            value = {name: _hover(vector, store) for name, vector in value.items()}
        elif f.name == "cell_hover":
            value = _cell_hover(value, decimals, store)
        elif isinstance(value, np.ndarray) and value.dtype.kind == "U":
            value = value.tolist()
        elif isinstance(value, np.ndarray):
            whole = value.dtype.kind != "f"
            value = store(value, 0 if whole else decimals, limits if f.name == "values" else None, f.name)
        elif f.name == "order" and value is not None:
            value = store(np.asarray(value), 0, None, "order")
        elif isinstance(value, tuple):
            value = [list(v) if isinstance(v, tuple) else v for v in value]
        stored[f.name] = value
    return stored


def _item(value):
    """numpy scalars as Python ones, so that JSON takes them."""
    if isinstance(value, dict):
        return {k: _item(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_item(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def plain(panel: Panel) -> dict:
    """The stored form of a panel with every array as a JSON list (for comparing)."""
    return _item(_encode(panel, lambda values, decimals, limits, name: rounded(values, decimals), 0, None))


def encode(panel: Panel) -> dict:
    """The stored form of a panel; longer arrays are :class:`Packed` until :func:`place` finds them a place."""

    def store(values: np.ndarray, decimals: int, limits, name: str):
        if values.size < SHORT:
            return rounded(values, decimals)
        return pack(values, decimals, limits, f"{getattr(panel, 'title', type(panel).__name__)}.{name}")

    return {"kind": type(panel).__name__} | _item(_encode(panel, store, 0, None))


def _overlap(block: bytearray, data: bytes) -> int:
    """How many bytes at the end of the block are the first bytes of ``data`` (at least 64 count)."""
    at = block.find(data[:64], max(0, len(block) - len(data)))
    while at >= 0:
        if data.startswith(block[at:]):
            return len(block) - at
        at = block.find(data[:64], at + 1)
    return 0


def place(stored: list[dict]) -> tuple[list[dict], bytes]:
    """Put every packed array of these panels into one block, the longest first so that slices are found in it."""
    found: dict[bytes, int] = {}

    def collect(value):
        if isinstance(value, Packed):
            found[value.data] = -1
        elif isinstance(value, (dict, list)):
            for inner in value.values() if isinstance(value, dict) else value:
                collect(inner)

    collect(stored)
    block = bytearray()
    for data in sorted(found, key=lambda d: -len(d)):
        at = block.find(data)
        if at < 0:
            at = len(block) - _overlap(block, data)
            block += data[len(block) - at:]
        found[data] = at

    def settle(value):
        if isinstance(value, Packed):
            return {"at": found[value.data], "type": value.kind, "low": value.low, "decimals": value.decimals, "shape": value.shape}
        if isinstance(value, dict):
            return {k: settle(v) for k, v in value.items()}
        return [settle(v) for v in value] if isinstance(value, list) else value

    return settle(stored), bytes(block)


def _array(value, block: bytes) -> np.ndarray:
    if not isinstance(value, dict):
        return np.asarray(value)
    count, kind = int(np.prod(value["shape"])), TYPES[value["type"]]
    if kind.kind == "f":
        return np.frombuffer(block, kind, count, value["at"]).reshape(value["shape"])
    codes = np.frombuffer(block, kind, count, value["at"]).astype(np.int64).reshape(value["shape"]) + value["low"]
    return codes / 10.0 ** value["decimals"] if value["decimals"] else codes


def _decode(kind: type, stored: dict, block: bytes) -> Panel:
    known = {}
    for name, value in stored.items():
        if name in kind.nested:
            inner = kind.nested[name]
            value = [_decode(inner, v, block) for v in value] if isinstance(value, list) else _decode(inner, value, block)
        elif name in ("row_hover", "column_hover"):
            value = {k: _array(v, block) for k, v in value.items()}
        elif name == "cell_hover":
            value = {k: (_array(v["rows"], block), _array(v["columns"], block)) if isinstance(v, dict) and "rows" in v else _array(v, block)
                     for k, v in value.items()}
        elif name in ("values", "x", "masked", "order"):
            value = _array(value, block)
        elif isinstance(value, list):
            value = tuple(tuple(v) if isinstance(v, list) else v for v in value)
        known[name] = value
    return kind(**known)


def decode(stored: dict, block: bytes) -> Panel:
    """The panel that was stored, in drawn order."""
    rest = {k: v for k, v in stored.items() if k != "kind"}
    return _decode(KINDS[stored["kind"]], rest, block).drawn()
