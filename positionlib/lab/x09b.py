"""Failures of 0x09B: relation vectors on the wrong side, of the wrong sign, scale or query position, or expanded for every pair.

Convention of the section: offsets are key minus query, class r is the offset clipped to −k..k, plus k, and tables are [2k+1, d].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.attention import attend
from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Cost, Failure, register
from positionlib.mechanisms.shaw import compact_key_scores, direct_key_scores, memory_ledger
from positionlib.mechanisms.shaw_variants import BertDistances
from positionlib.rules import Clip
from positionlib.terms import Relation

SECTION = "0x09B"
LN2 = math.log(2)


def hand_tables() -> tuple[Float[Tensor, "3 4"], Float[Tensor, "3 4"]]:
    """(R^K, R^V) of the chapter's case, k = 1: rows for the past, the same position, and the future."""
    r_k, r_v = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    r_k[:, 0] = torch.tensor([0.0, 2.0, -1.0])
    r_v[:, 3] = torch.tensor([8.0, 0.0, -8.0])
    return r_k, r_v


def hand_case() -> tuple[Float[Tensor, "1 1 1 4"], Float[Tensor, "1 1 4 4"], Float[Tensor, "1 1 4 4"]]:
    """q, k, v of the chapter's case: one query at position 2, keys at 0 to 3; content scores 1, 0, 0, 1 in units of ln 2."""
    q = torch.tensor([2 * LN2, 0.0, 0.0, 0.0], dtype=torch.float64)
    k = torch.zeros(4, 4, dtype=torch.float64)
    k[:, 0] = torch.tensor([1.0, 0.0, 0.0, 1.0])
    return q[None, None, None], k[None, None], 8 * torch.eye(4, dtype=torch.float64)[None, None]


HAND_GEOMETRY = AttentionGeometry(torch.tensor([2]), torch.arange(4))


def hand_relation(*, keys: bool = True, values: bool = True, sign: str = "key_minus_query") -> Relation:
    """The case's relation, with one side left out or the sign turned."""
    r_k, r_v = hand_tables()
    return Relation(key_table=r_k if keys else None, value_table=r_v if values else None, rule=Clip(1), sign=sign)


def hand_output(relation: Relation) -> Float[Tensor, "4"]:
    """The query's output under a relation."""
    return attend(*hand_case(), relation, HAND_GEOMETRY)[0, 0, 0]


# --- guards ---------------------------------------------------------------------------------------------------------

def check_sides(relation: Relation) -> None:
    """Refuse a relation without one of the two tables that the checkpoint holds."""
    missing = [name for name in ("key_table", "value_table") if getattr(relation, name) is None]
    require(not missing, missing[0] if missing else "sides", None, "the checkpoint's own table, [3, 4]",
            "Load both tables, or name the variant: sides='keys' and sides='values' are other models.")


def check_fixture(relation: Relation) -> None:
    """Refuse a relation whose classes are not those of the asymmetric call: a query at 5, keys at 2 to 6, clipped at the relation's k."""
    got = relation.classes(torch.tensor([5]), torch.arange(2, 7)).tolist()
    want = Clip(relation.rule.max_distance).classes(torch.arange(-3, 2)[None]).tolist()
    require(got == want, "classes of query 5 and keys 2..6", got, f"{want}, key minus query",
            "Name the sign with the table: reversed, the rows of the past are read for the future.")


class Scores(NamedTuple):
    """Scores and what they were made of, to be compared and not assumed."""

    scores: Float[Tensor, "Q K"]
    content: Float[Tensor, "Q K"]
    relation: Float[Tensor, "Q K"]


def check_scale(found: Scores) -> None:
    """Refuse scores that are not (content + relation) / √d: both parts share the scale."""
    gap = float((found.scores - (found.content + found.relation) / 2).abs().max())
    require(gap < 1e-9, "scores − (q·k + q·a) / √d", round(gap, 3), "0", "Add the relation to the dot product before it is divided.")


def check_width(table: Float[Tensor, "R D"]) -> None:
    """Refuse a table whose rows are not the 2k+1 of the declared k = 3."""
    require(len(table) == Clip(3).num_classes, "rows of the table", len(table), "7 = 2k + 1 for k = 3", "Take k from the checkpoint: k = (rows − 1) / 2.")


def check_classes(classes: Int[Tensor, "Q K"]) -> None:
    """Refuse class ids that are not one a pair of this call: [1, 1] broadcasts over any cache."""
    require(tuple(classes.shape) == (1, 6), "classes", classes, "shape (1, 6): one class for each query and key",
            "Build them from the call's positions, not from the query's own length.")


def check_budget(cost: Cost) -> None:
    """Refuse a schedule whose temporary exceeds the budget of eight times the scores."""
    scores = 4 * memory_ledger(1, 2, 64, 64, 32, 4).scores
    require(cost.amount <= 8 * scores, "bytes of the relation temporary", cost.amount, f"at most {8 * scores:,}",
            "Score the classes first and let every pair pick its own: compact_key_scores.")


# --- cases ----------------------------------------------------------------------------------------------------------

register(Failure(
    id="0x09B.no-value-side", section=SECTION, kind="wrong_answer", title="The value table is dropped as if it were a memory optimisation",
    broken=lambda: hand_output(hand_relation(values=False)), right=lambda: hand_output(hand_relation()), guard=check_sides, guard_name="relation-sides",
    broken_subject=lambda: hand_relation(values=False), right_subject=hand_relation, source="article 0x0C, 'omitted Shaw value term'"))


def _key_vectors_on_values() -> Relation:
    """The key table read on the value side: what a report describes for an image model."""
    return Relation(key_table=None, value_table=hand_tables()[0], rule=Clip(1), sign="key_minus_query")


