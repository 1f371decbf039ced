"""Term mixer: the four products inside one score, and what each method keeps of them.

A score of added positions is (x_i + p_i) · (x_j + p_j): four products. Transformer-XL, DeBERTa and TUPE each keep some and replace others.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.deberta import DeBERTa
from positionlib.mechanisms.sinusoidal import sinusoidal_rows
from positionlib.mechanisms.transformer_xl import TransformerXL
from positionlib.mechanisms.tupe import TUPE
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Axis, Badge, Badges, HeatMap

TOKENS, WIDTH, LIMIT = 6, 4, 8.0
METHODS = {"added": "added positions", "xl": "Transformer-XL", "deberta": "DeBERTa", "tupe": "TUPE"}
SLOTS = {"all": "their sum", "cc": "content · content", "cp": "content · position", "pc": "position · content", "pp": "position · position"}
CALLS = {"as is": "as it is", "alike": "all words alike", "from 3": "positions from 3"}
FORMULAS = {  # what stands in each place; a missing key is a product that the method leaves out
    "added": {"cc": "x_i · x_j", "cp": "x_i · p_j", "pc": "p_i · x_j", "pp": "p_i · p_j"},
    "xl": {"cc": "q_i · k_j", "cp": "q_i · r_(i−j)", "pc": "u · k_j", "pp": "v · r_(i−j)"},
    "deberta": {"cc": "q_i · k_j", "cp": "q_i · K[δ]", "pc": "k_j · Q[δ]"},
    "tupe": {"cc": "q_i · k_j", "pp": "p_i U^Q · p_j U^K"},
}


class Facts(NamedTuple):
    """What one product depends on, as measured."""

    words: bool
    place: bool
    numbering: bool


@cache
def _weights() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(7)
    shapes = {"x": (TOKENS, WIDTH), "query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH)}
    return {name: torch.randn(*shape, generator=draw, dtype=torch.float64) / 2 for name, shape in shapes.items()}


@cache
def _module(method: str) -> torch.nn.Module:
    """One head of width 4 with fixed weights."""
    built = {"xl": lambda: TransformerXL(WIDTH, 1, WIDTH, base=16.0), "tupe": lambda: TUPE(1, WIDTH, 12, cls_position=None),
             "deberta": lambda: DeBERTa(1, WIDTH, 4, terms=("c2c", "c2p", "p2c"), third_index="released", projections="own")}[method]().double()
    draw = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if not name.startswith("norm"):
                parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64) / 2)
    return built.requires_grad_(False)


@cache
def products(method: str, call: str) -> dict[str, Tensor]:
    """The unscaled products [6, 6] of a method, by place; ``all`` is their sum. Transformer-XL has none for later keys: NaN."""
    w = _weights()
    at = torch.arange(TOKENS) + (3 if call == "from 3" else 0)
    x = w["x"][:1].expand(TOKENS, -1) if call == "alike" else w["x"]
    q, k = (x @ w[name] for name in ("query", "key"))
    if method == "added":
        p = sinusoidal_rows(at, WIDTH, base=16.0, output_dtype=torch.float64)
        pq, pk = p @ w["query"], p @ w["key"]
        found = {"cc": q @ k.mT, "cp": q @ pk.mT, "pc": pq @ k.mT, "pp": pq @ pk.mT}
    else:
        geometry = AttentionGeometry(at, at, causal=method == "xl")
        term, q, k = _module(method)(geometry), q[None, None], k[None, None]
        if method == "tupe":
            found = {"cc": q @ k.mT, "pp": term.bias / term.score_scale}
        else:
            names = {"a": "cc", "b": "cp", "c": "pc", "d": "pp"} if method == "xl" else {"c2c": "cc", "c2p": "cp", "p2c": "pc"}
            parts = term.parts(q, k, at, at, 1.0) if method == "deberta" else term.parts(q, k, at, at)
            found = {names[name]: part for name, part in parts.items()}
        found = {place: part[0, 0].masked_fill(~geometry.visible, float("nan")) for place, part in found.items()}
    return found | {"all": torch.stack(tuple(found.values())).sum(0)}


@cache
def facts(method: str, place: str) -> Facts:
    """Whether the product changes with the words, with a key's place among equal words, and when every position is 3 larger."""
    here, alike, later = (products(method, call)[place].nan_to_num() for call in CALLS)
    key = products(method, "alike")[place]
    return Facts(words=not torch.allclose(here, alike), place=not torch.allclose(key.nan_to_num(), key[-1, -1].expand_as(key).masked_fill(key.isnan(), 0.0)),
                 numbering=not torch.allclose(here, later))


def _absent(method: str, place: str) -> bool:
    return place != "all" and place not in FORMULAS[method]


def _compute(method: str, place: str, call: str) -> list:
    absent = _absent(method, place)
    values = torch.zeros(TOKENS, TOKENS, dtype=torch.float64) if absent else products(method, call)[place]
    hidden = values.isnan().numpy()
    said = Facts(False, False, False) if absent else facts(method, place)
    axis = [3 + t if call == "from 3" else t for t in range(TOKENS)]
    return [
        Badges([Badge("product", "left out" if absent else " + ".join(FORMULAS[method].values()) if place == "all" else FORMULAS[method][place]),
                Badge("knows the words", said.words), Badge("knows the place", said.place),
                Badge("moves with the numbering", said.numbering, "warn" if said.numbering else "ok")]),
        HeatMap(f"{METHODS[method]}: {SLOTS[place]}", np.nan_to_num(values.numpy()), rows=Axis("query position", labels=axis),
                columns=Axis("key position", labels=axis), scale="diverging", limits=(-LIMIT, LIMIT), decimals=2, masked=hidden if hidden.any() else None,
                value_label="product", alt=_caption(method, place, call)),
    ]


def _caption(method: str, place: str, call: str) -> str:
    name = METHODS[method]
    name = name[0].upper() + name[1:]
    if _absent(method, place):
        return f"{name}: no product {SLOTS[place]}. The method leaves it out, so the picture is zero."
    said = facts(method, place)
    what = "The sum" if place == "all" else FORMULAS[method][place]
    knows = {(True, True): "the words and the place", (True, False): "the words alone", (False, True): "the place alone"}[said.words, said.place]
    moves = "changes when all positions are 3 larger" if said.numbering else "stays when all positions are 3 larger"
    shown = {"as is": "", "from 3": " Here they are, from 3 on.",
             "alike": " Here all words are alike: " + ("only place is left to tell keys apart." if said.place else "no key differs from another.")}[call]
    return f"{name}. {what} depends on {knows} and {moves}.{shown}"


def term_mixer(methods=tuple(METHODS), places=tuple(SLOTS)) -> Explorer:
    """Which products know where a key stands, and which of them notice that the numbering has changed? At rest: added positions, all four."""
    return Explorer(
        name="term-mixer", title="Four products in one score", question="Which products notice where the numbering starts?",
        controls=[Control("method", "Method", list(methods), labels=[METHODS[m] for m in methods]),
                  Control("place", "Product", list(places), labels=[SLOTS[p] for p in places]),
                  Control("call", "Call", list(CALLS), labels=list(CALLS.values()))],
        compute=_compute, caption=_caption, start={"method": methods[0], "place": places[0], "call": "as is"})
