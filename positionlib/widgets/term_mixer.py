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
from positionlib.widgets.panels import Badge, Badges, Lines, Series

TOKENS, WIDTH, LATER = 6, 4, 3
METHODS = {"added": "added positions", "xl": "Transformer-XL", "deberta": "DeBERTa", "tupe": "TUPE"}
SLOTS = {"all": "their sum", "cc": "content · content", "cp": "content · position", "pc": "position · content", "pp": "position · position"}
WORDS = {"different": "six different words", "alike": "all words alike"}
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
def products(method: str, words: str, start: int) -> dict[str, Tensor]:
    """The unscaled products [6, 6] of a method, by place; ``all`` is their sum. Transformer-XL has none for later keys: NaN."""
    w, at = _weights(), torch.arange(start, start + TOKENS)
    x = w["x"][:1].expand(TOKENS, -1) if words == "alike" else w["x"]
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
            parts = term.parts(q, k, at, at, *([1.0] if method == "deberta" else []))  # unscaled
            found = {names[name]: part for name, part in parts.items()}
        found = {place: part[0, 0].masked_fill(~geometry.visible, float("nan")) for place, part in found.items()}
    return found | {"all": torch.stack(tuple(found.values())).sum(0)}


@cache
def facts(method: str, place: str) -> Facts:
    """Whether the product changes with the words, from pair to pair among equal words, and when every position is 3 larger."""
    here, alike, later = (products(method, *call)[place] for call in (("different", 0), ("alike", 0), ("different", LATER)))
    seen = ~here.isnan()
    return Facts(words=not torch.allclose(here[seen], alike[seen]), place=not torch.allclose(alike[seen], alike[-1, -1].expand_as(alike[seen])),
                 numbering=not torch.allclose(here[seen], later[seen]))


def _absent(method: str, place: str) -> bool:
    return place != "all" and place not in FORMULAS[method]


def _compute(method: str, place: str, words: str) -> list:
    absent = _absent(method, place)
    rows = [torch.zeros(TOKENS) if absent else products(method, words, start)[place][-1] for start in (0, LATER)]
    said = Facts(False, False, False) if absent else facts(method, place)
    return [
        Badges([Badge("product", "left out" if absent else " + ".join(FORMULAS[method].values()) if place == "all" else FORMULAS[method][place]),
                Badge("knows the words", said.words), Badge("knows the place", said.place),
                Badge("moves with the numbering", said.numbering, "warn" if said.numbering else "ok")]),
        Lines(f"{METHODS[method]}, {SLOTS[place]}: the last token's row", np.arange(TOKENS),
              [Series("numbered from 0", rows[0].numpy()), Series(f"numbered from {LATER}", rows[1].numpy(), kind="points")],
              x_label="key (token)", y_label="product", decimals=2, alt=_caption(method, place, words)),
    ]


def _caption(method: str, place: str, words: str) -> str:
    name = METHODS[method]
    name = name[0].upper() + name[1:]
    if _absent(method, place):
        return f"{name}: no product {SLOTS[place]}. The method leaves it out, so the picture is zero."
    said = facts(method, place)
    what = "The sum" if place == "all" else FORMULAS[method][place]
    knows = {(True, True): "the words and the place", (True, False): "the words alone", (False, True): "the place alone"}[said.words, said.place]
    row = products(method, "alike", 0)[place][-1]
    flat = bool(torch.allclose(row, row[:1].expand_as(row)))
    alike = "" if words == "different" else " With all words alike " + ("no key of this row differs from another." if flat else "place alone tells keys apart.")
    points = "The points leave the line" if said.numbering else "The points stay on the line"
    return f"{name}. {what} depends on {knows}. {points}: a numbering that starts at {LATER} {'changes' if said.numbering else 'does not change'} it.{alike}"


def term_mixer(methods=tuple(METHODS), places=tuple(SLOTS)) -> Explorer:
    """Which products notice where the numbering starts? At rest: added positions, all four."""
    return Explorer(
        name="term-mixer", title="Four products in one score", question="Which products notice where the numbering starts?",
        controls=[Control("method", "Method", list(methods), labels=[METHODS[m] for m in methods]),
                  Control("place", "Product", list(places), labels=[SLOTS[p] for p in places]),
                  Control("words", "Words", list(WORDS), labels=list(WORDS.values()))],
        compute=_compute, caption=_caption, start={"method": methods[0], "place": places[0], "words": "different"})
