"""Head widths: odd multiples of 16 with the tile sizes of mechanisms that have their own; others are refused by name, whatever the mechanism."""

from dataclasses import replace

import pytest
import torch

from positionlib.attention import attend
from positionlib.bench.gpu_cases import MECHANISMS
from positionlib.errors import UnsupportedPositionContract
from positionlib.geometry import AttentionGeometry
from positionlib.kernels import sizes
from positionlib.runtime.fused import refusal
from tests.kernels.cases import DEVICE
from tests.kernels.matrix import ATTENTION

pytest.importorskip("triton")
# Two sizes of a head's tile, and the tiles of sm_90, which an interpreter that is asked for them runs as well.
TILES = [(width, *tiles) for width in (48, 112) for tiles in ((torch.float32, False), (torch.float16, False), (torch.float16, True))]


@pytest.mark.parametrize("kind", ["tupe", "transformer_xl"])
@pytest.mark.parametrize("width, dtype, groups", TILES, ids=str)
def test_every_size_of_tile(kind, width, dtype, groups, monkeypatch):
    if DEVICE != "cuda":
        monkeypatch.setattr(sizes, "_warp_groups", lambda: groups)
    errors, case = ATTENTION[kind]
    assert max(errors(replace(case, width=width, queries=33, keys=90, start=40, heads=1, key_heads=1), dtype)) <= 1


def call(name, width):
    """A call of two heads of this width, as ``attend`` takes it."""
    positions = torch.arange(3, device=DEVICE)
    geometry, module = AttentionGeometry(positions, positions, causal=MECHANISMS[name].causal), MECHANISMS[name].build(2, width, 3).to(DEVICE)
    q = torch.zeros(1, 2, 3, width, device=DEVICE)
    return q, q, q, module(geometry), geometry


@pytest.mark.parametrize("name", sorted(set(MECHANISMS) - {"tupe_finished", "grid_bias"}))  # whose bias is a number a pair at any width
def test_other_widths_are_refused_by_name(name):
    assert refusal(*call(name, 32)) is None
    for width in (8, 24, 40, 264, 272):
        with pytest.raises(UnsupportedPositionContract) as no:
            attend(*call(name, width), backend="triton")
        assert no.value.missing == {f"head width {width}"}
