"""Failures of 0x09A: a score tensor of the right shape with another origin, sign, order of steps, or stand-in for the mask.

Convention of the section: offsets are key minus query, a mask is True where a key may be read, positions count from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from positionlib.attention import attend, masked_softmax
from positionlib.call import PositionCall
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.mechanisms.alibi import ALiBi
from positionlib.rules import Clip
from positionlib.terms import ClassBias, ScoreBias

SECTION = "0x09A"
LN2 = math.log(2)
SHIFTS = (0.0, -100.0, -30_000.0, 30_000.0)  # constants that softmax must not see


def nearness() -> ClassBias:
    """The chapter's term by hand: +2, +1 or 0 units of ln 2 for keys at distance 0, 1, and 2 or more."""
    table = LN2 * torch.tensor([0.0, 1.0, 2.0, 1.0, 0.0], dtype=torch.float64)[:, None]
    return ClassBias(table=table, rule=Clip(2), sign="key_minus_query")


def hand_weights(query: int, keys: int = 4) -> Float[Tensor, "K"]:
    """Weights of one query at position ``query`` over the keys 0..K−1, when every content score is equal."""
    return torch.softmax(nearness().materialize(torch.tensor([query]), torch.arange(keys), torch.float64)[0, 0, 0], -1)


def tile_loop(scores: Float[Tensor, "Q K"], visible: Bool[Tensor, "Q K"], values: Float[Tensor, "K D"], *, size: int = 2,
              hidden: float = -math.inf, rescale: bool = True, empty: bool = True) -> Float[Tensor, "Q D"]:
    """Online softmax over tiles of ``size`` keys, with the three slips of this section: a finite ``hidden`` score, no ``rescale`` of what was
    summed under a smaller maximum, and no thought of an ``empty`` row (−∞ minus −∞)."""
    m, l = scores.new_full((len(scores), 1), -math.inf), scores.new_zeros(len(scores), 1)  # noqa: E741
    o = scores.new_zeros(len(scores), values.shape[1])
    for start in range(0, scores.shape[1], size):
        j = slice(start, start + size)
        s = scores[:, j].masked_fill(~visible[:, j], hidden)
        m_new = torch.maximum(m, s.amax(1, keepdim=True))
        base = m_new.masked_fill(m_new == -math.inf, 0.0) if empty else m_new
        p, r = torch.exp(s - base), torch.exp(m - base) if rescale else 1.0
        l, o, m = l * r + p.sum(1, keepdim=True), o * r + p @ values[j], m_new  # noqa: E741
    return o / torch.where(l == 0, 1.0, l)


# --- guards ---------------------------------------------------------------------------------------------------------

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def check_shift(attention: Attention) -> None:
    """Refuse an attention that a constant, added to all scores of a row, can move: softmax sees differences, and a hidden key nothing.

    A finite stand-in for a mask is caught here, since the constant moves the visible scores past it.
    """
    scores, visible = torch.tensor([[0.0, 1.0, 2.0, 0.0]], dtype=torch.float64), torch.tensor([[True, True, True, False]])
    values = torch.tensor([[1.0], [2.0], [3.0], [100.0]], dtype=torch.float64)
    want = masked_softmax(scores, visible) @ values
    for shift in SHIFTS:
        got = float(attention(scores + shift, visible, values))
        require(abs(got - float(want)) < 1e-6, f"output with all scores moved by {shift:,g}", round(got, 3), f"{float(want):.3f}, as without",
                "Hide keys by minus infinity or leave them out: no finite score is below every score.")


def check_tiles(attention: Callable[[int], Tensor]) -> None:
    """Refuse an attention whose result depends on the size of its tiles; the whole row at once is the reference."""
    want = attention(6)
    for size in (1, 2, 3):
        gap = float((attention(size) - want).abs().max())
        require(gap < 1e-9, f"gap between tiles of {size} and one tile", round(gap, 3), "0 for every tile size",
                "Multiply what was summed by exp(m - m') when the maximum grows, and subtract 0 while it is still minus infinity.")


