"""Exercises: feedback for every kind of answer, and that every registered exercise explains the mistakes it lists."""

import functools

import numpy as np
import pytest
import torch

from positionlib import exercises
from positionlib.errors import PositionContractError
from positionlib.exercises import Exercise, Wrong, call, expect_choice, expect_close
from positionlib.exercises.registry import Registry


def offsets(query_positions, key_positions):
    """[Q, K] offsets, key minus query."""
    return key_positions[None, :] - query_positions[:, None]


def _check(answer):
    got = call(answer, torch.tensor([5, 6]), torch.tensor([3, 4, 5]))
    expect_close(got, [[-2, -1, 0], [-3, -2, -1]], mistakes=[([[2, 1, 0], [3, 2, 1]], "That is query minus key."), ([[-2, -3], [-1, -2], [0, -1]], "Transposed.")])


def exercise(**changes):
    return Exercise(**{"id": "0x02A.1", "kind": "build", "prompt": "p", "minutes": 3, "hint": "Subtract the query.", "check": _check, "solution": offsets,
                       "wrong_answers": {"turned": (lambda q, k: q[:, None] - k[None, :], "query minus key"),
                                         "transposed": (lambda q, k: k[:, None] - q[None, :], "Transposed")}, **changes})


@pytest.fixture
def course():
    registry = Registry()
    registry.register(exercise())
    return registry


def test_the_documented_shape_of_an_exercise_is_proved(course):
    course.verify("0x02A.1")
    assert course.identifiers("0x02A") == course.identifiers() == ("0x02A.1",) and course.identifiers("0x01") == ()


def test_check_prints_what_it_returns(course, capsys):
    right, wrong = course.check("0x02A.1", offsets), course.check("0x02A.1", lambda q, k: q[:, None] - k[None, :])
    assert (right.passed, right.message) == (True, "That is it.") and (wrong.passed, wrong.message) == (False, "That is query minus key.")
    assert capsys.readouterr().out == "0x02A.1: correct. That is it.\n0x02A.1: not yet. That is query minus key.\n"
    assert right._ipython_display_() is None and capsys.readouterr().out == ""
    course.hint("0x02A.1")
    course.solution("0x02A.1")
    shown = capsys.readouterr().out
    assert shown.startswith("Subtract the query.\ndef offsets(query_positions, key_positions):\n") and "key_positions[None, :] - query_positions[:, None]" in shown


class Hostile:
    """An object whose every method would run a learner's code."""

    def _run(self, *args):
        raise AssertionError("a method of the answer was called")

    __eq__ = __len__ = __repr__ = __str__ = __iter__ = __float__ = __array__ = __bool__ = __getitem__ = _run
    __hash__ = None


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError


def quits(q, k):
    raise SystemExit(3)


def unprintable(q, k):
    raise Unprintable


def spoils(q, k):
    result = k[None, :] - q[:, None]
    q.zero_()
    return result


@pytest.mark.parametrize(("answer", "says"), [
    (3, "Pass the function itself"), (None, "Pass the function itself"), (Hostile(), "got a Hostile"), (lambda: 0, "TypeError"), (lambda q, k: 1 / 0, "ZeroDivisionError: division by zero"),
    (lambda q, k: None, "None: does every path"), (lambda q, k: Hostile(), "is a Hostile"), (lambda q, k: "text", "is a str"), (lambda q, k: [[1], [2, 3]], "differ in length"),
    (lambda q, k: [Hostile()], "is a list"), (lambda q, k: (k[None] - q[:, None])[0], "shape [3]; expected [2, 3]"), (lambda q, k: torch.full((2, 3), float("nan")), "6 NaN"),
    (lambda q, k: k[None] - q[:, None] + 1, "6 of 6 values differ; the first at index [0, 0] is -1"), (lambda q, k: np.array(["a"]), "is a ndarray"),
    (quits, "SystemExit"), (unprintable, "cannot be printed"), (lambda q, k: k.undefined, "AttributeError"), (lambda q, k: offsets(q, k).to(torch.complex64) * 1j, "values differ"),
    (lambda q, k: 10 ** 400, "too large"), (lambda q, k: {}, "is a dict"), (functools.partial(offsets, torch.tensor([1, 2])), "TypeError"),
])
def test_every_kind_of_wrong_answer_is_met_with_help(answer, says, course):
    verdict = course.get("0x02A.1").judge(answer)
    assert not verdict.passed and says in verdict.message, verdict.message


def test_right_answers_of_every_type_pass(course):
    for answer in (offsets, lambda q, k: offsets(q, k).numpy(), lambda q, k: offsets(q, k).tolist(), lambda q, k: offsets(q, k).double().requires_grad_(), spoils,
                   functools.partial(offsets)):
        assert course.get("0x02A.1").judge(answer).passed


