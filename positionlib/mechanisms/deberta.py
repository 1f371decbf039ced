"""DeBERTa's disentangled attention (He et al. 2021, sections 3.1 and 3.2; microsoft/DeBERTa 4d7fe0b).

    s_hij = ( q_hi · k_hj + q_hi · K_h[δ(i, j)] + k_hj · Q_h[δ] ) / √((1 + n) d)        c2c + c2p + p2c, n position terms
    δ(i, j) = clamp(i − j + S, 0, 2S − 1)       third term: paper δ(j, i), released δ(i, j)

Contract
- coordinate source: the geometry's query and key positions, query minus key, bucketed first when ``buckets`` is set.
- changed tensor: the scores; every summand shares one scale. Values and states stay as they are.
- shape: [B, H, Q, K]; the position rows [H, 2S, d] are projected once a call, never expanded to pairs.
- parameter or buffer state: one table [2S, D] for the stack and, unless shared with the content, a key and a query projection a
  layer. The LayerNorm that later releases put before the projections is the stack's.
- training path: a row collects the gradient of every pair in its class, through both terms.
- runtime offset: a decode step names its query's true position; released code counts queries from 0 unless told otherwise.
- failure modes: the paper's index under a released checkpoint, the other clamp, d for (1 + n)d, a local arange in decode. A row that
  sees no key is zero, as in the official code; transformers 5.24 averages all keys there.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.attention import pick
from positionlib.constants import on_device
from positionlib.contract import checked
from positionlib.errors import require, require_choice, require_count
from positionlib.forms import ByClass, ByOffset
from positionlib.geometry import AttentionGeometry
from positionlib.rules import require_values
from positionlib.terms import Decomposition, StateRows

TERMS = ("c2c", "c2p", "p2c")
THIRD_INDICES = ("paper", "released")
EDGES = ("exact", "official", "transformers")
PROJECTIONS = ("own", "shared")
PLACEMENTS = ("input", "mask_decoder")


@dataclass(frozen=True)
class DisentangledIndex:
    """Table row of an offset i − j (query minus key): 0..2S−1, where S is ``buckets`` or else ``max_distance``.

    Without buckets the offset is its own bucket. With B buckets and m = B/2, distances up to m are exact, and larger ones go to
    m + ⌈ln(n/m) / ln((M−1)/m) · (m−1)⌉ with their sign. ``edge`` names what happens at and beyond M − 1, and has no default:

    - ``exact``: the distance is clamped to M − 1 and the formula is evaluated in integers; row 0 is never used.
    - ``official``: clamped to M − 1, in float32. For some settings the quotient at M − 1 comes out above 1 and ⌈⌉ adds a bucket.
    - ``transformers``: not clamped, in float32 (5.24); M and beyond reach row 0 on the negative side.

    ``overflow`` pins that last cell of ``official``. The release takes its logarithm from the processor's maths library: for
    B, M = 4, 8 one build overflows with AVX2 and not with AVX-512. None means a correctly rounded logarithm.
    """

    max_distance: int
    buckets: int | None = None
    edge: str | None = None
    overflow: bool | None = None

    def __post_init__(self) -> None:
        require_count("max_distance", self.max_distance)
        require(self.overflow is None or isinstance(self.overflow, bool) and self.edge == "official", "overflow", self.overflow,
                "None, or True or False under edge='official'", "Only the official rounding has such a cell.")
        if self.buckets is None:
            require(self.edge is None, "edge", self.edge, "None without buckets", "There is no logarithm to round.")
            return
        require_choice("edge", self.edge, EDGES)
        require(require_count("buckets", self.buckets, 4) % 2 == 0, "buckets", self.buckets, "an even number", "Half of them are exact.")
        require(self.buckets // 2 + 1 < self.max_distance <= 2**20, "max_distance", self.max_distance,
                f"{self.buckets // 2 + 2}..{2**20} for {self.buckets} buckets", "The logarithm needs a range beyond the exact half.")
        # Found once, here: a compiled graph cannot trace a bisection.
        object.__setattr__(self, "_thresholds", _thresholds(self))

    @property
    def span(self) -> int:
        """S, half the table."""
        return self.buckets or self.max_distance

    @property
    def num_classes(self) -> int:
        return 2 * self.span

    @property
    def thresholds(self) -> tuple[int, ...]:
        """Smallest distance of bucket 1, 2, … of one direction, up to S where that bucket exists."""
        return tuple(range(1, self.span + 1)) if self.buckets is None else self._thresholds

    @checked
    def classes(self, offset: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Table row of each offset i − j, int64."""
        distance = offset.abs()
        distance = (distance.clamp_max(self.span) if self.buckets is None
                    else torch.bucketize(distance, on_device(self.thresholds, torch.int64, offset.device), right=True))
        return (offset.sign() * distance + self.span).clamp(0, 2 * self.span - 1)

    @checked
    def signed_buckets(self, offset: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The released ``relative_pos`` before it is cut to the table, evaluated on the host; ``transformers`` may exceed S."""
        if self.buckets is None:
            return offset
        require_values("offset", offset)
        return offset.sign() * torch.from_numpy(_log_bucket(self, offset.abs().cpu().numpy())).to(offset.device)


def _log_bucket(rule: DisentangledIndex, distance: np.ndarray) -> np.ndarray:
    """Unsigned bucket of each distance, by the rule's own arithmetic."""
    mid, last = rule.buckets // 2, rule.max_distance - 1
    near = distance if rule.edge == "transformers" else np.minimum(distance, last)
    if rule.edge == "exact":
        # Log bucket above m  ⇔  n^L · mid^m > last^m · mid^L, L = mid − 1, for whole numbers.
        steps = [bisect_right(range(last), last**m * mid ** (mid - 1), key=lambda n: n ** (mid - 1) * mid**m) for m in range(mid - 1)]
        log = mid + np.searchsorted(np.array(steps), near, side="right")
    else:
        ratio = np.maximum(near, mid).astype(np.float32) / np.float32(mid)
        # The official divisor is the logarithm of a double, that of transformers the logarithm of a float32.
        whole = last / mid if rule.edge == "official" else float(np.float32(last / mid))
        quotient = np.log(ratio.astype(np.float64)).astype(np.float32) / np.float32(math.log(whole))
        log = np.ceil(quotient * np.float32(mid - 1)).astype(np.int64) + mid
    if rule.overflow is not None:
        log = np.where(near == last, 2 * mid - 1 + rule.overflow, log)
    return np.where(distance <= mid, distance, log)


@lru_cache(maxsize=64)
def _thresholds(rule: DisentangledIndex) -> tuple[int, ...]:
    buckets = _log_bucket(rule, np.arange(rule.max_distance + 1))
    return tuple(int(np.argmax(buckets >= b)) for b in range(1, min(rule.span, int(buckets.max())) + 1))


@checked
def score_denominator(d_head: int, position_terms: Sequence[str]) -> float:
    """√((1 + n) d): content, and n enabled position terms. The released count includes p2p, which no released model enables."""
    for term in position_terms:
        require_choice("position_terms", term, (*TERMS[1:], "p2p"))
    require(len(set(position_terms)) == len(position_terms), "position_terms", list(position_terms), "each term once", "Drop the repetition.")
    return math.sqrt(require_count("d_head", d_head) * (1 + len(position_terms)))


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class DisentangledScores(Decomposition):
    """Content scores plus those of projected position rows, [H, 2S, d]; a term whose rows are None is not enabled."""

    rule: DisentangledIndex
    third_index: str
    content: bool
    pos_key: Float[Tensor, "H R D"] | None
    pos_query: Float[Tensor, "H R D"] | None

    def __post_init__(self) -> None:
        require_choice("third_index", self.third_index, THIRD_INDICES)
        for name in ("pos_key", "pos_query"):
            rows = getattr(self, name)
            require(rows is None or rows.ndim == 3 and rows.shape[1] == self.rule.num_classes, name, rows,
                    f"[heads, {self.rule.num_classes}, d_head]", "Give one row a class, split into heads.")

    @checked
    def indices(self, query_positions: Int[Tensor, "*B Q"], key_positions: Int[Tensor, "*B K"]) -> dict[str, Int[Tensor, "*B Q K"]]:
        """Table row of every pair for c2p and for p2c."""
        offset = query_positions[..., :, None] - key_positions[..., None, :]
        forward = self.rule.classes(offset)
        return {"c2p": forward, "p2c": forward if self.third_index == "released" else self.rule.classes(-offset)}

    @checked
    def parts(self, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], query_positions: Int[Tensor, "*B Q"],
              key_positions: Int[Tensor, "*B K"], scale: float) -> dict[str, Float[Tensor, "B H Q K"]]:
        """The enabled summands by name, each scaled."""
        for name, rows in (("pos_key", self.pos_key), ("pos_query", self.pos_query)):
            require(rows is None or (rows.shape[0], rows.shape[2]) == (q.shape[1], q.shape[3]), name, rows,
                    f"{q.shape[1]} heads of width {q.shape[3]}, as q", "Build the module for this layer's heads.")
        index = self.indices(query_positions, key_positions)
        found = {"c2c": q @ k.mT} if self.content else {}
        if self.pos_key is not None:
            found["c2p"] = pick(q @ self.pos_key.to(q.dtype).mT, index["c2p"])
        if self.pos_query is not None:
            found["p2c"] = pick(k @ self.pos_query.to(q.dtype).mT, index["p2c"].mT).mT
        return {name: part * scale for name, part in found.items()}

    @checked
    def scores(self, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], query_positions: Int[Tensor, "*B Q"],
               key_positions: Int[Tensor, "*B K"], scale: float) -> Float[Tensor, "B H Q K"]:
        return torch.stack(tuple(self.parts(q, k, query_positions, key_positions, scale).values())).sum(0)

    def by_offset(self, offsets, scale, dtype):
        index = self.indices(offsets.new_zeros(1), offsets)
        rows = {name: None if table is None else table.to(dtype).index_select(1, index[term][0])
                for name, term, table in (("query_rows", "c2p", self.pos_key), ("key_rows", "p2c", self.pos_query))}
        return ByOffset(**rows, content=self.content)

    def by_class(self, query_positions, key_positions, scale):
        third = "query_minus_key" if self.third_index == "released" else "key_minus_query"
        return ByClass(rule=self.rule, sign="query_minus_key", key_sign=third, query_rows=self.pos_key, key_rows=self.pos_query, content=self.content)


