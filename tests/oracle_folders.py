"""Folders of arrays for the runner's own tests, computed here by formulas that share no code with the library."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import numpy as np

ANNOTATED = {"repo": "harvardnlp/annotated-transformer", "file": "the_annotated_transformer.py", "function": "PositionalEncoding"}
T5_BIAS = {"repo": "huggingface/transformers", "file": "models/t5/modeling_t5.py", "function": "T5Attention.compute_bias"}
T5_BUCKET = {**T5_BIAS, "function": "T5Attention._relative_position_bucket"}
T5_ATTENTION = {**T5_BIAS, "function": "T5Attention.forward"}
SLOPES = {"repo": "ofirpress/attention_with_linear_biases", "file": "fairseq/models/transformer.py", "function": "get_slopes"}
BLOOM = {"repo": "huggingface/transformers", "file": "models/bloom/modeling_bloom.py", "function": "BloomAttention.forward"}
AXIAL = {"repo": "axial-positional-embedding (PyPI)", "file": "axial_positional_embedding", "function": "AxialPositionalEmbedding"}
MAE = {"repo": "facebookresearch/mae", "file": "util/pos_embed.py", "function": "get_2d_sincos_pos_embed"}
DETR = {"repo": "huggingface/transformers", "file": "models/detr/modeling_detr.py", "function": "DetrSinePositionEmbedding"}
FLOAT64 = {"rtol": 1e-9, "atol": 1e-10}
Parts = tuple[str, dict, dict, dict, dict]  # mechanism, source, settings, arrays, tolerance


def write(folder: Path, *cases: Parts) -> Path:
    """A manifest and its archives; case n is called "case-n"."""
    entries = []
    for number, (mechanism, source, settings, arrays, tolerance) in enumerate(cases):
        file = f"{mechanism}/case-{number}.npz"
        (folder / mechanism).mkdir(parents=True, exist_ok=True)
        np.savez(folder / file, **arrays)
        described = {name: {"shape": list(np.shape(a)), "dtype": str(np.asarray(a).dtype)} for name, a in arrays.items()}
        entries.append({"mechanism": mechanism, "case": f"case-{number}", "file": file, "source": source, "settings": settings,
                        "arrays": described, "tolerance": tolerance, "sha256": hashlib.sha256((folder / file).read_bytes()).hexdigest()})
    (folder / "manifest.json").write_text(json.dumps({"entries": entries}))
    return folder


def sinusoid(length: int, d_model: int) -> np.ndarray:
    table = np.empty((length, d_model))
    for t in range(length):
        for c in range(d_model):
            angle = t / 10000.0 ** ((c - c % 2) / d_model)
            table[t, c] = np.cos(angle) if c % 2 else np.sin(angle)
    return table


def t5_class(offset: int, buckets: int, reach: int, bidirectional: bool) -> int:
    """Raffel et al.'s rule for key minus query, in rational arithmetic."""
    base = 0
    if bidirectional:
        buckets //= 2
        base, distance = (buckets if offset > 0 else 0), abs(offset)
    else:
        distance = max(-offset, 0)
    exact = buckets // 2
    if distance < exact:
        return base + distance
    steps = 0
    while steps + 1 < buckets - exact and Fraction(distance, exact) ** (buckets - exact) >= Fraction(reach, exact) ** (steps + 1):
        steps += 1
    return base + exact + steps


