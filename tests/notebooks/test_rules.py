"""Each rule for chapters finds the breach it is there for, and lets a sound chapter pass."""
import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.notebooks import rules

ALT = "Attention weight falls with distance in every head"
WIDGET = {rules.WIDGET: {"model_id": "a" * 32, "version_major": 2, "version_minor": 0}}
PICTURE = {"image/png": "iVBORw0KGgo="}


def code(source="print(1)", data=None, text=None, **metadata):
    cell = new_code_cell(source, metadata=metadata, execution_count=1)
    if data is not None:
        cell.outputs.append(new_output("display_data", data=data))
    if text is not None:
        cell.outputs.append(new_output("stream", name="stdout", text=text))
    return cell


def sound():
    headings = ["## The question", "## A case by hand", "## Predict", "## Formula", "## Code", "## Widget", "## Failure",
                "## Exercises", "## Recap\n\nNot shown here: training.\n\n"
                "ev-primary-paper ev-source-local ev-official-implementation"]
    shown = WIDGET | PICTURE | {"text/plain": "Eight heads, each with its slope: the first forgets fastest"}
    return new_notebook(cells=[*map(new_markdown_cell, headings), code(text="1\n", data=None),
                               code(data=shown, mystnb={"image": {"alt": ALT}})])


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_sound_chapter_passes(rule):
    assert rule(sound()) == []


@pytest.mark.parametrize("part, heading", [("worked case", "## A case by hand"), ("failure", "## Failure")])
def test_a_missing_part_is_named(part, heading):
    notebook = sound()
    notebook.cells = [cell for cell in notebook.cells if cell.source != heading]
    assert rules.missing_parts(notebook) == [f"no heading for the part {part!r}"]


def test_a_prediction_may_stand_in_a_box_and_prose_is_no_heading():
    notebook = sound()
    notebook.cells[2].source = ":::{admonition} Predict the sign\n:class: predict\n:::"
    assert rules.missing_parts(notebook) == []
    notebook.cells[2].source = "We predict nothing."
    assert rules.missing_parts(notebook) == ["no heading for the part 'predict'"]


def test_a_chapter_without_limits_is_named():
    notebook = sound()
    notebook.cells[8].source = "## Recap"
    assert rules.missing_parts(notebook) == ["nothing says what is not shown here"]


def test_twenty_lines_pass_and_twenty_one_do_not():
    lines = "\n\n".join(["x = 1"] * 20)
    assert rules.long_cells(new_notebook(cells=[code(lines)])) == []
    assert rules.long_cells(new_notebook(cells=[code(lines + "\ny = 2")])) == ["cell 0 has 21 lines, 20 at most"]


@pytest.mark.parametrize("alt", [None, "", "figure.png", "A bucket plot"])
def test_a_picture_needs_alt_text_that_tells_the_finding(alt):
    metadata = {} if alt is None else {"mystnb": {"image": {"alt": alt}}}
    for mime in ("image/png", "image/svg+xml"):
        assert len(rules.pictures_without_alt(new_notebook(cells=[code(data={mime: "x"}, **metadata)]))) == 1


@pytest.mark.parametrize("page, breaches", [
    ('<img src="x.png">', 1), ('<img alt="" src="x.png">', 1), ('<img src="x.png" alt="Head 0 looks back">', 0),
    ("<svg width='3'>", 1), ("<svg aria-label='Head 0 looks back'>", 0),
])
def test_pictures_inside_html_need_a_text_too(page, breaches):
    assert len(rules.pictures_without_alt(new_notebook(cells=[code(data={"text/html": page})]))) == breaches


@pytest.mark.parametrize("said, found", [
    ("read /" + "home/someone/x.py", True), ("/" + "tmp/a1b2", True), ("C:" + "\\Users\\x", True),
    ("<Explorer object at 0x7f31c2a41d50>", True),
    ("chapter 0x09C", False), ("key/query and 1/home", False), ("see chapters/0x05", False), ("0xdeadbeef as a hash", False),
])
def test_traces_of_a_machine_are_found_in_outputs(said, found):
    in_stream = rules.traces_of_a_machine(new_notebook(cells=[code(text=said)]))
    in_data = rules.traces_of_a_machine(new_notebook(cells=[code(data={"text/plain": said})]))
    assert (bool(in_stream), bool(in_data)) == (found, found)


def test_an_absolute_path_in_a_source_is_found():
    assert len(rules.traces_of_a_machine(new_notebook(cells=[code("open('/" + "home/me/x')")]))) == 1


@pytest.mark.parametrize("behind, breaches", [
    (PICTURE | {"text/plain": "Bucket 15 holds every distance from 113 on"}, 0),
    ({"image/svg+xml": "<svg/>", "text/plain": "Bucket 15 holds every distance from 113 on"}, 0),
    ({"text/plain": "Bucket 15 holds every distance from 113 on"}, 1),      # nothing to see without a kernel
    ({"text/html": "<p>x</p>", "text/plain": "Bucket 15 holds every distance from 113 on"}, 1),
    (PICTURE | {"text/plain": "Explorer(state=0, controls=5, a=1, b=2, c=3)"}, 1),  # a constructor, not a finding
    (PICTURE | {"text/plain": "Explorer"}, 1),
    (PICTURE, 1),
    ({}, 2),
])
def test_a_widget_needs_a_picture_and_a_text_behind_it(behind, breaches):
    assert len(rules.unpublishable_widgets(new_notebook(cells=[code(data=WIDGET | behind)]))) == breaches


def test_cells_that_raised_or_never_ran_are_found():
    error = new_output("error", ename="ValueError", evalue="x", traceback=[])
    raised, announced, idle = code("f()"), code("f()", tags=["raises-exception"]), new_code_cell("f()")
    raised.outputs.append(error)
    announced.outputs.append(copy.deepcopy(error))
    notebook = new_notebook(cells=[raised, announced, idle])
    assert rules.failed_cells(notebook) == ["cell 2 was not executed", "cell 0 raised ValueError"]


def test_evidence_marks_are_one_of_four_and_at_least_three():
    notebook = new_notebook(cells=[new_markdown_cell("ev-hearsay ev-primary-paper ev-interpretation")])
    assert rules.unknown_evidence(notebook) == ["cell 0: 'hearsay' is no class of evidence"]
    notebook = new_notebook(cells=[new_markdown_cell("ev-primary-paper")])
    assert rules.unknown_evidence(notebook) == ["1 claims carry a class of evidence, three are due"]


def test_the_table_of_contents_is_read():
    assert all(path.parent == rules.ROOT / "chapters" and path.suffix == ".ipynb" for path in rules.chapters_in_toc())
    assert nbformat.validator.isvalid(sound())
