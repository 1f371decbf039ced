"""State rows are added once, to the rows they belong to."""

import pytest
import torch

import positionlib as pl
from positionlib.rules import Clip
from positionlib.terms import ClassBias, Relation, SlopeBias, StateRows
from tests.refusals import refused


@pytest.mark.parametrize("x", [torch.zeros(1, 3, 8), torch.zeros(2, 4, 8)])
def test_one_position_is_not_spread_over_many_rows(x):
    g = pl.AttentionGeometry.decode(5)
    for rows in (pl.LearnedAbsolute(6, 8)(g), pl.Sinusoidal(8)(g), StateRows(rows=torch.ones(x.shape[1], 1), mark="m")):
        with pytest.raises(pl.PositionContractError, match="x = "):
            rows.add_to(x)
    with pytest.raises(pl.PositionContractError, match="x = "):
        pl.Sinusoidal(8).add(x.transpose(0, 1), g, batch_first=False)


def test_rows_of_one_sequence_serve_a_batch_and_rows_of_two_do_not_serve_three():
    rows = torch.arange(8.0).view(1, 4, 2)
    assert torch.equal(StateRows(rows=rows, mark="m").add_to(torch.zeros(3, 4, 2)), rows.expand(3, 4, 2))
    for bad in (torch.zeros(3, 4, 2), torch.zeros(1, 4, 2)):
        with pytest.raises(pl.PositionContractError, match="x = "):
            StateRows(rows=rows.expand(2, 4, 2), mark="m").add_to(bad)


def test_state_rows_are_added_once():
    x, rows = torch.zeros(1, 2, 2), StateRows(rows=torch.ones(2, 2), mark="learned_absolute")
    once = rows.add_to(x)
    assert once.tolist() == [[[1, 1], [1, 1]]]
    with pytest.raises(pl.PositionContractError, match="again"):
        rows.add_to(once)
    assert rows.add_to(once, again=True).tolist() == [[[2, 2], [2, 2]]]
    assert StateRows(rows=torch.ones(2, 2), mark="sinusoidal").add_to(once).tolist() == [[[2, 2], [2, 2]]]
    for bad in (torch.zeros(1, 3, 2), torch.zeros(1, 2, 4), torch.zeros(1, 2, 2, dtype=torch.long)):
        with pytest.raises(pl.PositionContractError, match="x = "):
            rows.add_to(bad)


def test_a_bias_has_the_dtype_that_is_asked_for():
    ids, dtypes = torch.arange(3), [torch.float32, torch.float64, torch.bfloat16]
    for bias in (ClassBias(table=torch.ones(5, 2), rule=Clip(2), sign="key_minus_query"), SlopeBias(slopes=torch.ones(2))):
        assert [bias.materialize(ids, ids, dtype).dtype for dtype in dtypes] == dtypes


@pytest.mark.parametrize("rule", [None, Clip, object(), "t5"])
def test_a_rule_gives_classes(rule):
    refused(lambda: ClassBias(table=torch.ones(5, 2), rule=rule, sign="key_minus_query"), "rule" if rule is not Clip else "table")
    if rule is not Clip:
        refused(lambda: Relation(key_table=torch.ones(5, 2), value_table=None, rule=rule, sign="key_minus_query"), "rule")
