"""Exercises of 0x09: which fields one gather can move, both sides of a pair, numbers that are rows, and an order that a test cannot see through."""

from __future__ import annotations

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x09.1", kind="recall", minutes=3,
    prompt="A trace of tool events has five fields: status [N], timestamp [N], the parent's id [N], the parent's row number [N], depends_on [N, N]. Each is "
           "replaced by field[order], once. How many of the five are right afterwards?",
    hint="Which field has a second axis of events, and which holds numbers that change their meaning?", solution=3,
    check=lambda answer: expect_close(answer, 3, mistakes=[
        (5, "All shapes are right. depends_on moved on one side only, and row numbers still name old rows."),
        (4, "One more is wrong: count both the pair field, which needs its columns moved too, and the row numbers, which must be named anew."),
        (2, "An id names an event wherever it stands, so the parent's id moves like a status."),
        (1, "Status, timestamp and parent id are values of their row: one gather moves each of them rightly."),
        (0, "Equal shapes are no proof, but some fields are right: one gather moves every value that belongs to its row and says nothing of other rows.")]),
    wrong_answers={"all": (5, "one side only"), "four": (4, "One more"), "two": (2, "wherever it stands"), "one": (1, "values of their row"),
                   "none": (0, "some fields are right")},
    praise="Status, timestamp and parent id. depends_on needs [order][:, order], the row numbers the inverse."))


def move_pairs(pairs: list[list[float]], order: list[int]) -> list[list[float]]:
    return [[pairs[i][j] for j in order] for i in order]


def _rows_only(pairs, order):
    return [pairs[i] for i in order]


def _columns_only(pairs, order):
    return [[row[j] for j in order] for row in pairs]


def _inverse(order):
    return [order.index(i) for i in range(len(order))]


def _by_inverse(pairs, order):
    return move_pairs(pairs, _inverse(order))


def _transposed(pairs, order):
    return [[pairs[j][i] for j in order] for i in order]


def _half_inverse(pairs, order):
    return _columns_only(_rows_only(pairs, order), _inverse(order))


def _unmoved(rows, order):
    return list(rows)


def _empty(rows, order):
    return []


def _check_pairs(answer) -> None:
    pairs, order = [[10 * i + j for j in range(5)] for i in range(5)], [3, 0, 4, 2, 1]
    expect_close(call(answer, pairs, order), move_pairs(pairs, order), mistakes=[
        (_rows_only(pairs, order), "The rows moved, the columns did not: entry [m][n] still speaks of the old row n."),
        (_columns_only(pairs, order), "The columns moved, the rows did not."),
        (_by_inverse(pairs, order), "You sent row m to order[m]. Here order[m] is the old row that comes to m."),
        (_transposed(pairs, order), "Both sides moved, and changed places: [m][n] must be the old pair (order[m], order[n])."),
        (_half_inverse(pairs, order), "The rows follow order, the columns its inverse. Both sides follow order."),
        (_unmoved(pairs, order), "Nothing moved: entry [0][0] still speaks of old row 0, not of row order[0]."),
        (_empty(pairs, order), "The list is empty. It needs a row for each entry of order, and in each row as many entries.")])


register(Exercise(
    id="0x09.2", kind="build", minutes=5,
    prompt="Write `move_pairs(pairs, order)` for lists: entry [m][n] of the result is the old entry of the rows order[m] and order[n].",
    hint="Two loops, each over order.", check=_check_pairs, solution=move_pairs,
    wrong_answers={"rows": (_rows_only, "the columns did not"), "columns": (_columns_only, "the rows did not"), "inverse": (_by_inverse, "sent row m"),
                   "transposed": (_transposed, "changed places"), "half": (_half_inverse, "its inverse"), "unmoved": (_unmoved, "Nothing moved"),
                   "empty": (_empty, "list is empty")}))


def renumber(parents: list[int], order: list[int]) -> list[int]:
    now_at = {old: new for new, old in enumerate(order)}
    return [now_at[parents[old]] if parents[old] >= 0 else -1 for old in order]


def _moved_only(parents, order):
    return [parents[old] for old in order]


def _wrong_way(parents, order):
    return [order[parents[old]] if parents[old] >= 0 else -1 for old in order]


def _not_moved(parents, order):
    now_at = _inverse(order)
    return [now_at[p] if p >= 0 else -1 for p in parents]


