"""Exercises of 0x07: what a table costs, which rows training reaches, how a row collects its gradient, and a table that fools three checks."""

from __future__ import annotations

import torch

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x07.1", kind="recall", minutes=3,
    prompt="A position table has 1,024 rows of width 1,280, in float32. How many MiB do the weights, their dense gradient and Adam's two moments take together?",
    hint="Four tensors of one shape, four bytes a number. 1 MiB is 2^20 bytes.", solution=20.0,
    check=lambda answer: expect_close(answer, 20.0, atol=0.01, mistakes=[
        (5.0, "That is the weights alone. The gradient and both moments have the same shape."),
        (10.0, "You counted two tensors of the four: weights, gradient, first moment, second moment."),
        (15.0, "You counted three tensors. Adam keeps two moments a number."),
        (20.97, "Those are millions of bytes. 1 MiB is 2^20 = 1,048,576 bytes."),
        (20971520, "Those are bytes. Divide by 2^20 for MiB."),
        (1310720, "That is the number of parameters. Four bytes each, four tensors, then divide by 2^20."),
        (5242880, "You have the numbers of all four tensors, not yet their bytes in MiB.")]),
    wrong_answers={"weights": (5.0, "weights alone"), "two": (10.0, "two tensors"), "three": (15.0, "three tensors"), "megabytes": (20.97, "millions"),
                   "bytes": (20_971_520, "Those are bytes"),
                   "parameters": (1_310_720, "number of parameters"), "numbers": (5_242_880, "not yet their bytes")},
    praise="1,310,720 numbers of 4 bytes are 5 MiB, and there are four such tensors."))


def support(lengths: list[int], rows: int) -> list[int]:
    return [sum(length > r for length in lengths) for r in range(rows)]


def _support_fence(lengths: list[int], rows: int) -> list[int]:
    return [sum(length >= r for length in lengths) for r in range(rows)]


def _support_exact(lengths: list[int], rows: int) -> list[int]:
    return [lengths.count(r) for r in range(rows)]


def _support_last(lengths: list[int], rows: int) -> list[int]:
    return [sum(length == r + 1 for length in lengths) for r in range(rows)]


def _support_below(lengths: list[int], rows: int) -> list[int]:
    return [sum(length <= r for length in lengths) for r in range(rows)]


def _support_none(lengths: list[int], rows: int) -> list[int]:
    return [0] * rows


def _support_uncut(lengths: list[int], rows: int) -> list[int]:
    return [sum(length > r for length in lengths) for r in range(max(lengths))]


def _support_dropped(lengths: list[int], rows: int) -> list[int]:
    return support([length for length in lengths if length <= rows], rows)


_SUPPORT_MISTAKES = [
    (_support_none, "You left every row at 0. Row r is reached by each text that is longer than r."),
    (_support_uncut, "You gave one count for each position of the longest text. The table decides how many rows there are."),
    (_support_dropped, "You left out the texts that are longer than the table. Such a text is cut, and fills every row."),
    (_support_fence, "You let a text of length r reach row r. Positions count from 0: its last token stands on row r − 1."),
    (_support_exact, "You counted the texts of exactly that length. A text reaches every row up to its last token."),
    (_support_last, "You counted only the texts that end on the row. The longer ones pass over it too."),
    (_support_below, "You counted the texts that do not reach the row. Turn the comparison around."),
]


def _check_support(answer) -> None:
    for lengths, rows in (([2, 5, 5, 3, 7], 6), ([1, 4, 4], 9)):
        want = support(lengths, rows)
        expect_close(call(answer, lengths, rows), want,
                     mistakes=[(wrong(lengths, rows), why) for wrong, why in _SUPPORT_MISTAKES if wrong(lengths, rows) != want])


