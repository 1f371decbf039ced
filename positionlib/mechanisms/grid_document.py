"""Boxes on a page (Xu et al. 2020, section 2.2; LayoutLM in transformers 4.57).

    row = X[x0] + Y[y0] + X[x1] + Y[y1] + H[y1 − y0] + W[x1 − x0]            LayoutLM
    row = [X[x0], Y[y0], X[x1], Y[y1], H[y1 − y0], W[x1 − x0]]               LayoutLMv2, v3 (transformers 5.24)

Contract
- coordinate source: boxes x0, y0, x1, y1 in units of 1/range of their own page, y downwards; the reading order is another coordinate.
- changed tensor: the input state, once, beside the rows of the reading order.
- shape: rows [*B, N, D] from boxes [*B, N, 4].
- parameter or buffer state: tables x, y, h, w, each [size, D], or [size, d_model] and [size, d_side] side by side; left and right edges
  share x, upper and lower ones share y.
- training path: an edge's row collects the gradient of all tokens with that edge.
- runtime offset: none; a box belongs to its page, and moves with its token.
- failure modes: pixels of another page size, exchanged edges, a table of 1000 rows for 0..1000, boxes left behind by a sort.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.contract import KINDS, checked, is_finite_number
from positionlib.errors import PositionContractError, PositionRangeError, require, require_count
from positionlib.mechanisms.grid import add_wide
from positionlib.rules import readable
from positionlib.terms import StateRows

EDGES = ("x0", "y0", "x1", "y1")


def normalise_boxes(page: tuple[float, float], boxes: Tensor, range: int) -> Int[Tensor, "*B 4"]:
    """Boxes x0, y0, x1, y1 on a page (width, height), in the page's own unit, as int64 ⌊range · x / width⌋ and ⌊range · y / height⌋.

    Raises
    ------
    PositionRangeError
        a coordinate that is NaN or off the page, naming box and coordinate. Nothing is clamped.
    PositionContractError
        a box whose right edge lies left of its left one, or whose lower edge above its upper one; what is no box or page.
    """
    number = isinstance(boxes, Tensor) and boxes.dtype in (*KINDS["Float"][1], *KINDS["Int"][1]) and boxes.layout == torch.strided
    require(number and boxes.ndim >= 1 and boxes.shape[-1] == 4, "boxes", boxes, "a tensor [*B, 4]: x0, y0, x1, y1",
            "Give two corners, not a corner and a size.")
    sized = isinstance(page, (tuple, list)) and len(page) == 2 and all(is_finite_number(side) and side > 0 for side in page)
    require(sized, "page", page, "(width, height) above 0", "Name the page that owns the boxes.")
    require_count("range", range)
    boxes = boxes.to(torch.float64)
    sides = boxes.new_tensor([*page, *page])
    _check_boxes(boxes, sides, "Pass the page that owns this box, or repair the box: it is not clamped.")
    return (boxes * range / sides).floor().long()  # the product of integers is exact, a quotient first would lose some


class BoxEmbedding(nn.Module):
    """module(boxes) returns :class:`StateRows` [*B, N, D]. ``size`` is the largest coordinate plus one: 1001 for a range of 1000.

    Parameters
    ----------
    d_model : width of an edge's row.
    d_side : width of a height's or width's row where the six stand side by side, D = 4 · d_model + 2 · d_side; None adds them.

    Raises
    ------
    PositionRangeError
        a coordinate without a row, naming box and coordinate.
    PositionContractError
        an inverted box, which has no row for its width or height.
    """

    def __init__(self, size: int, d_model: int, *, d_side: int | None = None) -> None:
        super().__init__()
        self.side_by_side, size, d_model = d_side is not None, require_count("size", size), require_count("d_model", d_model)
        d_side = require_count("d_side", d_side) if self.side_by_side else d_model
        self.x, self.y, self.h, self.w = (nn.Parameter(torch.empty(size, width)) for width in (d_model, d_model, d_side, d_side))
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)

    @checked
    def forward(self, boxes: Int[Tensor, "*B N 4"]) -> StateRows:
        """Rows of the boxes' tokens; ``boxes`` as :func:`normalise_boxes` returns them."""
        _check_boxes(boxes, boxes.new_full((4,), len(self.x) - 1), "Normalise the boxes to the table's range, with their own page.")
        x0, y0, x1, y1 = boxes.unbind(-1)
        parts = ((self.x, x0), (self.y, y0), (self.x, x1), (self.y, y1), (self.h, y1 - y0), (self.w, x1 - x0))
        rows = [nn.functional.embedding(ids, table) for table, ids in parts]
        return StateRows(rows=torch.cat(rows, -1) if self.side_by_side else add_wide(rows), mark="box_embedding")

    def extra_repr(self) -> str:
        return f"size={len(self.x)}, d_model={self.x.shape[1]}, d_side={self.h.shape[1] if self.side_by_side else None}"


def _check_boxes(boxes: Tensor, limits: Tensor, remedy: str) -> None:
    """Every coordinate in 0..limit, and no edge before its opposite. A compiled or meta graph has no values to look at."""
    if not readable(boxes):
        return
    outside = ~((boxes >= 0) & (boxes <= limits))
    inverted = torch.cat((torch.zeros_like(outside[..., :2]), boxes[..., 2:] < boxes[..., :2]), -1)
    for bad in (outside, inverted):
        for *box, edge in bad.nonzero()[:1].tolist():
            field, value = f"box {', '.join(map(str, box))} {EDGES[edge]}", boxes[(*box, edge)].item()
            if bad is outside:
                raise PositionRangeError(field, value, f"0..{limits[edge].item()}", remedy)
            raise PositionContractError(field, value, f"at least {EDGES[edge - 2]} = {boxes[(*box, edge - 2)].item()}",
                                        "Order the corners: upper left, lower right.")
