"""Seven states in one order, each with its evidence; one way back, to the whole old tuple."""

from dataclasses import replace

import pytest
import torch

from positionlib.checkpoints import STATES, OutsideReceipt, PositionTable, Release, migrate_position_table, row_provenance
from positionlib.identity import AdmissionTuple
from tests.refusals import refused

OLD = AdmissionTuple("r1", "c1", ("learned_absolute",), 4, 4, "contiguous", None, "eager")
WEIGHT = torch.arange(12.0).reshape(4, 3)
MOMENTS = {"step": torch.tensor(7.0), "exp_avg": WEIGHT + 1, "exp_avg_sq": WEIGHT + 2}


def served(**changes):
    return PositionTable(**{"weight": WEIGHT, "identity": OLD, "provenance": ("trained",) * 3 + ("untrained",), "moments": MOMENTS, **changes})


def enlarged(old, **names):
    return migrate_position_table(old, 6, policy="mean", **{"release_id": "r2", "checkpoint_id": "c2", **names})


def outside(new, **changes):
    return OutsideReceipt(**{"issuer": "evaluation team", "identity": new.identity, "first": 4, "last": 5, "result": "not measured well", **changes})


def copy_of(table):
    """What a file gives back: the same values in other memory."""
    return replace(table, weight=table.weight.clone(), moments={name: moment.clone() for name, moment in table.moments.items()})


def walk(until="RELEASED", old=None, train=True):
    """A release in the state ``until``."""
    old = old or served()
    new = enlarged(old if train else replace(old, moments={}))
    outputs = torch.zeros(4, 2)
    steps = {"TABLE_MIGRATED": lambda r: r.table_migrated(new), "OPTIMIZER_MIGRATED": lambda r: r.optimizer_migrated(),
             "CHECKPOINT_RECONCILED": lambda r: r.checkpoint_reconciled(new, copy_of(new)),
             "BASE-RANGE_REGRESSION_PASS": lambda r: r.regression_passed(torch.arange(4), outputs, outputs + 1e-6, 1e-5),
             "EXTENDED-RANGE_EVALUATED": lambda r: r.extended_range_evaluated(outside(new)), "RELEASED": lambda r: r.released()}
    release = Release.draft(old)
    for state in STATES[1 : STATES.index(until) + 1]:
        if train or state != "OPTIMIZER_MIGRATED":
            release = steps[state](release)
    return release


ACTS = {  # state to enter: how, with the least evidence
    "TABLE_MIGRATED": lambda r: r.table_migrated(enlarged(r.old)), "OPTIMIZER_MIGRATED": lambda r: r.optimizer_migrated(),
    "CHECKPOINT_RECONCILED": lambda r: r.checkpoint_reconciled(served(), served()),
    "BASE-RANGE_REGRESSION_PASS": lambda r: r.regression_passed(torch.arange(4), torch.zeros(4, 1), torch.zeros(4, 1), 0.0),
    "EXTENDED-RANGE_EVALUATED": lambda r: r.extended_range_evaluated(outside(r.new or r.old)), "RELEASED": lambda r: r.released()}


def test_the_states_are_the_article_s_and_all_of_them_are_passed():
    assert STATES == ("DRAFT", "TABLE_MIGRATED", "OPTIMIZER_MIGRATED", "CHECKPOINT_RECONCILED", "BASE-RANGE_REGRESSION_PASS",
                      "EXTENDED-RANGE_EVALUATED", "RELEASED")
    release = walk()
    assert release.passed == STATES and release.receipt.result == "not measured well"
    assert release.serving is release.new and release.serving.identity.table_rows == 6


@pytest.mark.parametrize("at", STATES)
@pytest.mark.parametrize("to", STATES[1:])
def test_only_the_next_state_can_be_entered_and_only_one_may_be_skipped(at, to):
    i, j = STATES.index(at), STATES.index(to)
    if j == i + 1 or (at, to) == ("TABLE_MIGRATED", "CHECKPOINT_RECONCILED"):
        return  # walked above, and below
    error = refused(lambda: ACTS[to](walk(at)), "state")
    assert error.value == at and STATES[j - 1] in error.expected


