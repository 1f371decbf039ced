"""The failure lab: what the registry refuses, and that every registered failure is of the kind it declares."""

import sys

import numpy as np
import pytest
import torch

from positionlib import lab
from positionlib.errors import PositionContractError
from positionlib.lab.compare import difference, same_shape
from positionlib.lab.registry import Claim, Cost, Failure, Registry
from tests.lab.refusals import refusals_fail


def forbid(*bad):
    """A guard that refuses the listed subjects."""
    def guard(subject):
        if any(subject is b or (not isinstance(subject, (torch.Tensor, np.ndarray)) and subject == b) for b in bad):
            raise PositionContractError("subject", subject, "another one", "Take the right one.")
    return guard


def case(kind="wrong_answer", **changes):
    build = {
        "wrong_answer": {"broken": lambda: 1.0, "right": lambda: 2.0, "guard": forbid(1.0)},
        "late_error": {"broken": lambda: [0][9], "right": lambda: 0, "guard": forbid(9), "broken_subject": lambda: 9, "right_subject": lambda: 0},
        "excess_cost": {"broken": lambda: Cost(3.0, 800), "right": lambda: Cost(3.0, 8), "guard": forbid(Cost(3.0, 800))},
        "false_claim": {"broken": lambda: Claim("n^2 < 2^n", 9 < 8, 3), "right": lambda: Claim("n^2 <= 2^n from 4 on", 16 <= 16, 4),
                        "guard": forbid(Claim("n^2 < 2^n", False, 3))},
    }
    sides = build.get(kind, build["wrong_answer"])
    return Failure(**{"id": "0x02A.made-up", "section": "0x02A", "kind": kind, "title": "t", "guard_name": "g", "source": "s", **sides, **changes})


@pytest.mark.parametrize("kind", lab.KINDS)
def test_a_case_of_each_kind_is_proved(kind):
    shown = Registry().verify(case(kind))
    assert "expected another one" in shown.guard_message and shown.guard_accepts_right


def test_a_demonstration_shows_both_sides():
    shown = case(broken=lambda: torch.tensor([1.0, 5.0]), right=lambda: torch.tensor([1.0, 2.0]), guard=lambda v: None).demonstrate()
    assert (shown.same_shape, shown.differs, shown.guard_message, shown.guard_accepts_right) == (True, 3.0, "", True)
    late = case("late_error").demonstrate()
    assert isinstance(late.broken, IndexError) and late.differs.startswith("IndexError: ") and late.right == 0 and not late.same_shape


@pytest.mark.parametrize(("kind", "changes", "says"), [
    ("wrong_answer", {"broken": lambda: 2.0}, "more than 1e-06 apart"), ("wrong_answer", {"broken": lambda: [1.0, 1.0]}, "no shape check"),
    ("wrong_answer", {"guard": lambda value: None}, "refuses the broken side"), ("wrong_answer", {"guard": forbid(1.0, 2.0)}, "accepts the right side"),
    ("wrong_answer", {"broken": lambda: [0][9]}, "a returned value"), ("wrong_answer", {"tolerance": 5.0}, "more than 5.0 apart"),
    ("late_error", {"broken": lambda: 3}, "an error in use"), ("late_error", {"broken": lambda: lab.get("0x02A.none")}, "not the guard's own"),
    ("excess_cost", {"broken": lambda: Cost(3.0, 8)}, "larger amount"), ("excess_cost", {"broken": lambda: Cost(4.0, 800)}, "one answer"),
    ("excess_cost", {"broken": lambda: 3.0}, "a Cost from both"), ("excess_cost", {"broken": lambda: Cost(3.0, 800, "elements")}, "same unit"),
    ("false_claim", {"broken": lambda: Claim("s", True, 3)}, "fails on its counterexample"), ("false_claim", {"broken": lambda: Claim("s", False)}, "fails on its counterexample"),
    ("false_claim", {"right": lambda: Claim("s", False, 1)}, "claim that holds"), ("false_claim", {"right": lambda: True}, "a Claim from both"),
])
def test_a_case_that_is_not_of_its_kind_is_refused(kind, changes, says):
    with pytest.raises(PositionContractError, match=says):
        Registry().verify(case(kind, **changes))


