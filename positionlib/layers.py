"""Whole modules around a mechanism: self-attention with its projections, and the inputs that positions are added to.

    y = W_o · [attend(W_q x, W_k x, W_v x; mechanism(geometry))]_heads          with post_norm: LayerNorm(x + y)
    x = LayerNorm(words[ids] + types[token_types] + positions)                  BERT's build order (Devlin et al. 2018, section 3)
    x = W words[ids] + positions                                                GPT-2, OPT; MPNet with a LayerNorm behind
    x = [cls; patches] + positions                                              ViT (Dosovitskiy et al. 2021, equation 1)

They hold what a checkpoint of a layer holds, so that a mechanism can be compared and timed as the module that a model runs.
Dropout is left out: it is no part of a checkpoint and zero at inference.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.attention import attend
from positionlib.contract import checked
from positionlib.errors import PositionContractError, PositionRangeError, require, require_count
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms import BoxEmbedding, DeBERTa, GraphBias, Grid, GridBias, LearnedAbsolute, LearnedGrid
from positionlib.rules import readable
from positionlib.terms import Term


class SelfAttention(nn.Module):
    """module(x, geometry): the rows x are queries, keys and values, positioned by the mechanism's term.

    Parameters
    ----------
    mechanism : makes the term of every call, and may be another layer's own (T5 has one for a stack). None is content alone, as in
        a model whose coordinates are in x already. Disentangled attention with shared projections gets this layer's.
    d_head : width of a head, when it is not d_model / heads (some T5).
    kv_heads : heads of keys and values, which divide the others; None for as many.
    bias : whether the four projections have one.
    post_norm : ε of a LayerNorm over x + y, with which the attention blocks of BERT and DeBERTa end; None returns y.

    Raises
    ------
    PositionContractError
        sizes that are no counts or do not divide; an x that is not [B, N, d_model]; whatever the mechanism and attend() refuse.
    """

    @checked
    def __init__(self, d_model: int, heads: int, mechanism: nn.Module | None, *, d_head: int | None = None, kv_heads: int | None = None,
                 bias: bool = True, post_norm: float | None = None) -> None:
        super().__init__()
        self.heads, d_model = require_count("heads", heads), require_count("d_model", d_model)
        if d_head is None:
            require(d_model % heads == 0, "d_model", d_model, f"a multiple of {heads} heads", "Or name d_head.")
        self.kv_heads = heads if kv_heads is None else require_count("kv_heads", kv_heads)
        require(heads % self.kv_heads == 0, "kv_heads", kv_heads, f"a divisor of {heads} heads", "Grouped queries share whole key heads.")
        width = d_model // heads if d_head is None else require_count("d_head", d_head)
        self.q, self.k, self.v = (nn.Linear(d_model, count * width, bias=bias) for count in (heads, self.kv_heads, self.kv_heads))
        self.o = nn.Linear(heads * width, d_model, bias=bias)
        self.mechanism = mechanism
        self.norm = None if post_norm is None else nn.LayerNorm(d_model, eps=post_norm)

    @checked
    def forward(self, x: Float[Tensor, "B N D"], geometry: AttentionGeometry, term: Term | None = None) -> Float[Tensor, "B N D"]:
        """One layer's attention over its own rows. ``term`` is the call's, of a mechanism that asks for more than a geometry (boxes, graphs)."""
        weight = self.q.weight
        require(x.shape[-1] == self.q.in_features and (x.dtype, x.device) == (weight.dtype, weight.device), "x", x,
                f"a tensor [B, N, {self.q.in_features}], {weight.dtype} on {weight.device}", "Batch first, the model's width last, its dtype and its device.")
        y = self.o(self._attended(x, geometry, self._term(geometry) if term is None else term))
        return y if self.norm is None else self.norm(x + y)

    def _attended(self, x: Float[Tensor, "B N D"], geometry: AttentionGeometry, term: Term | None) -> Float[Tensor, "B N HD"]:
        """The heads side by side. Queries, keys and values end here, before the last projection takes its memory."""
        heads = (self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads)
        q, k, v = (projection(x).unflatten(-1, (count, -1)).transpose(1, 2) for projection, count in heads)
        return attend(q, k, v, term, geometry).transpose(1, 2).flatten(2)

    def _term(self, geometry: AttentionGeometry):
        if isinstance(self.mechanism, DeBERTa) and self.mechanism.projections == "shared":
            return self.mechanism(geometry, query_proj=self.q, key_proj=self.k)
        if isinstance(self.mechanism, GridBias | GraphBias):
            raise PositionContractError("term", None, f"the term of this call, from {type(self.mechanism).__name__}",
                                        "Call the mechanism with the coordinates or the graph, and pass what it returns.")
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
        return self.norm(self._positioned(ids, geometry, token_types))

    def _positioned(self, ids: Tensor, geometry: AttentionGeometry, token_types: Tensor | None) -> Float[Tensor, "B N D"]:
        require(geometry.query_length == ids.shape[1], "query_positions", geometry.query_length, f"{ids.shape[1]} positions, one a row",
                "Build the geometry of this very call.")
        types = torch.zeros_like(ids) if token_types is None else token_types
        # In this order: float addition is not associative, and the released code adds the positions last.
        x = _rows("ids", self.words, ids) + _rows("token_types", self.types, types)
        return x if self.positions is None else self.positions(geometry).add_to(x)


class PageInput(BertInput):
    """module(ids, geometry, boxes, token_types): as :class:`BertInput`, with the rows of the words' boxes before the LayerNorm."""

    @checked
    def __init__(self, words: int, token_types: int, positions: LearnedAbsolute, boxes: BoxEmbedding, *, eps: float, padding_id: int | None = None) -> None:
        super().__init__(words, token_types, positions.weight.shape[1], positions, eps=eps, padding_id=padding_id)
        self.boxes = boxes

    @checked
    def forward(self, ids: Int[Tensor, "B N"], geometry: AttentionGeometry, boxes: Int[Tensor, "B N 4"],
                token_types: Int[Tensor, "B N"] | None = None) -> Float[Tensor, "B N D"]:
        return self.norm(self.boxes(boxes).add_to(self._positioned(ids, geometry, token_types)))


