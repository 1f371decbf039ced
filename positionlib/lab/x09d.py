"""Failures of 0x09D: scores of the right shape from a shift one column off, another layer's memory, another index, scale or CLS rule.

Convention of the section: distances and offsets are query minus key, a mask is True where a key may be read, memory is time first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from positionlib.attention import attend, masked_softmax
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.mechanisms.deberta import DeBERTa, DisentangledIndex, DisentangledScores, score_denominator
from positionlib.mechanisms.transformer_xl import SegmentMemory, TransformerXL, relative_shift
from positionlib.mechanisms.tupe import override_cls

SECTION = "0x09D"
COMPACT = torch.tensor([[2.0, 4, 6, 8], [3, 6, 9, 12], [4, 8, 12, 16]], dtype=torch.float64)  # queries 1..3, distances 3..0


def waves(*shape: int) -> Float[Tensor, "..."]:
    """Different numbers of any shape, the same on every machine."""
    return torch.sin(torch.arange(math.prod(shape), dtype=torch.float64) + 1).reshape(shape)


# --- guards ---------------------------------------------------------------------------------------------------------

def check_shift(shift: Callable[[Tensor], Tensor]) -> None:
    """Refuse a shift under which a visible key reads another distance than its own: the probe's entries are their distances."""
    keys, queries = 5, 3
    probe = torch.arange(keys - 1.0, -1.0, -1.0).expand(queries, keys)
    wanted = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    got = shift(probe)
    for i, j in ((wanted >= 0) & (got != wanted)).nonzero().tolist()[:1]:
        require(False, f"distance read by query {i + keys - queries} at key {j}", int(got[i, j]), str(int(wanted[i, j])),
                "Pad one column in front, reshape, drop the first row; columns run from the largest distance to 0.")


def check_owner(rows: Float[Tensor, "K B D"], memory: SegmentMemory, layer: int) -> None:
    """Refuse keys whose memory part is not the state that this layer reads."""
    kept = memory.states[layer]
    same = [number for number, state in enumerate(memory.states) if torch.equal(rows[: len(kept)], state)]
    require(layer in same, "memory rows", f"state {same[0]}" if same else "no kept state", f"state {layer}, the input of layer {layer}",
            "Let memory.extend(layer, hidden) join them.")


class Keys(NamedTuple):
    """Keys made for memory rows, and what they should have been made of."""

    keys: Float[Tensor, "M D"]
    states: Float[Tensor, "M D"]
    weight: Float[Tensor, "D D"]


def check_keys(found: Keys) -> None:
    """Refuse memory keys that today's projection does not make from the kept states."""
    gap = float((found.keys - found.states @ found.weight.mT).abs().max())
    require(gap < 1e-9, "memory keys", f"{gap:.3f} from W_K times the states", "keys projected in this step",
            "Keep hidden states, not keys: the projection changes with every step of training.")


def check_entries(scores: Float[Tensor, "Q K"], recorded: dict[tuple[int, int], float], index: str) -> None:
    """Refuse position-to-content scores that are not the recorded ones at (query, key)."""
    for (i, j), value in recorded.items():
        require(float(scores[i, j]) == value, f"p2c of query {i}, key {j}", float(scores[i, j]), f"{value:g}, as recorded",
                f"This model was trained with third_index={index!r}.")


def check_scale(scale: float, d_head: int, position_terms: tuple[str, ...]) -> None:
    """Refuse a scale that does not count the enabled position terms."""
    wanted = score_denominator(d_head, position_terms)
    require(math.isclose(1 / scale, wanted), "score denominator", round(1 / scale, 4), f"{wanted:.4f} = √({1 + len(position_terms)}·{d_head})",
            "Count content and every enabled position term.")


def check_terms(module: DeBERTa, recorded: tuple[str, ...]) -> None:
    """Refuse a module without a term that the checkpoint was trained with."""
    require(set(module.terms) == set(recorded), "terms", module.terms, f"{recorded}, as trained", "Load a model with all its terms, or refuse it.")


def check_cls(scores: Float[Tensor, "N N"]) -> None:
    """Refuse position scores in which CLS (row and column 0) is an ordinary position, or the column was written after the row."""
    one_row, one_column = bool((scores[0] == scores[0, 1]).all()), bool((scores[1:, 0] == scores[1, 0]).all())
    require(one_column, "column of CLS", scores[1:, 0].tolist(), "one other-to-CLS number", "Call override_cls after the products.")
    require(one_row, "row of CLS", scores[0].tolist(), "one CLS-to-other number, (CLS, CLS) included", "Write the column first, then the row.")


# --- cases: Transformer-XL ------------------------------------------------------------------------------------------

def padded_behind(compact: Float[Tensor, "Q K"]) -> Float[Tensor, "Q K"]:
    """The shift with its zero column behind the scores instead of in front: every key reads the distance of its neighbour."""
    queries, keys = compact.shape
    return nn.functional.pad(compact, (0, 1)).reshape(keys + 1, queries)[1:].reshape(queries, keys)


