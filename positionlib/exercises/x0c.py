"""Exercises of 0x0C: four kinds of failure, a guard for a continued call, what proves a case, and weights that fool five checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from positionlib.exercises.answers import Wrong, call
from positionlib.exercises.registry import Exercise, register

_KINDS = ("excess cost", "late error", "false claim", "wrong answer")
_WHY = ("(1) gives the right answer. What it spends is wrong: excess cost.", "(2) gives no answer at all: it raises in use, a late error.",
        "(3) returns nothing that could be compared. A sentence that fails on an example is a false claim.",
        "(4) raises nothing, and its shape is right: wrong answer.")


def _check_kinds(answer) -> None:
    if isinstance(answer, str) or not isinstance(answer, (list, tuple)) or len(answer) != 4:
        raise Wrong("Give a list of four kinds, in the order of the descriptions.")
    given = [str(kind).replace("_", " ").strip().lower() for kind in answer]
    unknown = [kind for kind in given if kind not in _KINDS]
    if unknown:
        raise Wrong(f"There is no kind {unknown[0]!r}. The four are wrong answer, late error, excess cost, false claim.")
    for kind, right, why in zip(given, _KINDS, _WHY):
        if kind != right:
            raise Wrong(why)


register(Exercise(
    id="0x0C.1", kind="recall", minutes=3,
    prompt="Name the kind of each failure, as a list of four: (1) one vector is stored for every pair, and the output is right; (2) position 1,024 of a "
           "table of 1,024 rows stops the third batch; (3) 'equal inputs at two positions always get equal outputs'; (4) a cached decoder numbers each new token 0.",
    hint="Ask in this order: is there an answer? Is it a sentence? Is it right?", check=_check_kinds, solution=list(_KINDS),
    wrong_answers={"cost": (["wrong answer", "late error", "false claim", "wrong answer"], "What it spends"),
                   "late": (["excess cost", "wrong answer", "false claim", "wrong answer"], "no answer at all"),
                   "claim": (["excess cost", "late error", "wrong answer", "wrong answer"], "false claim"),
                   "silent": (["excess cost", "late error", "false claim", "late error"], "raises nothing"),
                   "unknown": (["bug", "late error", "false claim", "wrong answer"], "no kind 'bug'"), "one": ("wrong answer", "list of four")}))


def first_wrong(positions: list[int], committed: int) -> int | None:
    for i, position in enumerate(positions):
        if position != committed + i:
            return i
    return None


# Mistakes that are one expression.
_restarts = lambda positions, committed: next((i for i, p in enumerate(positions) if p != i), None)
_fence = lambda positions, committed: next((i for i, p in enumerate(positions) if p != committed + 1 + i), None)
_first_only = lambda positions, committed: 0 if positions[0] != committed else None
_not_below = lambda positions, committed: next((i for i, p in enumerate(positions) if p < committed), None)
_always_zero = lambda positions, committed: 0
_one_early = lambda positions, committed: next((i for i, p in enumerate(positions) if p != committed - 1 + i), None)
_in_a_row = lambda positions, committed: next((i for i in range(1, len(positions)) if positions[i] != positions[i - 1] + 1), None)
_last_wrong = lambda positions, committed: max((i for i, p in enumerate(positions) if p != committed + i), default=None)
_one_place = lambda positions, committed: next((i for i, p in enumerate(positions) if p != committed), None)


def _position(positions, committed):
    at = first_wrong(positions, committed)
    return None if at is None else positions[at]


def _belongs(positions, committed):
    at = first_wrong(positions, committed)
    return None if at is None else committed + at


def _minus_one(positions, committed):
    at = first_wrong(positions, committed)
    return -1 if at is None else at


_GUARD_MISTAKES = [
    (_always_zero, "You return 0 for every call, also for one that continues rightly. Compare each position with its place, and return None when all fit."),
    (_one_early, "You expect the first new token at committed - 1. That is where the last cached token stands."),
    (_in_a_row, "You ask only whether each token follows the one before it. The first one must follow the cache."),
    (_belongs, "You return the position that belongs there. Return the token's index among the new ones."),
    (_last_wrong, "You return the last wrong token. The first one is asked for."),
    (_minus_one, "You return -1 where every token is right. Return None: -1 is an index in Python, the last one."),
    (_one_place, "You expect every new token at committed. Token i stands i places further on."),
    (_restarts, "You expect the new tokens to be numbered from 0. They continue: the first one stands at committed."),
    (_fence, "You expect the first new token at committed + 1. Positions count from 0, so 5 committed tokens fill 0 to 4 and the next is 5."),
    (_first_only, "You look at the first token alone. A later one can repeat or skip a position."),
    (_position, "You return the position. Return its index among the new tokens."),
    (_not_below, "You only refuse positions below the cache. A position too far ahead is wrong too, and so is one that stays where it was."),
]


_CALLS = (([5, 6, 7], 5), ([0, 1, 2], 3), ([7, 8, 8], 7), ([9, 10], 7), ([4], 4), ([3, 4, 6, 7], 3), ([8, 9], 7), ([6, 7], 7))


def _check_guard(answer) -> None:
    got, right = ([f(list(positions), committed) for positions, committed in _CALLS] for f in (lambda *a: call(answer, *a), first_wrong))

    def same(others: list) -> bool:
        return all(x is None and y is None or type(x) is type(y) and x == y for x, y in zip(got, others))

    for wrong, why in _GUARD_MISTAKES:
        if same([wrong(*given) for given in _CALLS]):
            raise Wrong(why)
    for (positions, committed), x, y in zip(_CALLS, got, right):
        if not (x is None and y is None or type(x) is type(y) and x == y):
            raise Wrong(f"For positions {positions} behind {committed} committed tokens I expected {y}, and got {x!r}. Return an index, or None.")


register(Exercise(
    id="0x0C.2", kind="build", minutes=5,
    prompt="Write `first_wrong(positions, committed)`: `positions` are those of the new tokens of a call, `committed` tokens are in its cache. Return the "
           "index of the first new token that stands in a wrong place, or None.",
    hint="Token i of the call stands at committed + i.", check=_check_guard, solution=first_wrong,
    wrong_answers={"restart": (_restarts, "from 0"), "fence": (_fence, "committed + 1"), "first": (_first_only, "first token alone"),
                   "position": (_position, "its index"), "below": (_not_below, "too far ahead"), "zero": (_always_zero, "for every call"),
                   "early": (_one_early, "last cached token"), "row": (_in_a_row, "follow the cache"), "belongs": (_belongs, "that belongs there"),
                   "last": (_last_wrong, "The first one"), "minus": (_minus_one, "Return None"), "place": (_one_place, "i places further")}))


def proves(broken: list[float], right: list[float], guard: Callable[[list[float]], Any]) -> bool:
    def refuses(answer):
        try:
            guard(answer)
        except ValueError:
            return True
        return False

    same_shape = len(broken) == len(right)
    differs = same_shape and max(abs(a - b) for a, b in zip(broken, right)) > 1e-6
    return differs and refuses(broken) and not refuses(right)


def _refuses(guard, answer) -> bool:
    try:
        guard(answer)
    except ValueError:
        return True
    return False


def _blanket(broken, right, guard):
    return len(broken) == len(right) and max(abs(a - b) for a, b in zip(broken, right)) > 1e-6 and _refuses(guard, broken)


def _no_guard(broken, right, guard):
    return len(broken) == len(right) and max(abs(a - b) for a, b in zip(broken, right)) > 1e-6


def _any_shape(broken, right, guard):
    return list(broken) != list(right) and _refuses(guard, broken) and not _refuses(guard, right)


def _exact(broken, right, guard):
    return len(broken) == len(right) and list(broken) != list(right) and _refuses(guard, broken) and not _refuses(guard, right)


def _summed(broken, right, guard):
    return len(broken) == len(right) and abs(sum(broken) - sum(right)) > 1e-6 and _refuses(guard, broken) and not _refuses(guard, right)


def _first_entry(broken, right, guard):
    return len(broken) == len(right) and abs(broken[0] - right[0]) > 1e-6 and _refuses(guard, broken) and not _refuses(guard, right)


def _last_entry(broken, right, guard):
    return _first_entry(broken[::-1], right[::-1], lambda answer: guard(answer[::-1]))


def _every_entry(broken, right, guard):
    return len(broken) == len(right) and min(abs(a - b) for a, b in zip(broken, right)) > 1e-6 and _refuses(guard, broken) and not _refuses(guard, right)


def _signed(broken, right, guard):
    return len(broken) == len(right) and max(a - b for a, b in zip(broken, right)) > 1e-6 and _refuses(guard, broken) and not _refuses(guard, right)


def _zipped(broken, right, guard):
    return max(abs(a - b) for a, b in zip(broken, right)) > 1e-6 and _refuses(guard, broken) and not _refuses(guard, right)


def _length_alone(broken, right, guard):
    return len(broken) == len(right)


def _right_alone(broken, right, guard):
    return _no_guard(broken, right, guard) and not _refuses(guard, right)


def _sides_exchanged(broken, right, guard):
    return _no_guard(broken, right, guard) and _refuses(guard, right) and not _refuses(guard, broken)


_PROOF_MISTAKES = [
    (_length_alone, "You compared the lengths alone. Equal length is the first of four conditions."),
    (_right_alone, "You did not show the guard the broken side. One that refuses nothing would pass."),
    (_sides_exchanged, "You exchanged the sides: the guard must refuse the broken answer and accept the right one."),
    (_first_entry, "You compared the first entry alone. Any one entry may differ."),
    (_last_entry, "You compared the last entry alone. Any one entry may differ."),
    (_every_entry, "You asked every entry to differ. One that differs is enough."),
    (_signed, "You took differences with their sign. An entry that is too small counts as well: use abs."),
    (_zipped, "You never compared the lengths, and zip stops at the shorter answer."),
    (_no_guard, "You never ran the guard. A failure that nothing notices is a story, not a case."),
    (_blanket, "You did not show the guard the right side. One that refuses everything would pass."),
    (_any_shape, "You accepted answers of different lengths. A shape check would have noticed those."),
    (_exact, "You counted a difference in the last digits, or none. Rounding is no failure: ask for more than 1e-6."),
    (_summed, "You compared sums. Errors of opposite sign cancel: take the largest difference of one entry."),
]


def _refusing(bad: list[float]) -> Callable[[list[float]], None]:
    def guard(answer):
        if list(answer) == list(bad):
            raise ValueError("refused")
    return guard


def _everything(answer):
    raise ValueError("refused")


_TRIALS = [
    ([0.0, 3.0], [1.0, 3.0], None), ([3.0, 1.0], [1.0, 3.0], None), ([2.0], [2.0, 2.0], None), ([1.0 + 1e-12], [1.0], None),
    ([0.0], [1.0], _everything), ([0.0], [1.0], lambda answer: None), ([0.0], [1.0], "right"),
    ([1.0, 0.0], [1.0, 3.0], None), ([0.0], [2.0, 2.0], None), ([3.0, 3.0], [1.0, 3.0], None)]


def _check_proof(answer) -> None:
    for broken, right, guard in _TRIALS:
        guard = guard if callable(guard) else _refusing(right if guard else broken)
        got, wanted = call(answer, list(broken), list(right), guard), bool(proves(broken, right, guard))
        if not isinstance(got, bool):
            raise Wrong(f"Return True or False; for {broken} and {right} I got {got!r}.")
        if got != wanted:
            for wrong, why in _PROOF_MISTAKES:
                if all(bool(wrong(b, r, g if callable(g) else _refusing(r if g else b))) == call(answer, list(b), list(r), g if callable(g) else _refusing(r if g else b))
                       for b, r, g in _TRIALS):
                    raise Wrong(why)
            raise Wrong(f"For the answers {broken} and {right} I expected {wanted}. Four conditions must hold at once.")


register(Exercise(
    id="0x0C.3", kind="build", minutes=8,
    prompt="Write `proves(broken, right, guard)`: the answers are lists of numbers, and `guard(answer)` raises ValueError when it refuses. Return True when "
           "they prove a wrong answer with the right shape: differences up to 1e-6 are rounding.",
    hint="Equal length, one entry more than 1e-6 apart, refused on one side, accepted on the other.", check=_check_proof, solution=proves,
    wrong_answers={"guardless": (_no_guard, "never ran the guard"), "blanket": (_blanket, "refuses everything"), "shapes": (_any_shape, "different lengths"),
                   "exact": (_exact, "last digits"), "sum": (_summed, "cancel"), "none": (lambda *a: None, "True or False"),
                   "length": (_length_alone, "first of four"), "right side": (_right_alone, "refuses nothing"),
                   "exchanged": (_sides_exchanged, "exchanged the sides"),
                   "first": (_first_entry, "first entry alone"), "last": (_last_entry, "last entry alone"), "every": (_every_entry, "is enough"),
                   "signed": (_signed, "use abs"),
                   "zip": (_zipped, "zip stops")}))


def impostor(weights: torch.Tensor) -> torch.Tensor:
    wrong = weights.clone()
    for i in range(len(weights)):
        wrong[i, : i + 1] = weights[i, : i + 1].flip(0)     # near becomes far
    return wrong


def _check_impostor(answer) -> None:
    n = 6
    legal = torch.ones(n, n, dtype=torch.bool).tril()
    scores = -torch.arange(n)[:, None].sub(torch.arange(n)).double() * math.log(3)
    weights = torch.softmax(scores.masked_fill(~legal, -math.inf), -1)
    got = call(answer, weights.clone())
    if not isinstance(got, torch.Tensor) or got.shape != weights.shape or got.dtype != weights.dtype:
        raise Wrong("The first check caught you: shape and dtype must stay.")
    if not bool(torch.isfinite(got).all()) or bool((got < 0).any()):
        raise Wrong("The second check caught you: a weight is not finite, or below 0.")
    if bool((got[~legal] != 0).any()):
        raise Wrong("The third check caught you: a later key has some weight. Rearrange the visible part of each row alone.")
    if not torch.allclose(got.sum(-1), torch.ones(n, dtype=got.dtype)):
        raise Wrong("The fourth check caught you: a row does not add up to 1.")
    if not torch.allclose(got.sort(-1).values, weights.sort(-1).values):
        raise Wrong("The fifth check caught you: a row has other numbers than before. The same numbers can stand in another order.")
    if torch.allclose(got, weights):
        raise Wrong("All five checks pass, but the weights are still the right ones. Put them in the wrong order.")


def _uniform(weights):
    legal = torch.ones_like(weights).tril()
    return legal / legal.sum(-1, keepdim=True)


register(Exercise(
    id="0x0C.4", kind="break", minutes=6,
    prompt="Five checks look at causal attention weights [n, n]: shape and dtype; finite and not negative; 0 on every later key; rows that add up to 1; "
           "each row holds the same numbers as before, sorted. Write `impostor(weights)`: weights that pass all five and are wrong. What would notice?",
    hint="What does a reversed sign do to a row?", check=_check_impostor, solution=impostor,
    wrong_answers={"same": (lambda w: w, "still the right ones"), "flipped": (lambda w: w.flip(-1), "third check"), "uniform": (_uniform, "fifth check"),
                   "noise": (lambda w: w + 0.1 * torch.ones_like(w).tril(), "fourth check"), "negative": (lambda w: -w, "second check"),
                   "short": (lambda w: w[0], "first check")},
    praise="A reversed sign does the like: every row keeps its numbers, near and far change places. "
           "A fixture whose two directions differ notices: here, the recorded weight of one key."))
