"""ALiBi slopes in head order, and how far back each head's attention reaches when all contents are equal."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from positionlib.attention import attend
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.alibi import ALiBi
from positionlib.rules import alibi_slopes
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Bars


@cache
def _within(heads: int, keys: int) -> np.ndarray:
    """[H, keys]: attention that the last of ``keys`` equal tokens spends within each distance, the query itself included."""
    geometry = AttentionGeometry.decode(keys - 1)
    rows = torch.zeros(1, heads, keys, 1, dtype=torch.float64)
    _, trace = attend(rows[:, :, :1], rows, rows, ALiBi(heads)(geometry), geometry, return_trace=True)
    return trace.probabilities[0, :, 0].flip(-1).cumsum(-1).numpy()


def _reach(heads: int, keys: int) -> np.ndarray:
    """Smallest distance within which each head spends half of its attention."""
    return (_within(heads, keys) >= 0.5).argmax(axis=1)


def _compute(heads, keys):
    slopes, reach = alibi_slopes(heads).numpy(), _reach(heads, keys)
    steep, flat = int(slopes.argmax()), int(slopes.argmin())
    ordered = bool((np.diff(slopes) < 0).all())
    return [
        Badges([Badge("sorted", "yes" if ordered else "no", "ok" if ordered else "warn"), Badge("steepest head", steep), Badge("flattest head", flat)]),
        Bars("Slope of each head", tuple(range(heads)), slopes, label="head", value_label="slope", decimals=4, limits=(0, 1), highlight=(steep,),
             alt=f"Slopes in head order, {'falling' if ordered else 'not sorted'}: head {steep} is the steepest, head {flat} the flattest."),
        Bars("Half of the attention lies within", tuple(range(heads)), reach.astype(float), label="head", value_label="distance (positions)", decimals=0,
             highlight=(steep,), alt=f"From distance {reach.min()} in head {steep} to {reach.max()} in head {flat}."),
    ]


def _caption(heads, keys):
    slopes, reach = alibi_slopes(heads), _reach(heads, keys)
    steep, flat = int(slopes.argmax()), int(slopes.argmin())
    order = "fall from head to head" if bool((slopes.diff() < 0).all()) else f"are not sorted: head {steep}, not head 0, is the steepest"
    return (f"The {heads} slopes {order}. Among {keys} equal keys, head {steep} spends half of its attention within distance {reach[steep]}, "
            f"head {flat} within {reach[flat]}.")


def alibi_slopes_plot(heads=(4, 8, 12, 20), keys=(16, 64, 256, 1024)) -> Explorer:
    """How far back does each head look? At rest: 12 heads, whose slopes are not sorted."""
    return Explorer(
        name="alibi-slopes-plot", title="ALiBi slopes", question="How far back does each head look before content has a say?",
        controls=[Control("heads", "Heads", list(heads)), Control("keys", "Keys to read", list(keys))],
        compute=_compute, caption=_caption, start={"heads": 12, "keys": 256})
