"""Failures of learned absolute positions (0x07): a lookup outside the table, and every half-done migration of one.

Convention of the section: positions count from 0, P is the number of table rows, and a base position is one that the old table has.
The small release below grows a table of 6 rows to 8; its base positions are 0 to 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from positionlib.attention import attend
from positionlib.checkpoints import OutsideReceipt, PositionTable, Release, migrate_position_table
from positionlib.geometry import AttentionGeometry
from positionlib.identity import AdmissionTuple
from positionlib.lab.registry import Claim, Failure, register
from positionlib.mechanisms.learned import LearnedAbsolute

ROWS, ENLARGED, WIDTH = 6, 8, 4
NEW = {"release_id": "r2", "checkpoint_id": "c2"}
ADAM = {"lr": 0.05, "weight_decay": 0.1}


def _weight(seed: int = 0) -> Float[Tensor, "P D"]:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def served_table(seed: int = 0) -> PositionTable:
    """Six trained rows with the moments of three Adam steps, release r1."""
    weight = torch.nn.Parameter(_weight(seed))
    optimizer = torch.optim.AdamW([weight], **ADAM)
    for _ in range(3):
        optimizer.zero_grad()
        (weight * _weight(seed + 1)).sum().backward()
        optimizer.step()
    identity = AdmissionTuple("r1", "c1", ("learned_absolute",), ROWS, ROWS, "contiguous", None, "eager")
    return PositionTable(weight=weight.detach(), identity=identity, provenance=("trained",) * ROWS, moments=dict(optimizer.state[weight]))


def enlarged_table(policy: str = "zeros") -> PositionTable:
    """The same table with two more rows, release r2."""
    return migrate_position_table(served_table(), ENLARGED, policy=policy, **NEW)


def resumed(weight: Float[Tensor, "P D"], moments: Mapping[str, Tensor], positions: list[int], steps: int = 1) -> Float[Tensor, "P D"]:
    """The table after AdamW steps whose batches hold these positions and no others."""
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([parameter], **ADAM)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: {name: moment.clone() for name, moment in moments.items()}}})
    for _ in range(steps):
        optimizer.zero_grad()
        F.embedding(torch.tensor(positions), parameter).sum().backward()
        optimizer.step()
    return parameter.detach()


def release_at(state: str, table: PositionTable | None = None) -> Release:
    """The small release on its lawful way, at a state up to BASE-RANGE_REGRESSION_PASS."""
    new = table or enlarged_table()
    release = Release.draft(served_table()).table_migrated(new)
    if state != "TABLE_MIGRATED":
        release = release.optimizer_migrated()
    if state in ("CHECKPOINT_RECONCILED", "BASE-RANGE_REGRESSION_PASS"):
        release = release.checkpoint_reconciled(new, new)
    if state == "BASE-RANGE_REGRESSION_PASS":
        release = release.regression_passed(torch.arange(ROWS), release.old.weight, release.new.weight[:ROWS], 0.0)
    return release


def receipt() -> OutsideReceipt:
    """A finding on the two new positions, as somebody else would sign it."""
    return OutsideReceipt(issuer="evaluation team", identity=enlarged_table().identity, first=ROWS, last=ENLARGED - 1, result="read on the new positions")


register(Failure(
    id="0x07.out-of-range", section="0x07", kind="late_error", title="Position 800 of a table with 512 rows",
    broken=lambda: F.embedding(torch.tensor([800]), torch.zeros(512, 2)), right=lambda: F.embedding(torch.tensor([511]), torch.zeros(512, 2)),
    guard=lambda position: LearnedAbsolute(512, 2).row_ids(torch.tensor([position])), guard_name="table-range",
    source="article 0x07; huggingface/transformers#11242", broken_subject=lambda: 800, right_subject=lambda: 511))


def sliced_rows(weight: Float[Tensor, "P D"], configured: int, past: int = 5, new: int = 3) -> Float[Tensor, "1 n D"]:
    """States of ``new`` zero tokens behind ``past`` others, with ids sliced from a range of ``configured`` (BERT's way).

    Past the end of the range the slice is shorter than the call. One remaining id broadcasts over all tokens.
    """
    ids = torch.arange(configured)[None, past:past + new]
    return torch.zeros(1, new, weight.shape[1], dtype=weight.dtype) + F.embedding(ids, weight)


def _with_config(configured: int) -> PositionTable:
    table = enlarged_table()
    return replace(table, identity=table.identity._replace(config_max_position_embeddings=configured), position_ids=None)


register(Failure(
    id="0x07.weights-without-config", section="0x07", kind="wrong_answer", title="The table is enlarged, the id range still ends at the old maximum",
    broken=lambda: sliced_rows(enlarged_table("repeat").weight, ROWS), right=lambda: sliced_rows(enlarged_table("repeat").weight, ENLARGED),
    guard=_with_config, guard_name="position-table", broken_subject=lambda: ROWS, right_subject=lambda: ENLARGED,
    source="article 0x07, migration failures; BERT embeddings with past_key_values_length, transformers 4.57.6"))


def _config_over(rows: int) -> PositionTable:
    table = served_table()
    return replace(table, identity=table.identity._replace(config_max_position_embeddings=rows), position_ids=None)


register(Failure(
    id="0x07.config-without-weights", section="0x07", kind="late_error", title="The configuration admits position 7, the table still has 6 rows",
    broken=lambda: F.embedding(torch.tensor([7]), served_table().weight), right=lambda: F.embedding(torch.tensor([7]), enlarged_table().weight),
    guard=_config_over, guard_name="position-table", broken_subject=lambda: ENLARGED, right_subject=lambda: ROWS,
    source="article 0x07, migration failures; huggingface/sentence-transformers#3347"))

register(Failure(
    id="0x07.stale-moments", section="0x07", kind="late_error", title="Moments of 6 rows beside a table of 8",
    broken=lambda: resumed(enlarged_table().weight, served_table().moments, [0, 7]),
    right=lambda: resumed(enlarged_table().weight, enlarged_table().moments, [0, 7]),
    guard=lambda moments: replace(enlarged_table(), moments=moments), guard_name="position-table",
    broken_subject=lambda: served_table().moments, right_subject=lambda: enlarged_table().moments,
    source="article 0x07, migration failures; article 0x0C, failure-to-guard table"))


def _fresh_moments() -> dict[str, Tensor]:
    return {name: torch.zeros_like(moment) for name, moment in enlarged_table().moments.items()}


register(Failure(
    id="0x07.fresh-moments", section="0x07", kind="wrong_answer", title="The optimizer starts anew: right shapes, other steps on the old rows",
    broken=lambda: resumed(enlarged_table().weight, _fresh_moments(), [0, 7])[:ROWS],
    right=lambda: resumed(enlarged_table().weight, enlarged_table().moments, [0, 7])[:ROWS],
    guard=lambda moments: release_at("TABLE_MIGRATED", replace(enlarged_table(), moments=moments)).optimizer_migrated(),
    guard_name="release-state", broken_subject=_fresh_moments, right_subject=lambda: enlarged_table().moments,
    source="article 0x07, migration failures (optimizer state of another row space)"))


def _trained_claim(rows: int, words: tuple[str, ...]) -> Claim:
    """Whether every row called trained differs from the zeros that a new row starts with."""
    zero = [r for r, word in enumerate(words) if word == "trained" and not enlarged_table().weight[r].any()]
    return Claim(f"{rows} of {ENLARGED} rows are trained.", not zero, {"called trained, still zero": zero})


register(Failure(
    id="0x07.called-trained", section="0x07", kind="false_claim", title="New rows are labelled trained because they exist",
    broken=lambda: _trained_claim(ENLARGED, ("trained",) * ENLARGED), right=lambda: _trained_claim(ROWS, enlarged_table().provenance),
    guard=lambda words: Release.draft(served_table()).table_migrated(replace(enlarged_table(), provenance=words)), guard_name="release-state",
    broken_subject=lambda: ("trained",) * ENLARGED, right_subject=lambda: enlarged_table().provenance,
    source="article 0x07, migration failures; article 0x0C, resizing a learned table"))


def cached_answer(keys: PositionTable) -> Float[Tensor, "1 1 1 1"]:
    """Position 6 of the new table asks; the keys of positions 0 to 5 were cached under ``keys``. Every token's content is 0."""
    new = trained_on()
    rows = torch.cat((keys.weight[:ROWS], new.weight[ROWS:ROWS + 1]))[None, None]
    values = torch.arange(ROWS + 1, dtype=rows.dtype)[None, None, :, None]
    return attend(new.weight[ROWS][None, None, None], rows, values, None, AttentionGeometry.decode(ROWS))


def trained_on() -> PositionTable:
    """The enlarged table after twenty more steps in which every position took part."""
    table = enlarged_table("mean")
    return replace(table, weight=resumed(table.weight, table.moments, list(range(ENLARGED)), 20))


register(Failure(
    id="0x07.old-cache", section="0x07", kind="wrong_answer", title="Keys cached under the old release are read by the new one",
    broken=lambda: cached_answer(served_table()), right=lambda: cached_answer(trained_on()),
    guard=lambda tuple_: _released().admit(tuple_), guard_name="admission-tuple",
    broken_subject=lambda: served_table().identity, right_subject=lambda: enlarged_table().identity,
    source="article 0x07, migration failures; article 0x0C, reusing a prefix cache"))


def _released() -> Release:
    return release_at("BASE-RANGE_REGRESSION_PASS").extended_range_evaluated(receipt()).released()


def extended() -> Float[Tensor, "P D"]:
    """The base rows after fifty steps on the two new positions alone."""
    table = enlarged_table()
    return resumed(table.weight, table.moments, [6, 7], 50)[:ROWS]


register(Failure(
    id="0x07.skipped-regression", section="0x07", kind="wrong_answer", title="Training on long positions moves the base rows, and nobody looks",
    broken=extended, right=lambda: served_table().weight,
    guard=lambda state: release_at(state).extended_range_evaluated(receipt()), guard_name="release-state",
    broken_subject=lambda: "CHECKPOINT_RECONCILED", right_subject=lambda: "BASE-RANGE_REGRESSION_PASS",
    source="article 0x07, migration failures"))


def stretched() -> Float[Tensor, "P D"]:
    """The base positions of a table whose six rows were interpolated over eight positions."""
    rows = served_table().weight.T[None]
    return F.interpolate(rows, size=ENLARGED, mode="linear", align_corners=True)[0].T[:ROWS]


register(Failure(
    id="0x07.stretched-table", section="0x07", kind="wrong_answer", title="Interpolating the whole table moves the positions that worked",
    broken=stretched, right=lambda: served_table().weight,
    guard=lambda after: release_at("CHECKPOINT_RECONCILED").regression_passed(torch.arange(ROWS), served_table().weight, after, 1e-6),
    guard_name="base-range-regression", source="article 0x0C, interpolating learned positions without checking short-context behaviour"))

register(Failure(
    id="0x07.another-checkpoint", section="0x07", kind="wrong_answer", title="The position table of another checkpoint of the same shape",
    broken=lambda: served_table(seed=7).weight, right=lambda: served_table().weight,
    guard=lambda weight: release_at("OPTIMIZER_MIGRATED").checkpoint_reconciled(
        enlarged_table(), replace(enlarged_table(), weight=torch.cat((weight, torch.zeros(2, WIDTH, dtype=weight.dtype))))),
    guard_name="release-state", source="article 0x0C, using a position table from another checkpoint"))
