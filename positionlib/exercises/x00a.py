"""Exercises of 0x00A: how far a row moves, the first collision, the extension test, and a code that hides its length."""

from __future__ import annotations

import math

import torch

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register
from positionlib.mechanisms.naive import normalised_rows
from positionlib.mechanisms.naive_properties import distinct_rows, extension, norm_profile, step_profile
from positionlib.mechanisms.sinusoidal import sinusoidal_rows

register(Exercise(
    id="0x00A.1", kind="recall", minutes=3,
    prompt="The code t / length fills 9 channels. A sequence grows from 10 tokens to 24. How far does the row of position 6 move?",
    hint="Find the two coordinates of position 6. Every channel moves by their difference; take the norm of nine such numbers.", solution=1.05,
    check=lambda answer: expect_close(answer, 1.05, atol=5e-4, mistakes=[
        (0.35, "That is one channel. Nine equal channels have √9 = 3 times that norm."),
        (3.15, "You multiplied by the width 9. A norm adds squares: nine equal entries give √9."),
        (1.1025, "That is the sum of squares. Take the root."),
        (0.0, "The integer 6 stays; its coordinate does not: 6/10 and 6/24."),
        (1.8, "That is the norm of the row at length 10, not how far it moves."),
        (0.75, "That is the norm of the row at length 24, not how far it moves."),
        (-1.05, "A distance has no sign: take the norm of the difference."),
        (18.0, "You moved the integer 6. The code divides by the length first.")]),
    wrong_answers={"channel": (0.35, "one channel"), "width": (3.15, "adds squares"), "squares": (1.1025, "Take the root"), "integer": (0.0, "6/10 and 6/24"),
                   "norm": (1.8, "at length 10"), "norm after": (0.75, "at length 24"), "sign": (-1.05, "no sign"), "raw": (18.0, "divides by the length")},
    praise="√9 · (6/10 − 6/24) = 3 · 0.35."))


def first_collision(rows: list[list[float]]) -> tuple[int, int] | None:
    seen: dict[tuple[float, ...], int] = {}
    for t, row in enumerate(rows):
        if tuple(row) in seen:
            return seen[tuple(row)], t
        seen[tuple(row)] = t
    return None


def _later_first(rows):
    found = first_collision(rows)
    return found and found[::-1]


def _neighbours_only(rows):
    return next(((t, t + 1) for t in range(len(rows) - 1) if rows[t] == rows[t + 1]), None)


def _by_sum(rows):
    return first_collision([[sum(row)] for row in rows])


def _by_first_entry(rows):
    return first_collision([row[:1] for row in rows])


def _smallest_earlier(rows):
    pairs = [(a, b) for a in range(len(rows)) for b in range(a + 1, len(rows)) if rows[a] == rows[b]]
    return pairs[0] if pairs else None


def _from_one(rows):
    found = first_collision(rows)
    return found and (found[0] + 1, found[1] + 1)


_COLLISIONS = [[0.0, 1.0], [1.0, 0.0], [2.0, 5.0], [1.0, 6.0], [2.0, 5.0], [9.0, 9.0], [0.0, 1.0], [0.0, 1.0]]
_COLLISION_MISTAKES = [
    (_later_first, "Those are the right two rows; give the earlier one first."),
    (_neighbours_only, "You compared neighbours only. Two equal rows may stand far apart."),
    (lambda rows: None, "You found none. Two rows here are equal and stand apart: remember every row that you passed."),
    (_from_one, "You counted rows from 1. The first row is row 0."),
    (_by_sum, "You compared sums. Rows [0, 1] and [1, 0] have one sum and are two rows."),
    (_by_first_entry, "You compared the first channel only. A row is equal when every channel is."),
    (_smallest_earlier, "That pair collides, but it is not the first: go through the rows in order and stop at the first row that was there before."),
]


def _pair(found: object) -> object:
    """(earlier, later) as a list, None as a pair that no rows have; anything else is left to the comparison."""
    return [-1, -1] if found is None else list(found) if isinstance(found, tuple) else found


def _check_collision(answer) -> None:
    for rows in (_COLLISIONS, [[float(t % 5), float(t % 3)] for t in range(20)], [[0.5, 0.25], [0.25, 0.5]]):
        want = first_collision(rows)
        expect_close(_pair(call(answer, rows)), _pair(want),
                     mistakes=[(_pair(wrong(rows)), why) for wrong, why in _COLLISION_MISTAKES if wrong(rows) != want])


register(Exercise(
    id="0x00A.2", kind="build", minutes=7,
    prompt="Write `first_collision(rows)`: rows is a list of lists of numbers. Return (earlier, later) for the first row that equals an earlier "
           "row, or None when all differ.",
    hint="Go through the rows in order and remember at which position you saw each one: a tuple can be a dictionary key.",
    check=_check_collision, solution=first_collision,
    wrong_answers={"turned": (_later_first, "earlier one first"), "neighbours": (_neighbours_only, "neighbours only"), "sums": (_by_sum, "compared sums"),
                   "first channel": (_by_first_entry, "first channel only"), "not first": (_smallest_earlier, "not the first"),
                   "from one": (_from_one, "from 1"), "starter": (lambda rows: None, "found none")}))


def moved(code, length: int, longer: int) -> list[float]:
    before, after = code(length)[:length], code(longer)[:length]
    return [math.dist(a, b) for a, b in zip(before, after)]


def _moved_squared(code, length, longer):
    return [distance**2 for distance in moved(code, length, longer)]


def _norm_change(code, length, longer):
    return [abs(math.hypot(*b) - math.hypot(*a)) for a, b in zip(code(length), code(longer))]


