"""Compile every kernel ahead of time, with no GPU, and judge what the compiler made of it.

``python -m positionlib.kernels.compile`` prints one line for each mechanism, kernel (the forward one for many queries and for
one, and those of the backward pass), architecture, dtype and head width: registers a thread, bytes spilled, shared memory against
the architecture's limit, tensor-core instructions. It exits with 1 when a kernel spills, needs more shared memory than there is,
runs a 16-bit product without tensor cores, or adds by an atomic. The arguments are those of ``launch`` for a call with the costliest visibility
(causal, padding and segments), or, with --nothing-hidden, for one that hides nothing. The row kernels follow, with the bytes that they need
(``compile_rows``), and a matrix of what passed, forward and backward. Run it without TRITON_INTERPRET.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from positionlib.kernels.admission import KINDS, interpreted
from positionlib.kernels.arguments import LEARNED, Call
from positionlib.kernels.launch import backward_calls, forward_call

# Read by class: Shaw's key and value, both terms of DeBERTa, distances and paths. Turned: halves of a row, or neighbours, less than all of them. TUPE-R has
# T5's bias too, and is the dearer of the two. Transformer-XL reads a row for each offset.
MECHANISMS = (*KINDS, "shaw", "deberta", "graph", "turned_halves", "turned_pairs", "tupe", "transformer_xl")
SHARED_LIMIT = {80: 166_912, 90: 232_448}  # bytes a block may use, by architecture
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
# No tile was found that keeps a product without tensor cores and the sums by class in registers; the backward pass makes no such sums.
SPILL_BARS = dict.fromkeys((("shaw", "fp32", 128, part) for part in ("prefill", "decode")), 256)
QUERIES = {"prefill": 1001, "decode": 1}  # the forward kernel has a tile for each
BACKWARD = "d_query", "d_key", "d_table"  # in the order of backward_calls
PARTS = *QUERIES, *BACKWARD
TENSOR_CORE, ATOMIC = r"\b(?:mma\.sync|wgmma\.mma_async)\b", r"(?<![.\w])(?:atom|red)\."


@dataclass(frozen=True)
class Report:
    """What one compilation gave; sizes in bytes."""

    kind: str
    arch: int
    dtype: str
    width: int
    part: str
    registers: int
    spill: int
    shared: int
    tensor_cores: int
    atomics: int

    @property
    def spill_bar(self) -> int:
        """Bytes tolerated: two registers, which ptxas spills now and then to fit one more block; eight at width 256 or float32."""
        return SPILL_BARS.get((self.kind, self.dtype, self.width, self.part), 8 if self.dtype != "fp32" and self.width <= 128 else 32)

    @property
    def faults(self) -> list[str]:
        """Why this kernel must not ship; empty when it may."""
        found = []
        if self.spill > self.spill_bar:
            found.append(f"spills {self.spill} bytes")
        if self.shared > SHARED_LIMIT[self.arch]:
            found.append(f"{self.shared - SHARED_LIMIT[self.arch]} bytes of shared memory too many")
        if self.dtype != "fp32" and not self.tensor_cores:
            found.append("no tensor-core instruction")
        if self.atomics:
            found.append(f"{self.atomics} atomic instructions: the order of a sum, and so its last bits, would vary")
        return found

    def __str__(self) -> str:
        return (f"{self.kind:16} sm_{self.arch}  {self.dtype}  {self.width:5}  {self.part:7}  {self.registers:9}  {self.spill:5}  "
                f"{self.shared:6} of {SHARED_LIMIT[self.arch]}  {self.tensor_cores:12}  {'; '.join(self.faults) or 'ok'}")


HEADER = "kernel           arch   dtype  width  part     registers  spill  shared memory     tensor cores"


def compile_kernel(kind: str, arch: int, dtype: str, width: int, part: str, hidden: bool = True) -> Report | None:
    """Compile one kernel of a mechanism, or None where it has no such kernel. Needs a process in which Triton does not interpret.

    ``hidden`` False is a call without padding, segments or causality, whose kernel leaves those lines out.
    """
    import triton

    triton.runtime.driver.set_active(_AbsentGpu(arch))
    # Odd lengths and 12 heads over 4: no multiple that would let the compiler drop a mask. Meta tensors have strides and no memory.
    queries, keys, heads, batch, span = QUERIES.get(part, 1001), 1001, 12, 2, 128
    floats = {"dtype": getattr(torch, DTYPES[dtype]), "device": "meta"}
    q, k = torch.empty(batch, heads, queries, width, **floats), torch.empty(batch, 4, keys, width, **floats)
    lse, table = torch.empty(batch, heads, queries, device="meta"), torch.empty(heads, 2 * span + 1, device="meta")
    row, column = (torch.empty(batch, n, dtype=torch.int64, device="meta") for n in (queries, keys))
    by_query, by_key = (torch.empty(batch, heads, n, 2 * span + 1, device="meta") for n in (queries, keys))
    class_of, pairs = torch.empty(2, 2 * span + 1, dtype=torch.int32, device="meta"), torch.empty(batch, heads, queries, keys, device="meta")

    def turns(count: int) -> dict:
        return {f"{side}_turns": torch.empty(n, 2, count, device="meta") for side, n in (("query", queries), ("key", keys))}

    own = {"shaw": {"class_of": class_of, "query_scores": by_query, "mass_classes": 2 * span + 1},
           "deberta": {"class_of": class_of, "query_scores": by_query, "key_scores": by_key},
           "graph": {"classes": pairs[:, 0].to(torch.uint8), "query_scores": by_query, "pair_bias": pairs},
           "turned_halves": turns(width // 2), "turned_pairs": turns(16) | {"interleaved": True},
           "tupe": {"query_rows2": q[:1], "key_rows2": q.new_empty(1, heads, keys, width), "cls": lse[:, :, 0], "cls_position": 0},
           "transformer_xl": {"query_rows2": q, "offset_rows": torch.empty(heads, 2 * span + 1, width, **floats)}}.get(kind, {})
    score = "t5" if kind == "tupe" else kind if kind in KINDS else "content"
    visibility = (column.bool(), row, column) if hidden else (None, None, None)
    inputs = Call(q, k, k, row, column, *visibility, table, score, span, hidden, 0.125, **own)
    mass, sums = (by_query, q.float()) if inputs.mass_classes else (None, q)
    if part in QUERIES:
        call = forward_call(sums, lse, mass, inputs)
    else:
        ends, inner = lse.new_empty(2, *lse.shape), lse.new_empty(batch, heads, 2 * span - 1)
        gradients = {name: getattr(inputs, name) for name in LEARNED if name != "table" and getattr(inputs, name) is not None}
        gradients |= {"cls": ends} if "cls" in own else {}
        inner = {"t5": inner, "transformer_xl": inner[..., None].expand(-1, -1, -1, width)}.get("transformer_xl" if "offset_rows" in own else score)
        ends = None if score == "content" and "offset_rows" not in own else ends
        calls = backward_calls(gradients, ends, inner, lse, q, lse, mass, sums, lse, inputs)
        if BACKWARD.index(part) >= len(calls):
            return None
        call = calls[BACKWARD.index(part)]
    kernel, _, arguments, options = call
    binary = kernel.warmup(*arguments, grid=(1,), **options)
    usage = _resource_usage(binary.asm["cubin"])
    tensor_cores, atomics = (len(re.findall(pattern, binary.asm["ptx"])) for pattern in (TENSOR_CORE, ATOMIC))
    return Report(kind, arch, dtype, width, part, usage["REG"], usage["STACK"], binary.metadata.shared, tensor_cores, atomics)


class _AbsentGpu:
    """Stands where Triton asks its driver for the device, so that the launcher's own path compiles for a GPU that is not there."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        return self.arch  # a cache of its own for each architecture

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)


