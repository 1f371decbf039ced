"""Four identities from one record: each changes with any of its fields alone, and equal calls share all of them."""

from dataclasses import fields, replace

import pytest

from positionlib.call import PositionCall
from positionlib.errors import PositionContractError
from positionlib.identity import (AdmissionTuple, BiasReuseKey, CacheIdentity, IdentityRecord, RequestIdentity, identity)

FACTS = {"table_rows": 512, "config_max_position_embeddings": 512, "position_id_policy": "contiguous", "source_revision": "d09f53a", "variant": "t5",
         "table_or_slope_version": "v1", "head_partition": [0, 1], "device": "cpu"}
T5 = {"family": "bias", "state_object": "relative_attention_bias", "relation_sign": "key_minus_query",
      "clipping_or_bucket_rule": {"name": "t5-exact", "num_buckets": 32, "max_distance": 128, "bidirectional": False}}
IDENTITIES = ("cache_identity", "admission_tuple", "bias_reuse_key", "request_identity")

# The article's four lists, and the record fields that each listed item is made of.
LISTED = {
    "cache_identity": {
        "request_id": ["request_id"], "sequence_ids": ["segment_ids"], "committed_length": ["committed_length"], "coordinate_frame": ["coordinate_frame"],
        "offset_sign": ["relation_sign"], "checkpoint_id": ["checkpoint_id"], "adapter_id": ["adapter_id"],
        "position_method": ["family", "state_object", "relation_sign", "rule", "num_buckets", "max_distance", "bidirectional", "head_count"],
        "dtype": ["index_dtype", "parameter_dtype", "compute_dtype", "score_accumulation_dtype"], "backend": ["backend_id", "implementation_revision"],
        "release_id": ["release_id"], "origin": ["q_start", "k_start"], "visibility": ["visibility"]},
    "admission_tuple": {
        "release_id": ["release_id"], "checkpoint_id": ["checkpoint_id"],
        "position_method": ["family", "state_object", "relation_sign", "rule", "num_buckets", "max_distance", "bidirectional", "head_count"],
        "table_rows": ["table_rows"], "config_max_position_embeddings": ["config_max_position_embeddings"], "position_id_policy": ["position_id_policy"],
        "adapter_id": ["adapter_id"], "runtime_backend": ["backend_id"]},
    "bias_reuse_key": {
        "release_id": ["release_id"], "stack_role": ["stack_role"], "bidirectional": ["bidirectional"], "num_buckets": ["num_buckets"],
        "max_distance": ["max_distance"], "q_start": ["q_start"], "k_start": ["k_start"], "Q": ["Q"], "K": ["K"], "head_count": ["head_count"],
        "dtype": ["compute_dtype"], "device": ["device"]},
    "request_identity": {
        "release_id": ["release_id"], "checkpoint_id": ["checkpoint_id"], "source_revision": ["source_revision"], "position_family": ["family"],
        "variant": ["variant"], "sign_rule": ["relation_sign"], "query_start": ["q_start"], "key_start": ["k_start"], "segment_ids": ["segment_ids"],
        "table_or_slope_version": ["table_or_slope_version"], "head_partition": ["head_partition"], "backend_id": ["backend_id"], "dtype": ["compute_dtype"]},
}


def t5_call(committed=4, **options):
    return PositionCall.decode(committed, method=T5, heads=2, **options)


def record(call=None):
    return identity(t5_call() if call is None else call, **FACTS)


@pytest.mark.parametrize(("name", "kind"), list(zip(IDENTITIES, (CacheIdentity, AdmissionTuple, BiasReuseKey, RequestIdentity))))
def test_each_identity_has_the_articles_fields_in_order(name, kind):
    assert kind._fields == tuple(LISTED[name]) and type(getattr(record(), name)) is kind


@pytest.mark.parametrize("changed", [f.name for f in fields(IdentityRecord)])
def test_changing_one_field_alone_changes_exactly_the_identities_that_list_it(changed):
    before = record()
    after = replace(before, **{changed: "another value"})
    assert after.differs(before) == (changed,)
    listed = {name: [item for item, parts in items.items() if changed in parts] for name, items in LISTED.items()}
    assert any(listed.values()), "a field that no identity looks at has no place in the record"
    for name, items in listed.items():
        old, new = getattr(before, name), getattr(after, name)
        assert [item for item, a, b in zip(old._fields, old, new) if a != b] == items
        assert (old != new) == bool(items)


