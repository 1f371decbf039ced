"""Times in a declared unit."""

from __future__ import annotations

from fractions import Fraction

import torch

from positionlib import Time2Vec, TimeAxis, Timestamps
from positionlib.mechanisms.time2vec import UNITS
from tests.cases.expect import Call, Expectation, distance, plain
from tests.cases.values import array

CLOCK = {"clock": "the case's clock", "zone": None}


def rows(call: Call, expect: Expectation) -> None:
    omega, phi, raw, unit = array(call["omega"]), array(call["phi"]), call["tau_raw"], call["raw_unit"]
    module = Time2Vec(len(omega), TimeAxis(call["origin"], call["unit_seconds"], **CLOCK), function=call.choose("periodic", {"sin": "sin", "cos": "cos"}),
                      linear="first", missing="error", output_dtype=torch.float64).double()
    module.load_state_dict({**module.state_dict(), "omega": omega, "phi": phi})

    def made(numbers: list[float], unit: str | None) -> torch.Tensor:
        return module(Timestamps(values=array(numbers), unit=unit, **CLOCK)).rows

    expect.value(made(raw, unit), "rows")
    for name in (found[0] for found in expect.keys(r"\w+_input")):
        other = expect.at(name, "raw_unit")
        expect.value([float(Fraction(str(number)) * UNITS[unit] / UNITS[other]) for number in raw], name, "raw")
        expect.holds(distance(plain(made(raw, unit)), plain(made(expect.at(name, "raw"), other)), *expect.tolerance) is None, name, "rows", says="same")
    expect.refused(lambda: made(raw, None), "undeclared_unit", mention=("unit", "ms"))


HANDLERS = {"time2vec": rows}