register(Failure(
    id="0x09B.wrong-side", section=SECTION, kind="wrong_answer", title="The key-side vectors are added to the values",
    broken=lambda: hand_output(_key_vectors_on_values()), right=lambda: hand_output(hand_relation(values=False)),
    guard=lambda relation: require(relation.key_table is not None, "key_table", None, "the table that the scores read, [3, 4]",
                                   "A key-side relation belongs into q·(k + a); on the value side it is another model."),
    guard_name="relation-sides", broken_subject=_key_vectors_on_values, right_subject=lambda: hand_relation(values=False),
    source="leaderj1001/Stand-Alone-Self-Attention#7"))

register(Failure(
    id="0x09B.reversed", section=SECTION, kind="wrong_answer", title="A key-minus-query table is read with query minus key",
    broken=lambda: hand_output(hand_relation(sign="query_minus_key")), right=lambda: hand_output(hand_relation()), guard=check_fixture, guard_name="sign-fixture",
    broken_subject=lambda: hand_relation(sign="query_minus_key"), right_subject=hand_relation, source="article 0x0C, 'i-j in training and j-i in inference'"))


def _rows() -> Float[Tensor, "1 2 6 4"]:
    return torch.sin(torch.arange(48, dtype=torch.float64)).reshape(1, 2, 6, 4)


def _table(rows: int = 7) -> Float[Tensor, "R 4"]:
    return torch.cos(torch.arange(4.0 * rows, dtype=torch.float64)).reshape(rows, 4)


def scaled_scores(inside: bool) -> Scores:
    """Scores of head 0 with the relation inside or outside the 1/√d, and their two parts."""
    q, offset = _rows(), torch.arange(6) - torch.arange(6)[:, None]
    content, relation = (q @ q.mT)[0, 0], direct_key_scores(q, _table(), Clip(3).classes(offset))[0, 0]
    return Scores((content + relation) / 2 if inside else content / 2 + relation, content, relation)


register(Failure(
    id="0x09B.outside-scale", section=SECTION, kind="wrong_answer", title="The relation score is added after the division by √d",
    broken=lambda: scaled_scores(False).scores, right=lambda: scaled_scores(True).scores, guard=check_scale, guard_name="score-scale",
    broken_subject=lambda: scaled_scores(False), right_subject=lambda: scaled_scores(True), source="OpenNMT/CTranslate2#123"))


def _key_scores(classes: Int[Tensor, "Q K"]) -> Float[Tensor, "1 2 1 6"]:
    """Relation scores of the newest query over six cached keys; class ids [1, 1] broadcast."""
    return compact_key_scores(_rows()[:, :, -1:], _table(), classes.expand(1, 6))


def _window_classes() -> Int[Tensor, "1 1"]:
    return Clip(3).classes(torch.zeros(1, 1, dtype=torch.long))


def _cache_classes() -> Int[Tensor, "1 6"]:
    return Clip(3).classes(AttentionGeometry.decode(5).offsets("key_minus_query"))


register(Failure(
    id="0x09B.window-classes", section=SECTION, kind="wrong_answer", title="A decode step takes its classes from the query's own length",
    broken=lambda: _key_scores(_window_classes()), right=lambda: _key_scores(_cache_classes()), guard=check_classes, guard_name="class-shape",
    broken_subject=_window_classes, right_subject=_cache_classes, source="huggingface/transformers#19045 (BERT relative_key with a cache)"))


def _with_rows(rows: int) -> Float[Tensor, "1 2 6 6"]:
    """Relation scores by a table of ``rows`` rows, clipped at its own k."""
    offset = torch.arange(6) - torch.arange(6)[:, None]
    return compact_key_scores(_rows(), _table(7)[:rows], Clip((rows - 1) // 2).classes(offset))


register(Failure(
    id="0x09B.other-k", section=SECTION, kind="wrong_answer", title="The first five rows of a seven-row table are read with k = 2",
    broken=lambda: _with_rows(5), right=lambda: _with_rows(7), guard=check_width, guard_name="table-rows",
    broken_subject=lambda: _table()[:5], right_subject=_table, source="article 0x09B, 'incompatible table rows'"))

register(Failure(
    id="0x09B.beyond-the-table", section=SECTION, kind="late_error", title="BERT's relative keys do not clip: a longer text has no row",
    broken=lambda: torch.zeros(7, 4)[torch.arange(6)[None] - torch.arange(6)[:, None] + 3], right=lambda: Clip(3).classes(torch.arange(-5, 6)),
    guard=lambda rule: rule.classes(torch.arange(-5, 6)), guard_name="table-range", broken_subject=lambda: BertDistances(4), right_subject=lambda: Clip(3),
    source="huggingface/transformers#9164"))


def _cost(schedule: str) -> Cost:
    """The relation scores of 64 queries and keys, and the bytes of the temporary beside them, in float32."""
    q = torch.sin(torch.arange(2 * 64 * 32.0)).reshape(1, 2, 64, 32)
    table, offset = torch.cos(torch.arange(9 * 32.0)).reshape(9, 32), torch.arange(64) - torch.arange(64)[:, None]
    ledger = memory_ledger(1, 2, 64, 64, 32, 4)
    run, amount = (direct_key_scores, ledger.direct_keys) if schedule == "direct" else (compact_key_scores, ledger.compact_keys)
    return Cost(run(q, table, Clip(4).classes(offset)), 4 * amount)


register(Failure(
    id="0x09B.expanded-vectors", section=SECTION, kind="excess_cost", title="A relation vector is stored for every pair",
    broken=lambda: _cost("direct"), right=lambda: _cost("compact"), guard=check_budget, guard_name="memory-ledger", tolerance=1e-4,
    source="article 0x0C, 'without a memory ledger'; tensorflow/tensor2tensor#661"))
