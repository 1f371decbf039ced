"""Bucket edges, frequency ladders and slopes against exact integer arithmetic and closed forms."""

import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from positionlib import constants
from positionlib.errors import PositionContractError
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms import ALiBi
from positionlib.mechanisms.deberta import DisentangledIndex
from positionlib.rules import Clip, T5Buckets, alibi_slopes, frequency_ladder, t5_bucket

SETTINGS = [(b, m, bidirectional) for b in (4, 6, 8, 16, 32, 34, 64) for m in (9, 20, 27, 64, 128, 289, 441) for bidirectional in (True, False)
            if m > (b // 2 if bidirectional else b) // 2]


def exact_bucket(distance: int, per_direction: int, max_distance: int) -> int:
    """The formula read literally, with the comparison n^L ≥ M^m E^(L−m) instead of a logarithm."""
    exact = per_direction // 2
    if distance < exact:
        return distance
    logarithmic = per_direction - exact
    steps = [m for m in range(logarithmic) if distance**logarithmic >= max_distance**m * exact ** (logarithmic - m)]
    return exact + max(steps)


@pytest.mark.parametrize("buckets, max_distance, bidirectional", SETTINGS)
def test_every_bucket_edge_is_exact(buckets, max_distance, bidirectional):
    rule = T5Buckets(buckets, max_distance, bidirectional)
    offsets = list(range(-max_distance - 20, max_distance + 21))
    half = rule.per_direction
    if bidirectional:
        want = [exact_bucket(abs(o), half, max_distance) + (half if o > 0 else 0) for o in offsets]
    else:
        want = [exact_bucket(max(-o, 0), half, max_distance) for o in offsets]
    assert rule.classes(torch.tensor(offsets)).tolist() == want


@pytest.mark.parametrize("edge", ["transformers", "t5x", "article"])
@pytest.mark.parametrize("buckets, max_distance, bidirectional", [(32, 128, True), (32, 128, False), (64, 256, True), (32, 64, False), (32, 2048, True)])
def test_named_edges_agree_at_common_settings(edge, buckets, max_distance, bidirectional):
    assert T5Buckets(buckets, max_distance, bidirectional, edge).thresholds == T5Buckets(buckets, max_distance, bidirectional).thresholds


# (edge, bidirectional, buckets, max distance, distance, released bucket, exact bucket)
CELLS = [("transformers", True, 34, 27, 18, 13, 14), ("transformers", True, 38, 196, 42, 13, 14), ("transformers", False, 46, 164, 107, 41, 40),
         ("transformers", False, 58, 282, 119, 47, 46), ("t5x", True, 6, 169, 13, 1, 2), ("t5x", True, 8, 338, 26, 2, 3), ("t5x", True, 16, 289, 34, 5, 6),
         ("t5x", False, 32, 289, 68, 23, 24), ("t5x", False, 256, 185, 153, 190, 189), ("article", True, 42, 212, 23, 13, 12),
         ("article", False, 26, 432, 252, 24, 23), ("article", False, 256, 131, 129, 171, 170)]


@pytest.mark.parametrize("edge, bidirectional, buckets, max_distance, distance, released, exact", CELLS)
def test_cells_where_released_code_differs(edge, bidirectional, buckets, max_distance, distance, released, exact):
    past = torch.tensor([-distance])
    settings = dict(bidirectional=bidirectional, num_buckets=buckets, max_distance=max_distance)
    assert t5_bucket(past, edge=edge, **settings).item() == released
    assert t5_bucket(past, **settings).item() == exact


@pytest.mark.slow
def test_scan_of_released_edges_finds_the_documented_cells():
    """Every even bucket count 4..64, 96, 128, 256 with max distance up to 512; past distances, both modes."""
    found = {"transformers": 0, "t5x": 0, "article": 0}
    for bidirectional in (True, False):
        for buckets in [*range(4, 65, 2), 96, 128, 256]:
            for max_distance in range(max(3, T5Buckets(buckets, 10**6, bidirectional).max_exact + 1), 513):
                distance = np.arange(max_distance + 21)
                exact = np.searchsorted(T5Buckets(buckets, max_distance, bidirectional).thresholds, distance, side="right")
                for edge in found:
                    released = T5Buckets(buckets, max_distance, bidirectional, edge).thresholds
                    found[edge] += int((np.searchsorted(released, distance, side="right") != exact).sum())
    assert found == {"transformers": 17, "t5x": 29, "article": 16}


def test_ranges_cover_every_distance_once():
    ranges = T5Buckets(32, 128, False).ranges()
    assert ranges[0] == (0, 0, 0) and ranges[15] == (15, 15, 15) and ranges[16] == (16, 16, 18) and ranges[-1] == (31, 113, None)
    assert [lo for _, lo, _ in ranges[1:]] == [hi + 1 for _, _, hi in ranges[:-1]]


def test_buckets_beyond_any_table_saturate_without_float_error():
    far = torch.tensor([2**31 - 1, 2**31, 2**31 + 1, 2**40, 2**61])
    assert t5_bucket(-far, bidirectional=True).tolist() == [15] * 5 and t5_bucket(far, bidirectional=True).tolist() == [31] * 5


def test_a_huge_distance_costs_nothing():
    assert T5Buckets(32, 2**40).thresholds[-1] < 2**40
    with pytest.raises(PositionContractError, match="max_distance"):
        T5Buckets(32, 2**40, edge="t5x").thresholds


@pytest.mark.parametrize("settings, field", [
    (dict(num_buckets=32, max_distance=8, bidirectional=True), "max_distance"), (dict(num_buckets=32, max_distance=16, bidirectional=False), "max_distance"),
    (dict(num_buckets=7, max_distance=20, bidirectional=True), "num_buckets"), (dict(num_buckets=2, max_distance=20, bidirectional=True), "num_buckets"),
    (dict(num_buckets=1, max_distance=20, bidirectional=False), "num_buckets"), (dict(num_buckets=True, max_distance=20, bidirectional=False), "num_buckets"),
    (dict(num_buckets=8, max_distance=20.0, bidirectional=False), "max_distance"), (dict(num_buckets=8, max_distance=20, bidirectional=None), "bidirectional"),
    (dict(num_buckets=8, max_distance=20, bidirectional=True, edge="near"), "edge")])
def test_degenerate_buckets_are_refused(settings, field):
    with pytest.raises(PositionContractError) as caught:
        T5Buckets(**settings)
    assert caught.value.field == field and caught.value.remedy


def test_float_offsets_are_refused():
    with pytest.raises(PositionContractError, match="relative_position"):
        t5_bucket(torch.tensor([1.0]), bidirectional=True)


def test_clip_merges_the_far_classes():
    assert Clip(2).classes(torch.tensor([-3, -2, -1, 0, 1, 9])).tolist() == [0, 0, 1, 2, 3, 4] and Clip(2).num_classes == 5


def test_frequency_ladders():
    assert torch.allclose(frequency_ladder(4, 8), torch.tensor([1, 0.1, 0.01, 0.001], dtype=torch.float64), rtol=1e-14)
    endpoint = [10_000 ** (-i / 3) for i in range(4)]
    assert torch.allclose(frequency_ladder(4, 8, ladder="endpoint"), torch.tensor(endpoint, dtype=torch.float64), rtol=1e-14)


@pytest.mark.parametrize("arguments, field", [((1, 2, 10_000.0, "endpoint"), "d_model"), ((2, 4, 1.0, "paper"), "base"), ((2, 4, math.nan, "paper"), "base"),
                                              ((0, 0, 10_000.0, "paper"), "pairs"), ((2, 4, 10_000.0, "other"), "ladder")])
def test_bad_ladders_are_refused(arguments, field):
    *sizes, ladder = arguments
    with pytest.raises(PositionContractError) as caught:
        frequency_ladder(*sizes, ladder=ladder)
    assert caught.value.field == field


@pytest.mark.parametrize("heads", range(1, 65))
def test_slopes_follow_the_authors_rule_and_mpt_agrees(heads):
    lower = 2 ** math.floor(math.log2(heads))
    want = [2.0 ** (-8 * (h + 1) / lower) for h in range(lower)] + [2.0 ** (-4 * (2 * h + 1) / lower) for h in range(heads - lower)]
    assert alibi_slopes(heads).tolist() == pytest.approx(want, rel=1e-14)
    assert alibi_slopes(heads, convention="mpt").tolist() == pytest.approx(want, rel=1e-14)


def test_eight_heads_halve():
    assert alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]


def test_numpy_counts_are_counts():
    assert alibi_slopes(np.int64(4)).tolist() == alibi_slopes(4).tolist()


@pytest.mark.parametrize("heads", [0, -1, 2.0, True, None, torch.tensor(True), np.array([3, 4])])
def test_bad_head_counts_are_refused(heads):
    with pytest.raises(PositionContractError, match="heads"):
        alibi_slopes(heads)


OFFSETS, SLOPES, CALL = torch.arange(-300, 301), ALiBi(8), AttentionGeometry.causal_self(4)
COPIED = {
    "T5": lambda: T5Buckets(32, 128, True, "exact").classes(OFFSETS),
    "DeBERTa": lambda: DisentangledIndex(512, 256, "exact").classes(OFFSETS),
    "ALiBi": lambda: SLOPES(CALL).slopes,
}


@pytest.mark.parametrize("make", COPIED.values(), ids=COPIED)
def test_numbers_are_copied_to_a_device_once(make, monkeypatch):
    """What runs before, in inference, on no device or under a transform, is not met again outside it."""
    want = make().clone()
    constants._HELD.clear()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert make().shape == want.shape
    torch.func.vmap(lambda _: make())(torch.zeros(2))
    with torch.inference_mode():
        make()
    with torch.device("meta"):
        make()
    first = make()
    monkeypatch.setattr(torch, "tensor", lambda *arguments, **settings: pytest.fail("a second copy"))
    assert torch.equal(make(), want) and torch.equal(first, want) and type(first) is torch.Tensor
    assert not any(held.is_inference() for held in constants._HELD.values())


def test_who_writes_to_his_slopes_writes_to_his_own():
    SLOPES(CALL).slopes.zero_()
    assert torch.equal(SLOPES(CALL).slopes, alibi_slopes(8))
