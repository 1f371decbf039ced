"""Failures of 0x01: a permutation proof stretched over a fixed mask, and order that was never given or was lost."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from positionlib.attention import attend
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Claim, Failure, register
from positionlib.mechanisms.nope import NoPE
from positionlib.mechanisms.sinusoidal import Sinusoidal
from positionlib.permutation import carry, hand_case

SWAP = torch.tensor([2, 1, 0, 3])  # "dog bites man ." becomes "man bites dog ."
TRIANGLE = torch.ones(4, 4, dtype=torch.bool).tril()


def require_followed(before: Tensor, after: Tensor, order: Tensor) -> None:
    """Refuse a visibility that was not shuffled together with its rows."""
    require(torch.equal(after, carry(before, order)), "visible", after, "P M Pᵀ, the old visibility with both axes shuffled like the rows",
            "Shuffle every tensor that names rows: states, mask, padding flags, segment ids.")


def require_coordinates(embed: Callable[[Tensor], Tensor]) -> None:
    """Refuse an embedding that follows a shuffle of its rows: nothing in it depends on the row's index."""
    x = hand_case()[0]
    require(not torch.allclose(embed(x[SWAP]), embed(x)[SWAP]), "x", x, "rows that change when they stand at another index",
            "Return the sum: x = x + position rows. A shuffle test sees what a shape test cannot.")


def _attend(x: Tensor, visible: Tensor | None = None, causal: bool = False) -> Tensor:
    geometry = (AttentionGeometry.causal_self if causal else AttentionGeometry.encoder)(len(x), allowed=visible)
    q, k, v = (x @ w for w in hand_case()[1:])
    return attend(q[None, None], k[None, None], v[None, None], None, geometry, backend="eager")[0, 0]


def _follows(carried: bool) -> Claim:
    x = hand_case()[0]
    gap = float((_attend(x[SWAP], carry(TRIANGLE, SWAP) if carried else TRIANGLE) - _attend(x, TRIANGLE)[SWAP]).abs().max())
    statement = f"Causal attention follows the shuffle {SWAP.tolist()} when its mask {'moves along' if carried else 'stays fixed'}."
    return Claim(statement, gap < 1e-9, None if gap < 1e-9 else {"order": SWAP.tolist(), "max |Y' - PY|": round(gap, 3)})


def _padding_flags(follow: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(old visibility, new visibility, order) for rows brought into another order, where row 3 is padding."""
    before, order = torch.tensor([True, True, True, False]).expand(4, 4), torch.tensor([3, 0, 1, 2])
    return before, carry(before, order) if follow else before, order


def _padded(flags_follow: bool) -> Tensor:
    """The real rows' outputs, in the old order again."""
    _, readable, order = _padding_flags(flags_follow)
    return _attend(hand_case()[0][order], readable)[order.argsort()][:3]


def _embedding(added: bool) -> Callable[[Tensor], Tensor]:
    """Rows to rows that should know their index; the repository of the report computed the sum and did not assign it."""
    position, geometry = Sinusoidal(4, output_dtype=torch.float64), AttentionGeometry.encoder(4)

    def embed(rows: Tensor) -> Tensor:
        summed = position.add(rows[None], geometry)[0]
        return summed if added else rows

    return embed


def _sentence_vectors(added: bool) -> Tensor:
    """The mean output row of "dog bites man ." and of "man bites dog ."."""
    x, embed = hand_case()[0], _embedding(added)
    return torch.stack([_attend(embed(rows)).mean(0) for rows in (x, x[SWAP])])


def _uniform_stack(causal: bool) -> Tensor:
    """Two layers of uniform attention over the rows 2, 6, 1: the smallest stack whose last row knows an order."""
    state = torch.tensor([2.0, 6.0, 1.0], dtype=torch.float64)[:, None]
    geometry = (AttentionGeometry.causal_self if causal else AttentionGeometry.encoder)(3)
    zero = torch.zeros(1, 1, 3, 1, dtype=torch.float64)
    for _ in range(2):
        state = attend(zero, zero, state[None, None], None, geometry, backend="eager")[0, 0]
    return state[:, 0]


def _two_layers_last_row(causal: bool) -> Claim:
    x = hand_case()[0]
    first, second = (_attend(_attend(rows, causal=causal), causal=causal)[-1] for rows in (x, x[SWAP]))
    differs = bool((first - second).abs().max() > 1e-9)
    statement = "Two layers without positions give the last row an output that depends on the order of the rows before it"
    return Claim(f"{statement}, {'under a causal mask' if causal else 'with any mask or none'}.", differs,
                 None if differs else {"orders": ["dog bites man .", "man bites dog ."], "difference": 0.0})


register(Failure(
    id="0x01.proof-over-a-fixed-mask", section="0x01", kind="false_claim",
    title="The permutation proof is claimed for a fixed causal mask",
    broken=lambda: _follows(carried=False), right=lambda: _follows(carried=True),
    guard=lambda after: require_followed(TRIANGLE, after, SWAP), guard_name="visibility follows the rows",
    source="article 0x0C, missing or wrong position addition", broken_subject=lambda: TRIANGLE, right_subject=lambda: carry(TRIANGLE, SWAP),
))

register(Failure(
    id="0x01.rows-without-their-flags", section="0x01", kind="wrong_answer",
    title="The rows are sorted, their padding flags are not",
    broken=lambda: _padded(flags_follow=False), right=lambda: _padded(flags_follow=True),
    guard=lambda subject: require_followed(*subject), guard_name="visibility follows the rows",
    source="article 0x09F (a row permutation transports every owned object)",
    broken_subject=lambda: _padding_flags(False), right_subject=lambda: _padding_flags(True),
))

register(Failure(
    id="0x01.position-not-assigned", section="0x01", kind="wrong_answer",
    title="The sum with the position rows is computed and dropped",
    broken=lambda: _sentence_vectors(added=False), right=lambda: _sentence_vectors(added=True),
    guard=require_coordinates, guard_name="shuffle test of the embedding",
    source="Lightning-AI/pytorch-lightning#19138, repaired in #20099; article 0x0C (forgetting to add position information)",
    broken_subject=lambda: _embedding(False), right_subject=lambda: _embedding(True),
))

register(Failure(
    id="0x01.causal-mask-dropped", section="0x01", kind="wrong_answer",
    title="A fast path drops the causal mask, and a model without positions loses its only order",
    broken=lambda: _uniform_stack(causal=False), right=lambda: _uniform_stack(causal=True),
    guard=NoPE(), guard_name="NoPE demands a causal mask",
    source="keras-team/keras#23038",
    broken_subject=lambda: AttentionGeometry.encoder(3), right_subject=lambda: AttentionGeometry.causal_self(3),
))

register(Failure(
    id="0x01.nope-without-geometry", section="0x01", kind="false_claim",
    title="NoPE is treated as an architecture that needs no geometry at all",
    broken=lambda: _two_layers_last_row(causal=False), right=lambda: _two_layers_last_row(causal=True),
    guard=NoPE(), guard_name="NoPE demands a causal mask",
    source="article 0x0C (treating NoPE as an architecture with no geometry)",
    broken_subject=lambda: AttentionGeometry.encoder(4), right_subject=lambda: AttentionGeometry.causal_self(4),
))
