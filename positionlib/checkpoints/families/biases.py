"""Numbers added to the scores: T5 and MPNet by buckets, BLOOM, MPT and Falcon by slopes (transformers 5.24.0; T5X cc342d4).

    family         table               owner            content divided by    bias
    t5             [buckets, heads]    first layer      1                     outside the scale
    t5x            [heads, buckets]    the stack        1                     outside
    mpnet          [buckets, heads]    the stack        √d                    outside
    bloom          slopes, computed    –                √d                    outside
    mpt            slopes, computed    –                √d                    outside
    falcon-alibi   slopes, bfloat16    –                √d                    inside, and so divided too

A stack's table is one object: every layer's part holds it. Slopes belong to heads, not to slots: where joined shards put the heads in
another order, ``head_assignment`` says so, and the slopes follow. A learned table was sharded with its heads and stands in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from positionlib.checkpoints.conversion import Conversion, Plan
from positionlib.checkpoints.families.common import TRANSFORMERS, Assignment, affine, buckets, each_layer, stated
from positionlib.checkpoints.families.rotary import FusedFalcon
from positionlib.checkpoints.maps import bloom_attention, t5_attention
from positionlib.checkpoints.state import aliased, counts, epsilon, fields, filled, layered, linears, mapping, norm, only, position_range, switch, widths
from positionlib.errors import require, require_choice
from positionlib.layers import SelfAttention, TokenInput
from positionlib.mechanisms import ALiBi, LearnedAbsolute, T5Bias
from positionlib.rules import T5Buckets, alibi_slopes

STALE = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # in old files; the source reads it nowhere
GATES = {"relu": False, "gated-gelu": True}


def t5(config: Mapping, assignment: Assignment) -> Plan:
    """T5, encoder and decoder, each with a table that its first layer owns."""
    d_model, d_head, heads, inner, words, encoder, count, far = counts(
        config, "d_model", "d_kv", "num_heads", "d_ff", "vocab_size", "num_layers", "relative_attention_num_buckets", "relative_attention_max_distance")
    decoder = encoder if config.get("num_decoder_layers") is None else counts(config, "num_decoder_layers")[0]
    gated = GATES[require_choice("config.feed_forward_proj", config.get("feed_forward_proj", "relu"), tuple(GATES))]
    rules = [T5Buckets(count, far, both, "transformers") for both in (True, False)]
    contract = stated("t5", f"{TRANSFORMERS}, models/t5/modeling_t5.py", heads, assignment, table_layout="buckets_heads", table_rows=count,
                      relative_sign="key_minus_query", clipping_or_bucket_rule="; ".join(map(buckets, rules)), score_scale_factor=0,
                      layer_sharing="first_layer", source_target_tables="separate", bias_and_scale="outside")
    attention = linears(d_model, "q", "k", "v", inner=heads * d_head, bias=False) | {"o.weight": (d_model, heads * d_head)}
    table = {"relative_attention_bias.weight": (count, heads)}
    forward = linears(d_model, *(("wi_0", "wi_1") if gated else ("wi",)), inner=inner, bias=False) | {"wo.weight": (d_model, inner)}
    read, elsewhere = {}, {"shared.weight": (words, d_model), STALE: (count, heads)}
    for stack, layers, last in (("encoder", encoder, 1), ("decoder", decoder, 2)):
        read |= layered(f"{stack}.block.{{}}.layer.0.SelfAttention.", layers, attention) | layered(f"{stack}.block.0.layer.0.SelfAttention.", 1, table)
        elsewhere |= {f"{stack}.embed_tokens.weight": (words, d_model), f"{stack}.final_layer_norm.weight": (d_model,)}
        elsewhere |= layered(f"{stack}.block.{{}}.layer.{last}.DenseReluDense.", layers, forward)
        for n in range(last + 1):
            elsewhere |= layered(f"{stack}.block.{{}}.layer.{n}.", layers, {"layer_norm.weight": (d_model,)})
    elsewhere |= layered("decoder.block.{}.layer.1.EncDecAttention.", decoder, attention)

    def layer(stack: str, bidirectional: bool, conversion: Conversion, n: int) -> SelfAttention:
        first = conversion[f"{stack}.attention.0"].mechanism if n else None
        return t5_attention(conversion.inside(f"{stack}.block.{n}.layer.0.SelfAttention."), config, bidirectional=bidirectional, bias=first)

    tied = tuple(f"{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
    return Plan(contract=contract, heads=("lm_head.weight",), optional=(STALE, *tied), equal=tuple(("shared.weight", name) for name in tied),
                read=read, elsewhere=elsewhere, parts={**each_layer(encoder, partial(layer, "encoder", True), "encoder.attention"),
                                                       **each_layer(decoder, partial(layer, "decoder", False), "decoder.attention")})


def t5x(config: Mapping, assignment: Assignment) -> Plan:
    """T5X's flattened parameter tree, / between names: kernels [in, out], one table [heads, buckets] beside a stack's layers.

    ``config`` holds T5Config's fields and RelativePositionBiases' num_buckets and max_distance, as the gin file sets them.
    """
    d_model, heads, d_head, inner, words, encoder, decoder, count, far = counts(
        config, "emb_dim", "num_heads", "head_dim", "mlp_dim", "vocab_size", "num_encoder_layers", "num_decoder_layers", "num_buckets", "max_distance")
    (activations,), tied = fields(config, "mlp_activations"), switch(config, "logits_via_embedding")
    require(isinstance(activations, (list, tuple)) and len(activations) > 0, "config.mlp_activations", activations, "a list of names",
            "Take it from the gin file.")
    rules = {stack: T5Buckets(count, far, stack == "encoder", "t5x") for stack in ("encoder", "decoder")}
    contract = stated("t5x", "google-research/t5x cc342d4, t5x/examples/t5/network.py and layers.py", heads, assignment, table_layout="heads_buckets",
                      table_rows=count, relative_sign="key_minus_query", clipping_or_bucket_rule="; ".join(map(buckets, rules.values())), score_scale_factor=0,
                      layer_sharing="stack", source_target_tables="separate", bias_and_scale="outside")
    attention = {f"{name}/kernel": (d_model, heads * d_head) for name in ("query", "key", "value")} | {"out/kernel": (heads * d_head, d_model)}
    gates = ("wi",) if len(activations) == 1 else tuple(f"wi_{n}" for n in range(len(activations)))
    forward = {f"mlp/{name}/kernel": (d_model, inner) for name in gates} | {"mlp/wo/kernel": (inner, d_model)}
    names = {"encoder": ("attention", ("pre_attention_layer_norm", "pre_mlp_layer_norm"), encoder),
             "decoder": ("self_attention", ("pre_self_attention_layer_norm", "pre_cross_attention_layer_norm", "pre_mlp_layer_norm"), decoder)}
    read, elsewhere = {}, {"token_embedder/embedding": (words, d_model)} | ({} if tied else {"decoder/logits_dense/kernel": (d_model, words)})
    for stack, (own, norms, layers) in names.items():
        read |= layered(f"{stack}/layers_{{}}/{own}/", layers, attention) | {f"{stack}/relpos_bias/rel_embedding": (heads, count)}
        elsewhere |= layered(f"{stack}/layers_{{}}/", layers, forward | {f"{name}/scale": (d_model,) for name in norms})
        elsewhere |= {f"{stack}/{stack}_norm/scale": (d_model,)}
    elsewhere |= layered("decoder/layers_{}/encoder_decoder_attention/", decoder, attention)

    def layer(stack: str, conversion: Conversion, n: int) -> SelfAttention:
        own = {f"{short}.weight": conversion.state[f"{stack}/layers_{n}/{names[stack][0]}/{name}/kernel"].T
               for short, name in zip("qkvo", ("query", "key", "value", "out"))}
        if n:
            bias = conversion[f"{stack}.attention.0"].mechanism
        else:
            own["mechanism.weight"] = conversion.state[f"{stack}/relpos_bias/rel_embedding"]
            bias = T5Bias(heads, count, far, bidirectional=stack == "encoder", edge="t5x", table_layout="heads_buckets")
        return filled(SelfAttention(d_model, heads, bias, d_head=d_head, bias=False), own, {})

    return Plan(contract=contract, prefix="target/", read=read, elsewhere=elsewhere,
                parts={name: make for stack in names for name, make in each_layer(names[stack][2], partial(layer, stack), f"{stack}.attention").items()})


def mpnet(config: Mapping, assignment: Assignment) -> Plan:
    """MPNet: RoBERTa's rows at the input, and one table of buckets for all layers. The source fixes 32 buckets to distance 128."""
    only(config, relative_attention_num_buckets=32)
    d_model, heads = widths(config, "num_attention_heads")
    words, rows, layers, inner = counts(config, "vocab_size", "max_position_embeddings", "num_hidden_layers", "intermediate_size")
    eps, rule = epsilon(config), T5Buckets(32, 128, True, "transformers")
    require(rows > 2, "config.max_position_embeddings", rows, "more than 2 rows", "Rows 0 and 1 belong to no position.")
    contract = stated("mpnet", f"{TRANSFORMERS}, models/mpnet/modeling_mpnet.py", heads, assignment, table_layout="buckets_heads", table_rows=32,
                      relative_sign="key_minus_query", clipping_or_bucket_rule=buckets(rule), layer_sharing="stack", bias_and_scale="outside",
                      max_positions=rows - 2, position_id_offset=2, padding_convention="roberta", added="before_norm",
                      generated_buffers=("embeddings.position_ids",))
    tables = {"word_embeddings.weight": (words, d_model), "position_embeddings.weight": (rows, d_model)} | norm("LayerNorm", d_model)
    block = linears(d_model, "attn.q", "attn.k", "attn.v", "attn.o") | norm("LayerNorm", d_model)
    rest = linears(d_model, "intermediate.dense", inner=inner) | linears(inner, "output.dense", inner=d_model) | norm("output.LayerNorm", d_model)
    pooler = linears(d_model, "pooler.dense")

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        own, bias = conversion.inside(f"encoder.layer.{n}.attention."), conversion["attention.0"].mechanism if n else None
        if bias is None:
            own["mechanism.weight"] = conversion.state["encoder.relative_attention_bias.weight"]
            bias = T5Bias(heads, 32, 128, bidirectional=True, edge="transformers", score_scale=None)
        return filled(SelfAttention(d_model, heads, bias, post_norm=eps), own, {f"attn.{name}": name for name in "qkvo"} | {"LayerNorm": "norm"})

    def words_and_rows(conversion: Conversion) -> TokenInput:
        learned = {name: tensor for name, tensor in conversion.inside("embeddings.").items() if name in tables}
        return filled(TokenInput(words, LearnedAbsolute(rows, d_model, row_offset=2), eps=eps), learned,
                      {"word_embeddings": "words", "position_embeddings": "positions", "LayerNorm": "norm"})

    return Plan(contract=contract, prefix="mpnet.", optional=tuple(pooler), generated={"embeddings.position_ids": position_range(rows)},
                heads=affine("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "classifier", "classifier.dense", "classifier.out_proj",
                             "qa_outputs") + ("lm_head.bias",),
                read=layered("embeddings.", 1, tables) | layered("encoder.layer.{}.attention.", layers, block) | {
                    "encoder.relative_attention_bias.weight": (32, heads)},
                elsewhere=layered("encoder.layer.{}.", layers, rest) | pooler, parts={"input": words_and_rows, **each_layer(layers, layer)})


