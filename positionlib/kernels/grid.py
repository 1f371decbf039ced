"""A separable grid added to a state: one learned table an axis (Dosovitskiy et al. 2021, appendix D.4).

    y_bn = x_bn + R[r_bn] + C[c_bn]

in one pass over the state, where two lookups would read and write it twice. Coordinate −1 is a leading token, which stands in no cell:
that axis adds nothing. The gradients of R and C are two row reductions (``learned``), which leave such a token out by themselves.
"""

import triton
import triton.language as tl

from positionlib.kernels.row_tile import owned, row_values, tile_at


@triton.jit
def add_grid(
    X, ROW_TABLE, COLUMN_TABLE, ROW, COLUMN, OUT, x_stride, row_table_stride, column_table_stride, row_stride, column_stride, out_stride,
    n_rows, width, table_rows, table_columns,
    ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """OUT [B, N, D] = X + ROW_TABLE[ROW] + COLUMN_TABLE[COLUMN], rounded once."""
    b, n, d, inside = owned(n_rows, width, BLOCK_N, BLOCK_D)
    r = row_values(ROW, b, n, row_stride, n_rows).to(tl.int64)
    c = row_values(COLUMN, b, n, column_stride, n_rows).to(tl.int64)
    x = tl.load(tile_at(X, b, n, d, x_stride), mask=inside, other=0.0).to(ACC)
    place = axis_rows(ROW_TABLE, r, d, row_table_stride, table_rows, inside, ACC)  # R[r_bn]
    place += axis_rows(COLUMN_TABLE, c, d, column_table_stride, table_columns, inside, ACC)  # C[c_bn]
    tl.store(tile_at(OUT, b, n, d, out_stride), (x + place).to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def axis_rows(TABLE, at, d, stride, length, inside, ACC: tl.constexpr):
    """TABLE[at] [BLOCK_N, BLOCK_D]; zeros for a leading token, NaN where there is no such row, which then reads nothing."""
    rows = tl.load(TABLE + at[:, None] * stride[0] + d[None, :] * stride[1], mask=inside & ((at >= 0) & (at < length))[:, None], other=float("nan"))
    return tl.where(at[:, None] == -1, 0.0, rows.to(ACC))