def _visible(shifted: Float[Tensor, "Q K"]) -> Float[Tensor, "Q K"]:
    return shifted.tril(shifted.shape[1] - shifted.shape[0])


register(Failure(
    id="0x09D.pad-behind", section=SECTION, kind="wrong_answer", title="The shift's zero column stands behind the scores",
    broken=lambda: _visible(padded_behind(COMPACT)), right=lambda: relative_shift(COMPACT, beyond="zero"),
    guard=check_shift, guard_name="relative-shift", broken_subject=lambda: padded_behind,
    right_subject=lambda: lambda compact: relative_shift(compact, beyond="leftovers"),
    source="article 0x09D; labmlai/annotated_deep_learning_paper_implementations#185 compares two shifts"))


def _encoder(bidirectional: bool) -> TransformerXL:
    module = TransformerXL(4, 1, 2, base=4.0, bidirectional=bidirectional).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(waves(*parameter.shape))
    return module


def _encoder_weights(signed: bool) -> Float[Tensor, "5 5"]:
    """Attention of five tokens that read both ways, from position scores by signed distance or by the causal shift."""
    at, q = torch.arange(5), waves(1, 1, 5, 2)
    geometry = AttentionGeometry.encoder(5)
    if signed:
        parts = _encoder(True)(geometry).parts(q, q, at, at)
        scores = parts["b"] + parts["d"]
    else:
        causal = _encoder(False)(AttentionGeometry.causal_self(5))
        scores = relative_shift(causal.compact(q, at.flip(0)), beyond="leftovers")
    return masked_softmax(scores[0, 0], geometry.visible)


register(Failure(
    id="0x09D.leftovers", section=SECTION, kind="wrong_answer", title="An encoder uses the causal shift and reads its leftovers",
    broken=lambda: _encoder_weights(False), right=lambda: _encoder_weights(True),
    guard=lambda module: module(AttentionGeometry.encoder(5)), guard_name="distance-direction",
    broken_subject=lambda: _encoder(False), right_subject=lambda: _encoder(True), source="espnet/espnet#2684; ZhengkunTian/OpenTransformer#25"))

MEMORY = SegmentMemory(3, 3, "time_first").update([waves(3, 1, 4) * scale for scale in (1.0, 0.5, -1.0)])


def _layer_one(state: int) -> Float[Tensor, "1 1 2 4"]:
    """Layer 1 over two current rows, behind the memory of one of the three kept states."""
    rows = MEMORY.extend(state, waves(2, 1, 4))
    heads = rows.transpose(0, 1)[:, None]
    return attend(heads[:, :, -2:], heads, heads, None, MEMORY.geometry(2))


register(Failure(
    id="0x09D.wrong-layer", section=SECTION, kind="wrong_answer", title="Layer 1 reads the memory of its own output",
    broken=lambda: _layer_one(2), right=lambda: _layer_one(1), guard=lambda rows: check_owner(rows, MEMORY, 1), guard_name="memory-owner",
    broken_subject=lambda: MEMORY.extend(2, waves(2, 1, 4)), right_subject=lambda: MEMORY.extend(1, waves(2, 1, 4)),
    source="article 0x09D, 'a shape-correct ownership bug'"))


def _earlier_gradient(detached: bool) -> Float[Tensor, "3 1 4"]:
    """Gradient of the current segment's loss for the rows of the segment before."""
    earlier, now = waves(3, 1, 4).requires_grad_(), waves(2, 1, 4)
    rows = SegmentMemory(1, 3, "time_first").update([earlier]).extend(0, now) if detached else torch.cat((earlier, now))
    heads = rows.transpose(0, 1)[:, None]
    # The current rows' own gradient keeps the loss differentiable when the memory has none.
    loss = attend(heads[:, :, -2:], heads, heads, None, MEMORY.geometry(2)).square().sum()
    if loss.requires_grad:
        loss.backward()
    return torch.zeros_like(earlier) if earlier.grad is None else earlier.grad


register(Failure(
    id="0x09D.memory-gradient", section=SECTION, kind="wrong_answer", title="The loss of one segment trains the segment before",
    broken=lambda: _earlier_gradient(False), right=lambda: _earlier_gradient(True),
    guard=lambda state: SegmentMemory(1, 3, "time_first", states=(state,)), guard_name="memory-detached",
    broken_subject=lambda: waves(3, 1, 4).requires_grad_(), right_subject=lambda: waves(3, 1, 4).requires_grad_().detach(),
    source="article 0x09D; Dai et al. 2019, section 3.2, SG"))


def _keys(stale: bool) -> Keys:
    """Keys of three memory rows in the step after W_K was halved."""
    states, before = waves(3, 4), waves(4, 4)
    return Keys(states @ (before if stale else before / 2).mT, states, before / 2)


register(Failure(
    id="0x09D.memory-as-kv-cache", section=SECTION, kind="wrong_answer", title="Segment memory keeps projected keys, as a serving cache does",
    broken=lambda: _keys(True).keys, right=lambda: _keys(False).keys, guard=check_keys, guard_name="memory-holds-states",
    broken_subject=lambda: _keys(True), right_subject=lambda: _keys(False), source="article 0x0C, 'a normal KV cache'"))

