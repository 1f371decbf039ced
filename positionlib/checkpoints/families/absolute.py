"""Learned rows at the input: BERT, RoBERTa, GPT-2, OPT (transformers 5.24.0; BERT's relative kinds 4.57.6).

    family    row of position p     positions join                            padded rows
    bert      p                     words + types + positions, LayerNorm      counted
    roberta   p + padding_idx + 1   words + types + positions, LayerNorm      compressed; pads read row padding_idx
    gpt2      p                     words + positions                         counted
    opt       p + 2                 projected words + positions               compressed; pads read row 1
"""

from __future__ import annotations

from collections.abc import Mapping

from positionlib.checkpoints.conversion import Conversion, Plan
from positionlib.checkpoints.families.common import TRANSFORMERS, TRANSFORMERS_4, Assignment, affine, each_layer, stated
from positionlib.checkpoints.maps import BERT_TYPES, bert_attention, bert_input
from positionlib.checkpoints.state import (
    Shapes, causal_mask, counts, epsilon, filled, hidden_score, layered, linears, norm, only, padding_id, position_range, switch, widths,
)
from positionlib.errors import require, require_choice, require_count
from positionlib.layers import BertInput, SelfAttention, TokenInput
from positionlib.mechanisms import LearnedAbsolute

BERT_HEADS = affine("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder", "cls.seq_relationship",
                    "classifier", "qa_outputs") + ("cls.predictions.bias",)
ROBERTA_HEADS = affine("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "classifier", "classifier.dense", "classifier.out_proj",
                       "qa_outputs") + ("lm_head.bias",)