def _resource_usage(cubin: bytes) -> dict[str, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, value in re.findall(r"(REG|STACK):(\d+)", text)}


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; 1 when any line has a fault, 2 when Triton interprets."""
    from positionlib.kernels.compile_rows import ROW_KINDS, print_rows, row_verdicts

    parser = argparse.ArgumentParser(prog="python -m positionlib.kernels.compile", description=__doc__.splitlines()[0])
    kinds = (*MECHANISMS, *ROW_KINDS)
    parser.add_argument("--kernel", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--arch", nargs="+", type=int, choices=SHARED_LIMIT, default=[*SHARED_LIMIT])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["fp16", "bf16"])
    parser.add_argument("--width", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--nothing-hidden", action="store_true", help="calls without padding, segments or causality")
    parser.add_argument("--json", type=Path, help="write the matrix there too")
    chosen = parser.parse_args(arguments)
    if interpreted():
        print("TRITON_INTERPRET is set: an interpreting process cannot compile. Unset it.", file=sys.stderr)
        return 2
    print(HEADER)
    reports = []
    for case in itertools.product([kind for kind in chosen.kernel if kind in MECHANISMS], chosen.arch, chosen.dtype, chosen.width, chosen.part):
        report = compile_kernel(*case, hidden=not chosen.nothing_hidden)
        if report is not None:
            reports.append(report)
            print(report, flush=True)
    rows = print_rows([kind for kind in chosen.kernel if kind in ROW_KINDS], chosen.arch, chosen.dtype)
    cells = verdicts(reports) | row_verdicts(rows)
    print(matrix(cells))
    if chosen.json:
        chosen.json.write_text(json.dumps(cells))
    failed = sum(bool(report.faults) for report in (*reports, *rows))
    print(f"{failed} with a fault" if failed else "all admitted")
    return 1 if failed else 0


def verdicts(reports: list[Report]) -> dict[str, dict[str, dict[str, str]]]:
    """{mechanism: {forward or backward: {architecture: what became of its kernels}}}."""
    kinds = dict.fromkeys(report.kind for report in reports)
    return {kind: {name: {f"sm_{arch}": verdict([r for r in reports if (r.kind, r.arch, r.part in BACKWARD) == (kind, arch, name == "backward")])
                          for arch in SHARED_LIMIT} for name in ("forward", "backward")} for kind in kinds}


def verdict(reports: list) -> str:
    """Whether these compilations passed, or how many did not."""
    failed = sum(bool(report.faults) for report in reports)
    return "not run" if not reports else f"{failed} of {len(reports)} failed" if failed else "passed"


def matrix(cells: dict[str, dict[str, dict[str, str]]]) -> str:
    """Two lines a mechanism, forward and backward: the verdict of each column, and that no GPU ran it."""
    columns = list(dict.fromkeys(column for passes in cells.values() for of_pass in passes.values() for column in of_pass))
    lines = [f"{'mechanism':20}{'pass':10}" + "".join(f"{column:16}" for column in columns) + "on a GPU"]
    for kind, passes in cells.items():
        for name, found in passes.items():
            lines.append(f"{kind:20}{name:10}" + "".join(f"{found[column]:16}" for column in columns) + "not run: no GPU")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
