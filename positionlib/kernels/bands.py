"""The gradient of a table by clamped offset, between its ends: dTABLE[h, o] = Σ ds_ij over the pairs with j − i = o, −span < o < span.

With one row an offset (``transformer_xl``), which the line's own length ends, it is dR[h, o] = scale · Σ ds_ij (q_i + v) over the same pairs.

A program owns BAND neighbouring offsets of one head and a chunk of the query rows. It makes ds_ij again for the tiles whose
positions can have such an offset, N · span pairs instead of N², and sums it by offset. Every program writes numbers of its own:
no atomics, and PARTIAL [chunks, H, 2·span − 1] or [chunks, H, W − 2, D] grows with the rows divided by CHUNK. No order of the positions is assumed.
"""

import triton
import triton.language as tl

from positionlib.kernels.classes import add_mass_gradient, add_parts, pair_classes
from positionlib.kernels.tile import hide, index_range, load_row, load_rows, load_tile, readable_keys
from positionlib.kernels.transformer_xl import add_places, shifted
from positionlib.kernels.tupe import add_positions, outside_cls


@triton.jit
def band_gradients(
    Q, K, V, D_OUT, LSE, DELTA, PARTIAL, QUERY_POSITION, KEY_POSITION, KEY_ACTIVE, QUERY_SEGMENT, KEY_SEGMENT, TABLE, PARTS,
    q_stride, k_stride, v_stride, d_out_stride, lse_stride, delta_stride, partial_stride,
    query_position_stride, key_position_stride, key_active_stride, query_segment_stride, key_segment_stride,
    heads, group, n_queries, n_keys, width, span, scale,
    SCORE: tl.constexpr, CAUSAL: tl.constexpr, UPCAST: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SCAN: tl.constexpr, BAND: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write PARTIAL[chunk, head, o + span − 1]; the chunks of one batch row follow each other."""
    last = (2 * span + 1 if PARTS.offset_rows is None else PARTS.offset_count) - 1  # place of the offset that ends the line
    bands, chunks = tl.cdiv(last - 1, BAND), tl.cdiv(n_queries, CHUNK)
    band, head, chunk = tl.program_id(0) % bands, tl.program_id(0) // bands % heads, tl.program_id(0) // bands // heads
    b, h, key_head = (chunk // chunks).to(tl.int64), head.to(tl.int64), (head // group).to(tl.int64)
    slot, d = tl.arange(0, BAND), tl.arange(0, BLOCK_D)
    has_d = d < width
    low = 1 - span + band * BAND  # the offset of slot 0
    high = tl.minimum(low + BAND, last - span) - 1
    if CAUSAL:
        high = tl.minimum(high, 0)

    begin = chunk % chunks * CHUNK
    if PARTS.offset_rows is None:
        total = tl.zeros((BLOCK_M, BAND), ACC)
    else:
        d_rows = tl.zeros((BAND, BLOCK_D), ACC)
        band_at = PARTS.offset_rows.at + h * PARTS.offset_rows.stride[0] + (1 + band * BAND).to(tl.int64) * PARTS.offset_rows.stride[1]
        slab_at = PARTS.scratch + tl.program_id(0).to(tl.int64) * (BLOCK_M * (BAND + BLOCK_N))
    for row_start in range(begin, tl.where(low <= high, tl.minimum(begin + CHUNK, n_queries), begin), BLOCK_M):
        row = row_start + tl.arange(0, BLOCK_M)
        has_row, wide_row = row < n_queries, row.to(tl.int64)
        q = load_tile(Q + b * q_stride[0] + h * q_stride[1], row, d, q_stride[2], q_stride[3], has_row, has_d, UPCAST)
        position_q = load_rows(PARTS.query_rows2, b, h, row, d, has_row, has_d, UPCAST, False)
        d_out_at = D_OUT + b * d_out_stride[0] + h * d_out_stride[1]
        d_out = load_tile(d_out_at, row, d, d_out_stride[2], d_out_stride[3], has_row, has_d, UPCAST)
        lse = tl.load(LSE + b * lse_stride[0] + h * lse_stride[1] + wide_row * lse_stride[2], mask=has_row, other=0.0)
        lse = tl.where(lse == float("-inf"), 0.0, lse)
        delta = tl.load(DELTA + b * delta_stride[0] + h * delta_stride[1] + wide_row * delta_stride[2], mask=has_row, other=0.0)
        q_position = load_row(QUERY_POSITION, query_position_stride, b, row, has_row)
        q_segment = load_row(QUERY_SEGMENT, query_segment_stride, b, row, has_row)
        earliest = tl.min(tl.where(has_row, q_position, 2**63 - 1), 0) + low
        latest = tl.max(tl.where(has_row, q_position, -(2**63)), 0) + high
        k_position_at = KEY_POSITION + b * key_position_stride[0]
        first, stop = index_range(k_position_at, key_position_stride[1], n_keys, earliest, latest, SCAN)
        if PARTS.offset_rows is not None:
            dz = tl.zeros((BLOCK_M, BAND), ACC)
            held, held_stop = 0, 0

        for start in range(first, stop, BLOCK_N):
            column = start + tl.arange(0, BLOCK_N)
            k_position = load_row(KEY_POSITION, key_position_stride, b, column, column < n_keys)
            readable = readable_keys(KEY_ACTIVE, key_active_stride, b, column, n_keys)
            k = load_tile(K + b * k_stride[0] + key_head * k_stride[1], d, column, k_stride[3], k_stride[2], has_d, readable, UPCAST)
            v = load_tile(V + b * v_stride[0] + key_head * v_stride[1], d, column, v_stride[3], v_stride[2], has_d, readable, UPCAST)
            position_k = load_rows(PARTS.key_rows2, b, h, column, d, readable, has_d, UPCAST, True)

            if PARTS.offset_rows is not None:  # right for the offsets of this band, which is all that dz takes
                z, held, held_stop = shifted(
                    position_q, q_position, has_row, k_position, readable, held, held_stop, band_at, PARTS.offset_rows.stride, slab_at,
                    d, has_d, -low, high - low + 1, scale, ACC, PRECISION, BAND, 1, 0)  # fmt: skip
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
            p = tl.exp(s - lse[:, None])
            d_p = tl.dot(d_out, v, input_precision=PRECISION, out_dtype=ACC)
            d_p = add_mass_gradient(d_p, PARTS, c, b, h, row[:, None], has)
            ds = outside_cls(p * (d_p - delta[:, None]), PARTS, q_position, k_position, 0)  # p_ij (G_i·v_j − δ_i)

            if PARTS.offset_rows is None:
                near = tl.minimum(tl.maximum(offset - low, -1), BAND).to(tl.int32)  # −1 and BAND belong to other bands
                for c in range(BAND):
                    of_c = tl.sum(tl.where(near == c, ds, 0.0), 1)
                    total += tl.where(slot[None, :] == c, of_c[:, None], 0.0)
            else:
                dz = add_places(dz, ds, slot, q_position, k_position, readable, slab_at + BLOCK_M * BAND, -low, high - low + 1)

        if PARTS.offset_rows is not None:
            d_rows += tl.dot(tl.trans(dz.to(position_q.dtype)), position_q, input_precision=PRECISION, out_dtype=ACC)  # Σ_i dZ[i, t] (q_i + v)

    partial_at = PARTIAL + chunk.to(tl.int64) * partial_stride[0] + h * partial_stride[1] + (band * BAND + slot) * partial_stride[2]
    inner = low + slot < last - span
    if PARTS.offset_rows is None:
        tl.store(partial_at, tl.sum(total, 0), mask=inner)
    else:
        tl.store(partial_at[:, None] + d[None, :] * partial_stride[3], d_rows * scale, mask=inner[:, None] & has_d[None, :])
