"""The normal form is stable, and the comparison catches what changed and says where."""
import copy
import hashlib

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from book.tools import execute
from book.tools.execute import NotebookError, NotebookTimeout, check, compare, first_difference, normal_form, with_one_retry

STEM = "0x00-toy"


def state(**widgets):
    return {execute.STATE: {"version_major": 2, "version_minor": 0,
                            "state": {name: {"model_name": "M", "state": {"n": n}} for name, n in widgets.items()}}}


def notebook(text="1\n", html="<b>2</b>", png="QUJD", n=3, widget="f" * 32):
    first = new_code_cell("print(1)", execution_count=1, outputs=[new_output("stream", name="stdout", text=text)])
    second = new_code_cell("show()", execution_count=2, outputs=[new_output("display_data", data={
        "text/html": html, "image/png": png, "application/vnd.jupyter.widget-view+json": {"model_id": widget}})])
    return new_notebook(cells=[new_markdown_cell("# Toy"), first, second], metadata={"widgets": state(**{widget: n})})


def fresh(**changes):
    return normal_form(notebook(**changes), STEM)


def test_random_names_leave_no_trace():
    assert fresh(widget="f" * 32) == fresh(widget="0" * 31 + "1")
    assert "f" * 32 not in fresh()


def test_widgets_are_named_in_the_order_of_their_making():
    made = notebook(widget="9" * 32)
    made.metadata["widgets"] = state(**{"9" * 32: 3, "1" * 32: 4})  # the later one sorts first by its random name
    text = normal_form(made, STEM)
    names = [hashlib.sha256(f"{STEM}/{n}".encode()).hexdigest()[:32] for n in range(2)]
    states = nbformat.reads(text, as_version=4).metadata["widgets"][execute.STATE]["state"]
    assert [states[name]["state"]["n"] for name in names] == [3, 4]
    assert list(states) == sorted(names)


def test_the_normal_form_of_a_normal_form_is_itself():
    text = fresh()
    assert normal_form(nbformat.reads(text, as_version=4), STEM) == text


def test_an_inserted_cell_leaves_the_other_ids_alone():
    before = notebook()
    after = copy.deepcopy(before)
    after.cells.insert(1, new_markdown_cell("New."))
    ids = execute.cell_ids(after)
    assert [ids[0], *ids[2:]] == execute.cell_ids(before)


def test_equal_cells_get_different_ids():
    ids = execute.cell_ids(new_notebook(cells=[new_code_cell("x"), new_code_cell("x"), new_markdown_cell("x")]))
    assert len(set(ids)) == 3 and ids[1] == ids[0] + "-2"


def test_only_the_whitelist_of_metadata_is_kept():
    made = notebook()
    made.metadata["authors"] = ["x"]
    made.cells[1].metadata = nbformat.from_dict(
        {"tags": ["a"], "mystnb": {"image": {"alt": "b"}}, "nbgrader": {"grade": True}, "execution": {"t": 1}, "collapsed": True})
    kept = nbformat.reads(normal_form(made, STEM), as_version=4)
    assert set(kept.cells[1].metadata) == {"tags", "mystnb", "nbgrader"}
    assert set(kept.metadata) == {"kernelspec", "language_info", "widgets"}
    assert "execution" in made.cells[1].metadata, "the notebook that was passed in is left as it was"


@pytest.mark.parametrize("change, where", [
    ({"text": "2\n"}, "cell 1, output 0, stdout"),
    ({"html": "<b>3</b>"}, "cell 2, output 0, text/html"),
    ({"n": 4}, "widget states"),
])
def test_a_changed_value_is_caught_and_placed(change, where):
    found = compare(fresh(), fresh(**change))
    assert [difference.where for difference in found.differences] == [where]
    assert found.repainted == []


def test_a_repainted_picture_is_noted_and_no_difference():
    found = compare(fresh(), fresh(png="REVG"))
    assert found.differences == [] and found.repainted == ["cell 2, output 0, image/png"]