def bert(config: Mapping, assignment: Assignment) -> Plan:
    """BERT under any of its position_embedding_types; transformers 5 knows ``absolute`` alone and no longer writes it."""
    config = {"position_embedding_type": "absolute", **config}
    kind = require_choice("config.position_embedding_type", config["position_embedding_type"], BERT_TYPES)
    (rows,), (d_model, heads) = counts(config, "max_position_embeddings"), widths(config, "num_attention_heads")
    if kind == "absolute":
        said = dict(table_layout="rows_width", table_rows=rows, layer_sharing="input", added="before_norm", max_positions=rows)
    else:
        said = dict(table_layout="distances_d_head", table_rows=2 * rows - 1, layer_sharing="each_layer", relative_sign="query_minus_key", max_positions=rows,
                    clipping_or_bucket_rule=f"row i − j + {rows - 1}, no clipping, {kind}")
    contract = stated("bert", f"{TRANSFORMERS if kind == 'absolute' else TRANSFORMERS_4}, models/bert/modeling_bert.py", heads, assignment,
                      generated_buffers=("embeddings.position_ids",), **said)
    attention = {"self.distance_embedding.weight": (2 * rows - 1, d_model // heads)} if kind != "absolute" else {}
    return _bert_plan(config, contract, attention, "bert.", BERT_HEADS, lambda c: bert_input(c.inside("embeddings."), config))


def roberta(config: Mapping, assignment: Assignment) -> Plan:
    """RoBERTa: rows 0..padding_idx come before position 0, and padding reads the last of them."""
    only(config, position_embedding_type="absolute")
    (rows, words), (_, heads) = counts(config, "max_position_embeddings", "vocab_size"), widths(config, "num_attention_heads")
    offset = require_count("config.pad_token_id", padding_id(config, words), 0) + 1
    require(rows > offset, "config.max_position_embeddings", rows, f"more than {offset} rows", "Rows up to padding_idx belong to no position.")
    config = {"position_embedding_type": "absolute", **config}
    contract = stated("roberta", f"{TRANSFORMERS}, models/roberta/modeling_roberta.py", heads, assignment, table_layout="rows_width", table_rows=rows,
                      layer_sharing="input", max_positions=rows - offset, position_id_offset=offset, padding_convention="roberta", added="before_norm",
                      generated_buffers=("embeddings.position_ids",))
    return _bert_plan(config, contract, {}, "roberta.", ROBERTA_HEADS, lambda c: _roberta_input(c, config, offset))


def _roberta_input(conversion: Conversion, config: Mapping, offset: int) -> BertInput:
    d_model, words, types, rows = counts(config, "hidden_size", "vocab_size", "type_vocab_size", "max_position_embeddings")
    module = BertInput(words, types, d_model, LearnedAbsolute(rows, d_model, row_offset=offset), eps=epsilon(config), padding_id=offset - 1)
    learned = {name: tensor for name, tensor in conversion.inside("embeddings.").items() if name != "position_ids"}
    return filled(module, learned, {"word_embeddings": "words", "token_type_embeddings": "types", "position_embeddings": "positions", "LayerNorm": "norm"})


def _bert_plan(config, contract, attention: Shapes, prefix: str, heads: tuple[str, ...], make_input) -> Plan:
    d_model, words, types, rows, layers, inner = counts(config, "hidden_size", "vocab_size", "type_vocab_size", "max_position_embeddings",
                                                        "num_hidden_layers", "intermediate_size")
    epsilon(config), padding_id(config, words)  # refused here and not by the first part that is made
    tables = {"word_embeddings.weight": (words, d_model), "position_embeddings.weight": (rows, d_model), "token_type_embeddings.weight": (types, d_model)}
    block = linears(d_model, "self.query", "self.key", "self.value", "output.dense") | norm("output.LayerNorm", d_model) | attention
    rest = linears(d_model, "intermediate.dense", inner=inner) | {"output.dense.weight": (d_model, inner), "output.dense.bias": (d_model,)}
    pooler = linears(d_model, "pooler.dense")
    return Plan(contract=contract, prefix=prefix, heads=heads, optional=tuple(pooler), generated={"embeddings.position_ids": position_range(rows)},
                former={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
                read=layered("embeddings.", 1, tables | norm("LayerNorm", d_model)) | layered("encoder.layer.{}.attention.", layers, block),
                elsewhere=layered("encoder.layer.{}.", layers, rest | norm("output.LayerNorm", d_model)) | pooler,
                parts={"input": make_input,
                       **each_layer(layers, lambda c, n: bert_attention(c.inside(f"encoder.layer.{n}.attention."), config))})


def gpt2(config: Mapping, assignment: Assignment) -> Plan:
    """GPT-2. Its projections are stored [in, out], the transpose of a Linear's."""
    only(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    d_model, heads = widths(config, "n_head", "n_embd")
    words, rows, layers = counts(config, "vocab_size", "n_positions", "n_layer")
    inner = 4 * d_model if config.get("n_inner") is None else counts(config, "n_inner")[0]
    generated = {f"h.{n}.attn.{name}": buffer for n in range(layers) for name, buffer in (("bias", causal_mask(rows)), ("masked_bias", hidden_score(-1e4)))}
    contract = stated("gpt2", f"{TRANSFORMERS}, models/gpt2/modeling_gpt2.py", heads, assignment, table_layout="rows_width", table_rows=rows,
                      layer_sharing="input", max_positions=rows, added="to_words", generated_buffers=("h.*.attn.bias", "h.*.attn.masked_bias"))
    attention = {"c_attn.weight": (d_model, 3 * d_model), "c_attn.bias": (3 * d_model,), "c_proj.weight": (d_model, d_model), "c_proj.bias": (d_model,)}
    rest = norm("ln_1", d_model) | norm("ln_2", d_model) | {"mlp.c_fc.weight": (d_model, inner), "mlp.c_fc.bias": (inner,),
                                                           "mlp.c_proj.weight": (inner, d_model), "mlp.c_proj.bias": (d_model,)}
    tables = {"wte.weight": (words, d_model), "wpe.weight": (rows, d_model)}
    return Plan(contract=contract, prefix="transformer.", generated=generated,
                heads=("lm_head.weight", *affine("score", "classifier", "qa_outputs", "multiple_choice_head.summary")),
                read=tables | layered("h.{}.attn.", layers, attention),
                elsewhere=layered("h.{}.", layers, rest) | norm("ln_f", d_model),
                parts={"input": lambda c: filled(TokenInput(words, LearnedAbsolute(rows, d_model)),
                                                 {name: c.state[name] for name in tables}, {"wte": "words", "wpe": "positions"}),
                       **each_layer(layers, lambda c, n: _gpt2_attention(c, n, d_model, heads))})


def _gpt2_attention(conversion: Conversion, layer: int, d_model: int, heads: int) -> SelfAttention:
    state = conversion.inside(f"h.{layer}.attn.")
    fused = {"weight": state["c_attn.weight"].T, "bias": state["c_attn.bias"]}
    own = {f"{name}.{kind}": part for kind, rows in fused.items() for name, part in zip("qkv", rows.chunk(3))}
    own |= {"o.weight": state["c_proj.weight"].T, "o.bias": state["c_proj.bias"]}
    return filled(SelfAttention(d_model, heads, None), own, {})


def opt(config: Mapping, assignment: Assignment) -> Plan:
    """OPT: two rows before position 0, and the words of the 350M model narrower than its states."""
    d_model, heads = widths(config, "num_attention_heads")
    words, positions, layers, inner, d_words = counts(config, "vocab_size", "max_position_embeddings", "num_hidden_layers", "ffn_dim", "word_embed_proj_dim")
    bias, affine_norms = switch(config, "enable_bias", True), switch(config, "layer_norm_elementwise_affine", True)
    narrow, rows = d_words != d_model, positions + 2
    contract = stated("opt", f"{TRANSFORMERS}, models/opt/modeling_opt.py", heads, assignment, table_layout="rows_width", table_rows=rows,
                      layer_sharing="input", max_positions=positions, position_id_offset=2, padding_convention="opt",
                      added="after_projection" if narrow else "to_words")
    tables = {"embed_tokens.weight": (words, d_words), "embed_positions.weight": (rows, d_model)}
    tables |= {"project_in.weight": (d_model, d_words)} if narrow else {}
    attention = linears(d_model, "q_proj", "k_proj", "v_proj", "out_proj", bias=bias)
    rest = linears(d_model, "fc1", inner=inner, bias=bias) | linears(inner, "fc2", inner=d_model, bias=bias)
    last = {"project_out.weight": (d_words, d_model)} if narrow else {}
    if affine_norms:
        rest |= norm("self_attn_layer_norm", d_model) | norm("final_layer_norm", d_model)
        if switch(config, "do_layer_norm_before") and config.get("_remove_final_layer_norm", False) is not True:
            last |= norm("final_layer_norm", d_model)
    names = {"embed_tokens": "words", "embed_positions": "positions", "project_in": "project"}
    return Plan(contract=contract, prefix="model.", heads=("lm_head.weight", "score.weight", *affine("qa_outputs")),
                read=layered("decoder.", 1, tables) | layered("decoder.layers.{}.self_attn.", layers, attention),
                elsewhere=layered("decoder.layers.{}.", layers, rest) | layered("decoder.", 1, last),
                parts={"input": lambda c: filled(TokenInput(words, LearnedAbsolute(rows, d_model, row_offset=2), d_words=d_words if narrow else None),
                                                 {name: c.state[f"decoder.{name}"] for name in tables}, names),
                       **each_layer(layers, lambda c, n: filled(SelfAttention(d_model, heads, None, bias=bias), c.inside(f"decoder.layers.{n}.self_attn."),
                                                                {f"{name}_proj": name for name in "qkv"} | {"out_proj": "o"}))})
