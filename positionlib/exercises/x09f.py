"""Exercises of 0x09F: what a separable grid costs, the weights of causal layers, moving a graph, and two orders that a stack confuses."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x09F.1", kind="recall", minutes=3,
    prompt="A grid of 20 rows and 30 columns, width 64. How many numbers fewer has a separable sum of axes than a flat table?",
    hint="Flat: a row a cell. Sum: a row a grid row, and a row a grid column.", solution=35_200,
    check=lambda answer: expect_close(answer, 35_200, mistakes=[
        (38_400, "That is the flat table, R·C·D. The separable one still has (R + C)·D numbers: subtract them."),
        (3_200, "That is what the separable tables have, (R + C)·D. The question asks how many fewer than the flat table."),
        (550, "You counted rows: multiply by the width 64."),
        (41_600, "You added the two counts. The separable tables stand in place of the flat one.")]),
    wrong_answers={"flat": (38_400, "flat table, R"), "separable": (3_200, "separable tables have"), "rows": (550, "multiply by the width"), "sum": (41_600, "added the two")},
    praise="(20 · 30 − 50) · 64: the price is that every rectangle must close."))


def last_weights(n: int, layers: int) -> list[float]:
    weights = [0.0] * (n - 1) + [1.0]            # before any layer the last row is the last token
    for _ in range(layers):
        # Row i of the layer below is the mean of rows 0..i: its weight goes to them in equal parts.
        weights = [sum(weights[i] / (i + 1) for i in range(j, n)) for j in range(n)]
    return weights


_WEIGHT_MISTAKES = {
    "mask": (lambda n, layers: [1 / n] * n, "Those are the weights of one layer, or of any number without a mask: all equal. From the second layer on early tokens weigh more."),
    "reversed": (lambda n, layers: last_weights(n, layers)[::-1], "The weights run the wrong way: the first token is read by every row, so it weighs most."),
    "extra": (lambda n, layers: last_weights(n, layers + 1), "You applied one layer too many."),
    "sums": (lambda n, layers: [w * n for w in last_weights(n, layers)], "Your weights do not add up to 1: a mean of means is a mean."),
    "first": (lambda n, layers: [1.0] + [0.0] * (n - 1), "Those are the weights of row 0, which reads only itself."),
}


def _check_weights(answer) -> None:
    for arguments in ((4, 2), (3, 3)):
        got = call(answer, *arguments)
        if isinstance(got, list | tuple) and len(got) == arguments[0] and all(isinstance(w, int | float) for w in got) and abs(sum(got) - 1) > 1e-9:
            raise Wrong(_WEIGHT_MISTAKES["sums"][1])
        expect_close(got, last_weights(*arguments), atol=1e-9, mistakes=[(wrong(*arguments), why) for wrong, why in _WEIGHT_MISTAKES.values()])


register(Exercise(
    id="0x09F.2", kind="build", minutes=8,
    prompt="Write `last_weights(n, layers)`: after layers of uniform causal averaging the last of n rows is a weighted mean of the n tokens. Return the n weights, first token first.",
    hint="Start from the weights 0, ..., 0, 1 and go down a layer at a time: row i gives its weight in equal parts to rows 0 to i. Or push the n unit texts through the layers.",
    check=_check_weights, solution=last_weights,
    wrong_answers={name: (wrong, words) for (name, (wrong, _)), words in
                   zip(_WEIGHT_MISTAKES.items(), ("all equal", "wrong way", "too many", "add up to 1", "row 0"), strict=True)},
    praise="Early tokens gain weight with every layer: that imbalance is what carries order."))


def moved(order: list[int], degree: list[int], distance: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    return [degree[n] for n in order], [[distance[a][b] for b in order] for a in order]


def _moved_with(degree, distance):
    return lambda order, degrees, distances: (degree(order, degrees), distance(order, distances))


def _inverse(order: list[int]) -> list[int]:
    return [order.index(n) for n in range(len(order))]


_take = lambda order, degrees: [degrees[n] for n in order]
_both = lambda order, d: [[d[a][b] for b in order] for a in order]
_MOVED_MISTAKES = {
    "rows": (_moved_with(_take, lambda order, d: [d[a] for a in order]), "You moved the rows of the distances but not their columns: entry [a][b] is a pair of nodes, and both have moved."),
    "columns": (_moved_with(_take, lambda order, d: [[row[b] for b in order] for row in d]), "You moved the columns of the distances but not their rows."),
    "kept": (_moved_with(_take, lambda order, d: d), "The degrees moved, the distances did not: they describe the old storage order."),
    "transposed": (_moved_with(_take, lambda order, d: [[d[b][a] for b in order] for a in order]),
                   "You exchanged the axes: entry [a][b] runs from the node at place a to the node at place b, and this graph's edges have directions."),
    "degrees": (_moved_with(lambda order, degrees: degrees, _both), "The distances moved, the degrees did not: a degree belongs to its node."),
    "inverse": (lambda order, degrees, d: moved(_inverse(order), degrees, d), "You applied the inverse: order[n] is the old node that comes to place n."),
}


def _pair(value) -> list[float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise Wrong("Return a pair: the degrees and the distances.")
    flat = [v.tolist() if isinstance(v, torch.Tensor | np.ndarray) else v for v in value]
    if not isinstance(flat[0], list) or not isinstance(flat[1], list) or not all(isinstance(row, list | tuple) for row in flat[1]):
        raise Wrong("Return a list of degrees and a list of rows of distances.")
    return [*flat[0], *(x for row in flat[1] for x in row)]


def _check_moved(answer) -> None:
    given = ([3, 0, 1, 2], [1, 3, 2, 2], [[0, 1, 2, 2], [1, 0, 1, 1], [2, 1, 0, 1], [2, 1, 3, 0]])
    expect_close(_pair(call(answer, *given)), _pair(moved(*given)), mistakes=[(_pair(wrong(*given)), why) for wrong, why in _MOVED_MISTAKES.values()])


register(Exercise(
    id="0x09F.3", kind="build", minutes=6,
    prompt="Write `moved(order, degree, distance)` for a graph whose nodes are stored in another order: order[n] is the old node at place n. Return the new list of degrees and the new "
           "matrix of distances.",
    hint="A degree belongs to a node, a distance to two.", check=_check_moved, solution=moved,
    wrong_answers={name: (wrong, words) for (name, (wrong, _)), words in
                   zip(_MOVED_MISTAKES.items(), ("not their columns", "not their rows", "the distances did not", "exchanged the axes", "the degrees did not", "inverse"), strict=True)}))


def twins() -> tuple[list[float], list[float]]:
    # The last row is (11 x0 + 5 x1 + 2 x2) / 18, and 11·2 + 5·1 + 2·4 = 11·1 + 5·4 + 2·2.
    return [2, 1, 4], [1, 4, 2]


def _check_twins(answer) -> None:
    got = call(answer) if callable(answer) else answer
    got = [row.tolist() if isinstance(row, torch.Tensor | np.ndarray) else row for row in got] if isinstance(got, list | tuple) else got
    if not isinstance(got, list) or len(got) != 2 or not all(isinstance(row, list | tuple) and len(row) == 3 for row in got):
        raise Wrong("Return two lists of three numbers.")
    if not all(type(x) in (int, float) and abs(x) < 1e6 for row in got for x in row):
        raise Wrong("Give plain finite numbers below a million.")
    first, second = ([Fraction(x) for x in row] for row in got)
    if first == second:
        raise Wrong("The two orders are the same list.")
    if sorted(first) != sorted(second):
        raise Wrong("The two lists must hold the same three numbers in another order.")
    if len(set(first)) < 3:
        raise Wrong("With two equal numbers it is too easy: give three different ones.")

    def last(rows):
        for _ in range(2):
            rows = [sum(rows[: i + 1]) / (i + 1) for i in range(3)]
        return rows[-1]

    a, b = last(first), last(second)
    if a != b:
        raise Wrong(f"After two layers the last rows are {float(a):.4f} and {float(b):.4f}. Which weights do the three numbers have there?")


register(Exercise(
    id="0x09F.4", kind="break", minutes=8,
    prompt="Two layers of causal averaging tell [a, b] from [b, a]. Write `twins()`: two lists with the same three different numbers in two orders, whose last rows are equal after two layers.",
    hint="Exercise 2 gives the weights: 11/18, 5/18 and 2/18. Look for small whole numbers.", check=_check_twins, solution=twins,
    wrong_answers={"swap": (lambda: ([1, 2, 3], [2, 1, 3]), "Which weights"), "same": (lambda: ([1, 2, 3], [1, 2, 3]), "same list"),
                   "equal": (lambda: ([1, 1, 2], [2, 1, 1]), "too easy"), "other": (lambda: ([1, 2, 3], [1, 2, 4]), "same three numbers"), "short": (lambda: ([1, 2], [2, 1]), "three numbers")},
    praise="So depth exposes order, but not every order of every content: existence is no guarantee."))
