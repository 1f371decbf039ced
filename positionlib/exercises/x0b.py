"""Exercises of 0x0B: bytes of a bias, bytes from axes, one scope of letters, and a batch that changed hands."""

from __future__ import annotations

import math

import torch

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x0B.1", kind="recall", minutes=3,
    prompt="A model of 16 heads and width 1,024 decodes one row for each of 4 sequences; each query reads 2,048 keys. How many KiB does its scalar bias "
           "[1, h, Q, K] hold in float32?",
    hint="Four axes, four bytes a number; one KiB is 1,024 bytes.", solution=128,
    check=lambda answer: expect_close(answer, 128, atol=0.01, mistakes=[
        (512, "You multiplied by the 4 sequences. The first axis is 1: positions are shared by the batch."),
        (262144, "You took Q = K. In this call a sequence brings one query row."),
        (8, "The heads are missing: each of the 16 has its own number for a pair."),
        (0.125, "That is in MiB. One KiB is 1,024 bytes."),
        (64, "That is two bytes a number; float32 has four."),
        (32, "Those are thousands of numbers (KiB of one byte each). float32 has four bytes."),
        (131072, "Those are bytes. Divide by 1,024."),
        (8192, "You put the width for the heads' axis. A scalar bias is one number for a head and a pair.")]),
    wrong_answers={"batch": (512, "4 sequences"), "square": (262144, "one query row"), "half": (64, "two bytes"), "heads": (8, "heads are missing"), "mebi": (0.125, "in MiB"), "numbers": (32, "thousands of numbers"),
                   "bytes": (131072, "Divide by 1,024"), "width": (8192, "the width for the heads")},
    praise="1 · 16 · 1 · 2,048 numbers of 4 bytes."))


def nbytes(axes: str, lengths: dict, width: int) -> int:
    return width * math.prod(int(a) if a.isdigit() else lengths[a] for a in axes.split())


def _summed(axes, lengths, width):
    return width * sum(int(a) if a.isdigit() else lengths[a] for a in axes.split())


def _no_width(axes, lengths, width):
    return nbytes(axes, lengths, 1)


def _no_digits(axes, lengths, width):
    return width * math.prod(lengths[a] for a in axes.split() if not a.isdigit())


def _bits(axes, lengths, width):
    return nbytes(axes, lengths, width) * 8


def _once(axes, lengths, width):
    return width * math.prod(int(a) if a.isdigit() else lengths[a] for a in set(axes.split()))


def _check_nbytes(answer) -> None:
    lengths = {"B": 3, "n": 7, "d": 10, "h": 5}
    arguments = [("B n 4", lengths, 8), ("1 h n n", lengths, 2), ("B n", lengths, 1)]
    got = [call(answer, *a) for a in arguments]
    expect_close(got, [nbytes(*a) for a in arguments], mistakes=[([wrong(*a) for a in arguments], why) for wrong, why in (
        (_summed, "You added the lengths. Each axis multiplies the number of elements."),
        (_no_width, "Those are elements. Each has `width` bytes."),
        (_no_digits, "An axis written as a number has that length: a box is 4 numbers, not one."),
        (_once, "An axis that is written twice counts twice: \"n n\" is n · n."),
        (lambda *_: 0, "Nothing is counted yet: multiply the lengths of the axes, then by `width`."),
        (_bits, "Those are bits; `width` is in bytes already."))])


register(Exercise(
    id="0x0B.2", kind="build", minutes=5,
    prompt="Write `nbytes(axes, lengths, width)`: the bytes of a tensor whose axes are written as in the ledger, such as \"B n 4\". `lengths` is a dict of the "
           "letters, `width` the bytes of one number.",
    hint="Split at the spaces; a digit is its own length; `math.prod`.", check=_check_nbytes, solution=nbytes,
    wrong_answers={"summed": (_summed, "added the lengths"), "no width": (_no_width, "Those are elements"),
                   "no digits": (_no_digits, "written as a number"), "bits": (_bits, "bits"), "once": (_once, "counts twice"), "starter": (lambda *_: 0, "Nothing is counted")}))


def first_misfit(pairs: list) -> int:
    length = {}
    for index, (axes, shape) in enumerate(pairs):
        names = axes.split()
        if len(names) != len(shape):
            return index
        for name, size in zip(names, shape):
            wanted = int(name) if name.isdigit() else length.setdefault(name, size)
            if wanted != size:
                return index
    return -1


def _rank_only(pairs):
    return next((i for i, (axes, shape) in enumerate(pairs) if len(axes.split()) != len(shape)), -1)


def _each_alone(pairs):
    return next((i for i, pair in enumerate(pairs) if first_misfit([pair]) != -1), -1)


def _letters_only(pairs):
    length = {}
    for index, (axes, shape) in enumerate(pairs):
        if len(axes.split()) != len(shape) or any(length.setdefault(a, s) != s for a, s in zip(axes.split(), shape)):
            return index
    return -1


def _zipped(pairs):
    length = {}
    for index, (axes, shape) in enumerate(pairs):
        for a, s in zip(axes.split(), shape):
            if (int(a) if a.isdigit() else length.setdefault(a, s)) != s:
                return index
    return -1


