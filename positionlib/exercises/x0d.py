"""Exercises of 0x0D: partners, one rotation, converting a projection, and a rotation that fools two checks."""

from __future__ import annotations

import math

import torch

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x0D.1", kind="recall", minutes=3,
    prompt="A head has width 80 and turns its first 32 channels, half split. Which channel is the partner of channel 5, and how many channels "
           "pass through? Answer as a list of two numbers.",
    hint="Half split pairs channel c with channel c + r/2, where r counts the channels that turn.", solution=[21, 48],
    check=lambda answer: expect_close(answer, [21, 48], mistakes=[
        ([45, 48], "You split the whole head. Only the 32 channels that turn are split: r/2 = 16."),
        ([4, 48], "That is the interleaved partner. Half split looks r/2 channels away."),
        ([37, 48], "You added r. The partner is half of it away: 5 + 16."),
        ([21, 32], "The 32 channels turn; the others pass through."),
        ([21, 0], "Channels from 32 on are not rotated: 80 − 32 of them.")]),
    wrong_answers={"whole head": ([45, 48], "whole head"), "interleaved": ([4, 48], "interleaved partner"), "r": ([37, 48], "half of it"),
                   "which": ([21, 32], "pass through"), "none": ([21, 0], "not rotated")}))


def rotate(x, t, speeds):
    turned = []
    for c, speed in enumerate(speeds):
        a, b, angle = x[2 * c], x[2 * c + 1], t * speed
        turned += [a * math.cos(angle) - b * math.sin(angle),
                   a * math.sin(angle) + b * math.cos(angle)]
    return turned


def _clockwise(x, t, speeds):
    return rotate(x, -t, speeds)


def _half_split(x, t, speeds):
    p = len(speeds)
    mixed = rotate([v for c in range(p) for v in (x[c], x[c + p])], t, speeds)
    return mixed[0::2] + mixed[1::2]


def _no_position(x, t, speeds):
    return rotate(x, 1, speeds)


def _overwritten(x, t, speeds):
    out = list(x)
    for c, speed in enumerate(speeds):
        angle = t * speed
        out[2 * c] = out[2 * c] * math.cos(angle) - out[2 * c + 1] * math.sin(angle)
        out[2 * c + 1] = out[2 * c] * math.sin(angle) + out[2 * c + 1] * math.cos(angle)
    return out


def _one_speed(x, t, speeds):
    return rotate(x, t, [speeds[0]] * len(speeds))


_ROTATE_MISTAKES = [
    (_clockwise, "You turned clockwise. The first channel gets a cos − b sin, the second a sin + b cos."),
    (_half_split, "Those are half-split pairs. Here pair c is the channels 2c and 2c + 1."),
    (_no_position, "You turned by the speeds alone. The angle is t times the speed."),
    (_overwritten, "You used the new first channel to compute the second. Keep the old a until both are done."),
    (_one_speed, "Every pair has its own speed: take speeds[c] for pair c."),
]


def _check_rotate(answer) -> None:
    for x, t, speeds in (([3.0, -1.0, 2.0, 5.0], 3, [0.5, 0.25]), ([1.0, 4.0, -2.0, 0.5, 1.5, -3.0], 7, [1.0, 0.2, 0.04])):
        expect_close(call(answer, x, t, speeds), rotate(x, t, speeds), atol=1e-9,
                     mistakes=[(wrong(x, t, speeds), why) for wrong, why in _ROTATE_MISTAKES])


register(Exercise(
    id="0x0D.2", kind="build", minutes=6,
    prompt="Write `rotate(x, t, speeds)`: the list x of even length, its interleaved pairs turned counterclockwise by t · speeds[c].",
    hint="(a, b) becomes (a cos − b sin, a sin + b cos). Compute both before you store either.",
    check=_check_rotate, solution=rotate,
    wrong_answers={"clockwise": (_clockwise, "clockwise"), "halves": (_half_split, "half-split pairs"), "no t": (_no_position, "speeds alone"),
                   "overwritten": (_overwritten, "old a"), "one speed": (_one_speed, "own speed")}))


def row_order(heads, d_head):
    order = []
    for head in range(heads):
        first = head * d_head
        order += range(first, first + d_head, 2)         # the a of every pair
        order += range(first + 1, first + d_head, 2)     # the b of every pair
    return order


