"""Exercises of 0x09B: rows of a table, the compact schedule, a table's gradient, and a key table that nobody can see."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from positionlib.attention import attend
from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register
from positionlib.geometry import AttentionGeometry
from positionlib.rules import Clip
from positionlib.terms import Relation

register(Exercise(
    id="0x09B.1", kind="recall", minutes=3,
    prompt="k = 4, so a table has 9 rows. A query at position 10 reads keys at positions 3, 8, 10 and 17. Which rows does it use, key minus query? Answer with a list of four numbers.",
    hint="Subtract the query, clip to −4..4, add 4.", solution=[0, 2, 4, 8],
    check=lambda answer: expect_close(answer, [0, 2, 4, 8], mistakes=[
        ([8, 6, 4, 0], "That is query minus key: past and future have changed places. A key before the query has a row below k."),
        ([-3, 2, 4, 11], "You shifted and did not clip: row −3 would be read from the end of the table, and row 11 does not exist."),
        ([-4, -2, 0, 4], "Those are the clipped offsets. The table row is the offset plus k, so that rows count from 0."),
        ([-7, -2, 0, 7], "Those are the raw offsets: clip them to −4..4, then add 4."),
        ([0, 3, 5, 8], "The middle row, k = 4, is offset 0; did you count rows from 1 on one side?")]),
    wrong_answers={"reversed": ([8, 6, 4, 0], "query minus key"), "no clip": ([-3, 2, 4, 11], "did not clip"), "no shift": ([-4, -2, 0, 4], "plus k"),
                   "raw": ([-7, -2, 0, 7], "raw offsets"), "from one": ([0, 3, 5, 8], "middle row")},
    praise="Offsets −7, −2, 0 and 7: both far keys end in border rows."))


def key_scores(q: Tensor, table: Tensor, classes: Tensor) -> Tensor:
    by_class = q @ table.T                 # [Q, C]
    return by_class.gather(1, classes)     # [Q, K]


def _direct(q: Tensor, table: Tensor, classes: Tensor) -> Tensor:
    return torch.einsum("id,ijd->ij", q, table[classes])


class _Sizes(TorchDispatchMode):
    """The largest tensor that is computed."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def _check_key_scores(answer) -> None:
    generator = torch.Generator().manual_seed(3)
    q, table = torch.randn(6, 8, generator=generator).double(), torch.randn(5, 8, generator=generator).double()
    classes = Clip(2).classes(torch.arange(6) - torch.arange(6)[:, None])
    want = key_scores(q, table, classes)
    sizes = _Sizes()

    def watched(*arguments: Tensor) -> Tensor:
        with sizes:  # inside the call, which copies its arguments first
            return answer(*arguments)

    got = call(watched if callable(answer) else answer, q, table, classes)
    expect_close(got, want, atol=1e-9, mistakes=[
        (want / math.sqrt(8), "You divided by √d. Asked is the raw score q·a; content and relation are scaled together later."),
        (want.T, "Your result is transposed: queries in rows, keys in columns."),
        (_direct(q, table, 4 - classes), "You read the table from its end: past and future have changed places."),
        (q @ table[classes[0]].T, "You used the classes of the first query for every query.")])
    if sizes.largest >= q.numel() * classes.shape[1]:
        raise Wrong(f"The scores are right, but your function computed a tensor of {sizes.largest} numbers, Q·K·d = {q.numel() * classes.shape[1]}: "
                    "a vector for every pair. Score every class once, [Q, C], and let each pair pick its own.")


register(Exercise(
    id="0x09B.2", kind="build", minutes=6,
    prompt="Write `key_scores(q, table, classes)`: the unscaled relation scores of one head from q [Q, d], table [C, d] and class ids [Q, K]. Nothing of size Q·K·d may be computed.",
    hint="q @ table.T has one column a class. `gather` along it.", check=_check_key_scores, solution=key_scores,
    wrong_answers={"direct": (_direct, "a vector for every pair"), "scaled": (lambda q, t, c: key_scores(q, t, c) / math.sqrt(8), "divided by √d"),
                   "transposed": (lambda q, t, c: key_scores(q, t, c).T, "transposed"), "reversed": (lambda q, t, c: key_scores(q, t, 4 - c), "from its end"),
                   "first": (lambda q, t, c: q @ t[c[0]].T, "first query")},
    praise="2k+1 products a query instead of K: the table is short."))


def value_gradient(alpha: list, g: list, classes: list, rows: int) -> list[list[float]]:
    grad = [[0.0] * len(g[0]) for _ in range(rows)]
    for i, line in enumerate(classes):
        for j, r in enumerate(line):
            for c, x in enumerate(g[i]):
                grad[r][c] += alpha[i][j] * x
    return grad


def _gradient_with(weight, vector=lambda g, i, j: g[i]):
    """A gradient whose pair (i, j) of class r adds ``weight`` times ``vector``."""
    def wrong(alpha, g, classes, rows):
        grad = [[0.0] * len(g[0]) for _ in range(rows)]
        counts = [sum(line.count(r) for line in classes) for r in range(rows)]
        for i, line in enumerate(classes):
            for j, r in enumerate(line):
                for c, x in enumerate(vector(g, i, j)):
                    grad[r][c] += weight(alpha[i][j], counts[r], len(g[0])) * x
        return grad
    return wrong


