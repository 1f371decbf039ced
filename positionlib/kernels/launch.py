"""From tensors to kernel launches: arguments and grid. Triton is imported at the first launch, never with the library.

Every kernel takes its floating-point tensors, the five rows of positions, padding and segments, the table, the strides of all of
these, the sizes, and then its constants. A call is (kernel, grid, arguments, constants and compiler options).
"""

from __future__ import annotations

import torch

from positionlib.kernels.admission import interpreted
from positionlib.kernels.sizes import band_tile_sizes, key_tile_sizes, query_tile_sizes, tile_sizes

CHUNK = 1024  # query rows whose share of a table's gradient one program of ``bands`` adds up


def launch(out, lse, *inputs) -> None:
    """Run the forward kernel into ``out`` and ``lse``, of any strides. ``inputs`` are the arguments of the operator."""
    _run(out, [forward_call(out, lse, *inputs)] if out.numel() else [])


def launch_backward(d_q, d_k, d_v, d_table, d_out, d_lse, out, lse, *inputs) -> None:
    """Run the backward kernels into ``d_q``, ``d_k`` and ``d_v``, of any strides, and into ``d_table`` unless it is None."""
    kind, span = inputs[9:11]
    delta = lse.new_empty(lse.shape)
    ends = inner = None
    if d_table is not None:
        ends = lse.new_empty(2, *lse.shape)
        if kind == "t5":
            inner = lse.new_empty(lse.shape[0] * -(-lse.shape[2] // CHUNK), lse.shape[1], 2 * span - 1)
    calls = backward_calls(d_q, d_k, d_v, ends, inner, delta, d_out, d_lse, out, lse, *inputs)
    _run(out, [call for call, written in zip(calls, (d_q, d_k, inner)) if written is not None and written.numel()])
    if d_table is not None:
        first, last = ends.sum((1, 3))  # over the batch and the rows: [H] each
        d_table.copy_(first if inner is None else torch.cat((first[:, None], inner.sum(0), last[:, None]), 1))


def _run(where, calls) -> None:
    with torch.cuda.device_of(where):
        for kernel, grid, arguments, options in calls:
            kernel[grid](*arguments, **options)


def forward_call(out, lse, q, k, v, *inputs) -> tuple:
    """The call of ``tile``: one program a query tile and head."""
    from positionlib.kernels import tile

    sizes = tile_sizes(q.shape[3], q.shape[2], q.element_size())
    arguments, options = _common((q, k, v, out, lse), *inputs)
    return tile.forward_tile, _grid(q, sizes["BLOCK_M"]), arguments, options | sizes


def backward_calls(d_q, d_k, d_v, ends, inner, delta, d_out, d_lse, out, lse, q, k, v, *inputs) -> list[tuple]:
    """The calls of ``query_gradients``, ``key_gradients`` and ``band_gradients``, in this order: the first one writes ``delta``."""
    from positionlib.kernels import backward, bands

    width, size, span = q.shape[3], q.element_size(), inputs[7]
    read = q, k, v, d_out, lse, delta
    arguments, options = _common((*read, out, d_lse, d_q, ends), *inputs)
    sizes = query_tile_sizes(width, size)
    calls = [(backward.query_gradients, _grid(q, sizes["BLOCK_M"]), arguments, options | sizes | {"FOLD": mechanism(inputs[6])[1]})]
    sizes = key_tile_sizes(width, size)
    calls.append((backward.key_gradients, _grid(k, sizes["BLOCK_N"]), _common((*read, d_k, d_v), *inputs)[0], options | sizes))
    if inner is not None:
        sizes = band_tile_sizes(width, size)
        grid = (-(-(2 * span - 1) // sizes["BAND"]) * inner.shape[0] * inner.shape[1],)
        calls.append((bands.band_gradients, grid, _common((*read, inner), *inputs)[0], options | sizes | {"CHUNK": CHUNK}))
    return calls


def _grid(x, block: int) -> tuple[int]:
    return (-(-x.shape[2] // block) * x.shape[0] * x.shape[1],)


def _common(floats, query_positions, key_positions, key_active, query_segments, key_segments, table, kind, span, causal, scale):
    """(arguments, options) of a kernel that takes ``floats``, which start with q, k, v; None may stand for one that it does without."""
    import triton.language as tl

    q, k = floats[:2]
    double = q.dtype == torch.float64
    rows = [query_positions, key_positions, None if key_active is None else key_active.view(torch.uint8), query_segments, key_segments]
    rows = [None if t is None else t.expand(q.shape[0], t.shape[-1]) for t in rows]  # stride 0 where the batch shares one row
    table = None if table is None else table.to(accumulator(q.dtype)).contiguous()
    strides = [() if t is None else t.stride() for t in (*floats, *rows)]
    sizes = q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], q.shape[3], span, scale
    options = {"SCORE": mechanism(kind)[0], "CAUSAL": causal, "UPCAST": q.dtype == torch.bfloat16 and interpreted(),
               "ACC": tl.float64 if double else tl.float32, "PRECISION": "ieee"}
    return (*floats, *rows, table, *strides, *sizes), options


def mechanism(kind: str) -> tuple:
    """The ``@triton.jit`` pair behind one of ``KINDS``: the score function, and the sums over a row's ds that its table's gradient needs."""
    from positionlib.kernels import alibi, nope, t5

    return {"content": (nope.content, None), "alibi_relative": (alibi.alibi_relative, alibi.alibi_relative_fold),
            "alibi_symmetric": (alibi.alibi_symmetric, alibi.alibi_symmetric_fold), "t5": (t5.t5, t5.t5_fold)}[kind]


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and of the log-sum-exp."""
    return torch.float64 if dtype == torch.float64 else torch.float32
