"""Exercises of 0x00: which tensor a geometry enters, how to find it, and why a number is no mask."""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x00.1", kind="recall", minutes=3,
    prompt="A T5 decoder adds its learned bias. Batch 3, 12 heads of width 64, one new row that reads itself and 64 before it. Give the shape of the "
           "tensor that the bias is added to, as a list.",
    hint="A score bias enters at S. One number for each sequence, head, query and key.", solution=[3, 12, 1, 65],
    check=lambda answer: expect_close(answer, [3, 12, 1, 65], mistakes=[
        ([1, 12, 1, 65], "That is the bias itself, shared by the batch. It is added to scores that every sequence has for itself."),
        ([3, 12, 65, 1], "Queries and keys are exchanged: rows of S are queries, and there is one."),
        ([3, 12, 65, 65], "That is a prompt, where 65 rows ask. In a decode step one row asks."),
        ([3, 12, 1, 64], "The new row reads itself too: 64 + 1 keys."),
        ([12, 1, 65], "Each of the 3 sequences has scores of its own: the batch comes first."),
        ([3, 1, 768], "That is X, the entrance of state rows. A score bias never touches it."),
        ([3, 12, 1, 64 + 64], "Width and keys are two axes; the head width is used up in q·k.")]),
    wrong_answers={"bias": ([1, 12, 1, 65], "bias itself"), "exchanged": ([3, 12, 65, 1], "exchanged"), "square": ([3, 12, 65, 65], "one row asks"),
                   "fence": ([3, 12, 1, 64], "itself too"), "no batch": ([12, 1, 65], "batch comes first"),
                   "state": ([3, 1, 768], "entrance of state rows")},
    praise="The bias itself is [1, 12, 1, 65]; the batch shares it."))


def first_changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> str | None:
    for name in before:
        if not torch.allclose(before[name], after[name]):
            return name
    return None


def _by_shape(before, after):
    return next((name for name in before if before[name].shape != after[name].shape), None)


def _last(before, after):
    return next((name for name in reversed(before) if not torch.allclose(before[name], after[name])), None)


def _all(before, after):
    return [name for name in before if not torch.allclose(before[name], after[name])]


def _by_sum(before, after):
    return next((name for name in before if not torch.allclose(before[name].sum(), after[name].sum())), None)


def _check_first(answer) -> None:
    plain = {name: torch.arange(4.0).reshape(2, 2) + i for i, name in enumerate(("X", "q", "S", "A"))}
    turned = plain | {"q": plain["q"].flip(0), "S": plain["S"] * 2, "A": plain["A"] + 1}  # q keeps its sum
    biased = plain | {"S": plain["S"] + 1, "A": plain["A"].flip(0)}
    for after, wanted in ((biased, "S"), (turned, "q"), (dict(plain), None)):
        got = call(answer, plain, after)
        if isinstance(got, (list, tuple)):
            raise Wrong("You return every tensor that differs. All that stands behind the entrance differs; return the first name.")
        if not isinstance(got, (str, type(None))):
            raise Wrong("Return a name, such as \"S\", or None when nothing differs.")
        if got != wanted and got is None:
            raise Wrong("You found no difference. Compare values: the shapes are all equal, and a sum does not change when rows change places.")
        if got != wanted and wanted is None:
            raise Wrong(f"Nothing differs there, and you return {got!r}. Return None.")
        if got == "A":
            raise Wrong("A differs in every run that changes anything: it stands behind all entrances. Return the first, not the last.")
        if got != wanted:
            raise Wrong(f"The first tensor that differs is {wanted!r}, and you return {got!r}. Compare values: a sum, for one, "
                        "does not change when rows change places.")


register(Exercise(
    id="0x00.2", kind="build", minutes=5,
    prompt="Write `first_changed(before, after)`: both are dicts from names to tensors, in the order of the layer. Return the name of the first tensor "
           "whose values differ, or None.",
    hint="`torch.allclose`, and return inside the loop.", check=_check_first, solution=first_changed,
    wrong_answers={"shapes": (_by_shape, "shapes are all equal"), "last": (_last, "not the last"), "all": (_all, "every tensor"),
                   "sums": (_by_sum, "rows change places")}))


def weights(bits: list[float], readable: list[bool]) -> list[float]:
    powers = [2.0**b if may else 0.0 for b, may in zip(bits, readable)]
    total = sum(powers)
    return [p / total if total else 0.0 for p in powers]


def _finite(bits, readable):
    powers = [2.0 ** (b if may else b - 40.0) for b, may in zip(bits, readable)]
    return [p / sum(powers) for p in powers]


