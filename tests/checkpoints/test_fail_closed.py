"""Conversion fails closed: each item of the article's list (0x09E, 0x08A) is fed the wrong thing, and the refusal names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import positionlib as pl
from positionlib.checkpoints import FAMILIES, contract, convert
from tests.checkpoints import official
from tests.checkpoints.conversions import LABELS, family, recorded
from tests.refusals import refused

State, Config = dict[str, Tensor], dict
ITEMS = ("keys", "orientation", "sharing", "sign and endpoint", "denominator", "CLS", "generated buffers", "head order", "identity",  # 0x09E
         "table or formula", "position count", "offset and padding", "source and target", "before or after")  # 0x08A
SPATIAL, EDGES = "graph_attn_bias.spatial_pos_encoder.weight", "graph_attn_bias.edge_encoder.weight"


def weights(label: str) -> tuple[State, Config]:
    made = recorded(label)
    return dict(made.state), dict(made.config)


def put(name: str, change: Callable[[Tensor], Tensor] | Tensor) -> Callable[[State, Config], None]:
    """Another tensor in the place of ``name``."""
    def spoil(state: State, config: Config) -> None:
        state[name] = change(state[name]) if callable(change) else change
    return spoil


def said(**fields: object) -> Callable[[State, Config], None]:
    """Another configuration."""
    return lambda state, config: config.update(fields)


TABLE, FIRST, SECOND = (f"encoder.block.{n}.layer.0.SelfAttention.relative_attention_bias.weight" for n in (0, 0, 1))
FED = [  # item, weights, what is wrong with them, the refusal's field, its words
    ("keys", "gpt2", put("transformer.h.0.attn.lora_A.weight", torch.ones(2)), "state", "lora_A.weight is unexpected"),
    ("keys", "gpt2", lambda state, config: state.pop("transformer.ln_f.bias"), "state", "ln_f.bias is missing"),
    ("keys", "gpt2", put("wpe.weight", torch.ones(10, 12)), "state", "every name of the base model below 'transformer.'"),
    ("keys", "opt", put("decoder.embed_positions.weight", lambda t: t.half()), "state", "float16, torch.float64, not one"),
    ("keys", "opt", put("decoder.embed_positions.weight", lambda t: t.to_sparse()), "state", "no dense tensor with values"),
    ("keys", "opt", put("decoder.embed_positions.weight", lambda t: t.to("meta")), "state", "no dense tensor with values"),
    ("keys", "opt", put("decoder.embed_positions.weight", lambda t: t.numpy()), "state", "no dense tensor with values"),
    ("orientation", "t5", put(TABLE, lambda t: t.T), "state", "relative_attention_bias.weight is [3, 8], not [8, 3]"),
    ("orientation", "mpnet", put("encoder.relative_attention_bias.weight", lambda t: t.T), "state", "is [3, 32], not [32, 3]"),
    ("orientation", "layoutlmv3", put("encoder.rel_pos_bias.weight", lambda t: t.T), "state", "is [8, 3], not [3, 8]"),
    ("orientation", "gpt2", put("transformer.h.0.attn.c_attn.weight", lambda t: t.T), "state", "c_attn.weight is [36, 12], not [12, 36]"),
    ("sharing", "t5", lambda state, config: state.update({SECOND: state[FIRST]}), "state", f"{SECOND} is unexpected"),
    ("sharing", "t5", lambda state, config: state.pop(FIRST), "state", f"{FIRST} is missing"),
    ("sharing", "t5", put("encoder.embed_tokens.weight", torch.ones(11, 12, dtype=torch.float64)), "state", "differ, which are one tensor"),
    ("sharing", "deberta-v2", said(share_att_key=False), "state", "pos_key_proj.weight is missing"),
    ("sharing", "mpnet", put("encoder.layer.0.attention.relative_attention_bias.weight", torch.ones(32, 3)), "state", "is unexpected"),
    ("sign and endpoint", "t5", said(relative_attention_num_buckets=16), "state", "is [8, 3], not [16, 3]"),
    ("sign and endpoint", "t5", said(relative_attention_max_distance=2), "max_distance", "more than max_exact"),
    ("sign and endpoint", "mpnet", said(relative_attention_num_buckets=64), "config.relative_attention_num_buckets", "32"),
    ("sign and endpoint", "bert, relative_key", said(position_embedding_type="relative"), "config.position_embedding_type", "relative_key"),
    ("sign and endpoint", "bert, relative_key", said(position_embedding_type="absolute"), "state", "distance_embedding.weight is unexpected"),
    ("sign and endpoint", "bert, relative_key", said(max_position_embeddings=8), "state", "is [17, 4], not [15, 4]"),
    ("sign and endpoint", "deberta-v2", said(position_buckets=6), "state", "rel_embeddings.weight is [8, 12], not [12, 12]"),
    ("sign and endpoint", "deberta", said(position_buckets=4), "config.position_buckets", "deberta-v2"),
    ("sign and endpoint", "layoutlmv3", said(rel_2d_pos_bins=32), "state", "rel_pos_x_bias.weight is [3, 16], not [3, 32]"),
    ("denominator", "gpt2", said(scale_attn_weights=False), "config.scale_attn_weights", "True"),
    ("denominator", "gpt2", said(scale_attn_by_inverse_layer_idx=True), "config.scale_attn_by_inverse_layer_idx", "False"),
    ("denominator", "mpt", lambda state, config: config.update(attn_config=config["attn_config"] | {"softmax_scale": 0.5}), "config.softmax_scale", "None"),
    ("denominator", "deberta", said(pos_att_type=["c2p"]), "state", "pos_q_proj.weight is unexpected"),
    ("CLS", "vit", put("embeddings.position_embeddings", lambda t: t[:, 1:]), "state", "position_embeddings is [1, 9, 12], not [1, 10, 12]"),
    ("CLS", "vit", lambda state, config: state.pop("embeddings.cls_token"), "state", "cls_token is missing"),
    ("generated buffers", "bert", put("bert.embeddings.position_ids", torch.arange(9.0)[None]), "state", "not the range 0..8 in integers"),
    ("generated buffers", "bert", put("bert.embeddings.position_ids", torch.arange(1, 10)[None]), "state", "not the range 0..8"),
    ("generated buffers", "roberta", put("embeddings.position_ids", torch.arange(12)[None]), "state", "not the range 0..10"),
    ("generated buffers", "gpt2", put("transformer.h.1.attn.bias", torch.ones(1, 1, 10, 10).triu()), "state", "the lower triangle of 10 rows"),
    ("generated buffers", "gpt2", put("transformer.h.1.attn.masked_bias", torch.tensor(-1e9)), "state", "is not -10000"),
    ("generated buffers", "llama", put("model.layers.0.self_attn.rotary_emb.inv_freq", 10_000.0 ** -(torch.arange(0, 6, 2) / 6)), "state", "base 500"),
    ("generated buffers", "gptj", put("h.0.attn.embed_positions", torch.zeros(9, 4)), "state", "sines and cosines of 9 positions"),
    ("table or formula", "llama", said(rope_parameters={"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}), "config.rope_parameters", "other methods"),
    ("table or formula", "llama", said(rope_scaling={"type": "linear", "factor": 2.0}), "config.rope_scaling", "other methods"),
    ("table or formula", "llama", said(partial_rotary_factor=0.5), "config.partial_rotary_factor", "1.0"),
    ("table or formula", "llama", said(rope_parameters={"rope_type": "default"}), "config.rope_theta", "in rope_parameters or beside it"),
    ("table or formula", "falcon", said(alibi=True), "config.alibi", "falcon-alibi"),
    ("table or formula", "falcon-alibi", said(alibi=False), "config.alibi", "falcon"),
    ("table or formula", "mpt", lambda state, config: config.update(attn_config=config["attn_config"] | {"alibi": False}), "config.alibi", "True"),
    ("table or formula", "deberta", said(relative_attention=False), "config.relative_attention", "True"),
    ("position count", "gpt2", said(n_positions=11), "state", "wpe.weight is [10, 12], not [11, 12]"),
    ("position count", "bert", put("bert.embeddings.position_embeddings.weight", lambda t: t[:-1]), "state", "is [8, 12], not [9, 12]"),
    ("offset and padding", "opt", put("decoder.embed_positions.weight", lambda t: t[2:]), "state", "embed_positions.weight is [9, 12], not [11, 12]"),
    ("offset and padding", "roberta", said(pad_token_id=10), "config.max_position_embeddings", "more than 11 rows"),
    ("source and target", "t5", lambda state, config: [state.pop(name) for name in list(state) if name.startswith("decoder.")], "state", "decoder.block.0"),
    ("before or after", "deberta", said(position_biased_input=True), "config.position_biased_input", "no part here"),
    ("before or after", "opt", said(word_embed_proj_dim=12), "state", "project_in.weight is unexpected"),
]
DECLARED = [  # item, weights, a target that was built for something else
    ("orientation", "t5", {"table_layout": "heads_buckets"}), ("sharing", "t5", {"layer_sharing": "each_layer"}),
    ("sign and endpoint", "deberta-v2", {"relative_sign": "key_minus_query"}),
    ("sign and endpoint", "bert, relative_key", {"clipping_or_bucket_rule": "clip to ±8"}),
    ("denominator", "t5", {"score_scale_factor": 1}), ("denominator", "falcon-alibi", {"bias_and_scale": "outside"}), ("CLS", "vit", {"cls_rule": None}),
    ("generated buffers", "gpt2", {"generated_buffers": ()}), ("head order", "bloom", {"head_assignment": (2, 1, 0)}),
    ("identity", "gpt2", {"source_revision": "another"}), ("identity", "gpt2", {"family": "gpt-neo"}), ("table or formula", "llama", {"formula": "base 10000"}),
    ("table or formula", "gptj", {"pairing": "half_split"}), ("position count", "gpt2", {"max_positions": 1024}),
    ("offset and padding", "opt", {"position_id_offset": 0}),
    ("offset and padding", "roberta", {"padding_convention": "contiguous"}), ("source and target", "t5", {"source_target_tables": "shared"}),
    ("before or after", "bert", {"added": "to_words"})]


@pytest.mark.parametrize("item, label, spoil, field, says", FED, ids=lambda value: value if isinstance(value, str) else "")
def test_the_wrong_thing_is_refused_by_its_name(item, label, spoil, field, says):
    state, config = weights(label)
    convert(state, config, family=family(label))
    spoil(state, config)
    assert says in str(refused(lambda: convert(state, config, family=family(label)), field))


@pytest.mark.parametrize("item, label, change", DECLARED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_target_built_for_something_else_is_refused(item, label, change):
    """What no shape shows: the declared contract differs, and nothing is converted."""
    state, config = weights(label)
    own = contract(config, family=family(label))
    convert(state, config, family=family(label), declared=own)
    refused(lambda: convert(state, config, family=family(label), declared=replace(own, **change)), f"contract.{next(iter(change))}")


def test_every_item_of_the_articles_list_is_fed_the_wrong_thing():
    assert {item for item, *_ in FED} | {item for item, *_ in DECLARED} == set(ITEMS)


@pytest.mark.parametrize("label", LABELS)
def test_every_tensor_has_to_be_there_and_in_its_shape(label):
    state, config = weights(label)
    optional = {"pooler", "mask_token", "lm_head", "cls.", "embed_tokens.weight"}
    for name in state:
        gone = {other: tensor for other, tensor in state.items() if other != name}
        bare = next((name.removeprefix(prefix) for prefix in ("bert.", "transformer.", "model.") if name.startswith(prefix)), name)
        if not any(word in name for word in optional):
            assert f"{bare} is missing" in str(refused(lambda: convert(gone, config, family=family(label)), "state"))
        if "lm_head" not in name and "cls." not in name:
            longer = gone | {name: torch.cat((state[name], state[name][:1]))}
            assert f"{bare} is [{len(state[name]) + 1}" in str(refused(lambda: convert(longer, config, family=family(label)), "state"))


@pytest.mark.parametrize("label", LABELS)
def test_a_config_without_a_field_is_refused_or_the_source_has_a_default(label):
    """Whatever is left out, the contract is the same or it is refused: the field is named, or the source's default does not fit the tensors."""
    state, config = weights(label)
    own = contract(config, family=family(label))
    for name in config:
        try:
            assert convert(state, {key: value for key, value in config.items() if key != name}, family=family(label)).contract == own, name
        except pl.PositionContractError as error:
            assert error.field == "state" or name in str(error), (name, str(error))


