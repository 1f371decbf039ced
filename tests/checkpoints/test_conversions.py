"""Each family's weights, converted, answer as the source did; and each convention that no shape shows is stated."""

from __future__ import annotations

import pytest
import torch

import positionlib as pl
from positionlib.checkpoints import FAMILIES, contract, convert
from tests.checkpoints import official
from tests.checkpoints.conversions import LABELS, family, prove, recorded
from tests.refusals import refused

STATED = {
    "bert": dict(table_layout="rows_width", table_rows=9, layer_sharing="input", added="before_norm", score_scale_factor=1, max_positions=9),
    "bert, relative_key": dict(table_layout="distances_d_head", table_rows=17, layer_sharing="each_layer", relative_sign="query_minus_key", added="nowhere"),
    "bert, relative_key_query": dict(table_layout="distances_d_head", table_rows=17, layer_sharing="each_layer", relative_sign="query_minus_key"),
    "roberta": dict(table_rows=11, max_positions=9, position_id_offset=2, padding_convention="roberta", added="before_norm"),
    "gpt2": dict(table_rows=10, position_id_offset=0, padding_convention="contiguous", added="to_words", layer_sharing="input"),
    "opt": dict(table_rows=11, max_positions=9, position_id_offset=2, padding_convention="opt", added="after_projection"),
    "t5": dict(table_layout="buckets_heads", table_rows=8, relative_sign="key_minus_query", score_scale_factor=0, layer_sharing="first_layer",
               source_target_tables="separate", bias_and_scale="outside"),
    "mpnet": dict(table_layout="buckets_heads", table_rows=32, relative_sign="key_minus_query", score_scale_factor=1, layer_sharing="stack",
                  position_id_offset=2, padding_convention="roberta"),
    "bloom": dict(table_layout="none", table_rows=None, bias_and_scale="outside", padding_convention="generation_v5", formula="slopes of 3 heads, paper"),
    "mpt": dict(table_layout="none", bias_and_scale="outside", padding_convention="contiguous", formula="slopes of 3 heads, mpt to 6"),
    "falcon-alibi": dict(bias_and_scale="inside", formula="slopes of 4 heads, paper, slope and product rounded to bfloat16"),
    "falcon": dict(pairing="half_split", formula="rotation of all 4 channels, base 10000", bias_and_scale="no_bias"),
    "deberta": dict(table_layout="distances_width", table_rows=8, relative_sign="query_minus_key", score_scale_factor=3, layer_sharing="stack"),
    "deberta-v2": dict(table_layout="distances_width", table_rows=8, relative_sign="query_minus_key", score_scale_factor=3, layer_sharing="stack"),
    "llama": dict(pairing="half_split", formula="rotation of all 6 channels, base 500", score_scale_factor=1, max_positions=16),
    "gptj": dict(pairing="interleaved", formula="rotation of the first 4 of 8 channels, base 10000", max_positions=9),
    "vit": dict(table_rows=10, cls_rule="row 0 is CLS, before the first patch", added="to_patches", layer_sharing="input"),
    "layoutlmv3": dict(table_layout="heads_buckets", table_rows=40, bias_and_scale="inside", position_id_offset=2, layer_sharing="stack"),
}


@pytest.mark.parametrize("label", LABELS)
def test_the_converted_parts_answer_as_the_source_did(label):
    made = recorded(label)
    proof = prove(label, made)
    assert proof.holds, proof.differences
    assert {part.partition(",")[0] for part in made.calls} == set(proof.conversion.parts), "a part that nobody compared proves nothing"
    groups = proof.conversion.reconciled
    assert sorted(name for names in groups.values() for name in names) == sorted(made.state), "every tensor is in one group"


@pytest.mark.parametrize("label", LABELS)
def test_what_no_shape_shows_is_stated(label):
    made = contract(recorded(label).config, family=family(label))
    assert {name: getattr(made, name) for name in STATED[label]} == STATED[label]
    assert made.family == family(label) and made.source_revision.split()[1].rstrip(",") == ("4.57.6" if "relative" in label else "5.24.0")
    assert made.head_assignment == tuple(range(made.head_count))


