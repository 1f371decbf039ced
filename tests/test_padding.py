"""Polarity, lengths, readouts and drift, with the values written out."""

import pytest
import torch

from positionlib.errors import PositionContractError
from positionlib.padding import cu_seqlens, lengths_from_mask, lengths_from_segments, masked_mean, position_drift, visible_from_mask

MASK = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]])


def test_the_same_mask_means_two_things():
    assert lengths_from_mask(MASK, "true_is_masked").tolist() == [3, 1] and lengths_from_mask(MASK, "true_is_visible").tolist() == [2, 4]
    assert torch.equal(visible_from_mask(MASK.bool(), "true_is_masked"), MASK == 0)


@pytest.mark.parametrize("mask, polarity, field", [(MASK, None, "polarity"), (MASK, "visible", "polarity"), (MASK.float(), "true_is_visible", "mask"),
                                                   (MASK * -10000, "true_is_visible", "mask"), ([[1, 0]], "true_is_visible", "mask")])
def test_a_mask_without_a_polarity_is_refused(mask, polarity, field):
    with pytest.raises(PositionContractError) as caught:
        visible_from_mask(mask, polarity)
    assert caught.value.field == field


def test_packed_lengths():
    assert lengths_from_segments(torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])).tolist() == [3, 4, 1]
    assert cu_seqlens([3, 4, 1]).tolist() == [0, 3, 7, 8]
    with pytest.raises(PositionContractError, match="segment_ids"):
        lengths_from_segments(torch.tensor([0, 1, 0]))
    for bad in ([2, -1], [2.7], [True], torch.tensor([2.5]), [2**62, 2**62], 3):
        with pytest.raises(PositionContractError, match="lengths"):
            cu_seqlens(bad)


def test_a_mean_reads_real_rows_only():
    states = torch.tensor([[1.0, 2.0], [3.0, 4.0], [100.0, float("nan")]])
    assert masked_mean(states, torch.tensor([True, True, False])).tolist() == [2.0, 3.0]
    assert masked_mean(states[:2], torch.tensor([False, False])).tolist() == [0.0, 0.0]
    for bad in (torch.tensor([1, 1, 0]), torch.tensor([True])):
        with pytest.raises(PositionContractError, match="active"):
            masked_mean(states, bad)
    half = torch.full((1, 4096, 1), 100.0, dtype=torch.float16)
    assert masked_mean(half, torch.ones(1, 4096, dtype=torch.bool)).item() == 100.0


def test_a_doubled_bos_moves_every_content_token():
    assert position_drift([1, 50, 51, 52], [1, 1, 50, 51, 52], [1]) == ((50, 1, 2), (51, 2, 3), (52, 3, 4))
    assert position_drift([1, 50, 51], [1, 50, 51], [1]) == () and position_drift([1, 7], [7], [1]) == ((7, 1, 0),)
    with pytest.raises(PositionContractError, match="served_ids"):
        position_drift([1, 50], [1, 51], [1])
