"""Failures of 0x09C: a scalar bias with the right shape and another bucket rule, head order, scale, query position or meaning.

Convention of the section: offsets are key minus query, a mask is True where a key may be read, tables are [buckets, heads].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from positionlib.attention import attend, masked_softmax
from positionlib.call import PositionCall
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.mechanisms.alibi import ALiBi
from positionlib.mechanisms.t5 import T5Bias
from positionlib.rules import T5Buckets, alibi_slopes, t5_bucket
from positionlib.terms import ClassBias, ScoreBias, SlopeBias

SECTION = "0x09C"
LENGTH, HEADS, WIDTH = 64, 4, 16
CAUSAL = AttentionGeometry.causal_self(LENGTH)
PAIR = AttentionGeometry.encoder(2)


def decoder_table() -> Float[Tensor, "32 1"]:
    """A causal table that any reader can check: bucket r holds −r/4, so a key further back weighs less."""
    return -torch.arange(32, dtype=torch.float64)[:, None] / 4


class Parts(NamedTuple):
    """What a score was made of: scores = scale · content + bias is to be shown, not assumed."""

    scores: Float[Tensor, "B H Q K"]
    content: Float[Tensor, "B H Q K"]
    bias: Float[Tensor, "B H Q K"]


def parts(term: ScoreBias, *, scale: float | None = None) -> Parts:
    """The scores of one fixed causal call with content q·k, [1, H, 64, 64] float64."""
    rows = torch.sin(torch.arange(term.heads * LENGTH * WIDTH, dtype=torch.float64)).reshape(1, term.heads, LENGTH, WIDTH)
    _, trace = attend(rows, rows.flip(-2), rows, term, CAUSAL, scale=scale, return_trace=True)
    return Parts(trace.scores, rows @ rows.flip(-2).transpose(-1, -2), trace.bias)


# --- guards ---------------------------------------------------------------------------------------------------------

def check_mode(rule: T5Buckets) -> None:
    """Refuse a causal stack whose table is read with two-sided buckets: :class:`T5Bias`'s own contract."""
    T5Bias(1, rule.num_buckets, rule.max_distance, bidirectional=rule.bidirectional)(CAUSAL)


def check_slopes(slopes: Float[Tensor, " H"], heads: int, head_ids: Sequence[int] | None = None) -> None:
    """Refuse slopes that are not those of these heads, in this order, of a model with ``heads`` heads in all."""
    ids = list(range(heads) if head_ids is None else head_ids)
    wanted = alibi_slopes(heads)[ids]
    wrong = [] if slopes.shape == wanted.shape else ids[:1]
    wrong = wrong or [h for h, a, b in zip(ids, slopes.tolist(), wanted.tolist()) if not math.isclose(a, b, rel_tol=1e-6)]
    if wrong:
        h = wrong[0]
        require(False, f"slope of head {h}", round(float(slopes[ids.index(h)]), 6), f"{float(wanted[ids.index(h)]):.6f} for head {h} of {heads}",
                "Build the slopes for all heads in the release's order, then slice by head id.")


def check_probe(table: Float[Tensor, "R H"], probe: dict[tuple[int, int], float]) -> None:
    """Refuse a table that does not hold the checkpoint's recorded entries at (bucket, head)."""
    for (bucket, head), value in probe.items():
        got = float(table[bucket, head])
        require(math.isclose(got, value, abs_tol=1e-6), f"table[bucket {bucket}, head {head}]", got, f"{value}, as recorded",
                "Name the stored layout where the table is loaded: table_layout='heads_buckets' or 'buckets_heads'.")


def check_parts(found: Parts, scale: float) -> None:
    """Refuse scores that are not scale · content + bias: the bias enters whole, the content with the release's own scale."""
    gap = float((found.scores - (found.content * scale + found.bias)).abs().max())
    require(gap < 1e-9, "scores − (scale · q·k + bias)", round(gap, 3), f"0 with scale {scale:g}",
            "Add the bias after the scale, and use the scale of the release: 1/√d_head for ALiBi, 1 for T5.")


