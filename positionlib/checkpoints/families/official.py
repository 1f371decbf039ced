"""The authors' own names: Transformer-XL (kimiyoung/transformer-xl), TUPE (guolinke/TUPE), Graphormer (microsoft/Graphormer).

    family            revision that ran    owner of the position state                 scale      special rows
    transformer-xl    44781ed              u, v: the model; r_net: each layer          √d         –
    tupe              4c64ff7              pos, pos_ln, pos_q_linear, pos_k_linear     √(2d)      rows 0 and 1, the CLS buckets
    graphormer        ac154fe              graph_attn_bias, graph_node_feature         √d         the graph token, rows 0 and 511

Names and shapes are those of the recorded runs in ``tests/fixtures``. Later revisions hold other tensors (TUPE's 000ded0 has one pos_proj
for both), which are refused by name. ``config`` holds the constructor's arguments under their own names.
"""

from __future__ import annotations

from collections.abc import Mapping

from positionlib.checkpoints.conversion import Conversion, Plan
from positionlib.checkpoints.families.common import Assignment, affine, buckets, each_layer, stated
from positionlib.checkpoints.state import counts, fields, filled, inverse_frequencies, layered, linears, norm, only, switch
from positionlib.errors import require, require_choice, require_count, whole_number
from positionlib.layers import SelfAttention
from positionlib.mechanisms import TUPE, GraphBias, GraphDegrees, GraphPath, TransformerXL
from positionlib.rules import T5Buckets

UNREACHABLE = 511  # id of the pairs without a path; distance d has id d + 1, and id 0 is padding


def transformer_xl(config: Mapping, assignment: Assignment) -> Plan:
    """Transformer-XL's default attention. The memory is no checkpoint's: see :class:`positionlib.SegmentMemory`."""
    only(config, attn_type=0, div_val=1, untie_r=False)
    d_model, heads, d_head, inner, layers, words = counts(config, "d_model", "n_head", "d_head", "d_inner", "n_layer", "n_token")
    (clamp, d_embed), before = fields(config, "clamp_len", "d_embed"), switch(config, "pre_lnorm")
    far, d_embed = whole_number(clamp), d_model if d_embed is None else require_count("config.d_embed", d_embed)
    require(far is not None, "config.clamp_len", clamp, "a whole number", "The source writes −1 for none.")
    clamp_len = far if far > 0 else None
    contract = stated("transformer-xl", "kimiyoung/transformer-xl 44781ed, pytorch/mem_transformer.py", heads, assignment, relative_sign="query_minus_key",
                      clipping_or_bucket_rule="no clamp" if clamp_len is None else f"distances clamped to {far}",
                      layer_sharing="stack", formula=f"sines, then cosines, of the distance, width {d_model}, projected by each layer's r_net",
                      generated_buffers=("pos_emb.inv_freq",))
    inside = heads * d_head
    attention = {"qkv_net.weight": (3 * inside, d_model), "r_net.weight": (inside, d_model), "o_net.weight": (d_model, inside)} | norm("layer_norm", d_model)
    rest = linears(d_model, "CoreNet.0", inner=inner) | linears(inner, "CoreNet.3", inner=d_model) | norm("layer_norm", d_model)
    tables = {"word_emb.emb_layers.0.weight": (words, d_embed)} | ({"word_emb.emb_projs.0": (d_model, d_embed)} if d_embed != d_model else {})

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        state, first = conversion.inside(f"layers.{n}.dec_attn."), conversion["attention.0"].mechanism if n else None
        mechanism = TransformerXL(d_model, heads, d_head, clamp_len=clamp_len, tie_to=first)
        own = {f"{name}.weight": part for name, part in zip("qkv", state["qkv_net.weight"].chunk(3))}
        own |= {"o.weight": state["o_net.weight"], "mechanism.weight": state["r_net.weight"], "mechanism.content_bias": conversion.state["r_w_bias"],
                "mechanism.position_bias": conversion.state["r_r_bias"]}
        if not before:
            own |= {f"norm.{kind}": state[f"layer_norm.{kind}"] for kind in ("weight", "bias")}
        return filled(SelfAttention(d_model, heads, mechanism, d_head=d_head, bias=False, post_norm=None if before else 1e-5), own, {})

    return Plan(contract=contract, generated={"pos_emb.inv_freq": inverse_frequencies(d_model, 10_000.0)},
                heads=("crit.cluster_weight", "crit.cluster_bias", "crit.out_projs.0", *affine("crit.out_layers.0")),
                read=layered("layers.{}.dec_attn.", layers, attention) | {"r_w_bias": (heads, d_head), "r_r_bias": (heads, d_head)},
                elsewhere=layered("layers.{}.pos_ff.", layers, rest) | tables, parts=each_layer(layers, layer))


