"""Failures of 0x09E: a conversion that only matches shapes, and a model that lost a part of its geometry on the way to a faster backend.

Convention of the section: offsets are key minus query, a mask is True where a key may be read, tables are [buckets, heads].
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from positionlib.admission import admit
from positionlib.attention import attend
from positionlib.checkpoints.maps import t5_attention
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.layers import SelfAttention
from positionlib.mechanisms.deberta import DeBERTa
from positionlib.mechanisms.nope import NoPE
from positionlib.mechanisms.shaw import ShawRelative
from positionlib.mechanisms.t5 import T5Bias
from positionlib.mechanisms.tupe import TUPE
from positionlib.rules import T5Buckets
from positionlib.terms import Term

SECTION = "0x09E"
HEADS, WIDTH, ROWS, BUCKETS, FAR = 4, 8, 12, 8, 16
BOTH, CAUSAL = AttentionGeometry.encoder(ROWS), AttentionGeometry.causal_self(ROWS)
T5_CONFIG = {"d_model": HEADS * WIDTH, "d_kv": WIDTH, "num_heads": HEADS, "relative_attention_num_buckets": BUCKETS,
             "relative_attention_max_distance": FAR}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Random float64 numbers of order one, the same at each call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(module: nn.Module, seed: int = 3) -> nn.Module:
    """The module in float64, its parameters of order one half: an initial bias of 0.02 would hide behind the content."""
    module.double()
    for n, parameter in enumerate(module.parameters()):
        parameter.data = numbers(*parameter.shape, seed=seed + n) / 2
    return module


# --- a checkpoint that only half arrives ------------------------------------------------------------------------------

def t5_state(table_name: str = "relative_attention_bias.weight") -> dict[str, Tensor]:
    """The state dict of one T5 layer of this section's size, its bias table under a name of the caller's."""
    size = HEADS * WIDTH
    state = {f"{name}.weight": numbers(size, size, seed=n) / size**0.5 for n, name in enumerate("qkvo")}
    return state | {table_name: numbers(BUCKETS, HEADS, seed=9)}


def empty_layer() -> SelfAttention:
    """A layer that waits for weights; its table holds zeros."""
    layer = SelfAttention(HEADS * WIDTH, HEADS, T5Bias(HEADS, BUCKETS, FAR, bidirectional=True, edge="transformers"), bias=False).double()
    nn.init.zeros_(layer.mechanism.weight)
    return layer


def loaded_loosely(state: dict[str, Tensor]) -> tuple[SelfAttention, list[str], list[str]]:
    """(layer, missing keys, unexpected keys) after load_state_dict(strict=False) under the target's own names for the projections."""
    layer = empty_layer()
    report = layer.load_state_dict(state, strict=False)
    return layer, list(report.missing_keys), list(report.unexpected_keys)


def layer_output(layer: SelfAttention) -> Float[Tensor, "1 N D"]:
    """The layer on fixed rows."""
    return layer(numbers(1, ROWS, HEADS * WIDTH, seed=20), BOTH).detach()


register(Failure(
    id="0x09E.strict-false", section=SECTION, kind="wrong_answer", title="strict=False: the bias table has another name and stays at zero",
    broken=lambda: layer_output(loaded_loosely(t5_state("block.0.relative_attention_bias.weight"))[0]),
    right=lambda: layer_output(t5_attention(t5_state(), T5_CONFIG, bidirectional=True)),
    guard=lambda state: t5_attention(state, T5_CONFIG, bidirectional=True), guard_name="checkpoint-conversion",
    broken_subject=lambda: t5_state("block.0.relative_attention_bias.weight"), right_subject=t5_state, source="article 0x09E and 0x0C"))


class Converted(NamedTuple):
    """A bias row as it comes out of a converted table: query at 11, keys 0..11, one row a head."""

    bias: Float[Tensor, "H K"]


