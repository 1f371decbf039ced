"""One migration moves weight, moments, configuration, ids, provenance and identity, or refuses."""

import copy
from dataclasses import replace

import pytest
import torch

import positionlib as pl
from positionlib.checkpoints import PositionTable, migrate_position_table, row_provenance
from positionlib.identity import AdmissionTuple
from positionlib.mechanisms.learned import row_support
from positionlib.mechanisms.sinusoidal import sinusoidal_rows, sinusoidal_table
from tests.refusals import refused

NEW = {"release_id": "r2", "checkpoint_id": "c2"}


def identity(rows, configured=None):
    return AdmissionTuple("r1", "c1", ("learned_absolute",), rows, rows if configured is None else configured, "contiguous", None, "eager")


def table(rows=4, width=3, dtype=torch.float32, **changes):
    weight = torch.randn(rows, width, dtype=dtype)
    moments = {"step": torch.tensor(7.0), "exp_avg": torch.randn(rows, width), "exp_avg_sq": torch.rand(rows, width)}
    return PositionTable(**{"weight": weight, "identity": identity(rows), "provenance": ("trained",) * rows, "moments": moments, **changes})


def grown(old, new_rows, policy="zeros", **more):
    return migrate_position_table(old, new_rows, policy=policy, **NEW, **more)


SETTINGS = {"zeros": {}, "normal": {"std": 0.02, "generator": torch.Generator()}, "mean": {}, "repeat": {}, "interpolate": {},
            "formula": {"formula": lambda positions: positions[:, None] / torch.arange(1, 4)}}


@pytest.mark.parametrize("policy", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_everything_moves_and_the_old_rows_stay_bit_for_bit(policy, dtype):
    old = table(dtype=dtype)
    before = copy.deepcopy(old)
    new = grown(old, 9, policy, **SETTINGS[policy])
    assert torch.equal(new.weight[:4], old.weight) and new.weight.dtype == dtype and new.capacity == 9
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(new.moments[name][:4], old.moments[name]) and torch.equal(new.moments[name][4:], torch.zeros(5, 3))
    assert new.moments["step"] == 7 and new.position_ids.tolist() == list(range(9))
    assert new.provenance == ("trained",) * 4 + (f"new:{policy}",) * 5
    assert new.identity == identity(9)._replace(**NEW) and new.identity != old.identity
    new.weight.add_(1)
    for moment in new.moments.values():
        moment.add_(1)
    assert torch.equal(old.weight, before.weight), "rolling back needs the old object"
    assert all(torch.equal(moment, before.moments[name]) for name, moment in old.moments.items())


def test_new_rows_follow_the_named_policy():
    old = table(weight=torch.tensor([[9.0, 9.0], [0.0, 10.0], [1.0, 30.0], [2.0, 20.0]]), row_offset=1, moments={})
    assert grown(old, 6).weight[4:].tolist() == [[0.0, 0.0]] * 2
    assert grown(old, 6, "mean").weight[4:].tolist() == [[1.0, 20.0]] * 2, "the reserved row is no position"
    assert grown(old, 8, "repeat").weight[4:].tolist() == [[0.0, 10.0], [1.0, 30.0], [2.0, 20.0], [0.0, 10.0]]
    # Three positions become five: positions 3 and 4 read the old table at 1.5 and 2.
    assert grown(old, 6, "interpolate").weight[4:].tolist() == [[1.5, 25.0], [2.0, 20.0]]
    assert grown(old, 6, "formula", formula=lambda p: torch.stack((p, 10.0 * p), 1)).weight[4:].tolist() == [[3.0, 30.0], [4.0, 40.0]], "position, not row"
    drawn = grown(old, 2000, "normal", std=0.5, generator=torch.Generator().manual_seed(3))
    again = grown(old, 2000, "normal", std=0.5, generator=torch.Generator().manual_seed(3))
    assert torch.equal(drawn.weight, again.weight) and drawn.weight[4:].std().item() == pytest.approx(0.5, rel=0.05)


def test_a_sinusoid_goes_on_behind_rows_that_were_one():
    whole = sinusoidal_table(40, 6)
    old = table(25, 6, weight=whole[:25].clone(), moments={})
    assert torch.equal(grown(old, 40, "formula", formula=lambda positions: sinusoidal_rows(positions, 6)).weight, whole)


@pytest.mark.parametrize("rows, more", [(2, 1), (3, 4), (512, 512), (7, 93)])
def test_interpolated_rows_lie_on_a_straight_table(rows, more):
    straight = torch.arange(rows, dtype=torch.float64)[:, None] / (rows - 1)
    new = grown(table(rows, weight=straight, moments={}), rows + more, "interpolate").weight[rows:, 0]
    assert torch.allclose(new, torch.arange(rows, rows + more, dtype=torch.float64) / (rows + more - 1), atol=1e-15, rtol=0) and new[-1] == 1


def test_a_resumed_run_goes_on_as_if_nothing_had_happened():
    """Adam on the old positions: the migrated table and the old one take the same steps, and the new rows stay where they are."""
    torch.manual_seed(1)
    targets = torch.randn(6, 5, 3, dtype=torch.float64)

    def train(weight, state, steps):
        parameter = torch.nn.Parameter(weight.clone())
        optimizer = torch.optim.Adam([parameter], lr=0.1)
        if state:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: state}})
        for target in steps:
            optimizer.zero_grad()
            (parameter[torch.tensor([0, 1, 1, 3, 4])] - target).square().sum().backward()
            optimizer.step()
        return parameter.detach(), dict(optimizer.state[parameter])

    weight, state = train(torch.randn(5, 3, dtype=torch.float64), {}, targets[:3])
    old = table(5, weight=weight, moments=state, identity=identity(5))
    new = grown(old, 8, "mean")
    want, _ = train(weight, copy.deepcopy(state), targets[3:])
    got, after = train(new.weight, dict(new.moments), targets[3:])
    assert torch.equal(got[:5], want) and torch.equal(got[5:], new.weight[5:]) and after["step"] == 6
    assert not torch.equal(train(new.weight, {}, targets[3:])[0][:5], want), "fresh moments take other steps"


