"""Sinusoidal coordinates (Vaswani et al. 2017, section 3.5).

    θ = t · ω_i,   ω_i = base^(−2i/d)          row(t) = [sin θ_0, cos θ_0, sin θ_1, cos θ_1, …]      (interleaved)
                                               row(t) = [sin θ_0, sin θ_1, …, cos θ_0, cos θ_1, …]   (concatenated)

Contract: the coordinate is the integer position of the geometry; the input state [B, N, D] changes, once, before any projection;
no parameter and no checkpoint tensor, only frequencies that are rebuilt from the configuration; the runtime offset is in the
positions. It fails by a restarted arange, a wrong base, ladder or layout, by positions cast before the phase, and by being added
twice, which a compiled or exported graph does not notice.

Conventions by name. ``ladder``: ``paper`` or ``endpoint`` (tensor2tensor bafdc1b, fairseq). ``layout``: interleaved
(annotated-transformer debc9fd) or concatenated (Transformer-XL 44781ed, Marian, fairseq). ``odd_width``:

- ``error``: refuse (annotated-transformer fails on a shape mismatch).
- ``drop_last_cosine``: one sine more than cosines (Marian in transformers 5.24).
- ``zero_pad``: pairs for d − 1 channels, then a zero (tensor2tensor, fairseq).
- ``next_even``: the frequencies of width d + 1, cut to d channels (positional-encodings 6.0.3).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import PositionContractError, require, require_choice, require_count
from positionlib.frequencies import FrequencyBuffer
from positionlib.geometry import AttentionGeometry
from positionlib.rules import frequency_ladder, integers, require_phase
from positionlib.terms import StateRows

LAYOUTS = ("interleaved", "concatenated")
ODD_WIDTHS = ("error", "drop_last_cosine", "zero_pad", "next_even")


@checked
def inverse_frequencies(d_model: int, *, base: float = 10_000.0, ladder: str = "paper", odd_width: str = "error") -> Float[Tensor, "P"]:
    """ω_i in radians a position, float64, one for each sine.

    Raises
    ------
    PositionContractError
        an odd width under ``odd_width="error"``, a width below 2, or what :func:`positionlib.rules.frequency_ladder` refuses.
    """
    require_count("d_model", d_model, 2)
    require_choice("odd_width", odd_width, ODD_WIDTHS)
    odd = d_model % 2
    require(not odd or odd_width != "error", "d_model", d_model, "an even width",
            "Sines and cosines come in pairs: use an even width, or name an odd_width policy.")
    pairs = d_model // 2 if odd_width == "zero_pad" else (d_model + 1) // 2
    # zero_pad takes the exponent from the paired channels, next_even from the width it was cut from.
    width = {"zero_pad": d_model - odd, "next_even": d_model + odd}.get(odd_width, d_model)
    return frequency_ladder(pairs, width, base, ladder=ladder)


@checked
def sinusoidal_rows(positions: Int[Tensor, "*B N"], d_model: int, *, base: float = 10_000.0, layout: str = "interleaved",
                    ladder: str = "paper", odd_width: str = "error", construction_dtype: torch.dtype = torch.float64,
                    output_dtype: torch.dtype = torch.float32) -> Float[Tensor, "*B N D"]:
    """Coordinate rows at integer positions. Phases are built in ``construction_dtype`` and rounded once, at the end.

    Raises
    ------
    PositionContractError
        positions that are not integers or that the construction dtype no longer tells apart, a construction dtype below float32, an
        unknown layout, or a width that
        :func:`inverse_frequencies` refuses.
    """
    frequencies = inverse_frequencies(d_model, base=base, ladder=ladder, odd_width=odd_width)
    return _rows(positions, frequencies, d_model, layout, odd_width, construction_dtype, output_dtype)


@checked
def sinusoidal_table(length: int, d_model: int, *, offset: int = 0, **settings) -> Float[Tensor, "length D"]:
    """Rows offset..offset+length-1; a chunk is the slice of the long table. Settings as in :func:`sinusoidal_rows`."""
    require_count("offset", offset, 0)
    return sinusoidal_rows(torch.arange(offset, offset + require_count("length", length, 0)), d_model, **settings)


class Sinusoidal(FrequencyBuffer):
    """module(geometry) returns the :class:`StateRows` of the query positions; module.add(x, geometry) adds them."""

    @checked
    def __init__(self, d_model: int, *, base: float = 10_000.0, layout: str = "interleaved", ladder: str = "paper",
                 odd_width: str = "error", construction_dtype: torch.dtype = torch.float64,
                 output_dtype: torch.dtype = torch.float32) -> None:
        super().__init__(inverse_frequencies(d_model, base=base, ladder=ladder, odd_width=odd_width))
        _check_conventions(layout, construction_dtype)
        self.d_model, self.base, self.layout, self.ladder, self.odd_width = d_model, base, layout, ladder, odd_width
        self.construction_dtype, self.output_dtype = construction_dtype, output_dtype

    @checked
    def forward(self, geometry: AttentionGeometry) -> StateRows:
        """Rows [N, D] or [B, N, D] of the geometry's query positions."""
        rows = _rows(geometry.query_positions, self.inverse_frequency, self.d_model, self.layout, self.odd_width, self.construction_dtype,
                     self.output_dtype)
        return StateRows(rows=rows, mark="sinusoidal")

    @checked
    def add(self, x: Float[Tensor, "B N D"], geometry: AttentionGeometry, *, batch_first: bool = True) -> Float[Tensor, "B N D"]:
        """x + rows. A sequence-first state [N, B, D] is named by ``batch_first=False``: its shape cannot tell."""
        return self(geometry).add_to(x, batch_first=batch_first)

    def extra_repr(self) -> str:
        return f"{self.d_model}, base={self.base:g}, layout={self.layout!r}, ladder={self.ladder!r}, odd_width={self.odd_width!r}"


