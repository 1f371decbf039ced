"""Projections around attend(), which the library leaves to the model."""

from __future__ import annotations

from torch import Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, N, H*D] to [B, H, N, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, N, D] to [B, N, H*D]."""
    return x.transpose(1, 2).flatten(2)


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, for a weight [out, in]."""
    y = x @ weight.T
    return y if bias is None else y + bias
