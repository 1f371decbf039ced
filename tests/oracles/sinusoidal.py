"""Sinusoidal tables of six sources, each with its own layout, frequency ladder and rule for odd widths."""

from __future__ import annotations

import torch

from positionlib import AttentionGeometry, Sinusoidal
from positionlib.mechanisms.learned import position_ids_from_mask
from positionlib.mechanisms.sinusoidal import sinusoidal_rows, sinusoidal_table
from tests.oracles.case import Case

FAIRSEQ = {"layout": "concatenated", "ladder": "endpoint", "odd_width": "zero_pad"}


def annotated_transformer(case: Case) -> None:
    d_model = case.setting("d_model")
    for name, dtype in (("pe_f32", torch.float32), ("pe_f64", torch.float64)):
        if case.has(name):
            case.check(name, sinusoidal_table(case.setting("max_len"), d_model, output_dtype=dtype)[None])
    if case.has("positions"):
        rows = sinusoidal_rows(case.take("positions"), d_model, output_dtype=torch.float64)
        case.check("pe_rows_f32", rows.float())
        case.check("pe_rows_f64", rows)
        if case.has("pe_rows_f32", "max_abs_f32_minus_f64_whole_table"):
            measured = (torch.from_numpy(case.arrays["pe_rows_f32"]).double() - rows).abs().max()
            case.check_bound("max_abs_f32_minus_f64_whole_table", float(measured))
    if case.has("x"):
        x = case.take("x", grad=True)
        y = Sinusoidal(d_model, output_dtype=x.dtype).add(x, AttentionGeometry.encoder(x.shape[1]))
        case.check("y", y)
        case.check_gradients(y, {"grad_x": x})


def fairseq(case: Case) -> None:
    """Row padding_idx of the table is zero; token positions start after it."""
    dim, padding_idx = case.setting("dim"), case.setting("padding_idx")
    for name, pad in (("table", padding_idx), ("table_nopad", None)):
        if case.has(name):
            table = sinusoidal_table(case.setting("num_embeddings"), dim, **FAIRSEQ)
            if pad is not None:
                table[pad] = 0.0
            case.check(name, table)
    if case.has("tokens"):
        tokens = case.take("tokens")
        mask = tokens != padding_idx
        positions = position_ids_from_mask(mask, "roberta", padding_idx=padding_idx)
        case.check("positions", positions)
        case.check("out", sinusoidal_rows(positions, dim, **FAIRSEQ).masked_fill(~mask[..., None], 0.0))
        newest = torch.full((tokens.shape[0], 1), padding_idx + tokens.shape[1])
        case.check("out_incremental", sinusoidal_rows(newest, dim, **FAIRSEQ))


def tensor2tensor(case: Case) -> None:
    length, channels = case.setting("length"), case.setting("channels")
    # The source guards its division: one pair has frequency 1, which is the paper's ladder for one pair.
    ladder = "endpoint" if channels >= 4 else "paper"
    table = sinusoidal_table(length, channels, offset=case.setting("start_index", default=0), layout="concatenated", ladder=ladder,
                             odd_width="zero_pad")
    case.check("signal", table[None])


def marian(case: Case) -> None:
    case.check("weight", sinusoidal_table(case.setting("n"), case.setting("d"), layout="concatenated", odd_width="drop_last_cosine"))


def positional_encodings(case: Case) -> None:
    case.check("pe", sinusoidal_table(case.setting("n"), case.setting("d"), odd_width="next_even", output_dtype=torch.float64)[None])


def transformer_xl(case: Case) -> None:
    """Row 0 is the farthest distance."""
    distances, clamp = torch.arange(case.setting("klen") - 1, -1, -1), case.setting("clamp_len", default=-1)
    if clamp > 0:
        distances = distances.clamp(max=clamp)
    case.check("pos_seq", distances.double())
    rows = sinusoidal_rows(distances, case.setting("demb"), layout="concatenated", output_dtype=torch.float64)
    case.check("pos_emb", rows[:, None])


SOURCES = [
    ("the_annotated_transformer.py", "PositionalEncoding", annotated_transformer),
    ("sinusoidal_positional_embedding.py", "SinusoidalPositionalEmbedding", fairseq),
    ("common_attention.py", "get_timing_signal_1d", tensor2tensor),
    ("modeling_marian.py", "MarianSinusoidalPositionalEmbedding", marian),
    ("torch_encodings.py", "PositionalEncoding1D", positional_encodings),
    ("mem_transformer.py", "PositionalEmbedding", transformer_xl),
]