def _not_renormalised(bits, readable):
    powers = [2.0**b for b in bits]
    return [p / sum(powers) if may else 0.0 for p, may in zip(powers, readable)]


def _polarity(bits, readable):
    return weights(bits, [not may for may in readable])


def _natural(bits, readable):
    return weights([b / 0.6931471805599453 for b in bits], readable)


def _nothing(bits, readable):
    powers = [2.0**b if may else 0.0 for b, may in zip(bits, readable)]
    return [p / sum(powers) for p in powers]


def _check_weights(answer) -> None:
    first = ([1.0, 2.0, 0.0, 2.0], [True, True, False, True])
    expect_close(call(answer, *first), weights(*first), atol=1e-9, mistakes=[
        (_polarity(*first), "The polarity is turned round: True means that the key may be read."),
        (_natural(*first), "That is e to the power of the score. These scores count in bits: one more doubles the weight."),
        (_not_renormalised(*first), "You zeroed the hidden weight after the division, so the rest no longer adds up to 1. Hide first, then divide.")])
    last = ([3.0, 1.0], [False, False])
    expect_close(call(answer, *last), [0.0, 0.0], atol=0.0, mistakes=[
        (_finite(*last), "Nothing may be read, and your weights add up to 1. A large negative number is no mask: softmax removes what all scores share."),
        ([float("nan")] * 2, "0/0. A row that may read nothing gets zeros; test the sum before you divide.")])
    hidden = ([0.0, 12.0], [True, False])
    if call(answer, *hidden)[1] != 0:
        raise Wrong("A hidden key still has a weight above 0. A large negative number is no mask: leave the key out of the sum.")


register(Exercise(
    id="0x00.3", kind="build", minutes=7,
    prompt="Write `weights(bits, readable)`: the attention weights of one row as a list. `bits` are scores in units of ln 2, `readable` holds one bool "
           "a key. A key that may not be read gets exactly 0, and a row that may read nothing gets zeros.",
    hint="A weight is 2**bits over the sum of the readable ones.", check=_check_weights, solution=weights,
    wrong_answers={"finite": (_finite, "is no mask"), "after": (_not_renormalised, "no longer adds up"), "polarity": (_polarity, "turned round"),
                   "natural": (_natural, "count in bits"), "empty": (_nothing, "ZeroDivisionError")}))


def outvote(bias: float) -> list[float]:
    return [0.0, -bias + 1.0]


def _check_outvote(answer) -> None:
    for bias in (-100.0, -1000.0, -1e6):
        got = call(answer, bias)
        if not isinstance(got, (list, tuple)) or len(got) != 2 or not all(isinstance(s, (int, float)) and abs(s) < 1e300 for s in got):
            raise Wrong("Return two finite numbers: the content scores of the readable key and of the forbidden one.")
        weight = float(torch.softmax(torch.tensor([got[0], got[1] + bias], dtype=torch.float64), 0)[1])
        if got[0] == got[1]:
            raise Wrong("With equal content the bias decides. Content may differ: nothing bounds a score.")
        if got[1] < got[0]:
            raise Wrong("Your readable key has the higher content score. Make the forbidden one attractive.")
        if weight == 0.5:
            raise Wrong("Exactly one half: your advantage cancels the bias and no more. Add something on top.")
        if weight < 0.5:
            raise Wrong(f"At a bias of {bias:,.0f} the forbidden key has a weight of {weight:.2g}, not above one half. Its advantage must grow with the bias.")


register(Exercise(
    id="0x00.4", kind="break", minutes=5,
    prompt="A reviewer says: a bias of −100 is a mask, and if not, −1,000 is. Write `outvote(bias)`: the content scores [readable key, forbidden key] with "
           "which the forbidden key, after `bias` is added to its score, takes more than half of the attention. It must work for any finite bias.",
    hint="Softmax sees the difference of the two scores.", check=_check_outvote, solution=outvote,
    wrong_answers={"equal": (lambda bias: [0.0, 0.0], "equal content"), "sign": (lambda bias: [0.0, bias - 1.0], "forbidden one attractive"),
                   "fixed": (lambda bias: [0.0, 101.0], "grow with the bias"), "not enough": (lambda bias: [0.0, -bias / 2], "not above one half"), "even": (lambda bias: [0.0, -bias], "cancels the bias"),
                  
                   "infinite": (lambda bias: [0.0, float("inf")], "two finite numbers")},
    praise="Whatever number stands for a mask, some content outvotes it. Visibility is not a number and cannot be outvoted."))
