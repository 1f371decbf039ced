"""positionlib: how coordinates and pairwise relations enter a Transformer.

A call's geometry (positions, frames, visibility) goes into a mechanism; the mechanism returns a term; ``attend`` applies it.
The manifest, the widgets, the failure lab and the exercises are loaded when they are first used: torch, numpy and jaxtyping
are enough for everything else.
"""

from importlib import import_module as _import_module

from positionlib.attention import AttendTrace, attend, masked_softmax
from positionlib.errors import FrameMismatchError, PositionContractError, PositionRangeError, UnsupportedPositionContract
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms import (
    ALiBi, BertRelative, BinaryCode, BoxEmbedding, DeBERTa, EdgeRelative, Graph, GraphBias, GraphDegrees, GraphPath, Grid, GridBias,
    GridResize, IntegerCode, LearnedAbsolute, LearnedGrid, MusicRelative, NoPE, NormalisedCode, Rotary, SegmentMemory,
    SeparableGrid, ShawRelative, SineGrid, Sinusoidal, T5Bias, TUPE, Time2Vec, TimeAxis, Timestamps, TransformerXL, normalise_boxes,
)
from positionlib.rules import T5Buckets, alibi_slopes, frequency_ladder, t5_bucket

__version__ = "0.1.0"

_LAZY = {"PositionCall": "positionlib.call", "convert": "positionlib.checkpoints"} | {name: None for name in ("check", "widgets", "lab", "exercises", "checkpoints", "sharding")}


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'positionlib' has no attribute {name!r}")
    module = _LAZY[name]
    return _import_module(f"positionlib.{name}") if module is None else getattr(_import_module(module), name)


__all__ = ["ALiBi", "AttendTrace", "AttentionGeometry", "BertRelative", "BinaryCode", "BoxEmbedding", "DeBERTa", "EdgeRelative",
           "FrameMismatchError", "Graph", "GraphBias", "GraphDegrees", "GraphPath", "Grid", "GridBias", "GridResize", "IntegerCode",
           "LearnedAbsolute", "LearnedGrid", "MusicRelative", "NoPE", "NormalisedCode", "PositionCall", "PositionContractError",
           "PositionRangeError", "Rotary", "SegmentMemory", "SeparableGrid", "ShawRelative", "SineGrid", "Sinusoidal", "T5Bias",
           "T5Buckets", "TUPE", "Time2Vec", "TimeAxis", "Timestamps", "TransformerXL", "UnsupportedPositionContract",
           "alibi_slopes", "attend", "check", "checkpoints", "convert", "exercises", "frequency_ladder", "lab", "masked_softmax", "normalise_boxes",
           "sharding", "t5_bucket", "widgets"]