def check_offsets(offsets: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Refuse offsets that are not key minus query, on a call that no reversal maps to itself: one query at 5, keys at 2 to 6."""
    got = offsets(torch.tensor([5]), torch.arange(2, 7)).tolist()
    require(got == [[-3, -2, -1, 0, 1]], "offsets of query 5 to keys 2..6", got, "[[-3, -2, -1, 0, 1]], key minus query",
            "Subtract the query from the key, and name the sign where a table is loaded.")


def check_triangle(visible: Bool[Tensor, "Q K"]) -> None:
    """Refuse a causal triangle whose last query, the newest row, cannot read every key of the call."""
    q, k = visible.shape
    wanted = AttentionGeometry.decode(k - q, q).visible
    row = (visible != wanted).any(1).nonzero().flatten().tolist()
    require(not row, f"keys that query {row[0] if row else 0} may read", int(visible[row[0]].sum()) if row else 0,
            f"{int(wanted[row[0]].sum()) if row else 0}, for {q} new rows after {k - q} cached",
            "Compare positions, not row numbers: query i stands at K - Q + i.")


def check_bias(term: ScoreBias) -> None:
    """Refuse a bias that is not of the scores' own [1|B, H, Q, K], by attend()'s own check."""
    rows = torch.zeros(1, 2, 8, 4)
    attend(rows[:, :, -1:], rows, rows, term, AttentionGeometry.decode(7))


def check_rows(weights: Float[Tensor, "K"]) -> None:
    """Refuse weights that do not sum to one: something was added after the softmax."""
    total = float(weights.sum())
    require(abs(total - 1) < 1e-6, "sum of a row's weights", round(total, 3), "1", "Add the position term to the scores, before the softmax.")


def check_document(document: dict[str, Any]) -> None:
    """Refuse a manifest whose query does not continue the committed tokens."""
    PositionCall(**document)


# --- cases ----------------------------------------------------------------------------------------------------------

def decode_document(query: int, committed: int = 3) -> dict[str, Any]:
    """The manifest of a decode call whose query claims this position."""
    document = PositionCall.decode(committed).to_dict()
    document["query_space"]["logical_positions"] = [query]
    return document


register(Failure(
    id="0x09A.local-arange", section=SECTION, kind="wrong_answer", title="A decode step counts its query from 0",
    broken=lambda: hand_weights(0), right=lambda: hand_weights(3), guard=check_document, guard_name="position-manifest",
    broken_subject=lambda: decode_document(0), right_subject=lambda: decode_document(3), source="article 0x0C; lucidrains/x-transformers#103"))


def sentinel_case() -> tuple[Float[Tensor, "2 2"], Bool[Tensor, "2 2"], Float[Tensor, "2 1"]]:
    """The report's own numbers: q = (−20000, 0), k = (1, 0), v = (1, 100), and key 1 is padding."""
    q, k, v = (torch.tensor(x, dtype=torch.float64)[:, None] for x in ([-20_000.0, 0.0], [1.0, 0.0], [1.0, 100.0]))
    return q @ k.T, torch.tensor([[True, False]]).expand(2, 2), v


def _sentinel(scores: Tensor, visible: Tensor, values: Tensor) -> Tensor:
    return tile_loop(scores, visible, values, hidden=-10_000.0)


register(Failure(
    id="0x09A.finite-sentinel", section=SECTION, kind="wrong_answer", title="A tile loop hides padding by a score of −10,000",
    broken=lambda: _sentinel(*sentinel_case()), right=lambda: tile_loop(*sentinel_case()), guard=check_shift, guard_name="row-shift",
    broken_subject=lambda: _sentinel, right_subject=lambda: tile_loop, source="ohdearquant/lattice#361; flashinfer-ai/flashinfer#4267"))


def _steps(scores: list[float], hidden: int, **slip: bool) -> Callable[[int], Tensor]:
    s = LN2 * torch.tensor([scores], dtype=torch.float64)
    visible = torch.arange(len(scores))[None] >= hidden
    return lambda size: tile_loop(s, visible, torch.arange(float(len(scores)), dtype=torch.float64)[:, None], size=size, **slip)


RISING, FIRST_HIDDEN = ([0, 0, 1, 2, 3, 0], 0), ([0, 0, 1, 2, 3, 0], 2)

register(Failure(
    id="0x09A.no-rescale", section=SECTION, kind="wrong_answer", title="A tile loop keeps its old sums when the maximum grows",
    broken=lambda: _steps(*RISING, rescale=False)(2), right=lambda: _steps(*RISING)(2), guard=check_tiles, guard_name="tile-size",
    broken_subject=lambda: _steps(*RISING, rescale=False), right_subject=lambda: _steps(*RISING),
    source="Milakov and Gimelshein 2018, algorithm 3, without its factor"))

register(Failure(
    id="0x09A.empty-first-tile", section=SECTION, kind="wrong_answer", title="The first tile of a row is wholly hidden, and −∞ minus −∞ is NaN",
    broken=lambda: _steps(*FIRST_HIDDEN, empty=False)(2), right=lambda: _steps(*FIRST_HIDDEN)(2), guard=check_tiles, guard_name="tile-size",
    broken_subject=lambda: _steps(*FIRST_HIDDEN, empty=False), right_subject=lambda: _steps(*FIRST_HIDDEN),
    source="flashinfer-ai/flashinfer#4401"))


def _key_minus_query(q: Int[Tensor, "Q"], k: Int[Tensor, "K"]) -> Int[Tensor, "Q K"]:
    return k[None, :] - q[:, None]


def _query_minus_key(q: Int[Tensor, "Q"], k: Int[Tensor, "K"]) -> Int[Tensor, "Q K"]:
    return q[:, None] - k[None, :]


def _linear_weights(offsets: Callable[[Tensor, Tensor], Tensor]) -> Float[Tensor, "6 6"]:
    at = torch.arange(6)
    return masked_softmax(0.5 * offsets(at, at).double(), AttentionGeometry.causal_self(6).visible)


register(Failure(
    id="0x09A.sign", section=SECTION, kind="wrong_answer", title="A linear bias takes query minus key, and far keys gain",
    broken=lambda: _linear_weights(_query_minus_key), right=lambda: _linear_weights(_key_minus_query), guard=check_offsets, guard_name="sign-fixture",
    broken_subject=lambda: _query_minus_key, right_subject=lambda: _key_minus_query, source="meta-pytorch/attention-gym#86; article 0x0C"))


def decode_rows() -> tuple[Tensor, Tensor, Tensor]:
    """One new query and eight keys, [1, 1, N, 4]; value j is j in its first channel."""
    q = torch.sin(torch.arange(4.0, dtype=torch.float64))[None, None, None]
    k = torch.cos(torch.arange(32.0, dtype=torch.float64)).reshape(1, 1, 8, 4)
    return q, k, torch.arange(8.0, dtype=torch.float64)[None, None, :, None].expand(1, 1, 8, 4)


register(Failure(
    id="0x09A.top-left", section=SECTION, kind="wrong_answer", title="A causal triangle is laid from the top left of one query and eight keys",
    broken=lambda: scaled_dot_product_attention(*decode_rows(), is_causal=True), right=lambda: attend(*decode_rows(), None, AttentionGeometry.decode(7)),
    guard=check_triangle, guard_name="causal-origin", broken_subject=lambda: torch.ones(1, 8, dtype=torch.bool).tril(),
    right_subject=lambda: AttentionGeometry.decode(7).visible, source="pytorch/pytorch#144858; pytorch/pytorch#108108"))


class WindowBias(ScoreBias):
    """A key-index bias m·j built over the query's window alone: [1, H, 1, Q], which broadcasts over any cache while Q = 1."""

    heads = 2

    def materialize(self, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype = torch.float32) -> Float[Tensor, "1 H 1 Q"]:
        return 0.5 * torch.arange(len(query_positions), dtype=dtype).expand(1, self.heads, 1, -1)


def _scores(term: ScoreBias) -> Float[Tensor, "1 2 1 8"]:
    geometry = AttentionGeometry.decode(7)
    return torch.zeros(1, 2, 1, 8) + term.materialize(geometry.query_positions, geometry.key_positions)


def _over_the_cache() -> ScoreBias:
    return ALiBi(2, slopes=[0.5, 0.5], form="key_index")(AttentionGeometry.decode(7))


register(Failure(
    id="0x09A.window-bias", section=SECTION, kind="wrong_answer", title="A decode step's bias is built over the query's window and broadcasts over the cache",
    broken=lambda: _scores(WindowBias()), right=lambda: _scores(_over_the_cache()), guard=check_bias, guard_name="bias-shape",
    broken_subject=WindowBias, right_subject=_over_the_cache, source="keras-team/keras-hub#2977"))


def _added_after() -> Float[Tensor, "4"]:
    return torch.full((4,), 0.25, dtype=torch.float64) + nearness().materialize(torch.tensor([3]), torch.arange(4), torch.float64)[0, 0, 0]


register(Failure(
    id="0x09A.after-softmax", section=SECTION, kind="wrong_answer", title="The position term is added to the weights instead of the scores",
    broken=_added_after, right=lambda: hand_weights(3), guard=check_rows, guard_name="row-sum", source="article 0x09A, 'before softmax'"))