def _last_rows(code, length, longer):
    return [math.dist(a, b) for a, b in zip(code(length), code(longer)[-length:])]


def _one_channel(code, length, longer):
    return [abs(a[0] - b[0]) for a, b in zip(code(length), code(longer))]


def _no_move(code, length, longer):
    return [0.0] * length


def _sum_of_moves(code, length, longer):
    return [sum(abs(x - y) for x, y in zip(a, b)) for a, b in zip(code(length), code(longer))]


def _steps(code, length, longer):
    rows = code(length)
    return [math.dist(a, b) for a, b in zip(rows, rows[1:])]


def _padded(code, length, longer):
    return moved(code, length, longer) + [0.0] * (longer - length)


def _circle(length: int) -> list[list[float]]:
    """A fraction of the current length as an angle: the norm never changes, so it betrays nothing."""
    return [[math.cos(2 * math.pi * t / length), math.sin(2 * math.pi * t / length), t / length] for t in range(length)]


def _check_moved(answer) -> None:
    for length, longer in ((6, 9), (4, 16)):
        expect_close(call(answer, _circle, length, longer), moved(_circle, length, longer), atol=1e-6, mistakes=[
            (_moved_squared(_circle, length, longer), "Those are squared distances. Take the root."),
            (_norm_change(_circle, length, longer), "You compared norms. A row can turn and keep its norm: take the norm of the difference."),
            (_last_rows(_circle, length, longer), "You compared with the last rows of the longer sequence. Position t keeps its number: compare rows 0 to length − 1."),
            ([], "Your list is empty. Give one distance for each of rows 0 to length − 1."),
            (_no_move(_circle, length, longer), "You have rows that stay. Call the code twice: at `length` and at `longer`."),
            (_sum_of_moves(_circle, length, longer), "You added the channels' distances. A distance of rows is the root of a sum of squares: math.dist."),
            (_steps(_circle, length, longer), "Those are steps from row to row at one length. Compare each row with itself at the other length."),
            (_padded(_circle, length, longer), "You gave distances for rows that did not exist before. Stop at row length − 1."),
            (_one_channel(_circle, length, longer), "That is channel 0 alone. A row moves in all its channels.")])


register(Exercise(
    id="0x00A.3", kind="build", minutes=7,
    prompt="Write `moved(code, length, longer)`: code(n) gives the n rows of a sequence of n tokens as a list of lists. Return how far each of "
           "rows 0 to length − 1 moves when the sequence grows to `longer` tokens.",
    hint="Call the code at both lengths, keep the first `length` rows of each, and use math.dist.",
    check=_check_moved, solution=moved,
    wrong_answers={"squared": (_moved_squared, "squared distances"), "norms": (_norm_change, "compared norms"),
                   "last rows": (_last_rows, "last rows"), "channel": (_one_channel, "channel 0 alone"),
                   "starter": (lambda code, length, longer: [], "list is empty"), "stay": (_no_move, "rows that stay"), "sum": (_sum_of_moves, "math.dist"),
                   "steps": (_steps, "row to row"), "padded": (_padded, "did not exist")}))


def disguised(positions, length: int):
    angle = 2 * math.pi * positions.double() / length
    return torch.stack((angle.sin(), angle.cos()), dim=1)


def _check_disguise(answer) -> None:
    def code(positions, length):
        rows = call(answer, positions, length)
        if not isinstance(rows, torch.Tensor) or not rows.dtype.is_floating_point or rows.ndim != 2 or len(rows) != len(positions):
            raise Wrong("Return a floating-point tensor with one row for each position: [N, channels].")
        return rows.detach().double()

    rows = code(torch.arange(24), 24)
    count, pair = distinct_rows((rows * 1e9).round())
    if pair is not None:
        raise Wrong(f"The first test caught you: rows {pair[0]} and {pair[1]} of 24 are equal. On a circle, mind the fence post: "
                    "the last row must stop one step short of the first.")
    norms, steps = norm_profile(rows), step_profile(rows)
    if float(norms.max() - norms.min()) > 1e-6 or float(norms.max()) > math.sqrt(rows.shape[1]):
        raise Wrong("The second test caught you: the norms differ from row to row, or exceed √d. Put every row on a circle of radius 1.")
    if float(steps.max() - steps.min()) > 1e-6:
        raise Wrong("The third test caught you: the steps are uneven. Turn by one angle at every position.")
    if float(extension(code, 24, 48).moved.max()) < 0.1:
        raise Wrong("All three tests pass, and the fourth would pass too: no row moves when the sequence grows. Let the length into the angle.")


register(Exercise(
    id="0x00A.4", kind="break", minutes=8,
    prompt="A reviewer tests a code at one length: all rows differ, all norms are equal and at most √d, all steps are equal. Write "
           "`disguised(positions, length)` for positions [N]: a tensor [N, channels] that passes at length 24 and still moves by 0.1 or more when "
           "the sequence grows to 48.",
    hint="Rows of equal norm and equal step lie on a circle. How much of the circle may 24 rows use?",
    check=_check_disguise, solution=disguised,
    wrong_answers={"fraction": (lambda t, n: normalised_rows(t, 4, length=n), "second test"),
                   "honest": (lambda t, n: sinusoidal_rows(t, 8, output_dtype=torch.float64), "no row moves"),
                   "constant": (lambda t, n: torch.ones(len(t), 2, dtype=torch.float64), "first test"),
                   "fence post": (lambda t, n: disguised(t, n - 1), "fence post"),
                   "uneven": (lambda t, n: disguised(t * t, 2 * n * n), "third test")},
    praise="One length cannot reveal a length: only the extension test calls the code twice."))
