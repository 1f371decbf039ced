"""The permutation proof: what a state shows equals fresh library calls and arithmetic done outside the widget."""
import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
import torch

import positionlib as pl
from positionlib.widgets.panels import Badges, Matrices
from positionlib.permutation import hand_case
from positionlib.widgets.permutation import REGIMES, WORDS, permutation_proof

ORDERS = list(itertools.permutations(range(4)))
POWERS = [[1, 1, 4, 2], [4, 1, 1, 2], [2, 1, 4, 1], [4, 1, 2, 1]]  # exp(score), row reads column
X = [[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]


@pytest.fixture(scope="module")
def proof():
    return permutation_proof()


def exact(order, regime):
    """A' and Y' in exact fractions, from the powers of two alone; no library call, no matrix product."""
    weights, outputs = [], []
    for i in range(4):
        seen = {"none": lambda j: True, "fixed": lambda j: j <= i, "carried": lambda j: order[j] <= order[i]}[regime]
        row = [Fraction(POWERS[order[i]][order[j]]) if seen(j) else Fraction(0) for j in range(4)]
        row = [weight / sum(row) for weight in row]
        weights.append(row)
        outputs.append([8 * sum(row[j] * X[order[j]][c] for j in range(4)) for c in range(4)])
    return np.array(weights, dtype=float), np.array(outputs, dtype=float)


def library(order, regime):
    """X', A', Y' and PY from pl.attend alone."""
    x, w_q, w_k, w_v = hand_case()
    index = torch.tensor(order)
    triangle = torch.ones(4, 4, dtype=torch.bool).tril()
    before = pl.AttentionGeometry.causal_self(4) if regime in ("fixed", "carried") else pl.AttentionGeometry.encoder(4)
    after = pl.AttentionGeometry.encoder(4, allowed=triangle[index][:, index]) if regime == "carried" else before
    position = pl.Sinusoidal(4, output_dtype=torch.float64)

    def run(rows, geometry):
        rows = position.add(rows[None], geometry) if regime == "positions" else rows[None]
        out, trace = pl.attend(*(rows[:, None] @ w for w in (w_q, w_k, w_v)), None, geometry, return_trace=True)
        return rows[0], trace.scores[0, 0], trace.probabilities[0, 0], out[0, 0]

    return *run(x[index], after), run(x, before)[3][index]


def shown(proof, order, regime):
    badges, *grids = proof.state(order=order, regime=regime)
    assert isinstance(badges, Badges) and all(isinstance(panel, Matrices) for panel in grids)
    matrices = [matrix for panel in grids for matrix in panel.items]
    return {badge.label: badge.value for badge in badges.items}, *(matrix.values for matrix in matrices), matrices[1]


@pytest.mark.parametrize("choice", random.Random(1).sample(list(itertools.product(ORDERS, REGIMES)), 20), ids=str)
def test_states_equal_fresh_library_calls(proof, choice):
    order, regime = choice
    x, scores, weights, y, py = (t.numpy() for t in library(order, regime))
    badges, got_x, got_scores, got_weights, got_y, got_py, got_gap, pair = shown(proof, order, regime)
    for got, want, decimals in ((got_x, x, 2 if regime == "positions" else 0), (got_scores, scores, 2), (got_weights, weights, 3),
                                (got_y, y, 3), (got_py, py, 3), (got_gap, abs(y - py), 3)):
        np.testing.assert_allclose(got, want, rtol=0, atol=0.5 * 10.0**-decimals + 1e-9)
    assert badges["max |Y′ − PY|"] == f"{abs(y - py).max():.3f}"
    assert pair.row_labels == tuple(WORDS[i] for i in order)
    assert pair.highlight == ((order.index(1), order.index(0)),)  # "bites reads dog", wherever the shuffle has put it


@pytest.mark.parametrize("regime", ["none", "fixed", "carried"])
@pytest.mark.parametrize("order", ORDERS[::5], ids=str)
def test_weights_and_outputs_are_the_fractions_of_the_hand_case(proof, order, regime):
    weights, outputs = exact(order, regime)
    _, _, _, got_weights, got_y, *_ = shown(proof, order, regime)
    np.testing.assert_allclose(got_weights, weights, rtol=0, atol=5.1e-4)
    np.testing.assert_allclose(got_y, outputs, rtol=0, atol=5.1e-4)


def test_at_rest_it_shows_the_message(proof):
    assert proof.choice == {"order": (2, 1, 0, 3), "regime": "none"}
    badges, *_ = shown(proof, **proof.choice)
    assert badges == {"max |Y′ − PY|": "0.000", "A′ = PAPᵀ": "yes", "mask is PMPᵀ": "yes"}


@pytest.mark.parametrize("regime, survivors", [("none", 24), ("fixed", 1), ("carried", 24), ("positions", 1)])
def test_how_many_orders_each_regime_follows(proof, regime, survivors):
    assert sum(shown(proof, order, regime)[0]["max |Y′ − PY|"] == "0.000" for order in ORDERS) == survivors


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_caption_counts_the_words_that_changed(proof, order):
    caption = proof.caption_of(order=order, regime="fixed")
    _, outputs = exact(order, "fixed")
    changed = (abs(outputs - exact((0, 1, 2, 3), "fixed")[1][list(order)]).max(1) > 5e-4).sum()
    assert (f"{changed} of 4 words" in caption) == (order != (0, 1, 2, 3))


def test_stored_size(proof):
    assert proof.size < 240_000
