"""The algebra of sinusoidal coordinates: shifts as a group, and which bilinear forms see only the offset.

Column convention, one pair a frequency, interleaved layout, everything float64:

    r(t) = [sin tω, cos tω]ᵀ        A(k) = [[cos kω, sin kω], [−sin kω, cos kω]]        r(t + k) = A(k) r(t)

A(0) = I, A(a)A(b) = A(a+b), A(k)⁻¹ = A(k)ᵀ = A(−k). A block with its sine transposed obeys every one of these laws too: only a
comparison with rows built directly at t + k tells the two apart.

Source: Vaswani et al. 2017, section 3.5 (the claim that PE(t+k) is linear in PE(t)); the rest is elementary trigonometry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import require
from positionlib.mechanisms.sinusoidal import inverse_frequencies, sinusoidal_rows
from positionlib.rules import require_phase


@checked
def wavelengths(d_model: int, *, base: float = 10_000.0) -> Float[Tensor, "P"]:
    """λ_i = 2π/ω_i, in positions."""
    return 2 * math.pi / inverse_frequencies(d_model, base=base)


@checked
def shift_matrix(k: int, d_model: int, *, base: float = 10_000.0) -> Float[Tensor, "D D"]:
    """A(k), block diagonal and orthogonal, with A(k) · row(t) = row(t + k) for every t. k may be negative."""
    require(abs(k) <= 2**53, "k", k, "a shift of at most 2^53", "A float64 phase tells no larger ones apart.")
    phase = k * inverse_frequencies(d_model, base=base)
    return commuting_matrix(phase.cos(), phase.sin())


@checked
def commuting_matrix(a: Float[Tensor, "P"], b: Float[Tensor, "P"]) -> Float[Tensor, "D D"]:
    """Blocks a_i I + b_i J with J = [[0, 1], [−1, 0]]: the matrices that commute with every shift when the frequencies differ."""
    require(a.shape == b.shape and a.ndim == 1, "b", b, f"shape {tuple(a.shape)}, as a", "Give one a and one b a pair.")
    blocks = torch.stack((torch.stack((a, b), -1), torch.stack((-b, a), -1)), -2)  # [P, 2, 2]
    return torch.block_diag(*blocks.double())


@checked
def similarity(offset: Int[Tensor, "*shape"], d_model: int, *, base: float = 10_000.0) -> Float[Tensor, "*shape"]:
    """row(m) · row(n) = Σ_i cos((m − n) ω_i) as a function of the offset alone."""
    require_phase("offset", offset)
    frequencies = inverse_frequencies(d_model, base=base)
    return (offset[..., None].double() * frequencies.to(offset.device)).cos().sum(-1)


@checked
def joint_shift_scores(form: Float[Tensor, "D D"], m: int, n: int, shifts: Sequence[int], *, base: float = 10_000.0) -> Float[Tensor, "S"]:
    """row(m+c)ᵀ · form · row(n+c) for each shift c: constant exactly when the form sees only the offset on these rows."""
    c = torch.as_tensor(list(shifts))
    rows = [sinusoidal_rows(t + c, form.shape[0], base=base, output_dtype=torch.float64) for t in (m, n)]
    return torch.einsum("sd,de,se->s", rows[0], form.double(), rows[1])


@checked
def four_terms(x_i: Float[Tensor, "D"], p_i: Float[Tensor, "D"], x_j: Float[Tensor, "D"], p_j: Float[Tensor, "D"],
               W_q: Float[Tensor, "D E"], W_k: Float[Tensor, "D E"]) -> dict[str, Float[Tensor, ""]]:
    """The four parts of (x_i + p_i) W_q · (x_j + p_j) W_k, by name: content or position of the query, then of the key."""
    parts = {"content": (x_i, x_j), "position": (p_i, p_j)}
    return {f"{a}-{b}": (parts[a][0] @ W_q) @ (parts[b][1] @ W_k) for a in parts for b in parts}
