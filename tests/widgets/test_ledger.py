"""The ledger calculator: bytes and additions equal those of real tensors and plain arithmetic."""

import itertools
import random
import re

import numpy as np
import pytest
import torch

import positionlib as pl
from positionlib.errors import PositionContractError
from positionlib.widgets.ledger import TABLES, WAYS, bill, held
from positionlib.widgets.panels import Badges, Bars, Table

ROWS = (512, 2048, 8192, 32768)


@pytest.fixture(scope="module")
def explorer():
    return pl.widgets.ledger_calculator()


def real_bytes(way, rows, width=4096):
    """Bytes of the tensors themselves; tables lie on the meta device, where nothing is filled."""
    if way == "computed":
        return pl.Sinusoidal(width).inverse_frequency.nbytes
    if way == "buffer":
        return torch.empty(rows, width, dtype=torch.bfloat16, device="meta").nbytes
    with torch.device("meta"):
        table = pl.LearnedAbsolute(rows, width)
    if way == "served":
        return table.bfloat16().weight.nbytes
    return 4 * table.weight.nbytes


@pytest.mark.parametrize("choice", random.Random(3).sample(list(itertools.product(WAYS, ROWS, TABLES)), 24), ids=str)
def test_states_equal_real_tensors(explorer, choice):
    way, rows, tables = choice
    panels = explorer.state(way=way, rows=rows, tables=tables)
    badges = {b.label: b.value for p in panels if isinstance(p, Badges) for b in p.items}
    total = tables * real_bytes(way, rows)
    number, unit = badges["held"].split()
    assert float(number.replace(",", "")) * {"KiB": 2**10, "MiB": 2**20}[unit] == total
    assert badges["parameters"] == (f"{tables * rows * 4096:,}" if way in ("served", "trained") else "0")
    assert badges["additions a call"] == f"{8 * 512 * 4096 * (2 if tables == 2 else 1):,}"
    bars = next(p for p in panels if isinstance(p, Bars))
    np.testing.assert_array_equal(2**bars.values, [tables * real_bytes(w, rows) / 1024 for w in WAYS])
    assert bars.labels[bars.highlight[0]] == way
    table = next(p for p in panels if isinstance(p, Table))
    assert sum(int(row[1].replace(",", "")) * row[2] for row in table.rows) == real_bytes(way, rows)


def test_adam_holds_what_the_bill_says():
    table = pl.LearnedAbsolute(64, 8)
    adam = torch.optim.Adam(table.parameters())
    table(pl.AttentionGeometry.encoder(5)).rows.sum().backward()
    adam.step()
    state = adam.state[table.weight]
    sizes = [table.weight.nbytes, table.weight.grad.nbytes, state["exp_avg"].nbytes, state["exp_avg_sq"].nbytes]
    assert sizes == [part.size for part in bill("trained", 64, 8)] and sum(sizes) == held("trained", 64, 8)


@pytest.mark.parametrize("way, rows, tables", [*itertools.product(WAYS, ROWS, TABLES)])
def test_captions_are_true(explorer, way, rows, tables):
    said = explorer.caption_of(way=way, rows=rows, tables=tables)
    number, unit = re.search(r"([\d,]+) (MiB|KiB)", said).groups()
    assert int(number.replace(",", "")) * {"KiB": 2**10, "MiB": 2**20}[unit] == tables * real_bytes(way, rows)
    assert ("both counts double" in said) == (tables == 2) and ("never read" in said) == (tables == 4)
    assert (f"{rows:,} rows" in said) == (way == "computed")
    assert ("eight times" in said) == (way == "trained") and real_bytes("trained", rows) == 8 * real_bytes("buffer", rows)


def test_at_rest_refusals_and_size(explorer):
    assert explorer.choice == {"way": "buffer", "rows": 8192, "tables": 1}
    badges = {b.label: b.value for p in explorer.state() if isinstance(p, Badges) for b in p.items}
    assert badges == {"held": "64 MiB", "parameters": "0", "additions a call": "16,777,216"}
    assert explorer.size < 60_000
    with pytest.raises(PositionContractError, match="way"):
        bill("rented", 8, 8)
    with pytest.raises(PositionContractError, match="rows"):
        held("buffer", 0, 8)
