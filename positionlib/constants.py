"""The numbers of a rule on the devices that read them."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor

_HELD: dict[tuple, Tensor] = {}


def on_device(numbers: tuple[int, ...] | tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Shaped[Tensor, "n"]:
    """These n numbers, exact in ``dtype``, as a tensor that nobody may write to, copied to a device once.

    The host would wait at each copy, and a CUDA graph cannot hold one.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._functorch.get_interpreter_stack():
        return torch.tensor(numbers, dtype=dtype, device=device)  # of the graph, mode or transform that runs, and not to be met outside it
    if (numbers, dtype, device) not in _HELD:
        with torch.inference_mode(False):
            _HELD[numbers, dtype, device] = torch.tensor(numbers, dtype=dtype, device=device)
    return _HELD[numbers, dtype, device]