def test_a_learner_cannot_change_the_arguments():
    positions = torch.arange(3)
    call(lambda p: p.zero_(), positions)
    assert positions.tolist() == [0, 1, 2]


def test_the_message_shows_the_line_and_the_arguments():
    def answer(x, scale):
        return x[9]

    with pytest.raises(Wrong) as caught:
        call(answer, [1, 2], scale=torch.zeros(100))
    assert "return x[9]" in str(caught.value) and "called with [1, 2], scale=a Tensor of shape [100]" in str(caught.value)


@pytest.mark.parametrize(("got", "says"), [("b", None), (" B ", None), ("a", "A is the mask."), ("z", "not one of 'a', 'b'"), (1, "as text; got an int"), (None, "got None"), ("x" * 999, "...")])
def test_choices(got, says):
    if says is None:
        assert expect_choice(got, "b", {"a": "A is the mask."}) is None
    else:
        with pytest.raises(Wrong) as caught:
            expect_choice(got, "b", {"a": "A is the mask."})
        assert says in str(caught.value) and len(str(caught.value)) < 300


def test_tolerance_is_absolute():
    assert expect_close(1.0005, 1.0, atol=1e-3) is None
    with pytest.raises(Wrong, match="1 of 1 values differ; the first is 1.002"):
        expect_close(1.002, 1.0, atol=1e-3)


@pytest.mark.parametrize(("changes", "field"), [
    ({"id": "0x02A"}, "id"), ({"id": "0x02A.one"}, "id"), ({"id": "0x77.1"}, "section"), ({"kind": "quiz"}, "kind"), ({"prompt": ""}, "prompt"), ({"hint": " "}, "hint"),
    ({"minutes": 0}, "minutes"), ({"minutes": 2.5}, "minutes"), ({"check": None}, "check"), ({"wrong_answers": {}}, "wrong_answers"),
])
def test_a_malformed_exercise_is_refused(changes, field):
    with pytest.raises(PositionContractError) as caught:
        exercise(**changes)
    assert caught.value.field == field


@pytest.mark.parametrize(("changes", "says"), [
    ({"solution": lambda q, k: q}, "a solution that passes"), ({"wrong_answers": {"none": (offsets, "x")}}, "wrong answer that is refused"),
    ({"wrong_answers": {"turned": (lambda q, k: q[:, None] - k[None, :], "Transposed")}}, "says 'Transposed'"),
    ({"wrong_answers": {"turned": (lambda q, k: q[:, None] - k[None, :], "")}}, "says ''"),
    ({"wrong_answers": {n: (lambda q, k: q[:, None] - k[None, :], "query minus key") for n in "ab"}}, "explanation of its own"),
    ({"check": lambda a: expect_close(a(torch.tensor([5, 6]), torch.tensor([3, 4, 5])), [[-2, -1, 0], [-3, -2, -1]], mistakes=[([[2, 1, 0], [3, 2, 1]], "query minus key")]),
      "wrong_answers": {"turned": (lambda q, k: q[:, None] - k[None, :], "query minus key")}}, "escape"),
])
def test_an_exercise_that_does_not_teach_is_refused(changes, says):
    with pytest.raises(PositionContractError, match=says):
        Registry().verify(exercise(**changes))


def test_a_checker_that_accepts_nonsense_is_refused():
    def check(answer):
        if answer == "wrong":
            raise Wrong("because")

    with pytest.raises(PositionContractError, match="none to be refused"):
        Registry().verify(exercise(check=check, solution="right", wrong_answers={"w": ("wrong", "because")}))


def test_a_checker_that_fails_still_answers_the_learner():
    def check(answer):
        raise KeyError("x")

    verdict = exercise(check=check).judge(1)
    assert not verdict.passed and "could not be read (KeyError" in verdict.message


def test_the_registry_keeps_ids_apart(course):
    for ask, field in ((lambda: course.register(exercise()), "id"), (lambda: course.register("e"), "exercise"), (lambda: course.get("0x02A.2"), "id"), (lambda: course.get("x"), "section")):
        with pytest.raises(PositionContractError) as caught:
            ask()
        assert caught.value.field == field
    course.register(exercise(id="0x02A.10"))
    course.register(exercise(id="0x02A.2"))
    course.register(exercise(id="0x01.5"))
    assert course.identifiers() == ("0x01.5", "0x02A.1", "0x02A.2", "0x02A.10")


@pytest.mark.parametrize("identifier", exercises.list())
def test_every_registered_exercise_explains_its_wrong_answers(identifier):
    exercises.verify(identifier)
