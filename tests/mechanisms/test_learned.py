"""Learned rows: lookup, gradient, range, numbering policies, coverage."""

import pytest
import torch

import positionlib as pl
from positionlib.mechanisms.learned import admit_position_ids, coverage, position_ids_from_mask, row_support, table_gradient

MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


def test_decode_reads_the_row_of_its_position():
    m = pl.LearnedAbsolute(64, 4)
    assert torch.equal(m(pl.AttentionGeometry.decode(50, 2)).rows, m.weight[50:52])
    opt = pl.LearnedAbsolute(10, 4, row_offset=2)
    assert opt.capacity == 8 and torch.equal(opt(pl.AttentionGeometry.encoder(3)).rows, opt.weight[2:5])


@pytest.mark.parametrize("position", [512, 800, -1])
def test_a_position_without_a_row_is_refused_before_the_lookup(position):
    m = pl.LearnedAbsolute(512, 2)
    with pytest.raises(pl.PositionRangeError, match=f"{position}.*512 rows") as caught:
        m.row_ids(torch.tensor([[3, position]]))
    assert isinstance(caught.value, IndexError) and isinstance(caught.value, pl.PositionContractError)


def test_row_ids_are_computed_in_int64():
    m = pl.LearnedAbsolute(300, 4, row_offset=2)
    assert m.row_ids(torch.tensor([254], dtype=torch.uint8)).tolist() == [256]
    for bad in (torch.tensor([1.5]), torch.tensor([True])):
        with pytest.raises(pl.PositionContractError, match="position"):
            m.row_ids(bad)


def test_repeated_ids_accumulate_and_unaddressed_rows_get_nothing():
    m = pl.LearnedAbsolute(4, 2).double()
    ids = torch.tensor([[0, 1, 1], [0, 2, 2]])
    upstream = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[0.5, 0.5], [1.0, 1.0], [2.0, 2.0]]], dtype=torch.float64)
    (m(pl.AttentionGeometry(ids, ids)).add_to(torch.zeros(2, 3, 2, dtype=torch.float64)) * upstream).sum().backward()
    assert m.weight.grad.tolist() == [[1.5, 2.5], [8.0, 10.0], [3.0, 3.0], [0.0, 0.0]]


def test_the_indexed_reduction_is_what_autograd_computes():
    m, generator = pl.LearnedAbsolute(9, 3, row_offset=2).double(), torch.Generator().manual_seed(0)
    ids = torch.randint(0, 7, (4, 6), generator=generator)
    upstream = torch.randn(4, 6, 3, generator=generator, dtype=torch.float64)
    (m(pl.AttentionGeometry(ids, ids)).rows * upstream).sum().backward()
    assert torch.allclose(table_gradient(upstream, m.row_ids(ids), 9), m.weight.grad, atol=1e-14)


def test_the_indexed_reduction_adds_wide_and_checks_its_ids():
    many = torch.ones(4096, 1, dtype=torch.float16)  # in float16 the sum would stop at 2,048
    assert table_gradient(many, torch.zeros(4096, dtype=torch.long), 2).tolist() == [[4096.0], [0.0]]
    for ids, field, error in ((torch.tensor([0, 2]), "row_ids", pl.PositionRangeError), (torch.tensor([0]), "row_ids", pl.PositionContractError),
                              (torch.tensor([0.0, 1.0]), "row_ids", pl.PositionContractError)):
        with pytest.raises(error) as caught:
            table_gradient(torch.ones(2, 3), ids, 2)
        assert caught.value.field == field


@pytest.mark.parametrize("policy, settings, want", [
    ("contiguous", {}, [[0, 1, 2, 3, 4]] * 3), ("contiguous", {"past": 4}, [[4, 5, 6, 7, 8]] * 3),
    ("compress_active", {}, [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 1, 2, 3, 4]]), ("roberta", {"padding_idx": 1}, [[1, 1, 2, 3, 4], [2, 3, 4, 1, 1], [2, 3, 4, 5, 6]]),
    ("roberta", {"padding_idx": 1, "past": 3}, [[1, 1, 5, 6, 7], [5, 6, 7, 1, 1], [5, 6, 7, 8, 9]]),
    ("opt", {}, [[1, 1, 2, 3, 4], [2, 3, 4, 1, 1], [2, 3, 4, 5, 6]]), ("opt", {"past": 3}, [[3, 4], [1, 1], [5, 6]]),
    ("generation_v4", {}, [[1, 1, 0, 1, 2], [0, 1, 2, 1, 1], [0, 1, 2, 3, 4]]), ("generation_v5", {}, [[0, 0, 0, 1, 2], [0, 1, 2, 0, 0], [0, 1, 2, 3, 4]])])
def test_numbering_policies(policy, settings, want):
    for mask in (MASK, MASK.bool()):
        assert position_ids_from_mask(mask, policy, **settings).tolist() == want


@pytest.mark.parametrize("mask, policy, settings, field", [
    (MASK.float(), "contiguous", {}, "mask"), (MASK * 2, "contiguous", {}, "mask"), (MASK, "bert", {}, "policy"), (MASK, "roberta", {}, "padding_idx"),
    (MASK, "contiguous", {"past": -1}, "past")])
def test_bad_masks_and_policies_are_refused(mask, policy, settings, field):
    with pytest.raises(pl.PositionContractError) as caught:
        position_ids_from_mask(mask, policy, **settings)
    assert caught.value.field == field


def test_row_support_counts_longer_examples():
    assert row_support([1, 3, 3, 5], 6).tolist() == [4, 3, 3, 1, 1, 0]


def test_coverage_counts_real_tokens_only():
    ids = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [5, 5, 5, 5, 5]])
    assert coverage(ids, MASK, 6).tolist() == [1, 1, 2, 1, 1, 5]
    with pytest.raises(pl.PositionRangeError, match="position_ids"):
        coverage(ids, MASK, 5)


@pytest.mark.parametrize("settings, field", [(dict(rows=0, d_model=2), "rows"), (dict(rows=2, d_model=2, row_offset=2), "rows"), (dict(rows=2, d_model=0), "d_model")])
def test_bad_tables_are_refused_at_construction(settings, field):
    with pytest.raises(pl.PositionContractError) as caught:
        pl.LearnedAbsolute(**settings)
    assert caught.value.field == field


def test_an_index_buffer_is_the_integers_in_order():
    assert admit_position_ids(torch.arange(5)[None], 5).tolist() == [0, 1, 2, 3, 4]
    for buffer in (torch.arange(5).half(), torch.arange(5) * 2, torch.arange(4), torch.ones(5).bool()):
        with pytest.raises(pl.PositionContractError, match="position_ids"):
            admit_position_ids(buffer, 5)
