"""Transformer-XL's relative attention and segment memory (Dai et al. 2019, sections 3.2 and 3.3; kimiyoung/transformer-xl 44781ed).

    A_ij = q_i·k_j + q_i·r_(i−j) + u·k_j + v·r_(i−j)        s_ij = A_ij / √d        r_n = W_r · [sin(n ω) ; cos(n ω)]
           (a)       (b)           (c)     (d)              the code's AC is (a) + (c), its BD is (b) + (d)

Contract
- coordinate source: the geometry's query and key positions, query minus key, memory keys first; only differences matter. The paper's
  model is causal; ``bidirectional`` gives later keys negative distances, as the Conformer has them (wav2vec2-conformer, transformers 5.24).
- changed tensor: the scores; they are built as a whole, so the term holds the content product too.
- shape: scores [B, H, Q, K] with K = M + Q; u and v are [H, D], r is [H, distances, D].
- parameters: W_r [H·D, d_model] of each layer, and u, v, shared by all layers (``tie_to``) or not, by the release's switch untie_r; the sinusoid
  is computed, the memory is state of the caller and in no checkpoint.
- training path: gradients reach q, k, u, v and W_r; the memory is detached, so none reaches an earlier segment.
- runtime offset: the memory length; query i stands at M + i. ``clamp_len`` gives all larger distances one vector.
- failure modes: a shift that drops the wrong row, leftovers beyond the range left unmasked, memory of layer l+1 read by layer l,
  memory with a gradient, a batch-first memory read time first, and the released cut for ext_len > 0 (see :class:`SegmentMemory`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.attention import pick
from positionlib.contract import checked
from positionlib.errors import PositionRangeError, require, require_choice, require_count
from positionlib.forms import ByLine, ByOffset
from positionlib.geometry import AttentionGeometry
from positionlib.rules import frequency_ladder, require_phase
from positionlib.terms import Decomposition

BEYOND = ("nan", "zero", "leftovers")
MEMORY_LAYOUTS = ("time_first", "batch_first")
EXT_RULES = ("documented", "released")


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class TransformerXLScores(Decomposition):
    """The four terms. Unless ``bidirectional``, a key after its query has no distance: it counts as distance 0 and must be hidden."""

    content_bias: Float[Tensor, "H D"]
    position_bias: Float[Tensor, "H D"]
    projection: Float[Tensor, "H D M"]
    clamp_len: int | None
    base: float
    bidirectional: bool = False

    @checked
    def relative_keys(self, distances: Int[Tensor, "R"]) -> Float[Tensor, "H R D"]:
        """r of each distance, projected for each head."""
        rows = relative_rows(distances, self.projection.shape[-1], clamp_len=self.clamp_len, base=self.base)
        return rows.to(self.projection.dtype) @ self.projection.mT

    @checked
    def compact(self, q: Float[Tensor, "B H Q D"], distances: Int[Tensor, "R"]) -> Float[Tensor, "B H Q R"]:
        """(q + v) · r, one column a distance: BD before it is aligned with the keys."""
        return (q + self.position_bias[:, None].to(q.dtype)) @ self.relative_keys(distances).to(q.dtype).mT

    @checked
    def parts(self, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], query_positions: Int[Tensor, "*B Q"],
              key_positions: Int[Tensor, "*B K"]) -> dict[str, Float[Tensor, "B H Q K"]]:
        """The terms (a) to (d), unscaled, each [B, H, Q, K]."""
        distances, column = self._distances(query_positions, key_positions)
        r = self.relative_keys(distances).to(q.dtype)
        u, v = ((torch.zeros_like(q) + bias[:, None]).to(q.dtype) for bias in (self.content_bias, self.position_bias))
        return {"a": q @ k.mT, "b": pick(q @ r.mT, column), "c": u @ k.mT, "d": pick(v @ r.mT, column)}

    @checked
    def scores(self, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], query_positions: Int[Tensor, "*B Q"],
               key_positions: Int[Tensor, "*B K"], scale: float) -> Float[Tensor, "B H Q K"]:
        require(q.shape[1::2] == self.content_bias.shape, "term", tuple(self.content_bias.shape),
                f"[heads, d_head] = {tuple(q.shape[1::2])}, as q", "Build the module for this model's heads.")
        distances, column = self._distances(query_positions, key_positions)
        ac = (q + self.content_bias[:, None].to(q.dtype)) @ k.mT
        bd = pick(self.compact(q, distances), column)
        return (ac + bd) * scale

    def by_offset(self, offsets, scale, dtype):
        distances, column = self._distances(offsets.new_zeros(1), offsets)
        rows = self.relative_keys(distances).to(dtype).index_select(1, column[0])
        bias = scale * (rows @ self.position_bias.to(dtype)[:, :, None])[..., 0]  # v · r
        return ByOffset(query_rows=rows, bias=bias, content_bias=self.content_bias.to(dtype))

    def line(self, first, last):
        far = self.clamp_len
        if far is not None:
            first, last = max(-far, min(first, far)), max(-far, min(last, far))
        last = last if self.bidirectional else min(last, 0)
        return min(first, last - 1), last

    def by_line(self, first, last):
        distances = -torch.arange(first, last + 1, device=self.projection.device)
        return ByLine(rows=self.relative_keys(distances), first=first, content_bias=self.content_bias, position_bias=self.position_bias)

    def _distances(self, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
        """The distances that occur, and the column of each pair among them."""
        distance = query_positions[..., :, None] - key_positions[..., None, :]
        if not self.bidirectional:
            distance = distance.clamp_min(0)
        return torch.unique(distance if self.clamp_len is None else distance.clamp(-self.clamp_len, self.clamp_len), return_inverse=True)


class TransformerXL(nn.Module):
    """module(geometry) returns :class:`TransformerXLScores`.

    ``weight`` is the released ``r_net.weight`` [H·d_head, d_model], ``content_bias`` u is ``r_w_bias``, ``position_bias`` v is ``r_r_bias``.

    Parameters
    ----------
    clamp_len : largest distance with a vector of its own, or None. The released settings −1 and 0 mean None.
    tie_to : another layer's module whose u and v this one uses, as all layers do in a model trained without the release's untie_r.
    bidirectional : True for an encoder that reads both ways with signed distances; the paper's model is causal.

    Raises
    ------
    PositionContractError
        an odd d_model, settings that are no counts, biases of another shape; a geometry of two frames, or of the other direction.
    """

    def __init__(self, d_model: int, heads: int, d_head: int, *, clamp_len: int | None = None, base: float = 10_000.0,
                 tie_to: TransformerXL | None = None, bidirectional: bool = False) -> None:
        super().__init__()
        require(require_count("d_model", d_model, 2) % 2 == 0, "d_model", d_model, "an even number", "The rows are sines and as many cosines.")
        shape = (require_count("heads", heads), require_count("d_head", d_head))
        self.clamp_len = None if clamp_len is None else require_count("clamp_len", clamp_len)
        frequency_ladder(d_model // 2, d_model, base)  # refuses a base here, not in the first call
        require(isinstance(bidirectional, bool), "bidirectional", bidirectional, "True or False", "The paper's model is causal.")
        self.base, self.bidirectional = base, bidirectional
        self.weight = nn.Parameter(torch.randn(heads * d_head, d_model) * 0.02)
        if tie_to is None:
            self.content_bias, self.position_bias = (nn.Parameter(torch.randn(shape) * 0.02) for _ in range(2))
        else:
            require(isinstance(tie_to, TransformerXL) and tie_to.content_bias.shape == shape, "tie_to", tie_to,
                    f"a TransformerXL of {heads} heads of width {d_head}", "Layers that share u and v have the same heads.")
            self.content_bias, self.position_bias = tie_to.content_bias, tie_to.position_bias

    @checked
    def forward(self, geometry: AttentionGeometry) -> TransformerXLScores:
        """The scores' description for this call."""
        geometry.require_shared_frame("Transformer-XL distances")
        require(geometry.causal != self.bidirectional, "causal", geometry.causal, f"{not self.bidirectional}, since bidirectional is {self.bidirectional}",
                "Distances of the paper's model are i − j ≥ 0: the future has none, unless the module is bidirectional.")
        return TransformerXLScores(content_bias=self.content_bias, position_bias=self.position_bias, clamp_len=self.clamp_len, base=self.base,
                                   projection=self.weight.unflatten(0, self.content_bias.shape), bidirectional=self.bidirectional,
                                   requires="bidirectional" if self.bidirectional else "causal")

    def extra_repr(self) -> str:
        heads, d_head = self.content_bias.shape
        return f"{self.weight.shape[1]}, {heads}, {d_head}, clamp_len={self.clamp_len}, bidirectional={self.bidirectional}"