register(Exercise(
    id="0x07.2", kind="build", minutes=4,
    prompt="Write `support(lengths, rows)`: a list with, for each row of the table, the number of texts that put a token on it.",
    hint="A text of length L has tokens on rows 0 to L − 1. A text may be longer than the table.",
    check=_check_support, solution=support,
    wrong_answers={"fence": (_support_fence, "from 0"), "exact": (_support_exact, "exactly that length"), "last": (_support_last, "pass over"),
                   "below": (_support_below, "do not reach"), "starter": (_support_none, "every row at 0"),
                   "uncut": (_support_uncut, "table decides"), "dropped": (_support_dropped, "longer than the table")}))


def table_gradient(upstream: list[list[list[float]]], ids: list[list[int]], rows: int) -> list[list[float]]:
    gradient = [[0.0] * len(upstream[0][0]) for _ in range(rows)]
    for row_ids, tokens in zip(ids, upstream):
        for r, token in zip(row_ids, tokens):
            for d, value in enumerate(token):
                gradient[r][d] += value
    return gradient


def _gradient_with(write):
    def wrong(upstream, ids, rows):
        gradient, visits = torch.zeros(rows, len(upstream[0][0]), dtype=torch.float64), torch.zeros(rows, 1, dtype=torch.float64)
        for row_ids, tokens in zip(ids, torch.tensor(upstream, dtype=torch.float64)):
            for r, token in zip(row_ids, tokens):
                write(gradient, visits, r, token)
        return (gradient / visits.clamp_min(1) if write is _average else gradient).tolist()
    return wrong


def _overwrite(gradient, visits, r, token):
    gradient[r] = token


def _average(gradient, visits, r, token):
    gradient[r] += token
    visits[r] += 1


def _keep_first(gradient, visits, r, token):
    if not visits[r]:
        gradient[r] = token
    visits[r] += 1


def _count(gradient, visits, r, token):
    gradient[r] += 1


_gradient_first, _gradient_count = _gradient_with(_keep_first), _gradient_with(_count)
_gradient_last, _gradient_mean = _gradient_with(_overwrite), _gradient_with(_average)


def _gradient_one_sequence(upstream, ids, rows):
    return table_gradient(upstream[:1], ids[:1], rows)


def _gradient_by_column(upstream, ids, rows):
    return table_gradient(upstream, [list(range(len(row))) for row in ids], rows)


def _gradient_none(upstream, ids, rows):
    return [[0.0] * len(upstream[0][0]) for _ in range(rows)]


def _gradient_one_list(upstream, ids, rows):
    whole = [sum(values) for values in zip(*(token for tokens in upstream for token in tokens))]
    return [whole] * rows


def _gradient_descent(upstream, ids, rows):
    return [[-value for value in row] for row in table_gradient(upstream, ids, rows)]


def _gradient_batch_mean(upstream, ids, rows):
    return [[value / len(upstream) for value in row] for row in table_gradient(upstream, ids, rows)]


_GRADIENT_MISTAKES = [
    (_gradient_none, "You left every row at 0. Go through the tokens, and add each one's gradient to the row ids[b][s]."),
    (_gradient_first, "You kept the first token of each row only. Ids that repeat add up."),
    (_gradient_count, "You counted the visits. Add the token's upstream gradient, not 1."),
    (_gradient_one_list, "Every row holds the sum of all tokens. If you wrote [[0.0] * D] * rows, all rows are one list: make a new one for each."),
    (_gradient_descent, "You turned the sign. This is the gradient; the optimizer subtracts it later."),
    (_gradient_batch_mean, "You divided by the number of sequences. The chain rule sums; a loss that averages has done so in the upstream gradient already."),
    (_gradient_last, "A later token overwrote an earlier one. Ids that repeat add up: use +=."),
    (_gradient_mean, "You divided by the number of visits. The chain rule sums; a loss that averages has done so in the upstream gradient already."),
    (_gradient_one_sequence, "You used the first sequence only. The sum runs over the batch as well."),
    (_gradient_by_column, "You used the column as the row. The address is ids[b][s], whatever the column."),
]


