"""T5 buckets, biases and attention blocks of transformers, T5X, TUPE and x-transformers."""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib import AttentionGeometry, T5Bias, attend, t5_bucket
from tests.oracles.case import Case, NotCovered
from tests.oracles.heads import merge_heads, project, split_heads

EDGE_OF_ARRAY = {"bucket_hf": "transformers", "bucket_tupe": "transformers", "bucket_t5x": "t5x", "bucket_exact": "exact",
                 "bucket_log_plus_1e-6": "article"}


def buckets(case: Case) -> None:
    relative = case.take("relative_position")
    rule = {"num_buckets": case.setting("num_buckets", "nb"), "max_distance": case.setting("max_distance", "md"),
            "bidirectional": case.setting("bidirectional")}
    for name, edge in EDGE_OF_ARRAY.items():
        case.check(name, t5_bucket(relative, edge=edge, **rule))


def compute_bias(case: Case) -> None:
    bidirectional = case.setting("bidirectional")
    size, reach = case.setting("nb", "num_buckets"), case.setting("md", "max_distance")
    queries = torch.arange(case.setting("Q")) + case.setting("off", default=0)
    geometry = AttentionGeometry(queries, torch.arange(case.setting("K")), causal=not bidirectional)
    case.check("relative_position", geometry.offsets("key_minus_query"))
    case.check("bucket", t5_bucket(geometry.offsets("key_minus_query"), bidirectional=bidirectional, num_buckets=size, max_distance=reach,
                                   edge="transformers"))
    for weight, result, layout, edge in (("weight", "bias", "buckets_heads", "transformers"), ("weight_t5x", "bias_t5x_f32", "heads_buckets", "t5x")):
        if case.has(weight):
            module = loaded(case.take(weight), layout, size, reach, bidirectional, edge)
            bias = materialize(module, geometry)
            case.check(result, bias)
            case.check_gradients(bias, {f"grad_{weight}": module.weight})


def x_transformers(case: Case) -> None:
    """Queries stand at the end of the keys; the looked-up bias is multiplied by ``scale``."""
    causal, queries, keys = case.setting("causal"), case.setting("q_len"), case.setting("k_len")
    geometry = AttentionGeometry(torch.arange(keys - queries, keys), torch.arange(keys), causal=causal)
    module = loaded(case.take("weight"), "buckets_heads", case.setting("num_buckets"), case.setting("max_distance"), not causal, "transformers")
    case.check("bias", materialize(module, geometry)[0] * case.setting("scale", default=1.0))


def attention(case: Case) -> None:
    two_layers(case) if case.has("layer0.q") else one_layer(case)


def one_layer(case: Case) -> None:
    x = case.take("x", grad=True)
    weights = {name: case.take(name, grad=True) for name in ("Wq", "Wk", "Wv", "Wo")}
    visible = case.take("visible")[:, 0] if case.has("visible") else None
    geometry = stack_geometry(case, x.shape[1], visible)
    module = loaded(case.take("rel_weight"), "buckets_heads", case.setting("nb"), case.setting("md"), not geometry.causal, "transformers")
    q, k, v = (split_heads(project(x, weights[name]), case.setting("H")) for name in ("Wq", "Wk", "Wv"))
    heads, trace = attend(q, k, v, module(geometry), geometry, return_trace=True)
    out = project(merge_heads(heads), weights["Wo"])
    # A row that sees nothing is left undefined by the source and is zero here.
    reads = geometry.visible.any(-1).expand(x.shape[0], -1)
    case.check("position_bias", trace.bias)
    case.check("attn_weights", trace.probabilities, where=reads[:, None, :, None])
    case.check("out", out, where=reads[..., None])
    if case.has("out_incremental") or case.has("bias_incremental"):
        incremental(case, module, (q, k, v), weights["Wo"], visible)
    leaves = {"grad_x": x, "grad_rel_weight": module.weight, **{f"grad_{name}": w for name, w in weights.items()}}
    if not bool(reads.all()) and any(case.has(name) for name in leaves):
        raise NotCovered("the gradients flow through rows that see no key, which the source leaves undefined")
    case.check_gradients(out, leaves)


