"""The authors' own code, as recorded in ``tests/fixtures``: a state dict under its names, converted, against what that code answered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import positionlib as pl
from positionlib.checkpoints import Conversion, convert
from positionlib.mechanisms.deberta import DisentangledIndex
from tests.checkpoints.conversions import EXACT, NEAR, Proof, difference, recorded

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
ENTRIES = {entry["case"]: entry for entry in json.loads((FIXTURES / "manifest.json").read_text("utf-8"))["entries"]}


def case(name: str) -> tuple[dict, dict[str, Tensor]]:
    """Settings and arrays of a recorded run."""
    with np.load(FIXTURES / ENTRIES[name]["file"]) as arrays:
        return ENTRIES[name]["settings"], {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def parameters(arrays: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    return {prefix + name.removeprefix("param."): tensor for name, tensor in arrays.items() if name.startswith("param.")}


def apart(got: Tensor, want: Tensor) -> float:
    return float((got - want).detach().abs().max() / want.abs().max())


def proof(label: str, conversion: Conversion, found: dict[str, float], bound: float = EXACT, **others: float) -> Proof:
    return Proof(label, conversion, found, {part: others.get(part, bound) for part in found})


def normed(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)


def transformer_xl(name: str = "model_segments_L2_mem5_ext0_clamp-1_same0") -> Proof:
    """Every segment of a model with memory; the feed-forward part, which is no position's, is built here."""
    s, z = case(name)
    state = parameters(z) | {"pos_emb.inv_freq": 10_000.0 ** -(torch.arange(0, s["D"], 2) / s["D"])}
    config = {"n_token": s["n_token"], "n_layer": s["L"], "n_head": s["H"], "d_model": s["D"], "d_head": s["dh"], "d_inner": s["inner"], "d_embed": s["D"],
              "clamp_len": s["clamp"], "pre_lnorm": False}
    conversion = convert(state, config, family="transformer-xl")
    memory = pl.SegmentMemory(s["L"] + 1, s["mem"], "time_first", s["ext"], "released")
    found = {}
    for segment in range(len(s["segs"])):
        x, kept = z[f"seg{segment}.emb"], []
        geometry = memory.geometry(len(x))
        for n in range(s["L"]):
            kept.append(x)
            module, rows = conversion[f"attention.{n}"], memory.extend(n, x).transpose(0, 1)
            sides = (module.q, rows[:, -len(x) :]), (module.k, rows), (module.v, rows)
            q, k, v = (part(of).unflatten(-1, (s["H"], -1)).transpose(1, 2) for part, of in sides)
            mixed = pl.attend(q, k, v, module.mechanism(geometry), geometry).transpose(1, 2).flatten(2)
            x = module.norm(x + module.o(mixed).transpose(0, 1))
            at = f"layers.{n}.pos_ff."
            inner = F.relu(F.linear(x, state[f"{at}CoreNet.0.weight"], state[f"{at}CoreNet.0.bias"]))
            x = normed(state, f"{at}layer_norm", x + F.linear(inner, state[f"{at}CoreNet.3.weight"], state[f"{at}CoreNet.3.bias"]))
        found[f"segment {segment}"] = apart(x, z[f"seg{segment}.out"])
        memory = memory.update([*kept, x])
    return proof("transformer-xl", conversion, found, NEAR)  # the source casts masked scores to float32


