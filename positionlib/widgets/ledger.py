"""Ledger calculator: what a table of positions holds in memory and what adding it costs, by who owns the numbers."""

from __future__ import annotations

from math import log2
from typing import NamedTuple

from positionlib.errors import require_choice, require_count
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Bars, Table

MIB = 2**20
WIDTH, BATCH, LENGTH = 4096, 8, 512
WAYS = {"computed": "sinusoidal, computed in the call", "buffer": "sinusoidal, table in a bfloat16 buffer", "served": "learned, served in bfloat16",
        "trained": "learned, trained in float32 by Adam"}
TABLES = {1: "one", 2: "source and target streams", 4: "one on each of 4 pipeline stages"}


class Part(NamedTuple):
    """One thing that is held: so many numbers of so many bytes."""

    name: str
    elements: int
    width: int

    @property
    def size(self) -> int:
        return self.elements * self.width


def bill(way: str, rows: int, width: int) -> tuple[Part, ...]:
    """What one table of ``rows`` positions and ``width`` channels holds between calls.

    ``computed`` keeps width/2 float64 frequencies and no table. ``trained`` is a dense gradient and Adam's two moments, all float32;
    a bfloat16 working copy for mixed precision would come on top.

    Raises
    ------
    PositionContractError
        an unknown way, or sizes that are no counts.
    """
    require_choice("way", way, tuple(WAYS))
    elements = require_count("rows", rows) * require_count("width", width, 2)
    if way == "computed":
        return (Part("frequencies", width // 2, 8),)
    if way in ("buffer", "served"):
        return (Part("table" if way == "buffer" else "weight", elements, 2),)
    return tuple(Part(name, elements, 4) for name in ("weight", "gradient", "first moment", "second moment"))


def held(way: str, rows: int, width: int, tables: int = 1) -> int:
    """Bytes of ``tables`` such tables."""
    return require_count("tables", tables) * sum(part.size for part in bill(way, rows, width))


def additions(batch: int, length: int, width: int, *, streams: int = 1) -> int:
    """Scalar additions of a call: each stream's rows are added to its state once, before the first layer."""
    return require_count("streams", streams) * require_count("batch", batch) * require_count("length", length) * require_count("width", width)


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB" if size >= MIB else f"{size / 1024:,.0f} KiB"


def _streams(tables: int) -> int:
    return 2 if tables == 2 else 1


def _compute(way: str, rows: int, tables: int) -> list:
    parts = bill(way, rows, WIDTH)
    total = held(way, rows, WIDTH, tables)
    learned = tables * rows * WIDTH if way in ("served", "trained") else 0
    sums = additions(BATCH, LENGTH, WIDTH, streams=_streams(tables))
    lines = [[part.name, f"{part.elements:,}", part.width, _mib(part.size)] for part in parts]
    doublings = [log2(held(each, rows, WIDTH, tables) / 1024) for each in WAYS]
    return [Badges([Badge("held", _mib(total)), Badge("parameters", f"{learned:,}"), Badge("additions a call", f"{sums:,}")]),
            Table("One table", ["what is held", "numbers", "bytes each", "together"], lines, note=f"× {tables} such tables" if tables > 1 else ""),
            Bars("Held by each way, in doublings of 1 KiB", list(WAYS), doublings, "way", "doublings of 1 KiB", decimals=1,
                 highlight=[list(WAYS).index(way)])]


def _caption(way: str, rows: int, tables: int) -> str:
    total = _mib(held(way, rows, WIDTH, tables))
    first = {"computed": f"No table exists: {total} of frequencies give any of {rows:,} rows when asked. Length costs nothing here; every call computes its rows.",
             "buffer": f"No parameter, and {total} all the same: a table is storage whether or not anyone trains it.",
             "served": f"The same {total} as the buffer. What differs is ownership: these numbers were trained and live in the checkpoint.",
             "trained": f"{total}: weight, gradient and two moments, in float32. That is eight times the bfloat16 table."}[way]
    second = {1: "The rows are added once, before the first layer: depth does not enter.",
              2: "Two streams have a table each and add their own rows, so both counts double.",
              4: "Only the first stage adds rows; three of the four tables are never read."}[tables]
    return f"{first} {second}"


def ledger_calculator(rows=(512, 2048, 8192, 32768)) -> Explorer:
    """Who holds how much? At rest: the article's 8,192 rows as a buffer, 64 MiB without one parameter. Width 4,096, calls of 8 × 512 rows."""
    return Explorer(
        name="ledger-calculator", title="Ledger calculator", question="Which change multiplies the bytes, and which the additions?",
        controls=[Control("way", "The numbers are", tuple(WAYS), tuple(WAYS.values()), "choice"), Control("rows", "Rows", tuple(rows)),
                  Control("tables", "Tables", tuple(TABLES), tuple(TABLES.values()), "choice")],
        compute=_compute, start={"way": "buffer", "rows": 8192 if 8192 in rows else rows[0], "tables": 1}, caption=_caption)
