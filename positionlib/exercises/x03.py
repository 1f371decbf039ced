"""Exercises of 0x03: a shape that numbers sequences, positions of each sequence, rows on the other side of a projector, a test that is fooled."""

from __future__ import annotations

import torch

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register

# 1 --- which shape numbers the sequences?

register(Exercise(
    id="0x03.1", kind="recall", minutes=3,
    prompt="States are [6, 10, 32]: batch, tokens, width. A tensor p has 192 numbers, and x + p gives every sequence its own row, the same for all "
           "of its tokens: a mistake that no shape check sees. Which shape has p? Answer with a list of three integers.",
    hint="192 = 6 · 32. Broadcasting repeats an axis of length 1. Which axis is repeated here?", solution=[6, 1, 32],
    check=lambda answer: expect_close(answer, [6, 1, 32], mistakes=[
        ([1, 10, 32], "That is the right coordinate: 320 numbers, one row a token, repeated over the batch."),
        ([6, 10, 32], "That has 1,920 numbers: every token of every sequence could have its own row."),
        ([1, 1, 32], "That has 32 numbers: one row for every token of every sequence."),
        ([1, 6, 32], "192 numbers, but the 6 stands on the token axis, which has length 10: this is refused too."),
        ([6, 32, 1], "Its axis 1 has length 32, the states' has 10: this is refused."),
        ([6, 32], "Without an axis between them, 6 would have to be the token axis: x + p is refused, 6 is not 10.")]),
    wrong_answers={"tokens": ([1, 10, 32], "right coordinate"), "all": ([6, 10, 32], "1,920"), "one": ([1, 1, 32], "32 numbers"),
                   "turned": ([6, 32, 1], "this is refused"), "on tokens": ([1, 6, 32], "on the token axis"), "two axes": ([6, 32], "6 is not 10")},
    praise="The token axis is the one that must not be repeated: [1, 10, 32] numbers tokens, [6, 1, 32] numbers sequences."))


# 2 --- each sequence has its own positions

def add_positions(C, P, positions):
    return C + P[positions]             # [B, n, d] + [B, n, d]


def _own(c, p, positions):
    return c + p[: c.shape[1]]


def _first(c, p, positions):
    return c + p[positions[0]]


def _start_one(c, p, positions):
    return c + p[positions + 1]


def _twice(c, p, positions):
    return c + 2 * p[positions]


def _rows_only(c, p, positions):
    return p[positions]


def _offset_only(c, p, positions):
    return torch.stack([c[b] + p[positions[b, 0]] for b in range(len(c))])


_ADD = [(_own, "You used the token's index, P[:n]. Here the positions are given: they start at 1 and at 3."),
        (_first, "The first sequence's positions went to the whole batch. Look up positions as a [B, n] table of row numbers."),
        (_start_one, "Your rows begin one too late: position 0 has row 0."), (_twice, "The rows are in your answer twice."),
        (_rows_only, "Those are the rows alone. Add the content."),
        (_offset_only, "One row for a whole sequence, that of its first token. Each token has its own position.")]


def _check_add(answer) -> None:
    generator = torch.Generator().manual_seed(8)
    c, p = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((2, 4, 3), (9, 3)))
    positions = torch.tensor([[1, 2, 3, 4], [3, 4, 6, 7]])
    expect_close(call(answer, c, p, positions), add_positions(c, p, positions), atol=1e-9,
                 mistakes=[(wrong(c, p, positions), why) for wrong, why in _ADD])


register(Exercise(
    id="0x03.2", kind="build", minutes=5,
    prompt="Write `add_positions(C, P, positions)`: content [B, n, d], table [L, d], positions [B, n] as integers, which differ between the sequences and may "
           "skip. Return the positioned states.",
    hint="Indexing a table with integers of shape [B, n] gives [B, n, d].", check=_check_add, solution=add_positions,
    wrong_answers={"index": (_own, "index, P"), "first": (_first, "whole batch"), "from one": (_start_one, "one too late"), "twice": (_twice, "twice"),
                   "rows": (_rows_only, "Add the content"), "offset": (_offset_only, "whole sequence")}))