def transformer_xl_layer(name: str) -> Proof:
    """One layer with memory, in float64 throughout: what the recorded module's own sub-layers give without the cast."""
    s, z = case(name)
    at, width = "layers.0.", s["D"]
    own = {f"{part}_net.weight": f"{part}_weight" for part in ("qkv", "r", "o")} | {f"layer_norm.{kind}": f"ln_{kind}" for kind in ("weight", "bias")}
    state = {f"{at}dec_attn.{theirs}": z[mine] for theirs, mine in own.items()} | {"r_w_bias": z["r_w_bias"], "r_r_bias": z["r_r_bias"]}
    shapes = {"CoreNet.0.weight": (5, width), "CoreNet.0.bias": (5,), "CoreNet.3.weight": (width, 5), "CoreNet.3.bias": (width,), "layer_norm.weight": (width,),
              "layer_norm.bias": (width,)}
    state |= {f"{at}pos_ff.{part}": torch.ones(shape, dtype=torch.float64) for part, shape in shapes.items()}
    state["word_emb.emb_layers.0.weight"] = torch.ones(11, width, dtype=torch.float64)
    config = {"n_token": 11, "n_layer": 1, "n_head": s["H"], "d_model": width, "d_head": s["dh"], "d_inner": 5, "d_embed": width, "clamp_len": s["clamp"],
              "pre_lnorm": s["pre"]}
    conversion = convert(state, config, family="transformer-xl")
    module, rows = conversion["attention.0"], torch.cat((z["mems"], z["w"])).transpose(0, 1)
    read = F.layer_norm(rows, (width,), z["ln_weight"], z["ln_bias"], 1e-5) if s["pre"] else rows
    geometry = pl.AttentionGeometry(torch.arange(s["m"], s["m"] + s["q"]), torch.arange(s["m"] + s["q"]), causal=True)
    q, k, v = (part(of).unflatten(-1, (s["H"], -1)).transpose(1, 2) for part, of in ((module.q, read[:, s["m"] :]), (module.k, read), (module.v, read)))
    out = rows[:, s["m"] :] + module.o(pl.attend(q, k, v, module.mechanism(geometry), geometry).transpose(1, 2).flatten(2))
    out = out if s["pre"] else module.norm(out)
    return proof(f"transformer-xl, {'before' if s['pre'] else 'after'} the norm", conversion, {"layer": apart(out.transpose(0, 1), z["out_f64"])})


def tupe(name: str) -> Proof:
    """Every layer of the sentence encoder, real tokens alone; the feed-forward part is built here."""
    s, z = case(name)
    state = parameters(z)
    config = {"embedding_dim": s["D"], "num_attention_heads": s["H"], "ffn_embedding_dim": s["ffn"], "num_encoder_layers": s["L"], "vocab_size": s["vocab"],
              "max_seq_len": s["max"], "rel_pos": s["rel"], "rel_pos_bins": s["bins"], "max_rel_pos": s["mrel"], "encoder_normalize_before": s["nb"],
              "embedding_normalize": True}
    conversion = convert(state, config, family="tupe")
    real = z["tokens"] != s["padding_idx"]
    geometry, x, found = pl.AttentionGeometry.encoder(s["T"], key_active=real), z["layer_input0"].transpose(0, 1), {}
    found["position_bias"] = apart(conversion["attention.0"].mechanism(geometry).bias[0], z["position_bias"])
    for n in range(s["L"]):
        at, module = f"layers.{n}.", conversion[f"attention.{n}"]
        gain = f"{at}self_attn_layer_norm"
        x = x + module(normed(state, gain, x), geometry) if s["nb"] else normed(state, gain, x + module(x, geometry))
        fed = normed(state, f"{at}final_layer_norm", x) if s["nb"] else x
        fed = F.linear(F.gelu(F.linear(fed, state[f"{at}fc1.weight"], state[f"{at}fc1.bias"])), state[f"{at}fc2.weight"], state[f"{at}fc2.bias"])
        x = x + fed if s["nb"] else normed(state, f"{at}final_layer_norm", x + fed)
    found["out"] = apart(x[real], z["out"].transpose(0, 1)[real])
    return proof(f"tupe, {name[0]}", conversion, found)


def graphormer(name: str = "two_undirected") -> Proof:
    """Bias and degree rows of every graph of a batch."""
    s, z = case(name)
    conversion, single = graphormer_weights(s, z), s["et"] == "single"
    found = {}
    for number, (nodes, listed, directed) in enumerate(s["graphs"]):
        pairs = torch.tensor(listed if directed else [*listed, *([b, a] for a, b in listed)])
        graph = pl.Graph.from_edges(nodes, pairs.tolist())
        graph = replace(graph, in_degree=graph.out_degree)  # the release reads one direction's degree for both tables
        edges, size = z["attn_edge_type"][number, pairs[:, 0], pairs[:, 1]], torch.arange(nodes + 1)
        bias = conversion["attention.0"].mechanism(graph, edges).materialize(size, size, torch.float64)[0]
        found[f"bias {number}"] = apart(bias, z["bias_without_mask"][number, :, : nodes + 1, : nodes + 1])
        atoms = F.embedding(z["x"][number, :nodes], z["param.node.atom_encoder.weight"]).sum(1)
        found[f"nodes {number}"] = apart(conversion["degrees"](graph).add_to(atoms), z["node_feature"][number, 1 : nodes + 1])
    return proof(f"graphormer, {'single' if single else 'multi_hop'}", conversion, found)


