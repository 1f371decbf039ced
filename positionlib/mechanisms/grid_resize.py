"""A learned grid read at another size, by a rule with a name (Dosovitskiy et al. 2021, section 3.2).

    table over the source's cells [R, C, D]  ─▶  image of D channels  ─▶  interpolated to [R′, C′]  ─▶  the target's cells

The target's size is a pair of integers. A floating scale factor loses a line for some sizes (27 to 61 becomes 60), and a token count
says nothing about a shape (1 x 9 is not 3 x 3). Leading tokens are copied. The result is differentiable in the table; its rows at new
places are guesses, not training.

Released: ViT in transformers 4.57 and MAE (bicubic, neither corners nor antialias), timm (bicubic with antialias). ``align_corners``
lays the corner cells' centres on each other; without it the outer edges of the cells are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from positionlib.contract import checked
from positionlib.errors import require, require_choice
from positionlib.mechanisms.grid import Grid, check_grid

SMOOTH = ("bilinear", "bicubic")
MODES = (*SMOOTH, "nearest", "nearest-exact", "area")


@dataclass(frozen=True)
class GridResize:
    """rule(table, source, target) returns the target's table [*B, T, D], in the table's dtype, rounded once.

    Raises
    ------
    PositionContractError
        an unknown mode, corners or antialias of a mode that has none, grids that are not two-dimensional on the same axes, other
        leading tokens, or a table that is not the source's.
    """

    mode: str
    align_corners: bool
    antialias: bool

    def __post_init__(self) -> None:
        require_choice("mode", self.mode, MODES)
        for name in ("align_corners", "antialias"):
            value = getattr(self, name)
            require(isinstance(value, bool) and (self.mode in SMOOTH or not value), name, value, "True or False" if self.mode in SMOOTH else "False",
                    f"Only {' and '.join(SMOOTH)} have a choice here.")

    @checked
    def __call__(self, table: Float[Tensor, "*B S D"], source: Grid, target: Grid) -> Float[Tensor, "*B T D"]:
        require(len(check_grid(source).axes) == 2 and source.axes == check_grid(target).axes, "target", str(target),
                f"two axes, as the source: {source}", "Name the same axes.")
        require(source.leading == target.leading, "target.leading", target.leading, f"{source.leading}, as the source",
                "Leading tokens are copied: add or drop one on its own.")
        require(table.shape[-2] == source.tokens and table.numel() > 0, "table", table, f"{source.tokens} rows of numbers, as {source}",
                "Name the grid the table was trained on: a row count does not tell it.")
        device, extra = table.device, len(source.leading)
        outer, inner = (torch.arange(size, device=device) for size in source.sizes.values())
        image = table[..., source.positions(dict(zip(source.axes, torch.meshgrid(outer, inner, indexing="ij")))), :]
        channels = image.to(torch.promote_types(table.dtype, torch.float32)).movedim(-1, -3)  # [*B, D, R, C]
        smooth = {"align_corners": self.align_corners, "antialias": self.antialias} if self.mode in SMOOTH else {}
        resized = nn.functional.interpolate(channels.reshape(-1, *channels.shape[-3:]), size=tuple(target.sizes.values()), mode=self.mode, **smooth)
        cells = resized.reshape(*channels.shape[:-2], *resized.shape[-2:]).movedim(-3, -1).to(table.dtype)
        at = target.coordinates(torch.arange(extra, target.tokens, device=device))
        return torch.cat((table[..., :extra, :], cells[..., at[source.axes[0]], at[source.axes[1]], :]), -2)