def bloom(config: Mapping, assignment: Assignment) -> Plan:
    """BLOOM: q, k and v rows alternate head by head; a bias of key indices that counts real tokens."""
    config = aliased(config, n_head="num_attention_heads", hidden_size="n_embed")
    d_model, heads = widths(config, "n_head")
    layers, words = counts(config, "n_layer", "vocab_size")
    contract = _slopes("bloom", "models/bloom/modeling_bloom.py", heads, assignment, "paper", padding_convention="generation_v5")
    attention = linears(d_model, "query_key_value", inner=3 * d_model) | linears(d_model, "dense")
    rest = norm("input_layernorm", d_model) | norm("post_attention_layernorm", d_model)
    rest |= linears(d_model, "mlp.dense_h_to_4h", inner=4 * d_model) | linears(4 * d_model, "mlp.dense_4h_to_h", inner=d_model)

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        module = bloom_attention(conversion.inside(f"h.{n}.self_attention."), config)
        module.mechanism = ALiBi(heads, form="key_index", head_ids=contract.head_assignment)
        return module

    return Plan(contract=contract, prefix="transformer.", heads=("lm_head.weight", "score.weight", *affine("classifier", "qa_outputs")),
                read=layered("h.{}.self_attention.", layers, attention),
                elsewhere={"word_embeddings.weight": (words, d_model), **norm("word_embeddings_layernorm", d_model), **norm("ln_f", d_model),
                           **layered("h.{}.", layers, rest)}, parts=each_layer(layers, layer))


