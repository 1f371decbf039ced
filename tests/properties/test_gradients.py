"""The gradient of every parameter of every mechanism, and of the state, against finite differences in float64."""

import pytest
import torch
from torch.func import functional_call

import positionlib as pl
from tests.properties.layer import Layer, numbers
from tests.properties.mechanisms import ENTRIES, WIDTH, module

SEGMENTS = torch.tensor([0, 0, 0, 0, 1])
ACTIVE = torch.tensor([[True, True, True, True, True], [False, True, True, True, False]])  # row 4 of the second sequence sees nothing


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_parameter_and_the_state_have_the_gradient_of_their_differences(entry):
    mechanism, visibility = module(entry), entry.visibility[0]
    positions = torch.tensor([2, 3, 4, 5, 0])
    geometry = pl.AttentionGeometry(positions, positions, causal=visibility == "causal", key_active=ACTIVE,
                                    query_segments=SEGMENTS, key_segments=SEGMENTS)
    names = [name for name, _ in mechanism.named_parameters()]

    def run(x, *parameters):
        state = dict(zip(names, parameters))
        return Layer()(lambda g: functional_call(mechanism, state, (g,)), x, geometry)[0]

    leaves = [numbers(2, 5, WIDTH, seed=5), *(p.detach().clone() for p in mechanism.parameters())]
    assert torch.autograd.gradcheck(run, [leaf.requires_grad_() for leaf in leaves], fast_mode=True)
