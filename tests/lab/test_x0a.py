"""The instruments of 0x0A: additions that run, and bytes that are held."""

import pytest
import torch

import positionlib as pl
from positionlib.errors import PositionContractError
from positionlib.lab.x0a import CountAdditions, Stack, bytes_held, copies, counted, moved, require_one_table, rows_in


def test_elementwise_sums_are_counted_and_products_are_not():
    a, b = torch.ones(3, 4), torch.ones(4)
    with CountAdditions() as count:
        a + b
        a @ a.T
        a * b
    assert count.scalars == 12


@pytest.mark.parametrize("layers", [1, 3, 5])
def test_a_stack_adds_once_or_once_a_layer(layers):
    x = rows_in(batch=2, length=7, width=8)
    assert counted(Stack(layers, 8), x) == 2 * 7 * 8
    assert counted(Stack(layers, 8, every_layer=True), x) == layers * 2 * 7 * 8


def test_both_stacks_are_one_function_when_there_is_one_layer_only():
    x = rows_in()
    assert torch.equal(Stack(1, 8)(x), Stack(1, 8, every_layer=True)(x))
    assert not torch.allclose(Stack(2, 8)(x), Stack(2, 8, every_layer=True)(x))


def test_shared_storage_counts_once():
    assert bytes_held(copies(4, shared=True)) == 64 * 8 * 4 and bytes_held(copies(4, shared=False)) == 4 * 64 * 8 * 4
    assert bytes_held(pl.Sinusoidal(64)) == 32 * 8 and bytes_held(pl.LearnedAbsolute(10, 6)) == 240
    require_one_table(copies(4, shared=True))
    with pytest.raises(PositionContractError, match="1.table"):
        require_one_table(copies(2, shared=False))


def test_what_travels():
    table, positions = torch.arange(40.0).reshape(10, 4), torch.tensor([7, 2])
    for whole, carried in ((True, 10), (False, 2)):
        rows, load = moved(table, positions, whole=whole)
        assert rows[:, 0].tolist() == [28, 8] and load.shape == (carried, 4)