GENERATED = [("bert", "bert.embeddings.position_ids", torch.arange(9)[None]), ("mpnet", "embeddings.position_ids", torch.arange(11, dtype=torch.int32)[None]),
             ("gpt2", "transformer.h.0.attn.bias", torch.ones(1, 1, 10, 10).tril()), ("gpt2", "transformer.h.1.attn.masked_bias", torch.tensor(-1e4)),
             ("gptj", "h.0.attn.bias", torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()), ("gptj", "h.1.attn.masked_bias", torch.tensor(-1e9)),
             ("llama", "model.rotary_emb.inv_freq", (500.0 ** -(torch.arange(0, 6, 2) / 6)).bfloat16()),
             ("falcon", "h.0.self_attention.rotary_emb.inv_freq", 10_000.0 ** -(torch.arange(0, 4, 2) / 4)),
             ("deberta", "embeddings.position_ids", torch.arange(9))]


@pytest.mark.parametrize("label, name, buffer", GENERATED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_generated_buffer_may_be_there_if_it_is_what_the_source_generates(label, name, buffer):
    state, config = weights(label)
    assert convert(state | {name: buffer}, config, family=label).reconciled["generated"] == (name,)
    assert f"{name.partition('.')[2] if label in ('bert', 'gpt2', 'llama') else name} is not" in str(
        refused(lambda: convert(state | {name: 3 * buffer + 1 if buffer.dtype != torch.bool else ~buffer}, config, family=label), "state"))


def test_a_stale_table_of_old_files_is_known_and_left_behind():
    """T5's first files hold a table for cross-attention, which the source reads nowhere."""
    state, config = weights("t5")
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    assert name in convert(state | {name: state[TABLE]}, config, family="t5").reconciled["elsewhere"]


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (0, 1, 3), (0, 1, 2, 3), "012", (0, 1, 2.5), 3, (0, 1, None)])
def test_head_slots_that_are_no_order_of_the_heads_are_refused(order):
    state, config = weights("bloom")
    refused(lambda: convert(state, config, family="bloom", head_assignment=order), "head_assignment")
    assert convert(state, config, family="bloom", head_assignment=torch.tensor([2, 0, 1])).contract.head_assignment == (2, 0, 1)


