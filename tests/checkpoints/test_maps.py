"""The weight maps against numbers recorded from the released modules, and what they refuse."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import positionlib as pl
from positionlib.checkpoints import maps

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
ENTRIES = {entry["case"]: entry for entry in json.loads((FIXTURES / "manifest.json").read_text("utf-8"))["entries"]}
NEAR = {"rtol": 1e-9, "atol": 1e-10}
RANDOM = torch.Generator().manual_seed(5)


def recorded(case: str) -> tuple[dict, dict[str, Tensor]]:
    with np.load(FIXTURES / ENTRIES[case]["file"]) as arrays:
        return ENTRIES[case]["settings"], {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=RANDOM, dtype=torch.float64)


def linears(width: int, *parts: str) -> dict[str, Tensor]:
    return {f"{part}.{kind}": random(*shape) for part in parts for kind, shape in (("weight", (width, width)), ("bias", (width,)))}


def before_output(module: nn.Module, x: Tensor, geometry: pl.AttentionGeometry) -> Tensor:
    """What the heads give the output projection: where the recorded modules end that have none."""
    seen = []
    handle = module.o.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    module(x, geometry)
    handle.remove()
    return seen[0]


def t5_config(settings: dict) -> dict:
    return {"d_model": settings["D"], "d_kv": settings["kv"], "num_heads": settings["H"], "relative_attention_num_buckets": settings["nb"],
            "relative_attention_max_distance": settings["md"]}


@pytest.mark.parametrize("case, causal", [("attention_encoder", False), ("attention_decoder", True)])
def test_t5_gives_the_recorded_outputs_and_gradients(case, causal):
    settings, z = recorded(case)
    state = {f"{name}.weight": z[f"W{name}"] for name in "qkvo"} | {"relative_attention_bias.weight": z["rel_weight"]}
    module = maps.t5_attention(state, t5_config(settings), bidirectional=not causal)
    geometry = (pl.AttentionGeometry.causal_self if causal else pl.AttentionGeometry.encoder)(settings["S"], allowed=z["visible"][:, 0])
    x = z["x"].requires_grad_()
    out = module(x, geometry)
    assert torch.allclose(out, z["out"], **NEAR)
    grads = torch.autograd.grad(out.square().sum(), [x, module.q.weight, module.mechanism.weight])
    for name, grad in zip(("grad_x", "grad_Wq", "grad_rel_weight"), grads):
        assert torch.allclose(grad, z[name], **NEAR), name


def test_a_later_layer_of_t5_reuses_the_first_layers_table():
    settings, z = recorded("attention_two_layers_shared_bias")
    states = [{f"{name}.weight": z[f"layer{layer}.{name}"] for name in "qkvo"} for layer in (0, 1)]
    first = maps.t5_attention(states[0] | {"relative_attention_bias.weight": z["rel_weight"]}, t5_config(settings), bidirectional=True)
    second = maps.t5_attention(states[1], t5_config(settings), bidirectional=True, bias=first.mechanism)
    geometry = pl.AttentionGeometry.encoder(settings["S"])
    y = first(z["x"], geometry)
    out = second(y, geometry)
    assert torch.allclose(y, z["y"], **NEAR) and torch.allclose(out, z["z"], **NEAR)
    assert torch.allclose(torch.autograd.grad(out.square().sum(), first.mechanism.weight)[0], z["grad_rel_weight"], **NEAR)


def bloom_state(z: dict[str, Tensor], heads: int, width: int) -> dict[str, Tensor]:
    """Rows of head 0's query, key, value, then of head 1's, and so on."""
    fused = {kind: torch.cat([z[f"{letter}{name}"][h * width : (h + 1) * width] for h in range(heads) for name in "qkv"])
             for kind, letter in (("weight", "W"), ("bias", "b"))}
    return {"query_key_value.weight": fused["weight"], "query_key_value.bias": fused["bias"], "dense.weight": z["Wo"], "dense.bias": z["bo"]}


def test_bloom_gives_the_recorded_outputs():
    settings, z = recorded("bloom_attention")
    heads, width = settings["H"], settings["dh"]
    module = maps.bloom_attention(bloom_state(z, heads, width), {"hidden_size": heads * width, "n_head": heads})
    for row, mask in enumerate(z["attention_mask"] == 1):  # padding counts as position 0, so the real tokens stand alone
        x, want = z["x"][row : row + 1, mask], z["out"][row : row + 1, mask]
        assert torch.allclose(module(x, pl.AttentionGeometry.causal_self(x.shape[1])), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", ["c2p_p2c_share0_b-1_max4_L6", "c2p_p2c_share1_b4_max8_L9", "c2p_share0_b-1_max3_L5"])
def test_deberta_gives_the_recorded_outputs(case):
    settings, z = recorded(f"official_{case}")
    _, released = recorded(f"hf_v2_{case}")
    width, heads = settings["D"], settings["H"]
    state = {f"self.{name.removeprefix('param.')}": tensor for name, tensor in z.items() if name.startswith("param.")}
    state |= linears(width, "output.dense") | {f"output.LayerNorm.{kind}": random(width) for kind in ("weight", "bias")}
    config = {"hidden_size": width, "num_attention_heads": heads, "layer_norm_eps": 1e-7, "relative_attention": True, "position_buckets": settings["buckets"],
              "max_relative_positions": settings["maxrel"], "pos_att_type": settings["types"], "share_att_key": settings["share"]}
    module = maps.deberta_v2_attention(state, config, maps.deberta_v2_table({"rel_embeddings.weight": z["rel_embeddings"]}, config))
    active = z["attention_mask"] == 1
    heads_out = before_output(module, z["x"], pl.AttentionGeometry.encoder(settings["L"], key_active=active))
    assert torch.allclose(heads_out[active], released["out"][active], rtol=1e-6, atol=1e-7)
    y = z["x"] + heads_out @ state["output.dense.weight"].T + state["output.dense.bias"]
    normed = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + 1e-7).sqrt()
    want = normed * state["output.LayerNorm.weight"] + state["output.LayerNorm.bias"]
    assert torch.allclose(module(z["x"], pl.AttentionGeometry.encoder(settings["L"], key_active=active)), want, **NEAR)


@pytest.mark.parametrize("case", ["bert_relative_key_L5_h2_max6", "bert_relative_key_query_L4_h3_max4"])
def test_bert_gives_the_recorded_outputs(case):
    settings, z = recorded(case)
    width = settings["D"]
    state = {f"self.{name.removeprefix('param.')}": tensor for name, tensor in z.items() if name.startswith("param.")}
    state |= linears(width, "output.dense") | {f"output.LayerNorm.{kind}": random(width) for kind in ("weight", "bias")}
    module = maps.bert_attention(state, {"hidden_size": width, "num_attention_heads": settings["H"], "layer_norm_eps": 1e-12,
                                         "max_position_embeddings": settings["P"], "position_embedding_type": settings["t"]})
    geometry = pl.AttentionGeometry.encoder(settings["L"], key_active=z["key_visible"])
    out = before_output(module, z["x"], geometry)
    assert torch.allclose(out, z["out"], **NEAR)
    assert torch.allclose(torch.autograd.grad(out.square().sum(), module.mechanism.weight)[0], z["grad_distance_embedding"], **NEAR)
    assert torch.equal(module.o.weight, state["output.dense.weight"]) and torch.equal(module.norm.bias, state["output.LayerNorm.bias"])


def bert_config(settings: dict, kind: str = "absolute") -> dict:
    return {"hidden_size": settings["D"], "vocab_size": settings["vocab"], "type_vocab_size": settings["T"], "max_position_embeddings": settings["P"],
            "pad_token_id": 0, "layer_norm_eps": settings["layer_norm_eps"], "position_embedding_type": kind}


@pytest.mark.parametrize("case", ["default", "past", "custom_ids", "custom_1row"])
def test_berts_build_order_gives_the_recorded_input(case):
    settings, z = recorded(f"bert_embeddings_{case}")
    state = {name.removeprefix("param."): tensor for name, tensor in z.items() if name.startswith("param.")}
    module = maps.bert_input({**state, "position_ids": torch.arange(settings["P"])[None]}, bert_config(settings))
    ids = z["position_ids"].expand(settings["B"], settings["n"])
    out = module(z["input_ids"], pl.AttentionGeometry(ids, ids), z["token_type_ids"])
    assert torch.equal(out, z["out"])
    leaves = {"word_embeddings.weight": module.words.weight, "position_embeddings.weight": module.positions.weight,
              "token_type_embeddings.weight": module.types.weight, "LayerNorm.weight": module.norm.weight, "LayerNorm.bias": module.norm.bias}
    for name, grad in zip(leaves, torch.autograd.grad(out.square().sum(), list(leaves.values()))):
        assert torch.allclose(grad, z[f"grad.{name}"], **NEAR), name


def test_berts_relative_types_leave_the_position_table_behind():
    settings, z = recorded("bert_embeddings_default")
    state = {name.removeprefix("param."): tensor for name, tensor in z.items() if name.startswith("param.")}
    module = maps.bert_input(state, bert_config(settings, "relative_key"))
    x = state["word_embeddings.weight"][z["input_ids"]] + state["token_type_embeddings.weight"][0]
    want = nn.functional.layer_norm(x, x.shape[-1:], state["LayerNorm.weight"], state["LayerNorm.bias"], settings["layer_norm_eps"])
    assert torch.equal(module(z["input_ids"], pl.AttentionGeometry.encoder(settings["n"])), want)


def test_the_conformers_scores_by_a_loop():
    heads, d, n = 3, 4, 5
    width = heads * d
    state = linears(width, "linear_q", "linear_k", "linear_v", "linear_out")
    state |= {"linear_pos.weight": random(width, width), "pos_bias_u": random(heads, d), "pos_bias_v": random(heads, d)}
    module = maps.conformer_attention(state, {"hidden_size": width, "num_attention_heads": heads, "position_embeddings_type": "relative"})
    x = random(1, n, width)
    q, k, v = (x[0] @ state[f"linear_{name}.weight"].T + state[f"linear_{name}.bias"] for name in "qkv")
    mixed = torch.zeros(n, width, dtype=torch.float64)
    for h in range(heads):
        own = slice(h * d, (h + 1) * d)
        for i in range(n):
            scores = []
            for j in range(n):
                # Positive where the key is to the left; sines at even channels, cosines at odd ones.
                wave = torch.tensor([(math.cos if c % 2 else math.sin)((i - j) * 10_000 ** (-(c - c % 2) / width)) for c in range(width)], dtype=torch.float64)
                r = (state["linear_pos.weight"] @ wave)[own]
                scores.append(((q[i, own] + state["pos_bias_u"][h]) @ k[j, own] + (q[i, own] + state["pos_bias_v"][h]) @ r) / math.sqrt(d))
            mixed[i, own] = torch.stack(scores).softmax(0) @ v[:, own]
    want = mixed @ state["linear_out.weight"].T + state["linear_out.bias"]
    assert torch.allclose(module(x, pl.AttentionGeometry.encoder(n))[0], want, **NEAR)


def test_debertas_rows_go_through_the_encoders_norm_where_the_config_says_so():
    config = {"hidden_size": 6, "relative_attention": True, "position_buckets": -1, "max_relative_positions": -1, "max_position_embeddings": 4,
              "norm_rel_ebd": " Layer_Norm", "layer_norm_eps": 1e-3}
    state = {"rel_embeddings.weight": random(8, 6), "LayerNorm.weight": random(6), "LayerNorm.bias": random(6)}
    rows = state["rel_embeddings.weight"]
    want = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, unbiased=False, keepdim=True) + 1e-3).sqrt() * state["LayerNorm.weight"] + state["LayerNorm.bias"]
    assert torch.allclose(maps.deberta_v2_table(state, config), want, **NEAR)
    with pytest.raises(pl.PositionContractError, match="LayerNorm.weight is unexpected; LayerNorm.bias is unexpected"):
        maps.deberta_v2_table(state, config | {"norm_rel_ebd": "none"})
