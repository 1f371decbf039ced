"""Bucket plot: which offsets share a T5 bucket, where the staircase ends, and what one trained table stores in it."""

from __future__ import annotations

from functools import cache
from itertools import groupby

import numpy as np
import torch

from positionlib.data import mpnet_bias
from positionlib.rules import T5Buckets
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Bars, Lines, Mark, Series, Text

REACH = 150  # offsets drawn to each side: past the last edge of every setting offered
TRAINED = (32, 128, "both")  # all-mpnet-base-v2
NOTHING = "none"
EXPLAINED = "The stored numbers of all-mpnet-base-v2 belong to 32 buckets, max distance 128, both directions; they are shown there only."


@cache
def _rule(num_buckets: int, max_distance: int, direction: str) -> T5Buckets:
    return T5Buckets(num_buckets, max_distance, direction == "both")


def _offsets() -> torch.Tensor:
    return torch.arange(-REACH, REACH + 1)


@cache
def _widths(num_buckets: int, max_distance: int, direction: str) -> tuple[int, ...]:
    """Offsets within ±REACH that fall into each bucket; the future, which a causal mask hides, is not counted."""
    offsets = _offsets() if direction == "both" else torch.arange(-REACH, 1)
    ids = _rule(num_buckets, max_distance, direction).classes(offsets)
    return tuple(torch.bincount(ids, minlength=num_buckets).tolist())


def _unused(num_buckets: int, max_distance: int, direction: str) -> list[int]:
    return [b for b, width in enumerate(_widths(num_buckets, max_distance, direction)) if width == 0]


def _named(buckets: list[int]) -> str:
    return ", ".join(map(str, buckets)) or "none"


def _alone(rule: T5Buckets) -> str:
    """The distances that share their bucket with no other, as ranges: "0 to 7"."""
    steps = (0, *rule.thresholds)  # first distance of each bucket; the last bucket has no end
    alone = [first for first, following in zip(steps, steps[1:]) if following == first + 1]
    runs = [[a for _, a in run] for _, run in groupby(enumerate(alone), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _compute(num_buckets, max_distance, direction, head):
    setting = num_buckets, max_distance, direction
    rule, unused, x = _rule(*setting), _unused(*setting), _offsets()
    last = rule.thresholds[-1]
    marks = (Mark(-last, f"−{last}"), Mark(last, f"+{last}")) if direction == "both" else (Mark(-last, f"−{last}"), Mark(0, "query"))
    return [
        Badges([Badge("distances with a bucket of their own", _alone(rule)),
                Badge("last bucket begins at", last), Badge("unused buckets", _named(unused), "warn" if unused else "ok")]),
        Lines("Bucket of each offset", x.numpy(), [Series("bucket", rule.classes(x).double().numpy(), kind="step")],
              x_label="offset, key minus query (positions)", y_label="bucket", decimals=0, limits=(0, 31), marks=marks,
              alt=f"A staircase: steps of one offset near the query, wider ones outwards, flat from distance {last} on."),
        *_second(setting, head, rule),
    ]


def _second(setting, head, rule):
    """The picture under the staircase, bucket by bucket: what one trained head stores, or how many offsets each holds."""
    if head != NOTHING and setting == TRAINED:
        column = mpnet_bias()[:, head]
        return [Bars(f"Stored numbers of head {head}", tuple(range(32)), column, label="bucket", value_label="bias (added to the score)", decimals=3,
                     limits=(-12, 4), highlight=(16,), alt=f"32 bars; bucket 16, which no offset reaches, holds {column[16]:.3f}.")]
    unused = _unused(*setting)
    held = Bars("Offsets a bucket holds", tuple(range(rule.num_buckets)), np.array(_widths(*setting), dtype=float), label="bucket", decimals=0,
                value_label=f"offsets within ±{REACH}", highlight=tuple(unused),
                alt=f"Bars grow with the distance; buckets without an offset: {_named(unused)}.")
    return [held] if head == NOTHING else [held, Text(EXPLAINED)]


def _caption(num_buckets, max_distance, direction, head):
    setting = num_buckets, max_distance, direction
    rule, unused = _rule(*setting), _unused(*setting)
    last = rule.thresholds[-1]
    side = "on each side " if direction == "both" else ""
    text = f"The last bucket {side}begins at distance {last}, not at {max_distance}; "
    text += f"no offset falls into bucket {_named(unused)}." if unused else "every bucket is used."
    if head != NOTHING and setting == TRAINED:
        before, after = (float(mpnet_bias()[b, head]) for b in (1, 17))
        text += f" Head {head} adds {before:+.2f} for the key before and {after:+.2f} for the key after.".replace("-", "−")
    return text


def bucket_plot(num_buckets=(8, 16, 32), max_distance=(32, 64, 128), heads=(0, 2, 4, 6)) -> Explorer:
    """Which offsets share one number? At rest: MPNet's setting and head 4, whose row 16 no offset reaches."""
    start_head = heads[min(2, len(heads) - 1)]
    return Explorer(
        name="bucket-plot", title="T5 buckets", question="Which offsets share one number, and which number is never used?",
        controls=[
            Control("num_buckets", "Buckets", list(num_buckets)),
            Control("max_distance", "Max distance", list(max_distance)),
            Control("direction", "Direction", ["both", "causal"], labels=["both (encoder)", "past only (causal decoder)"]),
            Control("head", "Second picture", [NOTHING, *heads], labels=["offsets a bucket holds", *(f"MPNet head {h}" for h in heads)], kind="choice"),
        ],
        compute=_compute, caption=_caption,
        start={"num_buckets": max(num_buckets), "max_distance": max(max_distance), "direction": "both", "head": start_head})