def tupe(config: Mapping, assignment: Assignment) -> Plan:
    """TUPE-A and TUPE-R: one term for all layers, CLS in column 0 first and then in row 0."""
    only(config, attn_scale_factor=2)
    d_model, heads, inner, layers, words, length = counts(config, "embedding_dim", "num_attention_heads", "ffn_embedding_dim", "num_encoder_layers",
                                                          "vocab_size", "max_seq_len")
    relative, before, normed = switch(config, "rel_pos"), switch(config, "encoder_normalize_before"), switch(config, "embedding_normalize")
    rule = T5Buckets(*counts(config, "rel_pos_bins", "max_rel_pos"), True, "transformers") if relative else None
    contract = stated("tupe", "guolinke/TUPE 4c64ff7, fairseq/modules/transformer_sentence_encoder.py", heads, assignment, table_layout="rows_width",
                      table_rows=length + 1, relative_sign="key_minus_query" if relative else "none", score_scale_factor=2, layer_sharing="stack",
                      clipping_or_bucket_rule=buckets(rule) + " + 1, unscaled" if relative else None, max_positions=length, position_id_offset=1,
                      cls_rule="column 0 is p1·p1, then row 0 is p0·p0" + (f"; buckets {rule.num_buckets} and {rule.num_buckets // 2}" if relative else ""),
                      bias_and_scale="outside")
    table = {"pos.weight": (length + 1, d_model)} | linears(d_model, "pos_q_linear", "pos_k_linear") | norm("pos_ln", d_model)
    table |= {"relative_attention_bias.weight": (rule.num_buckets + 1, heads)} if relative else {}
    attention = {"in_proj_weight": (3 * d_model, d_model), "in_proj_bias": (3 * d_model,)} | linears(d_model, "out_proj")
    rest = norm("self_attn_layer_norm", d_model) | norm("final_layer_norm", d_model)
    rest |= linears(d_model, "fc1", inner=inner) | linears(inner, "fc2", inner=d_model)
    names = {"pos": "mechanism", "pos_q_linear": "mechanism.query_proj", "pos_k_linear": "mechanism.key_proj", "pos_ln": "mechanism.norm"}
    elsewhere = {"embed_tokens.weight": (words, d_model)} | (norm("emb_layer_norm", d_model) if normed else {})
    elsewhere |= norm("emb_out_layer_norm", d_model) if before else {}

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        state = conversion.inside(f"layers.{n}.self_attn.")
        own = {f"{name}.{kind}": part for kind in ("weight", "bias") for name, part in zip("qkv", state[f"in_proj_{kind}"].chunk(3))}
        own |= {f"o.{kind}": state[f"out_proj.{kind}"] for kind in ("weight", "bias")}
        if n:
            return filled(SelfAttention(d_model, heads, conversion["attention.0"].mechanism), own, {})
        own |= {"mechanism.relative_weight" if name.startswith("relative") else name: conversion.state[name] for name in table}
        return filled(SelfAttention(d_model, heads, TUPE(heads, d_model, length, relative=rule, cls_position=0)), own, names)

    return Plan(contract=contract, prefix="decoder.sentence_encoder.", heads=affine("decoder.lm_head.dense", "decoder.lm_head.layer_norm") + (
                    "decoder.lm_head.weight", "decoder.lm_head.bias"), read=table | layered("layers.{}.self_attn.", layers, attention),
                elsewhere=elsewhere | layered("layers.{}.", layers, rest), parts=each_layer(layers, layer))


