"""Rotary rotation of q and k (Su et al. 2021, section 3.2): pair c of the row at position p turns by θ = p ω_c.

    (a, b) → (a cos θ − b sin θ, a sin θ + b cos θ)          gradient: the rotation by −p, since R_pᵀ = R_−p

Pair c is the channels 2c and 2c + 1 (interleaved) or c and c + P (half split), c < P; channels from 2P on are copied.

``rotate`` turns rows alone: a program has its rows of HEADS heads and one set of angles, exact to what ``turns`` says, for positions of
any size and either sign. ``load_turned`` and ``store_turned_back`` are rotary inside attention: the tile loops call them where rows of
q and k come in and their gradients go out, with cosines and sines from a table, since a key's would be made again for every tile of
queries. In a tile the two channels of a pair lie side by side, whatever the pairing: a product of turned rows is a sum over channels,
and does not ask for their order.
"""

import triton
import triton.language as tl

from positionlib.kernels.turns import QUARTER, no_angle, sine, turns


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
    omega = tl.load(FREQUENCY + c, mask=c < pairs, other=0.0)
    angle = p[:, None] * turns(omega)[None, :]  # p ω_c
    cos = sine(angle + QUARTER, ACC) + no_angle(omega, ACC)[None, :]
    sin = sine(angle, ACC) + no_angle(omega, ACC)[None, :]

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


@triton.jit
def load_turned(ROWS, rows_stride, TURNS, PARTS, batch, n, has_n, width, UPCAST: tl.constexpr, ACC: tl.constexpr, BLOCK_D: tl.constexpr):
    """The tile R_p ROWS[n], [len(n), BLOCK_D], zeros where masked: its channels 2c and 2c + 1 are pair c. TURNS is [B, N, 2, P]: cos θ, sin θ.

    ROWS points at the rows of one head, and its strides are those of [B, H, N, D].
    """
    c = tl.arange(0, BLOCK_D // 2)
    at = ROWS + n.to(tl.int64)[:, None] * rows_stride[2]
    if PARTS.interleaved is None:
        first, second = halves(c, width, PARTS.pairs)
        has = has_n[:, None] & (2 * c < width)[None, :]
        a = tl.load(at + first.to(tl.int64)[None, :] * rows_stride[3], mask=has, other=0.0)
        b = tl.load(at + second.to(tl.int64)[None, :] * rows_stride[3], mask=has, other=0.0)
    else:  # whole lines are read, and parted on the chip
        d = tl.arange(0, BLOCK_D)
        x = tl.load(at + d.to(tl.int64)[None, :] * rows_stride[3], mask=has_n[:, None] & (d < width)[None, :], other=0.0)
        a, b = tl.split(tl.reshape(x, (n.shape[0], BLOCK_D // 2, 2)))
    cos, sin = load_turns(TURNS, batch, n, has_n, c, width, PARTS.pairs)
    wide_a, wide_b = a.to(ACC), b.to(ACC)
    turned = tl.reshape(tl.join(wide_a * cos - wide_b * sin, wide_a * sin + wide_b * cos), (n.shape[0], BLOCK_D))
    return turned.to(tl.float32 if UPCAST else ROWS.dtype.element_ty)


@triton.jit
def store_turned_back(x, ROWS, rows_stride, TURNS, PARTS, batch, n, has_n, width, BLOCK_D: tl.constexpr):
    """ROWS[n] = R_−p x for a tile x whose pairs lie side by side: the gradient of what ``load_turned`` read."""
    c = tl.arange(0, BLOCK_D // 2)
    at = ROWS + n.to(tl.int64)[:, None] * rows_stride[2]
    cos, sin = load_turns(TURNS, batch, n, has_n, c, width, PARTS.pairs)
    a, b = tl.split(tl.reshape(x, (n.shape[0], BLOCK_D // 2, 2)))
    back_a, back_b = (a * cos + b * sin).to(ROWS.dtype.element_ty), (b * cos - a * sin).to(ROWS.dtype.element_ty)
    if PARTS.interleaved is None:
        first, second = halves(c, width, PARTS.pairs)
        has = has_n[:, None] & (2 * c < width)[None, :]
        tl.store(at + first.to(tl.int64)[None, :] * rows_stride[3], back_a, mask=has)
        tl.store(at + second.to(tl.int64)[None, :] * rows_stride[3], back_b, mask=has)
    else:
        d = tl.arange(0, BLOCK_D)
        back = tl.reshape(tl.join(back_a, back_b), (n.shape[0], BLOCK_D))
        tl.store(at + d.to(tl.int64)[None, :] * rows_stride[3], back, mask=has_n[:, None] & (d < width)[None, :])


@triton.jit
def halves(c, width, pairs):
    """The channels c and c + P of pair c. Those that do not turn are pairs too, of angle 0: the first half of them with the second."""
    first, second = c, c + width // 2
    if pairs is not None:
        first, second = tl.where(c < pairs, c, c + pairs), tl.where(c < pairs, c + pairs, second)
    return first, second


@triton.jit
def load_turns(TURNS, batch, n, has_n, c, width, pairs):
    """(cos θ, sin θ) of the rows n, [len(n), len(c)]; angle 0 for a pair that does not turn."""
    at = TURNS.at + batch * TURNS.stride[0] + n.to(tl.int64)[:, None] * TURNS.stride[1] + c.to(tl.int64)[None, :] * TURNS.stride[3]
    has = has_n[:, None] & (c < (width // 2 if pairs is None else pairs))[None, :]
    return tl.load(at, mask=has, other=1.0), tl.load(at + TURNS.stride[2], mask=has, other=0.0)
