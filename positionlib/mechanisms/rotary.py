"""Rotary positions (Su et al. 2021, section 3.2), in the pairings of LLaMA and GPT-J (transformers 5.24).

    R_t turns channel pair c by the angle t · ω_c,   ω_c = base^(−2c/r),   c = 0 .. r/2 − 1,   r = rotary_dim
    (a, b) → (a cos − b sin, a sin + b cos)          (R_i q) · (R_j k) = q · (R_(j−i) k)

Pair c is the channels 2c and 2c + 1 (``interleaved``: the paper, GPT-J) or c and c + r/2 (``half_split``: LLaMA, GPT-NeoX). Channels
from r on pass through (GPT-J: r = 64 of 256). The two are one function up to a permutation of channels within each head.

Contract
- coordinate source: the geometry's query and key positions in one frame; only differences reach the scores.
- changed tensor: q and k after their projections, before their product; values and states stay, and no score bias exists.
- shape: q [B, H, Q, D] and k [B, Hkv, K, D] keep theirs; grouped heads turn alike.
- parameter or buffer state: frequencies [r/2], float64, in no checkpoint; they follow a device and never a dtype.
- training path: nothing to train; a rotation hands gradients on, turned back, with their norm.
- runtime offset: the position of each row. A key rotated at its own position may be cached (:class:`positionlib.rotation.QKTransform`).
- failure modes: the other pairing (no shape differs), a base or rotary_dim of another checkpoint, phases in float16 or bfloat16, a
  decode step at position 0, keys rotated twice, one of q and k left unrotated.
- compiled or exported: positions beyond 2⁵³ are not noticed.

Rules that change ω with the length (interpolation, NTK, YaRN) are other methods and are not here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import require, require_choice, require_count
from positionlib.frequencies import FrequencyBuffer
from positionlib.geometry import AttentionGeometry
from positionlib.rotation import PAIRINGS, QKTransform
from positionlib.rules import frequency_ladder


class Rotary(FrequencyBuffer):
    """module(geometry) returns the :class:`QKTransform` that attend() applies to q and k.

    Parameters
    ----------
    d_head : width of the heads of q and k.
    pairing : ``interleaved`` or ``half_split``, as the projections were trained. No default: no shape tells them apart.
    rotary_dim : how many of the channels turn, an even number; None for all. The exponent divides by it.

    Raises
    ------
    PositionContractError
        an unnamed pairing, a rotary_dim that is odd or wider than the head, a base not above 1; a geometry without a shared frame.
    """

    @checked
    def __init__(self, d_head: int, *, pairing: str, rotary_dim: int | None = None, base: float = 10_000.0) -> None:
        width = _rotated(d_head, rotary_dim)
        super().__init__(frequency_ladder(width // 2, width, base))
        self.d_head, self.pairing, self.base = d_head, require_choice("pairing", pairing, PAIRINGS), base

    @checked
    def forward(self, geometry: AttentionGeometry) -> QKTransform:
        """The rotation; the positions join it in attend(), or in its rotate()."""
        geometry.require_shared_frame("rotary offsets")
        return QKTransform(inverse_frequency=self.inverse_frequency.to(geometry.device), pairing=self.pairing, d_head=self.d_head)

    def extra_repr(self) -> str:
        return f"{self.d_head}, pairing={self.pairing!r}, rotary_dim={2 * len(self.inverse_frequency)}, base={self.base:g}"


@checked
def pairing_permutation(d_head: int, source: str, target: str, *, rotary_dim: int | None = None) -> Int[Tensor, "D"]:
    """Index p with rows_in_target = rows_in_source[..., p]; channels from rotary_dim on stay.

    Raises
    ------
    PositionContractError
        an unknown pairing, or widths that :class:`Rotary` refuses.
    """
    width, channels = _rotated(d_head, rotary_dim), torch.arange(d_head)
    for name, pairing in (("source", source), ("target", target)):
        require_choice(name, pairing, PAIRINGS)
    if source == target:
        return channels
    half_split_from_interleaved = torch.cat((channels[0:width:2], channels[1:width:2], channels[width:]))
    return half_split_from_interleaved if source == "interleaved" else half_split_from_interleaved.argsort()


@checked
def convert_pairing(rows: Float[Tensor, "*B D"], *, source: str, target: str, rotary_dim: int | None = None) -> Float[Tensor, "*B D"]:
    """Rows of q or k, rotated (a key cache) or not, with their channels in the other order; also a norm's weight [D] behind the projection.

    Both sides must be converted: q·k then stays what it was.
    """
    return rows[..., pairing_permutation(rows.shape[-1], source, target, rotary_dim=rotary_dim).to(rows.device)]


def convert_pairing_weight(weight: Float[Tensor, "O *M"], d_head: int, *, source: str, target: str,
                           rotary_dim: int | None = None) -> Float[Tensor, "O *M"]:
    """A q or k projection's weight [heads · d_head, M], or its bias [heads · d_head], for a model of the other pairing.

    The permutation repeats in each head, so q's heads and k's fewer heads need no count. Never convert v, or a fused projection whole.

    Raises
    ------
    PositionContractError
        a weight whose first axis is no multiple of d_head, or what :func:`pairing_permutation` refuses.
    """
    order = pairing_permutation(d_head, source, target, rotary_dim=rotary_dim)
    dense = isinstance(weight, Tensor) and weight.layout == torch.strided
    require(dense and weight.ndim in (1, 2) and weight.shape[0] % d_head == 0, "weight", weight, f"[heads · {d_head}, in] or a bias [heads · {d_head}]",
            "Put the output channels first: torch.nn.Linear stores them so.")
    return weight.unflatten(0, (-1, d_head))[:, order.to(weight.device)].flatten(0, 1)


def _rotated(d_head: int, rotary_dim: int | None) -> int:
    """The number of channels that turn."""
    width = require_count("d_head", d_head, 2) if rotary_dim is None else require_count("rotary_dim", rotary_dim, 2)
    field = "d_head" if rotary_dim is None else "rotary_dim"
    require(width % 2 == 0, field, width, "an even number", "Channels turn in pairs: leave an odd one out by rotary_dim.")
    require(width <= require_count("d_head", d_head, 2), field, width, f"at most d_head = {d_head}", "Count the channels of one head.")
    return width