def test_a_missing_output_kind_source_and_cell_are_differences():
    base = notebook()
    no_picture, no_output, edited, shorter = (copy.deepcopy(base) for _ in range(4))
    del no_picture.cells[2].outputs[0].data["image/png"]
    no_output.cells[1].outputs = []
    edited.cells[0].source = "# Other"
    shorter.cells.pop()
    wheres = [[d.where for d in compare(normal_form(base, STEM), normal_form(other, STEM)).differences]
              for other in (no_picture, no_output, edited, shorter)]
    assert wheres == [["cell 2, output 0, kinds of data"], ["cell 1, kinds of output"], ["cell 0, source"], ["number of cells"]]


def test_the_first_difference_is_told_with_its_surroundings():
    assert first_difference({"a": [1, 2]}, {"a": [1, 3]}) == "a > [1] > 2 became 3"
    assert first_difference("slope 0.5", "slope 0.25") == "at character 8: 'slope 0.5' became 'slope 0.25'"
    assert first_difference({"a": 1}, {}) == "'a' is only in the committed one"


@pytest.fixture
def committed(tmp_path):
    path = tmp_path / f"{STEM}.ipynb"
    path.write_text(fresh(), "utf-8")
    return path


def test_check_passes_when_both_runs_agree_with_what_is_committed(committed):
    assert check(committed, lambda path: fresh()) == (True, [])


def test_check_fails_when_two_runs_differ_even_in_a_picture(committed):
    runs = iter([fresh(), fresh(png="REVG")])
    same, lines = check(committed, lambda path: next(runs))
    assert not same and lines == ["  two executions differ: cell 2, output 0, image/png"]


def test_check_fails_on_a_stale_output_and_runs_no_third_time(committed):
    calls = []
    same, lines = check(committed, lambda path: calls.append(path) or fresh(text="2\n"))
    assert not same and len(calls) == 2
    assert lines == ["  cell 1, output 0, stdout: at character 0: '1\\n' became '2\\n'"]


def test_check_fails_on_a_file_that_is_not_in_normal_form(committed):
    committed.write_text(fresh() + "\n", "utf-8")
    same, lines = check(committed, lambda path: fresh())
    assert not same and lines == ["  the file is not in normal form: make notebooks"]


def test_a_hang_is_tried_once_more_and_not_twice(committed, capsys):
    hangs = iter([NotebookTimeout("late")])

    def once(path):
        for late in hangs:
            raise late
        return fresh()

    assert with_one_retry(once, committed) == fresh()
    assert "trying once more" in capsys.readouterr().out

    def always(path):
        calls.append(path)
        raise NotebookTimeout("late")

    calls = []
    with pytest.raises(NotebookTimeout):
        with_one_retry(always, committed)
    assert len(calls) == 2


def test_a_cell_that_raises_is_not_tried_again(committed):
    calls = []

    def raises(path):
        calls.append(path)
        raise NotebookError("ValueError")

    same, lines = check(committed, raises)
    assert not same and len(calls) == 1 and "ValueError" in lines[0]


def write(path, *sources):
    path.write_text(nbformat.writes(new_notebook(cells=[new_code_cell(source) for source in sources])), "utf-8")
    return path


def test_a_real_notebook_runs_to_the_same_bytes_twice(tmp_path):
    path = write(tmp_path / f"{STEM}.ipynb", "import os\nprint(hash('a') == hash('a'), os.environ['PYTHONHASHSEED'])", "6 * 7")
    text = execute.run_apart(path)
    path.write_text(text, "utf-8")
    assert check(path) == (True, [])
    cells = nbformat.reads(text, as_version=4).cells
    assert cells[0].outputs[0].text == "True 0\n" and cells[1].outputs[0].data["text/plain"] == "42"


def test_a_real_notebook_that_raises_or_is_late_says_so(tmp_path):
    with pytest.raises(NotebookError, match="ZeroDivisionError"):
        execute.run_apart(write(tmp_path / "raises.ipynb", "1 / 0"))
    with pytest.raises(NotebookTimeout, match="no end after 4 s"):
        execute.run_apart(write(tmp_path / "late.ipynb", "import time; time.sleep(60)"), limit=4)
