"""The backward tile loops: one program a tile of queries for dQ, one a tile of keys for dK and dV; no atomics, so the same bits every time.

The scores are made again as ``tile`` made them, and with lse_i the probabilities p_ij = exp(s_ij − lse_i). For G = ∂L/∂O and g = ∂L/∂lse,

    δ_i = Σ_d G_id O_id − g_i      ds_ij = p_ij (G_i·v_j − δ_i)
    dv_j = Σ_i p_ij G_i      dk_j = scale · Σ_i ds_ij q_i      dq_i = scale · Σ_j ds_ij k_j

(Dao et al. 2022, appendix B.2). Both loops need the whole of δ or the whole of a key's queries, hence two; the first one also
leaves δ for the others, and row sums of ds, FOLD's or those of a line's ends, from which the gradient of a slope or of a table's ends is added up.
"""

import triton
import triton.language as tl

from positionlib.kernels.classes import add_by_class, add_mass_gradient, add_parts, pair_classes, pointers
from positionlib.kernels.rotary import load_turned, store_turned_back
from positionlib.kernels.tile import hide, index_range, load_row, load_rows, load_tile, readable_keys, store_rows, store_tile
from positionlib.kernels.transformer_xl import add_query_gradient, end_sums, shifted, with_ends
from positionlib.kernels.tupe import add_positions, cls_sums, outside_cls


