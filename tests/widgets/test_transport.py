"""The transport widget against lists moved by hand: boxes, labels and neighbours of each word, kept or not."""

import numpy as np
import pytest

from positionlib import widgets
from positionlib.errors import PositionContractError
from positionlib.widgets.panels import Badges, Matrices, Table

BOX = {"42": (1, 1), "Items": (0, 0), "Total": (1, 0), "7": (0, 1), "Thank": (2, 0), "you": (2, 1)}
LABEL = {"42": "number", "Items": "key", "Total": "key", "7": "number", "Thank": "greeting", "you": "greeting"}
LEFT = {("Items", "7"), ("Total", "42"), ("Thank", "you")}
FOUND = ["42", "Items", "Total", "7"]
MOVED = {"sort": ["Items", "7", "Total", "42"], "pad": [None, *FOUND], "drop": ["42", "Total", "7"], "chunk": ["Total", "7"], "join": ["Thank", "you", *FOUND]}
BEHIND = {"sort": FOUND, "pad": [*FOUND, None], "drop": FOUND[:3], "chunk": FOUND[:2], "join": [*FOUND, "Thank", "you"]}


@pytest.fixture(scope="module")
def explorer():
    return widgets.row_transport()


def by_hand(choice):
    words, old = MOVED[choice["move"]], BEHIND[choice["move"]]
    box, label, pair = ((old if choice["stale"] == name else words) for name in ("bbox", "label", "left_of"))
    rows, kept = [], {}
    for n, word in enumerate(words):
        beside = [words[m] or "pad" for m, other in enumerate(pair) if (pair[n], other) in LEFT]
        if word:
            now = {words[m] for m, other in enumerate(pair) if (pair[n], other) in LEFT} & set(words)
            true = {w for w in words if (word, w) in LEFT}
            kept[word] = BOX.get(box[n]) == BOX[word] and LABEL.get(label[n]) == LABEL[word] and now - {None} == true
        line = BOX.get(box[n])
        rows.append((n, word or "pad", f"{line[0]}, {line[1]}" if line else "no box", LABEL.get(label[n], "ignored"), ", ".join(beside) or "–",
                     "–" if not word else "kept" if kept[word] else "changed"))
    at = {word: BOX.get(box[n]) for n, word in enumerate(words) if word}
    total = at.get("Total")
    right = next((w for w, b in at.items() if total and b == (total[0], total[1] + 1)), "nothing")
    return rows, kept, at, right


def test_rows_are_those_moved_by_hand(explorer):
    for choice in explorer.choices():
        rows, kept, at, right = by_hand(choice)
        page, table, badges = explorer.state(**choice)
        assert isinstance(table, Table) and [tuple(r) for r in table.rows] == rows, choice
        assert isinstance(badges, Badges) and [b.value for b in badges.items] == [f"{sum(kept.values())} of {len(kept)}", right]
        assert badges.items[0].status == ("ok" if all(kept.values()) else "bad")
        assert list(table.highlight) == [n for n, r in enumerate(rows) if r[-1] == "changed"]
        assert isinstance(page, Matrices)
        for (line, column), value in np.ndenumerate(page.items[0].values):
            assert value == " ".join(w for w in MOVED[choice["move"]] if w and at[w] == (line, column))


def test_captions_are_true(explorer):
    for choice in explorer.choices():
        _, kept, _, right = by_hand(choice)
        said = explorer.caption_of(**choice)
        assert ("every field with them" in said) == (choice["stale"] == "none")
        assert f"all {len(kept)} words keep" in said if choice["stale"] == "none" else f"{sum(kept.values())} of {len(kept)} words keep" in said
        assert ("luck" in said) == (choice["stale"] != "none" and all(kept.values()))
        if "right of Total" in said:
            assert f" {right} stands right of Total" in said


def test_state_at_rest_is_the_page_with_its_boxes_left_behind(explorer):
    assert explorer.choice == {"move": "sort", "stale": "bbox"} and explorer.size < 60_000
    assert explorer.state()[2].items[0].value == "1 of 4" and explorer.state()[2].items[1].value == "Items"
    with pytest.raises(PositionContractError, match="2 to 60 values"):
        widgets.row_transport(move=["sort"])
