"""Positions, frames and visibility, against matrices written out by hand."""

import pickle

import pytest
import torch

from positionlib import AttentionGeometry, FrameMismatchError, PositionContractError
from tests.refusals import refused


def as_rows(mask):
    return mask.int().tolist()


def test_the_mode_follows_from_the_rule_and_does_not_contradict_it():
    positions = torch.arange(2)
    assert AttentionGeometry(positions, positions).mode == "encoder" and AttentionGeometry(positions, positions, causal=True).mode == "causal"
    assert AttentionGeometry.cross(2, 3).mode == "cross" and AttentionGeometry.decode(2).mode == "causal"
    assert AttentionGeometry(positions, positions, causal=True, mode="segment-memory").is_causal and not AttentionGeometry.encoder(2).is_causal
    carried = AttentionGeometry(positions, positions, allowed=torch.ones(2, 2, dtype=torch.bool).tril(), mode="causal")
    assert carried.is_causal and not carried.causal and as_rows(carried.visible) == [[1, 0], [1, 1]]
    for build in (lambda: AttentionGeometry(positions, positions, mode="causal"), lambda: AttentionGeometry(positions, positions, causal=True, mode="encoder"),
                  lambda: AttentionGeometry.encoder(2, causal=True), lambda: AttentionGeometry.decode(2, causal=False)):
        refused(build, "mode")


def test_a_position_may_be_2_to_the_62_and_no_more():
    g = AttentionGeometry([2**62], [0])
    assert g.offsets("query_minus_key").tolist() == [[2**62]] and g.offsets("key_minus_query").tolist() == [[-(2**62)]]
    refused(lambda: AttentionGeometry([0], [2**62 + 1]), "key_positions")


def test_all_tensors_of_a_call_are_on_one_device_and_a_slice_names_rows_that_exist():
    refused(lambda: AttentionGeometry(torch.arange(2), torch.arange(2, device="meta")), "key_positions")
    refused(lambda: AttentionGeometry.encoder(2, allowed=torch.ones(2, 2, dtype=torch.bool, device="meta")), "allowed")
    for start, stop in ((-1, 2), (0, 4), (2, 1)):
        refused(lambda: AttentionGeometry.encoder(3).slice_queries(start, stop), "start")


def test_positions_under_vmap_are_refused_by_torch_as_the_docstring_says():
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(lambda p: AttentionGeometry(p, p).visible)(torch.arange(4).reshape(2, 2))


def test_decode_offsets_use_the_committed_length_not_the_tensor_length():
    g = AttentionGeometry.decode(512)
    assert g.query_positions.tolist() == [512] and g.key_length == 513
    assert g.offsets("key_minus_query").tolist() == [list(range(-512, 1))]
    assert g.offsets("query_minus_key").tolist() == [list(range(512, -1, -1))]


def test_visibility_is_the_conjunction_of_its_rules():
    positions = torch.arange(4)
    g = AttentionGeometry(positions, positions, causal=True, key_active=torch.tensor([True, True, False, True]),
                          query_segments=torch.tensor([0, 0, 1, 1]), key_segments=torch.tensor([0, 0, 1, 1]),
                          allowed=torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]).bool())
    assert as_rows(g.visible) == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]


def test_causal_compares_positions_not_rows():
    g = AttentionGeometry(torch.tensor([4, 5]), torch.arange(6), causal=True)
    assert as_rows(g.visible) == [[1, 1, 1, 1, 1, 0], [1] * 6]
    shuffled = AttentionGeometry(torch.tensor([2, 0, 1]), torch.tensor([2, 0, 1]), causal=True)
    assert as_rows(shuffled.visible) == [[1, 1, 1], [0, 1, 0], [0, 1, 1]]


def test_one_batched_field_makes_the_visibility_batched():
    g = AttentionGeometry.causal_self(3, key_active=torch.tensor([[True, True, True], [False, True, True]]))
    assert g.batch == 2 and as_rows(g.visible[1]) == [[0, 0, 0], [0, 1, 0], [0, 1, 1]]


