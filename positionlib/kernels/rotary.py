"""Rotary rotation of q or k alone (Su et al. 2021, section 3.2): pair c of the row at position p turns by θ = p ω_c.

    (a, b) → (a cos θ − b sin θ, a sin θ + b cos θ)          gradient: the rotation by −p, since R_pᵀ = R_−p

Pair c is the channels 2c and 2c + 1 (interleaved) or c and c + P (half split), c < P; channels from 2P on are copied. A program turns
its rows in HEADS heads with one set of angles. Angles are exact to what ``turns`` says, for positions of any size and either sign.
"""

import triton
import triton.language as tl

from positionlib.kernels.turns import QUARTER, sine, turns


@triton.jit
def rotate(
    X, POSITION, FREQUENCY, OUT, x_stride, position_stride, out_stride, heads, n_rows, pairs, width,
    INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, ACC: tl.constexpr,
    HEADS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    """OUT [B, H, N, D] = R_p X, or R_−p X where INVERSE; FREQUENCY is float64 [P]. BLOCK_REST is 0 where every channel turns."""
    tiles = tl.cdiv(n_rows, BLOCK_N)
    b = (tl.program_id(0) // tiles).to(tl.int64)
    n = ((tl.program_id(0) % tiles) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    c = tl.arange(0, BLOCK_P)
    has_n, has_pair = n < n_rows, (n < n_rows)[:, None] & (c < pairs)[None, :]
    p = tl.load(POSITION + b * position_stride[0] + n * position_stride[1], mask=has_n, other=0).to(tl.int64)
    if INVERSE:
        p = -p
    angle = p[:, None] * turns(tl.load(FREQUENCY + c, mask=c < pairs, other=0.0))[None, :]  # p ω_c
    cos, sin = sine(angle + QUARTER, ACC), sine(angle, ACC)

    x_at = X + b * x_stride[0] + n[:, None] * x_stride[2]
    out_at = OUT + b * out_stride[0] + n[:, None] * out_stride[2]
    for head in range(tl.program_id(1) * HEADS, tl.minimum((tl.program_id(1) + 1) * HEADS, heads)):
        h = tl.cast(head, tl.int64)
        x_head, out_head = x_at + h * x_stride[1], out_at + h * out_stride[1]
        if INTERLEAVED:  # whole lines are read and written, and parted on the chip
            d = tl.arange(0, 2 * BLOCK_P).to(tl.int64)[None, :]
            has_d = has_n[:, None] & (d < 2 * pairs)
            x = tl.load(x_head + d * x_stride[3], mask=has_d, other=0.0).to(ACC)
            first, second = tl.split(tl.reshape(x, (BLOCK_N, BLOCK_P, 2)))
            turned = tl.join(first * cos - second * sin, first * sin + second * cos)
            tl.store(out_head + d * out_stride[3], tl.reshape(turned, (BLOCK_N, 2 * BLOCK_P)).to(OUT.dtype.element_ty), mask=has_d)
        else:
            d = c.to(tl.int64)[None, :]
            first = tl.load(x_head + d * x_stride[3], mask=has_pair, other=0.0).to(ACC)
            second = tl.load(x_head + (d + pairs) * x_stride[3], mask=has_pair, other=0.0).to(ACC)
            tl.store(out_head + d * out_stride[3], (first * cos - second * sin).to(OUT.dtype.element_ty), mask=has_pair)
            tl.store(out_head + (d + pairs) * out_stride[3], (first * sin + second * cos).to(OUT.dtype.element_ty), mask=has_pair)
        if BLOCK_REST > 0:
            rest = 2 * pairs + tl.arange(0, BLOCK_REST).to(tl.int64)[None, :]
            has_rest = has_n[:, None] & (rest < width)
            tl.store(out_head + rest * out_stride[3], tl.load(x_head + rest * x_stride[3], mask=has_rest), mask=has_rest)
