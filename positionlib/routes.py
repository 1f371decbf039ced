"""Where a coordinate enters: run one layer of attention with and without it, and name the tensors that changed.

    X = C + P                                   P: rows added to the state         (fixed or learned)
    Q = R X W_Q,   K = R X W_K,   V = X W_V     R: a rotation of queries and keys
    S = c Q Kᵀ + B                              B: a bias, or any other term of the scores
    A = softmax of S where M,   Y = A V         M: who may read whom

A run is a dict of these tensors in the order of ``TENSORS``. ``changed`` compares two runs; the first name that it returns is where
the coordinate came in. M is an input and not computed from S, so it stands before the weights that it shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.attention import attend
from positionlib.contract import checked
from positionlib.errors import require, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.rotation import QKTransform
from positionlib.terms import StateRows, Term

TENSORS = ("X", "Q", "K", "V", "S", "M", "A", "Y")


@checked
def run(content: Float[Tensor, "B N D"], weights: Sequence[Tensor], term: Term | None, geometry: AttentionGeometry, *, heads: int = 1,
        scale: float | None = None) -> dict[str, Tensor]:
    """Every tensor of one self-attention layer, by its name in ``TENSORS``.

    Parameters
    ----------
    content : rows without coordinates.
    weights : W_Q, W_K, W_V, each [D, heads · d_head], applied from the right.
    term : what a mechanism returned for this geometry. Rows are added to the content, a rotation turns Q and K, any other term goes
        to ``attend``. None is content alone.
    scale : c; None takes the term's own, else 1/√d_head.

    Raises
    ------
    PositionContractError
        weights that are not three or do not split into heads, or what ``attend`` refuses.
    """
    require(len(weights) == 3, "weights", len(weights), "W_Q, W_K and W_V", "Give the three projections in this order.")
    require_count("heads", heads)
    x = content
    if isinstance(term, StateRows):
        x, term = term.add_to(content), None
    for name, w in zip(("W_Q", "W_K", "W_V"), weights):
        require(w.ndim == 2 and w.shape[0] == x.shape[-1] and w.shape[1] % heads == 0, name, w, f"[{x.shape[-1]}, a multiple of {heads} heads]",
                "Apply it from the right: x @ W.")
    q, k, v = ((x @ w).unflatten(-1, (heads, -1)).transpose(1, 2) for w in weights)
    if isinstance(term, QKTransform):
        q, k, term = term.rotate(q, geometry.query_positions), term.rotate(k, geometry.key_positions), None
    y, seen = attend(q, k, v, term, geometry, scale=scale, backend="eager", return_trace=True)
    return dict(zip(TENSORS, (x, q, k, v, seen.scores, seen.visible, seen.probabilities, y)))


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor], *, atol: float = 1e-9) -> tuple[str, ...]:
    """Names of the tensors that differ, in the order of the run; another shape is a difference, rounding below ``atol`` is none.

    Raises
    ------
    PositionContractError
        two runs that do not hold the same tensors.
    """
    require(tuple(before) == tuple(after), "after", tuple(after), f"the tensors {tuple(before)}", "Compare two runs of one layer.")
    return tuple(name for name in before if before[name].shape != after[name].shape
                 or not torch.allclose(before[name].double(), after[name].double(), rtol=0.0, atol=atol, equal_nan=True))


def require_route(first: str, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """Refuse a run whose coordinate does not come in at the tensor ``first``. ``before`` is the run on content alone.

    A rotation comes in at Q, rows at X, a bias at S, a mask at M.

    Raises
    ------
    PositionContractError
        no tensor changed, or another one was the first.
    """
    found = changed(before, after)
    require(found[:1] == (first,), "first changed tensor", found[0] if found else None, f"{first}, where this model's coordinate enters",
            "Pass the term of the model's own mechanism, and no other, to the layer." if found
            else "No coordinate reached the layer: pass the mechanism's term.")