def _last_only(alpha, g, classes, rows):
    grad = [[0.0] * len(g[0]) for _ in range(rows)]
    for i, line in enumerate(classes):
        for j, r in enumerate(line):
            grad[r] = [alpha[i][j] * x for x in g[i]]
    return grad


_GRADIENT_MISTAKES = {
    "count": (_gradient_with(lambda a, n, d: 1.0), "You counted pairs. Each pair adds α_ij g_i: a key that is not attended to moves no row."),
    "mean": (_gradient_with(lambda a, n, d: a / n), "You averaged over the pairs of a class. Lookup backward is a sum: a row that many pairs use moves more."),
    "scaled": (_gradient_with(lambda a, n, d: a / math.sqrt(d)), "The factor 1/√d belongs to the key table, whose rows stand inside the scaled score. Values are not scaled."),
    "key row": (_gradient_with(lambda a, n, d: a, lambda g, i, j: g[j]), "You took the gradient of row j. Output i, not j, contains α_ij a_ij: the row is g_i."),
    "overwritten": (_last_only, "Each pair overwrote the one before it: use +=, since many pairs share a row."),
}


def _check_gradient(answer) -> None:
    alpha = [[0.5, 0.25, 0.25], [0.125, 0.5, 0.375], [0.25, 0.25, 0.5]]
    given = (alpha, [[1.0, 2.0, 0.0, -1.0], [3.0, 0.0, 1.0, 4.0], [-2.0, 5.0, 2.0, 0.5]], [[1, 2, 2], [0, 1, 2], [0, 0, 1]], 3)
    expect_close(call(answer, *given), value_gradient(*given), atol=1e-9, mistakes=[(wrong(*given), why) for wrong, why in _GRADIENT_MISTAKES.values()])


register(Exercise(
    id="0x09B.3", kind="build", minutes=8,
    prompt="Write `value_gradient(alpha, g, classes, rows)`: the gradient of the value table of one head, as a list of `rows` lists, from the weights [Q][K], the gradients of the "
           "outputs g [Q][d] and the class ids [Q][K]. All are lists.",
    hint="z_i contains α_ij times row u_ij. So pair (i, j) adds α_ij g_i to that row.", check=_check_gradient, solution=value_gradient,
    wrong_answers={name: (wrong, words) for (name, (wrong, _)), words in zip(
        _GRADIENT_MISTAKES.items(), ("counted pairs", "averaged", "belongs to the key table", "not j", "overwrote"), strict=True)}))


def unseen(rows: int, d: int) -> torch.Tensor:
    return torch.ones(rows, d)              # the same vector for every relation


def _check_unseen(answer) -> None:
    generator = torch.Generator().manual_seed(4)
    for rows, d in ((5, 4), (7, 6)):
        table = call(answer, rows, d)
        if not isinstance(table, Tensor) or not table.dtype.is_floating_point or table.shape != (rows, d):
            raise Wrong("Return a floating-point tensor [rows, d].")
        table = table.detach().double()
        if not bool(torch.isfinite(table).all()):
            raise Wrong("Finite numbers, please.")
        if float(table.abs().max()) < 0.1:
            raise Wrong("A table of zeros is no surprise: some entry must be 0.1 or larger.")
        q, k, v = torch.randn(3, 1, 2, 6, d, generator=generator).double()
        geometry = AttentionGeometry.encoder(6)
        relation = Relation(key_table=table, value_table=None, rule=Clip(rows // 2), sign="key_minus_query")
        gap = float((attend(q, k, v, relation, geometry) - attend(q, k, v, None, geometry)).abs().max())
        if gap > 1e-9:
            unread = " Border rows are read as soon as the sequence is longer than k." if bool((table[1:-1] == 0).all()) else ""
            raise Wrong(f"This table moves the output by {gap:.3f}: a query can tell its keys apart by it.{unread} What can be added to all scores of a row without a trace?")


register(Exercise(
    id="0x09B.4", kind="break", minutes=5,
    prompt="A test checks that a loaded key table changes the output. Write `unseen(rows, d)`: a key table with an entry of at least 0.1 that changes no output at all, whatever q, k and v.",
    hint="Softmax does not see what all scores of a row have in common.", check=_check_unseen, solution=unseen,
    wrong_answers={"zeros": (lambda r, d: torch.zeros(r, d), "no surprise"), "random": (lambda r, d: torch.linspace(0, 1, r * d).reshape(r, d), "tell its keys apart"),
                   "border": (lambda r, d: torch.cat((torch.ones(1, d), torch.zeros(r - 1, d))), "Border rows"),
                   "shape": (lambda r, d: torch.ones(d, r), "[rows, d]")},
    praise="Equal rows add q·c to every score of a query. Only differences between the rows of R^K are seen; of R^V every row is."))
