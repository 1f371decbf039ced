"""Exercises of 0x05: the ladder, one row, reading a position back, and a table that fools four checks."""

from __future__ import annotations

import math

import torch

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register
from positionlib.mechanisms.sinusoidal import sinusoidal_rows, sinusoidal_table

register(Exercise(
    id="0x05.1", kind="recall", minutes=3,
    prompt="Base 4,096, width 24: by which factor does the wavelength grow from pair 3 to pair 9?",
    hint="One step multiplies the wavelength by b^(2/d). Count the steps.", solution=64.0,
    check=lambda answer: expect_close(answer, 64.0, atol=0.05, mistakes=[
        (2.0, "That is one step, b^(2/d). From pair 3 to pair 9 there are six."),
        (8.0, "You took b^(6/24): a step of one pair has exponent 2/d, not 1/d."),
        (128.0, "You counted seven steps: 9 − 3 is 6."),
        (12.0, "You added six steps of 2. Equal steps in the pair multiply the wavelength: the ladder is geometric."),
        (1 / 64, "That is the ratio of the frequencies; a wavelength is 2π over the frequency, so it grows.")]),
    wrong_answers={"one step": (2.0, "one step"), "half": (8.0, "not 1/d"), "fence post": (128.0, "seven steps"),
                   "added": (12.0, "geometric"), "inverse": (0.015625, "ratio of the frequencies")},
    praise="Six steps of 4096^(2/24) = 2 make 2^6: the ladder is geometric."))


def row(position: int, d_model: int, base: float) -> list[float]:
    channels = []
    for i in range(d_model // 2):
        angle = position * base ** (-2 * i / d_model)
        channels += [math.sin(angle), math.cos(angle)]
    return channels


def _row_with(exponent):
    """A row whose channel c has angle position · base^(−exponent(c, d))."""
    def wrong(position: int, d_model: int, base: float) -> list[float]:
        angles = [position * base ** -exponent(c, d_model) for c in range(d_model)]
        return [math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)]
    return wrong


