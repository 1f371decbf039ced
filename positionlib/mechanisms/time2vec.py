"""Time2Vec: a linear and several periodic channels of a real-valued time (Kazemi et al. 2019, section 4).

    τ = (timestamp − origin) / unit          row(τ) = [ω_0 τ + φ_0, F(ω_1 τ + φ_1), …, F(ω_K τ + φ_K)],   F = sin or cos

Contract
- coordinate source: timestamps with a declared unit, clock and zone (:class:`Timestamps`), not the positions of a geometry: event
  number and elapsed time are two coordinates. The module's :class:`TimeAxis` turns them into τ, in float64.
- changed tensor: the input state [B, N, D], once, before any projection.
- shape: rows [N, D] or [B, N, D], with D = K + 1.
- parameter or buffer state: ω [D] and φ [D] in the order of the channels. They stay float32 when a module is moved to half precision:
  a rounded ω is another frequency. The axis, F, the channel order and the missing-time rule are saved with them and must agree.
- training path: both receive gradients, ω's in proportion to τ; a row without a time gives none.
- runtime offset: none is added. A later call brings later timestamps on the same axis, never a restarted clock.
- failure modes: milliseconds read as seconds, another origin or zone, a clock rounded to float32 before the subtraction, the linear
  channel looked for at the other end, a missing time taken for the origin; every one keeps the shape.

Conventions by name. ``linear``: ``first`` (the paper, channel 0) or ``last`` (ojus1/Time2Vec-PyTorch 5517dbf). ``missing``: ``error``,
or ``zero_row``: a row of zeros and False in the term's ``present``. A compiled graph has no values to look at: there every missing
time becomes a zero row, and neither it nor a time outside the declared range is refused.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from fractions import Fraction

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from positionlib.contract import checked
from positionlib.errors import FrameMismatchError, require, require_choice, require_count, whole_number
from positionlib.frequencies import WideParameters
from positionlib.rules import integers
from positionlib.terms import StateRows

# Seconds. No month and no year: neither is a number of seconds.
UNITS = {"ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "ms": Fraction(1, 1000), "s": Fraction(1), "min": Fraction(60),
         "h": Fraction(3600), "d": Fraction(86_400)}
FUNCTIONS = ("sin", "cos")
LINEAR = ("first", "last")
MISSING = ("error", "zero_row")
LARGEST_COUNT = 2**62  # so that the difference of two counts fits an int64; NumPy's "not a time" lies beyond


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class Timestamps:
    """Times as a source gave them.

    Attributes
    ----------
    values : int64 or float64 [N] or [B, N], counted in ``unit``. Other integers are widened; shorter floats are refused.
    unit : ns, us, ms, s, min, h or d. There is no default: a number does not show it.
    clock : what the count is taken from, such as "unix" or "first event of the session".
    zone : the zone of a wall clock, such as "UTC" or "Europe/Paris"; None for a clock without one. Zones are compared, never converted.
    present : bool like ``values``; False where there is no time. A NaN is a missing time too.

    Raises
    ------
    PositionContractError
        a float below 64 bits (float32 counts today's seconds in steps of 128), an unknown unit, an infinite or too large time.
    """

    values: Float[Tensor, "*B N"] | Int[Tensor, "*B N"]
    unit: str
    clock: str
    zone: str | None
    present: Bool[Tensor, "*B N"] | None = None

    def __post_init__(self) -> None:
        values = self.values
        floats = isinstance(values, Tensor) and values.dtype == torch.float64
        require(isinstance(values, Tensor) and values.ndim in (1, 2), "values", values, "a tensor [N] or [B, N]", "One time a row.")
        if not floats:
            require(not values.dtype.is_floating_point, "values", values, "float64, or integers",
                    "Keep the source's integers, or convert to float64 before anything is rounded.")
            values = integers("values", values)
        require_choice("unit", self.unit, tuple(UNITS))
        _check_clock(self.clock, self.zone)
        present = torch.ones_like(values, dtype=torch.bool) if self.present is None else self.present
        require(isinstance(present, Tensor) and present.dtype == torch.bool and present.shape == values.shape, "present", present,
                f"bool of shape {tuple(values.shape)}", "Compare: present = mask == 1.")
        present = present & ~values.isnan()
        if _has_values(values) and present.any():
            # Both ends, since the magnitude of the smallest int64 is no int64.
            low, high = values[present].min().item(), values[present].max().item()
            require(-LARGEST_COUNT < low <= high < LARGEST_COUNT, "values", (low, high), "finite times, below 2^62 in magnitude",
                    "Give a missing time as NaN or by present=False.")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "present", present)

    @property
    def device(self) -> torch.device:
        return self.values.device


@checked
@dataclass(frozen=True)
class TimeAxis:
    """What turns a count into a coordinate; part of a checkpoint's identity.

    Attributes
    ----------
    origin : seconds on the clock at which τ = 0, whatever unit the timestamps come in.
    unit_seconds : length of one τ in seconds. Learned frequencies are radians in this unit.
    clock, zone : as :class:`Timestamps`'; both must be equal.
    declared_range : smallest and largest τ that may come, or None. It is what notices milliseconds that were declared as seconds.
    """

    origin: float
    unit_seconds: float
    clock: str
    zone: str | None
    declared_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("origin", "unit_seconds"):
            value, whole = getattr(self, name), whole_number(getattr(self, name))
            require(abs(value) < LARGEST_COUNT, name, value, "fewer than 2^62 seconds", "State it in seconds.")
            object.__setattr__(self, name, float(value) if whole is None else whole)
        require(self.unit_seconds > 0, "unit_seconds", self.unit_seconds, "more than 0 seconds", "A unit of a day is 86400.")
        _check_clock(self.clock, self.zone)
        bounds = self.declared_range
        require(bounds is None or isinstance(bounds, tuple) and len(bounds) == 2 and all(isinstance(b, (int, float)) for b in bounds) and bounds[0] < bounds[1],
                "declared_range", bounds, "(smallest, largest) τ, or None", "Take it from the training data.")
        # Found once, here: a compiled graph does no exact arithmetic.
        object.__setattr__(self, "_scales", {unit: self._scale(seconds) for unit, seconds in UNITS.items()})

    def _scale(self, seconds: Fraction) -> tuple[int, float, float, float]:
        """In counts of one raw unit: whole part and rest of the origin, the origin, and one τ."""
        origin = Fraction(self.origin) / seconds
        return math.floor(origin), float(origin - math.floor(origin)), float(origin), float(Fraction(self.unit_seconds) / seconds)

    @checked
    def tau(self, times: Timestamps) -> Float[Tensor, "*B N"]:
        """τ, float64 and without unit; 0 where there is no time. Differentiable in float64 values.

        Raises
        ------
        FrameMismatchError
            timestamps of another clock or zone.
        PositionContractError
            a τ outside the declared range, or an origin that int64 counts of this unit do not reach.
        """
        for name in ("clock", "zone"):
            if getattr(times, name) != getattr(self, name):
                raise FrameMismatchError(name, getattr(times, name), f"{getattr(self, name)!r}, as the axis has",
                                         "Convert the timestamps first: times of two clocks have no difference.")
        whole, rest, origin, unit = self._scales[times.unit]
        if times.values.dtype.is_floating_point:
            since = times.values - origin
        else:
            require(abs(whole) < LARGEST_COUNT, "unit", times.unit, f"a unit in which the origin, {self.origin} s, is below 2^62", "Use a longer unit.")
            # Integers are subtracted as integers: a float64 counts today's nanoseconds in steps of 256.
            since = (times.values - whole).double() - rest
        tau = (since / unit).masked_fill(~times.present, 0.0)
        if self.declared_range is not None and _has_values(tau) and times.present.any():
            low, high = tau[times.present].min().item(), tau[times.present].max().item()
            require(self.declared_range[0] <= low and high <= self.declared_range[1], "tau", (low, high), f"within the declared {self.declared_range}",
                    f"Check the unit, {times.unit!r}: a factor of 1000 is milliseconds for seconds.")
        return tau


@dataclass(frozen=True, eq=False, kw_only=True)
class TimeRows(StateRows):
    """Coordinate rows, and which of them have a time: the others are rows of zeros, which a row may also be by chance."""

    present: Bool[Tensor, "*B N"]


class Time2Vec(WideParameters):
    """module(times) returns the :class:`TimeRows` of these timestamps.

    Parameters
    ----------
    d_model : D, the linear channel included. axis : :class:`TimeAxis`. function : sin or cos. linear : first or last.
    missing : error or zero_row. None of the four has a default: weights of any choice have the same shapes.
    output_dtype : the dtype of the rows, rounded once; phases are float64.

    Raises
    ------
    PositionContractError
        a width below 2, an unknown convention, a missing time under ``missing="error"``; on loading, a checkpoint of another axis,
        function, channel order or missing-time rule, by the name of what differs.
    """

    @checked
    def __init__(self, d_model: int, axis: TimeAxis, *, function: str, linear: str, missing: str, output_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        require(isinstance(axis, TimeAxis), "axis", axis, "a TimeAxis", "State origin, unit, clock and zone.")
        require(output_dtype.is_floating_point, "output_dtype", output_dtype, "a floating-point dtype", "Rows are real numbers.")
        self.axis, self.output_dtype = axis, output_dtype
        self.function, self.linear = require_choice("function", function, FUNCTIONS), require_choice("linear", linear, LINEAR)
        self.missing = require_choice("missing", missing, MISSING)
        # Standard normal, as the release has it; the paper names no distribution.
        self.omega, self.phi = (nn.Parameter(torch.randn(require_count("d_model", d_model, 2), dtype=torch.float32)) for _ in range(2))

    @checked
    def forward(self, times: Timestamps) -> TimeRows:
        """Rows [N, D] or [B, N, D] in ``output_dtype``."""
        if self.missing == "error" and _has_values(times.values):
            require(bool(times.present.all()), "present", times.present.logical_not().nonzero()[:1].tolist(), "a time for every row",
                    "Fill or drop the events without a time, or build the module with missing='zero_row'.")
        phase = self.axis.tau(times)[..., None] * self.omega.double() + self.phi.double()
        at = 0 if self.linear == "first" else phase.shape[-1] - 1
        linear, before, after = phase[..., at : at + 1], phase[..., :at], phase[..., at + 1 :]
        wave = torch.sin if self.function == "sin" else torch.cos
        rows = torch.cat((wave(before), linear, wave(after)), -1).masked_fill(~times.present[..., None], 0.0)
        return TimeRows(rows=rows.to(self.output_dtype), mark="time2vec", present=times.present)

    @property
    def identity(self) -> dict[str, object]:
        """What the weights mean, beside their shapes: axis, function, channel order, missing-time rule."""
        return {**asdict(self.axis), "function": self.function, "linear": self.linear, "missing": self.missing}

    def get_extra_state(self) -> Tensor:
        """``identity`` as bytes in a tensor, since safetensors holds nothing else; every state dict carries it."""
        return torch.tensor(list(json.dumps(self.identity).encode()), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Compare with a checkpoint's identity; torch calls it on loading, before anybody uses the weights."""
        try:
            saved = json.loads(bytes(state.tolist()))
        except (AttributeError, TypeError, ValueError, RuntimeError):
            saved = None
        require(isinstance(saved, dict), "_extra_state", state, "the bytes of an identity", "Cast a checkpoint by its weights alone: this tensor is text.")
        own = json.loads(json.dumps(self.identity))
        for name, value in own.items():
            require(saved.get(name) == value, name, value, f"{saved.get(name)!r}, as the checkpoint was trained with",
                    "Build the module as it was trained; frequencies mean nothing on another axis.")

    def extra_repr(self) -> str:
        return f"{len(self.omega)}, {self.axis}, function={self.function!r}, linear={self.linear!r}, missing={self.missing!r}"


@checked
def convert_linear_channel(channels: Float[Tensor, "*B D"] | Int[Tensor, "*B D"], *, source: str, target: str) -> Tensor:
    """The last axis with the linear channel at the other end: of rows, of ω and φ, or of a downstream weight [out, D]."""
    for name, end in (("source", source), ("target", target)):
        require_choice(name, end, LINEAR)
    return channels if source == target else channels.roll(-1 if source == "first" else 1, -1)


def _check_clock(clock: object, zone: object) -> None:
    require(isinstance(clock, str) and clock != "", "clock", clock, "the name of a clock", "Name what the count is taken from, such as 'unix'.")
    require(zone is None or isinstance(zone, str) and zone != "", "zone", zone, "the name of a zone, or None", "A wall clock needs its zone, such as 'UTC'.")


def _has_values(t: Tensor) -> bool:
    """Whether the host may look at the numbers."""
    return t.device.type != "meta" and not torch.compiler.is_compiling()
