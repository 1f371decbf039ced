"""Backend admission: which family may run on which backend, what is missing where it may not, and what the call then holds.

The fused kernel is asked without a device: its answer is then the same on every machine, and "on a GPU" stands in the status.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from positionlib.admission import admit, needs_of
from positionlib.capabilities import of_term
from positionlib.counters import PositionCounters, counted
from positionlib.errors import UnsupportedPositionContract
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms import ALiBi, BertRelative, DeBERTa, NoPE, Rotary, ShawRelative, T5Bias, TUPE, TransformerXL
from positionlib.runtime import fused
from positionlib.terms import Term
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Table

HEADS, ROWS, WIDTH = 2, 32, 16
D_MODEL = HEADS * WIDTH
FAMILIES = {
    "added": ("learned or sinusoidal rows", lambda g: None),
    "rotary": ("rotary", Rotary(WIDTH, pairing="half_split")),
    "nope": ("causal NoPE", NoPE()),
    "t5": ("T5", T5Bias(HEADS, 8, 20, bidirectional=False)),
    "alibi": ("ALiBi", ALiBi(HEADS)),
    "alibi_key": ("ALiBi stored by key", ALiBi(HEADS, form="key_index")),
    "shaw_keys": ("Shaw, keys only", BertRelative(ROWS, WIDTH, variant="relative_key")),
    "shaw": ("Shaw, keys and values", ShawRelative(4, WIDTH, sign="key_minus_query")),
    "xl": ("Transformer-XL", TransformerXL(D_MODEL, HEADS, WIDTH)),
    "deberta": ("DeBERTa", DeBERTa(HEADS, D_MODEL, 8, terms=("c2c", "c2p", "p2c"), third_index="released", projections="own")),
    "tupe": ("TUPE", TUPE(HEADS, D_MODEL, ROWS)),
}
BACKENDS = {"sdpa": "torch's own attention", "blocked": "blocks of queries", "triton": "fused kernel", "eager": "eager reference"}


class Answer(NamedTuple):
    """What a backend said. ``counters`` are those of the run, None where nothing ran here."""

    status: str  # admitted, on a GPU, fallback, refused
    runs_on: str
    needs: frozenset[str]
    missing: frozenset[str]
    counters: PositionCounters | None


def call_of(family: str) -> tuple[Tensor, Term | None, AttentionGeometry]:
    """(rows for q, k and v, term, geometry) of one causal call of 32 rows, 2 heads of width 16, float32."""
    geometry = AttentionGeometry.causal_self(ROWS)
    rows = torch.randn(1, HEADS, ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return rows, FAMILIES[family][1](geometry), geometry


@cache
def ask(family: str, backend: str, fallback: str) -> Answer:
    """The library's own answer. ``fallback`` is "none", or "eager" to run what the backend refuses."""
    x, term, geometry = call_of(family)
    needs = of_term(term) | {name for name in needs_of(x, x, x, term, geometry) if "visibility" in name}
    try:
        if backend == "triton":
            y = x.to("meta")
            refused = fused.refusal(y, y, y, term, geometry)
            if refused is not None and refused.missing == {"device meta"}:
                return Answer("on a GPU", "triton", needs, frozenset(), None)
        found = admit(x, x, x, term, geometry, backend=backend, fallback=None if fallback == "none" or backend == "eager" else fallback)
    except UnsupportedPositionContract as no:
        return Answer("refused", "nowhere", needs, no.missing, None)
    with torch.no_grad():
        counters = counted(x, x, x, term, geometry, backend=found.backend)[1]
    return Answer(found.status, found.backend, needs, found.missing, counters)


def backend_admission(families: Sequence[str] = tuple(FAMILIES), backends: Sequence[str] = tuple(BACKENDS)) -> Explorer:
    """What a family needs, and what a backend has of it. At rest: Shaw on torch's own attention, refused for two things."""

    def compute(family: str, backend: str, fallback: str) -> list:
        said = ask(family, backend, fallback)
        sign = {"admitted": "ok", "on a GPU": "ok", "fallback": "warn", "refused": "bad"}[said.status]
        held = said.counters
        badges = [Badge("status", said.status, sign), Badge("runs on", said.runs_on),
                  Badge("missing", len(said.missing), "bad" if said.missing else "ok"),
                  Badge("bias bytes", "nothing ran" if held is None else held.bias_materialized_bytes),
                  Badge("relation bytes", "nothing ran" if held is None else held.relation_materialized_bytes)]
        rows = [[need, "missing" if need in said.missing else "there"] for need in sorted(said.needs)]
        return [Badges(badges), Table(f"What the call needs, and {BACKENDS[backend]}", ["need", "backend"], rows or [["nothing beyond content", "there"]],
                                      [n for n, row in enumerate(rows) if row[1] == "missing"])]

    def caption(family: str, backend: str, fallback: str) -> str:
        said, name, place = ask(family, backend, fallback), FAMILIES[family][0], BACKENDS[backend]
        name, lacks = name[0].upper() + name[1:], " and ".join(sorted(said.missing))
        allowed = "a fallback to eager is allowed" if fallback == "eager" else "no fallback is allowed"
        if said.status == "refused":
            return f"{name} on {place}: refused, {allowed}. It lacks the {lacks}; without {'it' if len(said.missing) == 1 else 'them'} this would be another model."
        if said.status == "fallback":
            return f"{name} on {place}: it lacks the {lacks}, and {allowed}: the reference runs the whole model, and the run is counted as a fallback."
        if said.status == "on a GPU":
            return f"{name} on {place}: admitted on a GPU in this dtype and head width; it needs no fallback ({allowed})."
        return f"{name} on {place}: admitted whole; it needs no fallback ({allowed})."

    return Explorer(
        name="backend-admission", title="Backend admission", question="Which family may run where, and what is missing where it may not?",
        controls=[Control("family", "Family", list(families), [FAMILIES[f][0] for f in families], "choice"),
                  Control("backend", "Backend", list(backends), [BACKENDS[b] for b in backends], "choice"),
                  Control("fallback", "If refused", ["none", "eager"], ["refuse", "run on eager"], "choice")],
        compute=compute, start={"family": "shaw" if "shaw" in families else families[0], "backend": backends[0], "fallback": "none"}, caption=caption)
