"""A weight map fails closed: what does not reconcile is named, all of it at once."""

import pytest
import torch

import positionlib as pl
from positionlib.checkpoints import maps
from tests.refusals import refused

BERT = {"hidden_size": 8, "num_attention_heads": 2, "layer_norm_eps": 1e-12, "max_position_embeddings": 5}
DEBERTA = {"hidden_size": 8, "num_attention_heads": 2, "layer_norm_eps": 1e-7, "relative_attention": True, "max_relative_positions": 4}
BLOCK = [f"output.{part}.{kind}" for part in ("dense", "LayerNorm") for kind in ("weight", "bias")]
TABLE = torch.nn.Parameter(torch.zeros(8, 8))
WIDE = {"query_key_value.weight": (24, 8), "query_key_value.bias": (24,), "q.weight": (12, 8), "k.weight": (12, 8), "v.weight": (12, 8),
        "o.weight": (8, 12), "relative_attention_bias.weight": (6, 3), "self.distance_embedding.weight": (9, 4), "pos_bias_u": (2, 4),
        "pos_bias_v": (2, 4), "word_embeddings.weight": (11, 8), "position_embeddings.weight": (5, 8), "token_type_embeddings.weight": (3, 8)}


def state(*names: str) -> dict[str, torch.Tensor]:
    """Ones in the shapes of a layer of width 8."""
    return {name: torch.ones(WIDE.get(name, (8, 8) if name.endswith("weight") and "Norm" not in name else (8,))) for name in names}


def projections(prefix: str, *parts: str) -> list[str]:
    return [f"{prefix}{part}.{kind}" for part in parts for kind in ("weight", "bias")]


