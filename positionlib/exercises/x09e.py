"""Exercises of 0x09E: a counter that gives a bug away, admission by hand, bytes of a bias, and a table that outwits a converter's probe."""

from __future__ import annotations

import numpy as np
import torch

from positionlib.exercises.answers import Wrong, call, expect_choice, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x09E.1", kind="recall", minutes=3,
    prompt="A causal T5 decoder has 1,000 keys in its cache and asks with one new query. The counters of the call say offset_min 0, offset_max 0, memory_length 0, "
           "bucket_max 0. All shapes are right. What happened? (a) the cache is empty  (b) the query was numbered 0  (c) the mask was dropped  (d) the table was transposed",
    hint="Which pairs may a causal query at its own position read, and which offsets have they?", solution="b",
    check=lambda answer: expect_choice(answer, "b", {
        "a": "The cache has its 1,000 rows: an empty one would be another shape. The query may read only key 0 of them.",
        "c": "Without a mask the query at 1,000 would still see offsets from −1,000: the range would be wide.",
        "d": "The offsets and buckets are made before the table is read. A transposed table leaves every range as it was."}),
    wrong_answers={"empty": ("a", "another shape"), "mask": ("c", "would be wide"), "table": ("d", "before the table is read")},
    praise="A local arange puts the one query at 0, where a causal rule lets it read key 0 alone."))


def decide(needs: set, has: set, fallback_has: set | None) -> tuple[str, set]:
    missing = needs - has
    if not missing:
        return "admitted", set()
    if fallback_has is not None and needs <= fallback_has:
        return "fallback", missing
    return "refused", missing


_CALLS = [({"p", "q"}, {"p", "q", "r"}, None), ({"p", "q"}, {"p"}, {"p", "q"}), ({"p", "q"}, {"p"}, None), ({"p", "q"}, {"r"}, {"p", "r"}), (set(), set(), None),
          ({"p", "q"}, {"p"}, {"q", "r"})]


def _trimmed(needs, has, fallback_has):
    return ("admitted", set()) if needs & has or not needs else ("refused", needs - has)


def _unasked(needs, has, fallback_has):
    missing = needs - has
    return ("admitted", set()) if not missing else ("fallback" if fallback_has is not None else "refused", missing)


def _backwards(needs, has, fallback_has):
    said, missing = decide(needs, has, fallback_has)
    return said, has - needs if missing else missing


def _silent(needs, has, fallback_has):
    said, missing = decide(needs, has, fallback_has)
    return said, missing if said == "refused" else set()


def _together(needs, has, fallback_has):
    return decide(needs, has, None if fallback_has is None else fallback_has | has)


def _alone(needs, has, fallback_has):
    return decide(needs, has, None)


def _exact(needs, has, fallback_has):
    return decide(needs, has, fallback_has) if needs == has or needs - has else ("refused", set())


_DECISIONS = {
    "starter": (lambda needs, has, fallback_has: ("admitted", set()), "You admit every call and ask nobody. First subtract what the backend has from what is needed."),
    "together": (_together, "You put the two backends together. One backend runs the whole call: the fallback must have every need itself."),
    "alone": (_alone, "You never ask the fallback. Where one is allowed and has every need, it runs the call."),
    "exact": (_exact, "You want needs and abilities to be equal. A backend may have more than the call needs."),
    "trimmed": (_trimmed, "You admitted a backend that has only a part of what is needed. The rest would be dropped: that is another model."),
    "unasked": (_unasked, "Your fallback was taken unasked. It may lack something too, and then the call is refused."),
    "backwards": (_backwards, "You subtracted the needs from what the backend has. Missing is what is needed and not there."),
    "silent": (_silent, "A fallback has a reason: name what the first backend lacked, or nobody can count why it was slow."),
}


def _plain(result) -> tuple[str, frozenset]:
    if not (isinstance(result, tuple) and len(result) == 2 and type(result[0]) is str and isinstance(result[1], (set, frozenset))):
        raise Wrong("Return a pair: one of 'admitted', 'fallback', 'refused', and the set of what is missing.")
    return result[0], frozenset(result[1])


def _check_decide(answer) -> None:
    got = [_plain(call(answer, *c)) for c in _CALLS]
    for wrong, why in _DECISIONS.values():
        if got == [_plain(wrong(*c)) for c in _CALLS]:
            raise Wrong(why)
    for c, have in zip(_CALLS, got):
        if have != (want := _plain(decide(*c))):
            raise Wrong(f"needs {sorted(c[0])}, has {sorted(c[1])}, fallback has {'nothing: there is none' if c[2] is None else sorted(c[2])}: "
                        f"you said {have[0]} with {sorted(have[1])} missing. Of the needs, {sorted(want[1])} are not in the backend.")


register(Exercise(
    id="0x09E.2", kind="build", minutes=8,
    prompt="Write `decide(needs, has, fallback_has)` for three sets of names, the last None where no fallback is allowed. Return ('admitted', set()), "
           "('fallback', missing) or ('refused', missing), where missing is what the first backend lacks.",
    hint="One set difference first. Then ask the fallback the same question.", check=_check_decide, solution=decide,
    wrong_answers={name: (wrong, why.split(".")[0][:40]) for name, (wrong, why) in _DECISIONS.items()}))


