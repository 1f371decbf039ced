"""Exercises of 0x02: what a moved cache keeps, naming what changed, a sixth route, and rows that hide every route on the weights."""

from __future__ import annotations

import math

import torch

from positionlib.exercises.answers import Wrong, call, expect_choice, expect_close
from positionlib.exercises.registry import Exercise, register
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.alibi import ALiBi
from positionlib.routes import run

# 1 --- which cached keys are stale?

register(Exercise(
    id="0x02.1", kind="recall", minutes=4,
    prompt="The first layer's keys of 100 tokens were cached at positions 0 to 99. A prompt of 40 tokens is put before them, so they now stand at 40 to 139. "
           "Each of four models has one route: (m) causal mask, (r) rows added to the state, (b) score bias by distance, (t) rotation of queries and "
           "keys. Of which models must these keys be made anew, or corrected? a: none, b: r, c: r and t, d: all four.",
    hint="Which routes have a mark under K when the origin moves? That the scores of one run stay does not help a key that was stored before.",
    check=lambda answer: expect_choice(answer, "c", {
        "a": "Rows change X, and K is computed from X. A stored K holds its old position.",
        "b": "Do not forget rotation. Scores stay only when queries and keys turn together; a stored key has not turned with the new queries.",
        "d": "A mask and a bias never touch K: they meet the keys later, at the scores and the weights."}),
    solution="c", wrong_answers={"none": ("a", "K is computed from X"), "rows": ("b", "forget rotation"), "all": ("d", "never touch K")},
    praise="Rows and rotation are inside K. A rotated key can be turned by the missing 40 positions, a key made from added rows corrected by the "
           "projected difference of the rows, unless a normalisation stands between."))


# 2 --- name what changed

def changed(before: dict, after: dict) -> list[str]:
    return [name for name in before
            if before[name].shape != after[name].shape
            or not torch.allclose(before[name], after[name], rtol=0, atol=1e-9)]


def _exact(before, after):
    return [name for name in before if before[name].shape != after[name].shape or not torch.equal(before[name], after[name])]


def _shapes(before, after):
    return [name for name in before if before[name].shape != after[name].shape]


def _sums(before, after):
    return [name for name in before if before[name].shape != after[name].shape or abs(float(before[name].sum() - after[name].sum())) > 1e-9]


def _same(before, after):
    return [name for name in before if name not in changed(before, after)]


def _sorted(before, after):
    return sorted(changed(before, after))


def _no_shape(before, after):
    return [name for name in before if before[name].shape == after[name].shape
            and not torch.allclose(before[name], after[name], rtol=0, atol=1e-9)]


def _dumps():
    ramp = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    before = {"X": ramp, "V": ramp + 1, "K": ramp * 2, "B": ramp, "A": ramp / 7}
    after = {"X": ramp + 1e-13, "V": (ramp + 1).flip(0), "K": ramp * 2, "B": ramp[None].expand(2, 2, 3), "A": ramp / 7 + 0.25}
    return before, after


def _check_changed(answer) -> None:
    before, after = _dumps()
    got = call(answer, before, after)
    if not isinstance(got, (list, tuple)) or not all(type(name) is str for name in got):
        raise Wrong("Return a list of names, such as ['Q', 'K'].")
    got = list(got)
    mistakes = [(_same, "Those are the tensors that stayed. Name the others."),
                (_exact, "X differs by 1e-13 only: that is rounding. Allow an absolute difference of 1e-9."),
                (_shapes, "You looked at shapes alone. A coordinate changes values and keeps shapes."),
                (_sums, "You compared sums. The rows of V changed places, and its sum is the same."),
                (_no_shape, "B came back with another shape, [2, 2, 3]: that is a change too."),
                (_sorted, "The names are right, the order is not: keep the order of the run, so that the first name is where the change came in.")]
    want = changed(before, after)
    for wrong, why in mistakes:
        if got == wrong(before, after) != want:
            raise Wrong(why)
    if got != want:
        missing, extra = [n for n in want if n not in got], [n for n in got if n not in want]
        raise Wrong(f"Missing: {', '.join(missing) or 'none'}; too many: {', '.join(extra) or 'none'}. Compare two of them by hand.")


register(Exercise(
    id="0x02.2", kind="build", minutes=8,
    prompt="Write `changed(before, after)`: two dicts of float64 tensors with the same keys. Return the names whose tensors differ by more than 1e-9 "
           "anywhere, or in shape, as a list in the order of `before`.",
    hint="`torch.allclose(a, b, rtol=0, atol=1e-9)` compares values. Look at the shapes first: it broadcasts.",
    check=_check_changed, solution=changed,
    wrong_answers={"exact": (_exact, "that is rounding"), "shapes": (_shapes, "shapes alone"), "sums": (_sums, "compared sums"),
                   "stayed": (_same, "tensors that stayed"), "sorted": (_sorted, "order is not"), "no shape": (_no_shape, "another shape")},
    praise="Shapes first, then values, in the order of the run: the first name is the place of entry."))


# 3 --- a sixth route

def sixth_route(C, P, W_Q, W_K, W_V):
    Q, K, V = (C + P) @ W_Q, (C + P) @ W_K, C @ W_V
    S = Q @ K.T / math.sqrt(Q.shape[1])
    return torch.softmax(S, 1) @ V


