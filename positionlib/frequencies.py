"""Frequencies as module state: rebuilt from the configuration, in no checkpoint, and beyond the reach of a dtype move."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


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
