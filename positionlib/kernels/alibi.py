"""ALiBi: a penalty linear in the distance, s_ij − m_h · distance (Press et al. 2022, section 3). TABLE holds the slopes [H].

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
def alibi_symmetric(s, offset, head, TABLE, span):
    """s_ij − m_h · |i − j|."""
    m_h = tl.load(TABLE + head)
    return s - m_h * tl.abs(offset.to(s.dtype))
