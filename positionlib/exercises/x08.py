"""Exercises of 0x08: one table row, the last token of each row, a mean that padding cannot reach, and a test batch that sees nothing."""

from __future__ import annotations

import math

import torch

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register
from positionlib.mechanisms.learned import position_ids_from_mask

register(Exercise(
    id="0x08.1", kind="recall", minutes=3,
    prompt="A RoBERTa checkpoint with padding_idx 1 reads a row of 3 pads on the left and 6 tokens. Which row of its table does the fourth token read?",
    hint="Real tokens start at padding_idx + 1, wherever the padding is.", solution=5,
    check=lambda answer: expect_close(answer, 5, mistakes=[
        (3, "You counted from 0. RoBERTa's first token reads row padding_idx + 1 = 2."),
        (4, "You counted from row padding_idx = 1. That row belongs to padding; the first token reads the next one."),
        (6, "You counted columns (the fourth token stands in column 6, but pads do not count), or tokens from 1: the first reads row 2, not 3."),
        (7, "You added padding_idx to the column 6. Padding does not count here."), (2, "That row is the first token's."),
        (8, "You counted columns and added the start. The three pads do not move a token in RoBERTa."),
        (1, "Row 1 is what padding reads.")]),
    wrong_answers={"zero": (3, "from 0"), "pad row": (4, "belongs to padding"), "column": (6, "column 6"), "both": (8, "three pads"), "column and pad": (7, "to the column"), "first": (2, "first token's"),
                   "pad": (1, "padding reads")},
    praise="Tokens read rows 2, 3, 4, 5, …; the three pads all read row 1."))


def last_tokens(mask: list[list[int]]) -> list[int]:
    return [max(column for column, token in enumerate(row) if token) for row in mask]


def _last_by_count(mask: list[list[int]]) -> list[int]:
    return [sum(row) - 1 for row in mask]


def _last_column(mask: list[list[int]]) -> list[int]:
    return [len(row) - 1 for row in mask]


def _last_length(mask: list[list[int]]) -> list[int]:
    return [sum(row) for row in mask]


def _last_before_pad(mask: list[list[int]]) -> list[int]:
    return [row.index(0) - 1 if 0 in row else len(row) - 1 for row in mask]


def _first_tokens(mask: list[list[int]]) -> list[int]:
    return [row.index(1) for row in mask]


def _from_the_end(mask: list[list[int]]) -> list[int]:
    return [row[::-1].index(1) for row in mask]


def _one_past(mask: list[list[int]]) -> list[int]:
    return [last + 1 for last in last_tokens(mask)]


_LAST_MISTAKES = [
    (_last_by_count, "Counting tokens finds the column only under right padding. With pads on the left the last token stands further on."),
    (_last_column, "The last column is the last token only under left padding. On the right it is a pad."),
    (_last_length, "That is the number of tokens, one too many for an index, and under left padding no column at all."),
    (_last_before_pad, "You stopped before the first pad. Under left padding that is column −1."),
    (_first_tokens, "Those are the columns of the first tokens."),
    (_from_the_end, "You counted from the end of the row. Columns count from 0 on the left: take it from the last column, len(row) - 1."),
    (_one_past, "One too many: columns count from 0."),
]