def test_the_first_update_of_a_new_row_is_longer_than_a_first_step():
    new = grown(table(moments={"step": torch.tensor(1e6), "exp_avg": torch.zeros(4, 3), "exp_avg_sq": torch.zeros(4, 3)}), 5)
    parameter = torch.nn.Parameter(new.weight.clone())
    optimizer = torch.optim.Adam([parameter], lr=1.0)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: dict(new.moments)}})
    parameter[4].sum().backward()
    optimizer.step()
    assert parameter[4].tolist() == pytest.approx([-0.1 / 0.001**0.5] * 3, rel=1e-5)


def test_a_cache_of_the_old_release_is_not_reusable_even_with_the_old_shape():
    old = table()
    back = migrate_position_table(grown(old, 6), 4, policy="truncate", release_id="r3", checkpoint_id="c3")
    assert torch.equal(back.weight, old.weight) and back.provenance == old.provenance and torch.equal(back.moments["exp_avg"], old.moments["exp_avg"])
    assert back.identity != old.identity and back.identity.config_max_position_embeddings == 4


@pytest.mark.parametrize("offset, configured, want", [(0, 8, 12), (2, 8, 12), (2, 6, 10)])
def test_the_configuration_counts_what_it_counted_before(offset, configured, want):
    new = grown(table(8, row_offset=offset, identity=identity(8, configured)), 12)
    assert new.identity.config_max_position_embeddings == want == len(new.position_ids) and new.capacity == 12 - offset
    module = pl.LearnedAbsolute(*new.weight.shape, row_offset=offset)
    module.load_state_dict({"weight": new.weight})
    last = pl.AttentionGeometry.decode(new.capacity - 1)
    assert torch.equal(module(last).rows, new.weight[11:])
    with pytest.raises(pl.PositionRangeError):
        module(pl.AttentionGeometry.decode(new.capacity))


