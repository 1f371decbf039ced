"""Fused attention in Triton: one tile loop forward (``tile``), one backward (``backward``, ``bands``), and one small file a mechanism
(``alibi``, ``t5``, ``nope``) with its score function and the sums that the gradient of its table needs. What pairs read by class, as
relative keys and values, disentangled terms and graph distances do, is one file for all of them (``classes``; ``by_class`` on the host).
Rows for each offset, with their shift inside the tile, are another (``transformer_xl``; ``by_line`` on the host).

The kernels know tensors only. ``refusal`` says whether a call is admitted, ``forward`` looks at its parts (``checks``) and runs it. State rows and rotations alone are in
``rows``, which needs no attention.
"""

from positionlib.kernels import rows
from positionlib.kernels.admission import KINDS, available, refusal
from positionlib.kernels.bias import BiasArgs
from positionlib.kernels.ops import forward

__all__ = ["KINDS", "BiasArgs", "available", "forward", "refusal", "rows"]
