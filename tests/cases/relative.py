"""Relative shifts and segment memory."""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib import SegmentMemory
from positionlib.mechanisms.shaw_variants import skew_bidirectional
from positionlib.mechanisms.transformer_xl import relative_shift
from tests.cases.expect import Call, Expectation, NotCovered
from tests.cases.values import array

COLUMNS = {"distance K-1 .. 0": relative_shift, "query_minus_key L-1 .. -(L-1)": skew_bidirectional}


def align(call: Call, expect: Expectation) -> None:
    """Entries without a distance come back as null."""
    compact = array(call["compact"])
    memory = SegmentMemory(1, max(1, compact.shape[1]), "batch_first")
    if call["memory"]:
        memory = memory.update([torch.zeros(1, call["memory"], 1)])
    geometry = memory.geometry(len(compact))
    if geometry.key_length != compact.shape[1]:
        raise NotCovered(f"{compact.shape[1]} columns for {geometry.key_length} keys are not understood")
    aligned = call.choose("column_order", COLUMNS)(compact)
    expect.value(marked(aligned), *(() if isinstance(expect.expected, list) else ("aligned",)))
    if call.get("also", "") not in ("", "relative_offsets key_minus_query"):
        raise NotCovered(f"also {call['also']!r} is not understood")
    expect.value(geometry.offsets("key_minus_query"), "key_minus_query")


def bidirectional(call: Call, expect: Expectation) -> None:
    expect.value(call.choose("column_order", COLUMNS)(array(call["compact"])))


def memory_update(call: Call, expect: Expectation) -> None:
    """Rows that carry their own position, behind a leaf that asks for a gradient."""
    old, new = (array(call[name])[:, None, None] for name in ("old_memory_positions", "new_segment_positions"))
    rules = {"ext_len": call.get("ext_len", 0), "ext_rule": call.get("ext_rule", "documented")}
    memory = SegmentMemory(1, call["mem_len"], "time_first", states=(old,) if len(old) else (), **rules)
    after = memory.update([new.requires_grad_()])
    expect.value(after.states[0][:, 0, 0].long(), "memory_positions")
    expect.holds(not after.states[0].requires_grad, "detached")


def marked(aligned: Tensor) -> list:
    return [[None if value != value else value for value in row] for row in aligned.tolist()]


HANDLERS = {"transformer_xl_align": align, "bidirectional_align": bidirectional, "segment_memory_update": memory_update}
