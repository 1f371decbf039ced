"""From tensors to kernel launches: arguments and grid. Triton is imported at the first launch, never with the library.

Every kernel takes its floating-point tensors, the five rows of positions, padding and segments, the table, the parts that only some
mechanisms have, the strides of the rest, the sizes, and then its constants. A call is (kernel, grid, arguments, constants and compiler options).
"""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib.kernels.admission import interpreted
from positionlib.kernels.arguments import TENSORS, Call, Parts, Strided
from positionlib.kernels.sizes import band_tile_sizes, key_tile_sizes, line_sizes, query_tile_sizes, slab, tile_sizes, untied_sizes

CHUNK = 1024  # query rows whose share of a table's gradient one program of ``bands`` adds up
WHOLE = 2**30  # and of the gradient of offset rows, which are as many as the keys: all rows of a batch row
ADDED_UP = {"query_scores", "key_scores", "pair_bias"}  # gradients that a kernel adds to or fills in part


def launch(out, lse, mass, call: Call) -> None:
    """Run the forward kernel into ``out``, ``lse`` and, unless it is None, ``mass``, of any strides."""
    if mass is not None:
        mass.zero_()
    _run(out, [forward_call(out, lse, mass, call)] if out.numel() else [])


def launch_backward(gradients: dict[str, Tensor], d_out, d_lse, d_mass, out, lse, mass, call: Call) -> None:
    """Run the backward kernels into ``gradients``, of any strides, by names of ``LEARNED``: q, k, v, and those of the others that are wanted."""
    if not out.numel():  # no program of a kernel has a row to read, and a batch of none may still share rows of positions
        for gradient in gradients.values():
            gradient.zero_()
        return
    delta, d_table, d_rows = lse.new_empty(lse.shape), gradients.get("table"), gradients.get("offset_rows")
    if d_mass is not None:
        d_lse = (0.0 if d_lse is None else d_lse) - (d_mass * mass).sum(-1)  # M's part of δ
    for name in ADDED_UP & gradients.keys():
        gradients[name].zero_()
    ends = inner = None
    if d_table is not None or d_rows is not None:
        ends = lse.new_empty(2, *lse.shape)
    if d_rows is not None:
        inner = lse.new_empty(lse.shape[0], lse.shape[1], d_rows.shape[1] - 2, d_rows.shape[2])
    elif d_table is not None and call.kind == "t5":
        inner = lse.new_empty(lse.shape[0] * -(-lse.shape[2] // CHUNK), lse.shape[1], 2 * call.span - 1)
    apart = _apart(gradients, lse)
    calls = backward_calls(gradients | apart, ends, inner, delta, d_out, d_lse, d_mass, out, lse, call)
    _run(out, [made for made, written in zip(calls, (gradients["q"], gradients["k"], inner)) if written is not None and written.numel()])
    for name, parts in apart.items():
        gradients[name].copy_(parts.sum((1, 3)) if name == "cls" else parts.sum(0, keepdim=True))
    if d_table is not None:
        first, last = ends.sum((1, 3))  # over the batch and the rows: [H] each
        d_table.copy_(first if inner is None else torch.cat((first[:, None], inner.sum(0), last[:, None]), 1))
    if d_rows is not None:
        first, last = ((call.scale * end[..., None] * call.query_rows2).sum((0, 2)) for end in ends)  # [H, D] each
        d_rows.copy_(torch.cat((first[:, None], inner.sum(0), last[:, None]), 1))


def _apart(gradients: dict[str, Tensor], lse: Tensor) -> dict[str, Tensor]:
    """Where the kernels put what the host adds up: of rows that the batch shares, a gradient for each batch row; of a head's numbers, one for each row."""
    batch, shared = lse.shape[0], [name for name in ("query_rows2", "key_rows2") if name in gradients and gradients[name].shape[0] < lse.shape[0]]
    apart = {name: lse.new_empty(batch, *gradients[name].shape[1:]) for name in shared}
    return apart | ({"cls": lse.new_empty(2, *lse.shape)} if "cls" in gradients else {})


def _run(where, calls) -> None:
    with torch.cuda.device_of(where):
        for kernel, grid, arguments, options in calls:
            kernel[grid](*arguments, **options)


def forward_call(out, lse, mass, call: Call) -> tuple:
    """The call of ``tile``: one program a query tile and head."""
    from positionlib.kernels import tile

    q, parts = call.q, _parts(call, mass=mass)
    sizes = _sizes("tile", tile_sizes(q.shape[3], q.shape[2], q.element_size(), _crowded(parts), parts.interleaved is not None), call)
    grid = _grid(q, sizes["BLOCK_M"])
    slabs = _with_slabs(parts, lse, grid, slab("tile", sizes))
    arguments, options = _common((q, call.k, call.v, out, lse), slabs, call)
    return tile.forward_tile, grid, arguments, options | sizes


def backward_calls(gradients, ends, inner, delta, d_out, d_lse, d_mass, out, lse, call: Call) -> list[tuple]:
    """The calls of ``query_gradients``, ``key_gradients`` and ``band_gradients``, in this order: the first one writes ``delta``."""
    from positionlib.kernels import backward, bands

    q, k, v = call.q, call.k, call.v
    width, size, turned = q.shape[3], q.element_size(), call.query_turns is not None
    read, d_k, d_v = (q, k, v, d_out, lse, delta), gradients["k"], gradients["v"]
    parts = _parts(call, d_mass=d_mass, **{f"d_{name}": t for name, t in gradients.items() if f"d_{name}" in Parts._fields})
    sizes = _sizes("query", query_tile_sizes(width, size, _crowded(parts), turned), call)
    grid = _grid(q, sizes["BLOCK_M"])
    slabs = _with_slabs(parts, lse, grid, slab("query", sizes))
    arguments, options = _common((*read, out, d_lse, gradients["q"], ends), slabs, call)
    calls = [(backward.query_gradients, grid, arguments, options | sizes | {"FOLD": mechanism(call.kind)[1]})]
    sizes = _sizes("key", key_tile_sizes(width, size, _crowded(parts), turned, parts.key_scores is not None), call)
    grid = _grid(k, sizes["BLOCK_N"])
    slabs = _with_slabs(parts, lse, grid, slab("key", sizes))
    calls.append((backward.key_gradients, grid, _common((*read, d_k, d_v), slabs, call)[0], options | sizes))
    if inner is not None:
        sizes = _sizes("band", band_tile_sizes(width, size), call)
        grid = (-(-inner.shape[2] // sizes["BAND"]) * inner.shape[0] * inner.shape[1],)
        slabs = _with_slabs(parts, lse, grid, slab("band", sizes))
        chunk = CHUNK if call.offset_rows is None else WHOLE
        calls.append((bands.band_gradients, grid, _common((*read, inner), slabs, call)[0], options | sizes | {"CHUNK": chunk}))
    return calls


def _sizes(kernel: str, usual: dict[str, int], call: Call) -> dict[str, int]:
    special = line_sizes if call.offset_rows is not None else untied_sizes if call.key_rows2 is not None else None
    return usual if special is None else special(kernel, call.q.shape[3], call.q.shape[2], call.q.element_size())


def _with_slabs(parts: Parts, lse: Tensor, grid: tuple[int], size: int) -> Parts:
    """A slab of ``size`` numbers for each program, where offset rows are read."""
    return parts if parts.offset_rows is None else parts._replace(scratch=lse.new_empty(grid[0] * size))


def _grid(x, block: int) -> tuple[int]:
    return (-(-x.shape[2] // block) * x.shape[0] * x.shape[1],)


def _common(floats, parts, call: Call):
    """(arguments, options) of a kernel that takes ``floats``, which start with q, k, v; None may stand for one that it does without."""
    import triton.language as tl

    q, k = floats[:2]
    double = q.dtype == torch.float64
    active = None if call.key_active is None else call.key_active.view(torch.uint8)
    rows = call.query_positions, call.key_positions, active, call.query_segments, call.key_segments
    rows = [None if t is None else t.expand(q.shape[0], t.shape[-1]) for t in rows]  # stride 0 where the batch shares one row
    table = None if call.table is None else call.table.to(accumulator(q.dtype)).contiguous()
    strides = [() if t is None else t.stride() for t in (*floats, *rows)]
    sizes = q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], q.shape[3], call.span, call.scale
    options = {"SCORE": mechanism(call.kind)[0], "CAUSAL": call.causal, "UPCAST": q.dtype == torch.bfloat16 and interpreted(),
               "ACC": tl.float64 if double else tl.float32, "PRECISION": "ieee"}
    return (*floats, *rows, table, parts, *strides, *sizes), options


def _parts(call: Call, **filled: Tensor | None) -> Parts:
    """The parts that a call reads, and those that the kernel fills or that come from its caller."""
    classes, count = call.classes, 0
    if classes is not None:
        classes = classes.expand(call.q.shape[0], *classes.shape[-2:])
        count = next((t.shape[3] for t in (call.query_scores, call.key_scores) if t is not None), call.mass_classes)
    read = {name: getattr(call, name) for name in set(TENSORS) & set(Parts._fields)} | {"classes": classes}
    for name in ("query_turns", "key_turns", "query_rows2", "key_rows2"):  # stride 0 where the batch shares them
        read[name] = None if read[name] is None else read[name].expand(call.q.shape[0], -1, -1, -1)
    pairs = None if call.query_turns is None or 2 * call.query_turns.shape[-1] == call.q.shape[-1] else call.query_turns.shape[-1]
    strided = {name: None if t is None else Strided(t, t.stride()) for name, t in (read | filled).items()}
    places = 0 if call.offset_rows is None else call.offset_rows.shape[1]
    return Parts(class_count=count, offset_count=places, cls_position=call.cls_position, pairs=pairs, interleaved=1 if call.interleaved else None,
                 **strided)


def _crowded(parts: Parts) -> bool:
    """Whether a program reads numbers by class or by pair."""
    return any(part is not None for part in (parts.classes, parts.class_of, parts.pair_bias))


def mechanism(kind: str) -> tuple:
    """The ``@triton.jit`` pair behind one of ``KINDS``: the score function, and the sums over a row's ds that its table's gradient needs."""
    from positionlib.kernels import alibi, nope, t5

    return {"content": (nope.content, None), "alibi_relative": (alibi.alibi_relative, alibi.alibi_relative_fold),
            "alibi_symmetric": (alibi.alibi_symmetric, alibi.alibi_symmetric_fold), "t5": (t5.t5, t5.t5_fold)}[kind]


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and of the log-sum-exp."""
    return torch.float64 if dtype == torch.float64 else torch.float32
