"""The stepper tells what the library answers to each slip, walked here once more by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from positionlib import widgets
from positionlib.checkpoints import STATES, OutsideReceipt, PositionTable, Release, migrate_position_table
from positionlib.errors import PositionContractError
from positionlib.identity import AdmissionTuple
from positionlib.widgets.panels import Badges, Matrices, Table

# slip: (states entered, field of the refusal)
EXPECTED = {
    "nothing": (7, ""), "configuration": (1, "identity.config_max_position_embeddings"), "weights": (1, "identity.table_rows"),
    "moments": (1, "moments.exp_avg"), "reset": (2, "moments.exp_avg"), "label": (1, "provenance"), "regression": (4, "state"),
    "receipt": (5, "receipt.issuer"), "cache": (7, "cache.release_id")}
NEW_VALUES = {"zeros": [[0, 0]] * 2, "mean": [[1, 1.5]] * 2, "repeat": [[1, 0], [0, 2]], "interpolate": [[1.8, 1.6], [0, 4]]}


@pytest.fixture(scope="module")
def explorer():
    return widgets.migration_stepper()


def _fresh(policy):
    identity = AdmissionTuple("r1", "c1", ("learned_absolute",), 4, 4, "contiguous", None, "eager")
    weight = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 4.0]])
    old = PositionTable(weight=weight, identity=identity, provenance=("trained",) * 4, moments={"exp_avg": weight / 10, "exp_avg_sq": weight / 100})
    return old, migrate_position_table(old, 6, policy=policy, release_id="r2", checkpoint_id="c2")


def test_every_slip_stops_where_it_must(explorer):
    assert set(EXPECTED) == {choice["forgotten"] for choice in explorer.choices()}
    for choice in explorer.choices():
        entered, field = EXPECTED[choice["forgotten"]]
        table = next(p for p in explorer.state(**choice) if isinstance(p, Table))
        outcome = {row[0]: row[1] for row in table.rows}
        assert [outcome[state] for state in STATES[:entered]] == ["entered"] * entered
        if entered < 7:
            assert outcome[STATES[entered]] == "refused" and {outcome[state] for state in STATES[entered + 1:]} <= {"not reached"}
        else:
            assert outcome["a live cache"] == ("refused" if field else "admitted")
        badge = {b.label: b.value for p in explorer.state(**choice) if isinstance(p, Badges) for b in p.items}
        assert badge == {"states entered": f"{entered} of 7", "served": "r2" if entered == 7 else "r1", "stopped by": field or "nothing"}


def test_the_tables_are_the_migrated_ones(explorer):
    for choice in explorer.choices():
        old, new = _fresh(choice["policy"])
        shown = next(p for p in explorer.state(**choice) if isinstance(p, Matrices)).items
        np.testing.assert_array_equal(shown[0].values, old.weight.numpy())
        np.testing.assert_allclose(shown[1].values, [*old.weight.tolist(), *NEW_VALUES[choice["policy"]]], atol=0.005)
        np.testing.assert_allclose(shown[1].values, new.weight.numpy(), atol=0.005)
        np.testing.assert_allclose(shown[2].values, [[0.1, 0], [0, 0.2], [0.3, 0], [0, 0.4], [0, 0], [0, 0]], atol=0.005)
        assert list(shown[1].row_labels)[4:] == [f"{r}: new:{choice['policy']}" for r in (4, 5)]


def test_two_refusals_once_more_by_hand():
    old, new = _fresh("zeros")
    with pytest.raises(PositionContractError) as caught:
        replace(new, moments=old.moments)
    assert caught.value.field == EXPECTED["moments"][1]
    release = Release.draft(old).table_migrated(new).optimizer_migrated().checkpoint_reconciled(new, new)
    with pytest.raises(PositionContractError) as caught:
        release.extended_range_evaluated(OutsideReceipt(issuer="me", identity=new.identity, first=4, last=5, result="ok"))
    assert caught.value.field == "state" and len(release.passed) == EXPECTED["regression"][0]


def test_captions_are_true(explorer):
    for choice in explorer.choices():
        entered, field = EXPECTED[choice["forgotten"]]
        said = explorer.caption_of(**choice)
        assert f"New rows: {choice['policy']}," in said and ("r1 stays in service" in said) == (entered < 7)
        assert (f"Stopped by {field}." in said) == bool(field) and ("all seven states" in said) == (not field)
        assert ("cannot even be built" in said) == (choice["forgotten"] in ("configuration", "weights", "moments"))
        if 1 < entered < 7 or choice["forgotten"] == "label":
            assert f"stops before {STATES[entered]}" in said


def test_state_at_rest_size_and_refusals(explorer):
    assert explorer.choice == {"forgotten": "configuration", "policy": "zeros"} and explorer.size < 60_000
    with pytest.raises(PositionContractError, match="2 to 60 values"):
        widgets.migration_stepper(policy=["zeros"])
