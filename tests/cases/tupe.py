"""TUPE's CLS row and column."""

from __future__ import annotations

import torch

from positionlib import T5Buckets
from positionlib.mechanisms.tupe import cls_buckets, override_cls
from tests.cases.expect import Call, Expectation
from tests.cases.values import array


def cls_override(call: Call, expect: Expectation) -> None:
    scores = array(call["position_scores"])
    first = [torch.arange(size) == 0 for size in scores.shape]
    numbers = [array([[call[name]]]) for name in ("theta_cls_to_others", "theta_others_to_cls")]
    expect.value(override_cls(scores, *first, *numbers), "scores")
    if "relative_buckets" in call:
        settings = call["relative_buckets"]
        positions = torch.arange(settings["length"])
        expect.value(cls_buckets(T5Buckets(settings["num_buckets"], settings["max_distance"], True), positions, positions), "bucket_ids")


HANDLERS = {"tupe_cls_override": cls_override}
