"""Time2Vec activations of one input: the periodic channels first, the linear one last."""

from __future__ import annotations

import torch
from torch.func import functional_call

from positionlib.mechanisms.time2vec import Time2Vec, TimeAxis, Timestamps
from tests.oracles.case import Case, NotCovered

AXIS = {"clock": "the source's number", "zone": None}
PARAMETERS = ("w", "w0", "b", "b0")


def activation(function: str):
    def handler(case: Case) -> None:
        """The source has no axis: its input is τ itself."""
        if case.setting("in_features") != 1:
            raise NotCovered("a time of several numbers is not Time2Vec's")
        tau, leaves = case.take("tau", grad=True), {name: case.take(f"param.{name}", grad=True) for name in PARAMETERS}
        module = Time2Vec(case.setting("out_features"), TimeAxis(0.0, 1.0, **AXIS), function=function, linear="last", missing="error", output_dtype=tau.dtype)
        weights = {"omega": torch.cat((leaves["w"][0], leaves["w0"][0])), "phi": torch.cat((leaves["b"], leaves["b0"]))}
        out = functional_call(module, weights, (Timestamps(values=tau[:, 0], unit="s", **AXIS),)).rows
        case.check("out", out)
        case.check_gradients(out, {"grad_tau": tau, **{f"grad.{name}": leaf for name, leaf in leaves.items()}})
    return handler


SOURCES = [("periodic_activations.py", f"{name}Activation", activation(function)) for name, function in (("Sine", "sin"), ("Cosine", "cos"))]
