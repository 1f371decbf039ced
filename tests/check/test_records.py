"""A unit's record is what it carries: compared with lookups by hand, under every move, and with each field left behind in turn."""

import pytest
import torch

from positionlib.check.records import aligned, records, require_records
from positionlib.transport import Field, Move, transport
from tests.refusals import refused

ORDER = [1, 3, 2, 0]


def rows(names=(5, 8, 6, 7)):
    n = len(names)
    at = torch.tensor(names)
    return {"unit": Field(at, "N", pad=-1), "box": Field(torch.stack((at, at * 2), 1), "N edges", pad=0), "t": Field(at / 10, "N", pad=float("nan")),
            "edge": Field(at[:, None] * 10 + at[None], "N N", pad=0), "paths": Field((at[:, None] - at[None]).expand(2, n, n), "H N N", pad=0)}


def test_a_record_holds_the_row_and_the_pairs_by_name():
    held = records(rows(), "unit")
    assert list(held) == [5, 8, 6, 7]
    assert held[8]["box"] == [8, 16] and held[8]["edge to 6"] == 86 and held[6]["edge to 8"] == 68 and held[7]["paths to 5"] == [2, 2]


@pytest.mark.parametrize("move", [Move.permute(torch.tensor(ORDER)), Move.pad(4, before=1, after=2), Move.keep(torch.tensor([True, False, True, True])),
                                  Move.chunks(4, 3)[1]])
def test_a_move_of_all_fields_keeps_every_record(move):
    moved = transport(rows(), move=move)
    require_records(rows(), moved, "unit")
    assert all(aligned(rows(), moved, "unit").values())
    joined = transport(moved, rows((1, 2)))
    require_records(rows(), joined, "unit")
    require_records(rows((1, 2)), joined, "unit")


@pytest.mark.parametrize("field", ["box", "t", "edge", "paths"])
def test_what_stays_behind_is_named(field):
    moved = transport(rows(), move=Move.permute(torch.tensor(ORDER)))
    with pytest.raises(Exception, match=f"{field}.* of unit"):
        require_records(rows(), {**moved, field: rows()[field]}, "unit")
    fits = aligned(rows(), {**moved, field: rows()[field]}, "unit")
    assert not fits[5] and (fits[6] == (field in ("box", "t")))  # row 2 keeps its place, not its pairs


def test_missing_times_are_themselves():
    gap = rows() | {"t": Field(torch.tensor([float("nan"), 1, 2, 3]), "N", pad=0.0)}
    require_records(gap, transport(gap, move=Move.permute(torch.tensor(ORDER))), "unit")


@pytest.mark.parametrize("attempt, field", [
    (lambda: records({"x": rows()["box"]}, "unit"), "unit"), (lambda: records(rows((1, 1)), "unit"), "unit"), (lambda: records(rows(), "box"), "box"),
    (lambda: records(rows() | {"b": Field(torch.zeros(2, 4), "B N")}, "unit"), "b"), (lambda: records(rows() | {"unit": Field(torch.zeros(4), "N")}, "unit"), "unit"),
    (lambda: require_records(rows(), {k: v for k, v in rows().items() if k != "t"}, "unit"), "fields")])
def test_what_has_no_record_is_refused(attempt, field):
    refused(attempt, field)
