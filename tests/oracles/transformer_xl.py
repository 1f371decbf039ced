"""Transformer-XL's relative shift, attention layer and segment recurrence. The source is time first: [Q, B, D], [Q, K, B, H]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, relu

from positionlib import AttentionGeometry, SegmentMemory, TransformerXL, attend
from positionlib.mechanisms.transformer_xl import relative_shift
from positionlib.terms import Decomposition
from tests.oracles.case import Case
from tests.oracles.heads import merge_heads, project, split_heads


def shift(case: Case) -> None:
    x = case.take("x").permute(2, 3, 0, 1)
    case.check("y", released(relative_shift(x, beyond="leftovers")))
    case.check("y_zero_triu", released(relative_shift(x, beyond="zero")))
    case.check("valid", ~relative_shift(x)[0, 0].isnan())


def attention(case: Case) -> None:
    """One layer behind a memory. With pre_lnorm the memory rows are normalised too, and the output is not."""
    w, mems, heads, pre = case.take("w", grad=True), case.take("mems"), case.setting("H"), case.setting("pre")
    norm = (w.shape[-1:], case.take("ln_weight"), case.take("ln_bias"), case.setting("ln_eps"))
    module = TransformerXL(w.shape[-1], heads, case.setting("dh"), clamp_len=clamp(case)).to(w.dtype)
    module.load_state_dict({"weight": case.take("r_weight"), "content_bias": case.take("r_w_bias"), "position_bias": case.take("r_r_bias")})
    memory = SegmentMemory(1, mems.shape[0], "time_first", states=(mems,) if len(mems) else ())
    geometry = memory.geometry(len(w))
    case.check("mask", ~geometry.visible)
    rows = memory.extend(0, w)
    q, k, v = (split_heads(t.transpose(0, 1), heads) for t in project(layer_norm(rows, *norm) if pre else rows, case.take("qkv_weight")).chunk(3, -1))
    q, term = q[:, :, len(mems) :], module(geometry)
    parts = term.parts(q, k, geometry.query_positions, geometry.key_positions)
    case.check("AC", released(parts["a"] + parts["c"]))
    # The compact product by the library's own rows, the aligned one by the stored rows: each shows that the others are right.
    case.check("BD_compact", released(term.compact(q, case.take("pos_seq").long())))
    stored = case.take("r")[:, 0] @ term.projection.mT
    case.check("BD", released(relative_shift((q + term.position_bias[:, None]) @ stored.mT, beyond="leftovers")))
    heads_out, trace = attend(q, k, v, term, geometry, return_trace=True)
    case.check("attn_prob", released(trace.probabilities))
    out = w + project(merge_heads(heads_out), case.take("o_weight")).transpose(0, 1)
    out = out if pre else layer_norm(out, *norm)
    case.check("out_f64", out)
    case.check("out", out)
    case.check_gradients(out, {"grad_w": w, "grad_r_weight": module.weight, "grad_r_w_bias": module.content_bias, "grad_r_r_bias": module.position_bias})


def segments(case: Case) -> None:
    """Several segments, each reading what the library's memory kept of the ones before."""
    layers, heads = case.setting("L"), case.setting("H")
    params = {name.removeprefix("param."): case.take(name) for name in case.arrays if name.startswith("param.")}
    words = params["word_emb.emb_layers.0.weight"]
    stack: list[TransformerXL] = []
    for layer in range(layers):
        module = TransformerXL(words.shape[1], heads, case.setting("dh"), clamp_len=clamp(case), tie_to=stack[0] if stack else None).to(words.dtype)
        module.load_state_dict({"weight": params[f"layers.{layer}.dec_attn.r_net.weight"], "content_bias": params["r_w_bias"], "position_bias": params["r_r_bias"]})
        stack.append(module)
    memory = SegmentMemory(layers + 1, case.setting("mem"), "time_first", case.setting("ext"), "released")
    with torch.no_grad():
        for segment in range(len(case.setting("segs"))):
            x = words[case.take(f"seg{segment}.ids")] * words.shape[1] ** 0.5
            case.check(f"seg{segment}.emb", x)
            geometry, states = memory.geometry(len(x), same_length=case.setting("same")), [x]
            for layer, module in enumerate(stack):
                own = {name.removeprefix(f"layers.{layer}."): value for name, value in params.items() if name.startswith(f"layers.{layer}.")}
                x = decoder_layer(x, memory.extend(layer, x), module, geometry, own, case.setting("ln_eps"))
                states.append(x)
            memory = memory.update(states)
            case.check(f"seg{segment}.out", x)
            case.check(f"seg{segment}.mems", torch.stack(memory.states))


def decoder_layer(x: Tensor, rows: Tensor, module: TransformerXL, geometry: AttentionGeometry, own: dict[str, Tensor], eps: float) -> Tensor:
    """Attention and feed-forward, each with its residual and a normalisation behind it."""
    q, k, v = (split_heads(t.transpose(0, 1), len(module.content_bias)) for t in project(rows, own["dec_attn.qkv_net.weight"]).chunk(3, -1))
    mixed = merge_heads(attend(q[:, :, -len(x) :], k, v, Rounded(exact=module(geometry)), geometry)).transpose(0, 1)
    x = layer_norm(x + project(mixed, own["dec_attn.o_net.weight"]), x.shape[-1:], own["dec_attn.layer_norm.weight"], own["dec_attn.layer_norm.bias"], eps)
    inner = relu(project(x, own["pos_ff.CoreNet.0.weight"], own["pos_ff.CoreNet.0.bias"]))
    y = x + project(inner, own["pos_ff.CoreNet.3.weight"], own["pos_ff.CoreNet.3.bias"])
    return layer_norm(y, x.shape[-1:], own["pos_ff.layer_norm.weight"], own["pos_ff.layer_norm.bias"], eps)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rounded(Decomposition):
    """The source takes masked scores through float32 before its softmax, whatever the model's dtype."""

    exact: Decomposition

    def scores(self, q, k, query_positions, key_positions, scale):
        return self.exact.scores(q, k, query_positions, key_positions, scale).float().to(q.dtype)


def clamp(case: Case) -> int | None:
    """The source's "clamp_len > 0"."""
    stated = case.setting("clamp")
    return stated if stated > 0 else None


def released(scores: Tensor) -> Tensor:
    """[B, H, Q, K] as the source has it."""
    return scores.permute(2, 3, 0, 1)


SOURCES = [
    ("mem_transformer.py", "RelMultiHeadAttn._rel_shift", shift),
    ("mem_transformer.py", "RelPartialLearnableMultiHeadAttn", attention),
    ("mem_transformer.py", "MemTransformerLM._forward", segments),
]