def test_a_row_is_trained_when_an_example_reached_it():
    first = row_provenance(row_support([2, 3], 4))
    assert first == ("trained", "trained", "trained", "untrained")
    new = grown(table(provenance=first), 6, "repeat")
    assert new.provenance == (*first, "new:repeat", "new:repeat")
    assert row_provenance(torch.tensor([0, 0, 0, 0, 3, 0]), new.provenance) == (*first, "trained", "new:repeat")
    later = migrate_position_table(new, 7, policy="zeros", release_id="r3", checkpoint_id="c3")
    assert later.provenance[3:] == ("untrained", "new:repeat", "new:repeat", "new:zeros")
    refused(lambda: row_provenance(torch.tensor([1]), first), "before")
    refused(lambda: row_provenance(torch.tensor([1.0])), "counts")


def test_half_a_migration_cannot_be_made():
    old, new = table(), grown(table(), 6)
    refused(lambda: replace(new, identity=old.identity), "identity.table_rows")
    refused(lambda: replace(new, identity=new.identity._replace(config_max_position_embeddings=4)), "identity.config_max_position_embeddings")
    refused(lambda: replace(old, identity=old.identity._replace(config_max_position_embeddings=6)), "identity.config_max_position_embeddings")
    refused(lambda: replace(new, moments=old.moments), "moments.exp_avg")
    refused(lambda: replace(new, moments={"exp_avg_sq_row": torch.zeros(6)}), "moments.exp_avg_sq_row")
    refused(lambda: replace(new, position_ids=old.position_ids), "position_ids")
    refused(lambda: replace(new, provenance=old.provenance), "provenance")
    refused(lambda: replace(old, provenance=("fine",) * 4), "provenance")


@pytest.mark.parametrize("changes, field", [
    ({"new_rows": 4}, "new_rows"), ({"new_rows": 3}, "new_rows"),
    ({"new_rows": 6, "policy": "truncate"}, "new_rows"), ({"new_rows": 0, "policy": "truncate"}, "new_rows"),
    ({"new_rows": 6.0}, "new_rows"), ({"policy": "xavier"}, "policy"), ({"release_id": "r1"}, "release_id"), ({"checkpoint_id": "c1"}, "checkpoint_id"),
    ({"release_id": ""}, "release_id"), ({"policy": "normal", "generator": torch.Generator()}, "std"), ({"policy": "normal", "std": 0.02}, "generator"),
    ({"std": 0.02}, "std"), ({"generator": torch.Generator()}, "generator"), ({"formula": torch.sin}, "formula"), ({"policy": "formula"}, "formula"),
    ({"policy": "formula", "formula": "sin"}, "formula"), *(({"policy": "formula", "formula": lambda p, made=made: made}, "formula") for made in (
        None, torch.zeros(2), torch.zeros(2, 4), torch.zeros(6, 3), torch.zeros(2, 3).long(), torch.full((2, 3), torch.nan)))])
def test_a_migration_that_is_not_fully_named_is_refused(changes, field):
    refused(lambda: migrate_position_table(table(), **{"new_rows": 6, "policy": "zeros", **NEW, **changes}), field)


@pytest.mark.parametrize("changes, field", [({"weight": torch.zeros(4)}, "weight"), ({"weight": torch.zeros(4, 3).long()}, "weight"),
                                            ({"weight": [[1.0]]}, "weight"), ({"weight": torch.zeros(4, 3, device="meta")}, "weight"),
                                            ({"row_offset": 4}, "row_offset"), ({"row_offset": -1}, "row_offset"), ({"identity": ("r1",)}, "identity"),
                                            ({"position_ids": torch.arange(4).half()}, "position_ids"), ({"moments": {"exp_avg": 0.0}}, "moments.exp_avg")])
def test_bad_tables_are_refused(changes, field):
    refused(lambda: table(**changes), field)


@pytest.mark.parametrize("rows, more, shards", [(4, 2, 1), (4, 5, 3), (5, 1, 4), (6, 3, 6)])
def test_shards_are_cut_as_torch_cuts_them_and_anew_for_a_longer_table(rows, more, shards):
    new = grown(table(rows, shards=shards), rows + more)
    for cut in (table(rows, shards=shards), new):
        parts = [part for first, last in cut.shard_rows if len(part := cut.weight[first:last])]
        assert len(cut.shard_rows) == shards and all(map(torch.equal, parts, cut.weight.chunk(shards))) and torch.equal(torch.cat(parts), cut.weight)
    for wrong in (0, rows + 1, 1.5):
        refused(lambda: table(rows, shards=wrong), "shards")
