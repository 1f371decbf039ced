"""Gradients of what all heads share: each rank has those of its own heads, and the sum over ranks is the whole."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from positionlib.errors import require
from positionlib.sharding.layout import head_axes


def shared_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of a mechanism that no head has for itself, each once, in the order of their names: what :func:`sum_gradients` is for."""
    axes = head_axes(module)
    return [parameter for name, parameter in module.named_parameters() if axes[name] is None]


def sum_gradients(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
    """Replace each gradient by its sum over the ranks of ``group`` (None: all). A rank without one adds zeros.

    A collective: every rank calls it once after its backward pass, with the same parameters in the same order. A rank that fails before it
    leaves the others waiting until the group's own time limit.

    Raises
    ------
    PositionContractError
        no process group, or something that is no parameter.
    """
    require(isinstance(parameters, Iterable), "parameters", parameters, "parameters", "Pass shared_parameters(module).")
    given = list(parameters)
    require(all(isinstance(p, nn.Parameter) for p in given), "parameters", [type(p).__name__ for p in given], "parameters", "Pass shared_parameters(module).")
    require(dist.is_available() and dist.is_initialized(), "group", group, "an initialised process group", "Call torch.distributed.init_process_group first: "
            "a rank that sums alone keeps the gradient of its own heads.")
    for parameter in given:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=group)
