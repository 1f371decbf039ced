"""Every number the sinusoidal heat map shows equals the library's, and every caption is true of its state."""

import math
import random
import re

import numpy as np
import pytest
import torch

from positionlib import widgets
from positionlib.errors import PositionContractError
from positionlib.mechanisms.sinusoidal import sinusoidal_table
from positionlib.mechanisms.sinusoidal_algebra import wavelengths
from positionlib.widgets.panels import Badges, HeatMap, Lines


@pytest.fixture(scope="module")
def explorer():
    return widgets.sinusoidal_heatmap(base=[100, 10_000, 1_000_000], d_model=[16, 32, 64])


def _sample(explorer):
    return random.Random(5).sample(explorer.choices(), 20)


def _expected(c):
    rows = sinusoidal_table(c["length"], c["d_model"], offset=c["offset"], base=c["base"], layout=c["layout"], output_dtype=torch.float64)
    return rows.numpy(), wavelengths(c["d_model"], base=c["base"]).numpy()


def test_cells_are_the_table(explorer):
    for choice in _sample(explorer):
        panel = next(p for p in explorer.state(**choice) if isinstance(p, HeatMap))
        rows, _ = _expected(choice)
        np.testing.assert_array_equal(panel.values, np.round(rows, 2))
        assert panel.rows.start == choice["offset"]


def test_hover_gives_pair_wavelength_and_angle_of_the_drawn_channel(explorer):
    for choice in _sample(explorer):
        panel = next(p for p in explorer.state(**choice) if isinstance(p, HeatMap))
        rows, lengths = _expected(choice)
        d = choice["d_model"]
        pair = np.arange(d) // 2 if choice["layout"] == "interleaved" else np.arange(d) % (d // 2)
        np.testing.assert_array_equal(panel.column_hover["pair"], pair)
        np.testing.assert_allclose(panel.column_hover["wavelength (positions)"], lengths[pair], rtol=5e-6)
        positions, frequencies = (np.asarray(v) for v in panel.cell_hover["angle (rad)"])
        np.testing.assert_array_equal(positions, np.arange(choice["offset"], choice["offset"] + choice["length"]))
        sine = np.arange(d) % 2 == 0 if choice["layout"] == "interleaved" else np.arange(d) < d // 2
        angle = np.outer(positions, frequencies)
        np.testing.assert_allclose(np.where(sine, np.sin(angle), np.cos(angle)), rows, atol=1e-9)


def test_ladder_and_badges(explorer):
    for choice in _sample(explorer):
        _, lengths = _expected(choice)
        panels = explorer.state(**choice)
        lines = next(p for p in panels if isinstance(p, Lines))
        np.testing.assert_allclose(lines.x, lengths, rtol=0, atol=5.1e-3)  # kept to two decimals
        np.testing.assert_array_equal(lines.series[0].values, np.arange(len(lengths)))
        (mark,) = lines.marks
        assert mark.x == choice["length"] - 1 and lines.x_label == "wavelength (positions)" and lines.log_x
        assert mark.label == f"{mark.x:.0f}: {sum(w <= mark.x for w in lengths)} of {len(lengths)} turn"
        badge = {b.label: b.value for p in panels if isinstance(p, Badges) for b in p.items}
        window = choice["length"] - 1
        assert badge == {
            "pairs that complete a turn": f"{sum(w <= window for w in lengths)} of {len(lengths)}",
            "pairs that turn less than 0.1 rad": f"{sum(2 * math.pi * window / w < 0.1 for w in lengths)} of {len(lengths)}",
            "shortest wavelength": "6.28", "longest wavelength": f"{lengths[-1]:,.0f}",
            "norm of every row": f"{math.sqrt(choice['d_model'] / 2):.3f}"}


def test_captions_are_true(explorer):
    for choice in _sample(explorer):
        said = explorer.caption_of(**choice)
        _, lengths = _expected(choice)
        assert f"once in {lengths[-1]:,.0f}:" in said and f"Pair {len(lengths) - 1}," in said
        turned = float(re.search(r"turns by ([\d.e+-]+) rad", said)[1])
        assert turned == pytest.approx(2 * math.pi * (choice["length"] - 1) / lengths[-1], rel=0.05)
        assert ("on the left" in said) == (choice["layout"] == "interleaved")
        assert ("regions" in said) == (lengths[-1] > choice["length"] - 1)


def test_state_at_rest_shows_slow_and_fast_channels(explorer):
    assert explorer.choice == {"base": 10_000, "d_model": 32, "length": 64, "offset": 0, "layout": "interleaved"}
    cells = next(p for p in explorer.state() if isinstance(p, HeatMap)).values
    assert np.ptp(cells[:8, 0]) > 1.8 and np.ptp(cells[:, -2]) < 0.02  # pair 0 swings within 8 rows, pair 15 hardly in 64


def test_offset_and_length_are_slices_of_one_table(explorer):
    whole, part = (next(p for p in explorer.state(length=n) if isinstance(p, HeatMap)).values for n in (64, 16))
    np.testing.assert_array_equal(whole[:16], part)
    far = sinusoidal_table(4096 + 64, 32, output_dtype=torch.float64)[4096:].numpy()
    np.testing.assert_array_equal(next(p for p in explorer.state(offset=4096) if isinstance(p, HeatMap)).values, np.round(far, 2))


def test_refusals_and_size(explorer):
    assert explorer.size < 250_000
    with pytest.raises(PositionContractError, match="2 to 60 values"):
        widgets.sinusoidal_heatmap(base=[10_000])
    with pytest.raises(PositionContractError, match="an even width"):
        widgets.sinusoidal_heatmap(d_model=[15, 16])
