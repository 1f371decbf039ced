"""What a call must be before pointers are made of it: a kernel reads where it is told to and refuses nothing itself."""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib.errors import require
from positionlib.kernels.arguments import Call
from positionlib.rules import readable

FARTHEST = 2**62  # so that the difference of two positions fits an int64, when one of the two ends is left out


def require_call(call: Call) -> None:
    """Refuse rows that do not belong to q, k and v, which fit each other already.

    Raises
    ------
    PositionContractError
        a head count that k's does not divide, positions, padding or segments of another length or batch, segments on one side only, and
        where the host can look without waiting for a device, positions not above −2^62 or beyond 2^62.
    """
    q, k = call.q, call.k
    require(k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0, "k", k, f"a head count that divides {q.shape[1]}", "Grouped queries share whole key heads.")
    for name, length in (("query_positions", q.shape[2]), ("key_positions", k.shape[2]), ("key_active", k.shape[2]),
                         ("query_segments", q.shape[2]), ("key_segments", k.shape[2])):
        rows = getattr(call, name)
        require(rows is None or has_shape(rows, (length,), (1, length), (q.shape[0], length)), name, rows,
                f"[{length}] or [{q.shape[0]}, {length}]", "Give one a row, shared or of each batch row.")
        if name.endswith("positions") and readable(rows) and not rows.is_cuda:
            ends = [int(end) for end in rows.aminmax()]
            require(-FARTHEST < ends[0] and ends[1] <= FARTHEST, name, ends, "positions above -2^62, up to 2^62", "Offsets must fit an int64.")
    require((call.query_segments is None) == (call.key_segments is None), "key_segments", call.key_segments, "segments on both sides or on neither",
            "Give query_segments and key_segments together.")


def has_shape(t: Tensor, *shapes: tuple[int, ...]) -> bool:
    """Whether t has one of these shapes. Ranks first: a traced batch must not be compared with a length."""
    return any(t.ndim == len(shape) and tuple(t.shape) == shape for shape in shapes)


def require_part(name: str, part: object, like: Tensor, *shapes: tuple[int, ...]) -> None:
    """Refuse what is no dense floating-point tensor of one of ``shapes`` on the device of ``like``."""
    dense = isinstance(part, Tensor) and part.layout == torch.strided and part.dtype.is_floating_point
    require(dense and has_shape(part, *shapes), name, part, "floating point of shape " + " or ".join(str(list(shape)) for shape in shapes),
            "Build the module for this call and this layer's heads.")
    require(part.device == like.device, name, part.device, f"device {like.device}, as q", "Move both to one device.")
