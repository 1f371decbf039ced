"""Time2Vec rows added to a state, forward and backward (Kazemi et al. 2019, section 4).

    y_n = x_n + row(τ_n)      row(τ)_k = F(θ_k), θ_k = ω_k τ + φ_k, F = sin or cos; the channel LINEAR is θ itself
    ∂L/∂ω_k = Σ_n g_nk F′(θ_nk) τ_n      ∂L/∂φ_k = Σ_n g_nk F′(θ_nk)      ∂L/∂τ_n = Σ_k g_nk F′(θ_nk) ω_k      g = ∂L/∂y

θ is float64, whose error is |θ| · 2^-52 radians, and goes to ``turns``. A row without a time (PRESENT False) stays x and gives no
gradient. Sums over rows are made a tile at a time, in a fixed order: PARTIAL holds one line a tile of rows, and the host adds the lines.
"""

import triton
import triton.language as tl

from positionlib.kernels.row_tile import owned, row_values, tile_at
from positionlib.kernels.turns import QUARTER, no_angle, sine, turns_of_phase


@triton.jit
def add_time2vec(
    X, TAU, PRESENT, OMEGA, PHI, OUT, x_stride, tau_stride, present_stride, out_stride, n_rows, width, LINEAR,
    COSINE: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """OUT [B, N, D] = X + row(TAU); TAU is float64, OMEGA and PHI [D]."""
    b, n, d, inside = owned(n_rows, width, BLOCK_N, BLOCK_D)
    present = row_values(PRESENT, b, n, present_stride, n_rows) != 0
    theta = phase(row_values(TAU, b, n, tau_stride, n_rows), OMEGA, PHI, d, width)
    row = tl.where((d == LINEAR)[None, :], theta.to(ACC), sine(turns_of_phase(theta) + COSINE * QUARTER, ACC) + no_angle(theta, ACC))  # F(θ), or θ
    x = tl.load(tile_at(X, b, n, d, x_stride), mask=inside, other=0.0).to(ACC)
    tl.store(tile_at(OUT, b, n, d, out_stride), (x + tl.where(present[:, None], row, 0.0)).to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def time2vec_gradients(
    G, TAU, PRESENT, OMEGA, PHI, TAU_GRADIENT, PARTIAL, g_stride, tau_stride, present_stride, n_rows, width, LINEAR,
    COSINE: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """TAU_GRADIENT [B, N] in full, and PARTIAL [tiles, 2, D]: this tile's part of ∂L/∂ω and ∂L/∂φ. One program a tile of rows."""
    tile = tl.program_id(0).to(tl.int64)
    b, n, first, _ = owned(n_rows, width, BLOCK_N, BLOCK_D)
    present = row_values(PRESENT, b, n, present_stride, n_rows) != 0
    tau = tl.where(present, row_values(TAU, b, n, tau_stride, n_rows), 0.0)  # an absent time may be NaN, and 0 · NaN would reach ω
    tau_gradient = tl.zeros((BLOCK_N,), ACC)
    for start in range(0, width, BLOCK_D):
        d = start + first
        theta = phase(tau, OMEGA, PHI, d, width)
        slope = sine(turns_of_phase(theta) + COSINE * QUARTER + QUARTER, ACC) + no_angle(theta, ACC)  # F′ runs a quarter ahead
        slope = tl.where((d == LINEAR)[None, :], 1.0, slope)
        inside = (present & (n < n_rows))[:, None] & (d < width)[None, :]
        gf = tl.load(tile_at(G, b, n, d, g_stride), mask=inside, other=0.0).to(ACC) * slope  # g F′(θ)
        at = PARTIAL + tile * 2 * width + d
        tl.store(at, tl.sum(gf * tau.to(ACC)[:, None], 0), mask=d < width)
        tl.store(at + width, tl.sum(gf, 0), mask=d < width)
        tau_gradient += tl.sum(gf * tl.load(OMEGA + d, mask=d < width, other=0.0).to(ACC)[None, :], 1)
    tl.store(TAU_GRADIENT + b * n_rows + n, tau_gradient, mask=n < n_rows)


@triton.jit
def phase(tau, OMEGA, PHI, d, width):
    """θ = ω τ + φ in float64, [len(τ), len(d)]."""
    omega = tl.load(OMEGA + d, mask=d < width, other=0.0).to(tl.float64)
    phi = tl.load(PHI + d, mask=d < width, other=0.0).to(tl.float64)
    return tau[:, None] * omega[None, :] + phi[None, :]
