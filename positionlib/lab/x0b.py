"""Failures of 0x0B: every shape survives. An axis is read for another one, a memory is stored the other way, one bias is held for each sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from positionlib.attention import masked_softmax
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Claim, Cost, Failure, register
from positionlib.mechanisms.t5 import T5Bias
from positionlib.mechanisms.transformer_xl import SegmentMemory
from positionlib.shapes import Lengths, ledger

SIDE, WIDTH = 3, 4
HAND = Lengths(B=2, n=4, d=4, h=2, Q=2, K=4)


def questions() -> Float[Tensor, "B N D"]:
    """Three sequences of three rows, the same at each call."""
    return torch.randn(SIDE, SIDE, WIDTH, generator=torch.Generator().manual_seed(7))


def layer(*, batch_first: bool) -> Callable[[Tensor], Tensor]:
    """PyTorch's attention with fixed weights. Its default, batch_first=False, takes the first axis for time."""
    attention = nn.MultiheadAttention(WIDTH, 1, bias=False, batch_first=batch_first)
    maker = torch.Generator().manual_seed(3)
    for parameter in attention.parameters():
        parameter.data.normal_(generator=maker)
    return lambda x: attention(x, x, x, need_weights=False)[0].detach()


def influence(function: Callable[[Tensor], Tensor], x: Float[Tensor, "B N D"]) -> Float[Tensor, "B B"]:
    """Entry [a, b]: how far the output of sequence a moves when only sequence b's rows change."""
    before = function(x)
    moved = []
    for b in range(len(x)):
        changed = x.clone()
        changed[b] += 1.0
        moved.append((function(changed) - before).flatten(1).abs().amax(1))
    return torch.stack(moved, 1)


def require_apart(function: Callable[[Tensor], Tensor], x: Tensor | None = None) -> None:
    """Refuse a layer in which one sequence's output depends on another sequence's rows."""
    moved = influence(function, questions() if x is None else x)
    others = moved.fill_diagonal_(0.0)
    a, b = divmod(int(others.argmax()), len(others))
    require(float(others.max()) < 1e-6, f"sequence {a}", f"moved by {others.max():.2f}", f"the same output when only sequence {b} changes",
            "Two sequences of a batch never meet: say which axis is time (batch_first), or exchange the axes before and after.")


register(Failure(
    id="0x0B.attends-over-the-batch", section="0x0B", kind="wrong_answer", title="Attention takes the batch for time, and sequences read each other",
    broken=lambda: layer(batch_first=False)(questions()), right=lambda: layer(batch_first=True)(questions()), guard=require_apart,
    guard_name="sequences apart", broken_subject=lambda: layer(batch_first=False), right_subject=lambda: layer(batch_first=True),
    source="dhimasryan/MOSA-Net-Cross-Domain#10; aipixel/AEMatter#3; article 0x0B and 0x0C, mixing [seq,batch,d] and [batch,seq,d]"))


def past(*, time_first: bool) -> Float[Tensor, "X Y D"]:
    """Two memory rows of two sequences; each number is 10 · sequence + row, so that a row says whose it is."""
    numbers = 10.0 * torch.arange(2)[None, :] + torch.arange(2)[:, None]
    return (numbers if time_first else numbers.T)[..., None].repeat(1, 1, WIDTH)


def keys_of(memory: Float[Tensor, "M B D"]) -> Float[Tensor, "K B D"]:
    """Memory and one new row a sequence, as a time-first model puts them together."""
    now = (10.0 * torch.arange(2) + 2)[None, :, None].repeat(1, 1, WIDTH)
    return SegmentMemory(1, 2, "time_first", states=(memory,)).extend(0, now)


def require_own_past(memory: Float[Tensor, "M B D"]) -> None:
    """Refuse a tagged memory in which a sequence would read another one's rows. The tag of a row is 10 · sequence + row."""
    owner = keys_of(memory)[..., 0].div(10, rounding_mode="floor")
    for b in range(owner.shape[1]):
        found = sorted(set(owner[:, b].tolist()))
        require(found == [b], f"keys of sequence {b}", [int(f) for f in found], f"rows of sequence {b} alone",
                "The released memory is time first, [M, B, D]: transpose it, or build SegmentMemory with layout='batch_first'.")


register(Failure(
    id="0x0B.memory-stored-batch-first", section="0x0B", kind="wrong_answer", title="A memory [B, M, D] is handed to a model that reads [M, B, D]",
    broken=lambda: keys_of(past(time_first=False)), right=lambda: keys_of(past(time_first=True)), guard=require_own_past, guard_name="own past",
    broken_subject=lambda: past(time_first=False), right_subject=lambda: past(time_first=True),
    source="article 0x0B (memory as [B,M,d_model]); kimiyoung/transformer-xl at 44781ed (time first); huggingface/transformers#3120"))


def twins_that_fit(sizes: Lengths = HAND) -> list[str]:
    """Objects of the ledger that may be exchanged for something else without any line's annotation, shape or dtype noticing."""
    return [line.name for line in ledger(sizes) if line.accepts(line.twin()) and not torch.equal(line.twin(), line.tensor)]


def _fits(meant: bool) -> Claim:
    lines = ledger(HAND)
    if not meant:
        return Claim("Each line of the ledger has the shape and the annotation of its maker.", all(line.accepts(line.tensor) for line in lines))
    found = twins_that_fit()
    return Claim("A call whose lines all fit the ledger is the call that was meant.", not found, {"twins that fit": len(found), "lines": len(lines)})


def _check_fits(claim: Claim) -> None:
    require(claim.holds, "claim", claim.statement, "a statement about lengths",
            f"{claim.counterexample}. A shape says how many; sign, origin, polarity, unit and axis need a declaration and a test of values.")


register(Failure(
    id="0x0B.fits-so-right", section="0x0B", kind="false_claim", title="All shapes fit, so the call is right",
    broken=lambda: _fits(True), right=lambda: _fits(False), guard=_check_fits, guard_name="twins of the ledger",
    source="article 0x0B, 'shape survives, coordinate contract breaks'"))


def _bias(batch: int, *, shared: bool) -> Float[Tensor, "B H Q K"]:
    t5 = T5Bias(2, bidirectional=False)
    t5.weight.data.copy_(torch.arange(64.0).reshape(32, 2) / 64)
    geometry = AttentionGeometry.decode(3, 2)
    bias = t5(geometry).materialize(geometry.query_positions, geometry.key_positions).detach()
    return bias if shared else bias.repeat(batch, 1, 1, 1)


def _weighed(shared: bool) -> Cost:
    geometry, bias = AttentionGeometry.decode(3, 2), _bias(6, shared=shared)
    return Cost(masked_softmax(torch.zeros(6, 2, 2, 5) + bias, geometry.visible), bias.nbytes)


def require_shared(bias: Float[Tensor, "B H Q K"]) -> None:
    """Refuse a bias that holds the same numbers for every sequence."""
    same = len(bias) > 1 and bool((bias == bias[:1]).all())
    require(not same, "bias", bias, f"[1, {', '.join(map(str, bias.shape[1:]))}]", "Positions are shared by the batch: keep one, and let the sum broadcast it.")


register(Failure(
    id="0x0B.bias-for-each-sequence", section="0x0B", kind="excess_cost", title="One bias is stored once for each sequence",
    broken=lambda: _weighed(False), right=lambda: _weighed(True), guard=require_shared, guard_name="one bias a batch",
    broken_subject=lambda: _bias(6, shared=False), right_subject=lambda: _bias(6, shared=True),
    source="article 0x0B, scalar position bias [1,h,Q,K] or broadcast equivalent"))
