"""The registered operators of the row kernels: fake implementations, gradients, and one launch each.

A function ``*_call`` turns tensors into (kernel, grid, arguments, constants); the operator launches it and ``compile_rows`` compiles it.
Triton is imported when one is built, never with the library. Nothing looks at values here: ``rows`` has checked them where it could.
"""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib.errors import UnsupportedPositionContract

CHUNK = 128  # places of a table row summed by one program


def launch(kernel, grid: tuple[int, int], arguments: tuple, constants: dict) -> None:
    """Run one kernel on the device of its first tensor."""
    if 0 not in grid:
        with torch.cuda.device_of(arguments[0]):
            kernel[grid](*arguments, **constants)


@torch.library.custom_op("positionlib::add_sinusoidal", mutates_args=())
def add_sinusoidal(x: Tensor, positions: Tensor, frequency: Tensor, interleaved: bool) -> Tensor:
    """x [B, N, D] + PE(positions), in x's dtype."""
    out = x.new_empty(x.shape)
    launch(*sinusoidal_call(out, x, positions, frequency, interleaved))
    return out


def sinusoidal_call(out, x, positions, frequency, interleaved):
    """The launch of ``sinusoidal.add_sinusoidal``."""
    from positionlib.kernels import sinusoidal

    together = 4 if positions.numel() == x.shape[1] and x.shape[0] > 1 else 1  # a sine costs more than its load
    positions = _by_batch(positions, x)
    arguments = (x, positions, frequency.contiguous(), out, x.stride(), positions.stride(), out.stride(), *x.shape[1:], len(frequency), x.shape[0])
    return sinusoidal.add_sinusoidal, *_tiles(x[::together], arguments, INTERLEAVED=interleaved, TOGETHER=together)


@torch.library.custom_op("positionlib::add_row", mutates_args=())
def add_row(x: Tensor, table: Tensor, ids: Tensor, row_offset: int) -> Tensor:
    """x [B, N, D] + table[ids + row_offset], in x's dtype."""
    out = x.new_empty(x.shape)
    launch(*row_call(out, x, table, ids, row_offset))
    return out


def row_call(out, x, table, ids, row_offset):
    """The launch of ``learned.add_row``."""
    from positionlib.kernels import learned

    ids = _by_batch(ids, x)
    arguments = (x, table, ids, out, x.stride(), table.stride(), ids.stride(), out.stride(), *x.shape[1:], len(table), row_offset)
    return learned.add_row, *_tiles(x, arguments)