T5 = {"d_model": 8, "d_kv": 4, "num_heads": 3, "relative_attention_num_buckets": 6, "relative_attention_max_distance": 9}
FAMILIES = {
    "t5": (lambda s, c: maps.t5_attention(s, c, bidirectional=True), T5,
           ["q.weight", "k.weight", "v.weight", "o.weight", "relative_attention_bias.weight"]),
    "bloom": (maps.bloom_attention, {"hidden_size": 8, "n_head": 2}, projections("", "query_key_value", "dense")),
    "deberta": (lambda s, c: maps.deberta_v2_attention(s, c, TABLE), DEBERTA | {"pos_att_type": ["p2c", "c2p"]},
                projections("self.", "query_proj", "key_proj", "value_proj", "pos_key_proj", "pos_query_proj") + BLOCK),
    "deberta, shared": (lambda s, c: maps.deberta_v2_attention(s, c, TABLE), DEBERTA | {"pos_att_type": "c2p|p2c", "share_att_key": True},
                        projections("self.", "query_proj", "key_proj", "value_proj") + BLOCK),
    "bert": (maps.bert_attention, BERT | {"position_embedding_type": "absolute"}, projections("self.", "query", "key", "value") + BLOCK),
    "bert, relative": (maps.bert_attention, BERT | {"position_embedding_type": "relative_key"},
                       projections("self.", "query", "key", "value") + BLOCK + ["self.distance_embedding.weight"]),
    "bert input": (maps.bert_input, BERT | {"vocab_size": 11, "type_vocab_size": 3, "pad_token_id": 0, "position_embedding_type": "absolute"},
                   ["word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias"]),
    "conformer": (maps.conformer_attention, {"hidden_size": 8, "num_attention_heads": 2, "position_embeddings_type": "relative"},
                  projections("linear_", "q", "k", "v", "out") + ["linear_pos.weight", "pos_bias_u", "pos_bias_v"]),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_missing_unexpected_or_misshapen_tensor_is_named_at_once(family):
    make, config, names = FAMILIES[family]
    good = state(*names)
    make(good, config)
    for at, name in enumerate(names):
        other = names[at - 1]
        bad = {n: t for n, t in good.items() if n != name} | {other: good[other][:-1], "lora_A.weight": torch.ones(2)}
        with pytest.raises(pl.PositionContractError) as caught:
            make(bad, config)
        said, shape = str(caught.value), list(good[other].shape)
        assert caught.value.field == "state"
        assert f"{name} is missing" in said and "lora_A.weight is unexpected" in said
        assert f"{other} is {[shape[0] - 1, *shape[1:]]}, not {shape}" in said


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_without_a_field_is_refused_and_nothing_is_guessed(family):
    make, config, names = FAMILIES[family]
    optional = {"share_att_key", "relative_attention", "max_relative_positions"}  # absent means off, as in the source
    unread = {"bert": {"max_position_embeddings"}, "bert input": {"num_attention_heads"}}.get(family, set())
    for field in set(config) - optional - unread:
        with pytest.raises(pl.PositionContractError, match=field) as caught:
            make(state(*names), {name: value for name, value in config.items() if name != field})
        assert caught.value.field == "config"


def test_one_dtype_and_a_floating_one():
    make, config, names = FAMILIES["bloom"]
    good = state(*names)
    with pytest.raises(pl.PositionContractError, match="torch.bfloat16, torch.float32, not one"):
        make(good | {"dense.bias": good["dense.bias"].bfloat16()}, config)
    with pytest.raises(pl.PositionContractError, match="torch.int8, not one floating-point"):
        make({name: tensor.to(torch.int8) for name, tensor in good.items()}, config)
    module = make({name: tensor.bfloat16() for name, tensor in good.items()}, config)
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    with pytest.raises(pl.PositionContractError, match="mechanism.weight"):
        FAMILIES["deberta"][0]({n: t.double() for n, t in state(*FAMILIES["deberta"][2]).items()}, FAMILIES["deberta"][1])


def test_the_module_holds_copies():
    make, config, names = FAMILIES["conformer"]
    given = state(*names)
    module = make(given, config)
    for tensor in given.values():
        tensor.zero_()
    assert all(bool((parameter == 1).all()) for parameter in module.parameters())


@pytest.mark.parametrize("family, changes, field, says", [
    ("bert", {"position_embedding_type": "rotary"}, "config.position_embedding_type", "relative_key_query"),
    ("bert input", {"position_embedding_type": "rotary"}, "config.position_embedding_type", "relative_key_query"),
    ("conformer", {"position_embeddings_type": "rotary"}, "config.position_embeddings_type", "relative"),
    ("deberta", {"relative_attention": False}, "config.relative_attention", "True"),
    ("deberta", {"pos_att_type": ["c2p", "p2p"]}, "config.pos_att_type", "each once"),
    ("deberta, shared", {"pos_att_type": ["c2p", "p2p"]}, "config.pos_att_type", "each once"),
    ("t5", {"relative_attention_max_distance": 1}, "max_distance", "more than max_exact"),
])
def test_a_config_that_names_another_model_is_refused(family, changes, field, says):
    make, config, names = FAMILIES[family]
    with pytest.raises(pl.PositionContractError, match=says) as caught:
        make(state(*names), config | changes)
    assert caught.value.field == field


def test_a_bias_of_another_stack_is_refused():
    _, config, names = FAMILIES["t5"]
    own = dict(bidirectional=True, edge="transformers")
    for bias in (pl.T5Bias(3, 6, 9, bidirectional=False, edge="transformers"), pl.T5Bias(2, 6, 9, **own), pl.T5Bias(3, 8, 9, **own), pl.T5Bias(3, 6, 12, **own),
                 pl.T5Bias(3, 6, 9, bidirectional=True), pl.T5Bias(3, 6, 9, **own, score_scale=None)):
        with pytest.raises(pl.PositionContractError, match="first layer"):
            maps.t5_attention(state(*names[:4]), config, bidirectional=True, bias=bias)
    with pytest.raises(pl.PositionContractError, match="relative_attention_bias.weight is unexpected"):
        maps.t5_attention(state(*names), config, bidirectional=True, bias=pl.T5Bias(3, 6, 9, **own))


@pytest.mark.parametrize("table", [None, torch.zeros(8, 8), torch.nn.Parameter(torch.zeros(8, 4))])
def test_a_layer_without_its_stacks_table_is_refused(table):
    """A table of its own would be random."""
    _, config, names = FAMILIES["deberta"]
    refused(lambda: maps.deberta_v2_attention(state(*names), config, table), "table")


def test_a_range_buffer_that_was_cast_is_refused():
    make, config, names = FAMILIES["bert input"]
    with pytest.raises(pl.PositionContractError, match="position_ids"):
        make(state(*names) | {"position_ids": torch.arange(5.0)[None]}, config)
