"""Exercises of 0x06: where integers merge, a shift without knowing t, a head that looks k back, and a projection that loses the offset."""

from __future__ import annotations

import math

import torch

from positionlib.exercises.answers import Wrong, _numbers, call, expect_close
from positionlib.exercises.registry import Exercise, register
from positionlib.mechanisms.sinusoidal import convert_layout, sinusoidal_rows
from positionlib.mechanisms.sinusoidal_algebra import commuting_matrix, joint_shift_scores, shift_matrix

SIX = dict(base=100.0, output_dtype=torch.float64)
OMEGAS = [1.0, 100.0 ** (-1 / 3), 100.0 ** (-2 / 3)]


# --- 1: recall ------------------------------------------------------------------------------------------------------

def _check_alias(answer) -> None:
    expect_close(answer, [16, 17], mistakes=[
        ([8, 9], "You counted the three stored bits only. The leading 1 is not stored but counts: four significant bits."),
        ([15, 16], "15 is 1111 in binary and 16 is 10000: both fit in four significant bits. Go one further."),
        ([32, 33], "32 and 33 do merge, but an earlier pair does too: which is the first integer that needs five bits?"),
        ([256, 257], "That is bfloat16, with eight significant bits. This format has four."),
    ])


register(Exercise(
    id="0x06.1", kind="recall", minutes=3,
    prompt="The 8-bit format e4m3 stores three bits after the leading 1. Give the first two consecutive integers that it rounds to one "
           "number, as a list of two.",
    hint="bfloat16 stores seven bits after the leading 1 and merges 256 = 2^8 with 257. Count the leading 1 as well.",
    check=_check_alias, solution=[16, 17],
    wrong_answers={"stored bits only": ([8, 9], "leading 1 is not stored"), "one early": ([15, 16], "both fit"),
                   "not the first": ([32, 33], "earlier pair"), "bfloat16": ([256, 257], "eight significant bits")}))


# --- 2: build -------------------------------------------------------------------------------------------------------

def shift_row(row, k, omegas):
    moved = []
    for i, omega in enumerate(omegas):
        sine, cosine = row[2 * i], row[2 * i + 1]
        angle = k * omega
        moved += [math.cos(angle) * sine + math.sin(angle) * cosine, -math.sin(angle) * sine + math.cos(angle) * cosine]
    return moved


def _turned_back(row, k, omegas):
    return shift_row(row, -k, omegas)


