"""Causal NoPE: no coordinate at all (Haviv et al. 2022; Irie 2024).

    s_ij = q_i · k_j / √d,  j ≤ i          row i can tell where it is only from the i + 1 keys it may read

Contract: no coordinate source, no changed tensor, no state; causal visibility is the whole of the geometry. It fails when a
backend or a batch loses the causal mask, and when the positions of a checkpoint trained with them are deleted.
"""

from __future__ import annotations

from torch import nn

from positionlib.contract import checked
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.terms import VisibilityOnly


class NoPE(nn.Module):
    """module(geometry) returns :class:`VisibilityOnly`, and refuses a geometry that is not causal."""

    @checked
    def forward(self, geometry: AttentionGeometry) -> VisibilityOnly:
        """No bias; only the demand for a causal mask."""
        require(geometry.causal, "geometry.causal", geometry.causal, "True for a model without positions",
                "Without a causal mask such a model follows every permutation of its rows.")
        return VisibilityOnly()