def graphormer_weights(s: dict, z: dict[str, Tensor], **changes: Tensor) -> Conversion:
    """The recorded modules' weights with the rest of a model of one layer; distances that the run never looked up have random rows."""
    heads, width, inner, weights = s["H"], s["D"], 5, parameters(z)
    spatial = torch.randn(512, heads, dtype=torch.float64)
    spatial[z["spatial_ids_used"]] = z["spatial_rows_used"]
    state = {name.replace("node.", "graph_node_feature.").replace("bias.", "graph_attn_bias.", 1) if name.startswith("bias.") else
             name.replace("node.", "graph_node_feature."): tensor for name, tensor in weights.items()} | {"graph_attn_bias.spatial_pos_encoder.weight": spatial}
    shapes = {f"self_attn.{p}_proj": (width, width) for p in ("q", "k", "v", "out")} | {"fc1": (inner, width), "fc2": (width, inner)}
    for part, shape in shapes.items():
        state |= {f"layers.0.{part}.weight": torch.randn(shape, dtype=torch.float64), f"layers.0.{part}.bias": torch.randn(shape[0], dtype=torch.float64)}
    for part in ("self_attn_layer_norm", "final_layer_norm"):
        state |= {f"layers.0.{part}.{kind}": torch.randn(width, dtype=torch.float64) for kind in ("weight", "bias")}
    rows = {name: len(weights[f"{name}.weight"]) for name in ("node.atom_encoder", "node.in_degree_encoder", "node.out_degree_encoder", "bias.edge_encoder")}
    config = {"embedding_dim": width, "num_attention_heads": heads, "ffn_embedding_dim": inner, "num_encoder_layers": 1,
              "num_atoms": rows["node.atom_encoder"] - 1, "num_edges": rows["bias.edge_encoder"] - 1, "num_spatial": 512,
              "num_in_degree": rows["node.in_degree_encoder"], "num_out_degree": rows["node.out_degree_encoder"], "num_edge_dis": s["ned"],
              "edge_type": s["et"], "multi_hop_max_dist": s["hop"], "encoder_normalize_before": False}
    return convert(state | changes, config, family="graphormer")


