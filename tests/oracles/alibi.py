"""ALiBi slopes, storage forms and attention blocks of the paper's repository, BLOOM, Falcon, MPT and x-transformers."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from positionlib import ALiBi, AttentionGeometry, alibi_slopes, attend
from positionlib.mechanisms.learned import position_ids_from_mask
from tests.oracles.case import Case
from tests.oracles.heads import merge_heads, project, split_heads


def slopes(case: Case) -> None:
    conventions = {"official": ("paper", torch.float64), "bloom": ("paper", torch.float32), "mpt": ("mpt", torch.float32)}
    if case.has("heads"):
        case.check("heads", torch.tensor(case.setting("heads")))
    for name in case.arrays:
        found = re.fullmatch(r"(official|bloom|mpt)_h(\d+)", name)
        if found:
            convention, dtype = conventions[found[1]]
            case.check(name, alibi_slopes(int(found[2]), convention=convention).to(dtype))


def official_mask(case: Case) -> None:
    """The repository stores slope · j in float32, one row for all queries, heads fastest in the batch."""
    heads, length, batch = case.setting("heads"), case.setting("tokens_per_sample"), case.setting("batch")
    module = ALiBi(heads, form="key_index")
    case.check("slopes", module.slopes.float())
    case.check("alibi", biases(module, AttentionGeometry.decode(length - 1))[0].repeat(batch, 1, 1))
    geometry = AttentionGeometry.causal_self(length)
    case.check("mask", hidden(biases(module, geometry), geometry)[0].repeat(batch, 1, 1))
    case.check("canonical_bias", biases(ALiBi(heads), geometry, torch.float64).expand(batch, -1, -1, -1))


def torch_attention(case: Case) -> None:
    """torch.nn.MultiheadAttention with that mask, sequence first."""
    x, heads = case.take("x", grad=True), case.setting("H")
    weights = {name: case.take(name, grad=True) for name in ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")}
    geometry = AttentionGeometry.causal_self(x.shape[0])
    module = ALiBi(heads, form="key_index", rounded=torch.float32)
    case.check("mask", hidden(biases(module, geometry), geometry)[0].repeat(x.shape[1], 1, 1))
    q, k, v = project(x.transpose(0, 1), weights["in_proj_weight"], weights["in_proj_bias"]).chunk(3, -1)
    mixed, trace = attend(*(split_heads(t, heads) for t in (q, k, v)), module(geometry), geometry, return_trace=True)
    out = project(merge_heads(mixed), weights["out_proj_weight"], weights["out_proj_bias"]).transpose(0, 1)
    case.check("attn_probs", trace.probabilities)
    case.check("out", out)
    case.check_gradients(out, {"grad_x": x, **{f"grad_{name}": w for name, w in weights.items()}})


def transformers_tensor(case: Case) -> None:
    """BLOOM's and Falcon's build_alibi_tensor: slope · (how many tokens came before), 0 at padding, [B, H, 1, T]."""
    heads, positions = case.setting("heads"), counted(case.take("attention_mask"))
    module, newest = ALiBi(heads, form="key_index"), positions.amax(-1, keepdim=True)
    geometry = AttentionGeometry(newest, positions, causal=True)
    bloom = biases(module, geometry)
    case.check("alibi_f32", bloom)
    case.check("alibi_bf16", bloom.bfloat16())
    falcon = case.source.get("file", "").endswith("modeling_falcon.py")
    rounded = biases(ALiBi(heads, form="key_index", rounded=torch.bfloat16), geometry)
    case.check("falcon_alibi", rounded)
    case.check("alibi", rounded if falcon else bloom)


def mpt_tensor(case: Case) -> None:
    heads = case.setting("heads")
    slopes_of_release = alibi_slopes(heads, convention="mpt", bias_max=case.setting("alibi_bias_max", default=8))
    module = ALiBi(heads, form="key_minus_last", slopes=slopes_of_release)
    case.check("alibi", biases(module, AttentionGeometry.decode(case.setting("seq") - 1))[0])


def bloom_attention(case: Case) -> None:
    active = case.take("attention_mask") == 1
    visible = causal_and_active(active)
    case.check("visible", visible[:, None])
    block(case, active, visible, ALiBi(case.setting("H"), form="key_index", rounded=torch.float32))


def falcon_attention(case: Case) -> None:
    """The bias is inside the scale and made in bfloat16."""
    visible = case.take("visible")[:, 0]
    active = (case.take("attention_mask") == 1) if case.has("attention_mask") else active_keys(case, visible)
    block(case, active, visible, ALiBi(case.setting("H"), form="key_index", inside_scale=True, rounded=torch.bfloat16))


def block(case: Case, active: Tensor, visible: Tensor, module: ALiBi) -> None:
    """q, k, v with biases, attention, output projection, no residual."""
    x = case.take("x", grad=True)
    leaves = {name: case.take(name, grad=True) for name in ("Wq", "Wk", "Wv", "Wo", "bq", "bk", "bv", "bo")}
    positions = counted(active)
    term = module(AttentionGeometry(positions, positions, causal=True))
    # The counted coordinates of padding repeat, so the order of storage decides what is visible.
    geometry = AttentionGeometry(positions, positions, allowed=visible, mode="causal")
    q, k, v = (split_heads(project(x, leaves[f"W{n}"], leaves[f"b{n}"]), module.slopes.numel()) for n in "qkv")
    mixed, trace = attend(q, k, v, term, geometry, return_trace=True)
    out = project(merge_heads(mixed), leaves["Wo"], leaves["bo"])
    case.check("alibi", trace.bias[:, :, -1:])
    case.check("attn_probs", trace.probabilities)
    case.check("out", out)
    case.check_gradients(out, {"grad_x": x, **{f"grad_{name}": leaf for name, leaf in leaves.items()}})


def x_transformers(case: Case) -> None:
    """−slope · |distance|, with the queries at the end of the keys."""
    queries, keys = case.setting("q_len"), case.setting("k_len")
    geometry = AttentionGeometry(torch.arange(keys - queries, keys), torch.arange(keys))
    x_transformers_bias(case, geometry, single=True)


def x_transformers_positions(case: Case) -> None:
    positions = case.take("pos")
    x_transformers_bias(case, AttentionGeometry(positions, positions), single=False)


def x_transformers_bias(case: Case, geometry: AttentionGeometry, single: bool) -> None:
    """Heads beyond ``heads`` have no bias."""
    heads, total = case.setting("heads"), case.setting("total_heads", default=case.setting("heads"))
    given = torch.cat((alibi_slopes(heads), torch.zeros(total - heads, dtype=torch.float64)))
    bias = biases(ALiBi(total, form="symmetric", slopes=given), geometry)
    case.check("slopes", alibi_slopes(heads).float())
    case.check("bias", bias[0] if single else bias)


def counted(mask: Tensor) -> Tensor:
    """Coordinates that count tokens and are 0 at padding."""
    return position_ids_from_mask(mask, "generation_v5")


def causal_and_active(active: Tensor) -> Tensor:
    """What BLOOM shows: earlier tokens and, always, the row itself."""
    length = active.shape[1]
    return AttentionGeometry.causal_self(length, key_active=active).visible | torch.eye(length, dtype=torch.bool)


def active_keys(case: Case, visible: Tensor) -> Tensor:
    """The token mask behind ``visible``: padding is read by no later row. The last key has no later row; the stored bias settles it,
    being 0 at padding only, unless it is the first token."""
    length = visible.shape[1]
    active = torch.zeros(visible.shape[0], length, dtype=torch.bool)
    for key in range(length - 1):
        active[:, key] = visible[:, key + 1 :, key].any(-1)
    last = torch.from_numpy(case.arrays["alibi"])[:, :, 0, -1].ne(0).any(-1) if case.has("alibi") else True
    active[:, -1] = last | ~active.any(-1)
    return active


def biases(module: ALiBi, geometry: AttentionGeometry, dtype: torch.dtype = torch.float32) -> Tensor:
    return module(geometry).materialize(geometry.query_positions, geometry.key_positions, dtype=dtype)


def hidden(bias: Tensor, geometry: AttentionGeometry) -> Tensor:
    """The additive form of the repository: −∞ where the key is not visible."""
    return bias.masked_fill(~geometry.visible, -math.inf)


SOURCES = [
    ("fairseq/models/transformer.py", "get_slopes", slopes),
    ("fairseq/models/transformer.py", "alibi construction", official_mask),
    ("fairseq/models/transformer.py", "buffered_future_mask", torch_attention),
    ("modeling_bloom.py", "build_alibi_tensor", transformers_tensor),
    ("modeling_falcon.py", "build_alibi_tensor", transformers_tensor),
    ("modeling_mpt.py", "build_mpt_alibi_tensor", mpt_tensor),
    ("modeling_bloom.py", "BloomAttention", bloom_attention),
    ("modeling_falcon.py", "FalconAttention", falcon_attention),
    ("x_transformers.py", "AlibiPositionalBias.forward_custom_pos", x_transformers_positions),
    ("x_transformers.py", "AlibiPositionalBias", x_transformers),
]
