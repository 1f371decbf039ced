"""DeBERTa's two index conventions and its scale."""

from __future__ import annotations

import re

import torch

from positionlib.mechanisms.deberta import DisentangledIndex, DisentangledScores, score_denominator
from tests.cases.expect import Call, Expectation, NotCovered
from tests.cases.values import array

CONVENTIONS = {"paper": ("paper", "paper_convention"), "released": ("released_checkpoints", "released_convention")}


def term_of(call: Call, third_index: str, pos_key: torch.Tensor | None = None, pos_query: torch.Tensor | None = None) -> DisentangledScores:
    return DisentangledScores(rule=DisentangledIndex(call["max_relative"]), third_index=third_index, content="c2c" in call["terms"],
                              pos_key=pos_key, pos_query=pos_query)


def indices(call: Call, expect: Expectation) -> None:
    positions = torch.arange(call["length"])
    for third_index, (name, _) in CONVENTIONS.items():
        found = term_of(call, third_index).indices(positions, positions)
        expect.value(found["c2p"], "delta_ij")
        for term in call["terms"]:
            expect.value(found[term], name, term)


def scores(call: Call, expect: Expectation) -> None:
    q, k, pos_key, pos_query = (array(call[name])[None] for name in ("q", "k", "pos_key", "pos_query"))
    enabled = [term for term in call["terms"] if term != "c2c"]
    if not re.fullmatch(rf"1/sqrt\({1 + len(enabled)}d\)", call["scale"]):
        raise NotCovered(f"the scale {call['scale']!r} is not understood")
    for third_index, (_, name) in CONVENTIONS.items():
        term = term_of(call, third_index, pos_key if "c2p" in enabled else None, pos_query if "p2c" in enabled else None)
        positions = torch.arange(q.shape[1]), torch.arange(k.shape[1])
        expect.value(term.scores(q[None], k[None], *positions, 1 / score_denominator(q.shape[-1], enabled))[0, 0], name)


def scale(call: Call, expect: Expectation) -> None:
    expect.value([score_denominator(call["d_head"], enabled) for enabled in call["enabled"]], "denominators")


HANDLERS = {"deberta_indices": indices, "deberta_scores": scores, "deberta_scale": scale}