def _minus_one(parents, order):
    now_at = _inverse(order)
    return [now_at[parents[old]] for old in order]


def _wrong_way_all(parents, order):
    return [order[parents[old]] for old in order]


def _gathered_by_inverse(parents, order):
    return [parents[old] for old in _inverse(order)]


def _all_inverse(parents, order):
    return renumber(parents, _inverse(order))


def _zero_is_none(parents, order):
    now_at = _inverse(order)
    return [now_at[parents[old]] if parents[old] > 0 else -1 for old in order]


def _check_renumber(answer) -> None:
    parents, order = [-1, 0, 1, 0, 3], [4, 1, 3, 0, 2]
    expect_close(call(answer, parents, order), renumber(parents, order), mistakes=[
        (_moved_only(parents, order), "Each value came along with its row and still names an old row. Say where that row stands now."),
        (_wrong_way(parents, order), "order[p] is the old row that stands at p now. You need the new place of old row p: the inverse."),
        (_not_moved(parents, order), "The numbers are new, but each still stands in its old row: the column moves too."),
        (_minus_one(parents, order), "−1 is no row. As an index it names the last one: keep it as it is."),
        (_wrong_way_all(parents, order), "Two mistakes: order[p] is the old row at p, where you need the inverse; and −1 is no row, so it must stay −1."),
        (_gathered_by_inverse(parents, order), "The values moved by the inverse of order, and still name old rows. Old row order[m] comes to m."),
        (_all_inverse(parents, order), "You sent row m to order[m]. Here order[m] is the old row that comes to m."),
        (_zero_is_none(parents, order), "Row 0 is a row, and can be a parent. Only −1 means none."),
        (_unmoved(parents, order), "Nothing moved: the column follows order, and then each value is named anew."),
        (_empty(parents, order), "The list is empty. It needs one number for each entry of order.")])


register(Exercise(
    id="0x09.3", kind="build", minutes=6,
    prompt="Write `renumber(parents, order)`: parents[i] is the row number of the parent of row i, or −1. The rows are sorted so that old row order[m] comes to m. "
           "Return the new column: each entry in its new row, naming its parent's new row.",
    hint="First a table from old row to new row, then walk through order.", check=_check_renumber, solution=renumber,
    wrong_answers={"moved": (_moved_only, "still names an old row"), "wrong way": (_wrong_way, "the inverse"), "stays": (_not_moved, "the column moves too"),
                   "minus one": (_minus_one, "no row"), "both": (_wrong_way_all, "Two mistakes"), "by inverse": (_gathered_by_inverse, "moved by the inverse"),
                   "all inverse": (_all_inverse, "sent row m"), "zero": (_zero_is_none, "Row 0 is a row"), "unmoved": (_unmoved, "Nothing moved"),
                   "empty": (_empty, "list is empty")}))


def blind_order() -> list[int]:
    return [1, 0, 3, 2, 5, 4]


def _check_blind(answer) -> None:
    order = call(answer)
    if not (isinstance(order, list) and len(order) == 6 and all(type(i) is int for i in order)):
        raise Wrong("Return a list of six row numbers.")
    if sorted(order) != list(range(6)):
        raise Wrong("Each of the rows 0 to 5 must appear once; a repeated row would be another input.")
    if any(i == m for m, i in enumerate(order)):
        raise Wrong("A row stays where it is. The test wants every row moved.")
    if order != _inverse(order):
        m = next(m for m, i in enumerate(order) if order[i] != m)
        raise Wrong(f"The test would see it: row {order[m]} comes to {m}, and row {m} does not come to {order[m]}.")


register(Exercise(
    id="0x09.4", kind="break", minutes=5,
    prompt="A function moves coordinates with the inverse of the order that moved the content, and its test passes. Write `blind_order()`: an order of six rows in which "
           "every row moves, and which still cannot tell an order from its inverse.",
    hint="Two rows that change places do not say who came first.", check=_check_blind, solution=blind_order,
    wrong_answers={"cycle": (lambda: [1, 2, 3, 4, 5, 0], "would see it"), "stays": (lambda: [1, 0, 2, 3, 5, 4], "stays where it is"),
                   "twice": (lambda: [1, 1, 0, 0, 5, 4], "appear once"), "shape": (lambda: [1, 0], "six row numbers")},
    praise="Exchanges undo themselves, so does a full reversal. Test a move with a cycle of three."))