def _check_gradient(answer) -> None:
    for ids, rows in (([[0, 1, 1], [3, 0, 4]], 6), ([[2, 2], [2, 0]], 3)):
        upstream = [[[float(5 * b + 2 * s + 1), float(b - s)] for s in range(len(ids[0]))] for b in range(2)]
        expect_close(call(answer, upstream, ids, rows), table_gradient(upstream, ids, rows), atol=1e-9,
                     mistakes=[(wrong(upstream, ids, rows), why) for wrong, why in _GRADIENT_MISTAKES])


register(Exercise(
    id="0x07.3", kind="build", minutes=8,
    prompt="Write `table_gradient(upstream, ids, rows)`: upstream is a nested list [B][n][D], ids is [B][n]; return the gradient of the table as a "
           "list of `rows` lists of D numbers.",
    hint="Begin with zeros. Every token adds its upstream gradient to the row that it read.",
    check=_check_gradient, solution=table_gradient,
    wrong_answers={"last": (_gradient_last, "overwrote"), "mean": (_gradient_mean, "number of visits"), "one": (_gradient_one_sequence, "first sequence"),
                   "column": (_gradient_by_column, "column as the row"), "starter": (_gradient_none, "every row at 0"),
                   "first": (_gradient_first, "first token"), "count": (_gradient_count, "counted the visits"), "one list": (_gradient_one_list, "one list"),
                   "sign": (_gradient_descent, "turned the sign"), "batch mean": (_gradient_batch_mean, "number of sequences")}))


def impostor(weight: torch.Tensor, rows: int) -> torch.Tensor:
    added = weight[: rows - len(weight)]         # the first rows once more
    return torch.cat((weight, added))


def _check_impostor(answer) -> None:
    old, rows = torch.linspace(-1.0, 2.0, 30).reshape(6, 5).sin(), 9
    got = call(answer, old.clone(), rows)
    if not isinstance(got, torch.Tensor) or not got.dtype.is_floating_point:
        raise Wrong("Return a floating-point tensor [rows, D].")
    if got.shape != (rows, 5):
        raise Wrong(f"The first check caught you: shape {list(got.shape)}, expected {[rows, 5]}.")
    if not torch.equal(got[:6].float(), old):
        raise Wrong("The second check caught you: an old row has changed. Leave the prefix alone, bit for bit.")
    norms, allowed = got.norm(dim=1), old.norm(dim=1)
    if not bool(((norms >= allowed.min()) & (norms <= allowed.max())).all()):
        raise Wrong("The third check caught you: a new row is shorter or longer than every old one, as zeros and plain noise are.")
    if torch.unique(got, dim=0).shape[0] == rows:
        raise Wrong("All three checks pass, but all nine positions have different rows. Make two of them indistinguishable.")


def _scaled_noise(weight: torch.Tensor, rows: int) -> torch.Tensor:
    noise = torch.randn(rows - len(weight), weight.shape[1], generator=torch.Generator().manual_seed(0))
    return torch.cat((weight, noise / noise.norm(dim=1, keepdim=True) * weight.norm(dim=1).median()))


register(Exercise(
    id="0x07.4", kind="break", minutes=6,
    prompt="A loader looks at an enlarged table and checks three things: the shape; the old rows, bit for bit; and that every new row's norm lies "
           "between the smallest and the largest old norm, so that zeros and wild noise are noticed. Write `impostor(weight, rows)`: a table that passes all "
           "three, and in which two positions cannot be told apart.",
    hint="Which vectors are certain to have the norm of an old row?", check=_check_impostor, solution=impostor,
    wrong_answers={"zeros": (lambda w, n: torch.cat((w, torch.zeros(n - len(w), w.shape[1]))), "third check"),
                   "honest": (_scaled_noise, "different rows"), "old": (lambda w, n: w, "first check"),
                   "stretched": (lambda w, n: torch.nn.functional.interpolate(w.T[None], size=n, mode="linear")[0].T, "second check")},
    praise="Each copied row alone looks trained. Comparing rows would expose the copy; that no example ever stood there, only the provenance says."))