def incremental(case: Case, module: T5Bias, qkv: tuple[Tensor, Tensor, Tensor], Wo: Tensor, visible: Tensor | None) -> None:
    """One token a step: step t asks at position t and reads keys 0..t."""
    q, k, v = qkv
    steps, rows = q.shape[2], []
    biases = q.new_zeros(1, q.shape[1], steps, steps)
    for t in range(steps):
        allowed = None if visible is None else visible[:, t : t + 1, : t + 1]
        geometry = AttentionGeometry.decode(t, allowed=allowed)
        heads, trace = attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], module(geometry), geometry, return_trace=True)
        rows.append(project(merge_heads(heads), Wo))
        biases[:, :, t, : t + 1] = trace.bias[:, :, 0]
    reads = torch.ones(1, steps, 1, dtype=torch.bool) if visible is None else visible.any(-1)[..., None]
    case.check("out_incremental", torch.cat(rows, 1), where=reads)
    case.check("bias_incremental", biases)


def two_layers(case: Case) -> None:
    """Layer 0 owns the table; layer 1 reuses its bias, so both add to the table's gradient."""
    x = case.take("x", grad=True)
    geometry = stack_geometry(case, x.shape[1], case.take("visible")[:, 0] if case.has("visible") else None)
    module = loaded(case.take("rel_weight"), "buckets_heads", case.setting("nb"), case.setting("md"), not geometry.causal, "transformers")
    term, state, layer = module(geometry), x, 0
    case.check("position_bias", materialize(module, geometry))
    while case.has(f"layer{layer}.q"):
        Wq, Wk, Wv, Wo = (case.take(f"layer{layer}.{name}") for name in "qkvo")
        q, k, v = (split_heads(project(state, W), case.setting("H")) for W in (Wq, Wk, Wv))
        state = project(merge_heads(attend(q, k, v, term, geometry)), Wo)
        case.check("yz"[layer] if layer < 2 else f"out{layer}", state)
        layer += 1
    case.check_gradients(state, {"grad_rel_weight": module.weight, "grad_x": x})


def stack_geometry(case: Case, length: int, visible: Tensor | None) -> AttentionGeometry:
    """An encoder or a decoder: by the settings, else by whether the source let a row read a later one, or decoded step by step."""
    causal = case.setting("causal", "dec", "is_decoder", default=None)
    if causal is None and "bidirectional" in case.settings:
        causal = not case.setting("bidirectional")
    if causal is None:
        causal = case.has("out_incremental")
        if visible is not None and not causal:
            # Padding alone hides the same keys from every row; causality does not.
            causal = not bool(visible.triu(1).any()) and bool((visible != visible[:, :1]).any())
    return (AttentionGeometry.causal_self if causal else AttentionGeometry.encoder)(length, allowed=visible)


def loaded(weight: Tensor, layout: str, num_buckets: int, max_distance: int, bidirectional: bool, edge: str) -> T5Bias:
    heads = weight.shape[1 if layout == "buckets_heads" else 0]
    module = T5Bias(heads, num_buckets, max_distance, bidirectional=bidirectional, edge=edge, table_layout=layout).to(weight.dtype)
    module.load_state_dict({"weight": weight})
    return module


def materialize(module: T5Bias, geometry: AttentionGeometry) -> Tensor:
    """The bias [1, H, Q, K] in the table's own dtype."""
    return module(geometry).materialize(geometry.query_positions, geometry.key_positions, dtype=module.weight.dtype)


SOURCES = [
    ("modeling_t5.py", "T5Attention._relative_position_bucket", buckets),
    ("modeling_t5.py", "T5Attention.compute_bias", compute_bias),
    ("modeling_t5.py", "T5Attention.forward", attention),
    ("layers.py", "RelativePositionBiases._relative_position_bucket", buckets),
    ("layers.py", "RelativePositionBiases", compute_bias),
    ("transformer_sentence_encoder.py", "relative_position_bucket", buckets),
    ("x_transformers.py", "RelativePositionBias", x_transformers),
]
