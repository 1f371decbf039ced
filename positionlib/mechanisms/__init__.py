"""One file a mechanism: its equation, its contract, its functions, its module. module(geometry) returns a term."""

from positionlib.mechanisms.alibi import ALiBi
from positionlib.mechanisms.learned import LearnedAbsolute
from positionlib.mechanisms.nope import NoPE
from positionlib.mechanisms.sinusoidal import Sinusoidal
from positionlib.mechanisms.t5 import T5Bias

__all__ = ["ALiBi", "LearnedAbsolute", "NoPE", "Sinusoidal", "T5Bias"]