def _attend(q, k, v, scale=None):
    return torch.softmax(q @ k.T * (1 / math.sqrt(q.shape[1]) if scale is None else scale), 1) @ v


def _everywhere(C, P, W_Q, W_K, W_V):
    return _attend((C + P) @ W_Q, (C + P) @ W_K, (C + P) @ W_V)


def _after(C, P, W_Q, W_K, W_V):
    return _attend(C @ W_Q + P, C @ W_K + P, C @ W_V)


def _queries(C, P, W_Q, W_K, W_V):
    return _attend((C + P) @ W_Q, C @ W_K, C @ W_V)


def _nowhere(C, P, W_Q, W_K, W_V):
    return _attend(C @ W_Q, C @ W_K, C @ W_V)


def _unscaled(C, P, W_Q, W_K, W_V):
    return _attend((C + P) @ W_Q, (C + P) @ W_K, C @ W_V, scale=1.0)


_SIXTH = [(_everywhere, "Your values carry the rows too: that is the route of fixed rows. Here V sees the content alone."),
          (_after, "You added the rows after the projection. W_Q and W_K must see C + P."),
          (_queries, "Only your queries got the rows. Keys get them as well."),
          (_nowhere, "P has no effect: this is the run on content alone."),
          (_unscaled, "The score is not divided by the root of the width of Q.")]


def _check_sixth(answer) -> None:
    generator = torch.Generator().manual_seed(6)
    given = [torch.randn(size, generator=generator, dtype=torch.float64) for size in ((5, 3), (5, 3), (3, 3), (3, 3), (3, 3))]
    expect_close(call(answer, *given), sixth_route(*given), atol=1e-9, mistakes=[(wrong(*given), why) for wrong, why in _SIXTH])


register(Exercise(
    id="0x02.3", kind="build", minutes=8,
    prompt="DETR adds position rows P to what queries and keys are computed from, and not to the values. Write `sixth_route(C, P, W_Q, W_K, W_V)`: the "
           "output Y of one unmasked head, with the score divided by the root of Q's width.",
    hint="Two of the three projections see C + P.", check=_check_sixth, solution=sixth_route,
    wrong_answers={"everywhere": (_everywhere, "values carry"), "after": (_after, "after the projection"), "queries": (_queries, "Only your queries"),
                   "nowhere": (_nowhere, "no effect"), "unscaled": (_unscaled, "not divided")}))


# 4 --- rows that hide the routes on the weights

def silent_rows():
    return [[1.0, 0.0], [1.0, 2.0], [1.0, 0.0], [1.0, 5.0]]


def _check_silent(answer) -> None:
    got = call(answer)
    try:
        rows = torch.as_tensor(got, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise Wrong("Return four rows of two numbers, as a list of lists.") from None
    if rows.shape != (4, 2) or not bool(torch.isfinite(rows).all()):
        raise Wrong(f"Return four rows of two finite numbers; got shape {list(rows.shape)}.")
    if bool((rows == rows[0]).all()):
        raise Wrong("All four rows are equal: that is the page's own example. Let at least two rows differ.")
    if not bool(rows.abs().sum() > 0) or not bool(rows[:, 0].abs().max() > 0):
        raise Wrong("The output is zero everywhere. Let it be something: channel 0 must not vanish.")
    eye, value = torch.eye(2, dtype=torch.float64), torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    full, causal = AttentionGeometry.encoder(4), AttentionGeometry.causal_self(4)
    plain = run(rows[None], (eye, eye, value), None, full, scale=math.log(2))
    runs = {"mask": run(rows[None], (eye, eye, value), None, causal, scale=math.log(2)),
            "bias": run(rows[None], (eye, eye, value), ALiBi(1, form="symmetric", slopes=[math.log(2)])(full), full, scale=math.log(2))}
    for name, other in runs.items():
        gap = float((plain["Y"] - other["Y"]).abs().max())
        if gap > 1e-9:
            raise Wrong(f"The {name} changes your output by {gap:.3g}. Weights choose between values: which channel do the values come from?")


register(Exercise(
    id="0x02.4", kind="break", minutes=6,
    prompt="A test wants to prove that a layer knows positions: it compares the outputs with and without the causal mask, and with and without the score "
           "bias. Queries and keys are the rows themselves, the values are channel 0 of the rows. Write `silent_rows()`: four rows of two numbers, not all equal and "
           "with a channel 0 that is not all zero, for which both comparisons see nothing.",
    hint="The weights of a row add up to 1. When does a weighted mean not depend on its weights?", check=_check_silent, solution=silent_rows,
    wrong_answers={"equal": (lambda: [[1.0, 0.0]] * 4, "All four rows are equal"), "zero": (lambda: [[0.0, 1.0], [0.0, 2.0], [0.0, 0.0], [0.0, 1.0]], "zero everywhere"),
                   "channel": (lambda: [[0.0, 1.0], [2.0, 1.0], [1.0, 1.0], [5.0, 1.0]], "The mask changes"),
                   "shape": (lambda: [[1.0, 0.0], [1.0, 2.0]], "four rows of two")},
    praise="Equal values hide every route that acts on the weights alone. Compare the weights, or the first tensor that a route can change."))
