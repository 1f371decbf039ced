"""The article's failures against the registry, and a guard table in which no row stands without a guard that ran."""

import re
from pathlib import Path

import pytest

from positionlib import lab
from positionlib.errors import PositionContractError
from positionlib.lab import article
from positionlib.lab.article import GROUPS, GuardRow, Line, Listing, guard_listing, guard_table, index, line_listings, lines
from tests.lab.refusals import refusals_fail

ROOT = Path(__file__).parents[2]
# One word of each failure that section 0x0C names, group by group, then of the six rows of 0x07's table.
ARTICLE = {
    "addition": ("mask", "NoPE", "deleted", "added", "path", "twice", "projector", "width"), "layout": ("batch size", "exchanged", "broadcast", "buffer", "trained"),
    "ids": ("in front", "BOS", "source", "restart"), "table": ("past", "learned", "another", "stretched"), "padding": ("read after", "side", "disagree", "counting"),
    "media": ("forget", "restarted", "boxes", "patches", "stride", "joined", "parents"), "cache": ("disagree", "decode"),
    "relative": ("sign", "mask", "offsets", "buckets", "pair", "heads", "prefix", "memory"), "structured": ("traversal", "milliseconds", "one side"),
    "migration": ("configuration", "old weights", "moments", "trained", "cache", "base range"),
}


def test_every_failure_of_the_article_has_a_line():
    assert sum(GROUPS.values()) == 51 and {group: len(words) for group, words in ARTICLE.items()} == GROUPS
    for group, words in ARTICLE.items():
        own = [line for line in lines() if line.group == group]
        assert len(own) == len(words)
        for line, word in zip(own, words):
            assert word in line.name, f"{line.name} stands where the failure about {word!r} belongs"
    assert len({line.name for line in lines()}) == 51


def test_every_line_is_shown_by_cases_that_exist_and_0x0C_has_no_idle_case():
    known = {case.id for case in lab.cases()}
    used = {identifier for line in lines() for identifier in line.cases}
    assert used <= known and len(known) >= 45
    assert {case.id for case in lab.cases(section="0x0C")} <= used


@pytest.mark.parametrize("line", lines(), ids=lambda line: line.name)
def test_the_first_case_of_every_line_verifies(line):
    with refusals_fail():
        assert lab.verify(line.cases[0]).guard_message


def test_the_table_has_the_articles_rows_and_each_guard_was_run_on_both_sides():
    with refusals_fail():
        table = guard_table()
    assert len(table) == 13 and len({row.failure for row in table}) == 13
    for row in table:
        assert len(row.shown) == len(row.cases) >= 2
        assert all(shown.guard_message and shown.guard_accepts_right for shown in row.shown)
        assert all((ROOT / path).is_file() for path in row.tests)
    assert {row.oracle.split(",")[0] for row in table} == {
        "position-manifest oracle", "absolute-coordinate oracle", "sinusoidal algebra oracle", "sinusoidal precision trace", "learned-position oracle",
        "alternative-coordinate oracle", "Shaw and decomposed-score oracles", "scalar-bias oracle", "runtime-admission oracle", "positional-call manifest"}


def test_the_shape_survives_in_every_row_and_fails_to_only_where_the_moments_are_stale():
    survives = {row.failure: row.survives for row in guard_table()}
    assert all(kept > 0 for kept, _ in survives.values())
    assert {name: counts for name, counts in survives.items() if counts[0] < counts[1]} == {"table resized without its optimizer": (2, 3)}


WHOLE = {"failure": "f", "guard": "g", "oracle": "o", "tests": ("tests/lab/test_article.py",), "cases": ("0x0C.chunk-reset",)}


@pytest.mark.parametrize(("changes", "field"), [
    ({"cases": ()}, "cases"), ({"cases": ("0x0C.never",)}, "id"), ({"guard": " "}, "guard"), ({"oracle": ""}, "oracle"), ({"tests": ()}, "tests")])
def test_an_incomplete_row_is_refused(changes, field):
    assert GuardRow(**WHOLE).survives == (1, 1)
    with pytest.raises(PositionContractError) as caught:
        GuardRow(**WHOLE | changes)
    assert caught.value.field == field


def test_a_row_whose_guard_lets_the_broken_side_pass_is_refused(monkeypatch):
    idle = lab.Failure("0x0C.idle", "0x0C", "wrong_answer", "t", lambda: 1.0, lambda: 2.0, lambda value: None, "g", "s")
    monkeypatch.setattr(article, "get", lambda identifier: idle)
    monkeypatch.setattr(article, "verify", lambda identifier: lab.verify(idle))
    with pytest.raises(PositionContractError, match="refuses the broken side"):
        GuardRow(**WHOLE)


@pytest.mark.parametrize(("changes", "field"), [({"group": "other"}, "group"), ({"cases": ()}, "cases"), ({"cases": ("0x0C.never",)}, "id"), ({"wrong": ""}, "wrong")])
def test_an_incomplete_line_is_refused(changes, field):
    whole = {"group": "media", "name": "n", "wrong": "w", "cases": ("0x0C.chunk-reset",)}
    assert Line(**whole).cases == ("0x0C.chunk-reset",)
    with pytest.raises(PositionContractError) as caught:
        Line(**whole | changes)
    assert caught.value.field == field


def test_reports_name_a_repository_and_a_number():
    cited = [case for case in lab.cases(section="0x0C") if "#" in case.source]
    assert len(cited) >= 9
    assert all(re.search(r"[\w.-]+/[\w.-]+#\d+", case.source) for case in cited)


def test_the_index_lists_every_case_and_the_table_every_row():
    listed = {(listing.folded.partition(":")[0], row[-1]) for listing in index() for row in listing.rows}
    assert {f"{section}.{slug}" for section, slug in listed} == {case.id for case in lab.cases()}
    assert [row[0].partition("\n")[0] for row in guard_listing().rows] == [row.failure for row in guard_table()]
    assert guard_listing().rows[4][0].endswith("shape kept: 2 of 3") and str(guard_listing()).count("\n") == 13
    assert [row[2].split("\n") for row in guard_listing().rows] == [[row.oracle, *row.cases] for row in guard_table()]
    assert [row[0] for listing in line_listings() for row in listing.rows] == [line.name for line in lines()]
    page = index()._repr_html_()
    assert page.count("<tr>") == len(lab.cases()) + len(index()) and page.count("<details>") == len(index())
    titled = Listing(("a",), [("x < y & z\nw",)])._repr_html_()
    assert "x &lt; y &amp; z<br>w" in titled and "overflow-x:auto" in titled