def converted(bidirectional: bool) -> Converted:
    """The release's encoder table, turned to [heads, buckets] for the target, under one of T5's two bucket rules."""
    module = T5Bias(HEADS, BUCKETS, FAR, bidirectional=bidirectional, table_layout="heads_buckets").double()
    module.load_state_dict({"weight": t5_state()["relative_attention_bias.weight"].T.contiguous()})
    rule = T5Buckets(BUCKETS, FAR, bidirectional)
    return Converted(module.table.detach()[rule.classes(torch.arange(ROWS) - (ROWS - 1))].T)


def check_converted(found: Converted) -> None:
    """Refuse a converted bias that is not the source's at two recorded pairs: head 0 one key back, and eleven back."""
    table = t5_state()["relative_attention_bias.weight"]
    for back, bucket in ((1, 1), (11, 3)):  # of the encoder's rule with 8 buckets: 4 a direction, the last from 7 positions on
        got, want = float(found.bias[0, ROWS - 1 - back]), float(table[bucket, 0])
        require(math.isclose(got, want, abs_tol=1e-9), f"bias of head 0, {back} back", round(got, 3), f"{want:.3f}, as the source recorded it",
                "The transpose restored the shape. State which stack owns the table and its bucket rule, and compare recorded pairs.")


register(Failure(
    id="0x09E.transpose-is-not-enough", section=SECTION, kind="wrong_answer", title="A T5 table is turned to the target's layout and read by the other stack's rule",
    broken=lambda: converted(False), right=lambda: converted(True), guard=check_converted, guard_name="checkpoint-conversion",
    source="article 0x09E, the T5 transpose"))


# --- a part that the faster backend does not have -----------------------------------------------------------------------

def call_tensors() -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of one fixed call."""
    q, k, v = numbers(3, 1, HEADS, ROWS, WIDTH, seed=40)
    return q, k, v


def shaw() -> Term:
    """Relative keys and values."""
    return filled(ShawRelative(3, WIDTH, sign="key_minus_query"))(BOTH)


def deberta() -> Term:
    """Content, c2p and p2c."""
    return filled(DeBERTa(HEADS, HEADS * WIDTH, 6, terms=("c2c", "c2p", "p2c"), third_index="released", projections="own"))(BOTH)


def tupe(cls_position: int | None = 0) -> Term:
    """Untied positions with the CLS row and column, or without."""
    return filled(TUPE(HEADS, HEADS * WIDTH, ROWS, cls_position=cls_position))(BOTH)


def out(term: Term | None, geometry: AttentionGeometry = BOTH) -> Float[Tensor, "1 H N d"]:
    """The reference's output of the fixed call."""
    return attend(*call_tensors(), term, geometry, backend="eager").detach()


def admit_for_sdpa(term: Term | None) -> None:
    """Refuse to run a term on torch's own attention where that lacks a part of it."""
    admit(*call_tensors(), term, BOTH, backend="sdpa")


DROPPED = {
    "value-term": ("Shaw's relation of the values is dropped", shaw, lambda: replace(shaw(), value_table=None)),
    "direction": ("One DeBERTa direction is dropped", deberta, lambda: replace(deberta(), pos_query=None)),
    "cls-override": ("TUPE's CLS override is dropped", tupe, lambda: tupe(None)),
}
for slug, (title, whole, trimmed) in DROPPED.items():
    register(Failure(
        id=f"0x09E.dropped-{slug}", section=SECTION, kind="wrong_answer", title=f"{title} to reach a faster backend",
        broken=lambda trimmed=trimmed: out(trimmed()), right=lambda whole=whole: out(whole()), guard=admit_for_sdpa, guard_name="backend-admission",
        broken_subject=whole, right_subject=lambda: None, source="article 0x09E, backend admission and fallback"))

register(Failure(
    id="0x09E.dropped-mask", section=SECTION, kind="wrong_answer", title="The causal mask of a model without positions is dropped",
    broken=lambda: out(None, BOTH), right=lambda: out(NoPE()(CAUSAL), CAUSAL),
    guard=lambda geometry: admit(*call_tensors(), NoPE()(CAUSAL), geometry, backend="sdpa"), guard_name="backend-admission",
    broken_subject=lambda: BOTH, right_subject=lambda: CAUSAL, source="article 0x09F: causal visibility is the whole of its geometry"))
