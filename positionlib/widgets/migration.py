"""Migration stepper: one thing is forgotten when a position table grows; which check notices, and how far the release gets.

Contract: every line is what :class:`~positionlib.checkpoints.PositionTable` or :class:`~positionlib.checkpoints.Release` answered when the
walk was made with that slip. A table of four rows and width 2 grows to six.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from positionlib.checkpoints import STATES, OutsideReceipt, PositionTable, Release, migrate_position_table
from positionlib.errors import PositionContractError
from positionlib.identity import AdmissionTuple
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Matrices, Matrix, Table

OLD_ROWS, NEW_ROWS = 4, 6
FORGOTTEN = {
    "nothing": "nothing", "configuration": "raise the configuration", "weights": "enlarge the weights", "moments": "enlarge the moments",
    "reset": "keep the moments' values", "label": "call new rows new", "regression": "test the base range", "receipt": "ask somebody outside",
    "cache": "drop the old cache"}
POLICIES = ("zeros", "mean", "repeat", "interpolate")
ASKS = ("nothing changed yet", "old rows bit for bit, new rows named", "old moments as a prefix", "saved = running, in every part",
        "outputs at every old position", "a receipt from outside", "all of it, in order")


@dataclass(frozen=True)
class Walk:
    """How far a release came: states entered, what stopped it ("" when nothing did), and the tables at the end."""

    passed: tuple[str, ...]
    stopped: str
    field: str
    release: Release | None

    @property
    def stage(self) -> int:
        """Index of the first state that was not entered; 7 when all were."""
        return len(self.passed)


def _old() -> PositionTable:
    identity = AdmissionTuple("r1", "c1", ("learned_absolute",), OLD_ROWS, OLD_ROWS, "contiguous", None, "eager")
    weight = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 4.0]])
    return PositionTable(weight=weight, identity=identity, provenance=("trained",) * OLD_ROWS, moments={"exp_avg": weight / 10, "exp_avg_sq": weight / 100})


@cache
def walk(forgotten: str, policy: str) -> Walk:
    """The whole way with one thing left out; the first refusal ends it."""
    old, release, built = _old(), None, False
    try:
        new = migrate_position_table(old, NEW_ROWS, policy=policy, release_id="r2", checkpoint_id="c2")
        if forgotten == "configuration":
            new = replace(new, identity=new.identity._replace(config_max_position_embeddings=OLD_ROWS), position_ids=None)
        if forgotten == "weights":
            new = replace(new, weight=old.weight)
        if forgotten == "moments":
            new = replace(new, moments=old.moments)
        if forgotten == "reset":
            new = replace(new, moments={name: torch.zeros_like(moment) for name, moment in new.moments.items()})
        if forgotten == "label":
            new = replace(new, provenance=("trained",) * NEW_ROWS)
        built, release = True, Release.draft(old)
        release = release.table_migrated(new)
        release = release.optimizer_migrated()
        release = release.checkpoint_reconciled(new, new)
        if forgotten != "regression":
            release = release.regression_passed(torch.arange(OLD_ROWS), old.weight, new.weight[:OLD_ROWS], 0.0)
        issuer = "r2" if forgotten == "receipt" else "evaluation team"
        release = release.extended_range_evaluated(OutsideReceipt(issuer=issuer, identity=new.identity, first=OLD_ROWS, last=NEW_ROWS - 1, result="measured"))
        release = release.released()
        release.admit((old if forgotten == "cache" else new).identity)
    except PositionContractError as refusal:
        return Walk(release.passed if built else ("DRAFT",), str(refusal), refusal.field, release)
    return Walk(release.passed, "", "", release)


def migration_stepper(forgotten: Sequence[str] = tuple(FORGOTTEN), policy: Sequence[str] = POLICIES) -> Explorer:
    """The second explorer of chapter 0x07. Every argument lists at least two values.

    Raises
    ------
    PositionContractError
        a list with one value, or an unknown policy.
    """
    controls = [Control("forgotten", "Forgotten: to", forgotten, labels=[FORGOTTEN[name] for name in forgotten]), Control("policy", "New rows", policy)]
    start = {"forgotten": "configuration" if "configuration" in forgotten else forgotten[0]}
    return Explorer(name="migration-stepper", title="Migration stepper", question="Which half-done migration is refused, and where?",
                    controls=controls, compute=_panels, caption=_caption, start=start)


def _panels(forgotten: str, policy: str):
    done, old = walk(forgotten, policy), _old()
    last = STATES[done.stage] if done.stage < len(STATES) else ""
    rows = [[state, "entered" if state in done.passed else "refused" if state == last else "not reached", ask] for state, ask in zip(STATES, ASKS)]
    if done.stage == len(STATES):
        rows.append(["a live cache", "refused" if done.stopped else "admitted", "one admission tuple"])
    new = migrate_position_table(old, NEW_ROWS, policy=policy, release_id="r2", checkpoint_id="c2")
    marks = tuple((r, d) for r in range(OLD_ROWS, NEW_ROWS) for d in range(2))
    words = [f"{r}: {word}" for r, word in enumerate(new.provenance)]
    tables = Matrices([
        Matrix("Old table", old.weight.numpy(), row_labels=[f"{r}: trained" for r in range(OLD_ROWS)]),
        Matrix("Whole migration", new.weight.numpy(), row_labels=words, highlight=marks, note="the new rows are outlined"),
        Matrix("First moment", np.asarray(new.moments["exp_avg"]), row_labels=[str(r) for r in range(NEW_ROWS)], highlight=marks)])
    return [Table("The way to the release", ["state", "outcome", "asks for"], rows, highlight=[i for i, row in enumerate(rows) if row[1] == "refused"]),
            tables, Badges([Badge("states entered", f"{len(done.passed)} of {len(STATES)}", "ok" if not done.stopped else "warn"),
                            Badge("served", done.release.serving.identity.release_id if done.release else "r1"),
                            Badge("stopped by", done.field.split(",")[0] or "nothing", "bad" if done.stopped else "ok")])]


def _caption(forgotten: str, policy: str) -> str:
    done = walk(forgotten, policy)
    rows = f" New rows: {policy}, which decides their values and no state."
    if not done.stopped:
        return "Nothing was forgotten: all seven states are entered, and the new tuple is served." + rows
    said = f"Forgotten: to {FORGOTTEN[forgotten]}. "
    if done.release is None:
        said += "The new table cannot even be built, so nothing leaves DRAFT and r1 stays in service."
    elif done.stage == len(STATES):
        said += "The release is complete, and the cache of r1 is refused: its tuple is not the one that is served."
    else:
        said += f"The release stops before {STATES[done.stage]}, and r1 stays in service."
    return f"{said} Stopped by {done.field.split(',')[0]}.{rows}"