def _distinct(pairs):
    length = {}
    for index, (axes, shape) in enumerate(pairs):
        if len(axes.split()) != len(shape):
            return index
        for a, s in zip(axes.split(), shape):
            if (int(a) if a.isdigit() else length.setdefault(a, s)) != s or (not a.isdigit() and s in [v for k, v in length.items() if k != a]):
                return index
    return -1


_CALLS = [[("B n d", (2, 5, 6)), ("B n", (2, 5)), ("n n", (5, 5))], [("B n d", (2, 5, 6)), ("B n", (5, 2))], [("B n 4", (2, 5, 3))],
          [("B n", (2, 5)), ("B n d", (2, 5))], [("Q K", (3, 3)), ("B Q", (3, 3))], [("a a", (2, 3))],
          [("B n", (2, 5)), ("B n", (3, 5)), ("B", (4,))]]


def _from_one(pairs):
    return first_misfit(pairs) + (first_misfit(pairs) >= 0)


def _last(pairs):
    length, found = {}, -1
    for index, (axes, shape) in enumerate(pairs):
        names = axes.split()
        fits = [(int(a) if a.isdigit() else length.setdefault(a, s)) == s for a, s in zip(names, shape)]
        found = found if len(names) == len(shape) and all(fits) else index
    return found


def _yes_or_no(pairs):
    return int(first_misfit(pairs) >= 0)


def _check_misfit(answer) -> None:
    got = [call(answer, pairs) for pairs in _CALLS]
    expect_close(got, [first_misfit(pairs) for pairs in _CALLS], mistakes=[([wrong(pairs) for pairs in _CALLS], why) for wrong, why in (
        (_rank_only, "You compare the number of axes alone. Equal letters must be equal lengths."),
        (_each_alone, "You begin a new scope for each tensor. A letter keeps its length through the whole call."),
        (_letters_only, "An axis written as a number is no letter: \"4\" means a length of 4."),
        (lambda _: -1, "Nothing is refused yet: compare each shape with its letters, in one dict."),
        (_from_one, "You count the pairs from 1. An index starts at 0."),
        (_last, "You return the last misfit. Stop at the first: what follows was read with a broken scope."),
        (_yes_or_no, "That is whether one misfits. Return its index, and −1 when all fit."),
        (_zipped, "`zip` stops at the shorter side: a lost axis passes. Compare the ranks first."),
        (_distinct, "You refuse two letters of one length. Nothing forbids it: B = n = 3 is a call like any other."))])


register(Exercise(
    id="0x0B.3", kind="build", minutes=8,
    prompt="Write `first_misfit(pairs)`: of a call's (axes, shape) pairs, read in order in one scope, the index of the first that does not fit; −1 when all do. "
           "An axis may be a number, as in \"B n 4\".",
    hint="One dict for the whole call. Three reasons to refuse: another rank, a number that is not the length, a letter that has a length already.",
    check=_check_misfit, solution=first_misfit,
    wrong_answers={"rank": (_rank_only, "number of axes alone"), "alone": (_each_alone, "new scope"), "letters": (_letters_only, "is no letter"),
                   "zip": (_zipped, "stops at the shorter"), "distinct": (_distinct, "two letters of one length"), "starter": (lambda _: -1, "Nothing is refused"),
                   "from one": (_from_one, "from 1"), "last": (_last, "the last misfit"), "yes or no": (_yes_or_no, "Return its index")}))


def exchange(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1)


def _check_exchange(answer) -> None:
    x = torch.arange(5 * 5 * 2, dtype=torch.float32).reshape(5, 5, 2)
    got = call(answer, x)
    if not isinstance(got, torch.Tensor) or got.shape != x.shape or got.dtype != x.dtype:
        raise Wrong("The first check caught you: shape or dtype is another one.")
    rows = {tuple(row) for row in x.flatten(0, 1).tolist()}
    if sorted(map(tuple, got.flatten(0, 1).tolist())) != sorted(rows):
        raise Wrong("The second check caught you: some row is not one of the batch's rows, or is there twice. Move rows; do not change them.")
    kept = [len({tuple(r) for r in got[b].tolist()} & {tuple(r) for r in x[b].tolist()}) for b in range(5)]
    if max(kept) == 5 and torch.equal(got, x):
        raise Wrong("Both checks pass, but nothing moved.")
    if max(kept) > 1:
        raise Wrong(f"Both checks pass, but a sequence still has {max(kept)} of its own five rows. Which exchange of axes takes all but one from each?")
    if min(kept) == 0:
        raise Wrong("Both checks pass, but some sequence has none of its own rows. An exchange of the two axes keeps the diagonal.")


register(Exercise(
    id="0x0B.4", kind="break", minutes=4,
    prompt="A loader checks shape, dtype, and that every row of the batch is there once. Write `exchange(x)` for a state [k, k, d]: it passes, and every sequence "
           "keeps exactly one of its own rows.",
    hint="The matrix of rows has a diagonal.", check=_check_exchange, solution=exchange,
    wrong_answers={"same": (lambda x: x.clone(), "nothing moved"), "reversed": (lambda x: x.flip(1), "still has 5 of its own"),
                   "shifted": (lambda x: x.roll(1, 0), "none of its own rows"), "channels": (lambda x: x.flip(-1), "second check"),
                   "cut": (lambda x: x[1:], "first check")},
    praise="A batch as long as its sequences hides an exchange from every check of lengths."))
