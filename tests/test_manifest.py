"""What the manifest refuses: every fault by its dotted path, whether inside one part or between two."""

import pytest
from pydantic import BaseModel

from positionlib.call import PositionCall
from positionlib.errors import PositionContractError
from positionlib.manifest import PositionMethod, RowSpace
from tests.refusals import refused

LEFT = [[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]


def decode(**changes):
    return PositionCall.decode(4).replace({path.replace("__", "."): value for path, value in changes.items()})


@pytest.mark.parametrize(("changes", "field"), [
    ({"query_space__logical_positions": [0]}, "query_space.logical_positions"),
    ({"query_space__logical_positions": [True]}, "query_space.logical_positions.0"),
    ({"query_space__logical_positions": [4.0]}, "query_space.logical_positions.0"),
    ({"query_space__logical_positions": [-1]}, "query_space.logical_positions.0"),
    ({"query_space__logical_positions": [2**70]}, "query_space.logical_positions.0"),
    ({"query_space__row_indices": [5]}, "query_space.row_indices"), ({"query_space__row_indices": [4, 4]}, "query_space.logical_positions"),
    ({"query_space": {"row_indices": [4, 4], "logical_positions": [4, 4], "coordinate_frame": "sequence"}}, "query_space.row_indices"),
    ({"query_space__row_indices": []}, "query_space.row_indices"), ({"query_space__coordinate_frame": "other"}, "query_space.coordinate_frame"),
    ({"key_space__cache_slots": [0, 1, 2, 3, 9]}, "key_space.cache_slots"), ({"key_space__cache_slots": [0, 1, 2, 3, 3]}, "key_space.cache_slots"),
    ({"key_space__cache_slots": None}, "key_space.row_indices"), ({"key_space__row_indices": [0, 1, 2, 3, 4]}, "key_space.row_indices"),
    ({"key_space__logical_positions": [1, 2, 3, 4, 4]}, "key_space.logical_positions"),
    ({"row_space__storage_rows": [0, 1, 2, 3, 3]}, "row_space.storage_rows"),
    ({"row_space__active_token_per_row": [True] * 4}, "row_space.active_token_per_row"), ({"row_space__active_token_per_row": [1] * 5}, "row_space.active_token_per_row.0"),
    ({"row_space__stream_per_row": ["decoder"] * 4 + ["audio"]}, "row_space.stream_per_row.4"),
    ({"row_space__stream_per_row": ["encoder"] + ["decoder"] * 4}, "key_space.row_indices"),
    ({"row_space__sequence_id_per_row": [0.0] * 5}, "row_space.sequence_id_per_row.0"),
    ({"row_space__logical_position_per_row": {0, 1, 2, 3, 4}}, "row_space.logical_position_per_row"),
    ({"cache__committed_length": 5}, "query_space.logical_positions"), ({"cache__committed_length": [4, 4]}, "cache.committed_length"),
    ({"cache__past_seen_tokens": 3}, "cache.past_seen_tokens"), ({"cache__cache_id": None}, "cache.committed_length"),
    ({"cache__coordinate_frame": "other"}, "cache.coordinate_frame"), ({"cache__checkpoint_id": "b"}, "cache.checkpoint_id"),
    ({"cache__release_id": "b"}, "cache.release_id"), ({"visibility__polarity": None}, "visibility.polarity"),
    ({"visibility__segment_isolation": "yes"}, "visibility.segment_isolation"), ({"numerical_state__index_dtype": "float32"}, "numerical_state.index_dtype"),
    ({"numerical_state__compute_dtype": "int64"}, "numerical_state.compute_dtype"), ({"position_method__relation_sign": "key_minus_query"}, "position_method.relation_sign"),
    ({"position_method__family": "relative"}, "position_method.relation_sign"), ({"position_method__score_bias_shape": [1, 1, 1, 5]}, "position_method.score_bias_shape"),
    ({"position_method__clipping_or_bucket_rule": {"name": "clip"}}, "position_method.clipping_or_bucket_rule"),
    ({"request__request_id": "  "}, "request.request_id"), ({"schema": "numinens.position-call.v2"}, "schema"), ({"article_owner": "M3.4"}, "article_owner"),
])
def test_a_fault_is_refused_by_its_dotted_path(changes, field):
    refused(lambda: decode(**changes), field)


def test_mixing_a_reset_query_with_a_cache_is_explained():
    error = refused(lambda: PositionCall.decode(512).replace({"query_space.logical_positions": [0]}), "query_space.logical_positions")
    assert error.value == 0 and "512" in error.expected and "committed_length" in error.remedy


def test_unknown_missing_and_unsupported_fields_are_named():
    document = PositionCall.decode(4).to_dict()
    document["request"]["releas_id"] = document["request"].pop("release_id")
    assert refused(lambda: PositionCall(**document), "request.releas_id").remedy == "Did you mean release_id?"
    del document["request"]["releas_id"]
    refused(lambda: PositionCall(**document), "request.release_id")
    error = refused(lambda: decode(schema="v0"), "schema")
    assert "numinens.position-call.v1" in error.expected and "Migrate" in error.remedy
    without = PositionCall.decode(4).to_dict()
    del without["schema"]
    refused(lambda: PositionCall(**without), "schema")
    refused(lambda: PositionCall.decode(300, index_dtype="int8"), "numerical_state.index_dtype")
    assert PositionCall.decode(127, index_dtype="int8").numerical_state.index_dtype == "int8"


def test_a_ragged_batch_is_no_batch():
    call = PositionCall.padded([[1, 1], [1, 1]])
    error = refused(lambda: call.replace({"row_space.sequence_id_per_row": [0, 1, 1, 1]}), "query_space.row_indices")
    assert "rectangular" in error.remedy


def test_everything_is_frozen_and_every_copy_is_validated():
    call = PositionCall.decode(4)
    refused(lambda: setattr(call, "cache", None), "cache")
    refused(lambda: setattr(call.cache, "committed_length", 0), "committed_length")
    refused(lambda: call.model_copy(update={"cache": {"cache_id": None}}), "cache.committed_length")
    refused(lambda: PositionCall.model_construct(), "PositionCall")
    refused(lambda: PositionMethod.model_validate({}), "family")
    assert mutable_parts(PositionCall.padded(LEFT).append()) == []
    assert hash(call) == hash(PositionCall.decode(4)) and call == PositionCall.decode(4) and call != PositionCall.decode(5)
    assert isinstance(RowSpace(**call.to_dict()["row_space"]).storage_rows, tuple)


def mutable_parts(value):
    if isinstance(value, BaseModel):
        return [part for _, field in value for part in mutable_parts(field)]
    if isinstance(value, tuple):
        return [part for item in value for part in mutable_parts(item)]
    return [] if isinstance(value, (int, str, type(None))) else [value]


@pytest.mark.parametrize(("call", "changes", "says"), [
    # A frame mixture, by what makes it one: an offset or an order between frames, or one stream counted from two origins.
    (PositionCall.cross(2, 3), {"visibility.mask_id": "causal"}, "causal order"), (PositionCall.decode(2), {"query_space.coordinate_frame": "f"}, "causal order"),
    (PositionCall.padded([[1, 1]]), {"query_space.coordinate_frame": "f"}, "inside one stream"),
    (PositionCall.decode(3), {"row_space.logical_position_per_row": [0, 1, 7, 3], "key_space.logical_positions": [0, 1, 7, 3]}, "cannot be ahead"),
    (PositionCall.packed([2, 2]), {"query_space.logical_positions": [0, 1, 0, 2]}, "the logical position of row 3"),
    (PositionCall.packed([2, 2]), {"key_space.logical_positions": [0, 1, 2, 3]}, "the logical position of row 2"),
])
def test_disagreement_between_parts_is_explained(call, changes, says):
    with pytest.raises(PositionContractError, match=says):
        call.replace(changes)


def test_padding_rows_are_exempt_from_rules_about_tokens():
    step = PositionCall.padded([[1, 0], [1, 1]], causal=True).append()  # row 1 of the batch has finished: its query is padding
    active = [*step.row_space.active_token_per_row[:-1], False]
    positions, queries, keys = [*step.row_space.logical_position_per_row[:-1], 0], [1, 0], [*step.key_space.logical_positions[:-1], 0]
    changed = {"row_space.logical_position_per_row": positions, "query_space.logical_positions": queries, "key_space.logical_positions": keys}
    assert step.replace({**changed, "row_space.active_token_per_row": active}).geometry().query_positions.tolist() == [[1], [0]]
    refused(lambda: step.replace(changed), "query_space.logical_positions")
    stream = PositionCall.packed([2, 1], reset=False, isolate=False)
    shared = {"row_space.logical_position_per_row": [0, 1, 0], "query_space.logical_positions": [0, 1, 0], "key_space.logical_positions": [0, 1, 0]}
    refused(lambda: stream.replace(shared), "visibility.segment_isolation")
    assert stream.replace({**shared, "row_space.active_token_per_row": [True, True, False]}).geometry().key_active.tolist() == [True, True, False]
