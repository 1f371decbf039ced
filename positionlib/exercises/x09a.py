"""Exercises of 0x09A: one offset of a chunk, the offsets of a call, two parts merged, and the rows that hide a missing factor."""

from __future__ import annotations

import math

import torch

from positionlib.attention import masked_softmax
from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register
from positionlib.lab.x09a import tile_loop

register(Exercise(
    id="0x09A.1", kind="recall", minutes=2,
    prompt="A cache holds 40 keys. A chunk of 5 new tokens is both query and last keys. What is the offset, key minus query, from the chunk's "
           "third query to the third key of the cache?",
    hint="Both are called third. Write down both positions first; positions count from 0.", solution=-40,
    check=lambda answer: expect_close(answer, -40, mistakes=[
        (0, "You subtracted the two row numbers. The third query of this call stands at position 42."),
        (40, "That is query minus key. The key lies before the query, so key minus query is negative."),
        (-39, "One off: the third key is at position 2, the third query at 40 + 2."),
        (-41, "One off: the chunk begins at position 40, since the cached keys are 0 to 39."),
        (-38, "You took the chunk's first query, at position 40; the third one is at 42.")]),
    wrong_answers={"rows": (0, "row numbers"), "sign": (40, "query minus key"), "near": (-39, "third key is at position 2"),
                   "fence": (-41, "begins at position 40"), "first": (-38, "first query")},
    praise="2 − 42: two rows of one number, 40 positions apart."))


def offsets(q_len: int, k_len: int, q_start: int, k_start: int) -> list[list[int]]:
    return [[(k_start + j) - (q_start + i) for j in range(k_len)]
            for i in range(q_len)]


_OFFSET_MISTAKES = {
    "local": (lambda q, k, q0, k0: [[j - i for j in range(k)] for i in range(q)],
              "You subtracted row numbers: neither start is in your offsets. A query of row 0 stands at q_start."),
    "no key start": (lambda q, k, q0, k0: [[j - (q0 + i) for j in range(k)] for i in range(q)],
                     "Your keys start at 0. Key row j stands at k_start + j: a tile in the middle of a cache is such a block."),
    "no query start": (lambda q, k, q0, k0: [[k0 + j - i for j in range(k)] for i in range(q)],
                       "Your queries start at 0. Query row i stands at q_start + i."),
    "sign": (lambda q, k, q0, k0: [[(q0 + i) - (k0 + j) for j in range(k)] for i in range(q)],
             "That is query minus key: the sign is turned around. Asked is key minus query."),
    "transposed": (lambda q, k, q0, k0: [[(k0 + j) - (q0 + i) for i in range(q)] for j in range(k)],
                   "Queries belong in rows, keys in columns: your list is transposed."),
    "end": (lambda q, k, q0, k0: [[j - (k - q + i) for j in range(k)] for i in range(q)],
            "You laid the queries at the end of the keys. That is one caller's habit; here both starts are given."),
}


def _check_offsets(answer) -> None:
    for given in ((2, 4, 9, 5), (3, 2, 1, 6)):
        expect_close(call(answer, *given), offsets(*given), mistakes=[(wrong(*given), why) for wrong, why in _OFFSET_MISTAKES.values()])


register(Exercise(
    id="0x09A.2", kind="build", minutes=5,
    prompt="Write `offsets(q_len, k_len, q_start, k_start)`: the block of offsets, key minus query, as a list of q_len rows.",
    hint="Query row i stands at q_start + i, key row j at k_start + j.", check=_check_offsets, solution=offsets,
    wrong_answers={name: (wrong, words) for (name, (wrong, _)), words in zip(
        _OFFSET_MISTAKES.items(), ("neither start", "keys start at 0", "queries start at 0", "turned around", "transposed", "end of the keys"), strict=True)},
    praise="Only k_start − q_start is in there: tiles on one diagonal hold the same offsets."))


def merge(a: tuple, b: tuple) -> tuple:
    (m_a, l_a, o_a), (m_b, l_b, o_b) = a, b
    m = max(m_a, m_b)
    if m == -math.inf:                  # neither part saw a key
        return a
    from_a, from_b = math.exp(m_a - m), math.exp(m_b - m)
    return m, l_a * from_a + l_b * from_b, o_a * from_a + o_b * from_b


def _merge_with(rule):
    """A wrong merge: ``rule(m_a, l_a, o_a, m_b, l_b, o_b, m)`` gives l and o."""
    def wrong(a, b):
        m = max(a[0], b[0])
        return (m, *rule(*a, *b, m))
    return wrong


def _factor(m_part: float, m: float) -> float:
    return math.exp(m_part - m) if m_part > -math.inf else 0.0


_MERGE_MISTAKES = {
    "sum": (_merge_with(lambda ma, la, oa, mb, lb, ob, m: (la + lb, oa + ob)),
            "You added sums that count in different units: l and o of a part are relative to its own m. Bring both to the common maximum first."),
    "first": (_merge_with(lambda ma, la, oa, mb, lb, ob, m: (la * _factor(ma, m) + lb, oa * _factor(ma, m) + ob)),
              "You rescaled the first part alone. When it holds the larger maximum, the second has to shrink."),
    "half": (_merge_with(lambda ma, la, oa, mb, lb, ob, m: (la * _factor(ma, m) + lb * _factor(mb, m), oa + ob)),
             "l is right, but o was added as it came. Both were summed relative to the part's m: both get the factor."),
    "inverse": (_merge_with(lambda ma, la, oa, mb, lb, ob, m: (la / max(_factor(ma, m), 1e-300) + lb / max(_factor(mb, m), 1e-300),
                                                              oa / max(_factor(ma, m), 1e-300) + ob / max(_factor(mb, m), 1e-300))),
                "Your factor is exp(m − m_part): it grows what should shrink. The larger maximum belongs to the larger weights."),
    "average": (_merge_with(lambda ma, la, oa, mb, lb, ob, m: (la * _factor(ma, m) + lb * _factor(mb, m), (oa + ob) / 2)),
                "You averaged the two outputs. A part counts by its share of the exponentials, not by one half."),
}
_PARTS = [((1.0, 2.0, 5.0), (2.0, 1.5, 3.0)), ((3.0, 1.25, -2.0), (0.5, 4.0, 8.0)), ((-math.inf, 0.0, 0.0), (1.0, 1.0, 6.0)), ((2.0, 3.0, 4.0), (-math.inf, 0.0, 0.0))]
_NOTHING = (-math.inf, 0.0, 0.0)


