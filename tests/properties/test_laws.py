"""The laws: decoding is prefill, a head carries its state, packing is separation, the padding side does not matter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import positionlib as pl
from positionlib import mechanisms
from tests.properties.layer import LONGEST, SHARE, Layer, numbers, part, prompts
from tests.properties.mechanisms import (
    ENTRIES, HEADS, NO_MECHANISM, NOT_CAUSAL, WIDTH, Applied, Entry, fill, module, reason_without_causal_use,
)
from tests.refusals import refused

CAUSAL = [entry for entry in ENTRIES if reason_without_causal_use(entry) is None]
FORMS = [(entry, visibility) for entry in ENTRIES for visibility in entry.visibility]

every_form = pytest.mark.parametrize("entry, visibility", FORMS, ids=lambda value: getattr(value, "name", value))


def assert_close(got, want):
    """Equal but for the order of float64 sums."""
    assert got.shape == want.shape and bool(((got - want).abs() <= 1e-12 * (1 + want.abs())).all()), f"{float((got - want).abs().max()):.3g} apart"


def test_every_exported_mechanism_stands_in_a_list():
    assert {entry.exported for entry in ENTRIES} | set(NO_MECHANISM) == set(mechanisms.__all__)
    assert not {entry.exported for entry in ENTRIES} & set(NO_MECHANISM)
    assert set(NOT_CAUSAL) <= {entry.name for entry in ENTRIES} | {entry.exported for entry in ENTRIES}
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_form_refuses_the_visibility_that_it_is_not_for(entry):
    assert ("causal" in entry.visibility) or reason_without_causal_use(entry)
    geometries, x = {"causal": pl.AttentionGeometry.causal_self(3), "encoder": pl.AttentionGeometry.encoder(3)}, numbers(1, 3, WIDTH, seed=0)
    for visibility, other in geometries.items():
        if visibility not in entry.visibility:
            with pytest.raises(pl.PositionContractError):
                module(entry)(other)
            term = module(entry)(geometries[entry.visibility[0]])  # nor does a term that was made before the geometry changed
            refused(lambda: Layer()(lambda geometry: term, x, other), "geometry.causal")


@pytest.mark.parametrize("entry", CAUSAL, ids=lambda entry: entry.name)
@SHARE
@given(data=st.data())
def test_prefill_is_chunked_prefill_is_decode(entry, data):
    prompt, layer, mechanism = data.draw(prompts("causal")), Layer(), module(entry)
    length = prompt.x.shape[1]
    whole, _ = layer(mechanism, prompt.x, prompt.geometry)
    inner = data.draw(st.sets(st.integers(1, length - 1)) if length > 1 else st.just(set()))
    for cuts in ([0, *sorted(inner), length], list(range(length + 1))):
        outputs, cache = [], None
        for start, stop in zip(cuts, cuts[1:]):
            out, cache = layer(mechanism, prompt.x[:, start:stop], part(prompt.geometry, slice(start, stop), slice(0, stop)), cache)
            outputs.append(out)
        assert_close(torch.cat(outputs, 2), whole)


def with_heads(entry: Entry, order: list[int]) -> Applied:
    """The entry's module with the state of head order[h] at head h."""
    if entry.of_heads is not None:
        return Applied(entry.of_heads(order), entry.call)
    moved = fill(Applied(entry.build(), entry.call))
    for name, axis in entry.head_axes.items():
        parameter = moved.get_parameter(f"mechanism.{name}")
        split = parameter.data.unflatten(axis, (HEADS, -1))
        parameter.data = split.index_select(axis, torch.tensor(order)).flatten(axis, axis + 1)
    return moved


@every_form
@SHARE
@given(data=st.data())
def test_heads_that_move_with_their_state_move_the_output(entry, visibility, data):
    prompt, order = data.draw(prompts(visibility)), data.draw(st.permutations(range(HEADS)))
    out, _ = Layer()(module(entry), prompt.x, prompt.geometry)
    moved, _ = Layer(tuple(order))(with_heads(entry, order), prompt.x, prompt.geometry)
    assert_close(moved, out[:, order])


@every_form
@SHARE
@given(data=st.data())
def test_a_packed_call_is_its_separate_calls(entry, visibility, data):
    prompt, layer = data.draw(prompts(visibility)), Layer()
    packed, _ = layer(module(entry), prompt.x, prompt.geometry)
    for rows in prompt.runs:
        alone, _ = layer(module(entry), prompt.x[:, rows], part(prompt.geometry, rows, rows))
        assert_close(packed[:, :, rows], alone)


@every_form
@SHARE
@given(sizes=st.lists(st.integers(1, LONGEST), min_size=1, max_size=3), start=st.integers(0, 5), seed=st.integers(0, 99))
def test_padding_left_is_padding_right_on_real_rows(entry, visibility, sizes, start, seed):
    longest, tokens = max(sizes), numbers(len(sizes), LONGEST, WIDTH, seed=seed)
    outputs = []
    for side in ("left", "right"):
        x, positions, active = torch.full((len(sizes), longest, WIDTH), 9.0, dtype=torch.float64), torch.zeros(len(sizes), longest).long(), []
        for b, size in enumerate(sizes):
            rows = slice(longest - size, longest) if side == "left" else slice(0, size)
            x[b, rows], positions[b, rows] = tokens[b, :size], torch.arange(start, start + size)
            active.append([rows.start <= n < rows.stop for n in range(longest)])
        active = torch.tensor(active)
        g = pl.AttentionGeometry(positions, positions, causal=visibility == "causal", key_active=active)
        out, _ = Layer()(module(entry), x, g)
        outputs.append(out.transpose(1, 2)[active])
    assert_close(*outputs)
