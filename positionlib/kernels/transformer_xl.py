"""Transformer-XL: a dot with one learned row an offset, s_ij + scale · (q_i + v)·R[t_ij] (Dai et al. 2019, section 3.3 and appendix B).

The rows lie on a line: t_ij = clamp(j − i + span, 0, length − 1) is the place of a pair's offset. A product of a tile of queries with
neighbouring rows of R has one column a place, where the scores have one a key; from one query to the next the two move against each
other by one. So each window of places is written to a slab of scratch memory of the program's own and read again by (query, place):

    Z[i, t] = scale · (q_i + v)·R[t]        s_ij += Z[i, t_ij]

The slab is a ring of windows: the next tile of keys finds all but the new ones there. Backward the same way round: ds is written by
(query, key) and read by place,

    dZ[i, t] = Σ_{j: t_ij = t} ds_ij        d(q_i + v) = scale · Σ_t dZ[i, t] R[t]        dR[t] = scale · Σ_i dZ[i, t] (q_i + v)

where a run of keys, whose positions grow with their index, has one key a query and place. The two ends of the line stand for all
offsets beyond, so their dZ are row sums; ``bands`` finds dR of the places between.
"""

import triton
import triton.language as tl

NOWHERE = tl.constexpr(2**62)  # beyond every position and every difference of two


