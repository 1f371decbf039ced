"""Numbers that a pair reads by its class, or has of its own: relative keys and values, disentangled terms, graph distances.

    s_ij = scale · q_i·k_j + QS[i, c(i, j)] + KS[j, c′(i, j)] + P_ij        M_ic = Σ_{j : c(i, j) = c} p_ij

QS, KS and M hold one number a row and class, so memory grows with N · C: a product with a table of C rows, which the host makes,
stands before QS and KS and after M. For tables A, B, Q of C rows, with c by clamped or bucketed offset, or given for each pair,

    Shaw et al. 2018, section 3.2     QS = scale · q Aᵀ      z_i = Σ_j p_ij v_j + Σ_c M_ic B_c
    He et al. 2021, section 3.1       QS = scale · q Aᵀ      KS = scale · k Qᵀ, with c′ the class of the third term
    Ying et al. 2021, section 3.1.2   QS = b_h, one number a class      P the path's part

The gradients are sums by class over the row that a program owns, ∂L/∂QS[i, c] = Σ_{j : c(i, j) = c} ds_ij, and ds_ij has one more
part where M is used: p_ij (G_i·v_j + ∂L/∂M[i, c(i, j)] − δ_i), δ_i = Σ_d G_id O_id + Σ_c ∂L/∂M_ic M_ic − g_i, O without the term of M.
"""

import triton
import triton.language as tl


@triton.jit
def pair_classes(PARTS, LINE: tl.constexpr, offset, span, b, i, j, has):
    """The class of each pair of a tile: a given one, −1 where it has no row, or line LINE of the classes by clamped offset. May be None.

    ``i`` and ``j`` are indices of queries and keys that broadcast to the tile, whichever way it lies.
    """
    classes = None
    if PARTS.classes is not None:
        stride = PARTS.classes.stride
        at = PARTS.classes.at + b * stride[0] + i.to(tl.int64) * stride[1] + j.to(tl.int64) * stride[2]
        given = tl.load(at, mask=has, other=0)
        known = (given >= 0) & (given < PARTS.class_count)  # before the cast: 2^32 would become class 0
        classes = tl.where(known, given.to(tl.int32), -1)
    elif PARTS.class_of is not None:
        index = tl.minimum(tl.maximum(offset, -span), span).to(tl.int32) + span
        classes = tl.load(PARTS.class_of.at + LINE * PARTS.class_of.stride[0] + index * PARTS.class_of.stride[1])
    return classes


@triton.jit
def add_parts(s, PARTS, c, key_c, b, h, i, j, has):
    """s_ij + QS[i, c(i, j)] + KS[j, c′(i, j)] + P_ij; NaN for a class without a row."""
    if PARTS.query_scores is not None:
        s += entries(PARTS.query_scores, b, h, i, c, has & (c >= 0))
    if PARTS.key_scores is not None:
        s += entries(PARTS.key_scores, b, h, j, key_c, has & (key_c >= 0))
    if PARTS.pair_bias is not None:
        s += entries(PARTS.pair_bias, b, h, i, j, has)
    if PARTS.classes is not None:
        s = tl.where(c < 0, float("nan"), s)
    return s


@triton.jit
def add_mass_gradient(g, PARTS, c, b, h, i, has):
    """∂L/∂p_ij: G_i·v_j + ∂L/∂M[i, c(i, j)]."""
    if PARTS.d_mass is not None:
        g += entries(PARTS.d_mass, b, h, i, c, has & (c >= 0))
    return g


@triton.jit
def entries(X, b, h, first, second, mask):
    """X[b, h, first, second], zeros where masked."""
    return tl.load(pointers(X, b, h, first, second), mask=mask, other=0.0)


@triton.jit
def pointers(X, b, h, first, second):
    """Where X[b, h, first, second] lies."""
    return X.at + b * X.stride[0] + h * X.stride[1] + first.to(tl.int64) * X.stride[2] + second.to(tl.int64) * X.stride[3]


@triton.jit
def add_by_class(SUMS, x, c, b, h, row, has_row, has):
    """SUMS[b, h, row, c] += Σ x over the pairs of class c in each row of the tile, for the classes from its least to its greatest.

    No other program writes these rows, and this one adds to an element once a tile, in the order of the tiles: no atomics. Nearly all
    tiles of a long sequence hold few classes, since the last ones of a clipped or bucketed rule stand for all offsets beyond.
    """
    known = has & (c >= 0)
    least = tl.min(tl.min(tl.where(known, c, 2**31 - 1), 1), 0)
    greatest = tl.max(tl.max(tl.where(known, c, -1), 1), 0)
    line = SUMS.at + b * SUMS.stride[0] + h * SUMS.stride[1] + row.to(tl.int64) * SUMS.stride[2]
    for of in range(least, greatest + 1):
        at = line + tl.cast(of, tl.int64) * SUMS.stride[3]
        of_class = tl.sum(tl.where(c == of, x, 0.0), 1)
        tl.store(at, tl.load(at, mask=has_row, other=0.0) + of_class, mask=has_row)
    tl.debug_barrier()  # the next tile may read with another thread what this one wrote
