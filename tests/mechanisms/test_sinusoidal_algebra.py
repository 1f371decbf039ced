"""The group laws, and what they cannot see."""

import math

import pytest
import torch

from positionlib.mechanisms.sinusoidal import inverse_frequencies, sinusoidal_rows
from positionlib.mechanisms.sinusoidal_algebra import commuting_matrix, four_terms, joint_shift_scores, shift_matrix, similarity, wavelengths
from tests.refusals import refused

D, BASE = 8, 10_000.0


def row(t):
    return sinusoidal_rows(torch.tensor([t]), D, output_dtype=torch.float64)[0]


def test_shift_matrices_are_a_group_and_move_rows():
    identity = torch.eye(D, dtype=torch.float64)
    for a in (-7, 0, 1, 5, 100):
        for b in (-3, 0, 2, 64):
            assert torch.allclose(shift_matrix(a, D) @ shift_matrix(b, D), shift_matrix(a + b, D), atol=1e-13)
        assert torch.allclose(shift_matrix(a, D).T @ shift_matrix(a, D), identity, atol=1e-14)
        assert torch.allclose(shift_matrix(a, D) @ row(200), row(200 + a), atol=1e-12)
        assert float(row(200 + a).norm()) == pytest.approx(math.sqrt(D / 2), abs=1e-13)
    assert torch.equal(shift_matrix(0, D), identity)


def test_a_transposed_block_keeps_every_law_and_moves_rows_backwards():
    wrong = shift_matrix(3, D).T
    assert torch.allclose(wrong @ shift_matrix(4, D).T, shift_matrix(7, D).T, atol=1e-13)
    assert torch.allclose(wrong @ row(50), row(47), atol=1e-12) and float((wrong @ row(50) - row(53)).norm()) > 0.1


def test_similarity_is_the_dot_product_and_depends_on_the_offset_alone():
    for m, n in ((0, 0), (3, 9), (100, 40), (1003, 1009)):
        assert float(row(m) @ row(n)) == pytest.approx(float(similarity(torch.tensor(m - n), D)), abs=1e-11)
    profile = similarity(torch.arange(40), D)
    assert bool((profile.diff() > 0).any()), "the profile must rise somewhere: it is not a distance penalty"


def test_which_forms_keep_joint_shifts():
    generator = torch.Generator().manual_seed(0)
    shifts = range(0, 200, 7)
    keeps = commuting_matrix(torch.randn(4, generator=generator), torch.randn(4, generator=generator))
    mixes = torch.zeros(D, D, dtype=torch.float64)
    mixes[0, 2] = 1.0
    for form, spread_below in ((torch.eye(D), 1e-10), (keeps, 1e-10)):
        scores = joint_shift_scores(form, 5, 2, shifts)
        assert float(scores.max() - scores.min()) < spread_below
    scores = joint_shift_scores(mixes, 5, 2, shifts)
    assert float(scores.max() - scores.min()) > 0.5


def test_the_oriented_part_is_odd_in_the_offset():
    zero, one = torch.zeros(4), torch.ones(4)
    odd = [float(joint_shift_scores(commuting_matrix(zero, one), m, n, [0])[0]) for m, n in ((7, 3), (3, 7))]
    assert odd[0] == pytest.approx(-odd[1], abs=1e-13) and abs(odd[0]) > 0.1
    want = sum(math.sin((7 - 3) * w) for w in inverse_frequencies(D).tolist())
    assert abs(odd[0]) == pytest.approx(abs(want), abs=1e-12)


def test_four_terms_sum_to_the_score():
    g = torch.Generator().manual_seed(1)
    x_i, p_i, x_j, p_j = torch.randn(4, D, generator=g, dtype=torch.float64)
    W_q, W_k = torch.randn(2, D, 3, generator=g, dtype=torch.float64)
    terms = four_terms(x_i, p_i, x_j, p_j, W_q, W_k)
    assert list(terms) == ["content-content", "content-position", "position-content", "position-position"]
    assert float(sum(terms.values())) == pytest.approx(float(((x_i + p_i) @ W_q) @ ((x_j + p_j) @ W_k)), abs=1e-12)
    assert float(terms["content-position"]) == pytest.approx(float((x_i @ W_q) @ (p_j @ W_k)), abs=1e-12)


def test_wavelengths_are_a_geometric_ladder():
    w = wavelengths(D)
    assert float(w[0]) == pytest.approx(2 * math.pi, rel=1e-15)
    assert torch.allclose(w[1:] / w[:-1], torch.full((3,), BASE ** (2 / D), dtype=torch.float64), rtol=1e-13)


def test_an_offset_that_float64_cannot_tell_from_the_next_is_refused():
    refused(lambda: similarity(torch.tensor([2**53 + 1]), D), "offset")
    refused(lambda: shift_matrix(-(2**53) - 1, D), "k")
    assert torch.equal(similarity(torch.tensor(2**53), D), similarity(torch.tensor(-(2**53)), D))
