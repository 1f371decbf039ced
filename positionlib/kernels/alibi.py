"""ALiBi: a penalty linear in the distance, s_ij − m_h · distance (Press et al. 2022, section 3). TABLE holds the slopes [H].

The gradient of a slope needs nothing of the tile but a sum, dm_h = −Σ_ij ds_ij · distance.

``offset`` is j − i, an exact integer until the one cast: two positions near 2^31 keep their distance in float32.
"""

import triton
import triton.language as tl


@triton.jit
def alibi_relative(s, offset, head, TABLE, span):
    """s_ij − m_h · max(i − j, 0): a key after the query gets no bias."""
    m_h = tl.load(TABLE + head)
    return s - m_h * tl.maximum(-offset.to(s.dtype), 0.0)


@triton.jit
def alibi_relative_fold(ds, offset, span):
    """−Σ_j ds_ij · max(i − j, 0) for each row; there is no second sum."""
    return tl.sum(-ds * tl.maximum(-offset.to(ds.dtype), 0.0), 1), None


@triton.jit
def alibi_symmetric(s, offset, head, TABLE, span):
    """s_ij − m_h · |i − j|."""
    m_h = tl.load(TABLE + head)
    return s - m_h * tl.abs(offset.to(s.dtype))


@triton.jit
def alibi_symmetric_fold(ds, offset, span):
    """−Σ_j ds_ij · |i − j| for each row; there is no second sum."""
    return tl.sum(-ds * tl.abs(offset.to(ds.dtype)), 1), None
