"""A position table and everything that changes with its rows."""

from __future__ import annotations

from positionlib.checkpoints import PositionTable, migrate_position_table
from positionlib.identity import AdmissionTuple
from tests.cases.expect import Call, Expectation
from tests.cases.values import array


def migrate(call: Call, expect: Expectation) -> None:
    weight, names = array(call["old_weight"]), [name for name in call if name.startswith(("exp_avg", "max_exp_avg"))]
    rows = len(weight)
    identity = AdmissionTuple("old release", "old checkpoint", ("learned_absolute",), rows, rows, "contiguous", None, "eager")
    old = PositionTable(weight=weight, identity=identity, provenance=("trained",) * rows, moments={name: array(call[name]) for name in names})
    policy = call.choose("new_row_policy", {"zeros": "zeros", "mean": "mean", "repeat": "repeat", "interpolate": "interpolate"})
    new = migrate_position_table(old, call["new_rows"], policy=policy, release_id="new release", checkpoint_id="new checkpoint")
    expect.value(new.weight, "weight")
    for name in names:
        expect.value(new.moments[name], name)
    expect.value(new.position_ids, "position_ids")
    expect.value(new.identity.config_max_position_embeddings, "max_positions")
    expect.holds(new.identity == old.identity, "old_cache_reusable")


HANDLERS = {"migrate_position_table": migrate}