CHANGES = [
    ({"request.request_id": "r2"}, ["cache_identity"]),
    ({"request.release_id": "r2", "cache.release_id": "r2"}, IDENTITIES),
    ({"request.checkpoint_id": "c2", "cache.checkpoint_id": "c2"}, ["cache_identity", "admission_tuple", "request_identity"]),
    ({"request.adapter_id": "a2"}, ["cache_identity", "admission_tuple"]),
    ({"row_space.sequence_id_per_row": ["A"] * 5}, ["cache_identity", "request_identity"]),
    ({"position_method.relation_sign": "query_minus_key"}, ["cache_identity", "admission_tuple", "request_identity"]),
    ({"position_method.state_object": "other"}, ["cache_identity", "admission_tuple"]),
    ({"position_method.clipping_or_bucket_rule.name": "t5-transformers"}, ["cache_identity", "admission_tuple"]),
    ({"position_method.clipping_or_bucket_rule.num_buckets": 64}, ["cache_identity", "admission_tuple", "bias_reuse_key"]),
    ({"position_method.clipping_or_bucket_rule.max_distance": 64}, ["cache_identity", "admission_tuple", "bias_reuse_key"]),
    ({"position_method.clipping_or_bucket_rule.bidirectional": True}, ["cache_identity", "admission_tuple", "bias_reuse_key"]),
    ({"position_method.score_bias_shape": [1, 4, 1, 5]}, ["cache_identity", "admission_tuple", "bias_reuse_key"]),
    ({"row_space.stream_per_row": ["encoder"] * 5}, ["bias_reuse_key"]),
    ({"query_space.coordinate_frame": "f", "key_space.coordinate_frame": "f", "cache.coordinate_frame": "f"}, ["cache_identity"]),
    ({"numerical_state.index_dtype": "int32"}, ["cache_identity"]), ({"numerical_state.parameter_dtype": "float16"}, ["cache_identity"]),
    ({"numerical_state.score_accumulation_dtype": "float64"}, ["cache_identity"]),
    ({"numerical_state.compute_dtype": "bfloat16"}, ["cache_identity", "bias_reuse_key", "request_identity"]),
    ({"runtime.backend_id": "triton"}, ["cache_identity", "admission_tuple", "request_identity"]),
    ({"runtime.implementation_revision": "abc"}, ["cache_identity"]),
]


@pytest.mark.parametrize(("changes", "affected"), CHANGES, ids=[next(iter(c)) for c, _ in CHANGES])
def test_changing_one_field_of_a_call_changes_its_identities(changes, affected):
    before, after = record(), record(t5_call().replace(changes))
    assert [name for name in IDENTITIES if getattr(before, name) != getattr(after, name)] == [name for name in IDENTITIES if name in affected]


@pytest.mark.parametrize("a, b", [(PositionCall.padded([[1, 1, 1]]), PositionCall.padded([[1, 1, 0]])),
                                  (PositionCall.packed([3, 2], reset=False), PositionCall.packed([3, 2], reset=False, isolate=False))])
def test_another_visibility_is_another_cache(a, b):
    assert record(a).differs(record(b)) == ("visibility",) and record(a).cache_identity != record(b).cache_identity


def test_the_scheme_id_is_unambiguous():
    one, other = (PositionCall.packed([1], release_id=release, checkpoint_id=checkpoint) for release, checkpoint in (("a/b", "c"), ("a", "b/c")))
    assert one.geometry().scheme_id != other.geometry().scheme_id


@pytest.mark.parametrize("fact", sorted(FACTS))
def test_an_undeclared_fact_is_refused_where_it_is_needed_and_only_there(fact):
    partial = identity(t5_call(), **{name: value for name, value in FACTS.items() if name != fact})
    for name in IDENTITIES:
        if fact in LISTED[name]:
            with pytest.raises(PositionContractError) as caught:
                getattr(partial, name)
            assert caught.value.field == fact and f"identity(call, {fact}=" in caught.value.remedy
        else:
            assert getattr(partial, name) == getattr(record(), name)
    assert getattr(identity(t5_call(), **{**FACTS, fact: None}), fact) is None


