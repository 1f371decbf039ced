"""The arguments of the attention operator, in order, and what of them a kernel is handed: plain tuples, without Triton."""

from __future__ import annotations

from typing import NamedTuple, get_type_hints

from torch import Tensor


class Call(NamedTuple):
    """One call of ``positionlib::attention_forward``; a mechanism leaves out what it does without.

    Attributes
    ----------
    q, k, v : [B, H, Q, D], [B, Hkv, K, D], [B, Hkv, K, D].
    query_positions, key_positions : int64, [*B, Q] and [*B, K].
    key_active, query_segments, key_segments : as the geometry's.
    table, kind, span : of the score function: slopes [H], or a bias by clamped offset [H, 2·span + 1].
    causal, scale : whether a row reads later positions; the factor of q·k.
    class_of : int32 [2, 2·span + 1], the classes by clamped offset, of query_scores and mass, and of key_scores.
    classes : integers [*B, Q, K], a class for each pair instead; the same for both.
    query_scores, key_scores : [B, H, Q, C] and [B, H, K, C], added to the scores by class, in the dtype of sums.
    pair_bias : [B, H, Q, K], added to the scores.
    query_turns, key_turns : [*B, Q, 2, P] and [*B, K, 2, P] in the dtype of sums, cosines and sines by which q and k turn first.
    interleaved : whether channels 2c and 2c + 1 turn together, or c and c + P.
    query_rows2, key_rows2 : [1|B, H, Q, D] and [1|B, H, K, D] in q's dtype, whose product is added to the scores, unscaled.
    cls, cls_position : [2, H] in the dtype of sums. Where the key is at this position, the first number stands for all that is added to
        scale · q·k; then, where the query is, the second.
    offset_rows : [H, W, D] in q's dtype, instead of key_rows2: scale · query_rows2_i · offset_rows[clamp(j − i + span, 0, W − 1)] is added.
    mass_classes : C, to have the mass of each class [B, H, Q, C]; 0 for none. ``out`` then keeps the dtype of sums.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    query_positions: Tensor
    key_positions: Tensor
    key_active: Tensor | None
    query_segments: Tensor | None
    key_segments: Tensor | None
    table: Tensor | None
    kind: str
    span: int
    causal: bool
    scale: float
    class_of: Tensor | None = None
    classes: Tensor | None = None
    query_scores: Tensor | None = None
    key_scores: Tensor | None = None
    pair_bias: Tensor | None = None
    mass_classes: int = 0
    query_rows2: Tensor | None = None
    key_rows2: Tensor | None = None
    cls: Tensor | None = None
    cls_position: int = 0
    query_turns: Tensor | None = None
    key_turns: Tensor | None = None
    interleaved: bool = False
    offset_rows: Tensor | None = None


TYPES = get_type_hints(Call)
SCHEMA_WORDS = {Tensor: "Tensor", Tensor | None: "Tensor?", str: "str", int: "SymInt", bool: "bool", float: "float"}
SCHEMA = ", ".join(f"{SCHEMA_WORDS[kind]} {name}" for name, kind in TYPES.items())
TENSORS = tuple(name for name, kind in TYPES.items() if kind in (Tensor, Tensor | None))
LEARNED = ("q", "k", "v", "table", "query_scores", "key_scores", "pair_bias", "query_rows2", "key_rows2", "cls", "offset_rows")


class Strided(NamedTuple):
    """A tensor and its strides in elements, as a kernel takes them."""

    at: Tensor
    stride: tuple[int, ...]


class Parts(NamedTuple):
    """What some mechanisms read or fill in a tile besides the scores; a kernel compiles no code for what is None.

    ``d_`` is the gradient of what follows: of ``mass`` it is given, of the others it is filled. ``class_count`` is C where ``classes``
    are given for each pair, ``offset_count`` how many ``offset_rows`` there are, ``pairs`` is P where less than all channels turn, and
    ``interleaved`` is None or anything; ``scratch`` is a slab of memory for each program.
    """

    class_of: Strided | None = None
    classes: Strided | None = None
    class_count: int = 0
    query_scores: Strided | None = None
    key_scores: Strided | None = None
    pair_bias: Strided | None = None
    mass: Strided | None = None
    d_mass: Strided | None = None
    d_query_scores: Strided | None = None
    d_key_scores: Strided | None = None
    d_pair_bias: Strided | None = None
    query_rows2: Strided | None = None
    key_rows2: Strided | None = None
    cls: Strided | None = None
    cls_position: int = 0
    query_turns: Strided | None = None
    key_turns: Strided | None = None
    pairs: int | None = None
    interleaved: int | None = None
    offset_rows: Strided | None = None
    d_query_rows2: Strided | None = None
    d_key_rows2: Strided | None = None
    d_cls: Strided | None = None
    offset_count: int = 0
    scratch: Tensor | None = None
