"""Rows of a table added to a state, and the table's gradient (Devlin et al. 2018, section 3).

    y_bn = x_bn + P[r_bn]          ∂L/∂P_r = Σ over every (b, n) with r_bn = r of ∂L/∂y_bn

The gradient is a reduction in a fixed order, with no atomic: the host sorts the row ids, so that the places of a row are neighbours
in ORDER, and one program sums them. Places are cut into chunks of CHUNK; a chunk that lies within one row, as where a padding row is
read ten thousand times, is summed first by a program of its own. With ids shared by a batch one entry of ORDER stands for SHARED places.
"""

import triton
import triton.language as tl

from positionlib.kernels.row_tile import owned, row_values, tile_at


@triton.jit
def add_row(
    X, TABLE, ID, OUT, x_stride, table_stride, id_stride, out_stride, n_rows, width, table_rows, row_offset,
    ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """OUT [B, N, D] = X + TABLE[ID + row_offset]. An id without a row gives NaN and reads nothing; the host refuses it where it can look."""
    b, n, d, inside = owned(n_rows, width, BLOCK_N, BLOCK_D)
    r = row_values(ID, b, n, id_stride, n_rows).to(tl.int64) + row_offset
    row = tl.load(TABLE + r[:, None] * table_stride[0] + d[None, :] * table_stride[1],
                  mask=inside & ((r >= 0) & (r < table_rows))[:, None], other=float("nan")).to(ACC)  # P[r_bn]
    x = tl.load(tile_at(X, b, n, d, x_stride), mask=inside, other=0.0).to(ACC)
    tl.store(tile_at(OUT, b, n, d, out_stride), (x + row).to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def sum_chunk(
    G, ORDER, SORTED, PARTIAL, g_stride, n_rows, width, SHARED,
    ACC: tl.constexpr, CHUNK: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """PARTIAL[chunk] = Σ ∂L/∂y over the chunk's places, for a full chunk within one row; others are left to :func:`sum_row`."""
    chunk = tl.program_id(0).to(tl.int64)
    first, last = tl.load(SORTED + chunk * CHUNK // SHARED), tl.load(SORTED + ((chunk + 1) * CHUNK - 1) // SHARED)
    if first == last:
        d = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)).to(tl.int64)
        total = tl.zeros((BLOCK_S, BLOCK_D), ACC)
        total = add_places(total, chunk * CHUNK, (chunk + 1) * CHUNK, G, ORDER, g_stride, n_rows, width, SHARED, d, ACC, BLOCK_S)
        tl.store(PARTIAL + chunk * width + d, tl.sum(total, 0), mask=d < width)


@triton.jit
def sum_row(
    G, ORDER, BOUND, PARTIAL, OUT, g_stride, out_stride, n_rows, width, SHARED,
    ACC: tl.constexpr, CHUNK: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """OUT[r] = Σ over its places BOUND[r] .. BOUND[r + 1] of ∂L/∂y: up to its first whole chunk, its whole chunks, and what is left."""
    r = tl.program_id(0).to(tl.int64)
    d = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)).to(tl.int64)
    start, stop = tl.load(BOUND + r) * SHARED, tl.load(BOUND + r + 1) * SHARED
    first, last = tl.cdiv(start, CHUNK), stop // CHUNK  # whole chunks of this row
    head = tl.minimum(first * CHUNK, stop)
    tail = tl.maximum(last * CHUNK, head)
    total = tl.zeros((BLOCK_S, BLOCK_D), ACC)
    total = add_places(total, start, head, G, ORDER, g_stride, n_rows, width, SHARED, d, ACC, BLOCK_S)
    for at in range(first, last, BLOCK_S):
        chunk = at + tl.arange(0, BLOCK_S)
        whole = (chunk < last)[:, None] & (d < width)[None, :]
        total += tl.load(PARTIAL + chunk[:, None] * width + d[None, :], mask=whole, other=0.0)
    total = add_places(total, tail, stop, G, ORDER, g_stride, n_rows, width, SHARED, d, ACC, BLOCK_S)
    tl.store(OUT + r * out_stride[0] + d * out_stride[1], tl.sum(total, 0).to(OUT.dtype.element_ty), mask=d < width)


@triton.jit
def add_places(total, start, stop, G, ORDER, g_stride, n_rows, width, SHARED, d, ACC: tl.constexpr, BLOCK_S: tl.constexpr):
    """total plus ∂L/∂y at the places start .. stop of ORDER, BLOCK_S at a time."""
    for at in range(start, stop, BLOCK_S):
        place = at + tl.arange(0, BLOCK_S)
        row = tl.load(ORDER + place // SHARED, mask=place < stop, other=0)
        b, n = row // n_rows + place % SHARED, row % n_rows  # one of the two summands of b is 0
        g_at = G + (b * g_stride[0] + n * g_stride[1])[:, None] + d[None, :] * g_stride[2]
        total += tl.load(g_at, mask=(place < stop)[:, None] & (d < width)[None, :], other=0.0).to(ACC)
    return total