def held(heads: int, queries: int, keys: int, itemsize: int) -> tuple[int, int]:
    return heads * queries * keys * itemsize, heads * (queries + keys - 1) * itemsize


_HELD = {
    "starter": (lambda h, q, k, w: (0, 0), "Both are still 0. Count the numbers of each first, then multiply by `itemsize`."),
    "fence, two": (lambda h, q, k, w: (h * q * k * w, h * (q + k + 1) * w), "Two offsets too many: from 1 − Q to K − 1 there are Q + K − 1 of them."),
    "fence, short": (lambda h, q, k, w: (h * q * k * w, h * (q + k - 2) * w), "One offset is missing: 1 − Q and K − 1 both count, and so does 0."),
    "one line": (lambda h, q, k, w: (h * q * k * w, (q + k - 1) * w), "Your line is one for all heads. Each head has its own."),
    "fence": (lambda h, q, k, w: (h * q * k * w, h * (q + k) * w), "One offset too many: from 1 − Q to K − 1 there are Q + K − 1 of them."),
    "square": (lambda h, q, k, w: (h * k * k * w, h * (2 * k - 1) * w), "You took as many queries as keys. In a chunk of a prefill Q and K differ."),
    "keys only": (lambda h, q, k, w: (h * q * k * w, h * k * w), "Your line has one entry a key. The last query and the first one see other offsets of the same key."),
    "numbers": (lambda h, q, k, w: (h * q * k, h * (q + k - 1)), "Those are numbers. Each has `itemsize` bytes."),
    "one head": (lambda h, q, k, w: (q * k * w, (q + k - 1) * w), "The heads are missing: each has its own bias."),
    "swapped": (lambda h, q, k, w: held(h, q, k, w)[::-1], "You exchanged the two: pairs first, then the line."),
}


def _check_held(answer) -> None:
    arguments = [(6, 24, 80, 4), (2, 1, 50, 8), (3, 9, 9, 2)]
    got = [n for a in arguments for n in _pair(call(answer, *a))]
    expect_close(got, [n for a in arguments for n in held(*a)],
                 mistakes=[([n for a in arguments for n in wrong(*a)], why) for wrong, why in _HELD.values()])


def _pair(value) -> list:
    if not (isinstance(value, (tuple, list)) and len(value) == 2):
        raise Wrong("Return two numbers: bytes by pair, bytes of the line.")
    return list(value)


register(Exercise(
    id="0x09E.3", kind="build", minutes=6,
    prompt="Write `held(heads, queries, keys, itemsize)`: the bytes of an additive bias written out for all pairs, and of the line of offsets that serves the same call when "
           "queries and keys are runs of consecutive positions. Return both.",
    hint="How many different values has key minus query for Q queries and K keys in a row?", check=_check_held, solution=held,
    wrong_answers={name: (wrong, why.split(".")[0][:40]) for name, (wrong, why) in _HELD.items()}))


def _check_table(answer) -> None:
    if not isinstance(answer, (list, tuple, np.ndarray, torch.Tensor)):
        raise Wrong("Give the table itself: four rows of four numbers.")
    table = np.asarray(answer.detach() if isinstance(answer, torch.Tensor) else answer, dtype=np.float64) if not _ragged(answer) else np.zeros(0)
    if table.shape != (4, 4) or not np.isfinite(table).all():
        raise Wrong(f"Your table has shape {list(table.shape)}; the converter wants four rows of four finite numbers.")
    if np.array_equal(table, table.T):
        raise Wrong("Your table equals its transpose: nothing goes wrong when it is turned. Make two mirrored entries differ.")
    if not np.allclose(np.diag(table), np.diag(table.T)) or not np.isclose(table.sum(), table.T.sum()):
        raise Wrong("Diagonal and total should survive any transpose; look at your numbers again.")
    if not np.allclose(table.sum(0), table.sum(1)):
        raise Wrong("The converter's probe catches it: it compares the sum of each row with the sum recorded for that bucket. Make row r and column r sum alike.")


def _ragged(answer) -> bool:
    try:
        np.asarray(answer if not isinstance(answer, torch.Tensor) else answer.detach(), dtype=np.float64)
    except (TypeError, ValueError):
        return True
    return False


register(Exercise(
    id="0x09E.4", kind="break", minutes=8,
    prompt="A converter loads tables of 4 buckets and 4 heads. It checks the shape, the diagonal, the total, and the sum of each bucket's row against sums that the source recorded. "
           "Give a 4 by 4 table that it accepts when it is loaded transposed, although the model is then another one.",
    hint="The transpose has the column sums as its row sums. Which tables have both alike, and are not symmetric? Think of a cycle of four.", check=_check_table,
    solution=[[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]],
    wrong_answers={"symmetric": ([[1, 2, 0, 0], [2, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], "equals its transpose"),
                   "rows": ([[1, 2, 3, 4]] * 4, "probe catches it"), "shape": ([[1, 2], [3, 4]], "shape [2, 2]"), "ragged": ([[1, 2], [3]], "four finite numbers")},
    praise="Sums are not entries. Compare recorded entries at named (bucket, head) pairs."))
