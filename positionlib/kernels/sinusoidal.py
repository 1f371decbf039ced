"""Sinusoidal rows added to a state, y_n = x_n + PE(p_n), built on the fly (Vaswani et al. 2017, section 3.5).

    interleaved    PE(p)[2c] = sin(p ω_c)    PE(p)[2c + 1] = cos(p ω_c)
    concatenated   PE(p)[c]  = sin(p ω_c)    PE(p)[P + c]  = cos(p ω_c)        c < P

A channel past the last pair gets nothing, and a cosine past the width is not made: that serves every policy for odd widths. The
gradient of x is the gradient of y. Angles are exact to what ``turns`` says, for positions of any size.
"""

import triton
import triton.language as tl

from positionlib.kernels.row_tile import owned, row_values, tile_at
from positionlib.kernels.turns import QUARTER, no_angle, sine, turns


@triton.jit
def add_sinusoidal(
    X, POSITION, FREQUENCY, OUT, x_stride, position_stride, out_stride, n_rows, width, pairs, batch,
    INTERLEAVED: tl.constexpr, TOGETHER: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """OUT [B, N, D] = X + PE(POSITION); FREQUENCY is float64 [P]. TOGETHER batch rows share one line of positions and are made at once."""
    group, n, d, inside = owned(n_rows, width, BLOCK_N, BLOCK_D)
    if INTERLEAVED:
        c, is_cosine = d // 2, d % 2 == 1
    else:
        c, is_cosine = tl.where(d < pairs, d, d - pairs), d >= pairs
    omega = tl.load(FREQUENCY + c, mask=c < pairs, other=0.0)
    p = row_values(POSITION, group * TOGETHER, n, position_stride, n_rows).to(tl.int64)
    angle = p[:, None] * turns(omega)[None, :] + tl.where(is_cosine, QUARTER, 0)[None, :]  # p ω_c, and a quarter turn for a cosine
    row = tl.where((c < pairs)[None, :], sine(angle, ACC) + no_angle(omega, ACC)[None, :], 0.0)
    for member in range(TOGETHER):
        b = group * TOGETHER + member
        here = inside & (b < batch)
        x = tl.load(tile_at(X, b, n, d, x_stride), mask=here, other=0.0).to(ACC)
        tl.store(tile_at(OUT, b, n, d, out_stride), (x + row).to(OUT.dtype.element_ty), mask=here)
