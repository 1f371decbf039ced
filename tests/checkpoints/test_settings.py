"""Settings that no part can follow are refused by the configuration's own names, before any tensor is looked at."""

import pytest
import torch

from positionlib.checkpoints import contract, convert
from positionlib.checkpoints.container import open_container
from positionlib.checkpoints.state import SAID
from tests.checkpoints.conversions import recorded
from tests.refusals import refused

ROPE = {"rope_type": "default", "rope_theta": 500.0}


@pytest.mark.parametrize("family, settings, field", [
    ("llama", {"num_key_value_heads": 3}, "config.num_key_value_heads"), ("llama", {"num_key_value_heads": 8}, "config.num_key_value_heads"),
    ("llama", {"head_dim": 5}, "config.head_dim"), ("gptj", {"rotary_dim": 3}, "config.rotary_dim"), ("gptj", {"rotary_dim": 10}, "config.rotary_dim"),
    ("falcon", {"hidden_size": 20}, "config.hidden_size"),
    ("llama", {"rope_theta": 77.0}, "config.rope_theta"), ("llama", {"rope_scaling": ROPE | {"rope_theta": 77.0}}, "config.rope_theta"),
    ("llama", {"rope_theta": torch.ones(2)}, "config.rope_theta"), ("llama", {"rope_parameters": ROPE | {"rope_theta": True}}, "config.rope_theta"),
    *((family, {"pos_att_type": terms}, "config.pos_att_type") for family in ("deberta", "deberta-v2") for terms in (
        ["c2p", "c2p"], "c2p|p2c|c2p", ["c2p", "p2p"], "none", "", "c2p|", ["C2P"], [["c2p"]], {"c2p": 1}, 3)),
    *(("deberta-v2", {"position_buckets": count}, "config.position_buckets") for count in (1, 2, 5, 14, 256)),
    ("deberta-v2", {"layer_norm_eps": None}, "config.layer_norm_eps"), ("deberta-v2", {"norm_rel_ebd": None}, "config.norm_rel_ebd"),
    *((family, {"pad_token_id": word}, "config.pad_token_id") for family in ("bert", "roberta", "layoutlmv3") for word in (-1, 10**6, True, 1.0, "1")),
    *((family, {"pad_token_id": None}, "config.pad_token_id") for family in ("roberta", "layoutlmv3")),
    *((family, {"max_position_embeddings": 2}, "config.max_position_embeddings") for family in ("roberta", "layoutlmv3", "mpnet")),
    *(("layoutlmv3", {"patch_size": size}, "config.patch_size") for size in ([2, 3], 7)), ("layoutlmv3", {"input_size": 1}, "config.patch_size"),
    ("deberta-v2", {"max_relative_positions": 3}, "config.position_buckets"), ("deberta-v2", {"max_relative_positions": 2**21}, "config.position_buckets"),
])
def test_a_setting_without_a_part_is_refused(family, settings, field):
    refused(lambda: contract(recorded(family).config | settings, family=family), field)


@pytest.mark.parametrize("settings", [{"rope_theta": 500}, {"rope_scaling": ROPE}, {"rope_scaling": {"type": "default"}, "rope_theta": 500.0}])
def test_a_base_may_be_stated_twice(settings):
    config = recorded("llama").config
    assert contract(config | settings, family="llama") == contract(config, family="llama")


@pytest.mark.parametrize("terms", ["c2p|p2c", " C2P | p2c "])
def test_terms_are_read_from_a_text_as_the_source_reads_them(terms):
    for family in ("deberta", "deberta-v2"):
        made = recorded(family)
        told = convert(made.state, made.config | {"pos_att_type": terms}, family=family)
        assert told.contract == contract(made.config, family=family)
        assert [name for name, _ in told["attention.0"].named_parameters()] == [
            name for name, _ in convert(made.state, made.config, family=family)["attention.0"].named_parameters()]


def test_the_faults_of_a_deeper_model_are_counted_beyond_a_limit():
    made = recorded("llama")
    error = refused(lambda: convert(made.state, made.config | {"num_hidden_layers": 500}, family="llama"), "state")
    beyond = 9 * (500 - made.config["num_hidden_layers"]) - SAID
    assert str(error).count("is missing") == SAID and f"; and {beyond} more" in str(error) and len(str(error)) < 20_000


def test_a_tensor_that_is_there_is_found_without_listing_the_others(tmp_path):
    """A file may hold tens of thousands."""
    class Names(dict):
        def __iter__(self):
            raise AssertionError("every name was looked at")

    path = tmp_path / "model.safetensors"
    header = b'{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + (7).to_bytes(8, "little"))
    with open_container(path) as file:
        object.__setattr__(file, "entries", Names(file.entries))
        assert file.tensor("a").tolist() == [7]