@triton.jit
def shifted(
    q2, q_position, has_row, k_position, has_key, held, held_stop, ROWS, stride, SLAB, d, has_d, span, length, scale,
    ACC: tl.constexpr, PRECISION: tl.constexpr, WINDOW: tl.constexpr, RING: tl.constexpr, KEY_AXIS: tl.constexpr,
):  # fmt: skip
    """(Z[i, t_ij], the windows that the slab holds then); it holds ``held``..``held_stop`` − 1 for this q2 already."""
    i = tl.arange(0, q2.shape[0]) * (RING * WINDOW)
    if KEY_AXIS == 0:
        z = tl.zeros((q_position.shape[0], k_position.shape[0]), ACC)
    else:
        z = tl.zeros((k_position.shape[0], q_position.shape[0]), ACC)
    first, last = place_range(q_position, has_row, k_position, has_key, span, length)
    for begin in range(first // WINDOW, last // WINDOW + 1, RING):  # once, unless the positions leave gaps
        stop = tl.minimum(begin + RING, last // WINDOW + 1)
        missing = tl.where((held <= begin) & (begin < held_stop), held_stop, begin)
        for n in range(0, stop - missing):
            # What only the bounds of an inner loop read, Triton 3.7 takes for dead and replaces by its first value: so count from ``missing``.
            t = (missing + n) * WINDOW + tl.arange(0, WINDOW)
            r = line_rows(ROWS, stride, t, d, length, has_d, q2)
            of_window = tl.dot(q2, tl.trans(r), input_precision=PRECISION, out_dtype=ACC) * scale  # Z[i, t]
            tl.store(SLAB + i[:, None] + (t % (RING * WINDOW))[None, :], of_window)
        tl.debug_barrier()  # written before it is read
        # The place of a pair counted from this round's first: what changes from round to round is not kept in registers before it.
        from_begin = tl.expand_dims(k_position, KEY_AXIS) - tl.expand_dims(q_position - span + begin * WINDOW, 1 - KEY_AXIS)
        place = tl.minimum(tl.maximum(from_begin, -begin * WINDOW), length - 1 - begin * WINDOW).to(tl.int32)
        at = tl.expand_dims(i, 1 - KEY_AXIS) + (place + begin * WINDOW) % (RING * WINDOW)
        z += tl.load(SLAB + at, mask=(place >= 0) & (place < (stop - begin) * WINDOW), other=0.0)
        tl.debug_barrier()  # read before it is written again
        held, held_stop = begin, stop
    return z, held, held_stop


@triton.jit
def add_query_gradient(
    d_q2, ds, q2, q_position, has_row, k_position, has_key, ROWS, stride, SLAB, d, has_d, span, length,
    ACC: tl.constexpr, PRECISION: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """d_q2_i + Σ_t dZ[i, t] R[t] of a tile's keys, between the ends of the line; unscaled."""
    put_keys(ds, SLAB)
    first_key, stop_key, start = next_run(k_position, has_key, 0)
    while first_key < ds.shape[1]:  # once, where the keys' positions follow each other
        nearest = start + first_key - tl.max(tl.where(has_row, q_position, -NOWHERE), 0)
        farthest = start + stop_key - 1 - tl.min(tl.where(has_row, q_position, NOWHERE), 0)
        first, last = places(nearest, span, length), places(farthest, span, length)
        for begin in range(tl.maximum(first, 1), tl.minimum(last, length - 2) + 1, WINDOW):
            t = begin + tl.arange(0, WINDOW)
            dz = take_places(t, q_position, start, first_key, stop_key, span, length - 1, SLAB, ds.shape[1])
            r = line_rows(ROWS, stride, t, d, length, has_d, q2)
            d_q2 += tl.dot(dz.to(r.dtype), r, input_precision=PRECISION, out_dtype=ACC)
        first_key, stop_key, start = next_run(k_position, has_key, stop_key)
    return d_q2


@triton.jit
def add_places(dz, ds, t, q_position, k_position, has_key, SLAB, span, stop):
    """dZ[i, t] + what a tile's keys add to it, t < stop."""
    put_keys(ds, SLAB)
    first_key, stop_key, start = next_run(k_position, has_key, 0)
    while first_key < ds.shape[1]:
        dz += take_places(t, q_position, start, first_key, stop_key, span, stop, SLAB, ds.shape[1])
        first_key, stop_key, start = next_run(k_position, has_key, stop_key)
    return dz


@triton.jit
def with_ends(d_q2, to_first, to_last, ROWS, stride, d, has_d, length):
    """d_q2_i + dZ[i, 0] R[0] + dZ[i, length − 1] R[length − 1]."""
    at = ROWS + d.to(tl.int64) * stride[2]
    first = tl.load(at, mask=has_d, other=0.0).to(d_q2.dtype)
    last = tl.load(at + (length - 1).to(tl.int64) * stride[1], mask=has_d, other=0.0).to(d_q2.dtype)
    return d_q2 + to_first[:, None] * first[None, :] + to_last[:, None] * last[None, :]


@triton.jit
def end_sums(ds, offset, span, length):
    """dZ[i, 0] and dZ[i, length − 1]: row sums over the keys at the first place and before, and over those at the last one and after."""
    return tl.sum(tl.where(offset + span <= 0, ds, 0.0), 1), tl.sum(tl.where(offset + span >= length - 1, ds, 0.0), 1)


@triton.jit
def line_rows(ROWS, stride, t, d, length, has_d, like):
    """R[t] [len(t), len(d)] in the dtype of ``like``, zeros beyond the line."""
    at = ROWS + t.to(tl.int64)[:, None] * stride[1] + d.to(tl.int64)[None, :] * stride[2]
    return tl.load(at, mask=(t < length)[:, None] & has_d[None, :], other=0.0).to(like.dtype)


@triton.jit
def places(offset, span, length):
    """t_ij, the row of R that a pair reads."""
    return tl.minimum(tl.maximum(offset + span, 0), length - 1).to(tl.int32)


@triton.jit
def place_range(q_position, has_row, k_position, has_key, span, length):
    """(first, last) place that a pair of these queries and keys can have."""
    nearest = tl.min(tl.where(has_key, k_position, NOWHERE), 0) - tl.max(tl.where(has_row, q_position, -NOWHERE), 0)
    farthest = tl.max(tl.where(has_key, k_position, -NOWHERE), 0) - tl.min(tl.where(has_row, q_position, NOWHERE), 0)
    return places(nearest, span, length), places(farthest, span, length)


@triton.jit
def next_run(k_position, has_key, done):
    """(first key, stop, where key 0 of the tile would stand) of the next run from key ``done`` on; it holds no readable key that stands elsewhere."""
    j = tl.arange(0, k_position.shape[0])
    first = tl.min(tl.where(has_key & (j >= done), j, k_position.shape[0]), 0)
    start = tl.sum(tl.where(j == first, k_position - j, 0), 0)
    stop = tl.min(tl.where(has_key & (j > first) & (k_position - j != start), j, k_position.shape[0]), 0)
    return first, stop, start


@triton.jit
def put_keys(ds, SLAB):
    """Write ds_ij by (query, key)."""
    i, j = tl.arange(0, ds.shape[0]), tl.arange(0, ds.shape[1])
    tl.debug_barrier()  # the tile before has been read
    tl.store(SLAB + i[:, None] * ds.shape[1] + j[None, :], ds)
    tl.debug_barrier()


@triton.jit
def take_places(t, q_position, start, first_key, stop_key, span, stop, SLAB, BLOCK_N: tl.constexpr):
    """dZ[i, t], t < stop, of a run: ds of the key j with start + j − i + span = t."""
    j = t[None, :] + (q_position - span - start)[:, None]
    at = tl.arange(0, q_position.shape[0])[:, None] * BLOCK_N + j
    return tl.load(SLAB + at, mask=(j >= first_key) & (j < stop_key) & (t < stop)[None, :], other=0.0)
