"""Exercises of 0x09D: which scale, the shift by hand, the third term of released DeBERTa, and a table that hides the index."""

from __future__ import annotations

import numpy as np
import torch

from positionlib.exercises.answers import Wrong, call, expect_choice, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x09D.1", kind="recall", minutes=2,
    prompt="A DeBERTa checkpoint has heads of width 48 and only content-to-content and content-to-position enabled. What divides its scores? "
           "(a) √48  (b) √96  (c) √144  (d) 48",
    hint="Count the products that are added.", solution="b",
    check=lambda answer: expect_choice(answer, "b", {
        "a": "That is the scale of content alone. One position term is enabled, so two products are added.",
        "c": "That is the scale of all three terms. Position-to-content is not enabled here.",
        "d": "A denominator without a root: the sum of two products of variance 48 has standard deviation √96."}),
    wrong_answers={"content": ("a", "content alone"), "three": ("c", "all three"), "no root": ("d", "without a root")},
    praise="Two products: √(2 · 48). A loader that always writes √(3d) is wrong here."))


def align(compact: list[list[float]]) -> list[list[float]]:
    queries, keys = len(compact), len(compact[0])
    memory = keys - queries
    aligned = [[0.0] * keys for _ in range(queries)]
    for i in range(queries):
        for j in range(i + memory + 1):                  # later keys stay 0
            aligned[i][j] = compact[i][keys - 1 - (i + memory - j)]
    return aligned


def _align_with(column):
    """An alignment that reads column ``column(i, j, memory, keys)`` at each past key, 0 where there is none."""
    def wrong(compact: list[list[float]]) -> list[list[float]]:
        queries, keys = len(compact), len(compact[0])
        memory = keys - queries
        read = lambda i, j: compact[i][c] if 0 <= (c := column(i, j, memory, keys)) < keys else 0.0
        return [[read(i, j) if j <= i + memory else 0.0 for j in range(keys)] for i in range(queries)]
    return wrong


def _leftovers(compact: list[list[float]]) -> list[list[float]]:
    queries, keys = len(compact), len(compact[0])
    flat = [x for row in compact for x in (0.0, *row)][queries:]
    return [flat[i * keys:(i + 1) * keys] for i in range(queries)]


_ALIGN_MISTAKES = {
    "neighbour": (_align_with(lambda i, j, m, k: k - (i + m - j)),
                  "Every key reads the distance of its neighbour: distance n stands in column K − 1 − n, not K − n."),
    "ascending": (_align_with(lambda i, j, m, k: i + m - j),
                  "You read the columns as distances 0, 1, 2, …; here they run down to 0, so distance n stands in column K − 1 − n."),
    "memory": (_align_with(lambda i, j, m, k: k - 1 - (i - j) if i >= j else -1),
               "You forgot the memory: query i is row M + i of the keys, so the distance is i + M − j."),
    "unmoved": (_align_with(lambda i, j, m, k: j), "No row has moved: column c is a distance, not a key."),
    "leftovers": (_leftovers, "The past is right, but later keys hold leftovers of the reshape. Set them to 0."),
}


def _rows(value) -> list:
    if isinstance(value, torch.Tensor | np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple) or not value or not all(isinstance(row, list | tuple) for row in value):
        raise Wrong("Return a list of rows, one a query.")
    return [list(row) for row in value]


_COMPACTS = ([[5.0, 6.0, 7.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 6.0]], [[2.0, 7.0, 5.0], [4.0, 9.0, 1.0], [6.0, 3.0, 8.0]])


def _check_align(answer) -> None:
    for compact in _COMPACTS:
        expect_close(_rows(call(answer, compact)), align(compact), mistakes=[
            (wrong(compact), why) for wrong, why in _ALIGN_MISTAKES.values() if wrong(compact) != align(compact)])


register(Exercise(
    id="0x09D.2", kind="build", minutes=8,
    prompt="Write `align(compact)` with two loops and no reshape. `compact` is a list of rows, one a query; column c belongs to distance K − 1 − c. "
           "The queries are the last rows of the keys. Return [queries][keys], with 0 at later keys.",
    hint="Query i stands at row M + i of the keys, M = K − L. Which distance has key j, and in which column does it stand?",
    check=_check_align, solution=align,
    wrong_answers={name: (wrong, words) for (name, (wrong, _)), words in
                   zip(_ALIGN_MISTAKES.items(), ("its neighbour", "run down to 0", "forgot the memory", "No row has moved", "leftovers"), strict=True)},
    praise="The reshape does the same without an index; this is its specification."))


