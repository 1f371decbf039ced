"""Failures of 0x03: rows added twice, on the wrong side of a projector, along the wrong axis, or not at all. Every shape survives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Claim, Cost, Failure, register
from positionlib.mechanisms.sinusoidal import Sinusoidal, sinusoidal_table
from positionlib.terms import StateRows

CONTENT = torch.tensor([[[2, 7, 1, 8], [5, 7, 7, 2], [3, 1, 4, 1]], [[3, 1, 4, 1], [5, 7, 7, 2], [2, 7, 1, 8]]], dtype=torch.float64)
TABLE = torch.arange(10, 170, 10, dtype=torch.float64).reshape(4, 4)  # row t is 10 · (4t + 1 .. 4t + 4): tens tell the row and the channel
W = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], dtype=torch.float64)  # a projector that swaps neighbours


def require_addition(content: Tensor, state: Tensor, rows: Tensor, *, atol: float = 1e-9) -> None:
    """Subtract the content: what is left must be row i for token i of every sequence, once.

    ``content`` and ``state`` are [B, n, d], ``rows`` is [n, d]. The message says which other thing was added, where it is a usual one.

    Raises
    ------
    PositionContractError
        a state that is not content + rows.
    """
    added, target = state - content, rows.expand_as(content)
    near = lambda a, b: a.shape == b.shape and bool(torch.allclose(a, b, rtol=0, atol=atol))
    if near(added, target):
        return
    usual = [(lambda: near(added, 0 * target), "nothing", "Assign the sum, or call the module that adds."),
             (lambda: near(added, 2 * target), "the rows twice", "Two modules add positions: keep one."),
             (lambda: near(added, content + target), "the rows and the content again", "The module returns the sum: assign it, do not add it."),
             (lambda: near(added, added[:, :1].expand_as(added)) and near(added, added[:1].expand_as(added)), "one row for every token",
              "Slice the table, rows[:n]; rows[n] is a single row."),
             (lambda: near(added, added[:, :1].expand_as(added)), "one row for each sequence", "Put the rows on the token axis: [1, n, d]."),
             (lambda: near(added, added[..., :1].expand_as(added)), "one number on every channel", "Give each token a whole row of width d.")]
    found, remedy = next(((name, todo) for is_it, name, todo in usual if is_it()), ("something else", "Add the rows once, after the projector."))
    require(False, "state - content", found, "row i for token i, once", remedy)


def _guard(state: Tensor) -> None:
    require_addition(CONTENT, state, TABLE[:3])


def _module(x: Tensor) -> Tensor:
    """The released form of the operation: it returns the sum."""
    return x + TABLE[: x.shape[1]]


def _case(slug: str, title: str, broken: Callable[[], Tensor], source: str) -> None:
    register(Failure(id=f"0x03.{slug}", section="0x03", kind="wrong_answer", title=title, broken=broken, right=lambda: _module(CONTENT), guard=_guard,
                     guard_name="subtract the content", source=source))


_case("added-twice", "Rows are added by the embedding and added again by the caller", lambda: _module(_module(CONTENT)),
      "huggingface/transformers#4258; article 0x0C (double-applying positional encoding)")
_case("content-twice", "A module that returns the sum is added to its own input", lambda: CONTENT + _module(CONTENT),
      "ZhongYang2026/Attention-Is-All-You-Need-In-Speech-Separation#5")
_case("one-row-for-all", "A missing colon adds row n to every token", lambda: CONTENT + TABLE[CONTENT.shape[1]],
      "DiffPoseTalk/DiffPoseTalk#20")
_case("numbers-the-sequences", "A table [B, 1, d] gives every token of a sequence one row", lambda: CONTENT + TABLE[:2, None],
      "pytorch/examples#1178 (vision_transformer/main.py at 14fb9c4); article 0x0C (broadcasting over the wrong axis)")
_case("one-channel", "A coordinate of width 1 spreads over all channels", lambda: CONTENT + TABLE[:3, :1],
      "article 0x03 (the position vector must have the same width)")
_case("embeddings-only", "The path for ready-made embeddings skips the rows", lambda: CONTENT.clone(),
      "huggingface/transformers#11402, repaired in #21752; article 0x0C (calling only Embeddings)")

register(Failure(
    id="0x03.before-the-projector", section="0x03", kind="wrong_answer", title="The rows are added before the projector, which is of the same width",
    broken=lambda: _module(CONTENT) @ W, right=lambda: _module(CONTENT @ W),
    guard=lambda state: require_addition(CONTENT @ W, state, TABLE[:3]), guard_name="subtract the content",
    source="article 0x0C (applying PE before the projector)"))

register(Failure(
    id="0x03.wrong-width-before-the-projector", section="0x03", kind="late_error", title="Media rows of another width meet the model's table",
    broken=lambda: torch.zeros(2, 3, 6) + TABLE[:3], right=lambda: torch.zeros(2, 3, 4) + TABLE[:3],
    guard=lambda state: StateRows(rows=TABLE[:3], mark="hand").add_to(state), guard_name="width of the state",
    source="article 0x0C (applying PE before the projector)",
    broken_subject=lambda: torch.zeros(2, 3, 6), right_subject=lambda: torch.zeros(2, 3, 4)))


def _copies(expanded: bool) -> Cost:
    """The sum, and the bytes of the rows that stay alive for it: B copies, or one."""
    rows = TABLE[:3].repeat(2, 1, 1) if expanded else TABLE[:3]
    return Cost(CONTENT + rows, rows.numel() * rows.element_size())


def _one_set(cost: Cost) -> None:
    wanted = TABLE[:3].numel() * TABLE.element_size()
    require(cost.amount <= wanted, "rows", f"{cost.amount} bytes", f"{wanted} bytes, one set for the batch",
            "Leave the batch axis to broadcasting: [n, d] or [1, n, d], unless each sequence has its own positions.")


register(Failure(
    id="0x03.copied-for-the-batch", section="0x03", kind="excess_cost", title="Shared rows are copied for every sequence of the batch",
    broken=lambda: _copies(True), right=lambda: _copies(False), guard=_one_set, guard_name="one set of rows",
    source="article 0x03 (P[:n] is [1, n, d_model])"))


def _layers(each: bool) -> Claim:
    """Two residual layers of zero weights: whatever is in the stream comes out of it unchanged."""
    geometry, rows = AttentionGeometry.encoder(3), sinusoidal_table(3, 4, output_dtype=torch.float64)
    x = Sinusoidal(4, output_dtype=torch.float64).add(torch.zeros(1, 3, 4, dtype=torch.float64), geometry)
    for _ in range(2):
        x = x + rows if each else x + 0.0
    times = float((x[0, 1, 0] / rows[1, 0]).round(decimals=6))
    return Claim(f"Adding the rows {'again in each of two layers' if each else 'once, below both layers'} leaves one copy in the residual stream.",
                 times == 1.0, None if times == 1.0 else {"copies after two layers": times})


def _once(claim: Claim) -> None:
    require(claim.holds, "claim", claim.statement, "one copy of the rows in the stream",
            f"Counterexample: {claim.counterexample}. The residual stream already carries them: add below the first layer only.")


register(Failure(
    id="0x03.once-a-layer", section="0x03", kind="false_claim", title="Adding again in every layer is taken for the same architecture",
    broken=lambda: _layers(True), right=lambda: _layers(False), guard=_once, guard_name="once a stack",
    source="article 0x0A (normally applied once when state rows enter the stack)"))
