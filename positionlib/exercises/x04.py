"""Exercises of 0x04: what a checkpoint stores, adding a chunk's rows, moving weight columns, and an addition that fools the probe."""

from __future__ import annotations

import torch

from positionlib.errors import PositionContractError
from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register
from positionlib.lab.x04 import check_numbering
from positionlib.mechanisms.sinusoidal import sinusoidal_table

register(Exercise(
    id="0x04.1", kind="recall", minutes=3,
    prompt="An encoder and a decoder each own a copy of the page's module with max_len 1,024 and width 256, in float32. How many bytes "
           "of the checkpoint are position rows?",
    hint="A buffer is saved unless it says otherwise. Count elements of one table, then bytes, then tables.", solution=2_097_152,
    check=lambda answer: expect_close(answer, 2_097_152.0, atol=0.5, mistakes=[
        (1_048_576, "That is one table. The encoder and the decoder hold a copy each."),
        (524_288, "You counted elements of both tables. A float32 takes four bytes."),
        (262_144, "Those are the elements of one table: 1,024 times 256. Now bytes, and two tables."),
        (0, "Nothing is trained, but a registered buffer is saved all the same. Zero needs persistent=False."),
        (4_194_304, "You took eight bytes an element. float32 has four.")]),
    wrong_answers={"one": (1_048_576, "one table"), "elements": (524_288, "counted elements"), "one table's elements": (262_144, "elements of one table"),
                   "nothing": (0, "saved all the same"), "double": (4_194_304, "eight bytes")},
    praise="2 tables of 1,024 x 256 float32 numbers, rebuilt from three settings by any loader."))


def add_rows(x, table, start):
    return x + table[start : start + x.size(1)]


def _by_batch(x, table, start):
    return x + table[start : start + x.size(0)]


def _restart(x, table, start):
    return x + table[: x.size(1)]


def _no_colon(x, table, start):
    return x + table[start + x.size(1)]


def _short(x, table, start):
    return x + table[: start + x.size(1)][-x.size(1) - 1 : -1]


def _late(x, table, start):
    return x + table[start + 1 : start + 1 + x.size(1)]


_ADD_MISTAKES = [
    (_restart, "You sliced from 0: every chunk restarts at position 0. The first token of this call stands at `start`."),
    (_no_colon, "You indexed one row and gave it to every token: a slice needs its colon."),
    (_short, "Your rows are one position early: the slice runs from start to start + n, its end left out."),
    (_late, "Your rows are one position late: the first token stands at `start`, not one after it."),
    (_by_batch, "Every token of the one sequence got the same row: you sliced by x.size(0), which is 1 here, or put the rows on the batch axis. Axis 1 is "
                "the sequence."),
]


def _check_add(answer) -> None:
    table = sinusoidal_table(20, 6, output_dtype=torch.float64)
    for batch, length, start in ((1, 4, 7), (2, 3, 5)):
        x = torch.arange(batch * length * 6, dtype=torch.float64).reshape(batch, length, 6) / 8
        mistakes = []
        for wrong, why in _ADD_MISTAKES:
            try:
                mistakes.append((wrong(x, table, start), why))
            except RuntimeError:  # a wrong line that this shape does not let pass
                continue
        expect_close(call(answer, x, table, start), add_rows(x, table, start), atol=1e-9, mistakes=mistakes)


register(Exercise(
    id="0x04.2", kind="build", minutes=5,
    prompt="Write `add_rows(x, table, start)`: x is [B, n, d], table is [max_len, d], and the first token of every sequence stands at "
           "position `start`. Return x plus the rows, [B, n, d].",
    hint="n is x.size(1). A slice [n, d] meets [B, n, d] by broadcasting over the batch.",
    check=_check_add, solution=add_rows,
    wrong_answers={"batch": (_by_batch, "x.size(0)"), "restart": (_restart, "restarts at position 0"),
                   "colon": (_no_colon, "needs its colon"), "early": (_short, "one position early"), "late": (_late, "one position late")}))