def p2c(keys: list[float], rows: list[float]) -> list[list[float]]:
    k = len(rows) // 2
    row = lambda i, j: min(max(i - j + k, 0), 2 * k - 1)     # δ(i, j)
    return [[key * rows[row(i, j)] for j, key in enumerate(keys)] for i in range(len(keys))]


def _p2c_with(row, by_query: bool = False):
    def wrong(keys: list[float], rows: list[float]) -> list[list[float]]:
        k, n = len(rows) // 2, len(keys)
        return [[keys[i if by_query else j] * rows[min(max(row(i, j, k), 0), 2 * k - 1)] for j in range(n)] for i in range(n)]
    return wrong


_P2C_MISTAKES = {
    "paper": (_p2c_with(lambda i, j, k: j - i + k), "That is the paper's δ(j, i). The released code reads the row of i − j in this term too."),
    "centre": (_p2c_with(lambda i, j, k: i - j + k - 1), "Your rows are one too low: offset 0 has row k, not k − 1."),
    "query": (_p2c_with(lambda i, j, k: i - j + k, by_query=True), "You multiplied by the content of the query. In position-to-content the content is the key's."),
    "absolute": (_p2c_with(lambda i, j, k: abs(i - j) + k), "You took the distance without its sign: keys before and after share a row."),
}


def _check_p2c(answer) -> None:
    for arguments in (([2.0, 5.0, 1.0, 3.0, 4.0], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]), ([3.0, 1.0, 2.0, 7.0], [5.0, 7.0, 11.0, 13.0])):
        expect_close(_rows(call(answer, *arguments)), p2c(*arguments), mistakes=[(wrong(*arguments), why) for wrong, why in _P2C_MISTAKES.values()])


register(Exercise(
    id="0x09D.3", kind="build", minutes=8,
    prompt="Write `p2c(keys, rows)` by the rule of the released DeBERTa: heads of width 1, no scale. `keys` are the keys' numbers, `rows` the 2k position queries. "
           "Return [queries][keys].",
    hint="Query i and key j read row δ(i, j) = i − j + k, held within 0 and 2k − 1.", check=_check_p2c, solution=p2c,
    wrong_answers={name: (wrong, words) for (name, (wrong, _)), words in
                   zip(_P2C_MISTAKES.items(), ("paper's", "one too low", "content of the query", "without its sign"), strict=True)}))


def undecided(k: int) -> list[float]:
    # Row k + r must equal row k − r; row 2k − 1 serves every offset from k − 1 on, so it must equal rows 0 and 1.
    return [float(min(abs(row - k), k - 1)) for row in range(2 * k)]


def _check_undecided(answer) -> None:
    for k in (4, 7):
        got = call(answer, k)
        got = got.tolist() if isinstance(got, torch.Tensor | np.ndarray) else got
        if not isinstance(got, list | tuple) or len(got) != 2 * k or not all(isinstance(x, int | float) for x in got):
            raise Wrong(f"Return a list of 2k = {2 * k} numbers.")
        rows = [float(x) for x in got]
        if rows == rows[::-1] and len(set(rows)) > 1:
            raise Wrong("Your table is a mirror image about the gap between rows k − 1 and k. Offset 0 has row k: mirror about that row.")
        clamp = lambda n: min(max(n, 0), 2 * k - 1)
        for r in range(1, 2 * k):
            if rows[clamp(r + k)] != rows[clamp(-r + k)]:
                place = "beyond the table" if abs(r) >= k else "inside the table"
                raise Wrong(f"At offset {r}, {place}, the two rules read rows {clamp(r + k)} and {clamp(-r + k)}, which differ in your table.")
        if len(set(rows)) < k:
            raise Wrong(f"The rules agree, but your table has {len(set(rows))} different numbers; {k} are possible and asked.")


register(Exercise(
    id="0x09D.4", kind="break", minutes=8,
    prompt="A test compares p2c under the paper's index and under the released one, and finds no difference on your table. Write `undecided(k)`: 2k position queries of width 1 "
           "with k different numbers on which both rules agree at every offset.",
    hint="The rules read rows k + r and k − r. Then look at the ends: which rows serve offsets k − 1, k and −k?", check=_check_undecided, solution=undecided,
    wrong_answers={"flat": (lambda k: [1.0] * (2 * k), "different numbers"),
                   "gap": (lambda k: [float(min(n, 2 * k - 1 - n)) for n in range(2 * k)], "about the gap"),
                   "end": (lambda k: [float(abs(n - k)) for n in range(2 * k)], "beyond the table"),
                   "any": (lambda k: [float(n) for n in range(2 * k)], "which differ"),
                   "short": (lambda k: [0.0] * (2 * k + 1), "2k =")},
    praise="So a symmetric table cannot tell the two rules apart; a test needs one that is not."))
