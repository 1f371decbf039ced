"""The slopes widget shows the paper's slopes and the attention that a geometric series leaves."""
import numpy as np
import pytest

from positionlib.widgets import alibi_slopes_plot


@pytest.fixture(scope="module")
def explorer():
    return alibi_slopes_plot()


def slopes_by_hand(heads):
    """Written out from the paper's rule: no call that the widget makes."""
    lower = max(p for p in (1, 2, 4, 8, 16, 32) if p <= heads)
    series = [2 ** (-8 * h / lower) for h in range(1, lower + 1)]
    return np.array(series + [2 ** (-8 * h / (2 * lower)) for h in range(1, 2 * lower, 2)][: heads - lower])


def within_by_hand(heads, keys):
    weight = np.exp(-slopes_by_hand(heads)[:, None] * np.arange(keys))
    return weight.cumsum(1) / weight.sum(1, keepdims=True)


def test_all_states_are_slopes_and_sums_of_a_geometric_series(explorer):
    assert len(explorer.choices()) == 16
    for choice in explorer.choices():
        heads, keys = choice["heads"], choice["keys"]
        badges, slopes, reach = explorer.state(**choice)
        m, share = slopes_by_hand(heads), within_by_hand(heads, keys)
        np.testing.assert_allclose(slopes.values, m, atol=5.1e-5)
        half = [next(n for n in range(keys) if share[h, n] >= 0.5) for h in range(heads)]
        np.testing.assert_array_equal(reach.values, half)
        shown = {badge.label: badge.value for badge in badges.items}
        steep, flat = int(m.argmax()), int(m.argmin())
        assert shown == {"sorted": "yes" if list(m) == sorted(m, reverse=True) else "no", "steepest head": steep, "flattest head": flat}
        assert f"head {steep} spends half of its attention within distance {half[steep]}, head {flat} within {half[flat]}." in explorer.caption_of(**choice)
        assert ("not sorted" in explorer.caption_of(**choice)) == (shown["sorted"] == "no")


def test_at_rest_twelve_slopes_are_not_sorted(explorer):
    assert "not sorted: head 8" in explorer.caption_of() and explorer.size <= 150_000
