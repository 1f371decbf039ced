"""Packed rows: the same documents, numbered under three rules. Which table rows does training read, and how far apart do tokens meet?

Contract: positions are those of :meth:`positionlib.call.PositionCall.packed`, counts those of :func:`positionlib.mechanisms.learned.coverage`.
Documents are isolated: a token reads its own document only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from positionlib.call import PositionCall
from positionlib.mechanisms.learned import coverage
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Bars, Table

TABLE_ROWS, STEP = 12, 4
LENGTHS = {"three": (3, 2, 3), "uneven": (1, 6, 1), "one": (8,)}
RULES = {"reset": "from 0 in each document", "continue": "through the row", "spread": f"each from a multiple of {STEP}"}


def packed_rows(documents: Sequence[str] = tuple(LENGTHS), rule: Sequence[str] = tuple(RULES)) -> Explorer:
    """The explorer of chapter 0x08A. Every argument lists at least two values.

    Raises
    ------
    PositionContractError
        a list with one value.
    """
    controls = [Control("documents", "Document lengths", documents, labels=[", ".join(map(str, LENGTHS[n])) for n in documents if n in LENGTHS], kind="choice"),
                Control("rule", "Positions", rule, labels=[RULES.get(name, name) for name in rule], kind="choice")]
    return Explorer(name="packed-rows", title="One packed row of eight tokens", question="Same tokens, same lengths: which table rows does training read?",
                    controls=controls, compute=_panels, caption=_caption)


def _view(documents: str, rule: str):
    """(lengths, document of each token, positions, counts, largest position difference that a token meets)."""
    lengths = LENGTHS[documents]
    how = {"reset": {}, "continue": {"reset": False}, "spread": {"starts": [STEP * k for k in range(len(lengths))]}}[rule]
    geometry = PositionCall.packed(list(lengths), **how).geometry()
    positions = geometry.query_positions
    counts = coverage(positions[None], torch.ones(1, len(positions), dtype=torch.bool), TABLE_ROWS)
    far = int((geometry.offsets("query_minus_key") * geometry.visible).max())
    return lengths, [d for d, n in enumerate(lengths) for _ in range(n)], positions.tolist(), counts.tolist(), far


def _panels(documents: str, rule: str):
    lengths, owner, positions, counts, far = _view(documents, rule)
    longest = max(lengths)
    held = [lengths.count(n) for n in range(1, 9)]
    read = sum(c > 0 for c in counts)
    return [Table("The row", ["column", "document", "position"], [[c, "ABC"[d], p] for c, (d, p) in enumerate(zip(owner, positions))]),
            Bars("Lengths", [str(n) for n in range(1, 9)], np.array(held), label="length (tokens)", value_label="documents", decimals=0, limits=(0.0, 3.0),
                 alt=f"{len(lengths)} documents, the longest has {longest} tokens."),
            Bars("Coverage", [str(r) for r in range(TABLE_ROWS)], np.array(counts), label="table row (from 0)", value_label="tokens", decimals=0, limits=(0.0, 3.0),
                 alt=f"{read} of {TABLE_ROWS} rows are read, the most often read one {max(counts)} times."),
            Badges([Badge("table rows read", f"{read} of {TABLE_ROWS}"), Badge("largest position", max(positions)), Badge("farthest key that a token reads", f"{far} back")])]


def _caption(documents: str, rule: str) -> str:
    lengths, _, positions, counts, far = _view(documents, rule)
    read, most = sum(c > 0 for c in counts), max(counts)
    said = f"Documents of {', '.join(map(str, lengths))} tokens" if len(lengths) > 1 else f"One document of {lengths[0]} tokens"
    times = "once each" if most == 1 else f"up to {most} times"
    tail = "the rules agree: there is one document." if len(lengths) == 1 else f"no token reads a key more than {far} back, whatever the rule."
    return f"{said}, positions {RULES[rule]}: {read} of {TABLE_ROWS} rows are read, {times}; {tail}"
