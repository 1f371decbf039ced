"""Where the heads are: the axis of every parameter of a mechanism, and of every tensor of a term, that counts them.

A mechanism or a term that is not in these tables is refused: what is sliced by guess is of the right shape and belongs to other heads.
Modules that add rows to the state (sinusoidal, learned, degrees) have no heads and stay whole on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from positionlib.contract import checked
from positionlib.errors import PositionContractError, require
from positionlib.mechanisms import (
    ALiBi, BertRelative, DeBERTa, EdgeRelative, GraphBias, GraphPath, GridBias, MusicRelative, NoPE, Rotary, ShawRelative, T5Bias, TUPE, TransformerXL,
)
from positionlib.mechanisms.deberta import DisentangledScores
from positionlib.mechanisms.graph_bias import DistanceBias, PairBias
from positionlib.mechanisms.grid_bias import AxisBias
from positionlib.mechanisms.shaw import EdgeRelation
from positionlib.mechanisms.shaw_variants import QueryKeyRelation
from positionlib.mechanisms.transformer_xl import TransformerXLScores
from positionlib.mechanisms.tupe import UntiedRows, UntiedScores
from positionlib.rotation import QKTransform
from positionlib.sharding.partition import HeadPartition
from positionlib.terms import ClassBias, Relation, SlopeBias, Term, VisibilityOnly


class HeadAxis(NamedTuple):
    """The axis of a parameter that counts heads, and how many rows of it each head has."""

    axis: int
    rows: int = 1


Axes = dict[str, HeadAxis | None]
HEADS_FIRST, HEADS_SECOND = HeadAxis(0), HeadAxis(1)


def _linear(name: str, d_head: int) -> Axes:
    return {f"{name}.weight": HeadAxis(0, d_head), f"{name}.bias": HeadAxis(0, d_head)}


def _relation(module: nn.Module) -> Axes:
    tables = module.key_table, module.value_table
    return dict.fromkeys(("key_table", "value_table"), HEADS_FIRST if any(t is not None and t.ndim == 3 for t in tables) else None)


# The released path's category rows are mixed by M_n [H, H] before they are scores of a head: every head reads all of them.
MODULES: dict[type, Callable[[nn.Module], Axes]] = {
    NoPE: lambda m: {},
    Rotary: lambda m: {},
    ALiBi: lambda m: {"log_slopes": HEADS_FIRST},
    T5Bias: lambda m: {"weight": HEADS_SECOND if m.table_layout == "buckets_heads" else HEADS_FIRST},
    ShawRelative: _relation,
    EdgeRelative: _relation,
    MusicRelative: _relation,
    BertRelative: lambda m: {"weight": None},
    TransformerXL: lambda m: {"weight": HeadAxis(0, m.content_bias.shape[1]), "content_bias": HEADS_FIRST, "position_bias": HEADS_FIRST},
    DeBERTa: lambda m: {"weight": None, **_linear("pos_key_proj", m.d_head), **_linear("pos_query_proj", m.d_head)},
    TUPE: lambda m: {"weight": None, "norm.weight": None, "norm.bias": None, "relative_weight": HEADS_SECOND,
                     **_linear("query_proj", m.d_head), **_linear("key_proj", m.d_head)},
    GraphBias: lambda m: {"weight": HEADS_SECOND, "token_weight": HEADS_FIRST},
    GraphPath: lambda m: {"edge_weight": HEADS_SECOND if m.form == "direct" else None, "hop_weight": HeadAxis(2)},
    GridBias: lambda m: {f"weight.{axis}": HEADS_FIRST for axis in m.rules},
}

# (axis, number of axes) of a term's tensors by head; one with fewer axes is shared by the heads.
TERMS: dict[type, dict[str, tuple[int, int]]] = {
    VisibilityOnly: {},
    QKTransform: {},
    QueryKeyRelation: {},
    ClassBias: {"table": (1, 2)},
    SlopeBias: {"slopes": (0, 1)},
    Relation: {"key_table": (0, 3), "value_table": (0, 3)},
    EdgeRelation: {"key_table": (0, 3), "value_table": (0, 3)},
    TransformerXLScores: {"content_bias": (0, 2), "position_bias": (0, 2), "projection": (0, 3)},
    DisentangledScores: {"pos_key": (0, 3), "pos_query": (0, 3)},
    UntiedScores: {"bias": (1, 4)},
    UntiedRows: {"query_rows": (1, 4), "key_rows": (1, 4), "cls": (1, 2), "relative": (1, 2)},
    PairBias: {"pairs": (0, 3)},
    DistanceBias: {"table": (1, 2), "path": (0, 3)},
    AxisBias: {"tables": (0, 2)},
}


@checked
def head_axes(module: nn.Module) -> Axes:
    """The head axis of every parameter of a mechanism, or of a container of mechanisms, by its name in the state dict; None is shared by all heads.

    Raises
    ------
    PositionContractError
        a parameter of a module that is no mechanism with heads; ``field`` is its name.
    """
    found: Axes = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        known = MODULES.get(type(part), lambda part: {})(part)
        found |= {f"{prefix}.{name}" if prefix else name: axis for name, axis in known.items()}
    held = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    for name in held:
        require(name in found, name, type(module.get_submodule(name.rpartition(".")[0])).__name__, "a parameter of a mechanism with heads: " +
                ", ".join(sorted(known.__name__ for known in MODULES)),
                "Leave state rows whole on every rank, and shard projections with the layer that has them.")
    return {name: found[name] for name in held}


@checked
def slice_term(term: Term, partition: HeadPartition, rank: int) -> Term:
    """The part of a term that a rank's heads read, from the term of all heads. A gradient goes back to the slots that were taken.

    Raises
    ------
    PositionContractError
        a term without an entry here, or one that was built for another head count than the partition's.
    """
    if type(term) not in TERMS:
        raise PositionContractError("term", type(term).__name__, "one of " + ", ".join(sorted(known.__name__ for known in TERMS)),
                                    "State rows enter before the heads; of any other term say where its heads are.")
    cut = {}
    for name, (axis, rank_of_tensor) in TERMS[type(term)].items():
        held = getattr(term, name)
        if isinstance(held, Mapping):
            cut[name] = {key: partition.take(table, rank, axis) for key, table in held.items()}
        elif isinstance(held, Tensor) and held.ndim == rank_of_tensor:
            cut[name] = partition.take(held, rank, axis)
    return replace(term, **cut)