def test_every_family_is_compared():
    assert {family(label) for label in LABELS} | {"t5x", "transformer-xl", "deberta-official", "tupe", "graphormer"} == set(FAMILIES)


@pytest.mark.parametrize("proof", list(official.PROOFS), ids=lambda item: "-".join((item[0].__name__, *item[1])))
def test_the_authors_own_code_answered_so(proof):
    make, arguments = proof
    found = make(*arguments)
    assert found.holds, found.differences


def test_the_authors_conventions_are_stated():
    for make, arguments, said in [
            (official.t5x, (), dict(table_layout="heads_buckets", table_rows=8, layer_sharing="stack", score_scale_factor=0)),
            (official.transformer_xl, (), dict(relative_sign="query_minus_key", layer_sharing="stack", clipping_or_bucket_rule="no clamp")),
            (official.deberta_official, ("official_c2p_p2c_share0_b-1_max4_L6",), dict(score_scale_factor=3, added="in_mask_decoder", table_rows=8)),
            (official.tupe, ("R_T7_h3_L1_post",), dict(score_scale_factor=2, table_rows=8, cls_rule="column 0 is p1·p1, then row 0 is p0·p0; buckets 8 and 4")),
            (official.graphormer, ("directed_cycle",), dict(table_rows=512, cls_rule="the graph token's row and column have one number a head"))]:
        made = make(*arguments).conversion.contract
        assert {name: getattr(made, name) for name in said} == said


def test_a_stack_owns_one_table():
    made = recorded("t5")
    weights = convert(made.state, made.config, family="t5")
    for stack in ("encoder", "decoder"):
        first, second = (weights[f"{stack}.attention.{n}"] for n in (0, 1))
        assert first.mechanism is second.mechanism and weights[f"{stack}.attention.0"] is first
    assert weights["encoder.attention.0"].mechanism is not weights["decoder.attention.0"].mechanism
    for label in ("mpnet", "layoutlmv3", "deberta", "deberta-v2"):
        made = recorded(label)
        weights = convert(made.state, made.config, family=label)
        first, second = (weights[f"attention.{n}"].mechanism for n in (0, 1))
        assert first is second if label in ("mpnet", "layoutlmv3") else first.weight is second.weight and first is not second


def test_the_parts_hold_copies():
    made = recorded("gpt2")
    weights = convert(made.state, made.config, family="gpt2")
    before = weights["attention.0"].q.weight.clone()
    for tensor in made.state.values():
        tensor.zero_()
    assert torch.equal(weights["attention.0"].q.weight, before) and bool((weights["attention.1"].q.weight == 0).all()), "a part is made when it is asked for"
    assert dict(weights).keys() == set(weights.parts) and len(weights) == len(weights.parts)
    with pytest.raises(pl.PositionContractError, match="attention.1"):
        weights["attention.2"]


@pytest.mark.parametrize("label, prefix, head", [
    ("roberta", "roberta.", "lm_head.bias"), ("mpnet", "mpnet.", "lm_head.dense.weight"), ("falcon", "transformer.", "lm_head.weight"),
    ("vit", "vit.", "classifier.weight"), ("opt", "model.", "lm_head.weight")])
def test_a_head_that_was_trained_on_the_model_changes_nothing(label, prefix, head):
    made = recorded(label)
    bare, inside = (convert(state, made.config, family=label) for state in
                    (made.state, {f"{prefix}{name}": tensor for name, tensor in made.state.items()} | {head: torch.ones(3)}))
    assert inside.reconciled["head"] == (head,) and inside.contract == bare.contract
    assert all(torch.equal(a, b) for a, b in zip(bare["attention.1"].state_dict().values(), inside["attention.1"].state_dict().values()))
    assert {prefix + name for name in bare.reconciled["read"]} == set(inside.reconciled["read"]), "names are reported as the file has them"


