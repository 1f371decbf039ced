"""Frequencies and slopes as module state, beyond the reach of a move to half precision: a rounded one is another code."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class WideParameters(nn.Module):
    """A module whose parameters follow a device, and a dtype of 32 bits or more; a move to half precision leaves them as wide as they are."""

    def _apply(self, fn, recurse: bool = True):
        def wide(t: Tensor) -> Tensor:
            moved = fn(t)
            return t.to(moved.device) if moved.dtype.itemsize < 4 else moved

        return super()._apply(wide, recurse)


class FrequencyBuffer(nn.Module):
    """A module with frequencies ω, float64, in the buffer ``inverse_frequency``: no gradient, and no checkpoint tensor.

    A dtype move leaves them alone, since rounded frequencies would be another code, and a move to or from the meta device restores
    them. Only the device of a move is followed.
    """

    def __init__(self, frequencies: Float[Tensor, "P"]) -> None:
        super().__init__()
        self._exact = frequencies  # a plain attribute, which no move reaches
        self.register_buffer("inverse_frequency", frequencies, persistent=False)

    def _apply(self, fn, recurse: bool = True):
        super()._apply(fn, recurse)
        self.inverse_frequency = self._exact.to(self.inverse_frequency.device)
        return self
