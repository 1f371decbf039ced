"""Whether the kernels are right on this device: errors beside those of eager in the same dtype, bits that repeat, bucket edges.

    error(x) = ‖x − x₆₄‖ / ‖x₆₄‖          ratio = error(ours) / error(eager), the largest over the output and every gradient

x₆₄ is eager in float64 from the same rounded inputs and parameters. Eager in the same dtype has every product and every sum of attention in
that dtype (:func:`eager`). The library's own reference is another thing: it computes half precision in float32 and rounds once, and the kernel,
whose probabilities are rounded for the tensor cores, is compared with it beside the verdict. A ratio bounds nothing where both sides are
wrong in the same way, which the tests of the kernels are for; it says whether the kernel loses more than its dtype does.
"""

from __future__ import annotations

import copy
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from positionlib.attention import _scores as score
from positionlib.attention import attend, check_call, class_mass, masked_softmax
from positionlib.bench.gpu_cases import CALLS, DTYPES, MECHANISMS, Call, Mechanism
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms import T5Bias
from positionlib.rotation import QKTransform
from positionlib.rules import T5Buckets
from positionlib.runtime.fused import refusal
from positionlib.terms import Term

RATIO = 1.5  # the bar: error of the kernel over error of eager in the same dtype
RUNS = 20  # the bar: bit-equal over so many
DRAWS = 4  # seeds whose squared errors are added: the gradient of four slopes is four numbers, of which one draw says little
RULES = (T5Buckets(32, 128, bidirectional=False), T5Buckets(32, 128), T5Buckets(32, 128, edge="transformers"), T5Buckets(64, 256, edge="transformers"))
SANITIZER_SECONDS = 60


@dataclass(frozen=True)
class Row:
    """One line of the table. ``status`` is passed, FAILED, refused or not run; ``ratios`` are by output and gradient."""

    name: str
    status: str
    said: str = ""
    ratios: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name:40} {self.status}{': ' if self.said else ''}{self.said}"


def names() -> list[str]:
    """The name of every row, in the order of the table."""
    return [f"{m} {d} {c}" for m in MECHANISMS for d in DTYPES for c in CALLS] + ["t5 bucket edges", "compute-sanitizer"]


def check(mechanism: Mechanism, dtype: torch.dtype, call: Call, name: str, device: str = "cuda", runs: int = RUNS, draws: int = DRAWS) -> Row:
    """One mechanism in one dtype on one call: forward, backward, and the same bits ``runs`` times."""
    geometry, squares = call.geometry(mechanism.causal, device), []
    for seed in range(draws):
        module, inputs, d_out = draw(mechanism, dtype, call, device, seed)
        if (why_not := refusal(*inputs, module(geometry), geometry)) is not None:
            return Row(name, "refused", why_not.why)
        exact = run(copy.deepcopy(module).double(), [x.double() for x in inputs], d_out.double(), geometry, eager)
        found = [run(module, inputs, d_out, geometry, path) for path in (fused, eager, reference)]
        squares.append({what: [float((side[what].double() - exact[what]).square().sum()) for side in found] for what in exact})
    total = {what: [sum(of_seed[what][side] for of_seed in squares) for side in range(3)] for what in squares[0]}
    ratios = {what: ratio(ours, plain) for what, (ours, plain, _) in total.items()}
    beside = {what: ratio(ours, wide) for what, (ours, _, wide) in total.items() if what in ("out", "d_q", "d_k", "d_v")}
    worst, ours = max(ratios, key=ratios.get), found[0]
    moved = sum(any(not same(again[what], ours[what]) for what in ours) for again in (run(module, inputs, d_out, geometry, fused) for _ in range(runs - 1)))
    said = f"largest ratio {ratios[worst]:.2f} ({worst}), bar {RATIO}; beside the reference {max(beside.values()):.2f}; " + (
        f"{moved} of {runs - 1} repeats differ" if moved else f"{runs} runs bit-equal")
    return Row(name, "passed" if ratios[worst] <= RATIO and not moved else "FAILED", said, ratios)


fused, reference = (partial(attend, backend=backend) for backend in ("triton", "eager"))


def eager(q: Tensor, k: Tensor, v: Tensor, term: Term | None, geometry: AttentionGeometry) -> Tensor:
    """Attention written out, each operation in the dtype of q but for the softmax, which sums in float32 and is rounded."""
    scale = check_call(q, k, v, term, geometry, None)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    if isinstance(term, QKTransform):
        q, k = term.rotate(q, geometry.query_positions), term.rotate(k, geometry.key_positions)
    scores, _, classes = score(q, k, term, (geometry.query_positions, geometry.key_positions), scale)
    visible = geometry.visible
    weights = masked_softmax(scores, visible[:, None] if visible.ndim == 3 else visible)
    out = weights @ v
    if classes is None or term.value_table is None:
        return out
    return out + class_mass(weights, classes, term.rule.num_classes) @ term.value_table.to(q.dtype)