class DeBERTa(nn.Module):
    """One layer's position terms: module(geometry) returns :class:`DisentangledScores`.

    Parameters
    ----------
    heads, d_model : the layer's; d_head = d_model / heads.
    max_distance, buckets, edge, overflow : see :class:`DisentangledIndex`.
    terms : a subset of c2c, c2p, p2c. Leaving c2c out shows a position term alone; the scale counts content all the same.
    third_index : ``paper`` or ``released``, the row that p2c reads.
    projections : ``own`` or ``shared``; shared rows go through the layer's content projections, which the call then passes.
    table : the table of another layer of the stack, to be shared; None for a new one.
    key_bias : False for DeBERTa v1 in transformers, whose key projection of positions has no bias.

    Raises
    ------
    PositionContractError
        p2p, an unknown or repeated term, an unnamed convention, sizes that do not divide, or projections missing from the call.
    """

    @checked
    def __init__(self, heads: int, d_model: int, max_distance: int, *, terms: Sequence[str], third_index: str, projections: str,
                 buckets: int | None = None, edge: str | None = None, overflow: bool | None = None, table: nn.Parameter | None = None,
                 key_bias: bool = True) -> None:
        super().__init__()
        self.heads, self.third_index = require_count("heads", heads), require_choice("third_index", third_index, THIRD_INDICES)
        require(require_count("d_model", d_model) % heads == 0, "d_model", d_model, f"a multiple of {heads} heads", "Heads share it equally.")
        self.d_head = d_model // heads
        require("p2p" not in terms, "terms", terms, "a subset of c2c, c2p, p2c", "p2p depends on the offset alone: the paper leaves it "
                "out, and its branch in the released code ends in an IndexError. Use a scalar bias by offset.")
        require(len(terms) > 0 and len(set(terms)) == len(terms), "terms", terms, "different terms in a list",
                "Name each enabled term once, as in ('c2c', 'c2p', 'p2c').")
        self.terms = tuple(require_choice("terms", term, TERMS) for term in terms)
        self.projections = require_choice("projections", projections, PROJECTIONS)
        self.rule = DisentangledIndex(max_distance, buckets, edge, overflow)
        shape = (self.rule.num_classes, d_model)
        require(table is None or isinstance(table, nn.Parameter) and table.shape == shape, "table", table, f"a Parameter of shape {shape}",
                "A stack has one table.")
        self.weight = nn.Parameter(torch.empty(shape)) if table is None else table
        if table is None:
            nn.init.normal_(self.weight, std=0.02)
        own = projections == "own"
        self.pos_key_proj = nn.Linear(d_model, d_model, bias=key_bias) if own and "c2p" in terms else None
        self.pos_query_proj = nn.Linear(d_model, d_model) if own and "p2c" in terms else None

    @checked
    def forward(self, geometry: AttentionGeometry, *, query_proj: nn.Module | None = None, key_proj: nn.Module | None = None) -> DisentangledScores:
        """The term of this call. ``shared`` needs the layer's content projections, ``own`` refuses them."""
        geometry.require_shared_frame("DeBERTa offsets")
        shared = self.projections == "shared"
        for name, given in (("query_proj", query_proj), ("key_proj", key_proj)):
            require((given is not None) == shared, name, given, "the layer's content projection" if shared else
                    "None, since positions have their own projections", "Follow the checkpoint's share_att_key.")
        key, query = (key_proj, query_proj) if shared else (self.pos_key_proj, self.pos_query_proj)
        scale = 1.0 / score_denominator(self.d_head, [term for term in self.terms if term != "c2c"])
        return DisentangledScores(rule=self.rule, third_index=self.third_index, content="c2c" in self.terms, score_scale=scale,
                                  pos_key=self._rows(key) if "c2p" in self.terms else None,
                                  pos_query=self._rows(query) if "p2c" in self.terms else None)

    def _rows(self, projection: nn.Module) -> Float[Tensor, "H R d"]:
        return projection(self.weight).unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def extra_repr(self) -> str:
        return f"{self.heads}, terms={self.terms}, third_index={self.third_index!r}, projections={self.projections!r}, {self.rule}"


@checked
def place_absolute(x: Float[Tensor, "B N D"], rows: StateRows, *, placement: str, stage: str) -> tuple[Float[Tensor, "B N D"], Float[Tensor, "B N D"]]:
    """(query states, key and value states) of a stage, with absolute rows where the release adds them.

    ``placement`` is ``input`` (position_biased_input, as in BERT) or ``mask_decoder`` (the paper's enhanced mask decoder, section
    3.2). ``stage`` is ``input``, or ``mask_decoder``: the last layer, run again on the states of the layer before it. There the rows
    enter the queries only; keys and values stay without absolute positions, and the second pass queries with the first one's output.
    """
    require_choice("placement", placement, PLACEMENTS)
    require_choice("stage", stage, PLACEMENTS)
    if placement != stage:
        return x, x
    positioned = rows.add_to(x)
    return (positioned, positioned) if stage == "input" else (positioned, x)
