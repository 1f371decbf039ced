"""One matrix of every mechanism: compiled for GPUs, interpreted against the float64 oracles, and whether a GPU has run it (``make kernels``).

``python -m tests.kernels.matrix`` hands its arguments to ``positionlib.kernels.compile``, in a process of its own since one that interprets cannot
compile, interprets what was compiled in float64, float32 and float16, and exits with 1 when any cell failed. Run it with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from positionlib.kernels.admission import KINDS
from positionlib.kernels.compile import matrix
from tests.kernels import cases, class_cases, gradients, line_cases, row_cases
from tests.kernels.cases import Case
from tests.kernels.class_cases import ClassCase
from tests.kernels.environment import without_interpreter
from tests.kernels.line_cases import LineCase
from tests.kernels.rotary_cases import Turned
from tests.kernels.tupe_cases import Untied

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16}
# Two tiles and a half of keys in each dtype; rows that see nothing, a prefix of padding, two segments, shared key heads; one query over a cache.
GEOMETRIES = {
    "long": dict(queries=33, keys=150, start=60, heads=1),
    "ragged": dict(queries=30, keys=30, batch=2, heads=2, causal=True, padding="left", segments=True, batched=True),
    "decode": dict(queries=1, keys=80, start=79, heads=2, causal=True),
}
Errors = Callable[[Case, torch.dtype], tuple[float, float]]


def alone(case: Case, dtype: torch.dtype) -> tuple[float, float]:
    """Largest errors, over the tolerance, of the results and of the gradients."""
    t = case.draw(dtype) if isinstance(case, Untied) else cases.draw(case, dtype)
    back = gradients.cotangents(t)
    seen = gradients.run_backward(case, t, *back)
    return cases.error(case, dtype, cases.oracle(case, t), t), gradients.gradient_error(case, dtype, gradients.gradients(case, t, *back), seen)


def with_parts(family, draw: Callable, case: ClassCase, dtype: torch.dtype) -> tuple[float, float]:
    """The same for calls whose pairs read by class or by offset."""
    drawn = draw(case, dtype)
    back = class_cases.cotangents(case, drawn[0])
    results = class_cases.forward_error(case, dtype, family.oracle(case, *drawn), family.run(case, *drawn))
    return results, gradients.gradient_error(case, dtype, family.gradients(case, *drawn, back), family.run_backward(case, *drawn, back))


by_class, by_line = partial(with_parts, class_cases, class_cases.draw_parts), partial(with_parts, line_cases, line_cases.draw_line)
ATTENTION: dict[str, tuple[Errors, Case]] = {
    **{kind: (alone, Case(kind, kind)) for kind in KINDS},
    "shaw": (by_class, ClassCase("shaw", reads="query mass")),
    "deberta": (by_class, ClassCase("deberta", reads="query key")),
    "graph": (by_class, ClassCase("graph", reads="query pairs", given=True)),
    "turned_halves": (alone, Turned("turned_halves")),
    "turned_pairs": (alone, Turned("turned_pairs", width=32, pairs=5, interleaved=True)),
    "tupe": (alone, Untied("tupe", "t5", at=61)),
    "transformer_xl": (by_line, LineCase("transformer_xl")),
}
ROWS = {
    "sinusoidal": ("sines", "sines_zero_pad_in_blocks"),
    "learned": ("lookup", "lookup_crowded"),
    "grid": ("grid_batched", "grid_leading"),
    "time2vec": ("times", "times_missing"),
    "rotary_half_split": ("half_split_part", "half_split_decode"),
    "rotary_interleaved": ("interleaved", "interleaved_part"),
}


def interpreted(kind: str, dtype: torch.dtype) -> tuple[float, float]:
    """Largest errors of a mechanism, forward and backward, over the tolerance of its tests; infinite where a margin was written."""
    found = []
    if kind in ATTENTION:
        errors, case = ATTENTION[kind]
        calls = [partial(errors, replace(case, key_heads=1, **geometry), dtype) for geometry in GEOMETRIES.values()]
    else:
        calls = [partial(of_rows, row_cases.BY_NAME[name], dtype) for name in ROWS[kind]]
    for call in calls:
        try:
            found.append(call())
        except AssertionError:
            found.append((math.inf, math.inf))
    return tuple(map(max, zip(*found)))


def of_rows(case: row_cases.RowCase, dtype: torch.dtype) -> tuple[float, float]:
    t = row_cases.draw(case, dtype)
    y, *back = row_cases.errors(case, dtype, row_cases.wanted(case, t), t)
    return y, max(back, default=0.0)


def main(arguments: list[str] | None = None) -> int:
    """Compile, interpret, print the matrix; 1 when any cell failed."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "positionlib.kernels.compile", "--json", file.name, *(sys.argv[1:] if arguments is None else arguments)]
        status = subprocess.run(command, env=without_interpreter()).returncode
        text = Path(file.name).read_text()
    if not text:  # the compiler has said why
        return status
    cells, failed = json.loads(text), status != 0
    print("\nmechanism           dtype     error over tolerance: forward, backward")
    for kind, passes in cells.items():
        for name, dtype in DTYPES.items():
            errors = interpreted(kind, dtype)
            print(f"{kind:20}{name:10}{errors[0]:8.3f}  {errors[1]:8.3f}", flush=True)
            for of_pass, error in zip(passes.values(), errors):
                of_pass[name] = "no kernel" if "no kernel" in of_pass.values() else "passed" if error <= 1 else "failed"
                failed |= error > 1
    print(f"\n{matrix(cells)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