@torch.library.custom_op("positionlib::sum_rows", mutates_args=())
def sum_rows(upstream: Tensor, ids: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """[rows, D] in ``dtype``: row r is the sum of upstream [B, N, D] where ids [N] or [B, N] are r; ids outside 0..rows−1 are left out."""
    out = upstream.new_empty((rows, upstream.shape[2]), dtype=dtype)
    in_order, order = ids.reshape(-1).sort(stable=True)
    bound = torch.searchsorted(in_order, torch.arange(rows + 1, device=ids.device))
    partial = upstream.new_empty((upstream.shape[0] * upstream.shape[1] // CHUNK, upstream.shape[2]), dtype=accumulator(upstream.dtype))
    for call in sum_calls(out, upstream, in_order, order, bound, partial):
        launch(*call)
    return out


def sum_calls(out, upstream, in_order, order, bound, partial):
    """The launches of ``learned.sum_chunk`` and ``learned.sum_row``, once the host has sorted the ids."""
    from positionlib.kernels import learned

    batch, n_rows, width = upstream.shape
    shared = batch if order.numel() == n_rows else 1  # the batch reads the same rows
    block_d = _block(width, 256)
    columns, sizes, tail = -(-width // block_d), {"ACC": _acc(upstream.dtype), "CHUNK": CHUNK, "BLOCK_S": 8, "BLOCK_D": block_d}, (n_rows, width, shared)
    return (
        (learned.sum_chunk, (len(partial), columns), (upstream, order, in_order, partial, upstream.stride(), *tail), sizes),
        (learned.sum_row, (len(out), columns), (upstream, order, bound, partial, out, upstream.stride(), out.stride(), *tail), sizes),
    )


@torch.library.custom_op("positionlib::add_grid", mutates_args=())
def add_grid(x: Tensor, row_table: Tensor, column_table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x [B, N, D] + row_table[rows] + column_table[columns], in x's dtype; −1 adds nothing."""
    out = x.new_empty(x.shape)
    launch(*grid_call(out, x, row_table, column_table, rows, columns))
    return out


def grid_call(out, x, row_table, column_table, rows, columns):
    """The launch of ``grid.add_grid``."""
    from positionlib.kernels import grid

    tensors = (x, row_table, column_table, _by_batch(rows, x), _by_batch(columns, x), out)
    arguments = (*tensors, *(t.stride() for t in tensors), *x.shape[1:], len(row_table), len(column_table))
    return grid.add_grid, *_tiles(x, arguments)


@torch.library.custom_op("positionlib::add_time2vec", mutates_args=())
def add_time2vec(x: Tensor, tau: Tensor, present: Tensor, omega: Tensor, phi: Tensor, linear: int, cosine: bool) -> Tensor:
    """x [B, N, D] + row(tau), in x's dtype; ``linear`` is the channel without F."""
    out = x.new_empty(x.shape)
    launch(*time2vec_call(out, x, tau, present, omega, phi, linear, cosine))
    return out


def time2vec_call(out, x, tau, present, omega, phi, linear, cosine):
    """The launch of ``time2vec.add_time2vec``."""
    from positionlib.kernels import time2vec

    tau, present = _by_batch(tau, x), _by_batch(present.view(torch.uint8), x)
    arguments = (x, tau, present, omega.contiguous(), phi.contiguous(), out, x.stride(), tau.stride(), present.stride(), out.stride(), *x.shape[1:], linear)
    return time2vec.add_time2vec, *_tiles(x, arguments, COSINE=cosine)


@torch.library.custom_op("positionlib::time2vec_gradients", mutates_args=())
def time2vec_gradients(upstream: Tensor, tau: Tensor, present: Tensor, omega: Tensor, phi: Tensor, linear: int,
                       cosine: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of tau (float64, its own shape), omega and phi."""
    wide = accumulator(upstream.dtype)
    by_row = upstream.new_empty(upstream.shape[:2], dtype=wide)
    partial = upstream.new_empty(time2vec_parts(upstream), dtype=wide)
    launch(*time2vec_gradients_call(by_row, partial, upstream, tau, present, omega, phi, linear, cosine))
    if tau.numel() != by_row.numel():  # times shared by the batch
        by_row = by_row.sum(0)
    return by_row.to(tau.dtype).reshape(tau.shape), partial[:, 0].sum(0).to(omega.dtype), partial[:, 1].sum(0).to(phi.dtype)


def time2vec_gradients_call(by_row, partial, upstream, tau, present, omega, phi, linear, cosine):
    """The launch of ``time2vec.time2vec_gradients``: one program for each line of ``partial``."""
    from positionlib.kernels import time2vec

    tau, present = _by_batch(tau, upstream), _by_batch(present.view(torch.uint8), upstream)
    arguments = (upstream, tau, present, omega.contiguous(), phi.contiguous(), by_row, partial, upstream.stride(), tau.stride(), present.stride(),
                 *upstream.shape[1:], linear)
    constants = {"COSINE": cosine, "ACC": _acc(upstream.dtype), **_long_sizes(upstream)}
    return time2vec.time2vec_gradients, (len(partial), 1), arguments, constants


def time2vec_parts(upstream: Tensor) -> tuple[int, int, int]:
    """Shape of ``partial``: the tiles of rows, ω and φ, the channels."""
    return _row_tiles(upstream, _long_sizes(upstream)), 2, upstream.shape[2]


@torch.library.custom_op("positionlib::rotate", mutates_args=())
def rotate(x: Tensor, positions: Tensor, frequency: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    """x [B, H, N, D] turned by its rows' positions, or back where ``inverse``."""
    out = x.new_empty(x.shape)
    launch(*rotate_call(out, x, positions, frequency, interleaved, inverse))
    return out


def rotate_call(out, x, positions, frequency, interleaved, inverse):
    """The launch of ``rotary.rotate``: axis 0 counts batch and rows, axis 1 groups of heads."""
    from positionlib.kernels import rotary

    batch, heads, n_rows, width = x.shape
    pairs = len(frequency)
    positions = positions.expand(batch, n_rows)
    block_p = _block(pairs, 1 << 30)
    block_n = max(1, min(_block(n_rows, 1 << 30), 1024 // block_p))
    rest = width - 2 * pairs
    arguments = (x, positions, frequency.contiguous(), out, x.stride(), positions.stride(), out.stride(), heads, n_rows, pairs, width)
    constants = {"INTERLEAVED": interleaved, "INVERSE": inverse, "ACC": _acc(x.dtype), "HEADS": 8, "BLOCK_N": block_n, "BLOCK_P": block_p,
                 "BLOCK_REST": _block(rest, 1 << 30) if rest else 0, "num_warps": 4}
    return rotary.rotate, (batch * -(-n_rows // block_n) if x.numel() else 0, -(-heads // 8)), arguments, constants


def _like_x(x, *_):
    return x.new_empty(x.shape)


def _keep_row(ctx, inputs, output):
    _, table, ids, row_offset = inputs
    ctx.save_for_backward(ids)
    ctx.row_offset, ctx.rows, ctx.dtype = row_offset, len(table), table.dtype


def _row_backward(ctx, g):
    (ids,) = ctx.saved_tensors
    return sum_rows(g, ids + ctx.row_offset, ctx.rows, ctx.dtype) if ctx.needs_input_grad[1] else None, None, None


def _keep_grid(ctx, inputs, output):
    _, row_table, column_table, rows, columns = inputs
    ctx.save_for_backward(rows, columns)
    ctx.tables = (len(row_table), row_table.dtype), (len(column_table), column_table.dtype)


def _grid_backward(ctx, g):
    sums = (sum_rows(g, ids, *table) if needed else None for ids, table, needed in zip(ctx.saved_tensors, ctx.tables, ctx.needs_input_grad[1:3]))
    return *sums, None, None


def _keep_time2vec(ctx, inputs, output):
    ctx.save_for_backward(*inputs[1:5])
    ctx.convention = inputs[5:]


def _time2vec_backward(ctx, g):
    tau, present, omega, phi = ctx.saved_tensors
    of_tau, of_omega, of_phi = time2vec_gradients(g, tau, present, omega, phi, *ctx.convention)
    return of_tau, None, of_omega, of_phi, None, None


def _keep_rotation(ctx, inputs, output):
    _, positions, frequency, ctx.interleaved, ctx.inverse = inputs
    ctx.save_for_backward(positions, frequency)


def _rotate_backward(ctx, g):
    return rotate(g, *ctx.saved_tensors, ctx.interleaved, not ctx.inverse), None, None, None, None


def _refuse(ctx, *gradients):
    raise UnsupportedPositionContract("backend", "triton", "one differentiation", "Add the mechanism's term to differentiate a gradient.",
                                      frozenset({"a second derivative: of the row kernels only a rotation has one"}))


for _op in (add_sinusoidal, add_row, add_grid, add_time2vec, rotate):
    _op.register_fake(_like_x)
add_sinusoidal.register_autograd(lambda ctx, g: (g, None, None, None))
add_row.register_autograd(lambda ctx, g: (g, *_row_backward(ctx, g)), setup_context=_keep_row)
add_grid.register_autograd(lambda ctx, g: (g, *_grid_backward(ctx, g)), setup_context=_keep_grid)
add_time2vec.register_autograd(lambda ctx, g: (g, *_time2vec_backward(ctx, g)), setup_context=_keep_time2vec)
rotate.register_autograd(_rotate_backward, setup_context=_keep_rotation)
sum_rows.register_autograd(_refuse)
time2vec_gradients.register_autograd(_refuse)


@sum_rows.register_fake
def _(upstream, ids, rows, dtype):
    return upstream.new_empty((rows, upstream.shape[-1]), dtype=dtype)


@time2vec_gradients.register_fake
def _(upstream, tau, present, omega, phi, linear, cosine):
    return tuple(t.new_empty(t.shape) for t in (tau, omega, phi))


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything shorter."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _acc(dtype):
    import triton.language as tl

    return tl.float64 if dtype == torch.float64 else tl.float32


def _by_batch(values: Tensor, x: Tensor) -> Tensor:
    """One number a row, [B, N]; stride 0 where the batch shares one line."""
    return values.expand(x.shape[:2])


def _block(size: int, most: int) -> int:
    """The power of two that covers ``size``, at most ``most``."""
    return min(most, max(1, 1 << (size - 1).bit_length()))


def _sizes(x: Tensor, widest: int = 256) -> dict[str, int]:
    """A tile wide before it is long: neighbours in memory are read together, and no thread needs more than 64 registers."""
    block_d = _block(x.shape[2], widest)
    return {"BLOCK_N": min(_block(x.shape[1], 2048), 2048 // block_d), "BLOCK_D": block_d, "num_warps": 8}


def _long_sizes(x: Tensor) -> dict[str, int]:
    """A tile that is long before it is wide, where each leaves a line of sums behind."""
    return _sizes(x, widest=32)


def _row_tiles(x: Tensor, sizes: dict[str, int]) -> int:
    """How many tiles of rows cover x [B, N, D]; none crosses from one batch row to the next."""
    return x.shape[0] * -(-x.shape[1] // sizes["BLOCK_N"])


def _tiles(x: Tensor, arguments: tuple, **conventions) -> tuple[tuple[int, int], tuple, dict]:
    """(grid, arguments, constants) of a kernel that owns tiles of x."""
    sizes = _sizes(x)
    return (_row_tiles(x, sizes), -(-x.shape[2] // sizes["BLOCK_D"])), arguments, {"ACC": _acc(x.dtype), **conventions, **sizes}
