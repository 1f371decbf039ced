"""Exercises of 0x02A: the next coordinate, who may read whom, numbering a padded row, and a stranger of the right shape."""

from __future__ import annotations

import copy
from typing import Any

from positionlib.call import PositionCall
from positionlib.errors import PositionContractError
from positionlib.exercises.answers import Wrong, call, expect_choice, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x02A.1", kind="recall", minutes=2,
    prompt="A cache row holds 3 pads on the left and 6 tokens: 9 storage rows. Tokens are numbered 0, 1, … without the pads (`compressed`). "
           "One token is decoded next. What is its logical position? (a) 0  (b) 6  (c) 9  (d) 5",
    hint="Two counts describe this cache: committed_length and past_seen_tokens. Which of them is a coordinate?", solution="b",
    check=lambda answer: expect_choice(answer, "b", {
        "a": "0 is the index of the query in its own tensor of one row. The cache already holds positions 0 to 5.",
        "c": "9 counts storage rows, pads included: that is past_seen_tokens. The next storage slot is 9, the next coordinate is not.",
        "d": "5 is the position of the last committed token. The new one comes after it."}),
    wrong_answers={"local": ("a", "own tensor"), "storage": ("c", "past_seen_tokens"), "last": ("d", "comes after it")},
    praise="Coordinate 6, storage slot 9: left padding sets the two counts apart."))


def visible(q, k, q_owner, k_owner, active):
    return [[k[j] <= q[i] and k_owner[j] == q_owner[i] and active[j] for j in range(len(k))]
            for i in range(len(q))]


def _visible_with(*, strict: bool = False, segments: bool = True, pads: bool = True, by_index: bool = False, turned: bool = False, timeless: bool = False,
                  inverted: bool = False):
    """The rule with one mistake."""
    def wrong(q, k, q_owner, k_owner, active):
        def one(i: int, j: int) -> bool:
            ahead = j <= i if by_index else k[j] < q[i] if strict else k[j] >= q[i] if turned else k[j] <= q[i]
            seen = bool((timeless or ahead) and (not segments or k_owner[j] == q_owner[i]) and (not pads or active[j]))
            return seen != inverted
        return [[one(i, j) for j in range(len(k))] for i in range(len(q))]
    return wrong


_VISIBLE_MISTAKES = [
    (_visible_with(by_index=True), "You compared list indices. Query 0 of a decode call stands at index 0 and at position 2: compare q[i] and k[j]."),
    (_visible_with(strict=True), "No query may read its own row. The causal rule is k_j ≤ q_i, with equality."),
    (_visible_with(turned=True), "Your causal rule is turned around: it shows the future and hides the past."),
    (_visible_with(timeless=True), "A key after its query is readable. The causal rule k_j ≤ q_i is missing."),
    (_visible_with(inverted=True), "Your polarity is inverted: True must mean that the query may read the key."),
    (_visible_with(segments=False), "Rows of different owners read one another. Positions restart in each sequence, so only the owner separates them."),
    (_visible_with(pads=False), "A padding key is readable. active[j] is False there: padding has a coordinate, but nobody may read it."),
]
# A decode step of two packed sequences (5 keys of one, 3 of the other), with one padding key.
_CASES = [([2, 4], [0, 1, 2, 0, 1, 2, 3, 4], [0, 1], [0, 0, 0, 1, 1, 1, 1, 1], [True, True, True, False, True, True, True, True]),
          ([1, 2, 0], [0, 1, 2, 0], ["a", "a", "b"], ["a", "a", "a", "b"], [True, True, True, True])]


def _check_visible(answer) -> None:
    for case in _CASES:
        expect_close(call(answer, *case), visible(*case), mistakes=[
            (wrong(*case), why) for wrong, why in _VISIBLE_MISTAKES if wrong(*case) != visible(*case)])


register(Exercise(
    id="0x02A.2", kind="build", minutes=7,
    prompt="Write `visible(q, k, q_owner, k_owner, active)`: a list of Q rows with K booleans, True where the query may read the key, under causal order, "
           "isolated sequences and padding keys. It is tried on a decode step of two packed sequences, so Q and K differ.",
    hint="Three conditions joined by and. None of them uses a list index as a coordinate.", check=_check_visible, solution=visible,
    wrong_answers={"index": (_visible_with(by_index=True), "list indices"), "strict": (_visible_with(strict=True), "own row"),
                   "turned": (_visible_with(turned=True), "turned around"), "timeless": (_visible_with(timeless=True), "is missing"),
                   "inverted": (_visible_with(inverted=True), "polarity is inverted"), "leak": (_visible_with(segments=False), "different owners"),
                   "pads": (_visible_with(pads=False), "padding key")},
    praise="Coordinate, owner and activity: three facts, and no one of them replaces another."))


def number(mask, first, pad):
    positions, count = [], first
    for token in mask:
        positions.append(count if token else pad)
        count += 1 if token else 0
    return positions