def _whole(heads, d_head):
    width = heads * d_head
    return [*range(0, width, 2), *range(1, width, 2)]


def _back(heads, d_head):
    order = row_order(heads, d_head)
    return [order.index(c) for c in range(heads * d_head)]


def _first_head(heads, d_head):
    return row_order(1, d_head) + list(range(d_head, heads * d_head))


def _unmoved(heads, d_head):
    return list(range(heads * d_head))


def _check_order(answer) -> None:
    for heads, d_head in ((3, 6), (2, 10)):
        expect_close(call(answer, heads, d_head), row_order(heads, d_head), mistakes=[
            (_whole(heads, d_head), "You reordered across the heads' borders: a pair of one head is now spread over two. Repeat the order inside each head."),
            (_back(heads, d_head), "That is the way back, from half split to interleaved. List, for each new row, the old row that it takes."),
            (_first_head(heads, d_head), "Only the first head moved. Every head has its own pairs."),
            (_unmoved(heads, d_head), "Nothing moved yet: the new channel 1 of a head is its old channel 2.")])


register(Exercise(
    id="0x0D.3", kind="build", minutes=8,
    prompt="A query projection was trained interleaved, with `heads` heads of width `d_head`. Write `row_order(heads, d_head)`: the list of old rows, "
           "in their new order, for a model that pairs half split.",
    hint="One head of width 6: 0, 2, 4, 1, 3, 5. The next head begins at row 6.",
    check=_check_order, solution=row_order,
    wrong_answers={"whole": (_whole, "heads' borders"), "back": (_back, "way back"), "first": (_first_head, "first head"), "unmoved": (_unmoved, "Nothing moved")}))


def impostor(x, t, speeds):
    return rotate(x, -t, speeds)                         # every law of rotations holds


def _dot(a, b):
    return sum(u * v for u, v in zip(a, b))


def _check_impostor(answer) -> None:
    speeds = [1.0, 0.3]
    q, k = [1.0, 2.0, -1.0, 0.5], [0.5, -1.0, 2.0, 1.0]

    def turned(x, t):
        got = call(answer, list(x), t, list(speeds))
        got = got.tolist() if isinstance(got, torch.Tensor) else got
        if not isinstance(got, (list, tuple)) or len(got) != 4 or not all(isinstance(v, (int, float)) for v in got):
            raise Wrong("Return a list of four numbers for a list of four.")
        return got

    for x in (q, k):
        for t in range(6):
            if abs(_dot(turned(x, t), turned(x, t)) - _dot(x, x)) > 1e-6:
                raise Wrong(f"The first check caught you: at t = {t} the length changed. A rotation keeps it.")
    score = {(i, j): _dot(turned(q, i), turned(k, j)) for i in range(13) for j in range(13)}
    for i, j in ((0, 0), (2, 5), (4, 1)):
        if abs(score[i, j] - score[i + 7, j + 7]) > 1e-6:
            raise Wrong(f"The second check caught you: the score of ({i}, {j}) changes when both move by 7.")
    true = {(i, j): _dot(rotate(q, i, speeds), rotate(k, j, speeds)) for i, j in score}
    if max(abs(score[p] - true[p]) for p in score) < 0.1:
        raise Wrong("Both checks pass, but these are the right scores. What can differ although only j − i counts?")


register(Exercise(
    id="0x0D.4", kind="break", minutes=6,
    prompt="A test checks that rows keep their length and that the score of (i, j) equals that of (i + 7, j + 7). Write `impostor(x, t, speeds)` for "
           "four channels that passes both and gives scores that are off by at least 0.1 from those of exercise 2's `rotate`.",
    hint="Any family of rotations passes. Which one did the projections expect?",
    check=_check_impostor, solution=impostor,
    wrong_answers={"right": (rotate, "right scores"), "still": (lambda x, t, speeds: [v * (1 + t) for v in x], "first check"),
                   "swap": (lambda x, t, speeds: rotate(x, t * t, speeds), "second check"), "short": (lambda x, t, speeds: x[:2], "four numbers")},
    praise="Length and shift are laws of every rotation. Sign, speeds and pairing need a comparison with the projections' own convention."))
