"""TUPE's sentence encoder: the position bias of the library inside the source's layers, which are built here."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from positionlib import TUPE, AttentionGeometry, T5Buckets, attend
from tests.oracles.case import Case
from tests.oracles.heads import merge_heads, project, split_heads

# the source's name -> the module's
NAMES = {"pos.weight": "weight", "pos_ln.weight": "norm.weight", "pos_ln.bias": "norm.bias", "pos_q_linear.weight": "query_proj.weight",
         "pos_q_linear.bias": "query_proj.bias", "pos_k_linear.weight": "key_proj.weight", "pos_k_linear.bias": "key_proj.bias",
         "relative_attention_bias.weight": "relative_weight"}


def encoder(case: Case) -> None:
    weights = {name.removeprefix("param."): case.take(name, grad=True) for name in case.arrays if name.startswith("param.")}
    tokens, heads = case.take("tokens"), case.setting("H")
    length, d_model = tokens.shape[1], weights["pos.weight"].shape[1]
    rule = T5Buckets(case.setting("bins"), case.setting("mrel"), True, "transformers") if case.setting("rel") else None
    module = TUPE(heads, d_model, case.setting("max"), relative=rule).to(weights["pos.weight"].dtype)
    module.norm.eps = case.setting("ln_eps")
    active = tokens != case.setting("padding_idx")
    geometry = AttentionGeometry.encoder(length, key_active=active)
    named = {ours: weights[theirs] for theirs, ours in NAMES.items() if theirs in weights}
    rows = torch.arange(length + 1)
    parts = torch.func.functional_call(Both(module), {f"module.{name}": leaf for name, leaf in named.items()}, (rows, geometry))
    case.check("raw_position_scores", parts[0])
    term = parts[1]
    case.check("position_bias", term.bias[0])
    if rule is not None:
        classes = module.buckets(geometry.query_positions, geometry.key_positions)
        case.check("rp_bucket", classes)
        case.check("rel_pos_bias", named["relative_weight"][classes].movedim(-1, 0))
    pre = bool(case.setting("nb"))
    x = F.embedding(tokens, weights["embed_tokens.weight"], padding_idx=case.setting("padding_idx"))
    x = norm(case, weights, "emb_layer_norm", x) * active[..., None]
    case.check("layer_input0", x.transpose(0, 1))
    for layer in range(case.setting("L")):
        state, x = x, one_layer(case, weights, f"layers.{layer}.", x, term, geometry, heads, pre)
        case.check(f"layer{layer}_x", state.transpose(0, 1))
    out = x.transpose(0, 1)
    case.check("out", out)
    case.check("sentence_rep", (norm(case, weights, "emb_out_layer_norm", x) if pre else x)[:, 0])
    case.check_gradients(term.bias, {f"grad_bias.{name}": leaf for name, leaf in weights.items()})
    case.check_gradients(out, {f"grad_out.{name}": leaf for name, leaf in weights.items()})


class Both(torch.nn.Module):
    """The raw row scores and the term, from one set of weights."""

    def __init__(self, module: TUPE) -> None:
        super().__init__()
        self.module = module

    def forward(self, rows: Tensor, geometry: AttentionGeometry):
        return self.module.row_scores(rows, rows), self.module(geometry)


def one_layer(case: Case, weights: dict[str, Tensor], at: str, x: Tensor, term, geometry: AttentionGeometry, heads: int, pre: bool) -> Tensor:
    """Attention and feed-forward, with the norm before (pre) or after each residual."""
    for step, gain in ((attended, "self_attn_layer_norm"), (fed_forward, "final_layer_norm")):
        inner = step(weights, at, norm(case, weights, at + gain, x) if pre else x, term, geometry, heads)
        x = x + inner if pre else norm(case, weights, at + gain, x + inner)
    return x


def attended(weights: dict[str, Tensor], at: str, x: Tensor, term, geometry: AttentionGeometry, heads: int) -> Tensor:
    qkv = project(x, weights[f"{at}self_attn.in_proj_weight"], weights[f"{at}self_attn.in_proj_bias"]).chunk(3, -1)
    mixed = attend(*(split_heads(t, heads) for t in qkv), term, geometry)
    return project(merge_heads(mixed), weights[f"{at}self_attn.out_proj.weight"], weights[f"{at}self_attn.out_proj.bias"])


def fed_forward(weights: dict[str, Tensor], at: str, x: Tensor, *_: object) -> Tensor:
    return project(F.gelu(project(x, weights[f"{at}fc1.weight"], weights[f"{at}fc1.bias"])), weights[f"{at}fc2.weight"], weights[f"{at}fc2.bias"])


def norm(case: Case, weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], case.setting("ln_eps"))


SOURCES = [("transformer_sentence_encoder.py", "TransformerSentenceEncoder", encoder)]
