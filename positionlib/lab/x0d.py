"""Failures of 0x0D: rotations of other pairs, at other positions, of one side only, or twice.

Convention of the section: R_t turns a pair counterclockwise, (a, b) → (a cos − b sin, a sin + b cos); the offset is key minus query.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.errors import require
from positionlib.lab.registry import Claim, Failure, register
from positionlib.mechanisms.rotary import convert_pairing, convert_pairing_weight
from positionlib.rotation import QKTransform, hand_case

Rotate = Callable[[Float[Tensor, "D"], int], Float[Tensor, "D"]]
HAND_Q, HAND_K, _TERM = hand_case()
HAND_SPEEDS = _TERM.inverse_frequency


def hand_term(pairing: str = "interleaved") -> QKTransform:
    """The rotation of the hand case: width 4, whole numbers stay whole."""
    return hand_case(pairing)[2]


def rotate_row(term: QKTransform, row: Float[Tensor, "D"], position: int) -> Float[Tensor, "D"]:
    """One row, turned by the term at one position."""
    return term.rotate(row[None, None, None], torch.tensor([position]))[0, 0, 0]


def score_table(rotate_q: Rotate, rotate_k: Rotate, q: Float[Tensor, "D"] = HAND_Q, k: Float[Tensor, "D"] = HAND_K,
                n: int = 4) -> Float[Tensor, "n n"]:
    """Scores of one query row and one key row put at every pair of positions: entry (i, j) is rotate_q(q, i) · rotate_k(k, j)."""
    return torch.stack([rotate_q(q, i) for i in range(n)]) @ torch.stack([rotate_k(k, j) for j in range(n)]).T


def turn(term: QKTransform) -> Rotate:
    return lambda row, position: rotate_row(term, row, position)


def still(row: Tensor, position: int) -> Tensor:
    return row


# --- guards ----------------------------------------------------------------------------------------------------------

def check_pairing(term: QKTransform, *, pairing: str) -> None:
    """Turn a unit vector and see which channel its sine enters: channel 1 means interleaved, channel P means half_split."""
    pairs = len(term.inverse_frequency)
    probe = torch.zeros(term.d_head, dtype=torch.float64)
    probe[0] = 1.0
    sine = rotate_row(term, probe, 1)
    sine[0] = 0.0
    partner, expected = int(sine.abs().argmax()), 1 if pairing == "interleaved" else pairs
    require(partner == expected, "partner of channel 0", partner, f"{expected} ({pairing})",
            "Take the pairing that the projections were trained with, or convert them.")


def check_offset_only(sides: tuple[Rotate, Rotate]) -> None:
    """Refuse rotations under which the score changes when query and key move together."""
    table = score_table(*sides, n=8)
    gaps = (table[:-1, :-1] - table[1:, 1:]).abs()
    worst = float(gaps.max())
    require(worst < 1e-9, "change of a score when both positions grow by 1", round(worst, 3), "0",
            "Turn query and key by one rule, each at its own position.")


def check_relative(rows: tuple[Float[Tensor, "Q K"], list[int], list[int]]) -> None:
    """Refuse scores that are not q · R_(j−i) k of the hand case at the declared positions of queries and keys."""
    scores, queries, keys = rows
    right = torch.stack([torch.stack([HAND_Q @ rotate_row(hand_term(), HAND_K, j - i) for j in keys]) for i in queries])
    wrong = ((scores - right).abs() > 1e-9).nonzero().tolist()
    if wrong:
        a, b = wrong[0]
        require(False, f"score of query {queries[a]} and key {keys[b]}", round(float(scores[a, b]), 3), f"{round(float(right[a, b]), 3) + 0.0:g}, as in one pass",
                "Rotate every row once, at its own position in the sequence.")


def check_rotation(rotate: Rotate) -> None:
    """Refuse a map that does not keep the length of a row at every position."""
    row = torch.arange(1.0, 5.0, dtype=torch.float64)
    worst = max(abs(float(rotate(row, t).norm() - row.norm())) for t in range(8))
    require(worst < 1e-9, "change of a row's length", round(worst, 3), "0", "Give both channels of a pair one angle.")


def check_projection(pair: tuple[Float[Tensor, "O M"], Float[Tensor, "O M"]], *, d_head: int) -> None:
    """Refuse a converted projection whose rows are not the old ones reordered within each head."""
    old, new = pair
    rows = torch.eye(old.shape[1], dtype=old.dtype)
    right = convert_pairing((rows @ old.T).unflatten(-1, (-1, d_head)), source="interleaved", target="half_split").flatten(-2)
    require(torch.allclose(rows @ new.T, right), "projection", "rows reordered across the heads' borders",
            f"channels reordered within each head of width {d_head}", "Convert with the width of one head; q and k may differ in their number.")


def check_heads(rotated: Float[Tensor, "H n D"]) -> None:
    """Refuse heads that were turned unlike, although their content is one and the same."""
    worst = float((rotated - rotated[:1]).abs().max())
    require(worst < 1e-9, "difference between heads of equal content", round(worst, 3), "0", "Give rotate() [B, H, N, D]: positions belong to axis N.")


# --- cases -----------------------------------------------------------------------------------------------------------

def _both(term: QKTransform) -> Tensor:
    return score_table(turn(term), turn(term))


register(Failure(
    id="0x0D.mixed-pairing", section="0x0D", kind="wrong_answer", title="Projections of one pairing are rotated in the other",
    broken=lambda: _both(hand_term("half_split")), right=lambda: _both(hand_term()), guard=lambda term: check_pairing(term, pairing="interleaved"),
    guard_name="pairing-probe", source="NeuraLegion/shainet#111",
    broken_subject=lambda: hand_term("half_split"), right_subject=hand_term))

register(Failure(
    id="0x0D.one-side", section="0x0D", kind="wrong_answer", title="The query is rotated and the key is not",
    broken=lambda: score_table(turn(hand_term()), still), right=lambda: _both(hand_term()), guard=check_offset_only, guard_name="offset-only",
    source="kvcache-ai/sglang#66 (the current key stayed unrotated)",
    broken_subject=lambda: (turn(hand_term()), still), right_subject=lambda: (turn(hand_term()),) * 2))


def mixed_angles(row: Tensor, position: int) -> Tensor:
    """Angles in the interleaved order over halves that are swapped as in half_split; no pair has one angle."""
    angle = (position * HAND_SPEEDS / 2).repeat_interleave(2)
    first, second = row.chunk(2)
    return row * angle.cos() + torch.cat((-second, first)) * angle.sin()


_EIGHTH = QKTransform(inverse_frequency=HAND_SPEEDS / 2, pairing="half_split", d_head=4)
register(Failure(
    id="0x0D.mixed-angles", section="0x0D", kind="wrong_answer", title="Angles stand in one order and the swapped halves in the other",
    broken=lambda: score_table(mixed_angles, mixed_angles), right=lambda: _both(_EIGHTH), guard=check_rotation, guard_name="length-kept",
    source="raiyanyahya/how-to-train-your-gpt#6", broken_subject=lambda: mixed_angles, right_subject=lambda: turn(_EIGHTH)))


def decode_scores(query: int, cached: int = 3) -> Tensor:
    """Scores [1, cached + 1] of a new query against cached rotated keys and its own, when it is turned by ``query``."""
    return score_table(turn(hand_term()), turn(hand_term()), n=cached + 1)[query : query + 1]


register(Failure(
    id="0x0D.decode-at-zero", section="0x0D", kind="wrong_answer", title="Each decoded token is rotated as if it stood at position 0",
    broken=lambda: decode_scores(0), right=lambda: decode_scores(3), guard=lambda scores: check_relative((scores, [3], [0, 1, 2, 3])),
    guard_name="prefill-decode", source="Blaizzy/mlx-vlm#1983; article 0x0C"))


def _cached(positions: list[int], moved_by: list[int]) -> Tensor:
    """Scores [1, K] of a query at 3: keys were rotated at ``positions`` when they were cached, then by ``moved_by`` once more."""
    term = hand_term()
    keys = torch.stack([rotate_row(term, rotate_row(term, HAND_K, p), m) for p, m in zip(positions, moved_by)])
    return rotate_row(term, HAND_Q, 3)[None] @ keys.T


for _name, _title, _source, _at, _moved, _right in (
        ("merged-fragments", "Two cached fragments are joined, and the second keeps its own numbering", "MemTensor/MemOS#2315",
         [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 2, 2]),
        ("rotated-twice", "Cached keys were rotated when stored, and are rotated again when read", "EleutherAI/gpt-neox#363 (by its title)",
         [0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 0, 0])):
    register(Failure(
        id=f"0x0D.{_name}", section="0x0D", kind="wrong_answer", title=_title, source=_source, guard_name="prefill-decode",
        broken=lambda a=_at, m=_moved: _cached(a, m), right=lambda a=_at, m=_right: _cached(a, m),
        guard=lambda scores: check_relative((scores, [3], [0, 1, 2, 3]))))

_K_WEIGHT = torch.arange(16.0, dtype=torch.float64)[:, None] * torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64) + torch.eye(16, 3, dtype=torch.float64)


def _converted(d_head: int) -> Tensor:
    """A key projection of 2 heads of width 8; d_head 4 is what 8 query heads // 2 key heads = 4 heads would mean."""
    return convert_pairing_weight(_K_WEIGHT, d_head, source="interleaved", target="half_split")