def _check_last(answer) -> None:
    mask = [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    expect_close(call(answer, mask), last_tokens(mask), mistakes=[
        ([], "The list is empty: give one column for each row."), *((wrong(mask), why) for wrong, why in _LAST_MISTAKES)])


register(Exercise(
    id="0x08.2", kind="build", minutes=5,
    prompt="Write `last_tokens(mask)`: for each row of a 0/1 mask the column of its last token. Padding may stand on the left, on the right, or on both sides.",
    hint="Look for the last 1, do not count the ones.", check=_check_last, solution=last_tokens,
    wrong_answers={"count": (_last_by_count, "only under right padding"), "column": (_last_column, "only under left padding"),
                   "length": (_last_length, "one too many"), "stop": (_last_before_pad, "before the first pad"),
                   "first": (_first_tokens, "first tokens"), "end": (_from_the_end, "from the end"), "past": (_one_past, "count from 0"), "empty": (lambda mask: [], "is empty")}))


def pooled(states: list[list[float]], mask: list[int]) -> list[float]:
    rows = [state for state, token in zip(states, mask) if token]
    return [sum(channel) / len(rows) for channel in zip(*rows)]


def _pooled_all(states, mask):
    return [sum(channel) / len(states) for channel in zip(*states)]


def _pooled_over_n(states, mask):
    rows = [state for state, token in zip(states, mask) if token]
    return [sum(channel) / len(states) for channel in zip(*rows)]


def _pooled_product(states, mask):
    return [sum(m * value for m, value in zip(mask, channel)) / sum(mask) for channel in zip(*states)]


def _pooled_first(states, mask):
    return pooled(states[: sum(mask)], [1] * sum(mask))


def _pooled_sum(states, mask):
    return [sum(channel) for channel in zip(*[state for state, token in zip(states, mask) if token])]


def _pooled_channels(states, mask):
    return [sum(state) / len(state) for state, token in zip(states, mask) if token]


def _pooled_padding(states, mask):
    return pooled(states, [1 - token for token in mask])


def _check_pooled(answer) -> None:
    finite = ([[8.0, 2.0], [4.0, 6.0], [90.0, 30.0], [0.0, 4.0]], [1, 1, 0, 1])
    hostile = ([[math.nan, 7.0], [3.0, math.inf], [5.0, 1.0], [9.0, 3.0]], [0, 0, 1, 1])
    for states, mask in (finite, hostile):
        mistakes = [([], "The list is empty: give D numbers, one for each channel."),
                    (_pooled_all(states, mask), "Padding is in your mean. Only the rows with mask 1 count."),
                    (_pooled_over_n(states, mask), "Your sum leaves padding out, and your divisor counts it: divide by the number of tokens."),
                    (_pooled_first(states, mask), "You took the first rows, as many as there are tokens. The tokens may stand elsewhere."),
                    (_pooled_sum(states, mask), "That is the sum. Divide it by the number of tokens."),
                    (_pooled_channels(states, mask), "You averaged over the channels of each token. Average over tokens: D numbers are due."),
                    (_pooled_padding(states, mask), "You averaged the padding: 1 marks a token, 0 a pad.")]
        if states is hostile[0]:
            mistakes.insert(0, (_pooled_product(states, mask), "You multiplied by the mask. A pad may hold NaN or infinity, and 0 times NaN is NaN: select the rows instead."))
        expect_close(call(answer, states, mask), pooled(states, mask), atol=1e-9, mistakes=mistakes)


register(Exercise(
    id="0x08.3", kind="build", minutes=6,
    prompt="Write `pooled(states, mask)`: the mean of the states [n][D] whose mask entry is 1. What stands in a padding row, even NaN, must have no influence.",
    hint="Choose the rows first, then average what you chose.", check=_check_pooled, solution=pooled,
    wrong_answers={"all": (_pooled_all, "in your mean"), "divisor": (_pooled_over_n, "divisor"), "product": (_pooled_product, "0 times NaN"),
                   "first": (_pooled_first, "first rows"), "sum": (_pooled_sum, "the sum"), "channels": (_pooled_channels, "over the channels"),
                   "padding": (_pooled_padding, "averaged the padding"), "empty": (lambda states, mask: [], "is empty")}))


def blind_batch() -> list[list[int]]:
    return [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]         # padding on the right


def _check_blind(answer) -> None:
    mask = call(answer)
    plain = isinstance(mask, list) and len(mask) > 1 and all(isinstance(row, list) and row and all(type(m) is int and m in (0, 1) for m in row) for row in mask)
    if not plain or len({len(row) for row in mask}) != 1:
        raise Wrong("Return a list of at least two rows of one length, each a list of 0 and 1.")
    if not all(0 < sum(row) < len(row) for row in mask):
        raise Wrong("Every row needs at least one token and at least one pad: without padding there is nothing to test.")
    both = [position_ids_from_mask(torch.tensor(mask), policy) for policy in ("contiguous", "compress_active")]
    moved = ((both[0] != both[1]) & (torch.tensor(mask) == 1)).any(1).tolist()
    if any(moved):
        row = mask[moved.index(True)]
        where = "on the left" if row == sorted(row) else "before one of its tokens"
        raise Wrong(f"Row {moved.index(True)} tells the two numberings apart: it has padding {where}.")


register(Exercise(
    id="0x08.4", kind="break", minutes=5,
    prompt="A test runs one padded batch under both numberings, by column and by token, and finds every token's position equal; so the bug slips through. Write "
           "`blind_batch()`: such a batch as a list of at least two rows of 0 and 1, with a token and a pad in each row.",
    hint="A pad moves only the tokens that come after it.", check=_check_blind, solution=blind_batch,
    wrong_answers={"left": (lambda: [[0, 1, 1], [0, 0, 1]], "on the left"), "full": (lambda: [[1, 1], [1, 1]], "nothing to test"),
                   "inside": (lambda: [[1, 1, 0], [1, 0, 1]], "before one of its tokens"), "ragged": (lambda: [[1, 0], [1, 1, 0]], "of one length")},
    praise="Padding on the right moves no token. A test of numbering needs a left-padded row."))