def test_the_optimizer_is_skipped_only_by_a_table_without_moments():
    release = walk(train=False)
    assert release.passed == tuple(state for state in STATES if state != "OPTIMIZER_MIGRATED") and not release.serving.moments
    migrated = walk("TABLE_MIGRATED")
    refused(lambda: migrated.checkpoint_reconciled(migrated.new, migrated.new), "state")
    refused(lambda: walk("TABLE_MIGRATED", train=False).optimizer_migrated(), "moments")


def test_a_release_is_never_changed_by_a_step():
    first = Release.draft(served())
    first.table_migrated(enlarged(first.old))
    assert first.passed == ("DRAFT",) and first.new is None and first.serving is first.old


@pytest.mark.parametrize("change, field", [
    (lambda t: replace(t, weight=t.weight + 0.5), "weight"), (lambda t: replace(t, weight=torch.where(t.weight == 0, -0.0, t.weight)), "weight"),
    (lambda t: replace(t, weight=t.weight.double(), moments={}), "weight"),
    (lambda t: replace(t, identity=t.identity._replace(release_id="r1")), "identity.release_id"),
    (lambda t: replace(t, identity=t.identity._replace(checkpoint_id="c1")), "identity.checkpoint_id"),
    (lambda t: replace(t, identity=t.identity._replace(position_method=("sinusoidal",))), "identity.position_method"),
    (lambda t: replace(t, provenance=("trained",) * 6), "provenance"),
    (lambda t: replace(t, provenance=("trained",) * 4 + ("new:mean",) * 2), "provenance"),
    (lambda t: replace(t, row_offset=1), "row_offset"),
    (lambda t: t.weight, "new")])
def test_a_migrated_table_keeps_its_rows_and_calls_new_ones_new(change, field):
    refused(lambda: Release.draft(served()).table_migrated(change(enlarged(served()))), field)


def test_a_release_grows_the_table():
    small = migrate_position_table(served(), 3, policy="truncate", release_id="r2", checkpoint_id="c2")
    refused(lambda: Release.draft(served()).table_migrated(small), "weight")
    refused(lambda: Release.draft(served()).table_migrated(served()), "weight")


@pytest.mark.parametrize("spoil, field", [
    (lambda m: {**m, "exp_avg": torch.zeros(6, 3)}, "moments.exp_avg"), (lambda m: {**m, "exp_avg_sq": m["exp_avg_sq"] + 1}, "moments.exp_avg_sq"),
    (lambda m: {**m, "exp_avg": torch.ones(6, 3).index_copy(0, torch.arange(4), m["exp_avg"][:4])}, "moments.exp_avg"),
    (lambda m: {**m, "step": torch.tensor(0.0)}, "moments.step"), (lambda m: {"step": m["step"]}, "moments")])
def test_moments_are_carried_over(spoil, field):
    new = enlarged(served())
    release = Release.draft(served()).table_migrated(replace(new, moments=spoil(new.moments)))
    refused(release.optimizer_migrated, field)


@pytest.mark.parametrize("spoil, field", [
    (lambda t: replace(t, weight=t.weight + 1e-6), "saved.weight"), (lambda t: replace(t, weight=t.weight.half().float() + 1e-3), "saved.weight"),
    (lambda t: replace(t, identity=t.identity._replace(adapter_id="a")), "saved.identity"),
    (lambda t: replace(t, provenance=("trained",) * 6), "saved.provenance"), (lambda t: replace(t, moments={}), "saved.moments"),
    (lambda t: replace(t, moments={**t.moments, "step": torch.tensor(0.0)}), "saved.moments")])
def test_the_checkpoint_holds_what_the_model_holds(spoil, field):
    release = walk("OPTIMIZER_MIGRATED")
    refused(lambda: release.checkpoint_reconciled(release.new, spoil(release.new)), field)


