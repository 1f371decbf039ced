"""The shape ledger: shapes and bytes equal arithmetic made here; captions are true of every state."""

import itertools
import math
import random
import re

import pytest

import positionlib as pl
from positionlib.widgets.panels import Badges, Table
from positionlib.widgets.lengths import CALLS, MODELS, in_units

CHOICES = [*itertools.product((1, 8), CALLS, MODELS)]
QK = {"prompt 16": (16, 16), "prompt 1024": (1024, 1024), "chunk 256": (256, 4096), "token": (1, 4096)}
DH = {"64 x 4": (64, 4), "768 x 12": (768, 12), "4096 x 32": (4096, 32)}
WIDTH = {"input_ids": 8, "position": 8, "div_term": 8, "position_ids": 8, "attention_mask": 1, "query_positions": 8, "key_positions": 8, "relative_offsets": 8,
         "T5 bucket ids": 8, "layout boxes": 8, "patch row": 8, "patch col": 8, "time indices": 8, "event: has a time": 1}


@pytest.fixture(scope="module")
def explorer():
    return pl.widgets.shape_ledger()


def expected(B, call, model):
    """(shape, bytes) of each object, by hand."""
    (n, k), (d, h) = QK[call], DH[model]
    q = n
    shapes = {"input_ids": (B, n), "X_content": (B, n, d), "position": (4096, 1), "div_term": (d // 2,), "pe": (4096, d), "pe buffer": (1, 4096, d),
              "pe[:, :n]": (1, n, d), "X + pe[:, :n]": (B, n, d), "position_ids": (B, n), "P": (4096, d), "P[position_ids]": (B, n, d),
              "attention_mask": (B, n), "query_positions": (q,), "key_positions": (k,), "relative_offsets": (q, k), "Shaw rows": (1, 1, q, k, d // h),
              "T5 bucket ids": (q, k), "scalar bias": (1, h, q, k), "XL memory": (k - q, B, d), "source states": (B, k, d), "target states": (B, q, d),
              "layout boxes": (B, n, 4), "patch row": (B, n), "patch col": (B, n), "time indices": (B, n), "event: has a time": (B, n), "X_positioned": (B, n, d)}
    return {name: (shape, math.prod(shape) * WIDTH.get(name, 4)) for name, shape in shapes.items()}


def badges(panels):
    return {b.label: b.value for p in panels if isinstance(p, Badges) for b in p.items}


@pytest.mark.parametrize("B, call, model", random.Random(5).sample(CHOICES, 20))
def test_states_equal_arithmetic(explorer, B, call, model):
    panels = explorer.state(B=B, call=call, model=model)
    table = next(p for p in panels if isinstance(p, Table))
    wanted = expected(B, call, model)
    assert [row[0] for row in table.rows] == list(wanted)
    for (name, axes, shape, size), (right, nbytes) in zip(table.rows, wanted.values()):
        assert shape == str(list(right)) and size == in_units(nbytes), name
        assert axes.count(",") == len(right) - 1
    largest = max(nbytes for _, nbytes in wanted.values())
    assert [list(wanted.values())[i][1] for i in table.highlight] == [largest] * len(table.highlight)
    assert len(table.highlight) == sum(nbytes == largest for _, nbytes in wanted.values())
    assert badges(panels) == dict(zip("BndhQK", (B, QK[call][0], *DH[model], *QK[call])))


@pytest.mark.parametrize("B, call, model", CHOICES)
def test_captions_are_true(explorer, B, call, model):
    said, wanted = explorer.caption_of(B=B, call=call, model=model), expected(B, call, model)
    largest = max(nbytes for _, nbytes in wanted.values())
    named = [name for name, (_, nbytes) in wanted.items() if nbytes == largest]
    assert f"Largest: {named[0]}" in said and f", {in_units(largest)}." in said
    assert (f"and {len(named) - 1} more" in said) == (len(named) > 1)
    states, pairs = re.search(r"states hold ([\d.,]+ \w+), its Shaw rows ([\d.,]+ \w+)\.", said).groups()
    assert (states, pairs) == (in_units(wanted["X_content"][1]), in_units(wanted["Shaw rows"][1]))
    assert ("stay as they are" in said) == (B == 8) and ("a second sequence" in said) == (B == 1)
    one, two = (expected(b, call, model) for b in (1, 2))
    pairs_and_keys = {"position", "div_term", "pe", "pe buffer", "pe[:, :n]", "P", "query_positions", "key_positions", "relative_offsets", "Shaw rows",
                      "T5 bucket ids", "scalar bias"}
    assert {name for name in one if one[name][1] == two[name][1] > 0} == pairs_and_keys


@pytest.mark.parametrize("size, words", [(0, "0 B"), (1023, "1,023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**21, "2 MiB"), (2**41, "2,048 GiB")])
def test_bytes_are_read_in_units(size, words):
    assert in_units(size) == words


def test_at_rest_and_size(explorer):
    assert explorer.choice == {"B": 8, "call": "token", "model": "768 x 12"}
    assert badges(explorer.state()) == {"B": 8, "n": 1, "d": 768, "h": 12, "Q": 1, "K": 4096}
    assert "Shaw rows 1 MiB" in explorer.caption_of(**explorer.choice)
    assert explorer.size < 100_000