@pytest.mark.parametrize("label", ["bloom", "mpt", "falcon-alibi"])
def test_slopes_follow_their_heads(label):
    """Joined shards may put the heads in another order: named, the layer computes what it did; unnamed, it does not."""
    made, name = recorded(label), {"bloom": "n_head", "mpt": "n_heads", "falcon-alibi": "num_attention_heads"}[label]
    heads = made.config[name]
    order = tuple(reversed(range(heads)))
    moved = {key: reordered(key, tensor, order) for key, tensor in made.state.items()}
    call = made.calls["attention.0"]
    geometry = pl.AttentionGeometry.causal_self(7)
    named, unnamed = (convert(moved, made.config, family=label, head_assignment=given) for given in (order, None))
    plain = convert(made.state, made.config, family=label)["attention.0"](call["x"], geometry)
    assert torch.allclose(named["attention.0"](call["x"], geometry), plain, atol=1e-12)
    assert not torch.allclose(unnamed["attention.0"](call["x"], geometry), plain, atol=1e-2)
    assert named.contract.head_assignment == order and named.contract.scheme_id != unnamed.contract.scheme_id


def reordered(name: str, tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """A tensor of attention with its heads in another order: q, k and v rows, and the output projection's columns."""
    heads, at = len(order), torch.tensor(order)
    if "query_key_value" in name:
        return tensor.unflatten(0, (heads, -1))[at].flatten(0, 1)
    if "Wqkv" in name:
        return tensor.unflatten(0, (3, heads, -1))[:, at].flatten(0, 2)
    if name.endswith(("attention.dense.weight", "attn.out_proj.weight")):
        return tensor.unflatten(1, (heads, -1))[:, at].flatten(1, 2)
    return tensor


PUBLISHED = [  # fields that published configuration files of these families leave out, or call otherwise
    ("gpt2", ("n_inner", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "add_cross_attention"), {}),
    ("bloom", (), {"n_head": "num_attention_heads", "hidden_size": "n_embed"}), ("llama", ("attention_bias", "mlp_bias"), {}),
    ("falcon", ("ffn_hidden_size", "num_ln_in_parallel_attn"), {}), ("opt", ("enable_bias", "layer_norm_elementwise_affine", "_remove_final_layer_norm"), {})]


@pytest.mark.parametrize("label, absent, renamed", PUBLISHED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_published_configuration_may_leave_to_the_source_what_the_tensors_show(label, absent, renamed):
    made = recorded(label)
    config = {renamed.get(name, name): value for name, value in made.config.items() if name not in absent}
    weights = convert(made.state, config, family=label)
    assert weights.contract == contract(made.config, family=label)
    call = made.calls["attention.1"]
    geometry = pl.AttentionGeometry.causal_self(call["x"].shape[1])
    assert torch.allclose(weights["attention.1"](call["x"], geometry), call["out"], atol=2e-6)
    for name, other in renamed.items():
        assert convert(made.state, made.config | {other: made.config[name]}, family=label).contract == weights.contract
        refused(lambda: convert(made.state, made.config | {other: made.config[name] + 1}, family=label), f"config.{other}")


def test_berts_first_files_call_gain_and_offset_otherwise():
    made = recorded("bert")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t for name, t in made.state.items()}
    assert "bert.embeddings.LayerNorm.gamma" in old and "cls.predictions.transform.LayerNorm.beta" in old
    now, then = (convert(state, made.config, family="bert") for state in (made.state, old))
    assert all(torch.equal(a, b) for part in now.parts for a, b in zip(now[part].state_dict().values(), then[part].state_dict().values()))
    assert "bert.embeddings.LayerNorm.gamma" in then.reconciled["read"], "names are reported as the file has them"
    both = old | {"bert.embeddings.LayerNorm.weight": made.state["bert.embeddings.LayerNorm.weight"]}
    assert "its present name too" in str(refused(lambda: convert(both, made.config, family="bert"), "state"))


def test_debertas_published_files_hold_rows_that_transformers_reads_nowhere():
    made, name = recorded("deberta-v2"), "embeddings.position_embeddings.weight"
    rows = torch.ones(9, 12, dtype=torch.float64)
    assert name in convert(made.state | {name: rows}, made.config, family="deberta-v2").reconciled["elsewhere"]
    refused(lambda: convert(made.state | {name: rows[1:]}, made.config, family="deberta-v2"), "state")