register(Failure(
    id="0x0D.grouped-heads", section="0x0D", kind="wrong_answer", title="A key projection is converted with a wrong number of heads",
    broken=lambda: _converted(4), right=lambda: _converted(8), guard=lambda new: check_projection((_K_WEIGHT, new), d_head=8),
    guard_name="projection-per-head", source="ggml-org/llama.cpp#3364"))


def _heads_turned(transposed: bool) -> Tensor:
    """Four heads of equal content, four positions: [H, n, D]."""
    x = HAND_K.expand(1, 4, 4, 4)  # [B, n, H, D] and [B, H, n, D] look alike here
    out = hand_term().rotate(x, torch.arange(4))
    return (out.transpose(1, 2) if transposed else out)[0]


register(Failure(
    id="0x0D.head-axis", section="0x0D", kind="wrong_answer", title="The rotation runs along the heads and not along the sequence",
    broken=lambda: _heads_turned(True), right=lambda: _heads_turned(False), guard=check_heads, guard_name="equal-heads", source="mlfoundations/open_lm#4"))


def _decay(steps: int) -> Claim:
    term = QKTransform(inverse_frequency=torch.tensor([1.0, 0.01], dtype=torch.float64), pairing="interleaved", d_head=4)
    row = torch.ones(4, dtype=torch.float64)
    scores = [float(row @ rotate_row(term, row, t)) for t in range(steps + 1)]
    rises = [t for t in range(steps) if scores[t + 1] > scores[t]]
    return Claim(f"The score of a row with itself falls at each of the first {steps} steps of distance.", not rises,
                 {"rises from distance": rises[:1], "to": round(scores[rises[0] + 1], 2)} if rises else None)


def _check_decay(claim: Claim) -> None:
    require(claim.holds, "claim", claim.statement, "a statement that holds for the speeds 1 and 0.01", f"Counterexample: {claim.counterexample}.")


register(Failure(
    id="0x0D.always-decays", section="0x0D", kind="false_claim", title="A rotation is said to make every nearer key score higher",
    broken=lambda: _decay(6), right=lambda: _decay(3), guard=_check_decay, guard_name="decay-counterexample",
    source="article 0x06 on the dot product, carried to rotations: dependence on the offset is not decay"))