def _number_contiguous(mask, first, pad):
    return [first + column if token else pad for column, token in enumerate(mask)]


def _number_late(mask, first, pad):
    return [position + 1 if token else pad for position, token in zip(number(mask, first, pad), mask)]


def _number_from_zero(mask, first, pad):
    return [position - first if token else pad for position, token in zip(number(mask, first, pad), mask)]


def _number_pads_too(mask, first, pad):
    return [first + max(sum(mask[:column + 1]) - 1, 0) for column in range(len(mask))]


_NUMBER_MISTAKES = [
    (_number_contiguous, "Pads advance your count: the first token after left padding must be `first`. Count tokens, not columns."),
    (_number_late, "Your first token gets first + 1. Count the tokens before it, not up to it."),
    (_number_from_zero, "Your tokens start at 0. RoBERTa's start at `first`, above the padding row."),
    (_number_pads_too, "Your pads repeat a token's position. Give every pad the one position `pad`."),
]
_MASKS = [([0, 0, 1, 1, 0, 1], 2, 1), ([1, 1, 1, 0], 3, 0), ([0, 0, 0], 2, 1), ([0, 1], 5, 4)]


def _check_number(answer) -> None:
    for case in _MASKS:
        expect_close(call(answer, *case), number(*case), mistakes=[
            (wrong(*case), why) for wrong, why in _NUMBER_MISTAKES if wrong(*case) != number(*case)])


register(Exercise(
    id="0x02A.3", kind="build", minutes=6,
    prompt="Write `number(mask, first, pad)` for one row: token k gets position first + k wherever the padding is, each pad gets position `pad`. "
           "It is tried with padding on the left, on the right and in between.",
    hint="Keep one counter that moves only at a token.", check=_check_number, solution=number,
    wrong_answers={"columns": (_number_contiguous, "not columns"), "late": (_number_late, "not up to it"), "zero": (_number_from_zero, "start at 0"),
                   "pads": (_number_pads_too, "one position")}))


def impostor(document):
    for part in ("query_space", "key_space", "cache"):
        document[part]["coordinate_frame"] = "page"
    return document


def _another_adapter(document):
    document["request"]["adapter_id"] = "tuned-elsewhere"
    return document


def _half_a_frame(document):
    document["query_space"]["coordinate_frame"] = "page"
    return document


def _unchanged(document):
    return document


def _reset(document):
    document["query_space"]["logical_positions"] = [0] * len(document["query_space"]["logical_positions"])
    return document


def _another_length(document):
    return PositionCall.decode(20).to_dict()


def _without_runtime(document):
    del document["runtime"]
    return document


def _check_impostor(answer) -> None:
    for committed, new in ((30, 1), (6, 3)):
        genuine = PositionCall.decode(committed, new)
        document = call(answer, copy.deepcopy(genuine.to_dict()))
        if type(document) is not dict or not all(type(name) is str for name in document):
            raise Wrong("Return the changed document: a dict like the one you were given.")
        stranger = _read(document)
        sizes = [(len(c.query_space.row_indices), len(c.key_space.logical_positions), c.position_method.score_bias_shape) for c in (genuine, stranger)]
        if sizes[0] != sizes[1]:
            raise Wrong(f"A shape check catches this one: Q and K were {sizes[0][:2]} and are now {sizes[1][:2]}. Keep every shape.")
        kept = [(c.request, c.cache.checkpoint_id, c.cache.release_id, c.row_space.active_token_per_row) for c in (genuine, stranger)]
        if kept[0] != kept[1]:
            raise Wrong("Request, weights and padding are to stay as they are. Which other facts does the cache identity hold?")
        if genuine.identity().cache_identity == stranger.identity().cache_identity:
            raise Wrong("Nothing that matters changed: both calls have one cache identity, so a cached object may be reused.")


def _read(document: dict[str, Any]) -> PositionCall:
    try:
        return PositionCall(**document)
    except PositionContractError as refusal:
        raise Wrong(f"The manifest refuses this document at {refusal.field}: expected {refusal.expected}. Find a change that its rules allow.") from None


register(Exercise(
    id="0x02A.4", kind="break", minutes=6,
    prompt="Write `impostor(document)`. It gets the record of a decode call as a dict and returns a changed one that still validates and keeps every "
           "shape. It also keeps the request, the weights and the padding. And yet the first call's cached keys must not be used for it.",
    hint="Which other fields never show in a shape? From which origin do the positions count? That fact is named in three parts, and they must agree.",
    check=_check_impostor, solution=impostor,
    wrong_answers={"unchanged": (_unchanged, "one cache identity"), "reset": (_reset, "query_space.logical_positions"),
                   "length": (_another_length, "shape check catches"), "missing": (_without_runtime, "refuses this document at runtime"),
                   "adapter": (_another_adapter, "stay as they are"), "half": (_half_a_frame, "refuses this document at query_space.coordinate_frame")},
    praise="Same shapes, same weights, another call: only the identity refuses it."))
