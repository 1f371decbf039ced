"""Angles as 64-bit fractions of a turn, and the sine of one: as exact at position 2^31 as at 1, where a float32 phase is not.

One turn is 2^64, so a frequency of ω radians a position is the integer ν = ω · 2^64 / 2π and position p has turned by p · ν: the product
of two integers drops whole turns by itself. ν is off by less than |ω|/2 + 2, so an angle by less than |p| (|ω|/2 + 2) · 2π / 2^64
radians: 2·10⁻⁹ at |p| = 2^31 and ω = 1, where a float64 phase is off by 2·10⁻⁷. The sine adds 2·10⁻⁷ in float32, 10⁻¹⁵ in float64.
"""

import math

import triton
import triton.language as tl

QUARTER = tl.constexpr(1 << 62)  # of a turn: cos θ = sin(θ + π/2)


@triton.jit
def turns(omega):
    """ν = ω · 2^64 / 2π mod 2^64 of a float64 ω of either sign, int64."""
    size = tl.abs(omega)
    whole = size.to(tl.int64)
    part = ((size - whole.to(tl.float64)) * 9223372036854775808.0).to(tl.uint64)  # · 2^63; below one radian
    nu = whole * 2935890503282001226 + tl.umulhi(part, 5871781006564002453).to(tl.int64)  # 2^64/2π, 2^65/2π
    return tl.where(omega < 0, -nu, nu)


@triton.jit
def no_angle(omega, ACC: tl.constexpr):
    """0, or NaN for a frequency or phase that is not finite, which no integer of a turn could say."""
    return (omega - omega).to(ACC)


@triton.jit
def turns_of_phase(phase):
    """A float64 phase in radians as a fraction of a turn, int64; off by |phase| · 2^-52 radians."""
    turn = phase * 0.15915494309189535  # 1/2π
    turn = turn - tl.floor(turn + 0.5)  # −1/2 .. 1/2
    return (turn * 9223372036854775808.0).to(tl.int64) << 1  # a half either way is the same turn, and wraps to it


@triton.jit
def sine(turn, ACC: tl.constexpr):
    """sin(2π · turn / 2^64) in ACC, from its series on −π/2 .. π/2; no library routine, whose large arguments would spill."""
    BITS: tl.constexpr = 64 if ACC == tl.float64 else 32  # the upper half of an angle is more than a float32 holds
    TERMS: tl.constexpr = 10 if ACC == tl.float64 else 6
    if BITS == 32:
        turn = (turn >> 32).to(tl.int32)
    beyond_quarter = (turn ^ (turn << 1)) < 0
    turn = tl.where(beyond_quarter, turn ^ ((1 << (BITS - 1)) - 1), turn)  # sin(π − θ) = sin θ, to the last bit but one
    theta = turn.to(ACC) * (6.283185307179586 / (1 << BITS))
    square, series = theta * theta, coefficient(TERMS)
    for step in tl.static_range(TERMS - 1, -1, -1):  # sin θ = θ Σ_k (−1)^k θ^2k / (2k + 1)!, the last first
        series = series * square + coefficient(step)
    return theta * series


@triton.constexpr_function
def coefficient(k):
    """(−1)^k / (2k + 1)!"""
    return (-1) ** k / math.factorial(2 * k + 1)
