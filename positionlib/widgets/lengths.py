"""Shape ledger: choose the lengths of a call, and read the shape and the bytes of every object in it."""

from __future__ import annotations

from functools import cache

from positionlib.shapes import Lengths, ledger
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Table

ROWS = 4096
CALLS = {"prompt 16": (16, 16), "prompt 1024": (1024, 1024), "chunk 256": (256, 4096), "token": (1, 4096)}
CALL_NAMES = {"prompt 16": "a prompt of 16", "prompt 1024": "a prompt of 1,024", "chunk 256": "256 rows after 3,840", "token": "one row after 4,095"}
MODELS = {"64 x 4": (64, 4), "768 x 12": (768, 12), "4096 x 32": (4096, 32)}
UNITS = ("B", "KiB", "MiB", "GiB")


def sizes_of(B: int, call: str, model: str) -> Lengths:
    """The lengths of one state of the widget: n = Q rows in the call, a table of 4,096 rows."""
    (q, k), (d, h) = CALLS[call], MODELS[model]
    return Lengths(B=B, n=q, d=d, h=h, Q=q, K=k, L=ROWS)


def in_units(size: int) -> str:
    """Bytes as a person reads them: 1,536 is 1.5 KiB."""
    power = 0
    while size >= 1024 and power < len(UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{size:,.1f}".removesuffix(".0") + f" {UNITS[power]}"


@cache
def _lines(B: int, call: str, model: str) -> tuple[tuple[str, str, tuple[int, ...], int], ...]:
    return tuple((line.name, line.axes, line.shape, line.nbytes) for line in ledger(sizes_of(B, call, model), device="meta"))


def _compute(B: int, call: str, model: str) -> list:
    lines, sizes = _lines(B, call, model), sizes_of(B, call, model)
    largest = max(size for *_, size in lines)
    return [Badges([Badge(letter, getattr(sizes, letter)) for letter in "BndhQK"]),
            Table("Every object of the call", ["object", "axes", "shape", "bytes"],
                  [[name, f"[{', '.join(axes.split())}]", str(list(shape)), in_units(size)] for name, axes, shape, size in lines],
                  highlight=[i for i, line in enumerate(lines) if line[3] == largest],
                  note="M = K − Q, S = K, T = Q. Made on a device without storage: these are the tensors' own sizes.")]


def _caption(B: int, call: str, model: str) -> str:
    lines = _lines(B, call, model)
    size = {name: nbytes for name, _, _, nbytes in lines}
    largest = max(size.values())
    names = [name for name in size if size[name] == largest]
    first = f"Largest: {names[0]}" + f" and {len(names) - 1} more" * (len(names) > 1) + f", {in_units(largest)}."
    pairs, state = in_units(size["Shaw rows"]), in_units(size["X_content"])
    others = "tables and pairs stay as they are" if B > 1 else "a second sequence would double them, and no table and no pair"
    return f"{first} The call's states hold {state}, its Shaw rows {pairs}. B multiplies states, ids and memory: {others}."


def shape_ledger(batch=(1, 8), calls=tuple(CALLS), models=tuple(MODELS)) -> Explorer:
    """What grows with which letter? At rest: 8 sequences, one new row each behind 4,095 keys, width 768 in 12 heads."""
    return Explorer(
        name="shape-ledger", title="Shape ledger", question="Which letter makes which object grow?",
        controls=[Control("B", "Sequences B", tuple(batch), kind="choice"), Control("call", "Each brings", tuple(calls), tuple(CALL_NAMES[c] for c in calls), "choice"),
                  Control("model", "Width d × heads h", tuple(models), tuple(m.replace("x", "×") for m in models), "choice")],
        compute=_compute, start={"B": 8 if 8 in batch else batch[0], "call": "token" if "token" in calls else calls[0],
                                 "model": "768 x 12" if "768 x 12" in models else models[0]}, caption=_caption)