@checked
def layout_permutation(d_model: int, source: str, target: str, *, odd_width: str = "error") -> Int[Tensor, "D"]:
    """Index p with rows_in_target = rows_in_source[..., p]. At an odd width the policy that made the rows decides where the last one goes.

    Raises
    ------
    PositionContractError
        an unknown layout, or an odd width whose policy is not named.
    """
    require_count("d_model", d_model, 2)
    require_choice("odd_width", odd_width, ODD_WIDTHS)
    require(d_model % 2 == 0 or odd_width != "error", "d_model", d_model, "an even width, or a named odd_width",
            "A shape does not show which policy made an odd row.")
    for name, layout in (("source", source), ("target", target)):
        require_choice(name, layout, LAYOUTS)
    channels = torch.arange(d_model)
    paired = d_model - 1 if d_model % 2 and odd_width == "zero_pad" else d_model  # the zero stays last in both layouts
    concatenated_from_interleaved = torch.cat((channels[0:paired:2], channels[1:paired:2], channels[paired:]))
    if source == target:
        return channels
    return concatenated_from_interleaved if source == "interleaved" else concatenated_from_interleaved.argsort()


@checked
def convert_layout(rows: Float[Tensor, "*B D"], *, source: str, target: str, odd_width: str = "error") -> Float[Tensor, "*B D"]:
    """The same coordinates with their channels in the other order."""
    return rows[..., layout_permutation(rows.shape[-1], source, target, odd_width=odd_width).to(rows.device)]


@checked
def convert_layout_weight(weight: Float[Tensor, "O D"], *, source: str, target: str, odd_width: str = "error") -> Float[Tensor, "O D"]:
    """A downstream linear weight [out, D] with its columns permuted, so that weight' · rows' = weight · rows."""
    return convert_layout(weight, source=source, target=target, odd_width=odd_width)


def _rows(positions, frequencies, d_model, layout, odd_width, construction_dtype, output_dtype):
    _check_conventions(layout, construction_dtype)
    positions = integers("positions", positions)
    require_phase("positions", positions, construction_dtype)
    require(output_dtype.is_floating_point, "output_dtype", output_dtype, "a floating-point dtype", "Rows are sines and cosines.")
    phase = positions[..., None].to(construction_dtype) * frequencies.to(positions.device, construction_dtype)
    sine, cosine = phase.sin(), phase.cos()[..., : d_model // 2]
    channels = torch.cat((sine, cosine, sine.new_zeros(*sine.shape[:-1], d_model - sine.shape[-1] - cosine.shape[-1])), -1)
    if layout == "interleaved":
        channels = convert_layout(channels, source="concatenated", target=layout, odd_width=odd_width)
    return channels.to(output_dtype)


def _check_conventions(layout: str, construction_dtype: torch.dtype) -> None:
    require_choice("layout", layout, LAYOUTS)
    if construction_dtype not in (torch.float32, torch.float64):
        raise PositionContractError("construction_dtype", construction_dtype, "float32 or float64",
                                    "Build phases wide and cast the finished rows with output_dtype.")