def check_hidden(found: tuple[Float[Tensor, "Q K"], Bool[Tensor, "Q K"]]) -> None:
    """Refuse probabilities above exactly zero where a key may not be read."""
    probabilities, visible = found
    leaked = float(probabilities.masked_fill(visible, 0).max())
    require(leaked == 0, "probability on a hidden key", f"{leaked:.3g}", "exactly 0", "Hide keys with a boolean mask; a finite bias only prefers.")


def check_document(document: dict[str, Any]) -> None:
    """Refuse a manifest whose query does not continue the committed tokens."""
    PositionCall(**document)


# --- cases ----------------------------------------------------------------------------------------------------------

def decoder_bias(bidirectional: bool) -> Float[Tensor, "1 1 64 64"]:
    """The causal table's bias over 64 positions, read by one of the two rules; hidden keys carry no number."""
    term = ClassBias(table=decoder_table(), rule=T5Buckets(bidirectional=bidirectional), sign="key_minus_query")
    bias = term.materialize(CAUSAL.query_positions, CAUSAL.key_positions, dtype=torch.float64)
    return bias.masked_fill(~CAUSAL.visible, 0.0)


register(Failure(
    id="0x09C.bidirectional-decoder", section=SECTION, kind="wrong_answer", title="A causal decoder's table is read with two-sided buckets",
    broken=lambda: decoder_bias(True), right=lambda: decoder_bias(False), guard=check_mode, guard_name="t5-bucket-mode",
    broken_subject=lambda: T5Buckets(bidirectional=True), right_subject=lambda: T5Buckets(bidirectional=False),
    source="article 0x0C; a two-sided bias in the wrong place: huggingface/transformers#8518"))

register(Failure(
    id="0x09C.sorted-slopes", section=SECTION, kind="wrong_answer", title="Twelve slopes, sorted after training",
    broken=lambda: alibi_slopes(12).sort(descending=True).values, right=lambda: alibi_slopes(12),
    guard=lambda slopes: check_slopes(slopes, 12), guard_name="alibi-head-order", source="article 0x0C; antofuller/CROMA#12"))

register(Failure(
    id="0x09C.shard-slopes", section=SECTION, kind="wrong_answer", title="A shard builds slopes from its own head count",
    broken=lambda: alibi_slopes(4), right=lambda: ALiBi(12, head_ids=range(8, 12)).slopes,
    guard=lambda slopes: check_slopes(slopes, 12, range(8, 12)), guard_name="alibi-head-order", source="bigscience-workshop/Megatron-DeepSpeed#227"))


def _square_table() -> Float[Tensor, "4 4"]:
    """A table stored [heads, buckets] whose two sizes are equal, so that no shape tells the layouts apart."""
    return torch.tensor([[0.125, 0.25, 0.5, 0.75], [1.0, 2.0, 3.0, 4.0], [-1.0, -2.0, -3.0, -4.0], [0.0, 0.5, 0.0, -0.5]])


def _loaded(layout: str) -> Float[Tensor, "4 4"]:
    module = T5Bias(4, 4, 8, bidirectional=False, table_layout=layout)
    module.load_state_dict({"weight": _square_table()})
    return module.table.detach()


register(Failure(
    id="0x09C.transposed-table", section=SECTION, kind="wrong_answer", title="A [heads, buckets] table is loaded as [buckets, heads]",
    broken=lambda: _loaded("buckets_heads"), right=lambda: _loaded("heads_buckets"),
    guard=lambda table: check_probe(table, {(1, 0): 0.25, (0, 2): -1.0}), guard_name="checkpoint-conversion", source="huggingface/transformers#22573"))

