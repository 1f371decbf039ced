"""The perturbing run notices an assert that no change of its equation can fail, and one that is never reached."""
import ast

import pytest

from tests.notebooks.equations import LIST
from tests.notebooks.library import changes, watched
from tests.notebooks.mutants import decisive, sites
from tests.notebooks.slices import feeding
from tests.notebooks.trial import FEW, MANY, forked, of_chapter

CELLS = (
    "import math\nslope = 3\ndef line(t):\n    return slope * t + 1",
    "shift = 2 * slope\nprint(shift + 1)\nreached = []",
    "y = [line(t) for t in (0, 1, 2)]\nassert y == [1, 4, 7], 'sound'\nassert y == y, 'vacuous'\nassert len(y) == 3, 'length only'",
    "for t in []:\n    assert line(t) == 0, 'never'",
    "def check(t):\n    assert math.isclose(line(t) - slope * t, 1.0), 'inside'",
    "check(2)",
    "assert math.sin(shift) ** 2 + math.cos(shift) ** 2 > 2, 'false'",
)


@pytest.fixture
def verdicts(monkeypatch):
    monkeypatch.setattr("tests.notebooks.trial.sources", lambda path: CELLS)
    monkeypatch.setattr("tests.notebooks.equations.sources", lambda path: CELLS)

    def verdicts(*words):
        proofs = [f"chapters/toy.ipynb: {word}" for word in words]
        return forked(of_chapter, proofs, MANY, 0)

    return verdicts


def test_a_sound_assert_notices_and_a_vacuous_one_does_not(verdicts):
    sound, vacuous, length, inside = verdicts("sound", "vacuous", "length only", "inside")
    assert (sound.noticed, sound.missed, sound.holds) == (5, [], True)
    assert (vacuous.noticed, len(vacuous.missed), vacuous.holds) == (0, 5, False)
    assert not length.holds and "cell 0, line 4: slope * t + 1 -> slope * t - 1" in length.missed
    assert inside.holds, "an assert inside a function is reached by the cell that calls it"


def test_an_assert_that_is_never_reached_or_is_false_proves_nothing(verdicts):
    never, false = verdicts("never", "false")
    assert (never.holds, never.wrong) == (False, "without any change: the assert is never reached")
    assert (false.holds, false.wrong) == (False, "without any change: Noticed()")


@pytest.mark.parametrize("code, changed", [
    ("b = -m * (i - j)", ["-m * (i - j) -> -m + (i - j)", "-m -> m", "i - j -> i + j", "i - j -> i"]),
    ("w = base ** (-2 * i / d)", ["base ** (-2 * i / d) -> base * (-2 * i / d)", "-2 * i / d -> -2 * i * d", "-2 * i -> -2 + i", "-2 -> 2", "2 -> 3"]),
    ("pe[:, 0::2] = theta.sin()", ["0 -> 1", "theta.sin -> theta.cos"]),
    ("c = max(-2, min(2, o))", ["max -> min", "-2 -> 2", "2 -> 3", "min -> max", "2 -> 3"]),
    ("a = q @ r[j, i]", ["q @ r[j, i] -> r[j, i] @ q", "r[j, i] -> r[i, j]"]),
    ("y = x[perm][:, perm]", ["x[perm][:, perm] -> x[perm]", "x[perm] -> x"]),
    ("o = geometry.offsets('key_minus_query')", ["'key_minus_query' -> 'query_minus_key'"]),
    ("x = torch.tensor([1.0, -2.0]).sum(0)", ["torch.tensor([1.0, -2.0]).sum -> torch.tensor([1.0, -2.0]).mean"]),
    ("print(a + b)\nrequire(a < b, f'{a + b}')", []),
])
def test_one_piece_changes_at_a_time_and_data_and_words_do_not(code, changed):
    assert [str(site).partition(": ")[2] for site in sites(ast.parse(code))] == changed


def test_data_and_sizes_change_where_they_are_asked_for():
    tree = ast.parse("x = torch.zeros(2, atol=1) + torch.tensor([1.0, -2.0])\nmode = {'mode'}")
    asked = {str(site).partition(": ")[2] for site in sites(tree, inputs=True)} - {str(site).partition(": ")[2] for site in sites(tree)}
    assert asked == {"2 -> 3", "[1.0, -2.0] -> [1.0]", "1.0 -> 2.0", "-2.0 -> 2.0", "2.0 -> 4.0", "'mode' -> 'not mode'"}


@pytest.mark.parametrize("condition, changed", [
    ("gap < 1e-12 and n == 8", []),
    ("(norm - 32 ** 0.5).abs().max() < 1e-12", ["norm - 32 ** 0.5 -> norm + 32 ** 0.5", "norm - 32 ** 0.5 -> norm", "32 ** 0.5 -> 32 * 0.5",
                                                "32 -> 33", "0.5 -> 1.0"]),
    ("all((m[i] == 0) == (j <= i) for i in range(4))", ["m[i] == 0 -> m[i] != 0", "m[i] -> m", "0 -> 1", "j <= i -> j < i"]),
])
def test_a_named_assert_keeps_its_comparison_and_its_bare_numbers(condition, changed):
    tree = ast.Module([decisive(ast.parse(f"assert {condition}").body[0])], [])
    assert [str(site).partition(": ")[2] for site in sites(tree)] == changed


def test_what_an_assert_depends_on_is_found_across_cells():
    trees = [ast.parse(cell) for cell in (
        "import math\na = 1\nb = 2\nmath.seed(a)", "a = math.floor(5)\nc = a + 1\nprint(a)", "x = []\nx.append(c)\ny = [b for b in x]", "assert y == [6]")]
    found = [(cell, ast.unparse(statement)) for cell, statement in feeding(trees, 3, trees[3].body[0])]
    assert found == [(0, "import math"), (1, "a = math.floor(5)"), (1, "c = a + 1"), (2, "x = []"), (2, "x.append(c)"), (2, "y = [b for b in x]"),
                     (3, "assert y == [6]")]


def test_a_library_function_is_changed_wherever_it_is_held():
    from positionlib.mechanisms.alibi import alibi_slopes

    with watched() as functions:
        before = alibi_slopes(8).tolist()
    sought = [change for change in changes(functions) if change.name == "alibi_slopes"]
    assert sought and {change.file for change in changes(functions)} == {"rules.py"}

    def after(change):
        change.apply()
        return alibi_slopes(8).tolist()

    assert any(forked(after, change) not in (None, before) for change in sought)


def test_the_equations_of_a_chapter_notice():
    proofs = sorted({entry["proof"] for entry in LIST if "0x05-" in entry["proof"] and "equation" in entry})
    assert all(verdict.holds for verdict in forked(of_chapter, proofs, FEW, 0))