def test_cross_attention_has_no_offsets():
    g = AttentionGeometry.cross(2, 3)
    assert as_rows(g.visible) == [[1, 1, 1]] * 2
    with pytest.raises(FrameMismatchError, match="target"):
        g.offsets("key_minus_query")
    with pytest.raises(FrameMismatchError):
        AttentionGeometry(torch.arange(2), torch.arange(2), causal=True, key_frame="source")


def test_a_sign_is_always_named():
    with pytest.raises(TypeError):
        AttentionGeometry.encoder(2).offsets()
    with pytest.raises(PositionContractError, match="sign"):
        AttentionGeometry.encoder(2).offsets("key-query")


def test_a_move_or_a_start_changes_nothing_else():
    g = AttentionGeometry.causal_self(3, start=7, key_active=torch.tensor([True, False, True]), query_segments=torch.tensor([0, 0, 1]),
                                      key_segments=torch.tensor([0, 0, 1]), allowed=torch.ones(3, 3).bool().tril(), scheme_id="s")
    assert g.query_positions.tolist() == g.key_positions.tolist() == [7, 8, 9] and g.mode == "causal" and g.scheme_id == "s"
    moved = g.to("meta")
    assert all(getattr(moved, name).is_meta for name in ("query_positions", "key_positions", "key_active", "query_segments", "key_segments", "allowed"))
    assert (moved.mode, moved.causal, moved.scheme_id) == ("causal", True, "s")


def test_a_query_slice_keeps_positions_and_rules():
    g = AttentionGeometry.causal_self(5, query_segments=torch.tensor([0, 0, 0, 1, 1]), key_segments=torch.tensor([0, 0, 0, 1, 1]))
    narrowed = AttentionGeometry.causal_self(5, allowed=torch.ones(5, 5).bool().triu(-1))
    assert torch.equal(narrowed.slice_queries(2, 5).visible, narrowed.visible[2:5]) and not narrowed.visible[4, 0]
    assert torch.equal(g.slice_queries(2, 5).visible, g.visible[2:5]) and g.slice_queries(2, 5).query_positions.tolist() == [2, 3, 4]


def test_a_batch_slice_takes_what_has_a_batch_axis():
    active, allowed = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 0, 1]]).bool(), torch.rand(3, 3, 3) > 0.5
    for g in (AttentionGeometry.causal_self(3, key_active=active, allowed=allowed), AttentionGeometry.causal_self(3, key_active=active, allowed=allowed[0])):
        part = g.slice_batch(1, 2)
        assert part.batch == 1 and part.query_positions.tolist() == [0, 1, 2] and torch.equal(part.visible, g.visible[1:2])


@pytest.mark.parametrize("fields, name", [
    (dict(query_positions=torch.tensor([0, -1])), "query_positions"), (dict(key_positions=torch.tensor([0.0, 1.0])), "key_positions"),
    (dict(key_positions=torch.tensor([True, False])), "key_positions"), (dict(query_positions=torch.tensor([0, 2**62 + 1])), "query_positions"),
    (dict(query_positions=torch.zeros(1, 1, 2).long()), "query_positions"), (dict(key_active=torch.tensor([1, 0])), "key_active"),
    (dict(key_active=torch.tensor([0.0, -torch.inf])), "key_active"), (dict(key_active=torch.ones(3).bool()), "key_active"),
    (dict(query_segments=torch.tensor([0, 0])), "key_segments"), (dict(allowed=torch.ones(2, 3).bool()), "allowed"), (dict(mode="decoder"), "mode"),
    (dict(causal=torch.ones(2, 2).bool()), "causal"), (dict(query_positions=torch.zeros(2, 2).long(), key_positions=torch.zeros(3, 2).long()), "batch")])
def test_bad_fields_are_refused_by_name(fields, name):
    with pytest.raises(PositionContractError) as caught:
        AttentionGeometry(**{"query_positions": torch.arange(2), "key_positions": torch.arange(2), **fields})
    assert caught.value.field == name and caught.value.expected and caught.value.remedy


def test_errors_survive_pickling():
    for error in (PositionContractError("a", 1, "b", "c"), FrameMismatchError("a", [1], "b", "c")):
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error) and again.field == "a" and type(again) is type(error)
