"""A signature that is kept: what it refuses, in which words, and what it hands on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

import positionlib as pl
from positionlib.contract import checked
from tests.refusals import refused


@checked
def picture(x: Float[Tensor, "*B N 2"], ids: Int[Tensor, "*B N"] | None = None, mask: Bool[Tensor, "N"] | Int[Tensor, "N"] | None = None, *,
            sizes: Sequence[int] = (), factor: float = 1.0, count: int = 0, flag: bool = False, device: torch.device | str | None = None):
    """What it was given, as it arrives."""
    return x, ids, mask, sizes


X = torch.zeros(3, 4, 2)


@pytest.mark.parametrize("arguments, field, word", [
    (dict(x=X.long()), "x", "floating-point tensor"), (dict(x=[[0.0]]), "x", "floating-point tensor"), (dict(x=None), "x", "floating-point"),
    (dict(x=X[..., :1]), "x", "2 = 2"), (dict(x=X[0, 0]), "x", "[*B N 2]"), (dict(x=X.to_sparse()), "x", "floating-point"),
    (dict(x=X, ids=torch.zeros(5)), "ids", "an integer tensor"), (dict(x=X, ids=torch.zeros(5).long()), "ids", "N = 4, as x has"),
    (dict(x=X, ids=torch.zeros(2, 4).long()), "ids", "leading axes that fit (3,)"), (dict(x=X, ids=torch.zeros(4, device="meta").long()), "ids", "device cpu"),
    (dict(x=X, mask=torch.zeros(4)), "mask", "a boolean or integer tensor"), (dict(x=X, mask=torch.zeros(4, 4).bool()), "mask", "[N]"),
    (dict(x=X, sizes=[1, 2.5]), "sizes", "list of int"), (dict(x=X, sizes="12"), "sizes", "list of int"),
    (dict(x=X, sizes=torch.ones(2)), "sizes", "list of int"), (dict(x=X, factor=float("nan")), "factor", "float"),
    (dict(x=X, factor=True), "factor", "float"), (dict(x=X, factor=np.float32(np.inf)), "factor", "float"), (dict(x=X, count=1.0), "count", "int"),
    (dict(x=X, count=2**63), "count", "int"), (dict(x=X, flag=1), "flag", "bool"), (dict(x=X, device="nowhere"), "device", "device")])
def test_what_an_annotation_does_not_allow_is_refused_by_name(arguments, field, word):
    assert word in str(refused(lambda: picture(**arguments), field))


def test_integers_arrive_as_int64_and_arrays_as_lists():
    ids = torch.tensor([1, 2, 3, 255], dtype=torch.uint8)
    x, wide, mask, sizes = picture(X, ids, ids == 1, sizes=np.array([1, 2]))
    assert x is X and wide.dtype == torch.int64 and wide.tolist() == [1, 2, 3, 255] and mask.dtype == torch.bool and sizes == [1, 2]
    assert picture(X, sizes=(1, 2))[3] == (1, 2) and picture(X.double(), factor=np.float32(2), count=np.int64(2))[0].dtype == torch.float64


@pytest.mark.parametrize("call", [lambda: picture(), lambda: picture(X, x=X), lambda: picture(X, None, None, 1), lambda: picture(X, other=1)])
def test_a_call_that_does_not_bind_is_pythons_own_error(call):
    with pytest.raises(TypeError, match="picture"):
        call()


def test_a_dataclass_and_a_module_are_looked_at_with_what_they_hold():
    @checked
    @dataclass(frozen=True)
    class Rows:
        rows: Float[Tensor, "N D"]

        @checked
        def plus(self, x: Float[Tensor, "N D"]) -> Tensor:
            return self.rows + x

    class Layer(nn.Linear):
        @checked
        def forward(self, x: Float[Tensor, "N D"]) -> Tensor:
            return super().forward(x)

    refused(lambda: Rows(rows=torch.zeros(3)), "rows")
    for holder in (Rows(torch.ones(2, 2)).plus, Layer(2, 2)):
        assert holder(torch.zeros(2, 2)).shape == (2, 2)
        refused(lambda: holder(torch.zeros(2, 2, device="meta")), "x")


def test_a_compiled_graph_skips_the_look_and_gives_the_eager_answer():
    positions, q = torch.arange(4), torch.randn(1, 2, 4, 8)
    mechanism = pl.TransformerXL(8, 2, 8)  # its distances have no size that a graph knows before it runs

    def run(positions, q):
        geometry = pl.AttentionGeometry(positions, positions, causal=True)
        return pl.attend(q, q, q, mechanism(geometry), geometry)

    torch.compiler.reset()
    assert torch.allclose(torch.compile(run, backend="eager", fullgraph=True)(positions, q), run(positions, q), atol=1e-6)
    assert torch.compile(lambda x: picture(x, factor=float("nan"))[0], backend="eager", fullgraph=True)(X).shape == X.shape
