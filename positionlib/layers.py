"""Whole modules around a mechanism: self-attention with its projections, and BERT's input.

    y = W_o · [attend(W_q x, W_k x, W_v x; mechanism(geometry))]_heads          with post_norm: LayerNorm(x + y)
    x = LayerNorm(words[ids] + types[token_types] + positions)                  BERT's build order (Devlin et al. 2018, section 3)

They hold what a checkpoint of a layer holds, so that a mechanism can be compared and timed as the module that a model runs.
Dropout is left out: it is no part of a checkpoint and zero at inference.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.attention import attend
from positionlib.contract import checked
from positionlib.errors import PositionRangeError, require, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms import DeBERTa, LearnedAbsolute
from positionlib.rules import readable


class SelfAttention(nn.Module):
    """module(x, geometry): the rows x are queries, keys and values, positioned by the mechanism's term.

    Parameters
    ----------
    mechanism : makes the term of every call, and may be another layer's own (T5 has one for a stack). None is content alone, as in
        a model whose coordinates are in x already. Disentangled attention with shared projections gets this layer's.
    d_head : width of a head, when it is not d_model / heads (some T5).
    bias : whether the four projections have one.
    post_norm : ε of a LayerNorm over x + y, with which the attention blocks of BERT and DeBERTa end; None returns y.

    Raises
    ------
    PositionContractError
        sizes that are no counts or do not divide; an x that is not [B, N, d_model]; whatever the mechanism and attend() refuse.
    """

    @checked
    def __init__(self, d_model: int, heads: int, mechanism: nn.Module | None, *, d_head: int | None = None, bias: bool = True,
                 post_norm: float | None = None) -> None:
        super().__init__()
        self.heads, d_model = require_count("heads", heads), require_count("d_model", d_model)
        if d_head is None:
            require(d_model % heads == 0, "d_model", d_model, f"a multiple of {heads} heads", "Or name d_head.")
        inner = heads * (d_model // heads if d_head is None else require_count("d_head", d_head))
        self.q, self.k, self.v = (nn.Linear(d_model, inner, bias=bias) for _ in range(3))
        self.o = nn.Linear(inner, d_model, bias=bias)
        self.mechanism = mechanism
        self.norm = None if post_norm is None else nn.LayerNorm(d_model, eps=post_norm)

    @checked
    def forward(self, x: Float[Tensor, "B N D"], geometry: AttentionGeometry) -> Float[Tensor, "B N D"]:
        """One layer's attention over its own rows."""
        weight = self.q.weight
        require(x.shape[-1] == self.q.in_features and (x.dtype, x.device) == (weight.dtype, weight.device), "x", x,
                f"a tensor [B, N, {self.q.in_features}], {weight.dtype} on {weight.device}", "Batch first, the model's width last, its dtype and its device.")
        y = self.o(self._attended(x, geometry))
        return y if self.norm is None else self.norm(x + y)

    def _attended(self, x: Float[Tensor, "B N D"], geometry: AttentionGeometry) -> Float[Tensor, "B N HD"]:
        """The heads side by side. Queries, keys and values end here, before the last projection takes its memory."""
        q, k, v = (projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for projection in (self.q, self.k, self.v))
        return attend(q, k, v, self._term(geometry), geometry).transpose(1, 2).flatten(2)

    def _term(self, geometry: AttentionGeometry):
        if isinstance(self.mechanism, DeBERTa) and self.mechanism.projections == "shared":
            return self.mechanism(geometry, query_proj=self.q, key_proj=self.k)
        return None if self.mechanism is None else self.mechanism(geometry)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"


class BertInput(nn.Module):
    """module(ids, geometry, token_types): BERT's build order, LayerNorm last. The coordinate is the geometry's, added once.

    Parameters
    ----------
    positions : the learned table, or None where attention owns the positions (relative_key, relative_key_query).
    padding_id : the word that gets no gradient, or None.
    eps : of the LayerNorm.

    Raises
    ------
    PositionRangeError
        a word or token type outside its table, or a position without a row.
    PositionContractError
        ids that are no integers, or not [B, N]; a geometry of another length.
    """

    @checked
    def __init__(self, words: int, token_types: int, d_model: int, positions: LearnedAbsolute | None, *, eps: float, padding_id: int | None = None) -> None:
        super().__init__()
        words, d_model = require_count("words", words), require_count("d_model", d_model)
        require(padding_id is None or 0 <= padding_id < words, "padding_id", padding_id, "a word, or None", "Take it from the tokenizer.")
        self.words = nn.Embedding(words, d_model, padding_idx=padding_id)
        self.types = nn.Embedding(require_count("token_types", token_types), d_model)
        self.positions, self.norm = positions, nn.LayerNorm(d_model, eps=eps)

    @checked
    def forward(self, ids: Int[Tensor, "B N"], geometry: AttentionGeometry, token_types: Int[Tensor, "B N"] | None = None) -> Float[Tensor, "B N D"]:
        """The first layer's input. Without ``token_types`` every row is of type 0."""
        require(geometry.query_length == ids.shape[1], "query_positions", geometry.query_length, f"{ids.shape[1]} positions, one a row",
                "Build the geometry of this very call.")
        types = torch.zeros_like(ids) if token_types is None else token_types
        # In this order: float addition is not associative, and the released code adds the positions last.
        x = _rows("ids", self.words, ids) + _rows("token_types", self.types, types)
        return self.norm(x if self.positions is None else self.positions(geometry).add_to(x))


def _rows(field: str, table: nn.Embedding, ids: Tensor) -> Tensor:
    if readable(ids):
        for value in (int(ids.min()), int(ids.max())):
            if not 0 <= value < table.num_embeddings:
                raise PositionRangeError(field, value, f"0..{table.num_embeddings - 1}", "Use the tokenizer that belongs to this table.")
    return table(ids)
