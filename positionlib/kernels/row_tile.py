"""What the row kernels share: which rows and channels a program owns, and 64-bit addresses of any strides."""

import triton
import triton.language as tl


@triton.jit
def owned(n_rows, width, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """(batch row, rows [BLOCK_N], channels [BLOCK_D], the tile's mask) of this program: axis 0 counts batch and rows, axis 1 channels."""
    tiles = tl.cdiv(n_rows, BLOCK_N)
    n = (tl.program_id(0) % tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    # 64-bit: a batch of long sequences passes 2^31 elements
    return (tl.program_id(0) // tiles).to(tl.int64), n.to(tl.int64), d.to(tl.int64), (n < n_rows)[:, None] & (d < width)[None, :]


@triton.jit
def tile_at(BASE, b, n, d, stride):
    """Addresses [len(n), len(d)] of BASE[b, n, d]."""
    return BASE + b * stride[0] + n[:, None] * stride[1] + d[None, :] * stride[2]


@triton.jit
def row_values(BASE, b, n, stride, n_rows):
    """BASE[b, n], one number a row, 0 past the end."""
    return tl.load(BASE + b * stride[0] + n * stride[1], mask=n < n_rows, other=0)
