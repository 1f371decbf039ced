"""Manifests under a family: what breaks the contract is a finding, what agrees with the family is clean."""

from __future__ import annotations

import pytest

from positionlib.call import PositionCall
from positionlib.check import FAMILIES, check_manifest
from tests.refusals import refused

LEFT, RIGHT = [[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]], [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
T5_RULE = {"family": "bias", "relation_sign": "key_minus_query", "state_object": "bias", "clipping_or_bucket_rule":
           {"name": "t5", "num_buckets": 32, "max_distance": 128, "bidirectional": False}}


def built(name: str) -> dict[str, PositionCall]:
    """Clean calls of a family."""
    family = FAMILIES[name]
    causal, numbering = family.causal, {"numbering": "compressed"} if family.first == 0 else {"numbering": "fixed_pad", "pad_position": 1, "first_position": 2}
    calls = {side: PositionCall.padded(mask, causal=causal, **numbering) for side, mask in (("left", LEFT), ("right", RIGHT))}
    calls["packed"] = PositionCall.packed([3, 2], causal=causal, starts=[family.first] * 2)
    if causal:
        calls |= {"left decode": calls["left"].append(), "packed decode": calls["packed"].append(2), "decode": PositionCall.decode(7, 2),
                  "chunk": PositionCall.chunked_prefill([3, 2])[1]}
    return calls


@pytest.mark.parametrize("name", FAMILIES)
def test_clean_calls_are_clean(name):
    found = {label: report.findings for label, call in built(name).items() if (report := check_manifest(call.to_dict(), name)).findings}
    assert found == {}


def changed(call: PositionCall, path: str, value) -> dict:
    document = call.to_dict()
    part, leaf = path.split(".")
    document[part][leaf] = value
    return document


@pytest.mark.parametrize(("code", "field", "name", "document"), [
    ("contract", "query_space.logical_positions", "gpt2", changed(PositionCall.decode(5), "query_space.logical_positions", [0])),
    ("contract", "cache.release_id", None, changed(PositionCall.decode(5), "cache.release_id", "r0")),
    ("contract", "visibility.segment_isolation", "llama", changed(PositionCall.packed([3, 3]), "visibility.segment_isolation", "none")),
    ("contract", "key_space.coordinate_frame", "t5", changed(PositionCall.cross(2, 3), "key_space.coordinate_frame", "")),
    ("contract", "numerical_state.index_dtype", "gpt2", changed(PositionCall.decode(300), "numerical_state.index_dtype", "int8")),
    ("causality", "visibility.mask_id", "gpt2", PositionCall.padded(LEFT, numbering="compressed").to_dict()),
    ("method", "position_method.family", "gpt2", PositionCall.decode(5, method={"family": "fixed_abs"}).to_dict()),
    ("bucket-direction", "position_method.clipping_or_bucket_rule.bidirectional", "t5-decoder",
     PositionCall.decode(5, heads=2, method={**T5_RULE, "clipping_or_bucket_rule": {**T5_RULE["clipping_or_bucket_rule"], "bidirectional": True}}).to_dict()),
    ("relation-sign", "position_method.relation_sign", "t5-decoder",
     PositionCall.decode(5, heads=2, method={**T5_RULE, "relation_sign": "query_minus_key"}).to_dict()),
    ("left-pad-counted", "query_space.logical_positions", "gpt2", PositionCall.padded(LEFT, causal=True).to_dict()),
    ("decode-counts-pads", "query_space.logical_positions", "gpt2", PositionCall.padded(LEFT, causal=True).append().to_dict()),
    ("pads-between", "query_space.logical_positions", "mpt", PositionCall.padded(RIGHT, causal=True, numbering="compressed").append().to_dict()),
    ("cache-unexpected", "cache.past_seen_tokens", "bert", PositionCall.decode(5).replace({"visibility.mask_id": "full"}).to_dict()),
    ("empty-row", "row_space.active_token_per_row", "gpt2", PositionCall.padded([[1, 1], [0, 0]], numbering="compressed", causal=True).to_dict()),
])
def test_faults_are_named_with_the_manifests_field(code, field, name, document):
    assert [(f.code, f.field) for f in check_manifest(document, name).findings] == [(code, field)]


def test_sequences_of_different_lengths_are_looked_at_one_by_one():
    document = PositionCall.packed([3, 2], starts=[0, 4]).append().to_dict()
    assert check_manifest(document, "llama").findings == ()
    found, = check_manifest(document, "gpt2").findings
    assert (found.code, found.row) == ("shifted", 1)
    assert found.message == "sequence 1 by itself: row 0 decodes at position 6 where 2 is due"


def test_a_t5_decoder_call_that_names_its_rule_is_clean():
    assert check_manifest(PositionCall.decode(5, heads=2, method=T5_RULE).to_dict(), "t5-decoder").findings == ()


def test_source_and_target_streams_are_explained_and_not_compared():
    report = check_manifest(PositionCall.cross(2, 3).to_dict(), "t5-decoder")
    assert report.findings == () and "target" in report.explanation[1]


def test_without_a_family_a_manifest_is_validated_and_explained():
    report = check_manifest(PositionCall.padded(LEFT).to_dict(), None)
    assert report.status == 0 and report.explanation[:1] == ("encoder call: 10 queries (sequence), 10 keys (sequence), mask full, isolation batch_rows",)


def test_another_schema_or_family_is_refused():
    refused(lambda: check_manifest({**PositionCall.decode(2).to_dict(), "schema": "numinens.position-call.v2"}, "gpt2"), "schema")
    refused(lambda: check_manifest({}, "gpt2"), "schema")
    refused(lambda: check_manifest(PositionCall.decode(2).to_dict(), "gpt9"), "family")
