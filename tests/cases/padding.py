"""Padded batches: whose coordinate is what, and who may be read."""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from positionlib import ALiBi, AttentionGeometry, LearnedAbsolute, PositionCall, attend
from positionlib.mechanisms.learned import position_ids_from_mask
from positionlib.padding import cu_seqlens, lengths_from_mask, masked_mean, position_drift
from tests.cases.expect import Call, Expectation, NotCovered
from tests.cases.values import NUMBERING, array, ids, scale


def positions_from_mask(call: Call, expect: Expectation) -> None:
    active = ids(call["attention_mask"]) == 1
    first = call.get("first_position", 0)
    geometry = PositionCall.padded(active, numbering=call.choose("padding_policy", NUMBERING), first_position=first, causal=True).geometry()
    positions = geometry.query_positions
    expect.value(positions, "positions")
    expect.value([row[real].tolist() for row, real in zip(positions, active)], "positions_of_active_rows")
    in_range = bool(((positions >= 0) & (positions < first + active.shape[1]))[~active].all())
    expect.holds(in_range and padding_is_unread(geometry, active), "positions_of_pad_rows", says="any in-range value")


def padding_is_unread(geometry: AttentionGeometry, active: torch.Tensor) -> bool:
    """Active outputs stay, to the bit, when the states of padding change and when its coordinates do."""
    batch, length = active.shape
    q, k, v = torch.randn(3, batch, 1, length, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    module = ALiBi(1)
    outputs = []
    for shift in (0, 1):
        noise = (~active)[:, None, :, None] * 7.0 * shift
        keys = torch.where(active, geometry.key_positions, geometry.key_positions * (1 - shift))
        moved = replace(geometry, key_positions=keys)
        outputs.append(attend(q, k + noise, v - noise, module(moved), moved)[:, 0][active])
    return bool(torch.equal(*outputs))


def decode_positions(call: Call, expect: Expectation) -> None:
    prefill = PositionCall.padded(call["prefill_attention_mask"], numbering=call.choose("padding_policy", NUMBERING), causal=True)
    expect.value(prefill.append(call["new_tokens"]).geometry().query_positions, "query_positions")


def padded_attention(call: Call, expect: Expectation) -> None:
    """One head of causal attention over positioned states, the same rows under several layouts of padding."""
    words = re.fullmatch(r"1 head, q=k=v=positioned state, scale (\S+), causal, pads invisible as keys", call["attention"])
    if not words:
        raise NotCovered(f"the attention {call['attention']!r} is not understood")
    tokens, table = array(call["token_states"]), array(call["position_table"])
    module = LearnedAbsolute(*table.shape).double()
    module.load_state_dict({"weight": table})
    for layout in call["layouts"].values():
        slots = layout.split()
        active = torch.tensor([slot != "P" for slot in slots])
        x = torch.stack([array(call["pad_state"]) if slot == "P" else tokens[int(slot.removeprefix("t"))] for slot in slots])
        geometry = PositionCall.padded(active[None], numbering=call.choose("padding_policy", NUMBERING), causal=True).geometry()
        state = module(geometry).add_to(x[None])[:, None]
        out = attend(state, state, state, None, geometry, scale=scale(words[1], state.shape[-1]))
        expect.value(out[0, 0][active], "active_outputs_in_every_layout")


def positions_from_ids(call: Call, expect: Expectation) -> None:
    call.choose("policy", {"pad_keeps_padding_idx": "roberta"})
    padding_idx = call["padding_idx"]
    expect.value(position_ids_from_mask(ids(call["input_ids"]) != padding_idx, "roberta", padding_idx=padding_idx), "positions")
    if expect.asks("capacity"):
        rows = expect.at("capacity")["table_rows"]
        expect.value({"table_rows": rows, "max_real_tokens": LearnedAbsolute(rows, 1, row_offset=padding_idx + 1).capacity}, "capacity")
    for name in expect.keys(r"capacity_if_(\d+)_rows"):
        expect.value(LearnedAbsolute(int(name[1]), 1, row_offset=padding_idx + 1).capacity, name[0])


def mean(call: Call, expect: Expectation) -> None:
    expect.value(masked_mean(array(call["states"]), ids(call["active"]) == 1))


def content_positions(call: Call, expect: Expectation) -> None:
    trained, served, special = call["ids_trained"], call["ids_served"], [call["bos_id"]]
    moved = position_drift(trained, served, special)
    expect.value({token: before for token, before, _ in moved}, "trained")
    expect.value({token: after for token, _, after in moved}, "served")
    expect.holds(bool(moved), "must_be_flagged")


def lengths(call: Call, expect: Expectation) -> None:
    counted = lengths_from_mask(ids(call["mask"]), call.get("polarity"))
    expect.value(counted, "lengths")
    expect.value(cu_seqlens(counted), "cu_seqlens")


HANDLERS = {
    "positions_from_mask": positions_from_mask, "decode_positions": decode_positions, "learned_absolute+causal_attention": padded_attention,
    "positions_from_ids": positions_from_ids, "masked_mean": mean, "content_positions": content_positions, "lengths_from_mask": lengths,
}