@checked
def relative_rows(distances: Int[Tensor, "R"], d_model: int, *, clamp_len: int | None = None, base: float = 10_000.0) -> Float[Tensor, "R d_model"]:
    """Sinusoidal rows of distances, float64, sines first and then cosines, before W_r."""
    clamped = distances if clamp_len is None else distances.clamp(-clamp_len, clamp_len)
    require_phase("distances", clamped)
    phase = clamped.to(torch.float64)[:, None] * frequency_ladder(d_model // 2, d_model, base).to(distances.device)
    return torch.cat((phase.sin(), phase.cos()), -1)


@checked
def relative_shift(compact: Float[Tensor, "*B Q K"], *, beyond: str = "nan") -> Float[Tensor, "*B Q K"]:
    """Align columns of distances K−1..0 with keys 0..K−1, the queries at the end of the keys: one pad, one reshape.

    Entry [i, j] becomes compact[i, K−1 − (i + M − j)] with M = K − Q, for j ≤ i + M. Later keys have no distance; ``beyond`` says what
    stands there: ``nan`` marks them, ``zero`` clears them (the released zero_triu), ``leftovers`` keeps what the reshape brings, a zero
    and then entries of the next row (the released default, to be masked).

    Raises
    ------
    PositionContractError
        more queries than keys, or an unknown ``beyond``.
    """
    require_choice("beyond", beyond, BEYOND)
    require(isinstance(compact, Tensor) and compact.ndim >= 2 and compact.dtype.is_floating_point, "compact", compact,
            "floating-point scores [.., Q, K]", "Put queries and distances last; the released layout [Q, K, B, H] needs a permute.")
    queries, keys = compact.shape[-2:]
    require(0 < queries <= keys, "compact", compact, "no more queries than keys", "Every query is itself a key: K = M + Q.")
    padded = nn.functional.pad(compact, (1, 0)).reshape(*compact.shape[:-2], keys + 1, queries)
    shifted = padded[..., 1:, :].reshape(compact.shape)
    if beyond == "leftovers":
        return shifted
    future = torch.ones(queries, keys, dtype=torch.bool, device=compact.device).triu(keys - queries + 1)
    return shifted.masked_fill(future, float("nan") if beyond == "nan" else 0.0)


@dataclass(frozen=True, eq=False)
class SegmentMemory:
    """The hidden states that the next segment reads, one tensor a state, detached. ``update`` returns the next memory.

    Attributes
    ----------
    layers : how many states are kept. Layer l reads state l, its own input; the released model keeps the last output too, and so
        one state more than it has layers.
    mem_len : rows kept at most.
    layout : ``time_first`` [M, B, D], the released one, or ``batch_first`` [B, M, D]. No default: no shape tells them apart.
    ext_len : how many rows at the end of a segment are fed again with the next and so are not kept.
    ext_rule : which rows stay when ext_len > 0. ``documented``: those before M + max(0, Q − ext_len), as the source's comment says.
        ``released``: those before Q + max(0, M − ext_len), since the source swaps its arguments. They agree for ext_len = 0.
    """

    layers: int
    mem_len: int
    layout: str
    ext_len: int = 0
    ext_rule: str = "documented"
    states: tuple[Float[Tensor, "M B D"], ...] = ()

    def __post_init__(self) -> None:
        require_count("layers", self.layers)
        require_count("mem_len", self.mem_len, 0)
        require_count("ext_len", self.ext_len, 0)
        require_choice("layout", self.layout, MEMORY_LAYOUTS)
        require_choice("ext_rule", self.ext_rule, EXT_RULES)
        counted = isinstance(self.states, tuple) and len(self.states) in (0, self.layers)
        dense = counted and all(isinstance(s, Tensor) and s.ndim == 3 and s.layout == torch.strided for s in self.states)
        require(dense and not any(s.requires_grad for s in self.states), "states", self.states,
                f"none, or {self.layers} detached states", "Start empty and let update() make them.")

    @property
    def length(self) -> int:
        """Rows that the memory holds now."""
        return self.states[0].shape[self._time] if self.states else 0

    @property
    def _time(self) -> int:
        return MEMORY_LAYOUTS.index(self.layout)

    @checked
    def extend(self, layer: int, hidden: Float[Tensor, "Q B D"]) -> Float[Tensor, "K B D"]:
        """[memory of this layer's input ; hidden] along time: the rows of which keys and values are made."""
        if require_count("layer", layer, 0) >= self.layers:
            raise PositionRangeError("layer", layer, f"0..{self.layers - 1}", "Layer l reads the memory of its own input, state l.")
        self._check(hidden, layer)
        return torch.cat((self.states[layer], hidden), self._time) if self.states else hidden

    @checked
    def update(self, hidden_states: Sequence[Float[Tensor, "Q B D"]]) -> SegmentMemory:
        """The memory after a segment whose states, in layer order, are these."""
        require(len(hidden_states) == self.layers, "hidden_states", len(hidden_states), f"{self.layers}, one a layer", "Keep the layer order.")
        extended = [self.extend(layer, hidden) for layer, hidden in enumerate(hidden_states)]
        lengths = {hidden.shape[self._time] for hidden in hidden_states}
        require(len(lengths) == 1, "hidden_states", sorted(lengths), "one length", "All states of a segment have its rows.")
        old, new = self.length, lengths.pop()
        first, second = (old, new) if self.ext_rule == "documented" else (new, old)
        end = first + max(0, second - self.ext_len)
        start = max(0, end - self.mem_len)
        # A copy: neither a graph nor the whole extended tensor stays alive behind it.
        return replace(self, states=tuple(x.detach().narrow(self._time, start, end - start).clone() for x in extended))

    @checked
    def geometry(self, length: int, *, same_length: bool = False, device: torch.device | str | None = None) -> AttentionGeometry:
        """The causal geometry of a segment of ``length`` rows behind this memory, which starts at position 0.

        ``same_length`` hides keys that are mem_len or more back, so that with full memory every query reads mem_len keys, itself among
        them (the released option of that name).
        """
        keys = torch.arange(self.length + require_count("length", length), device=device)
        queries, allowed = keys[self.length :], None
        if same_length:
            require(self.mem_len > 0, "mem_len", self.mem_len, "at least 1 with same_length", "The window is as long as the memory.")
            allowed = queries[:, None] - keys[None, :] < self.mem_len
        return AttentionGeometry(queries, keys, causal=True, allowed=allowed, mode="segment-memory", query_frame="segment", key_frame="segment")

    def _check(self, hidden: Tensor, layer: int) -> None:
        require(isinstance(hidden, Tensor) and hidden.ndim == 3 and hidden.dtype.is_floating_point, "hidden", hidden,
                f"a floating-point state in the layout {self.layout}", "Give [time, batch, width] or [batch, time, width], as the layout says.")
        if self.states:
            kept = self.states[layer]
            same = (kept.shape[1 - self._time], kept.shape[2]) == (hidden.shape[1 - self._time], hidden.shape[2])
            require(same and (kept.dtype, kept.device) == (hidden.dtype, hidden.device), "hidden", hidden,
                    f"batch, width, dtype and device of the memory {tuple(kept.shape)}",
                    "One memory serves one batch of running texts, in one layout.")

