"""The small notations that calls are written in: ``zeros[1,3,4]``, ``1/sqrt(2)``, ``bfloat16``."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from tests.cases.expect import NotCovered

DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}
NUMBERING = {"compress_active": "compressed", "contiguous": "contiguous"}


def array(value: object, dtype: torch.dtype = torch.float64) -> Tensor:
    """Nested lists, or "zeros[2,3]"."""
    if isinstance(value, str):
        found = re.fullmatch(r"(zeros|ones)\[([\d,\s]+)\]", value)
        if not found:
            raise NotCovered(f"the array {value!r} is not understood")
        return getattr(torch, found[1])([int(n) for n in found[2].split(",")], dtype=dtype)
    return torch.tensor(value, dtype=dtype)


def ids(value: object) -> Tensor:
    return torch.tensor(value, dtype=torch.int64)


def scale(value: object, d_head: int) -> float:
    """A number, "1/sqrt(4)" or "1/sqrt(d)"."""
    if isinstance(value, (int, float)):
        return float(value)
    found = re.fullmatch(r"1/sqrt\((\d+|d)\)", str(value))
    if not found:
        raise NotCovered(f"the scale {value!r} is not understood")
    return 1.0 / math.sqrt(d_head if found[1] == "d" else int(found[1]))


def dtype(name: object) -> torch.dtype:
    if name not in DTYPES:
        raise NotCovered(f"the dtype {name!r} is not understood")
    return DTYPES[name]
