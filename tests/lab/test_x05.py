"""The reader of 0x05, which stands in for weights that were fitted to one table."""

import pytest

from positionlib.lab.x05 import read_row
from positionlib.mechanisms.sinusoidal import sinusoidal_table


@pytest.mark.parametrize(("d_model", "base", "rows"), [(8, 10_000.0, 5_654), (6, 400.0, 306), (10, 3_000.0, 3_424)])
def test_every_row_at_two_decimals_is_read_up_to_nine_tenths_of_the_longest_wavelength(d_model, base, rows):
    table = (sinusoidal_table(rows, d_model, base=base).double() * 100).round() / 100
    assert [round(read_row(row, base)[-1].position) for row in table.tolist()] == list(range(rows))


def test_steps_go_from_the_slowest_pair_to_the_fastest_and_add_up():
    steps = read_row(sinusoidal_table(1, 8, offset=3742)[0].tolist(), 10_000.0)
    assert [step.pair for step in steps] == [3, 2, 1, 0] and steps[0].turns == 0
    for step in steps:
        assert step.position == step.rest + step.turns * step.wavelength and 0 <= step.rest < step.wavelength
        assert step.position == pytest.approx(3742, abs=1e-2)


def test_another_base_is_misread_and_a_second_turn_of_the_slowest_pair_is_lost():
    rows = sinusoidal_table(101, 8, base=100.0)[[0, 1, 7, 20, 100]].tolist()
    assert [round(read_row(row, 10_000.0)[-1].position) for row in rows] == [0, 1, 82, 818, 2890]
    (far,) = sinusoidal_table(1, 8, offset=8192).tolist()
    assert round(read_row(far, 10_000.0)[-1].position) == 1909  # 8192 - 6283.2, rounded