def graphormer(config: Mapping, assignment: Assignment) -> Plan:
    """Graphormer: the bias of distances, paths and the graph token for all layers, and the rows of the degrees.

    Its ids are shifted by one, since id 0 pads: a distance d has row d + 1, and a degree and a category on a path too. Row 0 of the
    categories stands where there is no edge and has to be zero. Both degree tables are fed the row sums of the adjacency.
    """
    only(config, sandwich_norm=False, layer_scale=0.0)
    d_model, heads, inner, layers, atoms, edges, spatial, in_rows, out_rows, paths = counts(
        config, "embedding_dim", "num_attention_heads", "ffn_embedding_dim", "num_encoder_layers", "num_atoms", "num_edges", "num_spatial", "num_in_degree",
        "num_out_degree", "num_edge_dis")
    (kind,), normed = fields(config, "edge_type"), switch(config, "encoder_normalize_before")
    multi_hop = require_choice("config.edge_type", kind, ("multi_hop", "single")) == "multi_hop"
    require(spatial == UNREACHABLE + 1, "config.num_spatial", spatial, f"{UNREACHABLE + 1}", "The source's own search writes 511 where there is no path.")
    require(in_rows == out_rows > 1, "config.num_in_degree", in_rows, f"{out_rows}, as num_out_degree, and more than one row", "One row pads.")
    hops = min(counts(config, "multi_hop_max_dist")[0], paths) if multi_hop else 1
    first = int(multi_hop)  # the collator adds one to the categories of a path, and none to those of a direct edge
    rule = f"row distance + 1, {UNREACHABLE} where there is no path; " + (f"edges of {hops} hops" if multi_hop else "direct edges")
    contract = stated("graphormer", "microsoft/Graphormer ac154fe, graphormer/modules/graphormer_layers.py", heads, assignment,
                      table_layout="distances_heads", table_rows=spatial, layer_sharing="stack", added="to_nodes", bias_and_scale="outside",
                      clipping_or_bucket_rule=rule,
                      cls_rule="the graph token's row and column have one number a head")
    bias = {"edge_encoder.weight": (edges + 1, heads), "spatial_pos_encoder.weight": (spatial, heads), "graph_token_virtual_distance.weight": (1, heads)}
    bias |= {"edge_dis_encoder.weight": (paths * heads * heads, 1)} if multi_hop else {}
    degrees = {"in_degree_encoder.weight": (in_rows, d_model), "out_degree_encoder.weight": (out_rows, d_model)}
    attention = linears(d_model, "q_proj", "k_proj", "v_proj", "out_proj")
    rest = norm("self_attn_layer_norm", d_model) | norm("final_layer_norm", d_model)
    rest |= linears(d_model, "fc1", inner=inner) | linears(inner, "fc2", inner=d_model)

    def nodes(conversion: Conversion) -> GraphDegrees:
        tables = (conversion.state[f"graph_node_feature.{name}"][1:] for name in degrees)
        return filled(GraphDegrees(in_rows - 2, d_model), dict(zip(("in_weight", "out_weight"), tables)), {})

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        own = conversion.inside(f"layers.{n}.self_attn.")
        names = {f"{name}_proj": name for name in "qkv"} | {"out_proj": "o"}
        if n:
            return filled(SelfAttention(d_model, heads, conversion["attention.0"].mechanism), own, names)
        state = conversion.inside("graph_attn_bias.")
        path = GraphPath(heads, edges + 1 - first, hops, form="released" if multi_hop else "direct")
        own |= {"mechanism.weight": state["spatial_pos_encoder.weight"][1:], "mechanism.token_weight": state["graph_token_virtual_distance.weight"][0],
                "mechanism.path.edge_weight": state["edge_encoder.weight"][first:]}
        if multi_hop:
            own["mechanism.path.hop_weight"] = state["edge_dis_encoder.weight"].reshape(paths, heads, heads)[:hops]
        return filled(SelfAttention(d_model, heads, GraphBias(heads, UNREACHABLE - 2, path=path, graph_token=True)), own, names)

    return Plan(contract=contract, prefix="encoder.graph_encoder.", zero_rows=("graph_attn_bias.edge_encoder.weight",), 
                heads=("encoder.lm_output_learned_bias", "encoder.embed_out.weight", *affine("encoder.lm_head_transform_weight", "encoder.layer_norm")),
                parts={"degrees": nodes, **each_layer(layers, layer)},
                read=layered("graph_attn_bias.", 1, bias) | layered("graph_node_feature.", 1, degrees) |
                layered("layers.{}.self_attn.", layers, attention),
                elsewhere={"graph_node_feature.atom_encoder.weight": (atoms + 1, d_model), "graph_node_feature.graph_token.weight": (1, d_model),
                           **(norm("emb_layer_norm", d_model) if normed else {}), **layered("layers.{}.", layers, rest)})
