"""TUPE: scores of positions by projections of their own, and numbers in place of those with CLS (Ke et al. 2021, sections 3.1 and 3.2).

    s_ij = scale · q_i·k_j + a_ij + b_h(j − i)      a_ij = p_i·r_j, rows of both positions, which the host projects and scales

b is T5's bias by offset (TUPE-R) or nothing. Where key j is CLS the number CLS[0, h] stands for a + b; then, where query i is, CLS[1, h].
So p, r and b have the gradient ds_ij of the other pairs, and the two numbers have the sums over theirs:

    dp_i = Σ_j ds_ij r_j      dr_j = Σ_i ds_ij p_i      dCLS[0, h] = Σ ds_ij where j alone is CLS      dCLS[1, h] = Σ ds_ij where i is

Positions tell who is CLS, not the place in memory. KEY_AXIS 0 spreads the keys along the last axis of a tile, 1 along the first.
"""

import triton
import triton.language as tl


@triton.jit
def add_positions(s, content, left, right, PARTS, q_position, k_position, head, KEY_AXIS: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr):
    """s_ij + a_ij for the tiles whose product is a; content_ij + CLS[0, h] where the key is CLS, then content_ij + CLS[1, h] where the query is."""
    if PARTS.key_rows2 is not None:
        s += tl.dot(left, right, input_precision=PRECISION, out_dtype=ACC)
    if PARTS.cls is not None:
        cls = PARTS.cls.at + head.to(tl.int64) * PARTS.cls.stride[1]
        query_is, key_is = cls_pairs(PARTS, q_position, k_position, KEY_AXIS)
        s = tl.where(key_is, content + tl.load(cls), s)
        s = tl.where(query_is, content + tl.load(cls + PARTS.cls.stride[0]), s)
    return s


@triton.jit
def outside_cls(ds, PARTS, q_position, k_position, KEY_AXIS: tl.constexpr):
    """ds_ij of the pairs whose position score is a + b, else 0."""
    if PARTS.cls is not None:
        query_is, key_is = cls_pairs(PARTS, q_position, k_position, KEY_AXIS)
        ds = tl.where(query_is | key_is, 0.0, ds)
    return ds


@triton.jit
def cls_sums(ds, PARTS, q_position, k_position):
    """Row sums of ds_ij over the keys that are CLS, for a query that is not; and over all keys, for one that is."""
    query_is, key_is = cls_pairs(PARTS, q_position, k_position, 0)
    return tl.sum(tl.where(query_is, 0.0, tl.where(key_is, ds, 0.0)), 1), tl.sum(tl.where(query_is, ds, 0.0), 1)


@triton.jit
def cls_pairs(PARTS, q_position, k_position, KEY_AXIS: tl.constexpr):
    """Whether the query, and whether the key, of each pair is CLS."""
    query_is = tl.expand_dims(q_position == PARTS.cls_position, 1 - KEY_AXIS)
    return query_is, tl.expand_dims(k_position == PARTS.cls_position, KEY_AXIS)