def _row_concatenated(position: int, d_model: int, base: float) -> list[float]:
    angles = [position * base ** (-2 * i / d_model) for i in range(d_model // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


_row_half = _row_with(lambda c, d: (c // 2) / d)
_row_own = _row_with(lambda c, d: c / d)
_ROW_MISTAKES = [
    (_row_half, "Your exponent is i/d. The paper writes 2i/d: with i/d the ladder covers only the square root of the base."),
    (_row_own, "Your sine and cosine of one pair use different exponents. Both channels 2i and 2i+1 take 2i/d; only then is each pair a circle."),
    (_row_concatenated, "Those are the right numbers in the concatenated layout.\nInterleaved means sine and cosine of one pair side by side."),
]


def _check_row(answer) -> None:
    for arguments in ((7, 6, 1000.0), (11, 10, 500.0)):
        got = call(answer, *arguments)
        expect_close(got, row(*arguments), atol=1e-6, mistakes=[(wrong(*arguments), why) for wrong, why in _ROW_MISTAKES])


register(Exercise(
    id="0x05.2", kind="build", minutes=6,
    prompt="Write `row(position, d_model, base)`: the interleaved row as a list of d_model numbers (paper ladder).",
    hint="One angle a pair: `position * base ** (-2 * i / d_model)`. Append its sine, then its cosine.",
    check=_check_row, solution=row,
    wrong_answers={"half": (_row_half, "exponent is i/d"), "own": (_row_own, "different exponents"),
                   "concatenated": (_row_concatenated, "concatenated layout")}))


def read_position(row: list[float], base: float) -> int:
    half = len(row) // 2
    wavelengths = [2 * math.pi * base ** (i / half) for i in range(half)]
    position = 0.45 * wavelengths[-1]               # the middle of the nine tenths
    for i in reversed(range(half)):                 # slow to fast
        angle = math.atan2(row[i], row[half + i])   # sine first
        rest = angle / (2 * math.pi) * wavelengths[i]
        position = rest + wavelengths[i] * round((position - rest) / wavelengths[i])
    return round(position)


def _slow_only(row: list[float], base: float) -> int:
    half = len(row) // 2
    return round(math.atan2(row[half - 1], row[-1]) % (2 * math.pi) * base ** ((half - 1) / half))


def _fast_only(row: list[float], base: float) -> int:
    return round(math.atan2(row[0], row[len(row) // 2]) % (2 * math.pi))


def _swapped(row: list[float], base: float) -> int:
    half = len(row) // 2
    return read_position(row[half:] + row[:half], base)


def _as_interleaved(row: list[float], base: float) -> int:
    return read_position(row[0::2] + row[1::2], base)


def _check_read(answer) -> None:
    positions = [583, 937, 1407, 2232]
    rows = (sinusoidal_rows(torch.tensor(positions), 6, base=8000.0, layout="concatenated", output_dtype=torch.float64) * 100).round() / 100
    given = [(r, 8000.0) for r in rows.tolist()]
    expect_close([call(answer, *arguments) for arguments in given], positions, mistakes=[
        ([_slow_only(*g) for g in given], "Close, but some are off by a few: you used the slow pair alone. Let each faster pair correct the estimate."),
        ([_fast_only(*g) for g in given], "Pair 0 alone gives the position modulo 2π. Start from the slowest pair, then refine."),
        ([_swapped(*g) for g in given], "Sine and cosine are swapped: the angle is atan2(sine, cosine), with the sine first."),
        ([_as_interleaved(*g) for g in given], "You took neighbouring channels for a pair. In the concatenated layout the cosine of channel i is channel i + d/2.")])


register(Exercise(
    id="0x05.3", kind="build", minutes=12,
    prompt="Write `read_position(row, base)`: the integer position of a *concatenated* row (all sines, then all cosines, paper ladder) that was "
           "rounded to two decimals. Positions lie between 0 and nine tenths of the longest wavelength.",
    hint="From slow to fast: a pair gives the position modulo its wavelength; add the number of whole wavelengths that comes closest to the estimate "
         "of the slower pairs. Pair i is channel i and channel i + d/2.",
    check=_check_read, solution=read_position,
    wrong_answers={"slow": (_slow_only, "slow pair alone"), "fast": (_fast_only, "modulo 2π"), "swapped": (_swapped, "sine first"),
                   "interleaved": (_as_interleaved, "neighbouring channels")}))


def impostor(length: int, d_model: int):
    table = sinusoidal_table(length, d_model)
    table[:, 2:6] = table[:, [4, 5, 2, 3]]      # pairs 1 and 2 change places
    return table


def _check_impostor(answer) -> None:
    length, d = 40, 12
    true = sinusoidal_table(length, d, output_dtype=torch.float64)
    got = call(answer, length, d)
    if not isinstance(got, torch.Tensor) or not got.dtype.is_floating_point:
        raise Wrong("Return a floating-point tensor [length, d_model].")
    got = got.detach().double()
    if got.shape != true.shape:
        raise Wrong(f"The first check caught you: shape {list(got.shape)}, expected {list(true.shape)}.")
    if not bool(((got.norm(dim=1) - math.sqrt(d / 2)).abs() < 1e-4).all()):
        raise Wrong("The second check caught you: some row's norm is not √(d/2). Keep every pair on its circle.")
    if not bool(((got[:, :2] - true[:, :2]).abs() < 1e-4).all()):
        raise Wrong("The third check caught you: pair 0 differs. Leave the first two channels alone.")
    if not bool(((got[:, -2:] - true[:, -2:]).abs() < 1e-4).all()):
        raise Wrong("The fourth check caught you: the slowest pair differs. Another base and another ladder both move it. "
                    "What can go wrong between the two ends?")
    if float((got - true).abs().max()) < 0.1:
        raise Wrong("All four checks pass, but nothing is wrong with this table: no value is off by 0.1 or more.")


register(Exercise(
    id="0x05.4", kind="break", minutes=6,
    prompt="A loader checks four things: the shape, every row's norm, pair 0, and the slowest pair. So it notices another base, and another "
           "ladder. Write `impostor(length, d_model)` for a width of 8 or more: a table that passes all four and is wrong by at least 0.1 somewhere.",
    hint="Only the pairs in between are left. Whatever you do to them, each must stay on its circle.",
    check=_check_impostor, solution=impostor,
    wrong_answers={"honest": (lambda n, d: sinusoidal_table(n, d), "nothing is wrong"),
                   "base": (lambda n, d: sinusoidal_table(n, d, base=100.0), "fourth check"),
                   "longer": (lambda n, d: sinusoidal_table(n + 1, d), "first check"),
                   "zeros": (lambda n, d: torch.zeros(n, d), "second check"),
                   "layout": (lambda n, d: sinusoidal_table(n, d, layout="concatenated"), "third check")},
    praise="Two right ends do not make a right ladder. Row 1 shows the angle of every pair, which is its speed: compare them all."))