def columns(d_model):
    sines = list(range(0, d_model, 2))
    cosines = list(range(1, d_model, 2))
    return sines + cosines


def _inverse(d_model):
    order = columns(d_model)
    return [order.index(c) for c in range(d_model)]


def _cosines_first(d_model):
    return list(range(1, d_model, 2)) + list(range(0, d_model, 2))


def _sine_last(d_model):
    return list(range(0, d_model - 1, 2)) + list(range(1, d_model, 2)) + [d_model - 1] * (d_model % 2)


def _unmoved(d_model):
    return list(range(d_model))


def _check_columns(answer) -> None:
    for d_model in (10, 7):
        mistakes = [
            (_unmoved(d_model), "Nothing moved: column 1 was trained on a cosine, and the concatenated channel 1 holds a sine."),
            (_inverse(d_model), "That is the way back, from concatenated to interleaved. List the old numbers, in the new order."),
            (_cosines_first(d_model), "You put the cosines first. The concatenated layout has all sines, then all cosines."),
            (_sine_last(d_model), "At an odd width you put the unpaired sine last. It stays among the sines; the last channel is a cosine.")]
        right = columns(d_model)
        expect_close(call(answer, d_model), right, mistakes=[m for m in mistakes if m[0] != right])


register(Exercise(
    id="0x04.3", kind="build", minutes=8,
    prompt="A linear layer was trained on interleaved rows. Write `columns(d_model)`: the list p for which weight[:, p] gives the same outputs on "
           "concatenated rows. At an odd width there is one sine more than cosines.",
    hint="Number the interleaved channels, then write those numbers down in the order in which the concatenated layout holds the same coordinates.",
    check=_check_columns, solution=columns,
    wrong_answers={"inverse": (_inverse, "way back"), "cosines": (_cosines_first, "cosines first"), "odd": (_sine_last, "unpaired sine last"),
                   "unmoved": (_unmoved, "Nothing moved")}))


def impostor(x, table):
    rows = table[: x.size(1)]
    return rows.expand_as(x).clone()            # the content is gone; zeros do not notice


def _check_impostor(answer) -> None:
    table = sinusoidal_table(16, 4)

    def add(x):
        got = answer(x.clone(), table.clone())
        if not isinstance(got, torch.Tensor) or got.shape != x.shape or not got.dtype.is_floating_point:
            raise Wrong("Return a floating-point tensor of x's own shape, for every x.")
        return got

    call(answer, torch.zeros(1, 3, 4), table)
    try:
        check_numbering(add)
    except PositionContractError as refusal:
        raise Wrong(f"The probe caught you: {refusal}") from None
    for batch, length in ((2, 5), (1, 9), (4, 3)):
        x = torch.arange(1.0, batch * length * 4 + 1).reshape(batch, length, 4)
        if not torch.allclose(add(x), x + table[:length], atol=0.1):
            return
    raise Wrong("The probe passes, but nothing is wrong with your sums: no value is off by 0.1 or more. What do three batches of zeros, three tokens "
                "long, never look at?")


register(Exercise(
    id="0x04.4", kind="break", minutes=6,
    prompt="The probe `check_numbering` adds positions to zeros of the shapes 1 x 3, 2 x 3 and 3 x 3. Write `impostor(x, table)` that passes it "
           "and is wrong by at least 0.1 on some batch of other content or another length.",
    hint="Zeros hide what happens to the content; three tokens hide what happens to the fourth.",
    check=_check_impostor, solution=impostor,
    wrong_answers={"honest": (lambda x, table: x + table[: x.size(1)], "nothing is wrong"),
                   "batch": (lambda x, table: x + table[: x.size(0)], "probe caught you"),
                   "shape": (lambda x, table: table[:3], "own shape")},
    praise="A probe shows what it was fed. Feed content, and more tokens than you have sequences."))
