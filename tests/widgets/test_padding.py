"""The padding widget numbers a row as counted here by hand, and says what is true of each pair of rules."""

import random

import pytest

from positionlib import widgets
from positionlib.errors import PositionContractError
from positionlib.widgets.panels import Badges, Table


@pytest.fixture(scope="module")
def explorer():
    return widgets.padding_policies()


def _number(mask, policy):
    """The released rules, written out with a counter."""
    ids, count = [], 0
    for column, token in enumerate(mask):
        count += token
        if policy == "contiguous":
            ids.append(column)
        elif policy in ("roberta", "opt"):
            ids.append(count + 1 if token else 1)
        elif token:
            ids.append(count - 1)
        else:
            ids.append({"generation_v4": 1, "generation_v5": 0, "compress_active": max(count - 1, 0)}[policy])
    return ids


def _mask(choice):
    pads = [0] * choice["pads"]
    return pads + [1, 1, 1] if choice["side"] == "left" else [1, 1, 1] + pads


def test_rows_are_numbered_by_the_released_rules(explorer):
    for choice in random.Random(8).sample(explorer.choices(), 20):
        mask, due = _mask(choice), _number([1, 1, 1], choice["trained"])
        got = _number(mask, choice["served"])
        table = next(p for p in explorer.state(**choice) if isinstance(p, Table))
        k, moved = 0, []
        for column, (row, token, number) in enumerate(zip(table.rows, mask, got, strict=True)):
            assert row[0] == column and row[3] == number and (row[4] == "hidden") == (not token)
            if token:
                assert (row[1], row[2]) == (("I", "ran", ".")[k], due[k])
                assert row[4] == ("same" if number == due[k] else f"{number - due[k]:+d}")
                moved += [column] if number != due[k] else []
                k += 1
            else:
                assert row[1] == "pad"
        assert list(table.highlight) == moved
        badge = {b.label: b.value for p in explorer.state(**choice) if isinstance(p, Badges) for b in p.items}
        pads = sorted({n for n, token in zip(got, mask) if not token})
        assert badge == {"tokens on another coordinate": f"{len(moved)} of 3", "padding reads": ", ".join(map(str, pads)) or "nothing: no padding",
                         "next token due": due[-1] + 1}


def test_captions_are_true(explorer):
    for choice in explorer.choices():
        said, mask = explorer.caption_of(**choice), _mask(choice)
        moved = _number(mask, choice["served"])[mask.index(1)] - _number([1], choice["trained"])[0]
        assert ("every token finds its own coordinate" in said) == (moved == 0)
        if moved:
            assert f"{abs(moved)} {'further on' if moved > 0 else 'too early'}" in said
        left = _number([0] * choice["pads"] + [1], choice["served"])[-1] - _number([1], choice["trained"])[0]
        bare = _number([1], choice["served"])[0] - _number([1], choice["trained"])[0]
        accident = moved == 0 and choice["pads"] > 0 and bare != 0
        assert ("accident" in said) == accident and (not accident or f"off by {abs(bare)}." in said)
        assert ("need not pass" in said) == (moved == 0 and choice["side"] == "right" and choice["pads"] > 0 and left != 0 and not accident)
        assert ("no pads" in said) == (choice["pads"] == 0)


def test_state_at_rest_is_the_left_padded_fault(explorer):
    assert explorer.choice == {"trained": "contiguous", "served": "contiguous", "side": "left", "pads": 2} and explorer.size < 120_000
    assert next(p for p in explorer.state() if isinstance(p, Table)).highlight == (2, 3, 4)
    with pytest.raises(PositionContractError, match="2 to 60 values"):
        widgets.padding_policies(side=["left"])
