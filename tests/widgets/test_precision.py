"""The precision widget shows the numbers of fresh library calls, and each caption is true of its state."""
import random

import numpy as np
import pytest
import torch

from positionlib.mechanisms.sinusoidal_precision import precision_sweep
from positionlib.rules import frequency_ladder
from positionlib.widgets import precision_collisions

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MERGES = {"bfloat16": "256 and 257", "float16": "2,048 and 2,049", "float32": "16,777,216 and 16,777,217"}


@pytest.fixture(scope="module")
def explorer():
    return precision_collisions()


def rows_by_hand(positions, choice):
    """Rows after the cast from sine and cosine alone: no call that the widget makes."""
    width, base = choice["ladder"]
    wide = positions.to(DTYPES[choice["dtype"]]).double() if choice["cast"] == "positions" else positions.double()
    phase = wide[:, None] * frequency_ladder(width // 2, width, base)
    rows = torch.empty(len(positions), width, dtype=torch.float64)
    rows[:, 0::2], rows[:, 1::2] = phase.sin(), phase.cos()
    return rows.to(DTYPES[choice["dtype"]]).double() if choice["cast"] == "table" else rows


def overflows(choice):
    return choice["dtype"] == "float16" and choice["cast"] == "positions" and choice["span"][0] >= 65_536


def sampled(explorer):
    return random.Random(6).sample(explorer.choices(), 20)


def test_badges_are_the_sweep_of_the_library(explorer):
    finite = [c for c in sampled(explorer) if not overflows(c)]
    assert len(finite) >= 12
    for choice in finite:
        (width, base), (start, length) = choice["ladder"], choice["span"]
        report = precision_sweep(length, width, base=base, dtype=DTYPES[choice["dtype"]], cast=choice["cast"], start=start)
        shown = {badge.label: badge.value for badge in explorer.state(**choice)[0].items}
        pair = report.first_collision
        assert shown["first collision"] == ("none here" if pair is None else f"{pair[0]:,} = {pair[1]:,}"), choice
        assert shown["distinct rows"] == f"{report.distinct_rows:,} of {length:,}"
        assert float(shown["smallest distance"]) == pytest.approx(report.minimum_distance, rel=5e-4, abs=0)
        assert shown["offset of the closest pair"] == f"{report.minimum_pair[1] - report.minimum_pair[0]:,}"
        assert shown[f"{choice['dtype']} merges"] == MERGES[choice["dtype"]]
        caption = explorer.caption_of(**choice)
        assert ("stay different" in caption) == (pair is None)
        assert pair is None or f"rows {pair[0]:,} and {pair[1]:,} are the same {width} numbers" in caption


def test_lines_are_distances_of_neighbouring_rows(explorer):
    for choice in sampled(explorer):
        lines = explorer.state(**choice)[1]
        positions = torch.as_tensor(np.append(lines.x, lines.x[-1] + 1)).long()
        curves = {series.name: series.values for series in lines.series}
        exact = rows_by_hand(positions, choice | {"dtype": "float32", "cast": "exact"})
        np.testing.assert_allclose(curves["exact"], np.round((exact[1:] - exact[:-1]).norm(dim=1).numpy(), 3), atol=1e-12)
        if overflows(choice):
            assert list(curves) == ["exact"]
            continue
        rows = rows_by_hand(positions, choice)
        np.testing.assert_allclose(curves["stored"], np.round((rows[1:] - rows[:-1]).norm(dim=1).numpy(), 3), atol=1.0001e-3)


def test_table_shows_the_rows_themselves(explorer):
    for choice in sampled(explorer):
        table = explorer.state(**choice)[2]
        positions = torch.tensor([int(row[0].replace(",", "")) for row in table.rows])
        shown = np.array([[float(word) for word in row[2:]] for row in table.rows])
        wanted = rows_by_hand(positions, choice).numpy()[:, :shown.shape[1]]
        np.testing.assert_allclose(shown, wanted, atol=5.1e-5, equal_nan=True)
        assert np.isnan(shown).all() == overflows(choice)
        if table.highlight:
            assert table.rows[0][2:] == table.rows[1][2:], "the two highlighted rows are one row"


def test_at_rest_it_says_256_is_257(explorer):
    assert explorer.choice == {"dtype": "bfloat16", "cast": "positions", "ladder": (64, 10_000.0), "span": (0, 512)}
    badges = {badge.label: badge.value for badge in explorer.state()[0].items}
    assert badges["first collision"] == "256 = 257" and badges["distinct rows"] == "385 of 512"
    assert explorer.state()[1].marks[0].x == 256
    stored = explorer.state()[1].series[1].values
    assert stored[256 - 248] == 0 and stored[255 - 248] > 1.4
    assert explorer.state()[2].rows[1][:2] == ("257", "256")


def test_casting_the_table_keeps_the_rows_that_casting_positions_merges(explorer):
    for dtype in ("bfloat16", "float16"):
        assert "4,096 of 4,096" == explorer.state(dtype=dtype, cast="table", span=(0, 4096))[0].items[1].value
        assert "4,096 of 4,096" != explorer.state(dtype=dtype, cast="positions", span=(0, 4096))[0].items[1].value


def test_overflow_is_said_and_not_called_a_collision(explorer):
    state = explorer.state(dtype="float16", cast="positions", span=(65_536, 256))
    assert state[0].items[0].value == "0 of 256" and state[2].rows[0][1] == "inf" and state[2].rows[0][2] == "NaN"
    assert "float16 ends at 65,504" in explorer.caption_of(dtype="float16", cast="positions", span=(65_536, 256))


def test_size(explorer):
    assert explorer.size <= 150_000
