"""The forward tile loop: attention over tiles of keys with an online softmax; the mechanism is a function it is given.

For a query i and the keys j it may see, with s_ij = scale · q_i·k_j changed by SCORE,

    m_i = max_j s_ij      l_i = Σ_j exp(s_ij − m_i)      o_i = Σ_j exp(s_ij − m_i) v_j / l_i      lse_i = m_i + log l_i

are built one tile of keys at a time: when the maximum grows from m to m', what was summed so far is multiplied by
exp(m − m') (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1). A program owns one tile of queries of one head, so no
score leaves the chip: memory grows with Q + K, never with Q · K. The mass of the classes (``classes``) is summed in a second pass over
the keys, when lse_i is known. With one row an offset (``transformer_xl``) the products of a tile pass through a slab of memory of the program's.
"""

import triton
import triton.language as tl

from positionlib.kernels.classes import add_by_class, add_parts, pair_classes
from positionlib.kernels.rotary import load_turned
from positionlib.kernels.transformer_xl import shifted
from positionlib.kernels.tupe import add_positions


@triton.jit
def forward_tile(
    Q, K, V, OUT, LSE, QUERY_POSITION, KEY_POSITION, KEY_ACTIVE, QUERY_SEGMENT, KEY_SEGMENT, TABLE, PARTS,
    q_stride, k_stride, v_stride, out_stride, lse_stride,
    query_position_stride, key_position_stride, key_active_stride, query_segment_stride, key_segment_stride,
    heads, group, n_queries, n_keys, width, span, scale,
    SCORE: tl.constexpr, CAUSAL: tl.constexpr, UPCAST: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SCAN: tl.constexpr, WINDOW: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Write OUT [B, H, Q, D] and LSE [B, H, Q]; every pointer comes with a tuple of its strides in elements.

    KEY_ACTIVE and the two SEGMENT pointers may be None, and so may each of PARTS, the tensors that some mechanisms read or fill
    besides. TABLE and span belong to SCORE. Arithmetic runs in ACC, dots in the inputs' dtype, or in float32 when UPCAST.
    """
    query_tiles = tl.cdiv(n_queries, BLOCK_M)
    batch, head = (tl.program_id(0) // query_tiles) // heads, (tl.program_id(0) // query_tiles) % heads
    row = (tl.program_id(0) % query_tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    has_row, has_d = row < n_queries, d < width
    b, key_head = batch.to(tl.int64), (head // group).to(tl.int64)  # 64-bit: a batch of long sequences passes 2^31 elements

    q_at = Q + b * q_stride[0] + head.to(tl.int64) * q_stride[1]
    if PARTS.query_turns is None:
        q = load_tile(q_at, row, d, q_stride[2], q_stride[3], has_row, has_d, UPCAST)
    else:
        q = load_turned(q_at, q_stride, PARTS.query_turns, PARTS, b, row, has_row, width, UPCAST, ACC, BLOCK_D)
    position_q = load_rows(PARTS.query_rows2, b, head.to(tl.int64), row, d, has_row, has_d, UPCAST, False)
    q_position = load_row(QUERY_POSITION, query_position_stride, b, row, has_row)
    q_segment = load_row(QUERY_SEGMENT, query_segment_stride, b, row, has_row)

    if PARTS.offset_rows is not None:
        line_at = PARTS.offset_rows.at + head.to(tl.int64) * PARTS.offset_rows.stride[0]
        slab_at = PARTS.scratch + tl.program_id(0).to(tl.int64) * (BLOCK_M * RING * WINDOW)
        held, held_stop = 0, 0

    stop = n_keys
    if CAUSAL:  # whatever the order of the positions, keys after the last one that any row sees are never read
        _, stop = index_range(KEY_POSITION + b * key_position_stride[0], key_position_stride[1], n_keys, -(2**63), tl.max(q_position, 0), SCAN)

    m = tl.full((BLOCK_M,), float("-inf"), ACC)
    l = tl.zeros((BLOCK_M,), ACC)  # noqa: E741
    o = tl.zeros((BLOCK_M, BLOCK_D), ACC)
    for PASS in tl.static_range(1 if PARTS.mass is None else 2):
        for start in range(0, stop, BLOCK_N):
            column = start + tl.arange(0, BLOCK_N)
            k_position = load_row(KEY_POSITION, key_position_stride, b, column, column < n_keys)
            readable = readable_keys(KEY_ACTIVE, key_active_stride, b, column, n_keys)
            k_at = K + b * k_stride[0] + key_head * k_stride[1]
            if PARTS.key_turns is None:
                k = load_tile(k_at, d, column, k_stride[3], k_stride[2], has_d, readable, UPCAST)
            else:
                k = tl.trans(load_turned(k_at, k_stride, PARTS.key_turns, PARTS, b, column, readable, width, UPCAST, ACC, BLOCK_D))
            position_k = load_rows(PARTS.key_rows2, b, head.to(tl.int64), column, d, readable, has_d, UPCAST, True)

            if PARTS.offset_rows is not None:
                z, held, held_stop = shifted(
                    position_q, q_position, has_row, k_position, readable, held, held_stop, line_at, PARTS.offset_rows.stride, slab_at,
                    d, has_d, span, PARTS.offset_count, scale, ACC, PRECISION, WINDOW, RING, 0)  # fmt: skip
            offset = k_position[None, :] - q_position[:, None]  # key minus query: an exact integer, still to be clamped or cast
            has = has_row[:, None] & readable[None, :]
            c = pair_classes(PARTS, 0, offset, span, b, row[:, None], column[None, :], has)
            key_c = pair_classes(PARTS, 1, offset, span, b, row[:, None], column[None, :], has)
            s = tl.dot(q, k, input_precision=PRECISION, out_dtype=ACC) * scale
            content = s
            s = SCORE(s, offset, head, TABLE, span)
            s = add_positions(s, content, position_q, position_k, PARTS, q_position, k_position, head, 0, ACC, PRECISION)
            s = add_parts(s, PARTS, c, key_c, b, head.to(tl.int64), row[:, None], column[None, :], has)
            if PARTS.offset_rows is not None:
                s += z
            k_segment = load_row(KEY_SEGMENT, key_segment_stride, b, column, readable)
            s = hide(s, offset, readable[None, :], q_segment, k_segment, CAUSAL, 0)

            if PASS == 0:
                v = load_tile(V + b * v_stride[0] + key_head * v_stride[1], column, d, v_stride[2], v_stride[3], readable, has_d, UPCAST)
                m_new = tl.maximum(m, tl.max(s, 1))  # m'
                finite = tl.where(m_new == float("-inf"), 0.0, m_new)  # nothing seen yet: exp(−inf − 0) = 0, not exp(−inf + inf)
                p = tl.exp(s - finite[:, None])  # exp(s − m')
                rescale = tl.exp(m - finite)  # exp(m − m')
                l = l * rescale + tl.sum(p, 1)  # noqa: E741
                o = o * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION, out_dtype=ACC)
                m = m_new
            else:
                p = tl.exp(s - tl.where(seen, lse, 0.0)[:, None])  # p_ij
                add_by_class(PARTS.mass, p, c, b, head.to(tl.int64), row, has_row, has)

        if PASS == 0:
            seen = l != 0  # or NaN, where what a row sees is: its log-sum-exp says so too
            divisor = tl.where(seen, l, 1.0)  # a row that sees nothing has o = 0: exact zeros
            o = o / divisor[:, None]
            lse = tl.where(seen, m + tl.log(divisor), float("-inf"))
    store_tile(o, OUT + b * out_stride[0] + head.to(tl.int64) * out_stride[1], row, d, out_stride[2], out_stride[3], has_row, has_d)
    lse_at = LSE + b * lse_stride[0] + head.to(tl.int64) * lse_stride[1] + row.to(tl.int64) * lse_stride[2]
    tl.store(lse_at, lse, mask=has_row)


@triton.jit
def load_tile(BASE, i, j, stride_i, stride_j, has_i, has_j, UPCAST: tl.constexpr):
    """The tile BASE[i, j], zeros where masked: [len(i), len(j)]."""
    at = BASE + i.to(tl.int64)[:, None] * stride_i + j.to(tl.int64)[None, :] * stride_j
    tile = tl.load(at, mask=has_i[:, None] & has_j[None, :], other=0.0)
    return tile.to(tl.float32) if UPCAST else tile


@triton.jit
def load_rows(X, b, h, n, d, has_n, has_d, UPCAST: tl.constexpr, TRANSPOSED: tl.constexpr):
    """The tile X[b, h, n, d], or [d, n], of one of PARTS; None stays None."""
    tile = None
    if X is not None:
        at = X.at + b * X.stride[0] + h * X.stride[1]
        if TRANSPOSED:
            tile = load_tile(at, d, n, X.stride[3], X.stride[2], has_d, has_n, UPCAST)
        else:
            tile = load_tile(at, n, d, X.stride[2], X.stride[3], has_n, has_d, UPCAST)
    return tile


@triton.jit
def store_rows(tile, X, b, h, n, d, has_n, has_d):
    """X[b, h, n, d] = the tile."""
    store_tile(tile, X.at + b * X.stride[0] + h * X.stride[1], n, d, X.stride[2], X.stride[3], has_n, has_d)


@triton.jit
def store_tile(tile, BASE, i, j, stride_i, stride_j, has_i, has_j):
    """BASE[i, j] = the tile, in BASE's dtype, where not masked."""
    at = BASE + i.to(tl.int64)[:, None] * stride_i + j.to(tl.int64)[None, :] * stride_j
    tl.store(at, tile.to(BASE.dtype.element_ty), mask=has_i[:, None] & has_j[None, :])


@triton.jit
def load_row(ROW, stride, b, i, has_i):
    """ROW[b, i], the position or segment of queries or keys, 0 where masked. None stays None."""
    row = None  # no early return: the compiler would still look at what follows
    if ROW is not None:
        row = tl.load(ROW + b * stride[0] + i.to(tl.int64) * stride[1], mask=has_i, other=0)
    return row


@triton.jit
def readable_keys(KEY_ACTIVE, stride, b, column, n_keys):
    """Whether a key is there to be read: padding and empty cache slots are not even loaded, for they may hold anything."""
    readable = column < n_keys
    if KEY_ACTIVE is not None:
        readable = readable & (tl.load(KEY_ACTIVE + b * stride[0] + column.to(tl.int64) * stride[1], mask=readable, other=0) != 0)
    return readable


@triton.jit
def hide(s, offset, visible, q_segment, k_segment, CAUSAL: tl.constexpr, KEY_AXIS: tl.constexpr):
    """s_ij where row i may read key j, else −∞. KEY_AXIS 0 spreads the keys along the last axis of s, 1 along the first."""
    if CAUSAL:
        visible = visible & (offset <= 0)
    if q_segment is not None:
        visible = visible & (tl.expand_dims(q_segment, 1 - KEY_AXIS) == tl.expand_dims(k_segment, KEY_AXIS))
    return tl.where(visible, s, float("-inf"))


@triton.jit
def index_range(POSITION, stride, n, low, high, SCAN: tl.constexpr):
    """(first, stop): every index whose position lies in low..high is in first..stop - 1; (n, 0) when there is none."""
    first, stop = n, 0
    for start in range(0, n, SCAN):
        index = start + tl.arange(0, SCAN)
        position = tl.load(POSITION + index.to(tl.int64) * stride, mask=index < n, other=0)
        inside = (index < n) & (position >= low) & (position <= high)
        first = tl.minimum(first, tl.min(tl.where(inside, index, n), 0))
        stop = tl.maximum(stop, tl.max(tl.where(inside, index + 1, 0), 0))
    return first, stop
