"""ALiBi slopes, distances, shards, padding, scale."""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib import ALiBi, AttentionGeometry, PositionCall, alibi_slopes, attend
from tests.cases.expect import Call, Expectation
from tests.cases.values import NUMBERING, array, dtype, ids, scale


def module_of(call: Call) -> ALiBi:
    if "slopes" in call:
        return ALiBi(call.get("heads", len(call["slopes"])), slopes=array(call["slopes"]))
    return ALiBi(call["heads"])


def causal(call: Call) -> AttentionGeometry:
    return AttentionGeometry(ids(call["query_positions"]), ids(call["key_positions"]), causal=True)


def biases(module: ALiBi, geometry: AttentionGeometry, precision: torch.dtype = torch.float64) -> Tensor:
    """[B, H, Q, K]."""
    return module(geometry).materialize(geometry.query_positions, geometry.key_positions, dtype=precision)


def bias(call: Call, expect: Expectation) -> None:
    call.choose("output", {"[H,Q,K]": None}, default="[H,Q,K]")
    module, geometry = module_of(call), causal(call)
    result = biases(module, geometry, dtype(call.get("dtype", "float64")))[0]
    if not isinstance(expect.expected, dict):
        expect.value(result)
    for name in expect.keys(r"bias(_HQK)?|relative_form(_\w+)?"):
        expect.value(result, name[0])
    for name in expect.keys(r"bias_with_key_axis_(\d+)_for_(\d+)_keys"):
        short = AttentionGeometry(geometry.query_positions, geometry.key_positions[-int(name[1]) :], causal=True)
        heads = len(module.slopes)
        q, k = torch.zeros(1, heads, geometry.query_length, 2), torch.zeros(1, heads, int(name[2]), 2)
        expect.refused(lambda: attend(q, k, k, module(short), short), name[0], mention=("key_positions", name[2]))


def slopes(call: Call, expect: Expectation) -> None:
    expect.value(alibi_slopes(call["heads"], convention=call.get("convention", "paper"), bias_max=call.get("bias_max", 8)))


def shard(call: Call, expect: Expectation) -> None:
    ranks = call["heads_of_rank"]
    if len(ranks) != call["ranks"]:
        expect.problems.append("ranks and heads_of_rank differ in number")
    for rank, heads in ranks.items():
        expect.value(ALiBi(call["heads"], head_ids=heads).slopes, rank)


def bias_from_mask(call: Call, expect: Expectation) -> None:
    active, module = ids(call["attention_mask"]) == 1, module_of(call)
    geometry = PositionCall.padded(active, numbering=call.choose("padding_policy", NUMBERING), causal=True).geometry()
    between = [one[:, real][:, :, real] for one, real in zip(biases(module, geometry).expand(len(active), -1, -1, -1), active)]
    alone = [biases(module, AttentionGeometry.causal_self(int(real.sum())))[0] for real in active]
    expect.value(between[0] if len(between) == 1 else between, "bias_between_active_rows_QK")
    expect.holds(all(torch.equal(a, b) for a, b in zip(between, alone)), "equals_unpadded")


def probabilities(call: Call, expect: Expectation) -> None:
    module, geometry = module_of(call), causal(call)
    heads = len(module.slopes)
    q, k = (array(call[name])[None, None].expand(1, heads, -1, -1) for name in "qk")
    _, trace = attend(q, k, k, module(geometry), geometry, scale=scale(call["score_scale"], q.shape[-1]), return_trace=True)
    expect.value(trace.probabilities[0, 0] if heads == 1 else trace.probabilities[0])


def attention(call: Call, expect: Expectation) -> None:
    geometry, module = AttentionGeometry.causal_self(call["length"]), module_of(call)
    if not call["causal"]:
        geometry = AttentionGeometry.encoder(call["length"])
    q, k, v = (array(call[name])[None, None].expand(1, len(module.slopes), -1, -1) for name in "qkv")
    out = attend(q, k, v, module(geometry), geometry)[0]
    expect.value(out[0] if len(module.slopes) == 1 else out, "outputs")


HANDLERS = {
    "alibi_bias": bias, "alibi_slopes": slopes, "alibi_slopes_shard": shard, "alibi_bias_from_mask": bias_from_mask,
    "alibi_attention_probs": probabilities, "alibi_attention": attention,
}
