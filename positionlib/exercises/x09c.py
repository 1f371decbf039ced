"""Exercises of 0x09C: how far a decoder's table sees, the bucket edges, slopes of a shard, and a bias that fails as a mask."""

from __future__ import annotations

import math

import numpy as np
import torch

from positionlib.attention import masked_softmax
from positionlib.exercises.answers import Wrong, call, expect_choice, expect_close
from positionlib.exercises.registry import Exercise, register
from positionlib.rules import alibi_slopes

register(Exercise(
    id="0x09C.1", kind="recall", minutes=2,
    prompt="A T5 decoder has 64 buckets and max distance 256; an ALiBi decoder has 32 heads. Both read keys 250 and 3,000 positions back. "
           "What tells the two keys apart? (a) both biases  (b) only the T5 bias  (c) only the ALiBi bias  (d) neither bias",
    hint="In which bucket does the staircase end, and where does that bucket begin?", solution="c",
    check=lambda answer: expect_choice(answer, "c", {
        "a": "T5's last causal bucket holds every distance from 240 on: keys 250 and 3,000 back get one number.",
        "b": "It is the other way round: T5's last bucket starts at 240 and never ends, while ALiBi's line goes on.",
        "d": "ALiBi's penalties are 250 and 3,000 times the slope: they differ in every head."}),
    wrong_answers={"both": ("a", "from 240 on"), "t5": ("b", "other way round"), "neither": ("d", "times the slope")},
    praise="A formula that still tells them apart; whether the model uses it well at 3,000 is another question."))


def edges(buckets: int, max_distance: int) -> list[int]:
    exact = buckets // 2
    far = buckets - exact
    first = list(range(1, exact + 1))
    for f in range(1, far):
        n = exact
        while n**far < max_distance**f * exact ** (far - f):  # n < exact * (max_distance / exact) ** (f / far)
            n += 1
        first.append(n)
    return first


def _edges_with(place):
    """Edges whose logarithmic part is ``place(f, exact, far, max_distance)``."""
    def wrong(buckets: int, max_distance: int) -> list[int]:
        exact = buckets // 2
        return list(range(1, exact + 1)) + [place(f, exact, buckets - exact, max_distance) for f in range(1, buckets - exact)]
    return wrong


def _real_edge(f: int, exact: int, far: int, max_distance: int) -> float:
    return exact * (max_distance / exact) ** (f / far)


_EDGE_MISTAKES = {
    "floor": (_edges_with(lambda *a: int(_real_edge(*a) + 1e-9)),
              "You rounded down: at that distance the line has not reached the bucket yet. Take the first whole distance at or above the edge."),
    "round": (_edges_with(lambda *a: round(_real_edge(*a))),
              "You rounded to the nearest distance. A bucket begins at the first whole distance at or above the edge."),
    "strict": (_edges_with(lambda *a: int(_real_edge(*a) + 1e-9) + 1),
               "A distance that lies exactly on an edge belongs to the new bucket: the floor has just reached it."),
    "reach": (_edges_with(lambda f, e, L, M: math.ceil(_real_edge(f, e, L - 1, M) - 1e-9)),
              "Your last bucket begins at max_distance. The line reaches one bucket more there, which does not exist: divide by all far buckets."),
    "linear": (_edges_with(lambda f, e, L, M: math.ceil(e + f * (M - e) / L - 1e-9)),
               "Your far edges stand at equal distances. Equal ratios are asked: the logarithm of the distance is divided evenly."),
}


def _check_edges(answer) -> None:
    calls = [(12, 50), (8, 64)]
    expect_close([n for c in calls for n in _listed(call(answer, *c))], [n for c in calls for n in edges(*c)],
                 mistakes=[([n for c in calls for n in wrong(*c)], why) for wrong, why in _EDGE_MISTAKES.values()])


def _listed(value) -> list:
    if isinstance(value, torch.Tensor | np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple) or not all(isinstance(x, int | float) for x in value):
        raise Wrong("Return a list of numbers.")
    return list(value)


register(Exercise(
    id="0x09C.2", kind="build", minutes=10,
    prompt="Write `edges(buckets, max_distance)` for one direction: the first distance of bucket 1, of bucket 2, and so on to the last. It is tried at 12 buckets to 50 "
           "and at 8 buckets to 64.",
    hint="The first half of the buckets are distances themselves. Bucket E + f begins at the first whole number n with n >= E * (M / E) ** (f / L); "
         "raise both sides to the power L to stay in whole numbers.",
    check=_check_edges, solution=edges,
    wrong_answers={name: (wrong, words) for (name, (wrong, _)), words in
                   zip(_EDGE_MISTAKES.items(), ("rounded down", "nearest", "exactly on an edge", "begins at max_distance", "equal distances"), strict=True)},
    praise="Whole numbers have no rounding; at a few settings a float logarithm lands on the wrong side of an edge."))


