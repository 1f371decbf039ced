"""Exercises of 0x08A: rows that training reaches, numbers in a packed row, where chunks start, and a report that looks covered."""

from __future__ import annotations

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x08A.1", kind="recall", minutes=2,
    prompt="Documents of 5, 3 and 4 tokens are packed into one row of 12, each numbered from 0. The table has 16 rows. How many of its rows does this row of training read?",
    hint="The longest document decides.", solution=5,
    check=lambda answer: expect_close(answer, 5, mistakes=[
        (12, "That is the packed length: right if the numbers continued through the row."),
        (16, "A row that is allocated is not yet read."), (4, "Row 4 is the last one read. Counting from 0, that makes one more."),
        (3, "That counts documents."), (11, "Those are the rows that stay unread."), (7, "The packed row has 12 tokens, but rows are shared by documents: nothing is left over to add.")]),
    wrong_answers={"continued": (12, "packed length"), "allocated": (16, "allocated"), "last": (4, "one more"), "documents": (3, "counts documents"), "rest": (11, "stay unread"), "sum": (7, "shared")}))


def packed_ids(lengths: list[int], reset: bool) -> list[int]:
    return [i for n in lengths for i in range(n)] if reset else list(range(sum(lengths)))


def _swapped(lengths, reset):
    return packed_ids(lengths, not reset)


def _always_reset(lengths, reset):
    return packed_ids(lengths, True)


def _from_one(lengths, reset):
    return [i + 1 for i in packed_ids(lengths, reset)]


def _repeat_last(lengths, reset):
    """Each document starts where the one before ended, on the same number."""
    out = []
    for n in lengths:
        first = out[-1] if out and not reset else 0
        out += range(first, first + n)
    return out


def _which(lengths, reset):
    return [d for d, n in enumerate(lengths) for _ in range(n)]


def _check_packed(answer) -> None:
    for lengths, reset in (([2, 4, 1], True), ([2, 4, 1], False)):
        expect_close(call(answer, lengths, reset), packed_ids(lengths, reset), mistakes=[
            ([], "The list is empty: give one position for each token."),
            (_which(lengths, reset), "Those are the documents' numbers, not the tokens' positions."),
            (_from_one(lengths, reset), "Positions count from 0."),
            *([] if reset else [(_repeat_last(lengths, reset), "Two tokens share a position where documents meet: the next one starts one further on.")]),
            (_swapped(lengths, reset), "You continue through the row where each document should start at 0." if reset
             else "You reset in each document where the numbers should continue.")])


register(Exercise(
    id="0x08A.2", kind="build", minutes=4,
    prompt="Write `packed_ids(lengths, reset)`: the list of positions of documents packed into one row, from 0 in each document if `reset`, else from 0 through the row.",
    hint="One loop over lengths for reset, one range for the other.", check=_check_packed, solution=packed_ids,
    wrong_answers={"swapped": (_swapped, "should start at 0"), "always reset": (_always_reset, "should continue"), "from one": (_from_one, "count from 0"), "fence": (_repeat_last, "share a position"),
                   "owner": (_which, "documents' numbers"), "empty": (lambda lengths, reset: [], "is empty")}))


def chunk_starts(lengths: list[int], accepted: int) -> list[int]:
    starts = []
    for n in lengths:
        starts.append(accepted)
        accepted += n
    return starts


def _restart(lengths, accepted):
    return [0 for _ in lengths]


def _from_zero(lengths, accepted):
    return chunk_starts(lengths, 0)


def _ends(lengths, accepted):
    return [s + n for s, n in zip(chunk_starts(lengths, accepted), lengths)]


def _double(lengths, accepted):
    return [2 * s - accepted for s in chunk_starts(lengths, accepted)]


def _unmoved(lengths, accepted):
    return [accepted for _ in lengths]


def _fence(lengths, accepted):
    return [s + 1 for s in chunk_starts(lengths, accepted)]


def _last_read(lengths, accepted):
    return [s - 1 for s in chunk_starts(lengths, accepted)]


def _lengths(lengths, accepted):
    return list(lengths)


def _check_starts(answer) -> None:
    lengths, accepted = [3, 5, 2], 7
    expect_close(call(answer, lengths, accepted), chunk_starts(lengths, accepted), mistakes=[
        ([], "The list is empty: give one start for each chunk."),
        (_restart(lengths, accepted), "Each chunk restarts. It continues after everything that is accepted so far."),
        (_from_zero(lengths, accepted), "You count from the first new token. The accepted prefix has positions too."),
        (_ends(lengths, accepted), "Those are where the chunks end. A chunk starts before it adds its own length."),
        (_unmoved(lengths, accepted), "Every chunk starts at the same place. A chunk that is read is accepted too: the start moves on by its length."),
        (_fence(lengths, accepted), "One too many: after k tokens at 0 to k − 1 the next one stands at k."),
        (_last_read(lengths, accepted), "Those are the last positions already taken (one too few): the chunk starts one further on."),
        (_lengths(lengths, accepted), "Those are the chunks' lengths, not their starts."),
        (_double(lengths, accepted), "What is done is counted twice: the start has moved already, do not add the loop's own sum.")])


register(Exercise(
    id="0x08A.3", kind="build", minutes=5,
    prompt="Write `chunk_starts(lengths, accepted)`: the first position of each chunk of a prompt that continues a prefix of `accepted` tokens.",
    hint="Note the start, then add the length.", check=_check_starts, solution=chunk_starts,
    wrong_answers={"restart": (_restart, "restarts"), "prefix": (_from_zero, "has positions too"), "ends": (_ends, "where the chunks end"), "double": (_double, "twice"),
                   "unmoved": (_unmoved, "moves on"), "fence": (_fence, "One too many"), "taken": (_last_read, "already taken"), "lengths": (_lengths, "not their starts"),
                   "empty": (lambda lengths, accepted: [], "is empty")}))


def covered_but_short() -> list[list[int]]:
    return [[2, 2, 2], [2, 2, 2]]


def _check_covered(answer) -> None:
    rows = call(answer)
    whole = isinstance(rows, list) and rows and all(isinstance(r, list) and r and all(type(n) is int and n > 0 for n in r) for r in rows)
    if not whole:
        raise Wrong("Return a list of packed rows, each a list of document lengths of at least 1.")
    if max(n for r in rows for n in r) > 2:
        raise Wrong("A document has more than 2 tokens. The point is that none has.")
    if max(sum(r) for r in rows) > 6:
        raise Wrong("A packed row is longer than the table has rows: its last tokens have none.")
    counts = [sum(sum(r) > k for r in rows) for k in range(6)]
    if min(counts) < 2:
        raise Wrong(f"Row {counts.index(min(counts))} is read by {min(counts)} tokens. The report asks for two at least.")


register(Exercise(
    id="0x08A.4", kind="break", minutes=5,
    prompt="A report calls a table of 6 rows ready for documents of 6 tokens when every row was read at least twice. Numbers continue through packed rows. Write "
           "`covered_but_short()`: packed rows, as lists of document lengths, that pass the report although no document has more than 2 tokens.",
    hint="A row of the table is read by whatever document stands there.", check=_check_covered, solution=covered_but_short,
    wrong_answers={"long": (lambda: [[6], [6]], "more than 2 tokens"), "once": (lambda: [[2, 2, 2]], "two at least"),
                   "over": (lambda: [[2, 2, 2, 2], [2, 2, 2]], "longer than the table"), "flat": (lambda: [2, 2, 2], "list of packed rows")},
    praise="All rows are read, and no token ever read another more than one position away."))
