"""Conversions of models that transformers makes, saves and runs just now, where it is installed (make bench)."""

import pytest

from tests.checkpoints.conversions import prove
from tests.checkpoints.peers import PEERS, live


@pytest.mark.parametrize("label, seed", [pytest.param(label, seed, marks=pytest.mark.peer("transformers", major)) for label, (major, _) in PEERS.items()
                                         for seed in (11, 12)])
def test_a_model_of_just_now_is_converted_and_answers_alike(label, seed):
    proof = prove(label, live(label, seed))
    assert proof.holds, proof.differences