def test_equal_calls_are_equal_and_hash_equal():
    first, second = record(), record(PositionCall.from_json(t5_call().to_json()))
    assert t5_call().identity(**FACTS) == first == second and hash(first) == hash(second) and first.differs(second) == ()
    assert [hash(getattr(first, name)) for name in IDENTITIES] == [hash(getattr(second, name)) for name in IDENTITIES]


def test_the_reuse_key_of_a_decode_step_is_read_from_its_coordinates():
    assert record(t5_call(512)).bias_reuse_key == ("unnamed", "decoder", False, 32, 128, 512, 0, 1, 513, 2, "float32", "cpu")
    assert record(t5_call(511)).differs(record(t5_call(512))) == ("segment_ids", "visibility", "committed_length", "q_start", "K")


def test_the_offset_is_part_of_every_derived_identity_not_only_the_length():  # O19
    first, second = (PositionCall.packed([2], starts=[start]) for start in (0, 7))
    for name in ("cache_identity", "bias_reuse_key", "request_identity"):
        assert getattr(record(first), name) != getattr(record(second), name)


def test_positions_that_are_no_range_never_share_a_key():
    calls = [PositionCall.packed(lengths) for lengths in ([2, 4], [4, 2], [3, 3], [6])]
    calls += [PositionCall.packed([3, 3], starts=starts) for starts in ([0, 1], [1, 0])]
    calls += [PositionCall.padded(mask, numbering="compressed") for mask in ([[0, 1, 1], [1, 1, 1]], [[0, 0, 1], [1, 1, 1]], [[1, 1, 1], [0, 1, 1]])]
    keys = [record(call).bias_reuse_key for call in calls]
    assert len(set(keys)) == len(calls)
    assert keys[3].q_start == 0 and all(str(key.q_start).startswith("sha256:") for i, key in enumerate(keys) if i != 3)
    ragged = PositionCall.padded([[0, 1], [1, 1]], numbering="compressed")
    assert record(ragged).q_start != record(ragged.replace({"visibility.segment_isolation": "sequence_ids"})).q_start
    flat = PositionCall.packed([3, 3])
    batch = PositionCall.padded([[1, 1, 1], [1, 1, 1]], causal=True)
    assert (record(batch).q_start, record(batch).Q) == (0, 3) and record(flat).Q == 6


def test_cross_attention_has_its_own_stack_role_and_direction_follows_the_mask():
    assert record(PositionCall.cross(2, 3)).stack_role == "decoder-reads-encoder"
    assert record(PositionCall.padded([[1, 1]])).bidirectional is True and record(PositionCall.packed([2])).bidirectional is False
    assert record(PositionCall.padded([[1, 1]])).stack_role == "encoder"


def test_facts_are_named_and_normalised():
    assert record().head_partition == (0, 1) and record().device == "cpu"
    with pytest.raises(PositionContractError) as caught:
        identity(t5_call(), rows=3)
    assert caught.value.field == "rows" and "table_rows" in caught.value.expected


def test_one_count_and_a_list_of_it_are_one_identity():
    call = PositionCall.decode(3)
    listed = call.replace({"cache.committed_length": [3], "cache.past_seen_tokens": [3]})
    assert all(getattr(record(call), name) == getattr(record(listed), name) for name in IDENTITIES) and record(listed).committed_length == 3


def test_where_rows_are_stored_and_how_many_is_in_no_identity():
    call = PositionCall.decode(3)
    for changes in ({"cache.cache_id": "another"}, {"cache.past_seen_tokens": 9}):
        assert record(call).differs(record(call.replace(changes))) == ()


def test_the_lengths_of_a_batch_are_those_of_one_row():
    batch = record(PositionCall.padded([[1, 1, 1]] * 2))
    assert (batch.Q, batch.K) == (3, 3)
