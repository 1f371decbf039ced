"""The kernels' tables as the book shows them: what each has to do, from the shapes, and what a GPU was measured to do, from its receipt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from positionlib.bench.gpu_bars import AT
from positionlib.bench.gpu_cases import MECHANISMS
from positionlib.kernels import costs
from positionlib.kernels.compile_rows import BATCH, HEADS, ROW_KINDS, ROWS, traffic

RECEIPTS = Path(__file__).resolve().parents[2] / "book" / "receipts"
# Rates of an H200 that the floors are told for: bf16 products and a copy, as measured. A receipt has those of its own machine.
OPERATIONS, BYTES = 790e12, 4.3e12
NOT_MEASURED = "not measured yet"


def costs_page() -> str:
    """Every attention kernel of every kind at the bars' shape, beside the least that exact attention needs; then the row kernels."""
    lines = ["| mechanism | kernel | products, GFLOP | score, G operations | bytes once, MB | held, MB | least time, ms | floor of the pass, ms |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name, (kind, sizes) in costs.MECHANISMS.items():
        causal = name in ("alibi_relative", "transformer_xl")
        shape = costs.Shape.self_attention(AT["length"], heads=16, width=AT["width"], itemsize=2, causal=causal, **sizes)
        for part in costs.PARTS:
            if part == "d_table" and kind != "t5" and not shape.line:
                continue
            found = costs.cost(kind, part, shape)
            least = costs.floor("forward" if part == "forward" else "backward", shape).seconds(OPERATIONS, BYTES)
            counts = f"{found.products / 1e9:.0f} | {found.score / 1e9:.1f} | {(found.read + found.written) / 1e6:.0f} | {found.held / 1e6:.1f}"
            lines.append(f"| {name}{', causal' * causal} | {part} | {counts} | {1e3 * found.seconds(OPERATIONS, BYTES):.2f} | {1e3 * least:.2f} |")
    lines += ["", "| row kernel | bytes read a row | bytes written a row | of a copy |", "| --- | ---: | ---: | ---: |"]
    for kind in ROW_KINDS:
        read, written, copy = traffic(kind, torch.bfloat16)
        rows = BATCH * ROWS * (HEADS if kind.startswith("rotary") else 1)
        lines.append(f"| {kind} | {read / rows:.1f} | {written / rows:.1f} | {(read + written) / copy:.3f} |")
    return "\n".join(lines)


def newest(folder: Path = RECEIPTS) -> dict[str, Any] | None:
    """The last GPU receipt by its date, or None."""
    found = sorted(folder.glob("gpu-*.json"))
    return json.loads(found[-1].read_text("utf-8")) if found else None


def gpu_page(folder: Path = RECEIPTS) -> str:
    """A line for each mechanism: bars, and what the newest receipt says of them at the bars' shape."""
    receipt = newest(folder) or {}
    rows = {row["mechanism"]: row for row in receipt.get("time", {}).get("attention", []) if all(row[name] == value for name, value in AT.items())}
    status: dict[str, list[str]] = {}
    for row in receipt.get("correct", {}).get("rows", []):
        status.setdefault(row["name"].split()[0], []).append(row["status"])
    said = f"{receipt['device']['name']}, {receipt['date']}, torch {receipt['versions']['torch']}" if receipt else f"No receipt: {NOT_MEASURED}."
    lines = [said, "", "| mechanism | right on the GPU | forward, bar | forward | backward, bar | backward |", "| --- | --- | ---: | --- | ---: | --- |"]
    for name, mechanism in MECHANISMS.items():
        seen = status.get(name, [])
        right = ", ".join(f"{seen.count(kind)} {kind}" for kind in dict.fromkeys(seen)) or NOT_MEASURED
        cells = [f"| {name} | {right}"]
        for at, what in enumerate(("forward", "backward")):
            cell = rows.get(name, {}).get("cells", {}).get(what)
            cells.append(f"≤ {mechanism.bars[at]:g}×" if mechanism.bars else "–")
            cells.append(NOT_MEASURED if cell is None else f"{1e3 * cell['median']:.2f} ms" + (
                f", {cell['ratios']['flash']:.2f}× {cell['bar']}" if "flash" in cell["ratios"] else ""))
        lines.append(" | ".join(cells) + " |")
    return "\n".join(lines)