def deberta_official(name: str) -> Proof:
    """One layer of the authors' attention: the recorded module ends before its output projection, which is random here."""
    s, z = case(name)
    width, inner, gen = s["D"], 5, torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    at = "deberta.encoder.layer.0."
    state = parameters(z, f"{at}attention.self.") | {"deberta.encoder.rel_embeddings.weight": z["rel_embeddings"]}
    for part, shape in (("attention.output.dense", (width, width)), ("intermediate.dense", (inner, width)), ("output.dense", (width, inner))):
        state |= {f"{at}{part}.weight": drawn(*shape), f"{at}{part}.bias": drawn(shape[0])}
    for part in (f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm", "deberta.embeddings.LayerNorm"):
        state |= {f"{part}.{kind}": drawn(width) for kind in ("weight", "bias")}
    state |= {"deberta.embeddings.word_embeddings.weight": drawn(11, width), "deberta.embeddings.position_embeddings.weight": drawn(16, width)}
    config = {"hidden_size": width, "num_attention_heads": s["H"], "num_hidden_layers": 1, "intermediate_size": inner, "vocab_size": 11, "type_vocab_size": 0,
              "max_position_embeddings": 16, "layer_norm_eps": 1e-7, "relative_attention": True, "position_buckets": s["buckets"], "share_att_key": s["share"],
              "max_relative_positions": s["maxrel"], "pos_att_type": s["types"], "position_biased_input": False}
    conversion = convert(state, config, family="deberta-official")
    module, seen = conversion["attention.0"], []
    if s["buckets"] > 0:  # the recording machine's logarithm fills the one cell that a correctly rounded one does not
        module.mechanism.rule = DisentangledIndex(s["maxrel"], s["buckets"], "official", True)
    module.o.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    active = z["attention_mask"] == 1
    module(z["x"], pl.AttentionGeometry.encoder(s["L"], key_active=active))
    rows = conversion["positions"](pl.AttentionGeometry.encoder(4)).rows
    found = {"attention": apart(seen[0][active], z["out"][active]),
             "mask decoder's rows": apart(rows, state["deberta.embeddings.position_embeddings.weight"][:4])}
    return proof("deberta-official" + (", buckets" if s["buckets"] > 0 else ""), conversion, found)


def t5x_weights() -> tuple[dict[str, Tensor], dict, dict]:
    """The recorded T5 in T5X's layout: kernels turned, one table [heads, buckets] a stack."""
    made, state = recorded("t5"), {}
    short, c = {"q": "query", "k": "key", "v": "value", "o": "out"}, made.config
    for name, tensor in made.state.items():
        stack, *rest = name.removesuffix(".weight").split(".")
        if "relative_attention_bias" in name:
            state[f"{stack}/relpos_bias/rel_embedding"] = tensor.T.contiguous()
        elif rest[:1] == ["block"] and rest[-1] in short:
            own = "encoder_decoder_attention" if "EncDecAttention" in rest else "attention" if stack == "encoder" else "self_attention"
            state[f"{stack}/layers_{rest[1]}/{own}/{short[rest[-1]]}/kernel"] = tensor.T.contiguous()
        elif rest[:1] == ["block"] and "DenseReluDense" in rest:
            state[f"{stack}/layers_{rest[1]}/mlp/{rest[-1]}/kernel"] = tensor.T.contiguous()
        elif rest[:1] == ["block"]:
            norms = ("attention", "mlp") if stack == "encoder" else ("self_attention", "cross_attention", "mlp")
            state[f"{stack}/layers_{rest[1]}/pre_{norms[int(rest[3])]}_layer_norm/scale"] = tensor
        elif rest == ["final_layer_norm"]:
            state[f"{stack}/{stack}_norm/scale"] = tensor
    state["token_embedder/embedding"] = made.state["shared.weight"]
    config = {"emb_dim": c["d_model"], "num_heads": c["num_heads"], "head_dim": c["d_kv"], "mlp_dim": c["d_ff"], "vocab_size": c["vocab_size"],
              "num_encoder_layers": c["num_layers"], "num_decoder_layers": c["num_decoder_layers"], "num_buckets": c["relative_attention_num_buckets"],
              "max_distance": c["relative_attention_max_distance"], "mlp_activations": ["gelu", "linear"], "logits_via_embedding": True}
    return {f"target/{name}": tensor for name, tensor in state.items()}, config, made.calls


def t5x() -> Proof:
    """The turned T5 answers as T5 did: the two roundings of the bucket edges agree for its 8 buckets to distance 20."""
    state, config, calls = t5x_weights()
    conversion = convert(state, config, family="t5x")
    found = {part: difference(conversion, part, call) for part, call in calls.items()}
    s, z = case("bias_enc_b8_m20_h3_q5_k7_off0")
    conversion["encoder.attention.0"].mechanism.load_state_dict({"weight": z["weight_t5x"].double()})
    term = conversion["encoder.attention.0"].mechanism(pl.AttentionGeometry(torch.arange(5), torch.arange(7)))
    found["T5X's own bias"] = apart(term.materialize(torch.arange(5), torch.arange(7), torch.float32), z["bias_t5x_f32"])
    return proof("t5x", conversion, found, **{"T5X's own bias": NEAR})  # which is float32


PROOFS = (  # every recorded source and variant: what proves it, and its recorded runs
    (t5x, ()), (transformer_xl, ("model_segments_L2_mem5_ext0_clamp-1_same0",)), (transformer_xl, ("model_segments_L1_mem4_ext2_clamp3_same0",)),
    (transformer_xl_layer, ("attention_q5_m0_h2_pre_clamp-1",)), (transformer_xl_layer, ("attention_q4_m3_h2_post_clamp-1",)),
    (transformer_xl_layer, ("attention_q1_m6_h4_post_clamp4",)), (deberta_official, ("official_c2p_p2c_share0_b-1_max4_L6",)),
    (deberta_official, ("official_c2p_p2c_share1_b4_max8_L9",)), (tupe, ("A_T6_h2_L2_post",)), (tupe, ("R_T7_h3_L1_post",)), (tupe, ("R_T20_h2_L1_pre",)),
    (graphormer, ("two_undirected",)), (graphormer, ("directed_cycle",)), (graphormer, ("single_hop_type",)))