def _three(value) -> list[float]:
    if not isinstance(value, tuple | list) or len(value) != 3 or not all(isinstance(x, int | float) for x in value):
        raise Wrong("Return three numbers, (m, l, o).")
    return list(value)


def _check_merge(answer) -> None:
    for parts in (_PARTS[:2], _PARTS):      # finite parts first: an inverted factor meets inf · 0 in an empty part
        expect_close([_three(call(answer, *pair)) for pair in parts], [merge(*pair) for pair in parts], atol=1e-9,
                     mistakes=[([wrong(*pair) for pair in parts], why) for wrong, why in _MERGE_MISTAKES.values()])
    m, l, o = _three(call(answer, _NOTHING, _NOTHING))  # noqa: E741
    if math.isnan(l) or math.isnan(o) or l != 0 or o != 0:
        raise Wrong("Two parts that saw nothing make a part that saw nothing: l = 0 and o = 0. Minus infinity minus minus infinity is no number.")


def _merge_naive(a: tuple, b: tuple) -> tuple:
    """Right but for the row that saw nothing, where −∞ − (−∞) is NaN."""
    m = max(a[0], b[0])
    from_a, from_b = (float(torch.exp(torch.tensor(part[0] - m, dtype=torch.float64))) for part in (a, b))
    return m, a[1] * from_a + b[1] * from_b, a[2] * from_a + b[2] * from_b


register(Exercise(
    id="0x09A.3", kind="build", minutes=8,
    prompt="Two workers each read half of a cache for one query. Each returns (m, l, o): its largest score, its sum of exp(s − m), and its sum of exp(s − m) · v, a "
           "number here. Write `merge(a, b)`, the (m, l, o) of both halves. A worker that saw no key returns (−math.inf, 0.0, 0.0).",
    hint="The common maximum is the larger one. Multiply l and o of each part by exp(its own m − the common m). Mind two workers that saw nothing.",
    check=_check_merge, solution=merge,
    wrong_answers={**{name: (wrong, words) for (name, (wrong, _)), words in zip(
        _MERGE_MISTAKES.items(), ("different units", "first part alone", "o was added", "grows what should shrink", "averaged"), strict=True)},
        "nothing": (_merge_naive, "saw nothing")},
    praise="Any number of workers, in any order: the same merge joins tiles, chunks and devices."))


def rows() -> tuple[list[float], list[float]]:
    passes = [4.0, 1.0, 3.0, 2.0, 0.0, 1.0]     # largest in the first tile
    fails = [0.0, 1.0, 3.0, 2.0, 4.0, 1.0]      # the maximum grows twice
    return passes, fails


def _gap(scores: list[float]) -> float:
    s, v = torch.tensor([scores], dtype=torch.float64), torch.arange(6.0, dtype=torch.float64)[:, None]
    every = torch.ones(1, 6, dtype=torch.bool)
    return float((tile_loop(s, every, v, rescale=False) - masked_softmax(s, every) @ v).abs().max())


def _check_rows(answer) -> None:
    got = call(answer)
    if not isinstance(got, tuple | list) or len(got) != 2 or not all(isinstance(r, tuple | list) and len(r) == 6 for r in got):
        raise Wrong("Return two rows of six scores each: one that passes, one that fails.")
    passes, fails = ([float(x) if isinstance(x, int | float) else math.nan for x in r] for r in got)
    if not all(map(math.isfinite, passes + fails)):
        raise Wrong("Finite scores, please: the loop is wrong without any infinity.")
    if len(set(passes)) < 4:
        raise Wrong("Give the passing row at least four different scores: a flat row passes every test and tests nothing.")
    if _gap(passes) > 1e-9:
        raise Wrong(f"Your first row exposes the fault: its output is off by {_gap(passes):.3f}. In which tile must the maximum stand so that nothing has to be rescaled?")
    if _gap(fails) < 0.1:
        raise Wrong(f"Your second row moves the output by {_gap(fails):.3f}, less than 0.1. What must happen to the maximum in a later tile?")


register(Exercise(
    id="0x09A.4", kind="break", minutes=5,
    prompt="A tile loop over tiles of 2 keys forgets the factor exp(m − m′). Values are 0, 1, …, 5. Write `rows()`: two rows of six scores. With the first, of at least four different scores, "
           "the faulty loop still equals softmax to nine digits; with the second its output is off by at least 0.1.",
    hint="The factor is 1 as long as the maximum does not grow.", check=_check_rows, solution=rows,
    wrong_answers={"swapped": (lambda: rows()[::-1], "first row exposes"), "twice": (lambda: (rows()[0], rows()[0]), "second row moves"),
                   "flat": (lambda: ([1.0] * 6, rows()[1]), "four different"), "infinite": (lambda: ([math.inf] * 6, rows()[1]), "Finite"),
                   "short": (lambda: ([1.0], [2.0]), "six scores")},
    praise="A test whose largest score comes first proves nothing about the factor. Put it last."))
