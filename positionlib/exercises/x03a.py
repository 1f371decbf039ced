"""Exercises of 0x03A: where a scalar outweighs content, how many digits flip, two hands for a digit, and two far rows that look near."""

from __future__ import annotations

import math

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x03A.1", kind="recall", minutes=3,
    prompt="α = 0.05 on every channel, content of scale σ = 2, width 256. At which position does the coordinate's norm reach the content's?",
    hint="Set |α| t / σ to 1. Which of the given numbers does it need?", solution=40,
    check=lambda answer: expect_close(answer, 40.0, atol=0.01, mistakes=[
        (640.0, "You multiplied by √256 = 16. Width is in both norms and cancels."),
        (2.5, "You divided by √256 = 16. Width is in both norms and cancels."),
        (20.0, "You left σ out: content of scale 2 is twice as large."),
        (10.0, "You divided by σ where you should multiply: t = σ/α."),
        (0.025, "That is α/σ, the ratio at position 1. Which position makes it 1?"),
        (0.1, "That is α σ. Solve α t / σ = 1 for t.")]),
    wrong_answers={"width": (640, "multiplied by √256"), "width down": (2.5, "divided by √256"), "no sigma": (20, "left σ out"),
                   "inverse": (10, "t = σ/α"), "ratio": (0.025, "at position 1"), "product": (0.1, "α σ")},
    praise="t = σ/α = 40. The width is not needed."))


def flipped(t: int) -> int:
    ones = 0
    while t % 2:                    # trailing ones turn to zeros ...
        t, ones = t // 2, ones + 1
    return ones + 1                 # ... and the next zero turns to one


def _into(t):
    return flipped(t - 1) if t else 0


def _popcount_change(t):
    return abs(bin(t + 1).count("1") - bin(t).count("1"))


def _ones_only(t):
    return flipped(t) - 1


def _root(t):
    return math.sqrt(flipped(t))


def _all_ones(t):
    return bin(t).count("1") + 1


_FLIP_MISTAKES = [
    (_into, "Those are the flips on the way into t. Asked is the step from t to t + 1."),
    (_popcount_change, "You compared how many ones there are. At 1 → 2 that number stays, and two digits flip."),
    (_ones_only, "You counted the ones that turn to zero and forgot the zero that turns to one."),
    (_root, "That is the Euclidean step, the root of the count."),
    (_all_ones, "You counted all ones of t. Only the ones at the right end, up to the first zero, are carried through."),
]


def _check_flipped(answer) -> None:
    positions = (1, 2, 5, 12, 23, 39, 127, 1000)
    expect_close([call(answer, t) for t in positions], [flipped(t) for t in positions],
                 mistakes=[([wrong(t) for t in positions], why) for wrong, why in _FLIP_MISTAKES])


register(Exercise(
    id="0x03A.2", kind="build", minutes=6,
    prompt="Write `flipped(t)`: how many binary digits change from t to t + 1, for any t ≥ 0.",
    hint="Adding 1 turns the ones at the right end to zeros and the next zero to a one.",
    check=_check_flipped, solution=flipped,
    wrong_answers={"into": (_into, "into t"), "popcount": (_popcount_change, "how many ones"), "ones": (_ones_only, "turns to one"),
                   "root": (_root, "the root"), "all ones": (_all_ones, "all ones of t")},
    praise="Ones at the right end, plus one: a carry runs as far as they go."))


def hands(t: int, periods: list[int]) -> list[float]:
    row = []
    for period in periods:
        angle = 2 * math.pi * t / period
        row += [math.sin(angle), math.cos(angle)]
    return row


def _hands(angle=lambda t, period: 2 * math.pi * t / period, pair=lambda a: [math.sin(a), math.cos(a)]):
    return lambda t, periods: [value for period in periods for value in pair(angle(t, period))]


def _grouped(t, periods):
    return [f(2 * math.pi * t / period) for f in (math.sin, math.cos) for period in periods]


_HAND_MISTAKES = [
    (_hands(angle=lambda t, period: t / period), "Your hand turns 1/period radians a position. One turn is 2π."),
    (_hands(angle=lambda t, period: math.pi * t / period), "Your hand needs two periods for one turn: the angle is 2π t / period."),
    (_hands(angle=lambda t, period: 2 * math.pi * period * t), "You multiplied by the period. A longer period means a slower hand."),
    (_hands(pair=lambda a: [math.cos(a), math.sin(a)]), "Sine and cosine are exchanged: the sine comes first."),
    (_grouped, "Those are the right numbers with all sines first. Keep the two of a hand side by side."),
    (_hands(angle=lambda t, period: 360 * t / period), "You took degrees; math.sin wants radians."),
]


def _check_hands(answer) -> None:
    for arguments in ((5, [7, 20]), (11, [9, 13, 40])):
        expect_close(call(answer, *arguments), hands(*arguments), atol=1e-6, mistakes=[(wrong(*arguments), why) for wrong, why in _HAND_MISTAKES])


register(Exercise(
    id="0x03A.3", kind="build", minutes=6,
    prompt="Write `hands(t, periods)`: for each period the sine and cosine of a hand that stands upright at t = 0 and turns once in that many "
           "positions, sine first, side by side.",
    hint="The angle is t/period of a full turn.",
    check=_check_hands, solution=hands,
    wrong_answers={"no turn": (_HAND_MISTAKES[0][0], "One turn is 2π"), "half": (_HAND_MISTAKES[1][0], "two periods"),
                   "fast": (_HAND_MISTAKES[2][0], "slower hand"), "exchanged": (_HAND_MISTAKES[3][0], "sine comes first"),
                   "grouped": (_grouped, "all sines first"), "degrees": (_HAND_MISTAKES[5][0], "wants radians")}))


def false_neighbours(m: int) -> tuple[int, int]:
    return 0, 2 ** (m - 1)


def _check_neighbours(answer) -> None:
    for m in (6, 9):
        got = call(answer, m)
        if not isinstance(got, (tuple, list)) or len(got) != 2 or any(type(t) is not int for t in got):
            raise Wrong("Return two positions, as whole numbers.")
        s, t = sorted(got)
        if not 0 <= s < t < 2**m:
            raise Wrong(f"Give two different positions from 0 to {2**m - 1}; you gave {s} and {t}.")
        count = bin(s ^ t).count("1")
        if count != 1 and t - s == 1:
            raise Wrong(f"{s} and {t} are neighbours that look far: a carry flips {count} digits. Asked are far positions that look near.")
        if count != 1:
            raise Wrong(f"With {m} digits, {s} and {t} differ in {count} digits: distance √{count}, not the 1 of near neighbours.")
        if t - s < 2 ** (m - 1):
            raise Wrong(f"{s} and {t} are at distance 1, but only {t - s} positions apart. Which one digit is worth most?")


register(Exercise(
    id="0x03A.4", kind="break", minutes=5,
    prompt="Write `false_neighbours(m)`: two positions of m binary digits whose rows are at distance 1, as near as two rows can be, and which lie "
           "as far apart as possible.",
    hint="Distance 1 is one digit. Each digit is worth another number of positions.",
    check=_check_neighbours, solution=false_neighbours,
    wrong_answers={"ends": (lambda m: (0, 2**m - 1), "differ in 6 digits"), "carry": (lambda m: (2 ** (m - 1) - 1, 2 ** (m - 1)), "neighbours that look far"),
                   "neighbours": (lambda m: (6, 7), "only 1 positions apart"), "outside": (lambda m: (0, 2**m), "from 0 to 63")},
    praise="The top digit alone moves you half of the range, at distance 1."))
