"""Exercises of 0x01: where an entry goes, carrying the masks of a batch, the rows a mask tells apart, and two orders that a stack confuses."""

from __future__ import annotations

import itertools
import math

import torch

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register


# 1 --- where does an entry go?

ORDER_1 = [2, 0, 3, 1]


def _check_place(answer):
    expect_close(answer, [3, 2], mistakes=[
        ([0, 1], "You applied π to the old indices. Row i of PX is row π(i) of X, so look for the i with π(i) = 1, and the j with π(j) = 3."),
        ([3, 3], "You moved the row and left the column. Keys are shuffled as well: A′ = P A Pᵀ acts on both axes."),
        ([1, 2], "You moved the column and left the row. Queries are shuffled as well: A′ = P A Pᵀ acts on both axes."),
        ([2, 3], "Rows and columns are exchanged: the first index is the row that reads, the second the row that is read."),
        ([1, 3], "That is where the number was. The rows have moved, and the number with them."),
    ])


register(Exercise(
    id="0x01.1", kind="recall", minutes=3,
    prompt="Unmasked attention, order π = (2, 0, 3, 1): row i of PX is row π(i) of X. The old weights hold A[1, 3] = 0.7, and no other "
           "entry is 0.7. At which [row, column] of A′ does 0.7 stand? Answer with a list of two integers.",
    hint="A′[i, j] = A[π(i), π(j)]. Find i and j so that the right side is A[1, 3].",
    check=_check_place, solution=[3, 2], praise="Both indices went through the inverse of π: the row that read and the row that was read have moved.",
    wrong_answers={"forward": ([0, 1], "applied π to the old indices"), "rows only": ([3, 3], "left the column"),
                   "columns only": ([1, 2], "left the row"), "transposed": ([2, 3], "exchanged"), "unmoved": ([1, 3], "where the number was")},
))


# 2 --- carry the masks of a batch

ORDERS_2 = torch.tensor([[1, 3, 0, 4, 2], [4, 2, 0, 1, 3], [2, 0, 1, 4, 3]])


def carry_masks(masks, orders):
    b = torch.arange(len(masks))[:, None, None]
    return masks[b, orders[:, :, None], orders[:, None, :]]


def _readers_only(masks, orders):
    return torch.stack([mask[order] for mask, order in zip(masks, orders)])


def _read_only(masks, orders):
    return torch.stack([mask[:, order] for mask, order in zip(masks, orders)])


def _first_order(masks, orders):
    return masks[:, orders[0]][:, :, orders[0]]


def _turned_back(masks, orders):
    return carry_masks(masks, orders.argsort(1))


def _with_matrices(masks, orders):
    p = torch.eye(orders.shape[1], dtype=torch.float64)[orders]
    return p @ masks.double() @ p.mT


def _check_carry(answer):
    masks = torch.full((3, 5, 5), -math.inf, dtype=torch.float64).triu(1)
    masks[1, :, 4] = -math.inf  # the second sequence ends in padding, the third is two packed segments
    masks[2, 3:, :3] = -math.inf
    expect_close(call(answer, masks, ORDERS_2), carry_masks(masks, ORDERS_2), mistakes=[
        (_readers_only(masks, ORDERS_2), "Only the rows moved. A mask names two rows in every entry, the reader and the read: shuffle both axes."),
        (_read_only(masks, ORDERS_2), "Only the columns moved. Shuffle the query axis too."),
        (_first_order(masks, ORDERS_2), "The first order was used for the whole batch. Each sequence has its own: orders[b] belongs to masks[b]."),
        (_turned_back(masks, ORDERS_2), "This is Pᵀ M P, the shuffle turned back. Row i of PX is row order[i] of X: index with the order itself."),
        (masks, "The masks have not moved. A fixed triangle is exactly what the proof does not cover."),
        (_with_matrices(masks, ORDERS_2), "The matrix product gives NaN: 0 · (−∞) is not a number. Move the entries by indexing instead of multiplying."),
    ])
    expect_close(call(answer, masks == 0, ORDERS_2), carry_masks(masks == 0, ORDERS_2))


register(Exercise(
    id="0x01.2", kind="build", minutes=6,
    prompt="Write `carry_masks(masks, orders)`: masks [B, n, n], boolean or with entries 0 and −∞, and orders [B, n] int64, one order π for each "
           "sequence. Mask b of the result belongs to x[b][orders[b]]: M′ = P M Pᵀ with the P of sequence b.",
    hint="M′[b, i, j] = M[b, orders[b, i], orders[b, j]]. Index with a batch index [B, 1, 1], orders as [B, n, 1] and orders as [B, 1, n].",
    check=_check_carry, solution=carry_masks, praise="Entries are moved, never multiplied, so −∞ and booleans both survive, and each sequence keeps its own order.",
    wrong_answers={"rows": (_readers_only, "Only the rows moved"), "columns": (_read_only, "Only the columns moved"),
                   "one order": (_first_order, "first order was used"), "inverse": (_turned_back, "turned back"),
                   "same": (lambda m, o: m, "have not moved"), "product": (_with_matrices, "0 · (−∞)")},
))