def test_what_is_no_family_no_mapping_and_no_contract_is_refused():
    state, config = weights("gpt2")
    refused(lambda: convert(state, config, family="gpt3"), "family")
    refused(lambda: convert(list(state), config, family="gpt2"), "state")
    refused(lambda: convert(state, list(config), family="gpt2"), "config")
    refused(lambda: convert(state, config, family="gpt2", declared=contract(config, family="gpt2").to_dict()), "declared")
    for name in FAMILIES:
        refused(lambda: contract({}, family=name), "config")


@pytest.mark.parametrize("spoil, field, says", [
    (lambda s, c: s.update({"pos_proj.weight": s.pop("pos_q_linear.weight")}), "state", "pos_q_linear.weight is missing; pos_proj.weight is unexpected"),
    (lambda s, c: s.update({"relative_attention_bias.weight": s["relative_attention_bias.weight"][:-1]}), "state", "is [8, 3], not [9, 3]"),
    (lambda s, c: s.update({"pos.weight": s["pos.weight"][1:]}), "state", "pos.weight is [7, 6], not [8, 6]"),
    (lambda s, c: c.update(attn_scale_factor=1), "config.attn_scale_factor", "2")])
def test_tupes_special_rows_and_scale_are_part_of_it(spoil, field, says):
    s, z = official.case("R_T7_h3_L1_post")
    state = official.parameters(z)
    config = {"embedding_dim": 6, "num_attention_heads": 3, "ffn_embedding_dim": s["ffn"], "num_encoder_layers": 1, "vocab_size": s["vocab"],
              "max_seq_len": s["max"], "rel_pos": True, "rel_pos_bins": s["bins"], "max_rel_pos": s["mrel"], "encoder_normalize_before": False,
              "embedding_normalize": True}
    convert(state, config, family="tupe")
    spoil(state, config)
    assert says in str(refused(lambda: convert(state, config, family="tupe"), field))


def test_graphormers_padding_and_unreachable_rows_are_part_of_it():
    s, z = official.case("two_undirected")
    edges = z["param.bias.edge_encoder.weight"]
    cut = torch.zeros(511, 2, dtype=torch.float64)
    for name, tensor, says in ((EDGES, edges + 1, "numbers in its row of padding"), (SPATIAL, cut, "is [511, 2], not [512, 2]")):
        assert says in str(refused(lambda: official.graphormer_weights(s, z, **{name: tensor}), "state"))


def test_t5xs_layout_is_no_transformers_layout():
    state, config, _ = official.t5x_weights()
    name = "target/encoder/relpos_bias/rel_embedding"
    assert "is [8, 3], not [3, 8]" in str(refused(lambda: convert(state | {name: state[name].T}, config, family="t5x"), "state"))
    kernel = "target/encoder/layers_0/attention/query/kernel"
    assert "is [15, 12], not [12, 15]" in str(refused(lambda: convert(state | {kernel: state[kernel].T}, config, family="t5x"), "state"))