def _added(row, k, omegas):
    return [value + (math.sin, math.cos)[c % 2](k * omegas[c // 2]) for c, value in enumerate(row)]


def _halves(row, k, omegas):
    moved = shift_row(convert_layout(torch.tensor(row), source="concatenated", target="interleaved").tolist(), k, omegas)
    return convert_layout(torch.tensor(moved, dtype=torch.float64), source="interleaved", target="concatenated").tolist()


def _slow_only(row, k, omegas):
    return shift_row(row, k, [omegas[-1]] * len(omegas))


def _check_shift_row(answer) -> None:
    for t, k in ((9, 4), (20, -3), (5, 0)):
        here, there = sinusoidal_rows(torch.tensor([t, t + k]), 6, **SIX)
        got = call(answer, here.tolist(), k, OMEGAS)
        mistakes = [] if k == 0 else [
            (_turned_back(here.tolist(), k, OMEGAS), "You went to t − k: for [sin, cos] the lower left entry carries the minus sign."),
            (_added(here.tolist(), k, OMEGAS), "You added the row of k. Angles add, rows do not: turn each pair instead."),
            (_halves(here.tolist(), k, OMEGAS), "You paired channel c with channel c + d/2. Here the row is interleaved: channels 2i and 2i + 1."),
            (_slow_only(here.tolist(), k, OMEGAS), "You turned every pair by one frequency. Pair i turns by k · omegas[i]."),
        ]
        expect_close(got, there, atol=1e-9, mistakes=mistakes)


register(Exercise(
    id="0x06.2", kind="build", minutes=8,
    prompt="Write shift_row(row, k, omegas): from the row of some unknown position t, a list [sin, cos, sin, cos, ...], return the row of "
           "t + k as a list. omegas holds one frequency a pair; k may be negative.",
    hint="One pair: the new sine is cos(kω)·sine + sin(kω)·cosine. Write the new cosine from the second angle-addition formula.",
    check=_check_shift_row, solution=shift_row,
    wrong_answers={"turned back": (_turned_back, "You went to t − k"), "added": (_added, "Angles add, rows do not"),
                   "halves": (_halves, "the row is interleaved"), "one frequency": (_slow_only, "by one frequency")}))


# --- 3: build -------------------------------------------------------------------------------------------------------

def look_back(k, omegas):
    M = torch.zeros(2 * len(omegas), 2 * len(omegas))
    for i, omega in enumerate(omegas):
        a, b = math.cos(k * omega), math.sin(k * omega)
        M[2 * i:2 * i + 2, 2 * i:2 * i + 2] = torch.tensor([[a, b], [-b, a]])
    return M


def _ahead(k, omegas):
    return look_back(k, omegas).T


def _even_blocks(k, omegas):
    return (look_back(k, omegas) + look_back(-k, omegas)) / 2


def _one_turn(k, omegas):
    return look_back(k, [omegas[0]] * len(omegas))


def _check_look_back(answer) -> None:
    rows = sinusoidal_rows(torch.arange(80), 6, **SIX)
    for k in (4, 1, 9):
        form = torch.as_tensor(_numbers(call(answer, k, OMEGAS), "Your form"), dtype=torch.float64)
        if form.shape != (6, 6):
            raise Wrong(f"Your form has shape {list(form.shape)}; three pairs of channels need 6 by 6.")
        if not bool(torch.isfinite(form).all()):
            raise Wrong("Your form holds a NaN or an infinity. A projection is made of finite numbers.")
        for m in (20, 33, 60):
            scores = rows[m] @ form @ rows.T
            top = float(scores.max())
            best = (scores >= top - 1e-5 * max(1.0, abs(top))).nonzero().flatten().tolist()
            if best == [m - k]:
                continue
            if best == [m]:
                raise Wrong(f"At query {m} the largest score is at key {m} itself: your form does not move the row of the key.")
            if best == [m + k]:
                raise Wrong(f"Your form looks ahead: at query {m} the largest score is at key {m + k}. The key must be moved on by k, not back.")
            if m - k in best and m + k in best or abs(float(scores[m - k] - scores[m + k])) < 1e-5:
                raise Wrong(f"Keys {m - k} and {m + k} score the same at query {m}: an even form cannot tell past from future. It needs b·J too.")
            raise Wrong(f"With k = {k}, the largest score of query {m} is at key {best[0]}; expected {m - k}. Does pair i turn by k · omegas[i]?")


register(Exercise(
    id="0x06.3", kind="build", minutes=8,
    prompt="Write look_back(k, omegas): a form M, 2·len(omegas) rows and columns, for which the score row(m)ᵀ M row(n) of any query position m "
           "is largest at the key n = m − k. Rows are interleaved, one [sin, cos] a frequency.",
    hint="The pure product is largest where both rows are equal. Which matrix makes the row of n equal to the row of n + k?",
    check=_check_look_back, solution=look_back,
    wrong_answers={"identity": (lambda k, omegas: torch.eye(2 * len(omegas)), "does not move the row"), "transposed": (_ahead, "looks ahead"),
                   "even blocks": (_even_blocks, "cannot tell past from future"), "one frequency": (_one_turn, "Does pair i turn"),
                   "one block": (lambda k, omegas: look_back(k, omegas[:1]), "6 by 6")}))


# --- 4: break -------------------------------------------------------------------------------------------------------

PLANES = [[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
IDENTITY = torch.eye(4).tolist()
TURN = commuting_matrix(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])).tolist()


def _check_breaker(answer) -> None:
    form = torch.as_tensor(_numbers(answer, "Your answer"), dtype=torch.float64)
    if form.shape != (4, 4):
        raise Wrong(f"Your answer has shape {list(form.shape)}; a form on rows of width 4 is 4 by 4.")
    if not bool(torch.isfinite(form).all()):
        raise Wrong("Your form holds a NaN or an infinity. A projection is made of finite numbers.")
    if float((form.T @ form - torch.eye(4, dtype=torch.float64)).abs().max()) > 1e-6:
        raise Wrong("This form is not orthogonal: MᵀM is not I, so it changes norms as well. Swap or turn channels instead of scaling them.")
    scores = joint_shift_scores(form, 9, 4, (0, 6), base=100.0)
    change = abs(float(scores[1] - scores[0]))
    step = shift_matrix(1, 4, base=100.0)
    if float((step.T @ form @ step - form).abs().max()) < 1e-6:
        same = "M = I is the pure dot product" if torch.equal(form, torch.eye(4, dtype=torch.float64)) else "this M has blocks a·I + b·J"
        raise Wrong(f"The score cannot move: {same}, which commutes with every shift. Let two frequencies meet.")
    if change < 0.5:
        raise Wrong(f"The score moved by {change:.3f} only; the exercise asks for 0.5. Try another permutation of the channels.")


register(Exercise(
    id="0x06.4", kind="break", minutes=8,
    prompt="Give an orthogonal 4 by 4 matrix M (a list of four rows) for which the position score of query 9 and key 4 changes by at least "
           "0.5 when both move on by 6. Width 4, base 100.",
    hint="A permutation matrix is orthogonal. Which permutation makes the fast pair of the query meet the slow pair of the key?",
    check=_check_breaker, solution=PLANES,
    wrong_answers={"identity": (IDENTITY, "M = I is the pure dot product"), "quarter turn": (TURN, "blocks a·I + b·J"),
                   "scaled": ([[2.0 * v for v in row] for row in PLANES], "not orthogonal"),
                   "too little": (torch.diag(torch.tensor([1.0, -1.0, 1.0, 1.0])).tolist(), "moved by")}))
