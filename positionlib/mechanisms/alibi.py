"""ALiBi (Press et al. 2022, section 3).

    s_hij = q_hi · k_hj / √d − m_h (i − j),  j ≤ i          m_h = 2^(−8(h+1)/H) for a power of two H

Contract: the coordinates are the geometry's query and key positions; the scores change, outside the 1/√d; nothing is learned; the
slope order belongs to the head order, so a shard slices the slopes of all heads; decode needs true positions. It fails by a
local arange, by slopes built for a shard's own head count, by a bias inside the scale, and by distance in a low-precision dtype.

Storage forms of released code are named in :class:`positionlib.terms.SlopeBias`. ``inside_scale`` and ``rounded`` describe Falcon.
Learned slopes (``learned=True``) and the symmetric form are not the paper's method: it fixes the slopes, after
trainable ones had not extrapolated well (section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn

from positionlib.constants import on_device
from positionlib.contract import checked
from positionlib.errors import PositionContractError, require, require_choice, require_count
from positionlib.frequencies import WideParameters
from positionlib.geometry import AttentionGeometry
from positionlib.rules import alibi_slopes
from positionlib.terms import SLOPE_FORMS, SlopeBias


class ALiBi(WideParameters):
    """module(geometry) returns a :class:`SlopeBias`.

    Parameters
    ----------
    heads : the model's head count, all shards together.
    form : storage form, see :class:`positionlib.terms.SlopeBias`.
    head_ids : the heads of this shard, in its order; None for all.
    slopes : other slopes than the paper's, one a head; a list, array or tensor.
    learned : train the slopes, kept positive as ``log_slopes`` [heads of this shard], never in half precision; not the paper's method.

    Raises
    ------
    PositionContractError
        an unknown form, slopes or head ids that do not fit, or a causal form under a geometry that shows the future.
    """

    @checked
    def __init__(self, heads: int, *, form: str = "relative", slopes: Sequence[float] | None = None, head_ids: Sequence[int] | None = None,
                 inside_scale: bool = False, rounded: torch.dtype | None = None, learned: bool = False) -> None:
        super().__init__()
        heads = require_count("heads", heads)
        require(isinstance(inside_scale, bool), "inside_scale", inside_scale, "True or False", "Only Falcon adds the bias inside.")
        require(isinstance(learned, bool), "learned", learned, "True or False", "The paper's slopes are fixed.")
        self.form, self.inside_scale, self.rounded = require_choice("form", form, SLOPE_FORMS), inside_scale, rounded
        given = alibi_slopes(heads) if slopes is None else torch.tensor(slopes, dtype=torch.float64, device="cpu")
        require(given.shape == (heads,) and bool(torch.isfinite(given).all()), "slopes", given, f"{heads} finite numbers", "Give one slope a head.")
        ids = list(range(heads)) if head_ids is None else [require_count("head_ids", h, 0) for h in head_ids]
        require(all(h < heads for h in ids) and len(set(ids)) == len(ids), "head_ids", ids, f"different ids in 0..{heads - 1}",
                "Count heads over all shards.")
        # Kept as numbers, not as a buffer: a dtype move must not round a slope, and no checkpoint holds one.
        self._slopes = tuple(float(given[h]) for h in ids)
        require(not learned or all(m > 0 for m in self._slopes), "slopes", given, "positive numbers when they are learned",
                "A learned slope is the exponential of its parameter.")
        self.register_parameter("log_slopes", nn.Parameter(torch.tensor([log(m) for m in self._slopes])) if learned else None)

    @property
    def slopes(self) -> Float[Tensor, "H"]:
        """m_h of this shard's heads: float64, and on the CPU, unless they are learned."""
        return torch.tensor(self._slopes, dtype=torch.float64, device="cpu") if self.log_slopes is None else self.log_slopes.exp()

    @checked
    def forward(self, geometry: AttentionGeometry) -> SlopeBias:
        """The penalty of this call, [1|B, H, Q, K] once expanded."""
        geometry.require_shared_frame("ALiBi distances")
        if self.form != "symmetric" and not geometry.causal:
            raise PositionContractError("form", self.form, "a causal geometry, or form='symmetric'",
                                        "The paper's penalty knows the past only: make the geometry causal, or name the symmetric form.")
        slopes = on_device(self._slopes, torch.float64, geometry.device).clone() if self.log_slopes is None else self.slopes.to(geometry.device)
        return SlopeBias(slopes=slopes, form=self.form, inside_scale=self.inside_scale, rounded=self.rounded,
                         requires=None if self.form == "symmetric" else "causal")

    def extra_repr(self) -> str:
        return f"{len(self._slopes)}, form={self.form!r}, inside_scale={self.inside_scale}, learned={self.log_slopes is not None}"
