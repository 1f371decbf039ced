"""One file a mechanism: its equation, its contract, its functions, its module. module(geometry) returns a term."""

from positionlib.mechanisms.alibi import ALiBi
from positionlib.mechanisms.deberta import DeBERTa
from positionlib.mechanisms.graph import Graph, GraphBias, GraphDegrees, GraphPath
from positionlib.mechanisms.grid import Grid, LearnedGrid, SeparableGrid
from positionlib.mechanisms.grid_bias import GridBias
from positionlib.mechanisms.grid_document import BoxEmbedding, normalise_boxes
from positionlib.mechanisms.grid_resize import GridResize
from positionlib.mechanisms.grid_sine import SineGrid
from positionlib.mechanisms.learned import LearnedAbsolute
from positionlib.mechanisms.naive import BinaryCode, IntegerCode, NormalisedCode
from positionlib.mechanisms.nope import NoPE
from positionlib.mechanisms.rotary import Rotary
from positionlib.mechanisms.shaw import EdgeRelative, ShawRelative
from positionlib.mechanisms.shaw_variants import BertRelative, MusicRelative
from positionlib.mechanisms.sinusoidal import Sinusoidal
from positionlib.mechanisms.t5 import T5Bias
from positionlib.mechanisms.time2vec import Time2Vec, TimeAxis, Timestamps
from positionlib.mechanisms.transformer_xl import SegmentMemory, TransformerXL
from positionlib.mechanisms.tupe import TUPE

__all__ = ["ALiBi", "BertRelative", "BinaryCode", "BoxEmbedding", "DeBERTa", "EdgeRelative", "Graph", "GraphBias", "GraphDegrees",
           "GraphPath", "Grid", "GridBias", "GridResize", "IntegerCode", "LearnedAbsolute", "LearnedGrid", "MusicRelative", "NoPE",
           "NormalisedCode", "Rotary", "SegmentMemory", "SeparableGrid", "ShawRelative", "SineGrid", "Sinusoidal", "T5Bias", "TUPE",
           "Time2Vec", "TimeAxis", "Timestamps", "TransformerXL", "normalise_boxes"]
