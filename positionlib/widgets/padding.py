"""Padding policies: a row is numbered in training under one rule and served under another; which tokens find their own coordinate?

Contract: trained numbers are those of the unpadded row, served numbers those of the padded one, both by
:func:`positionlib.mechanisms.learned.position_ids_from_mask`. Special rows (RoBERTa, OPT) are table rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from positionlib.mechanisms.learned import position_ids_from_mask
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Table

TOKENS = ("I", "ran", ".")
POLICIES = {"contiguous": "by column (BERT, GPT-2)", "compress_active": "by token", "roberta": "RoBERTa rows", "opt": "OPT rows"}
SERVED = {**POLICIES, "generation_v4": "generate(), 4.x", "generation_v5": "generate(), 5.x"}
# By column and by token number an unpadded row alike: they stand apart, so that one step of the control shows a change.
TRAINED = ("contiguous", "roberta", "compress_active", "opt")


def padding_policies(trained: Sequence[str] = TRAINED, served: Sequence[str] = tuple(SERVED), side: Sequence[str] = ("left", "right"),
                     pads: Sequence[int] = (0, 1, 2, 3)) -> Explorer:
    """The explorer of chapter 0x08. Every argument lists at least two values.

    Raises
    ------
    PositionContractError
        a list with one value, or an unknown policy.
    """
    controls = [Control("trained", "Trained", trained, labels=[POLICIES.get(name, name) for name in trained], kind="choice"),
                Control("served", "Served", served, labels=[SERVED.get(name, name) for name in served], kind="choice"),
                Control("side", "Padding side", side), Control("pads", "Pads", pads)]
    start = {"pads": 2} if 2 in pads else {}
    return Explorer(name="padding-policies", title="Padding policies", question="Does each token find the coordinate it was trained on?",
                    controls=controls, compute=_panels, caption=_caption, start=start)


def _ids(mask: list[int], policy: str) -> list[int]:
    extra = {"padding_idx": 1} if policy == "roberta" else {}
    return position_ids_from_mask(torch.tensor([mask]), policy, **extra)[0].tolist()


def _view(trained: str, served: str, side: str, pads: int):
    mask = [0] * pads + [1] * len(TOKENS) if side == "left" else [1] * len(TOKENS) + [0] * pads
    return mask, _ids([1] * len(TOKENS), trained), _ids(mask, served)


def _shift(trained: str, served: str, side: str, pads: int) -> int:
    """By how much every token has moved; all move alike, since padding stands at one end."""
    mask, due, got = _view(trained, served, side, pads)
    return got[mask.index(1)] - due[0]


def _panels(trained: str, served: str, side: str, pads: int):
    mask, due, got = _view(trained, served, side, pads)
    rows, wrong, k = [], [], 0
    for column, (token, number) in enumerate(zip(mask, got)):
        if token:
            same = number == due[k]
            rows.append([column, TOKENS[k], due[k], number, "same" if same else f"{number - due[k]:+d}"])
            wrong += [] if same else [column]
            k += 1
        else:
            rows.append([column, "pad", "–", number, "hidden"])
    read = sorted({number for token, number in zip(mask, got) if not token})
    return [Table("One row of the batch", ["column", "token", "trained", "served", "moved"], rows, highlight=wrong),
            Badges([Badge("tokens on another coordinate", f"{len(wrong)} of {len(TOKENS)}", "bad" if wrong else "ok"),
                    Badge("padding reads", ", ".join(map(str, read)) or "nothing: no padding"),
                    Badge("next token due", due[-1] + 1)])]


def _caption(trained: str, served: str, side: str, pads: int) -> str:
    shift = _shift(trained, served, side, pads)
    count = {0: "no pads", 1: f"one pad on the {side}"}.get(pads, f"{pads} pads on the {side}")
    said = f"Trained {POLICIES[trained]}, served {SERVED[served]}, {count}: "
    if not shift:
        said += "every token finds its own coordinate."
        if pads and (bare := _shift(trained, served, side, 0)):
            return f"{said} That is an accident of {pads} pads: without padding it would be off by {abs(bare)}."
        return said + (" This row would pass a test of the pair; it need not pass with the padding on the left." if pads and side == "right" and _shift(trained, served, "left", pads) else "")
    return said + f"every token is read {abs(shift)} {'further on' if shift > 0 else 'too early'}, and no shape shows it."
