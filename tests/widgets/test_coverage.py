"""The coverage plot shows counts made here by brute force, and says of each state what is true of it."""

import random
import re

import numpy as np
import pytest

from positionlib import widgets
from positionlib.errors import PositionContractError
from positionlib.widgets.coverage import EXAMPLES, MIXES, mix_lengths
from positionlib.widgets.panels import Badges, Bars, Lines


@pytest.fixture(scope="module")
def explorer():
    return widgets.row_coverage()


def _counts(mix, rows):
    """How many cut texts stand on each row, walking every text token by token."""
    counts = [0] * rows
    for length in mix_lengths(mix):
        for r in range(min(length, rows)):
            counts[r] += 1
    return counts


def test_the_mixes_are_what_their_names_say():
    assert all(len(mix_lengths(mix)) == EXAMPLES and list(mix_lengths(mix)) == sorted(mix_lengths(mix)) for mix in MIXES)
    assert (mix_lengths("staged").count(128), mix_lengths("staged").count(512)) == (900, 100) and set(mix_lengths("full")) == {512}
    even, short = mix_lengths("even"), mix_lengths("short")
    assert (even[0], even[-1]) == (1, 512) and np.mean(even) == pytest.approx(256.5, abs=0.5)
    assert min(short) >= 1 and max(short) < 512 and np.mean(short) == pytest.approx(60, abs=1)


def test_curves_and_bars_are_counted(explorer):
    for choice in random.Random(7).sample(explorer.choices(), 20):
        bars, lines, _ = explorer.state(**choice)
        assert isinstance(bars, Bars) and isinstance(lines, Lines)
        np.testing.assert_array_equal(lines.x, np.arange(choice["rows"]))
        np.testing.assert_array_equal(lines.series[0].values, _counts(choice["mix"], choice["rows"]))
        cut = [min(n, choice["rows"]) for n in mix_lengths(choice["mix"])]
        for label, value in zip(bars.labels, bars.values):
            low, high = map(int, label.split("–"))
            assert value == sum(low <= n <= high for n in cut)
        assert bars.values.sum() == EXAMPLES


def test_badges_marks_and_captions_are_true(explorer):
    for choice in explorer.choices():
        counts, rows, enough = _counts(choice["mix"], choice["rows"]), choice["rows"], choice["enough"]
        good, reached = sum(c >= enough for c in counts), sum(c > 0 for c in counts)
        panels = explorer.state(**choice)
        badge = {b.label: b.value for p in panels if isinstance(p, Badges) for b in p.items}
        assert badge == {"rows in the table": f"{rows:,}", f"reached by {enough} or more": f"{good:,}", "reached by fewer": f"{reached - good:,}",
                         "never reached": f"{rows - reached:,}", "row 0 over the last reached row": f"{counts[0] / counts[reached - 1]:,.0f} : 1"}
        assert [mark.x for mark in panels[1].marks] == ([good] if good < rows else [])
        said = explorer.caption_of(**choice)
        assert said.lower().startswith(f"{MIXES[choice['mix']].lower()}; a table of {rows:,} rows.")
        assert ("Every row is reached" in said) == (good == rows) and ("no text ever stood on them" in said) == (reached < rows)
        assert ("by fewer" in said) == (reached > good) and ("cut to the table" in said) == (max(mix_lengths(choice["mix"])) > rows)
        if good < rows:
            assert int(re.search(r"Rows 0 to (\d+) are reached by at least", said)[1]) == good - 1
        if reached > good:
            assert f"Rows {good} to {reached - 1} are reached, by fewer: the last of them by {counts[reached - 1]}." in said
        if reached < rows:
            assert f"Rows {reached} to {rows - 1} exist" in said


def test_the_state_at_rest_is_the_two_stage_step(explorer):
    assert explorer.choice == {"mix": "staged", "rows": 512, "enough": 500}
    values = explorer.state()[1].series[0].values
    assert set(values[:128]) == {1000} and set(values[128:]) == {100}


def test_refusals_and_size(explorer):
    assert explorer.size < 120_000
    with pytest.raises(PositionContractError, match="2 to 60 values"):
        widgets.row_coverage(rows=[512])