@pytest.mark.parametrize(("changes", "field"), [
    ({"guard": None}, "guard"), ({"guard": "check"}, "guard"), ({"broken": 3}, "broken"), ({"kind": "odd"}, "kind"), ({"section": "0x99"}, "section"),
    ({"id": "made-up"}, "id"), ({"id": "0x02A."}, "id"), ({"id": "0x05.made-up"}, "id"), ({"title": " "}, "title"), ({"source": ""}, "source"),
    ({"guard_name": None}, "guard_name"), ({"broken_subject": lambda: 1}, "right_subject"),
    ({"kind": "late_error", "broken_subject": None, "right_subject": None}, "broken_subject"),
])
def test_a_malformed_case_is_refused(changes, field):
    with pytest.raises(PositionContractError) as caught:
        case(**changes)
    assert caught.value.field == field


def test_the_registry_keeps_ids_apart_and_runs_nothing():
    def explode():
        raise AssertionError("ran at registration")

    registry = Registry()
    first = registry.register(case(broken=explode, right=explode, guard=explode))
    second = registry.register(case("late_error", id="0x01.other", section="0x01"))
    with pytest.raises(PositionContractError, match="not yet registered"):
        registry.register(case())
    assert registry.cases() == (second, first) and registry.cases(section="0x01") == (second,) and registry.cases(kind="wrong_answer") == (first,)
    assert registry.get("0x01.other") is second
    for ask, field in ((lambda: registry.get("0x01.none"), "id"), (lambda: registry.get("none"), "section"), (lambda: registry.cases(kind="odd"), "kind"),
                       (lambda: registry.register("case"), "case")):
        with pytest.raises(PositionContractError) as caught:
            ask()
        assert caught.value.field == field


@pytest.mark.parametrize(("a", "b", "same", "apart"), [
    (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), np.array([1.0, 2.5]), True, 0.5), ([1, 2], [1, 5], True, 3.0), ([1, 2], [1, 2, 3], False, np.inf),
    (1.0, float("nan"), True, np.inf), (float("nan"), float("nan"), True, 0.0), (float("-inf"), float("-inf"), True, 0.0), (float("inf"), 1.0, True, np.inf),
    ({"x": torch.ones(2), "y": [1, [2]]}, {"x": torch.zeros(2), "y": [1, [2]]}, True, 1.0), ({"x": 1}, {"y": 1}, False, np.inf),
    ((torch.ones(2), torch.ones(3)), (torch.ones(2), torch.zeros(3)), True, 1.0), ("a", "b", True, np.inf), ("a", "a", True, 0.0), ("a", 1, False, np.inf),
    ([], [], True, 0.0), (torch.tensor([True, False]), torch.tensor([True, True]), True, 1.0), (None, None, True, 0.0),
])
def test_values_are_compared_by_structure_and_number(a, b, same, apart):
    assert (same_shape(a, b), difference(a, b)) == (same, apart)


def test_the_lab_loads_its_section_files():
    assert {"0x02A.decode-reset", "0x02A.packed-leak"} <= {c.id for c in lab.cases(section="0x02A")}
    assert "positionlib.lab.x02a" in sys.modules and lab.get("0x02A.decode-reset").guard_name == "position-manifest"
    reset = lab.get("0x02A.decode-reset").demonstrate()
    assert reset.broken.shape == reset.right.shape == (1, 8, 1, 513)
    # The steepest head penalises the oldest key by 512/2; a query reset to 0 sees no past at all.
    assert reset.differs == 256.0 and reset.broken.abs().max() == 0 and "expected 512" in reset.guard_message
    leak = lab.get("0x02A.packed-leak").demonstrate()
    assert torch.equal(leak.broken[:, :, :3], leak.right[:, :, :3]) and not torch.allclose(leak.broken[:, :, 3:], leak.right[:, :, 3:])


@pytest.mark.parametrize("identifier", [c.id for c in lab.cases()])
def test_every_registered_failure_is_of_its_kind(identifier):
    with refusals_fail():
        lab.verify(identifier)
