"""The term mixer: each product equals plain arithmetic on the modules' own weights, and every caption and badge is what the numbers say."""
import itertools
import math
import random

import numpy as np
import pytest

from positionlib.widgets.panels import Badges, Lines
from positionlib.widgets.term_mixer import FORMULAS, LATER, METHODS, SLOTS, WORDS, _module, _weights, term_mixer

STATES = list(itertools.product(METHODS, SLOTS, WORDS))


@pytest.fixture(scope="module")
def mixer():
    return term_mixer()


def wave(n: int, width: int = 4, base: float = 16.0) -> tuple[list[float], list[float]]:
    phases = [n * base ** (-2 * i / width) for i in range(width // 2)]
    return [math.sin(p) for p in phases], [math.cos(p) for p in phases]


def pair(method: str, place: str, words: str, first: int, i: int, j: int) -> float:
    """One product by numpy, from the weights; i and j are rows of the call."""
    w = {name: value.numpy() for name, value in _weights().items()}
    x = w["x"][[0] * 6 if words == "alike" else range(6)]
    q, k = x[i] @ w["query"], x[j] @ w["key"]
    if method == "added":
        p = [np.array([v for both in zip(*wave(first + t)) for v in both]) for t in (i, j)]
        left, right = {"c": x[i], "p": p[0]}[place[0]] @ w["query"], {"c": x[j], "p": p[1]}[place[1]] @ w["key"]
        return left @ right
    state = {name: value.numpy() for name, value in _module(method).state_dict().items()}
    if method == "xl":
        if j > i:
            return 0.0
        r = state["weight"] @ np.array([v for part in wave(i - j) for v in part])
        return {"cc": q @ k, "cp": q @ r, "pc": state["content_bias"][0] @ k, "pp": state["position_bias"][0] @ r}[place]
    if method == "deberta":
        row = state["weight"][min(max(i - j + 4, 0), 7)]
        as_key, as_query = (row @ state[f"pos_{n}_proj.weight"].T + state[f"pos_{n}_proj.bias"] for n in ("key", "query"))
        return {"cc": q @ k, "cp": q @ as_key, "pc": k @ as_query}[place]
    def normed(t: int) -> np.ndarray:
        row = state["weight"][first + t + 1]
        return (row - row.mean()) / np.sqrt(row.var() + 1e-5) * state["norm.weight"] + state["norm.bias"]
    left, right = (normed(t) @ state[f"{n}_proj.weight"].T + state[f"{n}_proj.bias"] for t, n in ((i, "query"), (j, "key")))
    return {"cc": q @ k, "pp": left @ right}[place]


def fresh(method: str, place: str, words: str, first: int = 0) -> np.ndarray:
    places = list(FORMULAS[method]) if place == "all" else [place] if place in FORMULAS[method] else []
    return np.array([[sum(pair(method, each, words, first, i, j) for each in places) for j in range(6)] for i in range(6)])


@pytest.mark.parametrize("method, place, words", random.Random(3).sample(STATES, 20))
def test_a_state_shows_the_last_row_under_both_numberings(mixer, method, place, words):
    _, picture = mixer.state(method=method, place=place, words=words)
    assert isinstance(picture, Lines)
    for series, first in zip(picture.series, (0, LATER)):
        np.testing.assert_allclose(series.values, fresh(method, place, words, first)[-1], rtol=0, atol=0.005 + 1e-9)


def test_at_rest_the_points_leave_the_line(mixer):
    assert mixer.choice == {"method": "added", "place": "all", "words": "different"}
    _, picture = mixer.state(**mixer.choice)
    assert abs(picture.series[0].values - picture.series[1].values).max() > 0.5
    assert "The points leave the line" in mixer.caption_of(**mixer.choice)


@pytest.mark.parametrize("method, place", list(itertools.product(METHODS, SLOTS)))
def test_captions_and_badges_are_what_the_numbers_say(mixer, method, place):
    here, alike, later = fresh(method, place, "different"), fresh(method, place, "alike"), fresh(method, place, "different", LATER)
    words, numbering = not np.allclose(here, alike), not np.allclose(here, later)
    seen = np.tril(np.ones((6, 6), dtype=bool)) | (method != "xl")
    spread = not np.allclose(alike[seen], alike[seen][0])
    for state in WORDS:
        badges, _ = mixer.state(method=method, place=place, words=state)
        assert isinstance(badges, Badges)
        product, *said = (badge.value for badge in badges.items)
        assert said == [words, spread, numbering]
        caption = mixer.caption_of(method=method, place=place, words=state)
        if place != "all" and place not in FORMULAS[method]:
            assert product == "left out" and "leaves it out" in caption and not here.any()
            continue
        assert ("leave the line" in caption and "3 changes" in caption) == numbering and ("stay on the line" in caption) == (not numbering)
        assert ("the words alone" in caption, "the place alone." in caption) == (words and not spread, spread and not words)
        assert ("no key of this row" in caption) == (state == "alike" and np.allclose(alike[-1], alike[-1, 0]))


def test_stored_size(mixer):
    assert mixer.size < 60_000