def slopes_of_rank(heads: int, ranks: int, rank: int) -> list[float]:
    lower = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / lower) for h in range(lower)]
    slopes += [2 ** (-8 * (h + 1) / (2 * lower)) for h in range(0, 2 * (heads - lower), 2)]
    share = heads // ranks
    return slopes[rank * share:(rank + 1) * share]


def _share(slopes: list[float], ranks: int, rank: int) -> list[float]:
    share = len(slopes) // ranks
    return slopes[rank * share:(rank + 1) * share]


_SLOPE_MISTAKES = {
    "local": (lambda heads, ranks, rank: alibi_slopes(heads // ranks).tolist(),
              "You built slopes for the shard's own head count. Build the list of all heads, then take this rank's part."),
    "sorted": (lambda heads, ranks, rank: _share(sorted(alibi_slopes(heads).tolist(), reverse=True), ranks, rank),
               "You sorted the slopes. The extra heads come after the power-of-two heads, in that order."),
    "series": (lambda heads, ranks, rank: _share([2 ** (-8 * (h + 1) / heads) for h in range(heads)], ranks, rank),
               "One geometric series for all heads is the paper's sentence; the code keeps it for powers of two only. "
               "Take the lower power of two, then alternate slopes of twice that."),
    "zero": (lambda heads, ranks, rank: _share([2 * s for s in alibi_slopes(heads).tolist()], ranks, rank),
             "Every slope is twice too steep: does your exponent start at h or at h + 1?"),
    "odd": (lambda heads, ranks, rank: _share(alibi_slopes(1 << heads.bit_length() - 1).tolist()
                                              + alibi_slopes(1 << heads.bit_length()).tolist()[1::2][:heads - (1 << heads.bit_length() - 1)], ranks, rank),
            "The extra slopes are every second one from the FIRST of twice the power of two; from the second on they repeat the ones you have."),
}


def _check_slopes(answer) -> None:
    calls = [(6, 3, r) for r in range(3)] + [(20, 4, r) for r in range(4)]
    expect_close([x for c in calls for x in _listed(call(answer, *c))], [x for c in calls for x in slopes_of_rank(*c)], atol=1e-9,
                 mistakes=[([x for c in calls for x in wrong(*c)], why) for wrong, why in _SLOPE_MISTAKES.values()])


register(Exercise(
    id="0x09C.3", kind="build", minutes=8,
    prompt="Write `slopes_of_rank(heads, ranks, rank)`: the slopes of the authors' ALiBi code that one of `ranks` equal shards needs, in head order. "
           "Rank 0 holds the first heads.",
    hint="First the list for all heads: the largest power of two that fits, then alternate slopes of twice that power. Cut last.",
    check=_check_slopes, solution=slopes_of_rank,
    wrong_answers={name: (wrong, words) for (name, (wrong, _)), words in
                   zip(_SLOPE_MISTAKES.items(), ("own head count", "sorted the slopes", "powers of two only", "twice too steep", "every second one"), strict=True)}))


def leak(length: int, penalty: float) -> torch.Tensor:
    scores = torch.zeros(length, length)
    scores[:, -1] = 2 * penalty
    return scores


def _check_leak(answer) -> None:
    for length, penalty in ((5, 12.0), (9, 60.0)):
        got = call(answer, length, penalty)
        if not isinstance(got, torch.Tensor) or not got.dtype.is_floating_point or got.shape != (length, length):
            raise Wrong("Return a floating-point tensor [length, length] of content scores, queries in rows.")
        got = got.detach().double()
        if not bool(torch.isfinite(got).all()):
            raise Wrong("An infinite or NaN score proves nothing about a finite penalty: keep the content finite.")
        if bool((got == got[:, :1]).all()):
            raise Wrong("Every key of a row has the same content, and softmax sees differences only: the penalty decides alone.")
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weight = masked_softmax(got - penalty * future, torch.ones_like(future)).masked_fill(~future, 0).sum(-1)[:-1]
        if float(weight.min()) <= 0.9:
            row = int(weight.argmin())
            raise Wrong(f"With a penalty of {penalty:g}, query {row} leaves {float(weight[row]):.2g} of its attention to the future; more than 0.9 is asked "
                        "of every query but the last. How large must a future key's content be to win back the penalty?")


register(Exercise(
    id="0x09C.4", kind="break", minutes=5,
    prompt="Somebody replaces the causal mask by a finite penalty that is subtracted from every future score. Write `leak(length, penalty)`: finite content scores "
           "[length, length] with which every query but the last still gives more than 0.9 of its attention to keys after it.",
    hint="Softmax sees content minus penalty. Nothing bounds the content.", check=_check_leak, solution=leak,
    wrong_answers={"flat": (lambda n, p: torch.zeros(n, n), "differences only"), "tied": (lambda n, p: leak(n, p / 2), "win back"),
                   "infinite": (lambda n, p: torch.full((n, n), math.inf), "finite"), "shape": (lambda n, p: torch.zeros(n), "[length, length]")},
    praise="Whatever the finite penalty, some content outweighs it. A mask takes part in no such contest.")
)
