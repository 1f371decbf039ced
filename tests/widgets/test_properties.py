"""Every number of the property bench equals plain arithmetic over pairs of rows, and every caption is true of its state."""

import math
import random
import re

import numpy as np
import pytest
import torch

import positionlib as pl
from positionlib.errors import PositionContractError
from positionlib.widgets import property_bench
from positionlib.widgets.panels import Badges, Lines
from positionlib.widgets.properties import CODES


@pytest.fixture(scope="module")
def explorer():
    return property_bench()


def rows_by_hand(code, count, width, length, now):
    """``count`` rows of a code for a sequence of ``now`` tokens, written out; None where there is no row."""
    t = np.arange(count, dtype=np.float64)
    if code == "integer":
        return np.repeat(t[:, None], width, 1)
    if code == "fraction":
        return np.repeat(t[:, None] / now, width, 1)
    if code == "binary":
        return np.array([[float(digit) for digit in f"{n % 2**width:0{width}b}"] for n in range(count)])
    if code == "sinusoid":
        angle = t[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
        return np.stack((np.sin(angle), np.cos(angle)), -1).reshape(count, width)
    if code == "linear":
        return -t[:, None] * 2.0 ** (-8 * np.arange(1, width + 1) / width)
    if code == "bucket":
        exact = width // 2
        wide = [n if n < exact else min(width - 1, exact + int(math.log(n / exact) / math.log(128 / exact) * (width - exact) + 1e-9)) for n in range(count)]
        return np.eye(width)[wide]
    if count > length:
        return None
    return torch.randn(length, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()[:count] * 0.02


def facts(code, length, width):
    """All that the bench shows, from loops over rows."""
    before, after = rows_by_hand(code, length, width, length, length), rows_by_hand(code, length, width, length, 2 * length)
    whole = rows_by_hand(code, 2 * length, width, length, 2 * length)
    distances = np.linalg.norm(before[:, None] - before[None], axis=-1)
    seen = [tuple(np.round(row, 12)) for row in before]
    later = next((t for t in range(length) if seen[t] in seen[:t]), None)
    every = None if whole is None else [tuple(np.round(row, 12)) for row in whole]
    beyond = "refused" if every is None else "continues" if len(set(every)) - len(set(every[:length])) == length else "collides"
    peak = np.linalg.norm(before if whole is None else np.concatenate((before, whole)), axis=1).max()
    return {"before": before, "after": after, "steps": np.diagonal(distances, 1), "moved": np.linalg.norm(after - before, axis=1), "beyond": beyond,
            "closest": np.array([np.diagonal(distances, k).min() for k in range(1, length)]),
            "farthest": np.array([np.diagonal(distances, k).max() for k in range(1, length)]),
            "distinct": len(set(seen)), "collision": None if later is None else (seen.index(seen[later]), later), "peak": peak}


def expected_verdicts(f, width):
    even = f["steps"].min() > 0 and np.ptp(f["steps"]) < 1e-6 * f["steps"].max()
    return {"identity": f["collision"] is None, "scale": f["peak"] <= math.sqrt(width) + 1e-9, "smoothness": bool(even),
            "extension": f["moved"].max() < 1e-9 and f["beyond"] == "continues"}


def test_twenty_states_equal_loops_over_rows(explorer):
    for choice in random.Random(10).sample(explorer.choices(), 20):
        f, root = facts(**choice), math.sqrt(choice["width"])
        length = choice["length"]
        top, norms, step, gaps, below = explorer.state(**choice)
        assert isinstance(norms, Lines) and isinstance(below, Badges)
        np.testing.assert_allclose(norms.series[0].values, np.linalg.norm(f["before"], axis=1) / root, atol=5.1e-4)
        np.testing.assert_allclose(norms.series[1].values, np.linalg.norm(f["after"], axis=1) / root, atol=5.1e-4)
        np.testing.assert_allclose(step.series[0].values, f["steps"], atol=5.1e-4)
        np.testing.assert_allclose(gaps.series[0].values, f["closest"], atol=5.1e-4)
        np.testing.assert_allclose(gaps.series[1].values, f["farthest"], atol=5.1e-4)
        np.testing.assert_array_equal(norms.x, np.arange(length))
        np.testing.assert_array_equal(gaps.x, np.arange(1, length))
        kept = expected_verdicts(f, choice["width"])
        assert {b.label: b.value for b in top.items} == {name: "yes" if yes else "no" for name, yes in kept.items()}
        assert {b.label: b.status for b in top.items} == {name: "ok" if yes else "bad" for name, yes in kept.items()}
        assert {b.label: b.value for b in below.items} == {
            "different rows": f"{f['distinct']} of {length}", "steps": f"{f['steps'].min():.3f} to {f['steps'].max():.3f}",
            "a row moves by up to": f"{f['moved'].max():.3f}", f"rows {length} to {2 * length - 1}": f["beyond"]}


def test_every_caption_says_what_is_lacking(explorer):
    assert len(explorer.choices()) == 63
    for choice in explorer.choices():
        f, said = facts(**choice), explorer.caption_of(**choice)
        kept = expected_verdicts(f, choice["width"])
        assert said.startswith(f"{CODES[choice['code']]}, {choice['length']} rows of width {choice['width']}: ")
        assert (" are equal" in said) == (not kept["identity"]) and ("√d" in said) == (not kept["scale"])
        assert ("steps range" in said) == (not kept["smoothness"]) and ("none of the four" in said) == all(kept.values())
        assert any(words in said for words in ("moves by", "no row past", "repeat earlier")) == (not kept["extension"])
        if not kept["identity"]:
            assert "rows {} and {} are equal".format(*f["collision"]) in said
        if match := re.search(r"row (\d+) moves by ([\d.]+)", said):
            assert int(match[1]) == f["moved"].argmax() and float(match[2]) == pytest.approx(f["moved"].max(), abs=5.1e-3)
        if match := re.search(r"reaches ([\d.]+) √d, and ([\d.]+) √d", said):
            root = math.sqrt(choice["width"])
            short = np.linalg.norm(f["before"], axis=1).max() / root
            assert float(match[1]) == pytest.approx(short, abs=0.051) and float(match[2]) == pytest.approx(f["peak"] / root, abs=0.051)


def test_at_rest_the_rows_of_the_fraction_move(explorer):
    assert explorer.choice == {"code": "fraction", "length": 16, "width": 16}
    assert explorer.caption_of() == "t / length, 16 rows of width 16: row 15 moves by 1.88 when the length doubles."
    norms = explorer.state()[1]
    np.testing.assert_allclose(norms.series[0].values, 2 * norms.series[1].values, atol=1.1e-3)


def test_bucket_and_learned_code_are_the_library_s(explorer):
    rule = pl.T5Buckets(16, 128, bidirectional=False).classes(-torch.arange(64)).numpy()
    np.testing.assert_array_equal(rows_by_hand("bucket", 64, 16, 64, 64).argmax(1), rule)
    assert explorer.state(code="learned", length=64)[4].items[3].value == "refused"


def test_size_and_refusals(explorer):
    assert explorer.size < 300_000
    with pytest.raises(PositionContractError, match="2 to 60 values"):
        property_bench(length=(16,))
