"""Offset tiles: one tile of a score tensor from its two starts, beside what its own row and column numbers would give."""

from __future__ import annotations

import torch

from positionlib.geometry import AttentionGeometry
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Matrices, Matrix

SIZE, STARTS = 4, (0, 4, 8)
SIGNS = ("key_minus_query", "query_minus_key")


def _tile(q_start: int, k_start: int, sign: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(offsets, visible) of the 4 × 4 tile, [4, 4] each, under a causal mask."""
    geometry = AttentionGeometry(q_start + torch.arange(SIZE), k_start + torch.arange(SIZE), causal=True)
    return geometry.offsets(sign), geometry.visible


def _like(q_start: int, k_start: int) -> list[str]:
    """The other tiles of the 12 × 12 matrix that hold the same offsets."""
    return [f"({q}, {k})" for q in STARTS for k in STARTS if k - q == k_start - q_start and (q, k) != (q_start, k_start)]


def _compute(q_start, k_start, sign):
    offsets, visible = _tile(q_start, k_start, sign)
    local, _ = _tile(0, 0, sign)
    wrong = [tuple(cell) for cell in (offsets != local).nonzero().tolist()]
    hidden, seen = ~visible.numpy(), int(visible.sum())
    rows, columns = [f"q{q_start + i}" for i in range(SIZE)], [f"k{k_start + j}" for j in range(SIZE)]
    own_rows, own_columns = [f"row {i}" for i in range(SIZE)], [f"col {j}" for j in range(SIZE)]
    named = "k − q" if sign == SIGNS[0] else "q − k"
    return [
        Badges([Badge("k_start − q_start", k_start - q_start), Badge("pairs a causal mask leaves", f"{seen} of 16"),
                Badge("tile", "skip it" if not seen else "no mask needed" if seen == 16 else "mask inside", "warn" if not seen else "ok"),
                Badge("offsets wrong when counted locally", f"{len(wrong)} of 16", "bad" if wrong else "ok")]),
        Matrices([Matrix(f"{named} from both starts", offsets.numpy(), 0, None, (), hidden, rows, columns, "hatched: the mask hides the pair"),
                  Matrix(f"{named} from the tile's own numbers", local.numpy(), 0, None, wrong, None, own_rows, own_columns, "marked: wrong here")]),
    ]


def _caption(q_start, k_start, sign):
    offsets, visible = _tile(q_start, k_start, sign)
    seen, like = int(visible.sum()), _like(q_start, k_start)
    same = "No other tile holds these offsets. "
    if like:
        same = f"Tile{'s' if len(like) > 1 else ''} {', '.join(like)} hold{'' if len(like) > 1 else 's'} the same offsets. "
    told = ("Every key lies after every query: a causal loop never reads this tile." if not seen else
            "Every key lies before every query: the causal mask changes nothing here." if seen == SIZE * SIZE else
            "The diagonal runs through this tile: here the mask decides pair by pair.")
    corner = f"Corner: {int(offsets[0, 0])}. ".replace("-", "−")
    return corner + same + told + (" Its own numbers are right, since both starts are equal." if q_start == k_start else "")


def offset_tiles() -> Explorer:
    """Which tiles hold the same offsets, and which may a causal loop skip? At rest: queries 8 to 11 read keys 4 to 7."""
    return Explorer(
        name="offset-tiles", title="A tile and its two starts", question="Which tiles hold the same offsets, and which may a causal loop skip?",
        controls=[Control("q_start", "First query", STARTS), Control("k_start", "First key", STARTS),
                  Control("sign", "Sign", SIGNS, labels=["key minus query", "query minus key"])],
        compute=_compute, caption=_caption, start={"q_start": 8, "k_start": 4, "sign": "key_minus_query"})
