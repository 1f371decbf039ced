"""The host's share of rows on a line of offsets (``transformer_xl``): q + u and q + v before the kernel, so that autograd trains u and v."""

from __future__ import annotations

from positionlib.errors import require, whole_number
from positionlib.forms import ByLine
from positionlib.kernels.arguments import Call
from positionlib.kernels.checks import FARTHEST, require_part
from positionlib.kernels.launch import accumulator


def with_line(call: Call, form: ByLine) -> Call:
    """The call with its two kinds of queries and the rows, each rounded once to q's dtype.

    Raises
    ------
    PositionContractError
        rows or biases for other heads or of another width, or a line of fewer than two rows.
    """
    (heads, width), dtype = call.q.shape[1::2], call.q.dtype
    for name in ("content_bias", "position_bias"):
        require_part(name, getattr(form, name), call.q, (heads, width))
    rows = form.rows
    length = (0, 0, *getattr(rows, "shape", ()))[-2]
    require(length > 1, "rows", rows, f"[{heads}, W, {width}] with W > 1", "Project the line for each head; it has two ends.")
    require_part("rows", rows, call.q, (heads, length, width))
    first = whole_number(form.first)
    require(first is not None and abs(first) <= FARTHEST, "first", form.first, "an offset within ±2^62", "Name the offset of the first row.")
    q, wide = call.q, accumulator(dtype)
    content, position = ((q.to(wide) + bias[:, None].to(wide)).to(dtype) for bias in (form.content_bias, form.position_bias))
    return call._replace(q=content, query_rows2=position, offset_rows=rows.to(dtype), span=-first)
