"""Compile every kernel ahead of time, with no GPU, and judge what the compiler made of it.

``python -m positionlib.kernels.compile`` prints one line for each kernel, architecture, dtype, head width and query tile:
registers a thread, bytes spilled, shared memory against the architecture's limit, tensor-core instructions. It exits with 1
when a kernel spills, needs more shared memory than there is, or runs a 16-bit product without tensor cores. The arguments are
those of ``launch`` for a call with the costliest visibility (causal, padding and segments). Run it without TRITON_INTERPRET.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from positionlib.kernels.admission import KINDS, interpreted
from positionlib.kernels.launch import launch_arguments

SHARED_LIMIT = {80: 166_912, 90: 232_448}  # bytes a block may use, by architecture
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
QUERIES = {"prefill": 1001, "decode": 1}


@dataclass(frozen=True)
class Report:
    """What one compilation gave; sizes in bytes."""

    kind: str
    arch: int
    dtype: str
    width: int
    phase: str
    registers: int
    spill: int
    shared: int
    tensor_cores: int

    @property
    def spill_bar(self) -> int:
        """Bytes tolerated: two registers, which ptxas spills now and then to fit one more block; eight at width 256 or float32."""
        return 8 if self.dtype != "fp32" and self.width <= 128 else 32

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
        return found

    def __str__(self) -> str:
        return (f"{self.kind:16} sm_{self.arch}  {self.dtype}  {self.width:5}  {self.phase:7}  {self.registers:9}  {self.spill:5}  "
                f"{self.shared:6} of {SHARED_LIMIT[self.arch]}  {self.tensor_cores:12}  {'; '.join(self.faults) or 'ok'}")


HEADER = "kernel           arch   dtype  width  phase    registers  spill  shared memory     tensor cores"


def compile_kernel(kind: str, arch: int, dtype: str, width: int, phase: str) -> Report:
    """Compile the tile loop around one score function. Needs a process in which Triton does not interpret."""
    import triton

    from positionlib.kernels.tile import forward_tile

    # Odd lengths and 12 heads over 4: no multiple that would let the compiler drop a mask. Meta tensors have strides and no memory.
    queries, keys, heads, batch = QUERIES[phase], 1001, 12, 2
    floats = {"dtype": getattr(torch, DTYPES[dtype]), "device": "meta"}
    q, k = torch.empty(batch, heads, queries, width, **floats), torch.empty(batch, 4, keys, width, **floats)
    lse, table = torch.empty(batch, heads, queries, device="meta"), torch.empty(heads, 257, device="meta")
    row, column = (torch.empty(batch, n, dtype=torch.int64, device="meta") for n in (queries, keys))
    _, arguments, options = launch_arguments(q, lse, q, k, k, row, column, column.bool(), row, column, table, kind, 128, True, 0.125)
    triton.runtime.driver.set_active(_AbsentGpu(arch))
    binary = forward_tile.warmup(*arguments, grid=(1,), **options)
    usage = _resource_usage(binary.asm["cubin"])
    tensor_cores = len(re.findall(r"\b(?:mma\.sync|wgmma\.mma_async)\b", binary.asm["ptx"]))
    return Report(kind, arch, dtype, width, phase, usage["REG"], usage["STACK"], binary.metadata.shared, tensor_cores)


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
    """Print the table; 1 when any line has a fault, 2 when Triton interprets."""
    parser = argparse.ArgumentParser(prog="python -m positionlib.kernels.compile", description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--arch", nargs="+", type=int, choices=SHARED_LIMIT, default=[*SHARED_LIMIT])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["fp16", "bf16"])
    parser.add_argument("--width", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--phase", nargs="+", choices=QUERIES, default=[*QUERIES])
    chosen = parser.parse_args(arguments)
    if interpreted():
        print("TRITON_INTERPRET is set: an interpreting process cannot compile. Unset it.", file=sys.stderr)
        return 2
    print(HEADER)
    failed = 0
    for case in itertools.product(chosen.kernel, chosen.arch, chosen.dtype, chosen.width, chosen.phase):
        report = compile_kernel(*case)
        failed += bool(report.faults)
        print(report, flush=True)
    print(f"{failed} with a fault" if failed else "all admitted")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
