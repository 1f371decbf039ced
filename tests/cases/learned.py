"""Learned tables: row offsets, ranges, gradients, a second addition, stored index buffers."""

from __future__ import annotations

import re

import torch

from positionlib import AttentionGeometry, LearnedAbsolute, PositionCall
from positionlib.mechanisms.learned import admit_position_ids
from tests.cases.expect import Call, Expectation, NotCovered
from tests.cases.values import NUMBERING, array, dtype, ids


def table_rows(call: Call, expect: Expectation) -> None:
    if "cases" in call:
        modules = [(LearnedAbsolute(one["table_rows"], 1, row_offset=one["row_offset"]), ids(one["logical"])) for one in call["cases"]]
        expect.value([{"rows": module.row_ids(logical).tolist(), "capacity": module.capacity} for module, logical in modules])
        return
    policy, offset = call.choose("padding_policy", NUMBERING), call["row_offset"]
    expect.value(active_rows(call["attention_mask"], policy, offset), "rows_of_active")
    if "also_decode" in call:
        past, mask = call["also_decode"]["past_length"], call["also_decode"]["mask_after_append"]
        expect.value(active_rows(mask, policy, offset, past), "decode_row")


def active_rows(mask: list[list[int]], policy: str, offset: int, start: int = 0) -> list[list[int]]:
    """Table rows of the real tokens in the columns from ``start`` on."""
    active = ids(mask) == 1
    positions = PositionCall.padded(active, numbering=policy, causal=True).geometry().query_positions
    rows = LearnedAbsolute(offset + active.shape[1], 1, row_offset=offset).row_ids(positions)
    return [row[start:][real[start:]].tolist() for row, real in zip(rows, active)]


def lookup(call: Call, expect: Expectation) -> None:
    module = LearnedAbsolute(call["table_rows"], 1, row_offset=call.get("row_offset", 0))
    if "cache_committed_length" in call:
        geometry = PositionCall.decode(call["cache_committed_length"], call["new_tokens"]).geometry()
        expect.value(module.row_ids(geometry.query_positions), "rows")
        return
    for (position,) in call["positions"]:
        label, attempt = str(position), lambda: module.row_ids(ids([position]))
        text = expect.at(label) if expect.asks(label) else "ok"
        if text == "ok":
            expect.holds(attempt().tolist() == [position + module.row_offset], label, says="ok")
        else:
            expect.refused(attempt, label, mention=(label,))


def backward(call: Call, expect: Expectation) -> None:
    positions, upstream = ids(call["position_ids"]), array(call["upstream_gradient"])
    module = LearnedAbsolute(call["table_rows"], upstream.shape[-1]).double()
    module(AttentionGeometry(positions, positions)).rows.backward(upstream)
    expect.value(module.weight.grad, "table_gradient")


def add(call: Call, expect: Expectation) -> None:
    table, x = array(call["table"]), array(call["x"])
    module = LearnedAbsolute(*table.shape).double()
    module.load_state_dict({"weight": table})
    term = module(AttentionGeometry.encoder(len(x)))
    if call["applications_requested"] != 2:
        raise NotCovered("applications_requested other than 2 is not understood")
    once = term.add_to(x)
    expect.value(once, "after_one")
    expect.refused(lambda: term.add_to(once), "second_application", mention=("again=True",))
    expect.holds(torch.equal(term.add_to(once, again=True), x + table[: len(x)] * 2), "second_application", says="refused")


def index_buffer(call: Call, expect: Expectation) -> None:
    rows, loaded = call["expected_range"], call["loaded_values"]
    if isinstance(loaded, str):
        found = re.fullmatch(r"\w+: ([\d.]+)\*arange\((\d+)\)", loaded)
        if not found:
            raise NotCovered(f"loaded_values {loaded!r} are not understood")
        loaded = [float(found[1]) * i for i in range(int(found[2]))]
    name = call["loaded_dtype"]
    buffer = array(loaded, torch.int64 if name == "int64" else dtype(name))
    expect.either(lambda: admit_position_ids(buffer, rows), mention=("position_ids", "arange"))
    expect.value(admit_position_ids(torch.arange(rows), rows), "values")


HANDLERS = {
    "learned_table_rows": table_rows, "learned_absolute_lookup": lookup, "learned_absolute_backward": backward,
    "learned_absolute_add": add, "index_buffer_admission": index_buffer,
}
