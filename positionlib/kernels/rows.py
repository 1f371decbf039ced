"""State rows without attention: admission, checks, and the fused additions (``sinusoidal``, ``learned``, ``grid``, ``time2vec``) and ``rotary``.

Each equals the mechanism's own term, :meth:`positionlib.terms.StateRows.add_to` or :meth:`positionlib.rotation.QKTransform.rotate`, with
one pass over the state: it is read once, written once, and the rows are never in memory. Gradients reach the state, every table, ω, φ and τ.
A gradient of a gradient exists for rotations alone, and is refused by name elsewhere.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from positionlib.errors import PositionRangeError, UnsupportedPositionContract, require, require_choice, require_count
from positionlib.kernels import row_ops
from positionlib.kernels.admission import DTYPES, interpreted, transformed
from positionlib.rules import integers, readable
from positionlib.rotation import PAIRINGS

LAYOUTS = ("interleaved", "concatenated")
FUNCTIONS = ("sin", "cos")
LINEAR = ("first", "last")


def refusal(x: Tensor, *, trained: tuple[Tensor, ...] = (), fixed: tuple[Tensor, ...] = ()) -> str | None:
    """None when the row kernels admit the call, else the reason, naming what is missing.

    ``trained`` are parameters, which get gradients; ``fixed`` are the frequencies, which have none. Shapes are the caller's to refuse.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    for t in (x, *trained):
        if t.dtype not in DTYPES:
            return f"dtype {t.dtype}: the kernel takes float16, bfloat16 or float32"
    if why_not := transformed():
        return why_not
    if torch.is_grad_enabled() and any(t.requires_grad for t in fixed):
        return "a gradient of the frequencies is required: the kernel has none"
    others = {t.device for t in (*trained, *fixed)} - {x.device}
    if others:
        return f"device {others.pop()}: x is on {x.device}"
    if interpreted():
        return None if x.device.type == "cpu" else f"device {x.device}: the interpreter takes CPU tensors"
    if x.device.type != "cuda":
        return f"device {x.device}: the kernel runs on CUDA, or on the CPU under TRITON_INTERPRET=1"
    if torch.float64 in {t.dtype for t in (x, *trained)}:
        return "dtype torch.float64: on a GPU the kernel takes float16, bfloat16 or float32"
    if torch.cuda.get_device_capability(x.device) < (8, 0):
        return "compute capability below 8.0: the kernels are compiled and judged for 8.0 and 9.0"
    return None


def add_sinusoidal(x: Float[Tensor, "B N D"], positions: Int[Tensor, "*B N"], inverse_frequency: Float[Tensor, "P"], *,
                   layout: str) -> Float[Tensor, "B N D"]:
    """x + PE(positions), from frequencies in radians a position (:func:`positionlib.mechanisms.sinusoidal.inverse_frequencies`).

    P sines and D // 2 cosines, in pairs (``interleaved``) or blocks (``concatenated``), and nothing in a channel that is left: any policy for
    an odd width. Positions of either sign; the angle is off by less than |position| · 10⁻¹⁸ · (ω + 1) radians, and the sine by 2·10⁻⁷.
    Rows of a finished table are :func:`add_row`'s.

    Raises
    ------
    PositionContractError
        shapes that do not belong together, positions that are no integers, an unknown layout. ``UnsupportedPositionContract``: refused.
    """
    _dense("inverse_frequency", inverse_frequency)
    _admit(x, fixed=(inverse_frequency,))
    require_choice("layout", layout, LAYOUTS)
    positions = _one_a_row("positions", integers("positions", positions), x)
    pairs = inverse_frequency.numel()
    require(inverse_frequency.ndim == 1 and x.shape[2] // 2 <= pairs <= (x.shape[2] + 1) // 2, "inverse_frequency", inverse_frequency,
            f"one a sine, {x.shape[2] // 2} for width {x.shape[2]}", "Build them with inverse_frequencies(d_model).")
    return row_ops.add_sinusoidal(x, positions, inverse_frequency.double(), layout == "interleaved")


def add_row(x: Float[Tensor, "B N D"], table: Float[Tensor, "R D"], positions: Int[Tensor, "*B N"], *, row_offset: int = 0) -> Float[Tensor, "B N D"]:
    """x + table[positions + row_offset]: learned absolute positions, or a finished table of any kind.

    The table's gradient is summed in a fixed order in at least float32. In a compiled graph nothing looks at the positions: one without a
    row then gives a row of NaN, and its gradient is left out.

    Raises
    ------
    PositionRangeError
        a position without a row.
    PositionContractError
        shapes that do not belong together, positions that are no integers. ``UnsupportedPositionContract``: refused.
    """
    _dense("table", table)
    _admit(x, trained=(table,))
    _table("table", table, x)
    positions = _one_a_row("positions", integers("positions", positions), x)
    _within("positions", positions, 0, len(table) - require_count("row_offset", row_offset, 0))
    return row_ops.add_row(x, table, positions, row_offset)


def add_grid(x: Float[Tensor, "B N D"], row_table: Float[Tensor, "R D"], column_table: Float[Tensor, "C D"], rows: Int[Tensor, "*B N"],
             columns: Int[Tensor, "*B N"]) -> Float[Tensor, "B N D"]:
    """x + row_table[rows] + column_table[columns]: a separable grid, composed by a sum. Coordinate −1, a leading token's, adds nothing.

    Raises
    ------
    PositionRangeError
        a coordinate outside −1..length−1 of its table.
    PositionContractError
        shapes that do not belong together, coordinates that are no integers. ``UnsupportedPositionContract``: refused.
    """
    _dense("row_table", row_table)
    _dense("column_table", column_table)
    _admit(x, trained=(row_table, column_table))
    coordinates = []
    for name, table, given in (("row", row_table, rows), ("column", column_table, columns)):
        _table(f"{name}_table", table, x)
        coordinates.append(_one_a_row(f"{name}s", integers(f"{name}s", given), x))
        _within(f"{name}s", coordinates[-1], -1, len(table))
    return row_ops.add_grid(x, row_table, column_table, *coordinates)


