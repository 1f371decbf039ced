"""The bucket plot shows the numbers of fresh library calls, of a rule counted by hand, and of the trained table."""
import random

import numpy as np
import pytest
import torch

from positionlib.data import mpnet_bias
from positionlib.rules import t5_bucket
from positionlib.widgets import bucket_plot


@pytest.fixture(scope="module")
def explorer():
    return bucket_plot()


def sampled(explorer):
    return random.Random(9).sample(explorer.choices(), 20)


def exact_bucket(offset, choice):
    """The formula by comparing whole numbers: no call that the widget makes."""
    both = choice["direction"] == "both"
    half = choice["num_buckets"] // 2 if both else choice["num_buckets"]
    n, edge, far = abs(offset) if both else max(-offset, 0), half // 2, half - half // 2
    bucket = n if n < edge else edge + max(m for m in range(far) if n**far >= choice["max_distance"] ** m * edge ** (far - m))
    return bucket + half * (both and offset > 0)


def test_staircase_is_the_rule_at_every_offset(explorer):
    for choice in sampled(explorer):
        lines = explorer.state(**choice)[1]
        np.testing.assert_array_equal(lines.x, np.arange(-150, 151))
        fresh = t5_bucket(torch.arange(-150, 151), num_buckets=choice["num_buckets"], max_distance=choice["max_distance"],
                          bidirectional=choice["direction"] == "both")
        np.testing.assert_array_equal(lines.series[0].values, fresh.numpy())
        assert fresh.tolist() == [exact_bucket(o, choice) for o in range(-150, 151)], choice


def test_widths_badges_and_caption_count_the_staircase(explorer):
    for choice in sampled(explorer):
        badges, lines, bars = explorer.state(**choice | {"head": "none"})
        seen = [exact_bucket(o, choice) for o in range(-150, 151 if choice["direction"] == "both" else 1)]
        widths = [seen.count(b) for b in range(choice["num_buckets"])]
        assert list(bars.values) == widths, choice
        unused = [b for b, w in enumerate(widths) if w == 0]
        assert list(bars.highlight) == unused
        shown = {badge.label: badge.value for badge in badges.items}
        last = min(n for n in range(151) if exact_bucket(-n, choice) == exact_bucket(-10**6, choice))
        assert shown["last bucket begins at"] == last and -last in [mark.x for mark in lines.marks]
        assert shown["unused buckets"] == (", ".join(map(str, unused)) or "none")
        own = [n for n in range(151) if [exact_bucket(-m, choice) for m in range(151)].count(exact_bucket(-n, choice)) == 1]
        named = [list(map(int, run.split(" to "))) for run in shown["distances with a bucket of their own"].split(", ")]
        assert [n for run in named for n in range(run[0], run[-1] + 1)] == own, choice
        assert f"begins at distance {last}, not at {choice['max_distance']}" in explorer.caption_of(**choice)
        assert ("every bucket is used" in explorer.caption_of(**choice)) == (not unused)


def test_trained_panels_are_the_table_itself(explorer):
    table = mpnet_bias()
    for head in (0, 2, 4, 6):
        choice = {"num_buckets": 32, "max_distance": 128, "direction": "both", "head": head}
        bars = explorer.state(**choice)[2]
        np.testing.assert_allclose(bars.values, np.round(table[:, head].astype(float), 3), atol=5e-4)
        assert bars.highlight == (16,) and 16 not in [exact_bucket(o, choice) for o in range(-600, 601)]
        assert f"{table[1, head]:+.2f} for the key before and {table[17, head]:+.2f} for the key after".replace("-", "−") in explorer.caption_of(**choice)


def test_another_setting_counts_offsets_and_says_where_the_trained_values_are(explorer):
    for choice in explorer.choices():
        panels = explorer.state(**choice)
        trained = choice["head"] != "none" and (choice["num_buckets"], choice["max_distance"], choice["direction"]) == (32, 128, "both")
        assert panels[2].title == (f"Stored numbers of head {choice['head']}" if trained else "Offsets a bucket holds"), choice
        assert len(panels) == (3 if trained or choice["head"] == "none" else 4)
        assert ("Head" in explorer.caption_of(**choice)) == trained


def test_at_rest_mpnets_row_16_is_unused(explorer):
    assert explorer.choice == {"num_buckets": 32, "max_distance": 128, "direction": "both", "head": 4}
    assert "bucket 16" in explorer.caption_of() and explorer.size <= 150_000
