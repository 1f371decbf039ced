"""Positional tables of released models, with their licence. Read ``README.md`` beside the files."""

from importlib.resources import files

import numpy as np


def mpnet_bias() -> np.ndarray:
    """[32 buckets, 12 heads] float32: the relative attention bias of all-mpnet-base-v2 (bidirectional, max distance 128)."""
    with files(__name__).joinpath("all_mpnet_base_v2_relative_attention_bias.npz").open("rb") as f:
        return np.load(f, allow_pickle=False)["weight"]


def minilm_positions() -> np.ndarray:
    """[512 positions, 384] float32: the position table of all-MiniLM-L6-v2, whose numbers were rounded to float16 when they were copied."""
    with files(__name__).joinpath("all_minilm_l6_v2_position_embeddings.npz").open("rb") as f:
        return np.load(f, allow_pickle=False)["weight"].astype(np.float32)