# 3 --- which rows does a mask tell apart?

def places(visible):
    n = len(visible)
    kept = [o for o in map(list, itertools.permutations(range(n))) if torch.equal(visible[o][:, o], visible)]
    return [len({o[i] for o in kept}) for i in range(n)]


def _places_where(keeps):
    """The answer of somebody who takes another test for "the mask is kept"."""
    def wrong(visible):
        n = len(visible)
        kept = [o for o in map(list, itertools.permutations(range(n))) if torch.equal(keeps(visible, o), visible)]
        return [len({o[i] for o in kept}) for i in range(n)]
    return wrong


_rows_alone, _columns_alone = _places_where(lambda m, o: m[o]), _places_where(lambda m, o: m[:, o])


def _count_orders(visible):
    return sum(torch.equal(visible[o][:, o], visible) for o in map(list, itertools.permutations(range(len(visible)))))


def _check_places(answer):
    i = torch.arange(4)
    window = (i[:, None] - i[None, :]).abs() <= 1
    packed = torch.block_diag(torch.ones(2, 2).tril(), torch.ones(2, 2).tril()).bool()
    padded = torch.tensor([True, True, True, False]).expand(4, 4)
    cases = {"one padding key": (padded, [3, 3, 3, 1]), "window": (window, [2] * 4), "two packed causal segments": (packed, [2] * 4),
             "triangle of 5": (torch.ones(5, 5).tril().bool(), [1] * 5), "no mask": (torch.ones(4, 4).bool(), [4] * 4)}
    for name, (visible, expected) in cases.items():
        mistakes = [(_columns_alone(visible), f"Case “{name}”: only the columns were shuffled. P M Pᵀ shuffles both axes."),
                    (_rows_alone(visible), f"Case “{name}”: you compared M with its rows shuffled. P M Pᵀ shuffles rows and columns by the same order."),
                    (_count_orders(visible), f"Case “{name}”: that is the number of orders that keep the mask. Look at each index: which rows do these orders put there?")]
        expect_close(call(answer, visible), expected, mistakes=[(value, text) for value, text in mistakes if value != expected])


register(Exercise(
    id="0x01.3", kind="build", minutes=8,
    prompt="Write `places(visible)`: for each index, how many different rows can stand there in an order that keeps the mask, P M Pᵀ = M? `visible` is a "
           "boolean [n, n] tensor, n ≤ 5. It is tried on a padding mask, a window |i − j| ≤ 1, two packed causal segments, a triangle and no mask.",
    hint="List the orders that keep the mask, as for the triangle. Then collect o[i] over them, one set for each index i.",
    check=_check_places, solution=places,
    praise="A window keeps the reversal, packed segments may trade places, padding lets the real rows mix. Only what the mask tells apart has an order.",
    wrong_answers={"rows only": (_rows_alone, "its rows shuffled"), "columns only": (_columns_alone, "only the columns"),
                   "orders": (_count_orders, "number of orders")},
))


# 4 --- break the claim that two layers see every order

START = [1.0, 0.0, 3.0]


def _prefix_means(rows):
    return [sum(rows[: i + 1]) / (i + 1) for i in range(len(rows))]


def _last_after_two(rows):
    return _prefix_means(_prefix_means(rows))[-1]


def _check_confused(answer):
    expect_close(sorted(answer) if type(answer) in (list, tuple) and all(type(x) in (int, float) for x in answer) else answer, sorted(START),
                 mistakes=[(sorted([1.0, 1.0, 3.0]), "Use the same three rows: an order, no new numbers.")])
    rows = [float(x) for x in answer]
    if rows == START:
        raise Wrong("That is the first order itself. Look for another one.")
    if abs(_last_after_two(rows) - _last_after_two(START)) > 1e-12:
        raise Wrong(f"Two layers tell these apart: the last row gives {_last_after_two(rows) * 18:.0f}/18 against {_last_after_two(START) * 18:.0f}/18. "
                    f"Row 0 weighs 11/18, row 1 weighs 5/18, row 2 weighs 2/18.")


register(Exercise(
    id="0x01.4", kind="break", minutes=6,
    prompt="“Two causal layers always tell the order of their rows.” Break it. Each layer is the mean of the visible prefix. Give an order of "
           "the rows 1, 0, 3 other than [1, 0, 3] whose last row after two layers is the same. Answer with a list.",
    hint="After two layers the last row is (11·row 0 + 5·row 1 + 2·row 2)/18. There are five other orders.",
    check=_check_confused, solution=[0.0, 3.0, 1.0],
    praise="Both give 17/18. Two layers can depend on order; whether a given pair of orders differs is a matter of weights and rows.",
    wrong_answers={"same": ([1.0, 0.0, 3.0], "the first order itself"), "one layer": ([0.0, 1.0, 3.0], "11/18 against 17/18"),
                   "reversed": ([3.0, 0.0, 1.0], "35/18 against 17/18"), "other rows": ([1.0, 1.0, 3.0], "no new numbers")},
))
