"""T5 buckets, table layout, scale, sharing, gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib import AttentionGeometry, T5Bias, attend
from tests.cases.expect import Call, Expectation, NotCovered
from tests.cases.values import array, dtype, ids, scale

HEAD_AXIS = {"heads_buckets": 0, "buckets_heads": 1}
LAYOUTS = {"[heads,buckets]": "heads_buckets", "[buckets,heads]": "buckets_heads"}


def module_of(call: Call, heads: int, table: Tensor | None = None, layout: str = "buckets_heads", **settings: object) -> T5Bias:
    module = T5Bias(heads, call.get("num_buckets", 32), call.get("max_distance", 128), bidirectional=call.get("bidirectional", False),
                    table_layout=layout, **settings).double()
    if table is not None:
        module.load_state_dict({"weight": table})
    return module


def geometry_of(call: Call, bidirectional: bool) -> AttentionGeometry:
    return AttentionGeometry(ids(call["query_positions"]), ids(call["key_positions"]), causal=not bidirectional)


def biases(module: T5Bias, geometry: AttentionGeometry) -> Tensor:
    return module(geometry).materialize(geometry.query_positions, geometry.key_positions, dtype=torch.float64)[0]


def bucket(call: Call, expect: Expectation) -> None:
    module = module_of(call, 1).to(dtype(call.get("model_dtype", "float64")))
    if "relative_position" in call:
        direction = call.choose("sign", {"key_minus_query": 1, "query_minus_key": -1})
        relative = ids(call["relative_position"]) * direction
    else:
        relative = geometry_of(call, module.rule.bidirectional).offsets("key_minus_query")
    expect.value(module.rule.classes(relative))


def bias(call: Call, expect: Expectation) -> None:
    if call.get("stack") == "cross":
        geometry = AttentionGeometry.cross(len(call["query_positions"]), len(call["key_positions"]))
        expect.either(lambda: biases(module_of(call, call["heads"]), geometry), mention=("frame",))
        return
    table, layout = array(call["source_table"]), call.choose("source_layout", LAYOUTS)
    heads = table.shape[HEAD_AXIS[layout]]
    module = module_of(call, heads, table, layout)
    geometry = geometry_of(call, module.rule.bidirectional)
    expect.value(module.rule.classes(geometry.offsets("key_minus_query")), "bucket_ids")
    expect.value(biases(module, geometry), "bias_HQK")


def probabilities(call: Call, expect: Expectation) -> None:
    """A bias matrix row by row: row t is a decode step whose table has a bucket of its own for every distance."""
    q, k, matrix = array(call["q"]), array(call["k"]), array(call["bias"])
    keys, rows = len(k), []
    for query, row in zip(q, matrix, strict=True):
        module = T5Bias(1, 2 * keys, 4 * keys, bidirectional=False, score_scale=scale(call["score_scale"], q.shape[-1])).double()
        module.load_state_dict({"weight": torch.cat((row.flip(0), torch.zeros(keys, dtype=row.dtype)))[:, None]})
        geometry = AttentionGeometry.decode(keys - 1)
        _, trace = attend(query[None, None, None], k[None, None], k[None, None], module(geometry), geometry, return_trace=True)
        rows.append(trace.probabilities[0, 0, 0])
    expect.value(torch.stack(rows))


def per_layer(call: Call, expect: Expectation) -> None:
    if call["heads"] != 1:
        raise NotCovered("tables of more than one head are not understood")
    modules = {name: module_of(call, 1, array(table)[:, None]) for name, table in call["tables"].items()}
    geometry, owner = geometry_of(call, call["bidirectional"]), next(iter(modules))
    shared = modules[owner](geometry)
    for name, module in modules.items():
        expect.value(shared.materialize(geometry.query_positions, geometry.key_positions, dtype=torch.float64)[0, 0], "sharing=stack", name)
        expect.value(biases(module, geometry)[0], "sharing=per_layer", name)


def backward(call: Call, expect: Expectation) -> None:
    if call["heads"] != 1 or call["loss"] != "sum(output * G)":
        raise NotCovered("another head count or loss is not understood")
    q, k, v = (array(call[name])[None, None] for name in "qkv")
    module = module_of(call, 1, array(call["table"])[:, None], score_scale=scale(call["score_scale"], q.shape[-1]))
    geometry = geometry_of(call, module.rule.bidirectional)
    expect.value(module.rule.classes(geometry.offsets("key_minus_query")), "bucket_ids")
    (attend(q, k, v, module(geometry), geometry)[0, 0] * array(call["G"])).sum().backward()
    expect.value(module.weight.grad[:, 0], "table_gradient")
    expect.holds(abs(float(module.weight.grad.sum())) < 1e-12, "sum_is_zero")


HANDLERS = {
    "t5_bucket": bucket, "t5_bias": bias, "t5_attention_probs": probabilities, "t5_bias_per_layer": per_layer, "t5_bias_backward": backward,
}