# --- cases: DeBERTa -------------------------------------------------------------------------------------------------

RELEASED = {(0, 1): 40.0, (1, 0): 40.0, (2, 0): 40.0}
PAPER = {(0, 1): 80.0, (1, 0): 20.0, (2, 0): 10.0}


def third_term(third_index: str) -> Float[Tensor, "3 3"]:
    """k_j · Q[δ] for keys 1, 2, 3 and position queries 10, 20, 30, 40; maximum distance 2, width 1."""
    term = DisentangledScores(rule=DisentangledIndex(2), third_index=third_index, content=False, pos_key=None,
                              pos_query=torch.tensor([10.0, 20.0, 30.0, 40.0]).reshape(1, 4, 1))
    keys, at = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1), torch.arange(3)
    return term.scores(keys, keys, at, at, 1.0)[0, 0]


register(Failure(
    id="0x09D.paper-index", section=SECTION, kind="wrong_answer", title="A released DeBERTa is read with the index of the paper",
    broken=lambda: third_term("paper"), right=lambda: third_term("released"),
    guard=lambda scores: check_entries(scores, RELEASED, "released"), guard_name="checkpoint-conversion", source="nntrainer/nntrainer#3982"))

register(Failure(
    id="0x09D.one-index", section=SECTION, kind="wrong_answer", title="A model of the paper's equation reads one index in both directions",
    broken=lambda: third_term("released"), right=lambda: third_term("paper"),
    guard=lambda scores: check_entries(scores, PAPER, "paper"), guard_name="checkpoint-conversion", source="article 0x09D; microsoft/DeBERTa#162"))

BOTH, ENCODER = ("c2p", "p2c"), AttentionGeometry.encoder(4)


def _deberta(terms: tuple[str, ...]) -> DeBERTa:
    module = DeBERTa(1, 4, 2, terms=terms, third_index="released", projections="own").double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(waves(*parameter.shape))
    return module


def _deberta_scores(terms: tuple[str, ...], scale: float | None = None) -> Float[Tensor, "1 1 4 4"]:
    rows = waves(1, 1, 4, 4)
    return attend(rows, rows.flip(-2), rows, _deberta(terms)(ENCODER), ENCODER, scale=scale, return_trace=True)[1].scores


register(Failure(
    id="0x09D.bert-scale", section=SECTION, kind="wrong_answer", title="Three products, divided by √d",
    broken=lambda: _deberta_scores(("c2c", *BOTH), 0.5), right=lambda: _deberta_scores(("c2c", *BOTH)),
    guard=lambda scale: check_scale(scale, 4, BOTH), guard_name="score-scale", broken_subject=lambda: 0.5,
    right_subject=lambda: _deberta(("c2c", *BOTH))(ENCODER).score_scale, source="NVIDIA/FasterTransformer#707; article 0x09D"))

register(Failure(
    id="0x09D.dropped-term", section=SECTION, kind="wrong_answer", title="The position-to-content term is left out",
    broken=lambda: _deberta_scores(("c2c", "c2p")), right=lambda: _deberta_scores(("c2c", *BOTH)),
    guard=lambda module: check_terms(module, ("c2c", *BOTH)), guard_name="runtime-admission", broken_subject=lambda: _deberta(("c2c", "c2p")),
    right_subject=lambda: _deberta(("c2c", *BOTH)), source="article 0x0C, failure-to-guard table, 'omitted DeBERTa directional term'"))

# --- cases: TUPE ----------------------------------------------------------------------------------------------------

PRODUCTS = torch.tensor([[9.0, 1, 2, 3], [1, 8, 4, 5], [2, 4, 7, 6], [3, 5, 6, 5]])
TO_OTHER, TO_CLS = torch.tensor([[7.0]]), torch.tensor([[-1.0]])
IS_CLS = torch.arange(4) == 0


def row_then_column(scores: Float[Tensor, "N N"]) -> Float[Tensor, "N N"]:
    """The CLS edit in the wrong order: the corner becomes other-to-CLS."""
    return override_cls(scores.mT, IS_CLS, IS_CLS, TO_CLS, TO_OTHER).mT


register(Failure(
    id="0x09D.lost-cls", section=SECTION, kind="wrong_answer", title="CLS keeps the scores of an ordinary position",
    broken=lambda: PRODUCTS, right=lambda: override_cls(PRODUCTS, IS_CLS, IS_CLS, TO_OTHER, TO_CLS),
    guard=check_cls, guard_name="cls-override", source="article 0x09D; Ke et al. 2021, section 3.2"))

register(Failure(
    id="0x09D.cls-order", section=SECTION, kind="wrong_answer", title="The CLS row is written before the column",
    broken=lambda: row_then_column(PRODUCTS), right=lambda: override_cls(PRODUCTS, IS_CLS, IS_CLS, TO_OTHER, TO_CLS),
    guard=check_cls, guard_name="cls-override", source="guolinke/TUPE at 4c64ff7, the order of two assignments; guolinke/TUPE#22"))