def test_training_between_migration_and_checkpoint_is_counted():
    release = walk("OPTIMIZER_MIGRATED")
    counts = torch.tensor([5, 5, 0, 0, 2, 0])
    live = replace(release.new, weight=release.new.weight + 1, provenance=row_provenance(counts, release.new.provenance))
    assert live.provenance == ("trained",) * 3 + ("untrained", "trained", "new:mean")
    assert release.checkpoint_reconciled(live, copy_of(live), counts).new.weight[0, 0] == 1
    refused(lambda: release.checkpoint_reconciled(live, live), "live.provenance")
    refused(lambda: release.checkpoint_reconciled(replace(live, identity=OLD._replace(table_rows=6, config_max_position_embeddings=6)), live), "live.identity")
    serving = walk("TABLE_MIGRATED", train=False)
    refused(lambda: serving.checkpoint_reconciled(replace(serving.new, weight=serving.new.weight + 1), serving.new), "live.weight")


def test_the_base_range_is_tested_whole_and_within_the_tolerance():
    release, out = walk("CHECKPOINT_RECONCILED"), torch.zeros(4, 2)
    error = refused(lambda: release.regression_passed(torch.arange(4), out, out.index_fill(0, torch.tensor(2), 0.25), 0.1), "after, position 2")
    assert error.value == "0.25 away"
    refused(lambda: release.regression_passed(torch.tensor([0, 1, 3]), out[:3], out[:3], 0.1), "positions")
    refused(lambda: release.regression_passed(torch.arange(4), out, out / 0, 0.1), "after")
    refused(lambda: release.regression_passed(torch.arange(4), out, out, float("inf")), "tolerance")
    refused(lambda: release.regression_passed(torch.arange(4), out, out, -1.0), "tolerance")
    refused(lambda: release.regression_passed(torch.arange(4), out, out[:3], 0.1), "after")


@pytest.mark.parametrize("changes, field", [
    ({"issuer": "positionlib"}, "receipt.issuer"), ({"issuer": "r2"}, "receipt.issuer"), ({"identity": OLD}, "receipt.identity"),
    ({"last": 4}, "receipt.positions"), ({"first": 0}, "receipt.positions"), ({"issuer": " "}, "issuer"), ({"result": ""}, "result")])
def test_the_extended_range_is_vouched_for_by_somebody_else(changes, field):
    release = walk("BASE-RANGE_REGRESSION_PASS")
    refused(lambda: release.extended_range_evaluated(outside(release.new, **changes)), field)


def test_anything_but_a_receipt_is_refused():
    refused(lambda: walk("BASE-RANGE_REGRESSION_PASS").extended_range_evaluated("fine"), "receipt")


@pytest.mark.parametrize("at", STATES)
def test_rolling_back_serves_the_very_old_object_again(at):
    old = served()
    before = [old.weight.clone(), *(moment.clone() for moment in old.moments.values())]
    back = walk(at, old).rolled_back()
    assert back.serving is old and back.new is None and back.receipt is None and back.state == "DRAFT"
    assert all(torch.equal(a, b) for a, b in zip(before, [old.weight, *old.moments.values()]))
    back.admit(OLD)


def test_a_cache_is_admitted_only_under_the_served_tuple():
    draft, done = walk("EXTENDED-RANGE_EVALUATED"), walk()
    draft.admit(OLD)
    done.admit(done.new.identity)
    refused(lambda: draft.admit(done.new.identity), "cache.release_id, cache.checkpoint_id, cache.table_rows, cache.config_max_position_embeddings")
    refused(lambda: done.admit(OLD), "cache.release_id, cache.checkpoint_id, cache.table_rows, cache.config_max_position_embeddings")
    refused(lambda: done.admit(done.new.identity._replace(runtime_backend="cuda")), "cache.runtime_backend")
    refused(lambda: done.admit(tuple(OLD)), "cache")
