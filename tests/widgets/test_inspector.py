"""The call inspector shows the coordinates, offsets and visibility of fresh calls, and of rules written out by hand."""
import random

import numpy as np
import pytest
import torch

from positionlib import PositionCall
from positionlib.widgets import call_inspector

LENGTHS = ((4, 2), (3, 3), (2, 4), (5, 3))


@pytest.fixture(scope="module")
def explorer():
    return call_inspector()


def sampled(explorer):
    return random.Random(2).sample(explorer.choices(), 20)


def by_hand(kind, lengths):
    """(query positions, key positions, may-read) of the drawn rows, from lists and comparisons alone."""
    a, b = lengths
    if kind == "decode":
        q, k = [a + b - 1], [*range(a + b)]
        return q, k, [[True] * (a + b)]
    if kind == "chunk":
        q, k = [a + i for i in range(b)], [*range(a + b)]
        return q, k, [[j <= i for j in k] for i in q]
    if kind == "cross":
        return [*range(a)], [*range(b)], [[True] * b] * a
    if kind in ("packed", "leak"):
        p, owner = [*range(a), *range(b)], [0] * a + [1] * b
        return p, p, [[j <= i and (kind == "leak" or owner[i] == owner[j]) for j in range(a + b)] for i in range(a + b)]
    short, most = min(a, b), max(a, b)
    pads = most - short
    if kind == "right":
        return [*range(most)], [*range(most)], [[j < short for j in range(most)]] * most
    p = [0] * pads + [*range(short)]
    return p, p, [[p[j] <= p[i] and j >= pads for j in range(most)] for i in range(most)]


def token_rows(kind, lengths, count):
    short, most = min(lengths), max(lengths)
    return [i < short if kind == "right" else i >= most - short if kind == "left" else True for i in range(count)]


def furthest(across, q, k, choice):
    """The largest offset across sequences, with its sign as the widget writes it."""
    reach = max(k[j] - q[i] for i, j in across)
    return f"+{reach}" if choice["sign"] == "key_minus_query" else f"−{reach}"


def badges(panels):
    return {badge.label: badge.value for badge in panels[0].items}


def test_visibility_is_that_of_the_rule_by_hand(explorer):
    for choice in sampled(explorer):
        panels = explorer.state(**choice)
        q, k, seen = by_hand(choice["kind"], choice["lengths"])
        matrix = panels[2 if choice["kind"] == "cross" else 3].items[0]
        np.testing.assert_array_equal(matrix.values, np.array(seen, dtype=int), err_msg=str(choice))
        np.testing.assert_array_equal(matrix.masked, ~np.array(seen))
        assert matrix.row_labels == tuple(f"q{p}" for p in q) and matrix.column_labels == tuple(f"k{p}" for p in k)
        assert badges(panels)["Q × K"] == f"{len(q)} × {len(k)}"


def test_both_offset_matrices_are_differences_of_positions(explorer):
    for choice in sampled(explorer):
        kind, lengths = choice["kind"], choice["lengths"]
        if kind == "cross":
            continue
        q, k, seen = by_hand(kind, lengths)
        turn = 1 if choice["sign"] == "key_minus_query" else -1
        read = np.array(seen) & np.array(token_rows(kind, lengths, len(q)))[:, None]
        for matrix, (rows, columns) in zip(explorer.state(**choice)[2].items, ((q, k), (range(len(q)), range(len(k))))):
            wanted = turn * (np.array(list(columns))[None, :] - np.array(list(rows))[:, None])
            np.testing.assert_array_equal(matrix.values[read], wanted[read], err_msg=str(choice))
            np.testing.assert_array_equal(matrix.masked, ~read)
            assert ("k − q" in matrix.title) == (turn == 1)


def test_offsets_and_visibility_are_those_of_fresh_calls(explorer):
    for lengths in LENGTHS:
        fresh = {"decode": PositionCall.decode(sum(lengths) - 1), "chunk": PositionCall.decode(*lengths), "packed": PositionCall.packed(list(lengths))}
        for kind, call in fresh.items():
            geometry = call.geometry()
            for sign in ("key_minus_query", "query_minus_key"):
                panels = explorer.state(kind=kind, lengths=lengths, sign=sign)
                declared = panels[2].items[0]
                shown = torch.as_tensor(~declared.masked)
                assert torch.equal(shown, geometry.visible)
                np.testing.assert_array_equal(declared.values[shown.numpy()], geometry.offsets(sign)[shown].numpy())
                assert [row[3] for row in panels[1].rows] == list(call.row_space.logical_position_per_row)


def test_marks_badges_and_captions_count_the_same_cells(explorer):
    for choice in explorer.choices():
        kind, (a, b) = choice["kind"], choice["lengths"]
        panels, said = explorer.state(**choice), explorer.caption_of(**choice)
        if kind == "cross":
            assert "no offset" in said and "coordinate_frame" in panels[3].text
            continue
        q, k, seen = by_hand(kind, (a, b))
        tokens = token_rows(kind, (a, b), len(q))
        across = {(i, j) for i in range(len(q)) for j in range(len(k)) if kind == "leak" and seen[i][j] and (i < a) != (j < a)}
        readable = {(i, j) for i in range(len(q)) for j in range(len(k)) if seen[i][j] and tokens[i]} - across
        wrong = {(i, j) for i, j in readable if k[j] - q[i] != j - i}
        declared, local = panels[2].items
        assert set(local.highlight) == wrong and set(declared.highlight) == across == set(panels[3].items[0].highlight)
        assert badges(panels)["offsets within a sequence wrong when counted by index"] == f"{len(wrong)} of {len(readable)}"
        assert badges(panels)["pairs across sequences"] == len(across)
        if kind in ("decode", "chunk"):
            assert f"start at position {q[0]}," in said and f"get {len(wrong)} of {len(readable)} offsets wrong" in said
            assert len(wrong) == len(readable)
        elif kind == "leak":
            assert f"{len(across)} marked" in said and f"reaches {furthest(across, q, k, choice)}:" in said
            assert "segment_isolation" in panels[4].text and "'A' and 'B'" in panels[4].text
        elif a != b or kind == "packed":
            assert not wrong and (kind == "right" or f"(0 of {len(readable)} wrong)" in said)


def test_table_marks_rows_whose_position_is_not_their_place(explorer):
    for choice in sampled(explorer):
        table = explorer.state(**choice)[1]
        assert list(table.highlight) == [i for i, row in enumerate(table.rows) if row[3] != i]
        pads = [row[4] for row in table.rows].count("pad")
        assert pads == (max(choice["lengths"]) - min(choice["lengths"]) if choice["kind"] in ("left", "right") else 0)


def test_at_rest_a_decode_step_is_wrong_in_every_cell(explorer):
    assert explorer.choice == {"kind": "decode", "lengths": (4, 2), "sign": "key_minus_query"}
    declared, local = explorer.state()[2].items
    assert declared.values.tolist() == [[-5, -4, -3, -2, -1, 0]] and local.values.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert "6 of 6" in explorer.caption_of() and explorer.size <= 150_000
