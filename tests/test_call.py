"""The positional call: what the builders number, and what the geometry compiles. Case ids O.. are public reports."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from positionlib.call import PositionCall
from positionlib.errors import FrameMismatchError
from positionlib.manifest import Rule
from tests.refusals import refused

BIAS = {"family": "bias", "state_object": "table", "relation_sign": "key_minus_query"}
LEFT = [[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("mask", [
    [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], [[False, False, True, True, True], [True] * 5],
    np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=np.uint8), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]),
    torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool(),
])
def test_o01_compressed_numbers_tokens_whatever_the_side(mask):
    geometry = PositionCall.padded(mask, side="left", numbering="compressed").geometry()
    assert geometry.key_active.tolist() == [[False, False, True, True, True], [True] * 5]
    assert [row[a].tolist() for row, a in zip(geometry.query_positions, geometry.key_active)] == [[0, 1, 2], [0, 1, 2, 3, 4]]
    contiguous = PositionCall.padded(mask, side="left").geometry()
    assert contiguous.query_positions.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_o02_each_row_of_a_left_padded_batch_decodes_from_its_own_count():
    prefill = PositionCall.padded(LEFT, side="left", numbering="compressed", causal=True)
    step = prefill.append(2)
    assert step.geometry().query_positions.tolist() == [[2, 3], [5, 6]]
    assert (step.cache.committed_length, step.cache.past_seen_tokens) == ((2, 5), (5, 5))
    assert step.geometry().visible.int().tolist() == [[[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1]], [[1, 1, 1, 1, 1, 1, 0], [1] * 7]]
    assert step.append().geometry().query_positions.tolist() == [[4], [7]]
    refused(lambda: step.replace({"query_space.logical_positions": [5, 6, 5, 6]}), "query_space.logical_positions")


def test_contiguous_numbering_continues_after_the_last_token():
    assert PositionCall.padded(LEFT, causal=True).append().geometry().query_positions.tolist() == [[5], [5]]
    right = PositionCall.padded([[1, 1, 0, 0], [1, 1, 1, 1]], side="right", causal=True)
    assert right.append().geometry().query_positions.tolist() == [[2], [4]]
    assert right.append().geometry().visible.int().tolist() == [[[1, 1, 0, 0, 1]], [[1, 1, 1, 1, 1]]]


def test_o05_the_fourth_token_after_a_left_padded_prompt_is_row_2_plus_3():
    call = PositionCall.padded([[0, 0, 1, 1, 1]], numbering="compressed", causal=True)
    geometry = call.geometry()
    assert (2 + geometry.query_positions[geometry.key_active]).tolist() == [2, 3, 4]
    assert (2 + call.append().geometry().query_positions).tolist() == [[5]]


@pytest.mark.parametrize(("name", "mask_of", "wanted_of", "first", "pad"), [
    ("decoder_only_left_padding_v4", lambda d: d["attention_mask"], lambda d: d["position_ids"], 0, 1),
    ("decoder_only_left_padding_v5", lambda d: d["attention_mask"], lambda d: d["position_ids"], 0, 0),
    ("roberta_create_position_ids", lambda d: d["input_ids"] != 1, lambda d: d["ids_past0"], 2, 1),
    ("opt_learned", lambda d: d["attention_mask"], lambda d: d["row_index"], 2, 1),
])
def test_fixed_pad_equals_released_numberings(name, mask_of, wanted_of, first, pad):
    data = np.load(Path(__file__).parent / "fixtures" / "position_ids" / f"{name}.npz")
    call = PositionCall.padded(mask_of(data), numbering="fixed_pad", first_position=first, pad_position=pad)
    assert call.geometry().query_positions.tolist() == wanted_of(data).tolist()


def test_o08_packed_resets_and_isolates():
    call = PositionCall.packed([3, 2, 1])
    geometry = call.geometry()
    assert geometry.query_positions.tolist() == [0, 1, 2, 0, 1, 0] and geometry.query_segments.tolist() == [0, 0, 0, 1, 1, 2]
    block = torch.block_diag(*(torch.ones(n, n).tril() for n in (3, 2, 1)))
    assert geometry.visible.int().tolist() == block.int().tolist()
    both = PositionCall.packed([3, 2, 1], causal=False).geometry().visible
    assert both.int().tolist() == torch.block_diag(*(torch.ones(n, n) for n in (3, 2, 1))).int().tolist()


def test_o10_boundaries_come_from_ownership_not_from_position_zero():
    call = PositionCall.packed([3, 4, 1], starts=[4, 0, 0])
    assert call.query_space.logical_positions == (4, 5, 6, 0, 1, 2, 3, 0) and call.cu_seqlens == (0, 3, 7, 8)
    visible = call.geometry().visible.int()
    assert visible[3].tolist() == [0, 0, 0, 1, 0, 0, 0, 0] and visible[2].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


def test_packed_without_isolation_needs_continuous_numbers():
    assert PositionCall.packed([2, 2], reset=False, isolate=False).geometry().visible.int().tolist() == torch.ones(4, 4).tril().int().tolist()
    error = refused(lambda: PositionCall.packed([3, 3], isolate=False), "visibility.segment_isolation")
    assert "share position 0" in error.expected
    refused(lambda: PositionCall.packed([3, 3], reset=False, starts=[0, 0]), "starts")
    refused(lambda: PositionCall.packed([2, 2], reset=False, isolate=False).append(), "visibility.segment_isolation")


def test_o11_o12_decode_offsets_and_rows():
    geometry = PositionCall.decode(4).geometry()
    assert geometry.offsets("query_minus_key").tolist() == [[4, 3, 2, 1, 0]] and geometry.offsets("key_minus_query").tolist() == [[-4, -3, -2, -1, 0]]
    assert PositionCall.decode(50, new_tokens=2).geometry().query_positions.tolist() == [50, 51]
    assert PositionCall.decode(512).geometry().visible.shape == (1, 513) and bool(PositionCall.decode(512).geometry().visible.all())


@pytest.mark.parametrize(("lengths", "start", "starts"), [([9, 1, 1, 1], 0, [0, 9, 10, 11]), ([4, 4, 3], 0, [0, 4, 8]), ([4, 4, 3], 10, [10, 14, 18])])
def test_o17_o79_chunks_start_where_the_last_one_ended(lengths, start, starts):
    calls = PositionCall.chunked_prefill(lengths, start=start)
    assert [c.query_space.logical_positions[0] for c in calls] == [c.cache.committed_length for c in calls] == starts
    assert [c.query_space.logical_positions[-1] + 1 for c in calls] == [*starts[1:], starts[-1] + lengths[-1]]
    stepped = calls[0]
    for call, length in zip(calls[1:], lengths[1:]):
        stepped = stepped.append(length)
        assert stepped == call


def test_cross_has_two_frames_and_no_offsets():
    geometry = PositionCall.cross(3, 4).geometry()
    assert (geometry.mode, geometry.query_positions.tolist(), geometry.key_positions.tolist()) == ("cross", [0, 1, 2], [0, 1, 2, 3])
    with pytest.raises(FrameMismatchError):
        geometry.offsets("key_minus_query")
    with pytest.raises(FrameMismatchError) as caught:
        PositionCall.cross(3, 4, method=BIAS, heads=2)
    assert caught.value.field == "query_space.coordinate_frame"
    refused(lambda: PositionCall.cross(3, 4).append(), "append")


def test_the_bias_shape_follows_each_call():
    shapes = [c.position_method.score_bias_shape for c in PositionCall.chunked_prefill([4, 4, 3], method=BIAS, heads=8)]
    assert shapes == [(1, 8, 4, 4), (1, 8, 4, 8), (1, 8, 3, 11)]
    batch = PositionCall.padded(LEFT, method=BIAS, heads=8, causal=True)
    assert batch.position_method.score_bias_shape == (1, 8, 5, 5) and batch.append().position_method.score_bias_shape == (1, 8, 1, 6)
    assert batch.replace({"position_method.score_bias_shape": [2, 8, 5, 5]}).position_method.score_bias_shape == (2, 8, 5, 5)
    call = PositionCall.decode(512, heads=8, method={**BIAS, "clipping_or_bucket_rule": Rule(name="t5-exact", num_buckets=32, max_distance=128, bidirectional=False)})
    assert call.position_method.score_bias_shape == (1, 8, 1, 513) and call.append(2).position_method.score_bias_shape == (1, 8, 2, 515)
    assert call.append(2).position_method.clipping_or_bucket_rule == call.position_method.clipping_or_bucket_rule
    for shape in ([1, 8, 1, 1], [1, 8, 1, 512], [2, 8, 1, 513], [8, 1, 513], [1, 0, 1, 513]):
        refused(lambda shape=shape: call.replace({"position_method.score_bias_shape": shape}), "position_method.score_bias_shape")


@pytest.mark.parametrize(("build", "field"), [
    (lambda: PositionCall.padded(torch.zeros(1, 3)), "mask"), (lambda: PositionCall.padded([[0.0, 1.0]]), "mask"),
    (lambda: PositionCall.padded([[0, 2]]), "mask"), (lambda: PositionCall.padded([[1, 0], [1]]), "mask"), (lambda: PositionCall.padded([1, 0]), "mask"),
    (lambda: PositionCall.padded([]), "mask"), (lambda: PositionCall.padded([["1", "0"]]), "mask"),
    (lambda: PositionCall.padded(LEFT, side="right"), "side"), (lambda: PositionCall.padded([[1, 0, 1]], side="left"), "side"),
    (lambda: PositionCall.padded(LEFT, side="left", polarity="true_is_masked"), "side"),
    (lambda: PositionCall.padded(LEFT, numbering="compress"), "numbering"), (lambda: PositionCall.padded(LEFT, numbering="fixed_pad"), "pad_position"),
    (lambda: PositionCall.padded(LEFT, pad_position=1), "pad_position"), (lambda: PositionCall.padded(LEFT, first_position=-1), "first_position"),
    (lambda: PositionCall.decode(True), "committed_length"), (lambda: PositionCall.decode(4.0), "committed_length"), (lambda: PositionCall.decode(-1), "committed_length"),
    (lambda: PositionCall.decode(4, 0), "new_tokens"), (lambda: PositionCall.packed([]), "lengths"), (lambda: PositionCall.packed([3, 0]), "lengths"),
    (lambda: PositionCall.packed([3, 2], starts=[1]), "starts"), (lambda: PositionCall.chunked_prefill(4), "lengths"),
    (lambda: PositionCall.decode(4, colour="red"), "colour"), (lambda: PositionCall.decode(4, release_id=""), "request.release_id"),
    (lambda: PositionCall.decode(4, method={"family": "rotary"}), "position_method.family"),
    (lambda: PositionCall.decode(4, method=BIAS), "position_method.score_bias_shape"),
])
def test_builders_refuse_and_name_the_argument(build, field):
    refused(build, field)


def test_polarity_and_side_are_read_as_declared():
    flipped = PositionCall.padded([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]], side="right", polarity="true_is_masked")
    assert [sum(row) for row in flipped.geometry().key_active.tolist()] == [3, 1]  # O78


def test_a_named_mask_is_supplied_and_read_by_its_polarity():
    call = PositionCall.packed([2, 2]).replace({"visibility.mask_id": "window-2", "visibility.polarity": "true_is_masked"})
    masked = torch.zeros(4, 4, dtype=torch.bool)
    masked[1, 0] = True
    visible = call.geometry(mask=masked).visible
    assert visible.int().tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert call.append().visibility == call.visibility
    refused(lambda: call.geometry(), "mask")
    refused(lambda: call.geometry(mask=masked.float()), "mask")
    refused(lambda: PositionCall.decode(4).geometry(mask=masked), "mask")


def test_named_owners_become_segment_numbers():
    call = PositionCall.packed([2, 1]).replace({"row_space.sequence_id_per_row": ["A", "A", "B"]})
    assert call.geometry().query_segments.tolist() == [0, 0, 1] and call.cu_seqlens == (0, 2, 3)


def test_explain_shows_rows_and_shortens_long_calls():
    lines = PositionCall.padded([[0, 1]], numbering="compressed").explain().splitlines()
    assert lines[-2].split() == ["0", "0", "0", "encoder", "0", "pad", "query", "key"]
    assert lines[-1].split() == ["1", "1", "0", "encoder", "0", "yes", "query", "key"]
    long = PositionCall.decode(512).explain(limit=4).splitlines()
    assert len(long) == 3 + 5 and "... 509 rows" in long[5] and long[-1].split()[-2:] == ["query", "key"] and "committed 512" in long[1]


def test_a_call_is_built_where_a_model_is_built_on_meta():
    with torch.device("meta"):
        assert PositionCall.padded([[0, 1]]) == PositionCall.padded(torch.tensor([[0, 1]], device="cpu"))
        refused(lambda: PositionCall.padded(torch.tensor([[0, 1]])), "mask")


def test_padding_sits_at_the_first_position_and_boundaries_follow_owners_in_any_order():
    assert PositionCall.padded([[0, 1, 1]], numbering="compressed", first_position=5).query_space.logical_positions == (5, 5, 6)
    falling = PositionCall.packed([2, 3]).replace({"row_space.sequence_id_per_row": [9, 9, 1, 1, 1]})
    assert falling.cu_seqlens == (0, 2, 5)


def test_a_cached_key_does_not_stand_where_the_query_stands():
    moved = {"row_space.logical_position_per_row": [0, 1, 3, 3], "key_space.logical_positions": [0, 1, 3, 3]}
    refused(lambda: PositionCall.decode(3).replace(moved), "key_space.logical_positions")


masks = st.integers(1, 5).flatmap(lambda s: st.lists(st.lists(st.booleans(), min_size=s, max_size=s), min_size=1, max_size=3))


@given(masks, st.sampled_from(["contiguous", "compressed", "fixed_pad"]), st.integers(0, 3), st.integers(1, 3))
def test_appending_tokens_one_by_one_equals_appending_them_together(mask, numbering, first, new):
    call = PositionCall.padded(mask, numbering=numbering, first_position=first, pad_position=1 if numbering == "fixed_pad" else None, causal=True)
    together, single = call.append(new).geometry(), call
    for _ in range(new):
        single = single.append()
    assert single.geometry().query_positions[:, -1].tolist() == together.query_positions[:, -1].tolist()
    assert single.geometry().key_positions.tolist() == together.key_positions.tolist()
    for row, active, wanted in zip(together.query_positions.tolist(), mask, call.geometry().query_positions.tolist()):
        last = max((p for p, a in zip(wanted, active) if a), default=-1)
        assert row == list(range(last + 1, last + 1 + new))


@given(st.one_of(
    masks.map(lambda m: PositionCall.padded(m, numbering="compressed")), masks.map(lambda m: PositionCall.padded(m, causal=True).append()),
    st.lists(st.integers(1, 4), min_size=1, max_size=4).map(PositionCall.packed),
    st.builds(PositionCall.decode, st.integers(0, 9), st.integers(1, 3), request_id=st.text(min_size=1, max_size=9).filter(lambda t: t.strip() and t.isprintable())),
    st.builds(PositionCall.cross, st.integers(1, 4), st.integers(1, 4)),
))
def test_documents_round_trip(call):
    for again in (PositionCall.from_yaml(call.to_yaml()), PositionCall.from_json(call.to_json()), PositionCall(**call.to_dict()), call.replace({})):
        assert again == call and hash(again) == hash(call)
    assert json.loads(call.to_json(indent=2))["positional_call"] == call.to_dict()
