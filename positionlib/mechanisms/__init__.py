"""One file a mechanism: its equation, its contract, its functions, its module. module(geometry) returns a term."""

from positionlib.mechanisms.alibi import ALiBi
from positionlib.mechanisms.deberta import DeBERTa
from positionlib.mechanisms.graph import Graph, GraphBias, GraphDegrees, GraphPath
from positionlib.mechanisms.learned import LearnedAbsolute
from positionlib.mechanisms.nope import NoPE
from positionlib.mechanisms.shaw import EdgeRelative, ShawRelative
from positionlib.mechanisms.shaw_variants import BertRelative, MusicRelative
from positionlib.mechanisms.sinusoidal import Sinusoidal
from positionlib.mechanisms.t5 import T5Bias
from positionlib.mechanisms.transformer_xl import SegmentMemory, TransformerXL
from positionlib.mechanisms.tupe import TUPE

__all__ = ["ALiBi", "BertRelative", "DeBERTa", "EdgeRelative", "Graph", "GraphBias", "GraphDegrees", "GraphPath", "LearnedAbsolute",
           "MusicRelative", "NoPE", "SegmentMemory", "ShawRelative", "Sinusoidal", "T5Bias", "TUPE", "TransformerXL"]