# 3 --- rows on the other side of a projector

def rows_behind(P_media, W, b):
    return P_media @ W                  # b reaches the state once, with the content


def _with_bias(p, w, b):
    return p @ w + b


def _same(p, w, b):
    return torch.nn.functional.pad(p, (0, w.shape[1] - p.shape[1]))


def _undone(p, w, b):
    return p @ torch.linalg.pinv(w).T


def _minus_bias(p, w, b):
    return p @ w - b


def _check_behind(answer) -> None:
    generator = torch.Generator().manual_seed(9)
    p, w, b = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((5, 3), (3, 6), (6,)))
    expect_close(call(answer, p, w, b), rows_behind(p, w, b), atol=1e-9, mistakes=[
        (_with_bias(p, w, b), "b is in the state already: (H + P)W + b = (HW + b) + PW. You add it a second time."),
        (_minus_bias(p, w, b), "Nothing is to be taken away: (H + P)W + b = (HW + b) + PW."),
        (_same(p, w, b), "You filled up with zeros. The projector mixes the channels of the rows as it mixes those of the content."),
        (_undone(p, w, b), "You undid the projector. Rows behind it must look as if they had passed through it, like the content: P @ W.")])


register(Exercise(
    id="0x03.3", kind="build", minutes=6,
    prompt="A checkpoint was trained with rows P_media [n, d_media] added before its projector x -> x @ W + b, W [d_media, d_model]. Write "
           "`rows_behind(P_media, W, b)`: the rows [n, d_model] that give the same states when they are added behind the projector.",
    hint="Multiply out (H + P) W + b.", check=_check_behind, solution=rows_behind,
    wrong_answers={"bias": (_with_bias, "second time"), "minus": (_minus_bias, "taken away"), "padded": (_same, "zeros"),
                   "undone": (_undone, "undid the projector")},
    praise="A projector is linear: rows before it are rows P W behind it. The bias belongs to the content's path alone."))


# 4 --- a test that is fooled

def doubled(C, P):
    return C + (C + P)


def _check_fooled(answer) -> None:
    generator = torch.Generator().manual_seed(10)
    c, p = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((2, 4, 3), (4, 3)))
    at_zero, got = call(answer, torch.zeros_like(c), p), call(answer, c, p)
    for value in (at_zero, got):
        if not isinstance(value, torch.Tensor) or value.is_complex():
            raise Wrong("Return a tensor of the shape of C.")
        if value.shape != c.shape:
            raise Wrong(f"A shape test sees it: {list(value.shape)}, expected {list(c.shape)}.")
    if not torch.allclose(at_zero.double(), p.expand_as(c), rtol=0, atol=1e-9):
        raise Wrong("The zero test sees it: for zero content your function must return exactly the rows.")
    if torch.allclose(got.double(), c + p, rtol=0, atol=0.1):
        raise Wrong("Both tests pass, but nothing is wrong: your sum is C + P (within 0.1) for other content too.")


register(Exercise(
    id="0x03.4", kind="break", minutes=5,
    prompt="A test feeds zero content and checks that exactly the rows come back; it also checks the shape. Write `fooled(C, P)`, C [B, n, d], P [n, d]: a wrong addition "
           "that passes both, and is off by more than 0.1 for other content.",
    hint="What can you do to the content that zeros do not show?", check=_check_fooled, solution=doubled,
    wrong_answers={"right": (lambda C, P: C + P, "nothing is wrong"), "twice": (lambda C, P: C + 2 * P, "zero test"),
                   "rows": (lambda C, P: P, "shape test"), "word": (lambda C, P: "C + P", "Return a tensor")},
    praise="Zero content shows what is added and hides what is done to the content. Subtract on real content as well."))
