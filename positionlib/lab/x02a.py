"""Failures of the positional call (0x02A): two calls with every shape right and a different geometry."""

from __future__ import annotations

from typing import Any

import torch

from positionlib.attention import attend
from positionlib.call import PositionCall
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.mechanisms.alibi import ALiBi
from positionlib.rules import alibi_slopes
from positionlib.terms import SlopeBias

COMMITTED, HEADS = 512, 8


def _bias(query_positions: torch.Tensor) -> torch.Tensor:
    """ALiBi's bias [1, 8, 1, 513] of one query against 513 cached and new keys."""
    geometry = PositionCall.decode(COMMITTED).geometry()
    return ALiBi(HEADS)(geometry).materialize(query_positions, geometry.key_positions)


def _validate(document: dict[str, Any]) -> None:
    PositionCall(**document)


def _reset_document() -> dict[str, Any]:
    document = PositionCall.decode(COMMITTED).to_dict()
    document["query_space"]["logical_positions"] = [0]
    return document


register(Failure(
    id="0x02A.decode-reset", section="0x02A", kind="wrong_answer", title="A decode query is built from a local arange and restarts at 0",
    broken=lambda: _bias(torch.arange(1)),
    right=lambda: _bias(torch.tensor([COMMITTED])),
    guard=_validate, guard_name="position-manifest", source="article 0x02A; huggingface/transformers#19045",
    broken_subject=_reset_document, right_subject=lambda: PositionCall.decode(COMMITTED).to_dict()))


def _packed_output(isolated: bool) -> torch.Tensor:
    """Attention [1, 1, 6, 2] over two packed sequences of three rows, both numbered from 0.

    Without segments all that is left is the causal triangle over storage rows, which lets the second sequence read the first.
    """
    positions, owners = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 0, 0, 1, 1, 1])
    triangle = torch.ones(6, 6, dtype=torch.bool).tril()
    segments = {"query_segments": owners, "key_segments": owners} if isolated else {}
    geometry = AttentionGeometry(positions, positions, allowed=triangle, mode="causal", **segments)
    rows = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(1, 1, 6, 2)
    return attend(rows, rows.flip(-1), rows, SlopeBias(slopes=alibi_slopes(1)), geometry)


def _packed_document(isolation: str) -> dict[str, Any]:
    document = PositionCall.packed([3, 3]).to_dict()
    document["visibility"]["segment_isolation"] = isolation
    return document


register(Failure(
    id="0x02A.packed-leak", section="0x02A", kind="wrong_answer", title="Packed coordinates restart, but nothing isolates the sequences",
    broken=lambda: _packed_output(isolated=False),
    right=lambda: _packed_output(isolated=True),
    guard=_validate, guard_name="segment-isolation", source="article 0x02A; huggingface/nanoVLM#204",
    broken_subject=lambda: _packed_document("none"), right_subject=lambda: _packed_document("sequence_ids")))