register(Failure(
    id="0x09C.inside-scale", section=SECTION, kind="wrong_answer", title="The bias is added before the scores are divided by √d",
    broken=lambda: parts(SlopeBias(slopes=alibi_slopes(HEADS), inside_scale=True)), right=lambda: parts(SlopeBias(slopes=alibi_slopes(HEADS))),
    guard=lambda found: check_parts(found, 1 / math.sqrt(WIDTH)), guard_name="score-scale", source="article 0x09C; Falcon in transformers 4.57.6"))

register(Failure(
    id="0x09C.divided-t5", section=SECTION, kind="wrong_answer", title="T5's content is divided by √d",
    broken=lambda: parts(ClassBias(table=decoder_table(), rule=T5Buckets(bidirectional=False), sign="key_minus_query")),
    right=lambda: parts(ClassBias(table=decoder_table(), rule=T5Buckets(bidirectional=False), sign="key_minus_query", score_scale=1.0)),
    guard=lambda found: check_parts(found, 1.0), guard_name="score-scale", source="huggingface/transformers#46946; article 0x09A"))


def _two_keys(bias: float | None, content: float = 31.0) -> tuple[Float[Tensor, "2 2"], Bool[Tensor, "2 2"]]:
    """Probabilities of two queries; key 1 lies in query 0's future and matches it by ``content``. ``bias`` stands in for the mask."""
    visible = AttentionGeometry.causal_self(2).visible
    scores = torch.tensor([[0.0, content], [0.0, 0.0]], dtype=torch.float64)
    if bias is None:
        return masked_softmax(scores, visible), visible
    return masked_softmax(scores + bias * ~visible, PAIR.visible), visible


register(Failure(
    id="0x09C.bias-as-mask", section=SECTION, kind="wrong_answer", title="A bias of −30 stands in for the causal mask",
    broken=lambda: _two_keys(-30.0)[0], right=lambda: _two_keys(None)[0], guard=check_hidden, guard_name="mask-is-zero",
    broken_subject=lambda: _two_keys(-30.0), right_subject=lambda: _two_keys(None), source="article 0x00 and 0x02A, 'a bias is not a mask'"))

COMMITTED = 40


def _decode_buckets(query: int) -> Tensor:
    return t5_bucket(torch.arange(COMMITTED + 1) - query, bidirectional=False)


def _decode_document(query: int) -> dict[str, Any]:
    document = PositionCall.decode(COMMITTED).to_dict()
    document["query_space"]["logical_positions"] = [query]
    return document


register(Failure(
    id="0x09C.local-arange", section=SECTION, kind="wrong_answer", title="A decode step numbers its one query from 0",
    broken=lambda: _decode_buckets(0), right=lambda: _decode_buckets(COMMITTED), guard=check_document, guard_name="position-manifest",
    broken_subject=lambda: _decode_document(0), right_subject=lambda: _decode_document(COMMITTED), source="huggingface/candle#899"))


def _unchecked_lookup(max_distance: int) -> Tensor:
    """T5's released expression at distances 0..8 with no check of its settings, then the lookup in 32 rows."""
    n = torch.arange(9)
    width = math.log(max_distance / 8)
    if width == 0:  # what the division gives in float: no bucket at all
        raise ZeroDivisionError("float division by zero: log(max_distance / max_exact) = 0")
    large = (8 + torch.log(n.clamp_min(1) / 8) / width * 8).long().clamp_max(15)
    return decoder_table()[torch.where(n < 8, n, large), 0]


register(Failure(
    id="0x09C.no-log-range", section=SECTION, kind="late_error", title="max_distance equals the number of exact buckets",
    broken=lambda: _unchecked_lookup(8), right=lambda: _unchecked_lookup(128), guard=lambda distance: T5Buckets(32, distance), guard_name="t5-bucket-mode",
    broken_subject=lambda: 8, right_subject=lambda: 128, source="transformers 5.24, run with 32 buckets and max_distance 8"))

