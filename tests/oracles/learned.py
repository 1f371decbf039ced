"""Learned absolute tables of BERT, GPT-2, fairseq and ViT. Word embeddings and LayerNorm are the model's, built here around the lookup."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from positionlib import AttentionGeometry, Grid, GridResize, LearnedAbsolute, LearnedGrid
from positionlib.mechanisms.learned import position_ids_from_mask
from positionlib.terms import StateRows
from tests.oracles.case import Case

BERT = ("word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")


def bert(case: Case) -> None:
    """LayerNorm(word + token type + position). Word row 0 is the padding row: no gradient."""
    word, table, token_type, gain, offset = (case.take(f"param.{name}", grad=True) for name in BERT)
    input_ids, ids = case.take("input_ids"), case.take("position_ids")
    past = case.setting("past_length", default=0)
    if past and ids.shape == (1, input_ids.shape[1]):
        # Ids after a past are the source's own; without one they may have been given.
        case.check("position_ids", position_ids_from_mask(torch.ones_like(ids), "contiguous", past=past))
    x = F.embedding(input_ids, word, padding_idx=case.setting("pad_token_id", default=0)) + F.embedding(case.take("token_type_ids"), token_type)
    module = with_table(table)
    # One id for a whole slice is broadcast by the source; the library wants one a row.
    positioned = lookup(module, ids.expand(-1, input_ids.shape[1])).add_to(x)
    out = F.layer_norm(positioned, positioned.shape[-1:], gain, offset, case.setting("layer_norm_eps"))
    case.check("out", out)
    leaves = dict(zip(BERT, (word, module.weight, token_type, gain, offset)))
    case.check_gradients(out, {f"grad.{name}": leaf for name, leaf in leaves.items()})


def gpt2(case: Case) -> None:
    """wte[ids] + wpe[positions], without LayerNorm."""
    words, module = F.embedding(case.take("input_ids"), case.take("wte")), with_table(case.take("wpe"))
    length = words.shape[1]
    for name, start in (("h_default", 0), ("h_offset", case.setting("past", default=0))):
        case.check(name, module(AttentionGeometry.causal_self(length, start=start)).add_to(words))


def fairseq(case: Case) -> None:
    """Padding reads row padding_idx, which gets no gradient; tokens count from padding_idx + 1."""
    padding_idx, weight, tokens = case.setting("padding_idx"), case.take("weight"), case.take("tokens")
    mask = tokens != padding_idx
    positions = position_ids_from_mask(mask, "roberta", padding_idx=padding_idx)
    case.check("positions", positions)
    module = with_table(weight)
    rows = lookup(module, positions).rows
    out = torch.where(mask[..., None], rows, rows.detach())
    case.check("out", out)
    case.check_gradients(out, {"grad_weight": module.weight})
    # Position n - 1 of a table whose position 0 is row padding_idx + 1.
    newest = with_table(weight, row_offset=padding_idx + 1)(AttentionGeometry.decode(tokens.shape[1] - 1))
    case.check("out_incremental", newest.rows[None])


def vit(case: Case) -> None:
    """A square grid behind CLS, read at the image's own grid: bicubic to integer sizes, CLS copied."""
    table, patch = case.take("position_embeddings", grad=True), case.setting("patch_size")
    trained, image = (Grid({"row": rows // patch, "col": cols // patch}, "row_major", ("cls",))
                      for rows, cols in ([case.setting("image_size")] * 2, (case.setting("height"), case.setting("width"))))
    module = LearnedGrid(trained, table.shape[-1], resize=GridResize("bicubic", align_corners=False, antialias=False))
    out = torch.func.functional_call(module, {"weight": table[0]}, (AttentionGeometry.encoder(image.tokens), image)).rows[None]
    case.check("out", out)
    case.check_gradients(out, {"grad_position_embeddings": table})


def with_table(weight: Tensor, row_offset: int = 0) -> LearnedAbsolute:
    module = LearnedAbsolute(*weight.shape, row_offset=row_offset).to(weight.dtype)
    module.load_state_dict({"weight": weight.detach()})
    return module


def lookup(module: LearnedAbsolute, ids: Tensor) -> StateRows:
    return module(AttentionGeometry(ids, ids))


SOURCES = [
    ("modeling_bert.py", "BertEmbeddings", bert),
    ("modeling_gpt2.py", "GPT2Model", gpt2),
    ("learned_positional_embedding.py", "LearnedPositionalEmbedding", fairseq),
    ("modeling_vit.py", "ViTEmbeddings.interpolate_pos_encoding", vit),
]