class TokenInput(nn.Module):
    """module(ids, geometry): words, projected where the model's words are narrower than its states, then positions, then a LayerNorm.

    Parameters
    ----------
    d_words : width of a word's row, when a projection without a bias brings it to the width of the positions (OPT 350M); None for none.
    eps : of the LayerNorm, or None where there is none (GPT-2, OPT).

    Raises
    ------
    PositionRangeError
        a word outside its table, or a position without a row.
    PositionContractError
        ids that are no integers, or not [B, N]; a geometry of another length.
    """

    @checked
    def __init__(self, words: int, positions: LearnedAbsolute, *, d_words: int | None = None, eps: float | None = None) -> None:
        super().__init__()
        d_model = positions.weight.shape[1]
        self.words = nn.Embedding(require_count("words", words), d_model if d_words is None else require_count("d_words", d_words))
        self.project = None if d_words is None else nn.Linear(d_words, d_model, bias=False)
        self.positions, self.norm = positions, None if eps is None else nn.LayerNorm(d_model, eps=eps)

    @checked
    def forward(self, ids: Int[Tensor, "B N"], geometry: AttentionGeometry) -> Float[Tensor, "B N D"]:
        """The first layer's input."""
        require(geometry.query_length == ids.shape[1], "query_positions", geometry.query_length, f"{ids.shape[1]} positions, one a row",
                "Build the geometry of this very call.")
        x = _rows("ids", self.words, ids)
        x = self.positions(geometry).add_to(x if self.project is None else self.project(x))
        return x if self.norm is None else self.norm(x)


class PatchInput(nn.Module):
    """module(pixels): one token a patch behind a CLS token, each with its row of the learned grid.

    Parameters
    ----------
    positions : the table of the grid that the model was trained on, row-major, with one leading token.
    patch : height and width of a patch.
    eps : of a LayerNorm behind the positions, or None where there is none (ViT).

    Raises
    ------
    PositionContractError
        an image that is not [B, channels, height, width], whose sides are no multiple of the patch's, or of another grid than the
        table's where that has no resize rule.
    """

    @checked
    def __init__(self, channels: int, patch: tuple[int, int], positions: LearnedGrid, *, eps: float | None = None) -> None:
        super().__init__()
        d_model = positions.weight.shape[1]
        require(isinstance(patch, (tuple, list)) and len(patch) == 2, "patch", patch, "(height, width)", "Name both sides.")
        self.patch = tuple(require_count("patch", side) for side in patch)
        require(len(positions.grid.leading) == 1, "positions.grid", str(positions.grid), "one leading token", "CLS stands before the patches.")
        self.projection = nn.Conv2d(require_count("channels", channels), d_model, self.patch, self.patch)
        self.cls, self.positions = nn.Parameter(torch.zeros(d_model)), positions
        self.norm = None if eps is None else nn.LayerNorm(d_model, eps=eps)

    @checked
    def forward(self, pixels: Float[Tensor, "B C height width"]) -> Float[Tensor, "B N D"]:
        """The first layer's input, CLS first and then the patches row by row."""
        rows, cols = (side // step for side, step in zip(pixels.shape[-2:], self.patch))
        weight = self.projection.weight
        require(pixels.shape[1] == weight.shape[1] and (rows * self.patch[0], cols * self.patch[1]) == tuple(pixels.shape[-2:]) and rows * cols > 0
                and pixels.dtype == weight.dtype, "pixels", pixels, f"[B, {weight.shape[1]}, height, width] of {weight.dtype}, in patches of {self.patch}",
                "Resize or pad the image: a strip that fills no patch would be dropped.")
        patches = self.projection(pixels).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(len(patches), 1, -1), patches), 1)
        grid = Grid({"row": rows, "col": cols}, "row_major", self.positions.grid.leading)
        x = self.positions(AttentionGeometry.encoder(grid.tokens, device=x.device), grid).add_to(x)
        return x if self.norm is None else self.norm(x)


def _rows(field: str, table: nn.Embedding, ids: Tensor) -> Tensor:
    if readable(ids):
        for value in (int(ids.min()), int(ids.max())):
            if not 0 <= value < table.num_embeddings:
                raise PositionRangeError(field, value, f"0..{table.num_embeddings - 1}", "Use the tokenizer that belongs to this table.")
    return table(ids)