def draw(mechanism: Mechanism, dtype: torch.dtype, call: Call, device: str, seed: int) -> tuple[torch.nn.Module, list[Tensor], Tensor]:
    """(module, [q, k, v], gradient of the output), all of a seed and rounded to ``dtype``; parameters that stay wider keep their width."""
    torch.manual_seed(seed)
    module = mechanism.build(call.heads, call.width, call.keys)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    q, d_out = (torch.randn(call.batch, call.heads, call.queries, call.width) for _ in range(2))
    k, v = (torch.randn(call.batch, call.key_heads, call.keys, call.width) for _ in range(2))
    return module.to(device, dtype), [x.to(device, dtype) for x in (q, k, v)], d_out.to(device, dtype)


def run(module: torch.nn.Module, inputs: list[Tensor], d_out: Tensor, geometry: AttentionGeometry, path: Callable[..., Tensor]) -> dict[str, Tensor]:
    """The output and the gradients of q, k, v and every parameter, by name."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    named = dict(module.named_parameters())
    out = path(*leaves, module(geometry), geometry)
    gradients = torch.autograd.grad(out, [*leaves, *named.values()], d_out)
    return {"out": out.detach(), **{f"d_{name}": g for name, g in zip(("q", "k", "v", *named), gradients)}}


def ratio(ours: float, other: float) -> float:
    """Root of the quotient of two squared errors; infinite for what is not finite, 0 where both are exact."""
    if not math.isfinite(ours):
        return math.inf
    return math.sqrt(ours / other) if other else math.inf if ours else 0.0


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits, those of NaN and of the two zeros among them."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def bucket_edges(device: str = "cuda", rules: tuple[T5Buckets, ...] = RULES) -> Row:
    """Every offset around every edge, and far beyond, reads its own bucket: two keys of score 0, one at the offset and one at the query, share
    the probability as σ(b_offset − b_0), from which the buckets are told apart."""
    wrong = []
    for rule in rules:
        near = torch.arange(-2 * rule.max_distance, 2 * rule.max_distance + 1 if rule.bidirectional else 1)
        offsets = torch.cat((near, torch.tensor([-(2**20), -(2**31) - 5] + ([2**20, 2**31 + 5] if rule.bidirectional else []))))
        module = T5Bias(1, rule.num_buckets, rule.max_distance, bidirectional=rule.bidirectional, edge=rule.edge).requires_grad_(False)
        module.weight.copy_(torch.linspace(-4, 4, rule.num_buckets)[:, None])
        query = torch.full((len(offsets), 1), 2**32)
        geometry = AttentionGeometry(query.to(device), torch.cat((query + offsets[:, None], query), 1).to(device), causal=not rule.bidirectional)
        zeros, values = torch.zeros(len(offsets), 1, 2, 16, device=device), torch.tensor([1.0, 0.0], device=device)
        seen = attend(zeros[:, :, :1], zeros, values[:, None].expand_as(zeros), module.to(device)(geometry), geometry, backend="triton")[:, 0, 0, 0]
        bias = module.weight[:, 0].double().cpu()[rule.classes(torch.cat((offsets, torch.zeros(1, dtype=torch.int64))))]
        apart = torch.sigmoid(bias[:-1] - bias[-1]) - seen.double().cpu()
        wrong += [f"offset {int(o)} of {rule}" for o in offsets[apart.abs() > 1e-5]]
    return Row("t5 bucket edges", "FAILED" if wrong else "passed", "; ".join(wrong[:3]))


def sanitized() -> Row:
    """A small call with gathers, both ways, under compute-sanitizer's memory check, where the machine has it."""
    name, tool = "compute-sanitizer", shutil.which("compute-sanitizer")
    if tool is None:
        return Row(name, "not run", "compute-sanitizer is not installed")
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-m", "positionlib.bench.gpu", "small"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SANITIZER_SECONDS)
    except subprocess.TimeoutExpired:
        return Row(name, "not run", f"no end within {SANITIZER_SECONDS} s")
    if done.returncode not in (0, 9):
        return Row(name, "not run", f"it ended with {done.returncode}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return Row(name, "passed" if done.returncode == 0 else "FAILED", "memcheck" if done.returncode == 0 else done.stdout.strip()[-400:])


def small(device: str = "cuda") -> Row:
    """The call that the sanitizer looks at."""
    return check(MECHANISMS["t5"], torch.float16, Call("small", 37, 70, 64, batch=1, heads=2, key_heads=1, padding=5), "small", device, runs=1)
