"""Sinusoidal rows: layouts, ladders, odd widths, precision, module moves."""

from __future__ import annotations

import copy
import re

import torch
from torch import Tensor

from positionlib import AttentionGeometry, Sinusoidal
from positionlib.mechanisms.sinusoidal import inverse_frequencies, layout_permutation
from positionlib.mechanisms.sinusoidal_precision import first_position_alias
from tests.cases.expect import Call, Expectation, NotCovered
from tests.cases.values import array, dtype, ids

LADDERS = {"2i/d": "paper", "paper": "paper", "i/(d/2-1)": "endpoint", "endpoint": "endpoint"}
ORDINALS = ("first", "second", "third", "fourth")


def module_of(call: Call, **changes: object) -> Sinusoidal:
    settings = {"base": call.get("base", 10_000.0), "layout": call.get("layout", "interleaved"),
                "ladder": call.choose("ladder", LADDERS, default="2i/d"), "output_dtype": dtype(call.get("output_dtype", "float64"))}
    return Sinusoidal(call["d_model"], **{**settings, **changes})


def rows_of(module: Sinusoidal, positions: Tensor) -> Tensor:
    return module(AttentionGeometry(positions, positions)).rows


def sinusoidal(call: Call, expect: Expectation) -> None:
    if "calls" in call:
        for name, one in zip(ORDINALS, call["calls"], strict=False):
            expect.value(rows_of(module_of(call), torch.arange(one["offset"], one["offset"] + one["length"])), name)
        return
    if "past_length" in call:
        # There is no table, so the rows that a table would have started with change nothing.
        call.get("initial_rows")
        positions = torch.arange(call["past_length"], call["past_length"] + call["new_tokens"])
        rows = rows_of(module_of(call), positions)
        for name in expect.keys(r"row_(\d+)"):
            expect.value(rows[positions.tolist().index(int(name[1]))], name[0])
        return
    offset = call.get("offset", 0)
    positions = ids(call["positions"]) if "positions" in call else torch.arange(offset, offset + call["length"])
    if "odd_width" in call:
        for policy in call["odd_width"] if isinstance(call["odd_width"], list) else [call["odd_width"]]:
            if policy == "error":
                expect.refused(lambda: module_of(call, odd_width="error"), policy, mention=(str(call["d_model"]),))
            else:
                expect.value(rows_of(module_of(call, odd_width=policy), positions), *([policy] if expect.asks(policy) else []))
    elif "layouts" in call:
        for layout in call["layouts"]:
            expect.value(rows_of(module_of(call, layout=layout), positions), layout)
        for name in expect.keys(r"(\w+)_from_(\w+)_columns"):
            expect.value(layout_permutation(call["d_model"], name[2], name[1]), name[0])
    else:
        rows = rows_of(module_of(call).to(dtype(call.get("model_dtype", "float32"))), positions)
        expect.value(rows)
        if len(rows.unique(dim=0)) != len(positions.unique()):
            expect.problems.append("two positions share one row")


def moved_module(call: Call, expect: Expectation) -> None:
    positions = ids(call["positions"])
    if "after" in call:
        expect.value(rows_of(move(module_of(call), call["after"]), positions))
        return
    module = module_of(call)
    for step in call["moves"]:
        module = move(module, step)
        expect.value(rows_of(module, positions), "after_every_move")
    expect.holds(any(True for _ in module.parameters()), "is_parameter")
    expect.holds(any(tensor.requires_grad for tensor in (*module.parameters(), *module.buffers())), "requires_grad")


def move(module: Sinusoidal, step: str) -> Sinusoidal:
    found = re.fullmatch(r"(?:module\.)?to\((?:torch\.)?(\w+)\)", step)
    if step == "deepcopy":
        return copy.deepcopy(module)
    if step == "to(meta) then materialise again":
        return module.to("meta").to_empty(device="cpu")
    if found:
        return module.to(dtype(found[1]))
    raise NotCovered(f"the move {step!r} is not understood")


def frequencies(call: Call, expect: Expectation) -> None:
    if "ladders" not in call:
        expect.value(inverse_frequencies(call["d_model"], base=call["base"], ladder=call.choose("ladder", LADDERS, default="2i/d")))
        return
    for name in call["ladders"]:
        if name not in LADDERS:
            raise NotCovered(f"the ladder {name!r} is not understood")
        expect.value(inverse_frequencies(call["d_model"], base=call["base"], ladder=LADDERS[name]), name)


def add(call: Call, expect: Expectation) -> None:
    x, module = array(call["x"]), module_of(call)
    if "axes" not in call:
        expect.value(module.add(x, AttentionGeometry.encoder(x.shape[1])))
        return
    for axes in call["axes"]:
        if axes not in ("batch_first", "sequence_first"):
            raise NotCovered(f"the axes {axes!r} are not understood")
        first = axes == "batch_first"
        length = x.shape[1 if first else 0]
        coordinates = rows_of(module, torch.arange(length))
        shift = coordinates[None] if first else coordinates[:, None]
        expect.holds(torch.equal(module.add(x, AttentionGeometry.encoder(length), batch_first=first), x + shift), axes,
                     says="out[b][s] = coordinates[s]" if first else "out[s][b] = coordinates[s]")
        expect.value(coordinates, "coordinates")


def alias(call: Call, expect: Expectation) -> None:
    for name in call["formats"]:
        expect.value(first_position_alias(dtype(name)), name)


HANDLERS = {
    "sinusoidal": sinusoidal, "sinusoidal_module": moved_module, "sinusoidal_inverse_frequencies": frequencies, "sinusoidal_add": add,
    "first_position_alias": alias,
}
