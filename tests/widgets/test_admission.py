"""The admission widget: needs by a list made here, statuses against attend() itself, bytes by arithmetic."""
import itertools

import pytest
import torch

import positionlib as pl
from positionlib.errors import PositionContractError
from positionlib.widgets.admission import BACKENDS, FAMILIES, HEADS, ROWS, WIDTH, backend_admission, call_of

pytest.importorskip("triton")

CHOICES = list(itertools.product(FAMILIES, BACKENDS, ("none", "eager")))
CAUSAL, BIAS, KEY, QUERY, VALUES = ("causal visibility", "additive bias by offset", "additive bias by key position", "relation score of the query",
                                    "relation of the values")
NEEDS = {
    "added": {CAUSAL}, "rotary": {CAUSAL, "rotation of q and k"}, "nope": {CAUSAL}, "t5": {CAUSAL, BIAS}, "alibi": {CAUSAL, BIAS},
    "alibi_key": {CAUSAL, KEY}, "shaw_keys": {CAUSAL, QUERY}, "shaw": {CAUSAL, QUERY, VALUES}, "xl": {CAUSAL, BIAS, QUERY, "content bias"},
    "deberta": {CAUSAL, QUERY, "relation score of the key"}, "tupe": {CAUSAL, "scores by pair"},
}
REFUSED = {"sdpa": {"shaw_keys", "shaw", "xl", "deberta", "tupe"}, "triton": {"alibi_key", "tupe"},
           "blocked": set(), "eager": set()}
LINE, PAIR, BYTES = 2 * ROWS - 1, ROWS * ROWS, 4


def held(family, backend):
    """(bias bytes, relation bytes): a line of offsets on the CPU's paths, all pairs in the reference."""
    biased, sides = family in ("t5", "alibi", "alibi_key"), {"shaw_keys": 1, "shaw": 1, "xl": 1, "deberta": 2}.get(family, 0)
    if family == "tupe":
        return HEADS * PAIR * BYTES, 0  # the term holds its bias wherever it runs
    if backend == "eager":
        mass = HEADS * ROWS * 9 * BYTES if family == "shaw" else 0
        return biased * HEADS * PAIR * BYTES, sides * HEADS * PAIR * BYTES + mass
    rows = {"shaw_keys": 1, "shaw": 2, "xl": HEADS, "deberta": 2 * HEADS}.get(family, 0)
    return (biased or family == "xl") * HEADS * LINE * BYTES, rows * LINE * WIDTH * BYTES


@pytest.fixture(scope="module")
def widget():
    return backend_admission()


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_status_needs_and_bytes(widget, choice):
    family, backend, fallback = choice
    badges, table = widget.state(**dict(zip(("family", "backend", "fallback"), choice)))
    badges = {b.label: b.value for b in badges.items}
    refused = family in REFUSED[backend]
    status = ("fallback" if fallback == "eager" else "refused") if refused else "on a GPU" if backend == "triton" else "admitted"
    runs_on = {"refused": "nowhere", "fallback": "eager"}.get(status, backend)
    assert (badges["status"], badges["runs on"]) == (status, runs_on)
    assert {need for need, _ in table.rows} == NEEDS[family]
    missing = {need for need, there in table.rows if there == "missing"}
    assert badges["missing"] == len(missing) and bool(missing) == refused and CAUSAL not in missing
    if status in ("refused", "on a GPU"):
        assert badges["bias bytes"] == badges["relation bytes"] == "nothing ran"
    else:
        assert (badges["bias bytes"], badges["relation bytes"]) == held(family, runs_on)
    if backend in ("sdpa", "blocked", "eager"):
        x, term, geometry = call_of(family)
        if refused:
            with pytest.raises(pl.UnsupportedPositionContract) as no:
                pl.attend(x, x, x, term, geometry, backend=backend)
            assert no.value.missing == missing
        else:
            got, want = (pl.attend(x, x, x, term, geometry, backend=b) for b in (backend, "eager"))
            assert torch.allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_captions_are_true(widget, choice):
    family, backend, fallback = choice
    said = widget.caption_of(**dict(zip(("family", "backend", "fallback"), choice)))
    refused = family in REFUSED[backend]
    assert said.lower().startswith(FAMILIES[family][0].lower()) and BACKENDS[backend] in said
    assert ("refused" in said) == (refused and fallback == "none") and ("counted as a fallback" in said) == (refused and fallback == "eager")
    assert ("a fallback to eager is allowed" in said) == (fallback == "eager") and ("admitted" in said) != refused


def test_at_rest_shaw_lacks_two_things(widget):
    assert widget.choice == {"family": "shaw", "backend": "sdpa", "fallback": "none"}
    assert "relation of the values and relation score of the query" in widget.caption_of(**widget.choice)


def test_size_and_refusal():
    assert backend_admission().size < 60_000
    with pytest.raises(PositionContractError):
        backend_admission(families=["t5", "t5"])
