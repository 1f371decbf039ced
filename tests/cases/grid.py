"""Grids: traversal, resizing to integer sizes, and boxes on their page."""

from __future__ import annotations

import re

import torch

from positionlib import Grid, GridResize, normalise_boxes
from tests.cases.expect import Call, Expectation
from tests.cases.values import array


def coordinates(call: Call, expect: Expectation) -> None:
    grid = Grid({"row": call["rows"], "col": call["cols"]}, call["traversal"])
    for axis, numbers in grid.coordinates(torch.arange(grid.tokens)).items():
        expect.value(numbers, axis)


def resized(call: Call, expect: Expectation) -> None:
    """A table of one channel, given as an image."""
    image = array(call["source"])
    source, target = square(image.shape), square(call["target_grid"])
    rule = GridResize(call["mode"], call["align_corners"], call["antialias"])
    expect.value(rule(image.reshape(-1, 1), source, target).reshape(tuple(target.sizes.values())))


def resized_shape(call: Call, expect: Expectation) -> None:
    """How many different lines a table of coordinates has after it was resized."""
    source = square(call["source_grid"])
    table = torch.stack(list(source.coordinates(torch.arange(source.tokens)).values()), -1).double()
    rule = GridResize("bilinear", align_corners=True, antialias=False)
    results = [rule(table, source, square(size)) for size in call["target_grids"]]
    expect.value([[len(channel.round(decimals=6).unique()) for channel in result.T] for result in results])


def square(size: list[int]) -> Grid:
    return Grid({"row": size[0], "col": size[1]}, "row_major")


def boxes(call: Call, expect: Expectation) -> None:
    for number, box in enumerate(call["boxes"]):
        label = str(number)
        # Each at its own place, behind empty boxes, so that only its own fault can be named.
        attempt = lambda: normalise_boxes(call["page"], torch.tensor([[0] * 4] * number + [box]), call["range"])[number]
        text = expect.at(label) if expect.asks(label) else None
        if isinstance(text, str):
            expect.refused(attempt, label, mention=(f"box {number}", *re.findall(r"coordinate (\w+)", text)))
        else:
            expect.value(attempt(), label)


HANDLERS = {"grid_coordinates": coordinates, "resize_grid": resized, "resize_grid_shape": resized_shape, "normalise_boxes": boxes}