def add_time2vec(x: Float[Tensor, "B N D"], tau: Float[Tensor, "*B N"], omega: Float[Tensor, "D"], phi: Float[Tensor, "D"], *, function: str,
                 linear: str, present: Bool[Tensor, "*B N"] | None = None) -> Float[Tensor, "B N D"]:
    """x + [ω_0 τ + φ_0, F(ω_1 τ + φ_1), …] at times without unit (:meth:`positionlib.mechanisms.time2vec.TimeAxis.tau`), float64.

    Phases are float64. A row whose ``present`` is False stays x.

    Raises
    ------
    PositionContractError
        shapes that do not belong together, times below float64, an unknown convention. ``UnsupportedPositionContract``: refused.
    """
    for name, t in (("tau", tau), ("omega", omega), ("phi", phi)):
        _dense(name, t)
    _admit(x, trained=(omega, phi))
    require_choice("function", function, FUNCTIONS)
    require_choice("linear", linear, LINEAR)
    require(tau.dtype == torch.float64, "tau", tau, "float64", "Subtract the origin before anything is rounded.")
    present = torch.ones_like(tau, dtype=torch.bool) if present is None else present
    require(isinstance(present, Tensor) and present.dtype == torch.bool and present.layout == torch.strided, "present", present,
            "a boolean tensor, True = has a time", "Compare: present = mask == 1.")
    present = _one_a_row("present", present, x)
    for name, t in (("omega", omega), ("phi", phi)):
        require(t.shape == x.shape[2:], name, t, f"one number a channel, [{x.shape[2]}]", "The linear channel has its own, in its place.")
    return row_ops.add_time2vec(x, _one_a_row("tau", tau, x), present, omega, phi, 0 if linear == "first" else x.shape[2] - 1, function == "cos")


def rotate(x: Float[Tensor, "B H N D"], positions: Int[Tensor, "*B N"], inverse_frequency: Float[Tensor, "P"], *,
           pairing: str) -> Float[Tensor, "B H N D"]:
    """x with its first 2P channels turned in pairs by position times frequency: :meth:`positionlib.rotation.QKTransform.rotate`.

    Positions of either sign, below 2^63; the angle is off by less than |position| · 10⁻¹⁸ · (ω + 1) radians. The gradient is the rotation back.

    Raises
    ------
    PositionContractError
        shapes that do not belong together, positions that are no integers, an unnamed pairing. ``UnsupportedPositionContract``: refused.
    """
    _dense("x", x)
    _dense("inverse_frequency", inverse_frequency)
    require(x.ndim == 4, "x", x, "[B, H, N, D]", "Split the heads first.")
    _unless_refused(refusal(x, fixed=(inverse_frequency,)))
    require_choice("pairing", pairing, PAIRINGS)
    require(inverse_frequency.ndim == 1 and 0 < 2 * inverse_frequency.numel() <= x.shape[3], "inverse_frequency", inverse_frequency,
            f"[P], at most {x.shape[3] // 2} pairs for width {x.shape[3]}", "Build them for the model's d_head.")
    positions = _one_a_row("positions", integers("positions", positions), x.transpose(1, 2))
    return row_ops.rotate(x, positions, inverse_frequency.double(), pairing == "interleaved", False)


def _admit(x, **tensors) -> None:
    _dense("x", x)
    require(x.ndim == 3, "x", x, "a state [B, N, D]", "Give a batch axis; transpose a sequence-first state.")
    _unless_refused(refusal(x, **tensors))


def _dense(field: str, t: object) -> None:
    dense = isinstance(t, Tensor) and t.layout == torch.strided and t.dtype.is_floating_point
    require(dense, field, t, "a dense floating-point tensor", "Build it as one: nothing is converted unasked.")


def _unless_refused(why_not: str | None) -> None:
    if why_not is not None:
        raise UnsupportedPositionContract("backend", "triton", "a call that the row kernels admit", why_not, frozenset({why_not}))


def _one_a_row(field: str, values: Tensor, x: Tensor) -> Tensor:
    """``values`` [N] or [B, N] as the rows of x."""
    require(tuple(values.shape) in (x.shape[1:2], (1, x.shape[1]), x.shape[:2]), field, values, f"{x.shape[1]} a sequence, shared or of each of {x.shape[0]}",
            "Give one number a row.")
    require(values.device == x.device, f"{field}.device", str(values.device), f"{x.device}, as x", "Move them.")
    return values


def _table(field: str, table: Tensor, x: Tensor) -> None:
    require(table.ndim == 2 and table.shape[1] == x.shape[2], field, table, f"[rows, {x.shape[2]}]", "Add coordinates of the model's own width.")


def _within(field: str, ids: Tensor, first: int, stop: int) -> None:
    """Refuse an id outside first..stop−1 where the host can look."""
    if readable(ids):
        for value in torch.stack(ids.aminmax()).tolist():  # one wait for the device, not two
            if not first <= value < stop:
                raise PositionRangeError(field, value, f"{first}..{stop - 1}", "Shorten the call or give a table with more rows.")
