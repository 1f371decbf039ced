"""Fused attention in Triton: one tile loop (``tile``) and one small score function a mechanism (``alibi``, ``t5``, ``nope``).

The kernels know tensors only. ``refusal`` says whether a call is admitted, ``forward`` runs it.
"""

from positionlib.kernels.admission import KINDS, available, refusal
from positionlib.kernels.launch import BiasArgs, forward

__all__ = ["KINDS", "BiasArgs", "available", "forward", "refusal"]
