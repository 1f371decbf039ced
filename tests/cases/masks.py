"""Hidden keys, empty rows, unused cache slots, mask polarity, and order that comes from the mask alone."""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib import AttentionGeometry, NoPE, attend
from positionlib.padding import visible_from_mask
from tests.cases.expect import Call, Expectation, NotCovered
from tests.cases.values import array, dtype, ids


def masked_attention(call: Call, expect: Expectation) -> None:
    """Scores are given, so q holds them and k is the identity: q · k is the score itself."""
    scores = array(call["scores"] if "scores" in call else call["content_scores"], dtype(call.get("dtype", "float64"))).requires_grad_()
    named = sorted(name for name in call if name.startswith("mask_"))
    if named:
        for name in named:
            value, polarity = ids(call[name]["value"]), call[name].get("polarity")
            probabilities, _ = from_scores(scores, AttentionGeometry.encoder(scores.shape[1], allowed=visible_from_mask(value, polarity)), None)
            expect.value(probabilities, "probabilities_for_both")
            expect.refused(lambda: visible_from_mask(value, None), "mask_without_declared_polarity", mention=("polarity",))
        return
    geometry = geometry_of(call, *scores.shape)
    values = array(call["v"], scores.dtype) if "v" in call else None
    probabilities, outputs = from_scores(scores, geometry, values)
    expect.value(geometry.visible, "visible")
    expect.value(probabilities, "probabilities")
    if outputs is not None:
        expect.value(outputs, "outputs")
        (gradient,) = torch.autograd.grad(outputs.sum(), scores)
        expect.holds(bool(gradient.isfinite().all()), "grad_of_sum_wrt_scores_is_finite")
        expect.holds(not bool(outputs.isnan().any()), "no_nan")
    expect.holds(not bool(probabilities.isnan().any()), "no_nan")


def geometry_of(call: Call, queries: int, keys: int) -> AttentionGeometry:
    """Positions make it causal; otherwise the rules that are given are all there are."""
    located = "query_positions" in call or "key_positions" in call
    allowed = [ids(call[name]) == 1 for name in ("visible", "causal_visible") if name in call]
    return AttentionGeometry(ids(call["query_positions"]) if located else torch.arange(queries),
                             ids(call["key_positions"]) if located else torch.arange(keys), causal=call.get("causal", located),
                             key_active=ids(call["key_active"]) == 1 if "key_active" in call else None,
                             allowed=torch.stack(allowed).all(0) if allowed else None)


def from_scores(scores: Tensor, geometry: AttentionGeometry, values: Tensor | None) -> tuple[Tensor, Tensor | None]:
    keys = torch.eye(scores.shape[-1], dtype=scores.dtype)
    out, trace = attend(scores[None, None], keys[None, None], (keys if values is None else values)[None, None], None, geometry, scale=1.0,
                        return_trace=True)
    return trace.probabilities[0, 0], None if values is None else out[0, 0]


def static_cache(call: Call, expect: Expectation) -> None:
    slots = call["slot_positions"]
    if len(slots) != call["slots"]:
        raise NotCovered("slots and slot_positions differ in length")
    geometry = AttentionGeometry(ids([call["query_position"]]), ids([slot or 0 for slot in slots]), causal=True,
                                 key_active=torch.tensor([slot is not None for slot in slots]))
    probabilities, _ = from_scores(array(call["scores"])[None], geometry, None)
    expect.value(probabilities[0], "probabilities")


def uniform_causal_stack(call: Call, expect: Expectation) -> None:
    """Equal scores: every layer of a causal model without positions takes prefix means."""
    rows, changed = array(call["rows"]), array(call["rows"])
    changed[call["change"]["row"]] = call["change"]["to"]
    before, after = (stack(x, call["layers"]) for x in (rows, changed))
    for name in expect.keys(r"layer(\d+)"):
        expect.value(before[int(name[1]) - 1], name[0])
    for name in expect.keys(r"rows_(\d+(?:_and_\d+|_\d+)*)_unchanged_by_the_change"):
        kept = [int(n) for n in name[1].replace("and_", "").split("_")]
        expect.holds(all(torch.equal(a[kept], b[kept]) for a, b in zip(before, after)), name[0])


def stack(rows: Tensor, layers: int) -> list[Tensor]:
    geometry = AttentionGeometry.causal_self(len(rows))
    silent, outputs = torch.zeros(1, 1, len(rows), 1, dtype=rows.dtype), []
    for _ in range(layers):
        rows = attend(silent, silent, rows[None, None, :, None], NoPE()(geometry), geometry)[0, 0, :, 0]
        outputs.append(rows)
    return outputs


HANDLERS = {"masked_attention": masked_attention, "masked_attention_static_cache": static_cache, "uniform_causal_stack": uniform_causal_stack}