@triton.jit
def query_gradients(
    Q, K, V, D_OUT, LSE, DELTA, OUT, D_LSE, D_Q, ENDS, QUERY_POSITION, KEY_POSITION, KEY_ACTIVE, QUERY_SEGMENT, KEY_SEGMENT, TABLE, PARTS,
    q_stride, k_stride, v_stride, d_out_stride, lse_stride, delta_stride, out_stride, d_lse_stride, d_q_stride, ends_stride,
    query_position_stride, key_position_stride, key_active_stride, query_segment_stride, key_segment_stride,
    heads, group, n_queries, n_keys, width, span, scale,
    SCORE: tl.constexpr, FOLD: tl.constexpr, CAUSAL: tl.constexpr, UPCAST: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SCAN: tl.constexpr, WINDOW: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Write DELTA [B, H, Q], D_Q [B, H, Q, D] and ENDS [2, B, H, Q], FOLD's sums. D_LSE and ENDS may be None; the rest as in ``tile``."""
    query_tiles = tl.cdiv(n_queries, BLOCK_M)
    batch, head = (tl.program_id(0) // query_tiles) // heads, (tl.program_id(0) // query_tiles) % heads
    row = (tl.program_id(0) % query_tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    has_row, has_d = row < n_queries, d < width
    b, h, key_head, wide_row = batch.to(tl.int64), head.to(tl.int64), (head // group).to(tl.int64), row.to(tl.int64)

    q_at = Q + b * q_stride[0] + h * q_stride[1]
    if PARTS.query_turns is None:
        q = load_tile(q_at, row, d, q_stride[2], q_stride[3], has_row, has_d, UPCAST)
    else:
        q = load_turned(q_at, q_stride, PARTS.query_turns, PARTS, b, row, has_row, width, UPCAST, ACC, BLOCK_D)
    position_q = load_rows(PARTS.query_rows2, b, h, row, d, has_row, has_d, UPCAST, False)
    d_out = load_tile(D_OUT + b * d_out_stride[0] + h * d_out_stride[1], row, d, d_out_stride[2], d_out_stride[3], has_row, has_d, UPCAST)
    out = load_tile(OUT + b * out_stride[0] + h * out_stride[1], row, d, out_stride[2], out_stride[3], has_row, has_d, UPCAST)
    delta = tl.sum(d_out.to(ACC) * out.to(ACC), 1)  # δ_i = Σ_d G_id O_id
    if D_LSE is not None:
        delta -= tl.load(D_LSE + b * d_lse_stride[0] + h * d_lse_stride[1] + wide_row * d_lse_stride[2], mask=has_row, other=0.0)  # − g_i
    tl.store(DELTA + b * delta_stride[0] + h * delta_stride[1] + wide_row * delta_stride[2], delta, mask=has_row)
    lse = tl.load(LSE + b * lse_stride[0] + h * lse_stride[1] + wide_row * lse_stride[2], mask=has_row, other=0.0)
    lse = tl.where(lse == float("-inf"), 0.0, lse)  # a row that sees nothing: exp(−inf − 0) = 0, not exp(−inf + inf)

    q_position = load_row(QUERY_POSITION, query_position_stride, b, row, has_row)
    q_segment = load_row(QUERY_SEGMENT, query_segment_stride, b, row, has_row)
    stop = n_keys
    if CAUSAL:
        _, stop = index_range(KEY_POSITION + b * key_position_stride[0], key_position_stride[1], n_keys, -(2**63), tl.max(q_position, 0), SCAN)

    if PARTS.offset_rows is not None:
        line_at = PARTS.offset_rows.at + h * PARTS.offset_rows.stride[0]
        slab_at = PARTS.scratch + tl.program_id(0).to(tl.int64) * (BLOCK_M * (RING * WINDOW + BLOCK_N))
        held, held_stop = 0, 0
    d_q = tl.zeros((BLOCK_M, BLOCK_D), ACC)
    first, last = tl.zeros((BLOCK_M,), ACC), tl.zeros((BLOCK_M,), ACC)
    d_position_q = tl.zeros((BLOCK_M, BLOCK_D), ACC)
    to_cls, from_cls = tl.zeros((BLOCK_M,), ACC), tl.zeros((BLOCK_M,), ACC)
    for start in range(0, stop, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        k_position = load_row(KEY_POSITION, key_position_stride, b, column, column < n_keys)
        readable = readable_keys(KEY_ACTIVE, key_active_stride, b, column, n_keys)
        k_at = K + b * k_stride[0] + key_head * k_stride[1]
        if PARTS.key_turns is None:
            k = load_tile(k_at, d, column, k_stride[3], k_stride[2], has_d, readable, UPCAST)
        else:
            k = tl.trans(load_turned(k_at, k_stride, PARTS.key_turns, PARTS, b, column, readable, width, UPCAST, ACC, BLOCK_D))
        v = load_tile(V + b * v_stride[0] + key_head * v_stride[1], d, column, v_stride[3], v_stride[2], has_d, readable, UPCAST)
        position_k = load_rows(PARTS.key_rows2, b, h, column, d, readable, has_d, UPCAST, True)

        if PARTS.offset_rows is not None:
            z, held, held_stop = shifted(
                position_q, q_position, has_row, k_position, readable, held, held_stop, line_at, PARTS.offset_rows.stride, slab_at,
                d, has_d, span, PARTS.offset_count, scale, ACC, PRECISION, WINDOW, RING, 0)  # fmt: skip
        offset = k_position[None, :] - q_position[:, None]
        has = has_row[:, None] & readable[None, :]
        c = pair_classes(PARTS, 0, offset, span, b, row[:, None], column[None, :], has)
        key_c = pair_classes(PARTS, 1, offset, span, b, row[:, None], column[None, :], has)
        s = tl.dot(q, k, input_precision=PRECISION, out_dtype=ACC) * scale
        content = s
        s = SCORE(s, offset, head, TABLE, span)
        s = add_positions(s, content, position_q, position_k, PARTS, q_position, k_position, head, 0, ACC, PRECISION)
        s = add_parts(s, PARTS, c, key_c, b, h, row[:, None], column[None, :], has)
        if PARTS.offset_rows is not None:
            s += z
        k_segment = load_row(KEY_SEGMENT, key_segment_stride, b, column, readable)
        s = hide(s, offset, has, q_segment, k_segment, CAUSAL, 0)

        p = tl.exp(s - lse[:, None])  # p_ij = exp(s_ij − lse_i)
        d_p = tl.dot(d_out, v, input_precision=PRECISION, out_dtype=ACC)
        d_p = add_mass_gradient(d_p, PARTS, c, b, h, row[:, None], has)
        ds = p * (d_p - delta[:, None])  # p_ij (G_i·v_j − δ_i)
        d_q += tl.dot(ds.to(k.dtype), tl.trans(k), input_precision=PRECISION, out_dtype=ACC)  # Σ_j ds_ij k_j
        outside = outside_cls(ds, PARTS, q_position, k_position, 0)
        if PARTS.key_rows2 is not None and PARTS.d_query_rows2 is not None:
            d_position_q += tl.dot(outside.to(position_k.dtype), tl.trans(position_k), input_precision=PRECISION, out_dtype=ACC)  # Σ_j ds_ij r_j
        if PARTS.d_cls is not None:
            to_key, of_query = cls_sums(ds, PARTS, q_position, k_position)
            to_cls += to_key
            from_cls += of_query
        if ENDS is not None and FOLD is not None:
            to_first, to_last = FOLD(outside, offset, span)
            first += to_first
            if to_last is not None:
                last += to_last
        if PARTS.offset_rows is not None:
            to_first, to_last = end_sums(ds, offset, span, PARTS.offset_count)
            first += to_first
            last += to_last
            d_position_q = add_query_gradient(
                d_position_q, ds, position_q, q_position, has_row, k_position, readable, line_at, PARTS.offset_rows.stride,
                slab_at + BLOCK_M * RING * WINDOW, d, has_d, span, PARTS.offset_count, ACC, PRECISION, WINDOW)  # fmt: skip
        if PARTS.d_query_scores is not None:
            add_by_class(PARTS.d_query_scores, ds, c, b, h, row, has_row, has)
        if PARTS.d_pair_bias is not None:
            tl.store(pointers(PARTS.d_pair_bias, b, h, row[:, None], column[None, :]), ds, mask=has_row[:, None] & (column < n_keys)[None, :])

    d_q_at, d_q = D_Q + b * d_q_stride[0] + h * d_q_stride[1], d_q * scale
    if PARTS.query_turns is None:
        store_tile(d_q, d_q_at, row, d, d_q_stride[2], d_q_stride[3], has_row, has_d)
    else:
        store_turned_back(d_q, d_q_at, d_q_stride, PARTS.query_turns, PARTS, b, row, has_row, width, BLOCK_D)
    if PARTS.offset_rows is not None:
        d_position_q = with_ends(d_position_q, first, last, line_at, PARTS.offset_rows.stride, d, has_d, PARTS.offset_count) * scale
    if PARTS.d_query_rows2 is not None:
        store_rows(d_position_q, PARTS.d_query_rows2, b, h, row, d, has_row, has_d)
    if PARTS.d_cls is not None:
        cls_at = PARTS.d_cls.at + b * PARTS.d_cls.stride[1] + h * PARTS.d_cls.stride[2] + wide_row * PARTS.d_cls.stride[3]
        tl.store(cls_at, to_cls, mask=has_row)
        tl.store(cls_at + PARTS.d_cls.stride[0], from_cls, mask=has_row)
    if ENDS is not None:
        ends_at = ENDS + b * ends_stride[1] + h * ends_stride[2] + wide_row * ends_stride[3]
        tl.store(ends_at, first, mask=has_row)
        tl.store(ends_at + ends_stride[0], last, mask=has_row)


@triton.jit
def key_gradients(
    Q, K, V, D_OUT, LSE, DELTA, D_K, D_V, QUERY_POSITION, KEY_POSITION, KEY_ACTIVE, QUERY_SEGMENT, KEY_SEGMENT, TABLE, PARTS,
    q_stride, k_stride, v_stride, d_out_stride, lse_stride, delta_stride, d_k_stride, d_v_stride,
    query_position_stride, key_position_stride, key_active_stride, query_segment_stride, key_segment_stride,
    heads, group, n_queries, n_keys, width, span, scale,
    SCORE: tl.constexpr, CAUSAL: tl.constexpr, UPCAST: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SCAN: tl.constexpr, WINDOW: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Write D_K and D_V [B, Hkv, K, D], summed over the query heads that share a key head. Tiles lie [keys, queries]."""
    key_tiles, key_heads = tl.cdiv(n_keys, BLOCK_N), heads // group
    batch, key_head = (tl.program_id(0) // key_tiles) // key_heads, (tl.program_id(0) // key_tiles) % key_heads
    column = (tl.program_id(0) % key_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    has_d, b, kh = d < width, batch.to(tl.int64), key_head.to(tl.int64)

    k_position = load_row(KEY_POSITION, key_position_stride, b, column, column < n_keys)
    k_segment = load_row(KEY_SEGMENT, key_segment_stride, b, column, column < n_keys)
    readable = readable_keys(KEY_ACTIVE, key_active_stride, b, column, n_keys)
    k_at = K + b * k_stride[0] + kh * k_stride[1]
    if PARTS.key_turns is None:
        k = load_tile(k_at, column, d, k_stride[2], k_stride[3], readable, has_d, UPCAST)
    else:
        k = load_turned(k_at, k_stride, PARTS.key_turns, PARTS, b, column, readable, width, UPCAST, ACC, BLOCK_D)
    v = load_tile(V + b * v_stride[0] + kh * v_stride[1], column, d, v_stride[2], v_stride[3], readable, has_d, UPCAST)
    begin = 0
    if CAUSAL:  # queries before the first one that sees any of these keys are never read
        nearest = tl.min(tl.where(readable, k_position, 2**63 - 1), 0)
        begin, _ = index_range(QUERY_POSITION + b * query_position_stride[0], query_position_stride[1], n_queries, nearest, 2**63 - 1, SCAN)

    if PARTS.offset_rows is not None:
        slab_at = PARTS.scratch + tl.program_id(0).to(tl.int64) * (BLOCK_M * RING * WINDOW)
    d_k = tl.zeros((BLOCK_N, BLOCK_D), ACC)
    d_v = tl.zeros((BLOCK_N, BLOCK_D), ACC)
    for member in range(group):
        head = key_head * group + member
        h = head.to(tl.int64)
        position_k = load_rows(PARTS.key_rows2, b, h, column, d, readable, has_d, UPCAST, False)
        d_position_k = tl.zeros((BLOCK_N, BLOCK_D), ACC)
        for start in range(begin, n_queries, BLOCK_M):
            row = start + tl.arange(0, BLOCK_M)
            has_row, wide_row = row < n_queries, row.to(tl.int64)
            q_at = Q + b * q_stride[0] + h * q_stride[1]
            if PARTS.query_turns is None:
                q = load_tile(q_at, d, row, q_stride[3], q_stride[2], has_d, has_row, UPCAST)
            else:
                q = tl.trans(load_turned(q_at, q_stride, PARTS.query_turns, PARTS, b, row, has_row, width, UPCAST, ACC, BLOCK_D))
            d_out_at = D_OUT + b * d_out_stride[0] + h * d_out_stride[1]
            d_out = load_tile(d_out_at, row, d, d_out_stride[2], d_out_stride[3], has_row, has_d, UPCAST)
            lse = tl.load(LSE + b * lse_stride[0] + h * lse_stride[1] + wide_row * lse_stride[2], mask=has_row, other=0.0)
            lse = tl.where(lse == float("-inf"), 0.0, lse)
            delta = tl.load(DELTA + b * delta_stride[0] + h * delta_stride[1] + wide_row * delta_stride[2], mask=has_row, other=0.0)
            q_position = load_row(QUERY_POSITION, query_position_stride, b, row, has_row)
            position_q = load_rows(PARTS.query_rows2, b, h, row, d, has_row, has_d, UPCAST, True)

            if PARTS.offset_rows is not None:
                line_at = PARTS.offset_rows.at + h * PARTS.offset_rows.stride[0]
                held, held_stop = 0, 0  # of other queries: nothing that serves these
                z, held, held_stop = shifted(
                    tl.trans(position_q), q_position, has_row, k_position, readable, held, held_stop, line_at, PARTS.offset_rows.stride, slab_at,
                    d, has_d, span, PARTS.offset_count, scale, ACC, PRECISION, WINDOW, RING, 1)  # fmt: skip
            offset = k_position[:, None] - q_position[None, :]
            has = readable[:, None] & has_row[None, :]
            c = pair_classes(PARTS, 0, offset, span, b, row[None, :], column[:, None], has)
            key_c = pair_classes(PARTS, 1, offset, span, b, row[None, :], column[:, None], has)
            s = tl.dot(k, q, input_precision=PRECISION, out_dtype=ACC) * scale
            content = s
            s = SCORE(s, offset, head, TABLE, span)
            s = add_positions(s, content, position_k, position_q, PARTS, q_position, k_position, head, 1, ACC, PRECISION)
            s = add_parts(s, PARTS, c, key_c, b, h, row[None, :], column[:, None], has)
            if PARTS.offset_rows is not None:
                s += z
            q_segment = load_row(QUERY_SEGMENT, query_segment_stride, b, row, has_row)
            s = hide(s, offset, has, q_segment, k_segment, CAUSAL, 1)

            p = tl.exp(s - lse[None, :])
            d_v += tl.dot(p.to(d_out.dtype), d_out, input_precision=PRECISION, out_dtype=ACC)  # Σ_i p_ij G_i
            d_p = tl.dot(v, tl.trans(d_out), input_precision=PRECISION, out_dtype=ACC)
            d_p = add_mass_gradient(d_p, PARTS, c, b, h, row[None, :], has)
            ds = p * (d_p - delta[None, :])  # p_ij (G_i·v_j − δ_i)
            d_k += tl.dot(ds.to(q.dtype), tl.trans(q), input_precision=PRECISION, out_dtype=ACC)  # Σ_i ds_ij q_i
            if PARTS.d_key_rows2 is not None:
                outside = outside_cls(ds, PARTS, q_position, k_position, 1)
                d_position_k += tl.dot(outside.to(position_q.dtype), tl.trans(position_q), input_precision=PRECISION, out_dtype=ACC)  # Σ_i ds_ij p_i
            if PARTS.d_key_scores is not None:
                add_by_class(PARTS.d_key_scores, ds, key_c, b, h, column, column < n_keys, has)
        if PARTS.d_key_rows2 is not None:
            store_rows(d_position_k, PARTS.d_key_rows2, b, h, column, d, column < n_keys, has_d)

    d_k_at, d_k = D_K + b * d_k_stride[0] + kh * d_k_stride[1], d_k * scale
    if PARTS.key_turns is None:
        store_tile(d_k, d_k_at, column, d, d_k_stride[2], d_k_stride[3], column < n_keys, has_d)
    else:
        store_turned_back(d_k, d_k_at, d_k_stride, PARTS.key_turns, PARTS, b, column, column < n_keys, width, BLOCK_D)
    store_tile(d_v, D_V + b * d_v_stride[0] + kh * d_v_stride[1], column, d, d_v_stride[2], d_v_stride[3], column < n_keys, has_d)
