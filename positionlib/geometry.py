"""The geometry of one attention call, as tensors: who is at which coordinate, and who may read whom.

A coordinate is never derived from a tensor's length: queries and keys carry their own logical positions, in a named frame.
Visibility is boolean, True = may attend, and is combined by AND; it is kept as rules (causal, padding, segments) so that a
kernel can evaluate them inside a tile, and is only expanded to [Q, K] by the property ``visible``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import FrameMismatchError, PositionContractError, require, require_choice, require_count
from positionlib.rules import check_sign, integers, readable

MODES = ("encoder", "causal", "cross", "segment-memory")
TENSORS = ("query_positions", "key_positions", "key_active", "query_segments", "key_segments", "allowed")
LARGEST_POSITION = 2**62  # so that the difference of two positions still fits an int64


@dataclass(frozen=True, eq=False)
class AttentionGeometry:
    """Coordinates and visibility of one call. Shapes without B are shared by the whole batch.

    The host reads the range of the positions, which ``torch.func.vmap`` over them cannot: give a batch as [B, N].

    Attributes
    ----------
    query_positions : int64 [Q] or [B, Q], logical positions of the query rows.
    key_positions : int64 [K] or [B, K], logical positions of the key rows or cache slots.
    causal : a key is visible only where key position ≤ query position.
    key_active : bool [K] or [B, K]; False marks padding and empty cache slots, which nobody may read.
    query_segments, key_segments : int64, both or neither; rows interact only within equal ids.
    allowed : bool [Q, K] or [B, Q, K], any further visibility.
    query_frame, key_frame : names of the coordinate frames; offsets exist only within one frame.
    mode : encoder, causal, cross or segment-memory; left out, it follows from ``causal``. With ``causal=False``, "causal" says that
        ``allowed`` hides the future, as where padding repeats a position and the rule would compare rows that have no order.
    scheme_id : the checkpoint's name for its position scheme; part of every cache identity.

    Raises
    ------
    PositionContractError
        a field of the wrong dtype, rank or length, a negative position, or segments on one side only; the message names it.
    """

    query_positions: Int[Tensor, "*B Q"]
    key_positions: Int[Tensor, "*B K"]
    causal: bool = False
    key_active: Bool[Tensor, "*B K"] | None = None
    query_segments: Int[Tensor, "*B Q"] | None = None
    key_segments: Int[Tensor, "*B K"] | None = None
    allowed: Bool[Tensor, "*B Q K"] | None = None
    query_frame: str = "sequence"
    key_frame: str = "sequence"
    mode: str | None = None
    scheme_id: str = "unnamed"

    def __post_init__(self) -> None:
        if self.mode is None:
            object.__setattr__(self, "mode", "causal" if self.causal is True else "encoder")
        require_choice("mode", self.mode, MODES)
        for name in ("query_positions", "key_positions"):
            object.__setattr__(self, name, _positions(name, getattr(self, name)))
        require(isinstance(self.causal, bool), "causal", self.causal, "True or False", "Causality is a rule, not a tensor.")
        carried = self.causal or self.allowed is not None
        require(not (self.mode == "encoder" and self.causal or self.mode == "causal" and not carried), "mode", self.mode,
                f"a mode for causal={self.causal}", "Leave it out: it follows from causal. Only an allowed matrix can be causal in place of the rule.")
        q, k = self.query_length, self.key_length
        self._check("key_active", torch.bool, (k,))
        for name, length in (("query_segments", q), ("key_segments", k)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _integers(name, getattr(self, name)))
            self._check(name, torch.int64, (length,))
        require((self.query_segments is None) == (self.key_segments is None), "key_segments", self.key_segments,
                "segments on both sides or on neither", "Give query_segments and key_segments together.")
        self._check("allowed", torch.bool, (q, k))
        for name, t in ((name, getattr(self, name)) for name in TENSORS):
            require(t is None or t.device == self.device, name, t, f"device {self.device}, as query_positions", "Build all tensors of a call on one device.")
        sizes = {t.shape[0] for t, rank in self._tensors() if t.ndim == rank + 1}
        require(len(sizes) <= 1, "batch", sorted(sizes), "one batch size", "Batched fields must agree on their first axis.")
        if self.causal and self.query_frame != self.key_frame:
            raise FrameMismatchError("causal", True, "one shared frame", "Positions of two frames have no order: drop causal.")

    def _check(self, name: str, dtype: torch.dtype, tail: tuple[int, ...]) -> None:
        t = getattr(self, name)
        if t is None:
            return
        require(isinstance(t, Tensor) and t.dtype == dtype and t.layout == torch.strided, name, t, f"a dense tensor of dtype {dtype}",
                "State the polarity and compare: mask == 1 (True = may attend)." if dtype == torch.bool else "Use int64 ids.")
        require(t.shape[-len(tail):] == tail and t.ndim in (len(tail), len(tail) + 1), name, t,
                f"a last shape of {tail}, with or without a batch axis", "Match the lengths of the positions.")

    def _tensors(self):
        for name in TENSORS:
            if getattr(self, name) is not None:
                yield getattr(self, name), 2 if name == "allowed" else 1

    @property
    def query_length(self) -> int:
        return self.query_positions.shape[-1]

    @property
    def key_length(self) -> int:
        return self.key_positions.shape[-1]

    @property
    def batch(self) -> int | None:
        """B, or None when every field is shared by the batch."""
        return next((t.shape[0] for t, rank in self._tensors() if t.ndim == rank + 1), None)

    @property
    def is_causal(self) -> bool:
        """Whether no row reads the future: by the rule, or by ``allowed`` where the mode says so."""
        return self.causal or self.mode == "causal"

    @property
    def device(self) -> torch.device:
        return self.query_positions.device

    @property
    def visible(self) -> Bool[Tensor, "*B Q K"]:
        """True where the query may read the key: causal AND active AND same segment AND allowed."""
        q, k = self.query_positions[..., :, None], self.key_positions[..., None, :]
        visible = k <= q if self.causal else torch.ones_like(k <= q)
        if self.key_active is not None:
            visible = visible & self.key_active[..., None, :]
        if self.query_segments is not None:
            visible = visible & (self.query_segments[..., :, None] == self.key_segments[..., None, :])
        return visible if self.allowed is None else visible & self.allowed

    def require_shared_frame(self, wanted: str) -> None:
        """Raise :class:`FrameMismatchError` when queries and keys live in different frames; ``wanted`` says what needs one."""
        if self.query_frame != self.key_frame:
            raise FrameMismatchError("coordinate_frame", (self.query_frame, self.key_frame), f"one shared frame for {wanted}",
                                     "Source and target positions share no origin: use a term without offsets, or declare a frame.")

    def offsets(self, sign: str) -> Int[Tensor, "*B Q K"]:
        """Signed pairwise offsets in positions; ``sign`` is "key_minus_query" or "query_minus_key" and has no default."""
        check_sign(sign)
        self.require_shared_frame("offsets")
        offset = self.key_positions[..., None, :] - self.query_positions[..., :, None]
        return offset if sign == "key_minus_query" else -offset

    @checked
    def to(self, device: torch.device | str) -> AttentionGeometry:
        """The same geometry on another device."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{n: v.to(device) for n, v in moved.items() if isinstance(v, Tensor)})

    @checked
    def slice_queries(self, start: int, stop: int) -> AttentionGeometry:
        """The same keys read by query rows start..stop-1: what a chunk of a prefill sees."""
        require(0 <= start <= stop <= self.query_length, "start", (start, stop), f"0 <= start <= stop <= {self.query_length}", "Name rows that exist.")
        rows = slice(start, stop)
        return replace(self, query_positions=self.query_positions[..., rows],
                       query_segments=None if self.query_segments is None else self.query_segments[..., rows],
                       allowed=None if self.allowed is None else self.allowed[..., rows, :])

    def slice_batch(self, start: int, stop: int) -> AttentionGeometry:
        """Batch rows start..stop-1. What has no batch axis is everyone's."""
        return replace(self, **{f.name: value[start:stop] for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)
                                and value.ndim == 2 + (f.name == "allowed")})

    @classmethod
    @checked
    def encoder(cls, length: int, *, device: torch.device | str | None = None, **rules) -> AttentionGeometry:
        """Bidirectional self-attention over positions 0..length-1."""
        positions = torch.arange(require_count("length", length, 0), device=device)
        return cls(positions, positions, **{"mode": "encoder", **rules})

    @classmethod
    @checked
    def causal_self(cls, length: int, *, start: int = 0, device: torch.device | str | None = None, **rules) -> AttentionGeometry:
        """Causal self-attention over positions start..start+length-1."""
        require_count("start", start, 0)
        positions = torch.arange(start, start + require_count("length", length, 0), device=device)
        return cls(positions, positions, **{"causal": True, "mode": "causal", **rules})

    @classmethod
    @checked
    def decode(cls, committed_length: int, new_tokens: int = 1, *, device: torch.device | str | None = None, **rules) -> AttentionGeometry:
        """``new_tokens`` queries that continue a cache: queries at committed_length.., keys at 0..committed_length+new_tokens-1."""
        require_count("committed_length", committed_length, 0)
        keys = torch.arange(committed_length + require_count("new_tokens", new_tokens), device=device)
        return cls(keys[committed_length:], keys, **{"causal": True, "mode": "causal", **rules})

    @classmethod
    @checked
    def cross(cls, target_length: int, source_length: int, *, device: torch.device | str | None = None, **rules) -> AttentionGeometry:
        """Cross-attention: target queries read source keys. The two frames differ, so offsets are refused."""
        return cls(torch.arange(require_count("target_length", target_length, 0), device=device),
                   torch.arange(require_count("source_length", source_length, 0), device=device),
                   **{"mode": "cross", "query_frame": "target", "key_frame": "source", **rules})


def _integers(name: str, values: object) -> Tensor:
    try:
        t = values if isinstance(values, Tensor) else torch.as_tensor(values, dtype=torch.int64 if values == [] else None)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise PositionContractError(name, values, "integers", "Pass a tensor or a list of whole numbers below 2^63.") from None
    return integers(name, t)


def _positions(name: str, values: object) -> Tensor:
    t = _integers(name, values)
    require(t.ndim in (1, 2), name, values, "shape [N] or [B, N]", "Give one coordinate a row.")
    if readable(t):  # else the check belongs to whoever built the positions
        low, high = int(t.min()), int(t.max())
        require(low >= 0, name, low, "positions of at least 0", "Padding keeps a position: mark it in key_active instead of using -1.")
        require(high <= LARGEST_POSITION, name, high, "positions up to 2^62", "Offsets must fit an int64.")
    return t
