"""Which calls the fused kernel admits, and whether it can run here at all. Triton is imported on the first question, not before."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.capabilities import FREE, KEY_BIAS, Refusal
from positionlib.errors import require

KINDS = ("content", "alibi_relative", "alibi_symmetric", "t5")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def interpreted() -> bool:
    """Whether Triton was loaded under TRITON_INTERPRET=1 and so runs kernels on the CPU, slowly and for proof only."""
    from triton.runtime import JITFunction

    from positionlib.kernels import tile

    return not isinstance(tile.forward_tile, JITFunction)


def available() -> bool:
    """Whether a fused kernel can run here at all: Triton is installed, and there is a GPU or the interpreter."""
    return find_spec("triton") is not None and (torch.cuda.is_available() or interpreted())


def transformed() -> str | None:
    """The function transform around this call that the operators cannot follow: they have a backward pass, and ``torch.func.vmap`` calls them row by row.

    Forward-mode differentiation would get a tangent of zeros from them, and ``torch.func.grad`` no gradient.
    """
    levels: set = set()
    if not torch.compiler.is_compiling():  # a graph with torch.func.grad in it is refused by its tracer
        functorch = torch._C._functorch
        levels = {level.key() for level in functorch.get_interpreter_stack() or ()} - {functorch.TransformType.Vmap}
    if levels or torch.autograd.forward_ad._current_level >= 0:
        return "a function transform or forward-mode differentiation: the kernel has a backward pass for autograd, and vmap"
    return None


def refusal(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K D"], *, kind: str = "content",
            allowed: Tensor | None = None) -> Refusal | None:
    """None when the kernel admits the call, else the reason, naming what is missing.

    ``kind`` is the score function wanted (one of ``KINDS`` when there is one), ``allowed`` the geometry's free visibility matrix.
    Shapes that do not fit together are the caller's to refuse.
    """
    width = q.shape[-1]
    if find_spec("triton") is None:
        return Refusal("Triton is not installed", ("Triton",))
    if why_not := transformed():
        return Refusal(why_not, ("function transforms",))
    require(isinstance(kind, str), "kind", kind, "the name of a score function", f"There is {', '.join(KINDS)}.")
    if kind not in KINDS:
        return Refusal(f"no score function for {kind}: there is {', '.join(KINDS)}", (KEY_BIAS if kind.startswith("alibi_key") else kind,))
    if allowed is not None:
        return Refusal("an arbitrary visibility matrix: the kernel knows causal order, key_active and segments", (FREE,))
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        return Refusal(f"dtype {q.dtype}, {k.dtype}, {v.dtype}: the kernel takes one of float16, bfloat16 or float32 for all three", _dtypes(q, k, v))
    if width % 16 or not 16 <= width <= 256 or v.shape[-1] != width:
        lacking = (f"head width {width}",) if width % 16 or not 16 <= width <= 256 else (f"value width {v.shape[-1]}",)
        return Refusal(f"head width {width} (values {v.shape[-1]}): the kernel takes one width, 16 to 256 in multiples of 16", lacking)
    if interpreted():
        return None if q.device.type == "cpu" else Refusal(f"device {q.device}: the interpreter takes CPU tensors", (f"device {q.device.type}",))
    if q.device.type != "cuda":
        return Refusal(f"device {q.device}: the kernel runs on CUDA, or on the CPU under TRITON_INTERPRET=1", (f"device {q.device.type}",))
    if q.dtype == torch.float64:
        return Refusal("dtype torch.float64: on a GPU the kernel takes float16, bfloat16 or float32", _dtypes(q))
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        return Refusal("compute capability below 8.0: Triton has no tensor-core path there", ("compute capability 8.0",))
    return None


def _dtypes(*tensors: Tensor) -> tuple[str, ...]:
    return tuple(f"dtype {str(t.dtype).removeprefix('torch.')}" for t in tensors)
