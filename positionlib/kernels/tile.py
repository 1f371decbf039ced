"""The forward tile loop: attention over tiles of keys with an online softmax; the mechanism is a function it is given.

For a query i and the keys j it may see, with s_ij = scale · q_i·k_j changed by SCORE,

    m_i = max_j s_ij      l_i = Σ_j exp(s_ij − m_i)      o_i = Σ_j exp(s_ij − m_i) v_j / l_i      lse_i = m_i + log l_i

are built one tile of keys at a time: when the maximum grows from m to m', what was summed so far is multiplied by
exp(m − m') (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1). A program owns one tile of queries of one head, so no
score leaves the chip: memory grows with Q + K, never with Q · K.
"""

import triton
import triton.language as tl


@triton.jit
def forward_tile(
    Q, K, V, OUT, LSE, QUERY_POSITION, KEY_POSITION, KEY_ACTIVE, QUERY_SEGMENT, KEY_SEGMENT, TABLE,
    q_stride, k_stride, v_stride, out_stride, lse_stride,
    query_position_stride, key_position_stride, key_active_stride, query_segment_stride, key_segment_stride,
    heads, group, n_queries, n_keys, width, span, scale,
    SCORE: tl.constexpr, CAUSAL: tl.constexpr, UPCAST: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """Write OUT [B, H, Q, D] and LSE [B, H, Q]; every pointer comes with a tuple of its strides in elements.

    KEY_ACTIVE and the two SEGMENT pointers may be None. TABLE and span belong to SCORE. Arithmetic runs in ACC, dots in the
    inputs' dtype, or in float32 when UPCAST.
    """
    query_tiles = tl.cdiv(n_queries, BLOCK_M)
    batch, head = (tl.program_id(0) // query_tiles) // heads, (tl.program_id(0) // query_tiles) % heads
    row = (tl.program_id(0) % query_tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    has_row, has_d = row < n_queries, d < width
    b, key_head = batch.to(tl.int64), (head // group).to(tl.int64)  # 64-bit: a batch of long sequences passes 2^31 elements

    q_at = Q + b * q_stride[0] + head.to(tl.int64) * q_stride[1]
    q = load_tile(q_at, row, d, q_stride[2], q_stride[3], has_row, has_d, UPCAST)
    wide_row = tl.minimum(row, n_queries - 1).to(tl.int64)  # rows past the end repeat the last query and are never stored
    q_position = tl.load(QUERY_POSITION + b * query_position_stride[0] + wide_row * query_position_stride[1])
    if QUERY_SEGMENT is not None:
        q_segment = tl.load(QUERY_SEGMENT + b * query_segment_stride[0] + wide_row * query_segment_stride[1])

    k_position_at = KEY_POSITION + b * key_position_stride[0]
    stop = n_keys
    if CAUSAL:  # whatever the order of the positions, keys after the last one that any row sees are never read
        stop = keys_within_reach(k_position_at, key_position_stride[1], n_keys, tl.max(q_position, 0), SCAN)

    m = tl.full((BLOCK_M,), float("-inf"), ACC)
    l = tl.zeros((BLOCK_M,), ACC)  # noqa: E741
    o = tl.zeros((BLOCK_M, BLOCK_D), ACC)
    for start in range(0, stop, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        readable = column < n_keys
        wide_column = column.to(tl.int64)
        k_position = tl.load(k_position_at + wide_column * key_position_stride[1], mask=readable, other=0)
        if KEY_ACTIVE is not None:  # padding and empty cache slots are not even loaded: they may hold anything
            active_at = KEY_ACTIVE + b * key_active_stride[0] + wide_column * key_active_stride[1]
            readable = readable & (tl.load(active_at, mask=readable, other=0) != 0)
        k = load_tile(K + b * k_stride[0] + key_head * k_stride[1], d, column, k_stride[3], k_stride[2], has_d, readable, UPCAST)
        v = load_tile(V + b * v_stride[0] + key_head * v_stride[1], column, d, v_stride[2], v_stride[3], readable, has_d, UPCAST)

        offset = k_position[None, :] - q_position[:, None]  # key minus query: an exact integer, still to be clamped or cast
        s = tl.dot(q, k, input_precision=PRECISION, out_dtype=ACC) * scale
        s = SCORE(s, offset, head, TABLE, span)

        visible = readable[None, :]
        if CAUSAL:
            visible = visible & (offset <= 0)
        if QUERY_SEGMENT is not None:
            segment_at = KEY_SEGMENT + b * key_segment_stride[0] + wide_column * key_segment_stride[1]
            visible = visible & (q_segment[:, None] == tl.load(segment_at, mask=readable, other=0)[None, :])
        s = tl.where(visible, s, float("-inf"))

        m_new = tl.maximum(m, tl.max(s, 1))  # m'
        finite = tl.where(m_new == float("-inf"), 0.0, m_new)  # nothing seen yet: exp(−inf − 0) = 0, not exp(−inf + inf)
        p = tl.exp(s - finite[:, None])  # exp(s − m')
        rescale = tl.exp(m - finite)  # exp(m − m')
        l = l * rescale + tl.sum(p, 1)  # noqa: E741
        o = o * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION, out_dtype=ACC)
        m = m_new

    seen = l > 0
    divisor = tl.where(seen, l, 1.0)  # a row that sees nothing has o = 0: exact zeros
    o = o / divisor[:, None]
    lse = tl.where(seen, m + tl.log(divisor), float("-inf"))
    out_at = OUT + b * out_stride[0] + head.to(tl.int64) * out_stride[1]
    out_at = out_at + row.to(tl.int64)[:, None] * out_stride[2] + d.to(tl.int64)[None, :] * out_stride[3]
    tl.store(out_at, o.to(OUT.dtype.element_ty), mask=has_row[:, None] & has_d[None, :])
    lse_at = LSE + b * lse_stride[0] + head.to(tl.int64) * lse_stride[1] + row.to(tl.int64) * lse_stride[2]
    tl.store(lse_at, lse, mask=has_row)


@triton.jit
def load_tile(BASE, i, j, stride_i, stride_j, has_i, has_j, UPCAST: tl.constexpr):
    """The tile BASE[i, j], zeros where masked: [len(i), len(j)]."""
    at = BASE + i.to(tl.int64)[:, None] * stride_i + j.to(tl.int64)[None, :] * stride_j
    tile = tl.load(at, mask=has_i[:, None] & has_j[None, :], other=0.0)
    return tile.to(tl.float32) if UPCAST else tile


@triton.jit
def keys_within_reach(POSITION, stride, n_keys, last, SCAN: tl.constexpr):
    """One more than the last key index whose position is at most ``last``; 0 when there is none."""
    reach = 0
    for start in range(0, n_keys, SCAN):
        column = start + tl.arange(0, SCAN)
        position = tl.load(POSITION + column.to(tl.int64) * stride, mask=column < n_keys, other=0)
        within = (column < n_keys) & (position <= last)
        reach = tl.maximum(reach, tl.max(tl.where(within, column + 1, 0), 0))
    return reach
