"""What the families share: a contract in which only what a family has is said, and the names of heads that were trained on it."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from positionlib.checkpoints.contracts import PositionCheckpointContract
from positionlib.checkpoints.conversion import Conversion
from positionlib.rules import T5Buckets

TRANSFORMERS, TRANSFORMERS_4 = "huggingface/transformers 5.24.0", "huggingface/transformers 4.57.6"
NOTHING = dict(table_layout="none", table_rows=None, relative_sign="none", clipping_or_bucket_rule=None, score_scale_factor=1, cls_rule=None,
               layer_sharing="none", formula=None, max_positions=None, position_id_offset=0, padding_convention="contiguous",
               source_target_tables="one_stack", added="nowhere", bias_and_scale="no_bias", pairing="none", generated_buffers=())
Assignment = tuple[int, ...] | None


def stated(family: str, source_revision: str, heads: int, assignment: Assignment, **said) -> PositionCheckpointContract:
    """The contract of a family that has no more to say than ``said``."""
    order = tuple(range(heads)) if assignment is None else assignment
    return PositionCheckpointContract(family=family, source_revision=source_revision, head_count=heads, head_assignment=order, **NOTHING | said)


def each_layer(layers: int, make: Callable[[Conversion, int], nn.Module], name: str = "attention") -> dict[str, Callable[[Conversion], nn.Module]]:
    """One part a layer, ``attention.0`` and so on."""
    return {f"{name}.{layer}": lambda conversion, layer=layer: make(conversion, layer) for layer in range(layers)}


def affine(*parts: str) -> tuple[str, ...]:
    """Names of weights and biases."""
    return tuple(f"{part}.{kind}" for part in parts for kind in ("weight", "bias"))


def buckets(rule: T5Buckets) -> str:
    """A bucket rule in one line."""
    return f"T5 buckets, {rule.num_buckets} to {rule.max_distance}, {'bidirectional' if rule.bidirectional else 'causal'}, edge {rule.edge}"
