"""What a conversion is held to: the source's own answers, part by part, and how far ours are from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import positionlib as pl
from positionlib.checkpoints import Conversion, convert
from positionlib.mechanisms import GridBias
from tests.checkpoints.peers import FIXTURES, PEERS, Recording, recording

# Slopes, rotations, the scale of DeBERTa or the softmax are float32 in these sources' attention, whatever their weights are.
FLOAT32 = {"opt", "bloom", "mpt", "falcon", "deberta", "deberta-v2", "llama", "gptj", "vit"}
EXACT, NEAR = 1e-10, 2e-6


@dataclass(frozen=True)
class Proof:
    """One converted model, and the largest difference of each of its parts, as a multiple of the source's largest number."""

    label: str
    conversion: Conversion
    differences: dict[str, float]
    bounds: dict[str, float]

    @property
    def holds(self) -> bool:
        return all(found <= self.bounds[part] for part, found in self.differences.items())


def family(label: str) -> str:
    return label.partition(",")[0]


def answer(conversion: Conversion, part: str, call: dict[str, Tensor]) -> Tensor:
    """What the converted part says to the inputs of a call."""
    module = conversion[part.partition(",")[0]]
    if "pixels" in call:
        return module(call["pixels"])
    if "x" in call:
        n = call["x"].shape[1]
        geometry = pl.AttentionGeometry.causal_self(n) if "causal" in call else pl.AttentionGeometry.encoder(n)
        if isinstance(module.mechanism, GridBias):
            places = {"x": call["boxes"][..., 0], "y": call["boxes"][..., 3]}
            return module(call["x"], geometry, module.mechanism(geometry, places, places))
        return module(call["x"], geometry)
    ids = call["ids"]
    positions = call.get("positions", torch.arange(ids.shape[1]))
    if "real" in call:
        positions = (call["real"].cumsum(1) - 1).clamp_min(0)
    geometry = pl.AttentionGeometry(positions, positions)
    if "boxes" in call:
        return module(ids, geometry, call["boxes"])
    return module(ids, geometry, call["types"]) if "types" in call else module(ids, geometry)


@torch.no_grad()
def difference(conversion: Conversion, part: str, call: dict[str, Tensor]) -> float:
    """The largest difference of a part, over its largest number, among real tokens."""
    got, want = answer(conversion, part, call), call["out"]
    assert got.shape == want.shape and got.dtype == want.dtype
    if "real" in call:
        got, want = got[call["real"]], want[call["real"]]
    return float((got - want).abs().max() / want.abs().max())


def prove(label: str, made: Recording) -> Proof:
    """Convert a saved model and compare every part that it answered for."""
    conversion = convert(made.state, made.config, family=family(label))
    found = {part: difference(conversion, part, call) for part, call in made.calls.items()}
    return Proof(label, conversion, found, {part: NEAR if family(label) in FLOAT32 and "attention" in part else EXACT for part in found})


def recorded(label: str) -> Recording:
    """The committed files of a model."""
    return recording(FIXTURES / label.replace(", ", "-"))


LABELS = tuple(PEERS)