def slopes(heads: int) -> list[float]:
    """Press et al.'s list, by recursion on the power of two below."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8.0 * h / heads) for h in range(1, heads + 1)]
    lower = 1 << (heads.bit_length() - 1)
    return slopes(lower) + slopes(2 * lower)[::2][: heads - lower]


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def heads_of(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def sinusoid_case(length: int = 23, d_model: int = 12) -> Parts:
    table = sinusoid(length, d_model)[None]
    return ("sinusoidal", ANNOTATED, {"max_len": length, "d_model": d_model}, {"pe_f64": table, "pe_f32": table.astype(np.float32)},
            {"pe_f64": {"rtol": 1e-12, "atol": 1e-12}, "pe_f32": {"rtol": 1e-5, "atol": 1e-6}})


def bucket_case(buckets: int, reach: int, bidirectional: bool) -> Parts:
    relative = np.arange(-2 * reach, 2 * reach + 1)
    classes = np.array([t5_class(int(r), buckets, reach, bidirectional) for r in relative])
    return ("t5", T5_BUCKET, {"bidirectional": bidirectional, "num_buckets": buckets, "max_distance": reach},
            {"relative_position": relative, "bucket_hf": classes, "bucket_t5x": classes.astype(np.int32), "bucket_exact": classes},
            {"rtol": 0, "atol": 0})


def bias_case(queries: int = 5, keys: int = 31, offset: int = 26, heads: int = 7, buckets: int = 12, reach: int = 40) -> Parts:
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(buckets, heads))
    relative = np.arange(keys)[None] - (offset + np.arange(queries))[:, None]
    classes = np.vectorize(lambda r: t5_class(int(r), buckets, reach, False))(relative)
    counts = np.bincount(classes.ravel(), minlength=buckets)
    arrays = {"weight": weight, "relative_position": relative, "bucket": classes, "bias": weight[classes].transpose(2, 0, 1)[None],
              "grad_weight": 2 * weight * counts[:, None]}
    settings = {"dec": True, "nb": buckets, "md": reach, "H": heads, "Q": queries, "K": keys, "off": offset, "bidirectional": False}
    return "t5", T5_BIAS, settings, arrays, {"default": FLOAT64}


def t5_attention_case(causal: bool, batch: int = 3, length: int = 7, heads: int = 5, width: int = 4, buckets: int = 12, reach: int = 40) -> Parts:
    """No name says encoder or decoder: the visibility does."""
    rng = np.random.default_rng(2)
    inner = heads * width
    x, table = rng.normal(size=(batch, length, inner)), rng.normal(size=(buckets, heads))
    W = {name: rng.normal(size=(inner, inner)) / 4 for name in ("Wq", "Wk", "Wv", "Wo")}
    visible = np.ones((batch, 1, length, length), bool)
    visible[1, ..., length - 2 :] = False
    if causal:
        visible &= np.tri(length, dtype=bool)
    classes = np.array([[t5_class(j - i, buckets, reach, not causal) for j in range(length)] for i in range(length)])
    bias = table[classes].transpose(2, 0, 1)[None]
    q, k, v = (heads_of(x @ W[name].T, heads) for name in ("Wq", "Wk", "Wv"))
    weights = softmax(np.where(visible, q @ k.transpose(0, 1, 3, 2) + bias, -np.inf))
    out = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, inner) @ W["Wo"].T
    settings = {"B": batch, "S": length, "D": inner, "kv": width, "H": heads, "nb": buckets, "md": reach}
    return ("t5", T5_ATTENTION, settings, {"x": x, "visible": visible, **W, "rel_weight": table, "position_bias": bias, "attn_weights": weights,
                                           "out": out}, FLOAT64)


def slopes_case(*head_counts: int) -> Parts:
    arrays = {"heads": np.array(head_counts)}
    for n in head_counts:
        arrays |= {f"official_h{n}": np.array(slopes(n)), f"bloom_h{n}": np.array(slopes(n), np.float32), f"mpt_h{n}": np.array(slopes(n), np.float32)}
    return "alibi", SLOPES, {"heads": list(head_counts)}, arrays, {"official": {"rtol": 1e-12, "atol": 0}, "bloom/mpt": {"rtol": 2e-6, "atol": 0}}


def bloom_case(heads: int = 10, width: int = 3) -> Parts:
    """Left, right and no padding; padded rows see themselves, and padding keys count as position 0."""
    rng = np.random.default_rng(3)
    mask = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    batch, length, inner = *mask.shape, heads * width
    x = rng.normal(size=(batch, length, inner))
    W = {f"W{n}": rng.normal(size=(inner, inner)) / 5 for n in "qkvo"} | {f"b{n}": rng.normal(size=inner) for n in "qkvo"}
    alibi = np.array(slopes(heads))[None, :, None, None] * ((mask.cumsum(1) - 1) * mask)[:, None, None]
    visible = ((np.tri(length, dtype=bool) & (mask == 1)[:, None]) | np.eye(length, dtype=bool))[:, None]
    q, k, v = (heads_of(x @ W[f"W{n}"].T + W[f"b{n}"], heads) for n in "qkv")
    weights = softmax(np.where(visible, q @ k.transpose(0, 1, 3, 2) / np.sqrt(width) + alibi, -np.inf))
    out = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, inner) @ W["Wo"].T + W["bo"]
    return ("alibi", BLOOM, {"B": batch, "T": length, "H": heads, "dh": width},
            {"x": x, "attention_mask": mask, "visible": visible, "alibi": alibi, "attn_probs": weights, "out": out, **W}, {"rtol": 2e-5, "atol": 2e-6})


def axial_case(shape: tuple[int, ...] = (3, 2, 2), widths: tuple[int, ...] = (1, 4, 2), length: int = 11) -> Parts:
    tables = {f"axis{n}": np.random.default_rng(4 + n).normal(size=(size, width)) for n, (size, width) in enumerate(zip(shape, widths))}
    cells = list(np.ndindex(*shape))[:length]
    out = np.array([np.concatenate([tables[f"axis{n}"][c] for n, c in enumerate(cell)]) for cell in cells])
    settings = {"axial_shape": list(shape), "axial_dims": list(widths), "dim": sum(widths), "n": length}
    return "multiaxis", AXIAL, settings, {**tables, "out": out[None]}, FLOAT64


def mae_case(grid: int = 5, width: int = 16) -> Parts:
    """Column sines, column cosines, row sines, row cosines; zeros for CLS."""
    half = sinusoid(grid, width // 2)
    half = np.concatenate((half[:, ::2], half[:, 1::2]), 1)
    rows = [np.zeros(width)] + [np.concatenate((half[c], half[r])) for r in range(grid) for c in range(grid)]
    return "multiaxis", MAE, {"grid": grid, "d": width, "cls_token": True}, {"pos_embed": np.array(rows)}, FLOAT64


def detr_case(rows: int = 4, cols: int = 5, features: int = 6) -> Parts:
    """Two images, the second smaller than the batch; the coordinates come as fractions of 2π."""
    mask, out = np.zeros((2, rows, cols), bool), np.empty((2, 2 * features, rows, cols))
    mask[0], mask[1, : rows - 1, : cols - 2] = True, True
    for b, r, c in np.ndindex(mask.shape):
        for block, (line, at) in enumerate(((mask[b, :, c], r), (mask[b, r], c))):
            t = line[: at + 1].sum() / (line.sum() + 1e-6) * 2 * np.pi
            for i in range(features):
                out[b, block * features + i, r, c] = (np.cos if i % 2 else np.sin)(t / 100.0 ** ((i - i % 2) / features))
    settings = {"num_position_features": features, "normalize": True, "scale": None, "temperature": 100}
    return "multiaxis", DETR, settings, {"mask": mask, "out": out}, FLOAT64
