"""Raw arrays of one call, or of a prefill and the calls that follow it, under a family's conventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from positionlib.check.families import Family, family
from positionlib.check.feed import SEQUENCES, Feed, feed
from positionlib.check.findings import Finding, Report, finding, pads
from positionlib.check.masks import BLINDING, check_mask, check_pairs
from positionlib.check.numbering import check_numbering, fed_ids, sequences
from positionlib.errors import PositionContractError, require

SHOWN = 16  # rows of a batch that are explained; findings name every row


def check_arrays(fields: Mapping[str, Any], name: str) -> Report:
    """What these arrays feed to a model of the family ``name``; the fields are those of :func:`positionlib.check.feed.feed`.

    Raises
    ------
    PositionContractError
        an unknown family, or arrays that are none of one call.
    """
    kind, call = family(name), feed(fields)
    return Report((kind.describe(), *explain(call, kind)), tuple(check_feed(call, kind)))


def check_calls(calls: Sequence[Mapping[str, Any]], name: str) -> Report:
    """A prefill and the calls that follow it: each must continue the cache that those before it have written.

    A later call need not say what is cached: the columns, the mask and the ids of the calls before are its cache.

    Raises
    ------
    PositionContractError
        as :func:`check_arrays`; the field is ``calls.i.name``.
    """
    kind = family(name)
    require(isinstance(calls, Sequence) and 0 < len(calls) <= SEQUENCES and all(isinstance(c, Mapping) for c in calls),
            "calls", calls, f"a list of 1 to {SEQUENCES} calls", "Give each call as a mapping of its arrays.")
    lines, found, before = [kind.describe()], [], None
    for number, fields in enumerate(calls):
        try:
            call, told = _continued(dict(fields), before, kind)
        except PositionContractError as error:
            raise PositionContractError(f"calls.{number}.{error.field}", error.value, error.expected, error.remedy) from None
        lines += [f"call {number}: {line}" for line in explain(call, kind)]
        found += [replace(f, field=f"calls.{number}.{f.field}", message=f"call {number}: {f.message}") for f in [*told, *check_feed(call, kind)]]
        before = call
    return Report(tuple(lines), tuple(found))


def check_feed(call: Feed, kind: Family) -> list[Finding]:
    """Every finding about one call."""
    found = check_mask(call, kind)
    return found if {f.code for f in found} & BLINDING else [*found, *check_numbering(call, kind), *check_pairs(call, kind)]


def explain(call: Feed, kind: Family) -> list[str]:
    """One line a sequence: where its tokens stand, under which ids, and which ones are due."""
    fed, due, told = fed_ids(call, kind), kind.ids(call.active, call.past), []
    listed = list(sequences(call))
    for sequence in listed[:SHOWN]:
        columns, padding = sequence.columns, _padding(call.active[sequence.row])
        cached = f" after {int(call.active[sequence.row, :call.past].sum())} cached ones" if call.past else ""
        have, want = _runs(fed[sequence.row, columns]), _runs(due[sequence.row, columns])
        told.append(f"{sequence.name}: tokens in columns {_runs(columns + call.past)}{cached}, {padding}; "
                    f"ids {have}{'' if sequence.packed or have == want else f', without padding {want}'}")
    return told if len(listed) <= SHOWN else [*told, f"... {len(listed) - SHOWN} more sequences"]


def _continued(fields: dict[str, Any], before: Feed | None, kind: Family) -> tuple[Feed, list[Finding]]:
    """The call with the cache that the one before it leaves, and what it says wrongly about that cache."""
    if before is None:
        return feed(fields), []
    written, told = before.active.shape[1], []
    require(before.segments is None, "segment_ids", before.segments, "calls of whole rows",
            "A manifest can say which cached row belongs to which sequence: write one.")
    declared = fields.pop("cache_length", None)
    if declared is not None and declared != written:
        told.append(finding("cache-length", None, "cache_length", f"{declared} cached columns are declared, and {written} were written"))
    known = [before.cache_positions] if before.cache_positions is not None else []
    ids = {"cache_positions": torch.cat((*known, fed_ids(before, kind)), 1)} if known or not before.past else {}
    call = feed({**ids, **fields, "cache_length": written})
    require(call.batch == before.batch, "batch", call.batch, f"{before.batch} rows, as the call before", "Follow one batch.")
    if call.mask_covers != "all":
        call = replace(call, active=torch.cat((before.active, call.new), 1))
    changed = call.active[:, :written] != before.active
    for row in changed.any(-1).nonzero().flatten().tolist():
        column = int(changed[row].nonzero()[0])
        told.append(finding("mask-rewritten", row, "attention_mask", f"row {row} had {'a token' if before.active[row, column] else 'padding'} in cached column "
                            f"{column}, and now has {'padding' if before.active[row, column] else 'a token'}"))
    return call, told


def _padding(active: Bool[Tensor, "K"]) -> str:
    """Where a row's padding is."""
    tokens = active.nonzero().flatten()
    left, right = int(tokens[0]), len(active) - 1 - int(tokens[-1])
    inside = len(active) - len(tokens) - left - right
    told = [f"{pads(count)} {where}" for count, where in ((left, "on the left"), (inside, "between its tokens"), (right, "on the right")) if count]
    return " and ".join(told) or "no padding"


def _runs(values: Tensor) -> str:
    """Whole numbers with runs folded: 0..4, or 3, 4, 0..2."""
    breaks = [0, *((values.diff() != 1).nonzero().flatten() + 1).tolist(), len(values)]
    parts = [(int(values[a]), int(values[b - 1])) for a, b in zip(breaks, breaks[1:])]
    folded = [str(a) if a == b else f"{a}..{b}" for a, b in parts]
    return ", ".join(folded if len(folded) <= 6 else [*folded[:5], f"... {len(folded) - 5} more"])