def mpt(config: Mapping, assignment: Assignment) -> Plan:
    """MPT: no biases, q, k and v one after another, slopes up to 2^−alibi_bias_max."""
    only(config, expansion_ratio=4, no_bias=True)
    (given,) = fields(config, "attn_config")
    attn = mapping("config.attn_config", given)
    only(attn, alibi=True, qk_ln=False, prefix_lm=False, attn_type="multihead_attention", attn_uses_sequence_id=False, clip_qkv=None, softmax_scale=None)
    d_model, heads = widths(config, "n_heads", "d_model")
    (layers, words, positions), (bias_max,) = counts(config, "n_layers", "vocab_size", "max_seq_len"), counts(attn, "alibi_bias_max")
    contract = _slopes("mpt", "models/mpt/modeling_mpt.py", heads, assignment, f"mpt to {bias_max}", max_positions=positions)
    attention = {"Wqkv.weight": (3 * d_model, d_model), "out_proj.weight": (d_model, d_model)}
    rest = {"norm_1.weight": (d_model,), "norm_2.weight": (d_model,)}
    rest |= linears(d_model, "ffn.up_proj", inner=4 * d_model, bias=False) | linears(4 * d_model, "ffn.down_proj", inner=d_model, bias=False)
    slopes = alibi_slopes(heads, convention="mpt", bias_max=bias_max)

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        state = conversion.inside(f"blocks.{n}.attn.")
        own = {f"{name}.weight": part for name, part in zip("qkv", state["Wqkv.weight"].chunk(3))} | {"o.weight": state["out_proj.weight"]}
        alibi = ALiBi(heads, form="key_minus_last", slopes=slopes, head_ids=contract.head_assignment)
        return filled(SelfAttention(d_model, heads, alibi, bias=False), own, {})

    return Plan(contract=contract, prefix="transformer.", heads=("lm_head.weight", "score.weight", *affine("classifier", "qa_outputs")),
                read=layered("blocks.{}.attn.", layers, attention), parts=each_layer(layers, layer),
                elsewhere={"wte.weight": (words, d_model), "norm_f.weight": (d_model,), **layered("blocks.{}.", layers, rest)})


def falcon_alibi(config: Mapping, assignment: Assignment) -> Plan:
    """Falcon RW: slopes and products rounded to bfloat16, added before the division by √d."""
    require(switch(config, "alibi"), "config.alibi", False, "True", "Convert it as falcon.")
    _, heads = widths(config, "num_attention_heads")
    contract = _slopes("falcon-alibi", "models/falcon/modeling_falcon.py", heads, assignment, "paper, slope and product rounded to bfloat16",
                       padding_convention="generation_v5", bias_and_scale="inside")
    return FusedFalcon(config).plan(contract, {}, lambda: ALiBi(heads, form="key_index", inside_scale=True, rounded=torch.bfloat16,
                                                               head_ids=contract.head_assignment))


def _slopes(family: str, file: str, heads: int, assignment: Assignment, convention: str, **said):
    return stated(family, f"{TRANSFORMERS}, {file}", heads, assignment, relative_sign="key_minus_query", formula=f"slopes of {heads} heads, {convention}",
                  **{"bias_and_scale": "outside", **said})
