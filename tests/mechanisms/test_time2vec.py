"""Time2Vec against its formula in Python floats; units, clocks, missing times, and what a checkpoint says about itself."""

import copy
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import positionlib as pl
from positionlib.mechanisms.time2vec import LARGEST_COUNT, UNITS, convert_linear_channel
from tests.refusals import refused

UNIX = {"clock": "unix", "zone": "UTC"}
NOW = 1_735_689_600  # 2025-01-01 in seconds
AXIS = pl.TimeAxis(NOW, 3600.0, **UNIX)
SETTINGS = {"function": "sin", "linear": "first", "missing": "error"}


def stamps(values, unit="s", **more):
    """int64 for whole numbers, float64 for others."""
    t = torch.as_tensor(values, dtype=None if torch.tensor(values).dtype == torch.int64 else torch.float64)
    return pl.Timestamps(**{"values": t, "unit": unit, **UNIX, **more})


def module(d_model=3, axis=AXIS, **settings):
    return pl.Time2Vec(d_model, axis, **{**SETTINGS, **settings})


def formula(tau, omega, phi, function):
    """Channel 0 is linear, one channel at a time."""
    return [w * tau + p if c == 0 else getattr(math, function)(w * tau + p) for c, (w, p) in enumerate(zip(omega, phi))]


@pytest.mark.parametrize("function", ["sin", "cos"])
def test_rows_equal_the_formula(function):
    m = module(4, function=function, output_dtype=torch.float64)
    hours = [0.0, 0.5, 1.0, -3.25, 8760.0]
    want = torch.tensor([formula(h, m.omega.tolist(), m.phi.tolist(), function) for h in hours], dtype=torch.float64)
    assert torch.allclose(m(stamps([NOW + int(3600 * h) for h in hours])).rows, want, atol=1e-11, rtol=1e-14)


def test_the_linear_channel_stands_where_it_is_named_and_converts():
    first, last = module(4), module(4, linear="last")
    with torch.no_grad():
        for name in ("omega", "phi"):
            getattr(last, name).copy_(convert_linear_channel(getattr(first, name), source="first", target="last"))
    a, b = (m(stamps([NOW + 7200, NOW + 86_400])).rows for m in (first, last))
    assert torch.equal(b[:, 3], (first.omega[0] * torch.tensor([2.0, 24.0], dtype=torch.float64) + first.phi[0]).float())
    assert torch.equal(convert_linear_channel(a, source="first", target="last"), b) and torch.equal(convert_linear_channel(b, source="last", target="first"), a)
    assert convert_linear_channel(torch.arange(4), source="first", target="last").tolist() == [1, 2, 3, 0]
    refused(lambda: convert_linear_channel(a, source="first", target="middle"), "target")


@pytest.mark.parametrize("unit", UNITS)
def test_one_instant_has_one_coordinate_in_every_unit(unit):
    axis = pl.TimeAxis(86_400.0 * 20_000, 86_400.0, **UNIX)
    counts = [int(Fraction(86_400 * day) / UNITS[unit]) for day in (20_000, 20_003)]
    assert axis.tau(stamps(counts, unit)).tolist() == [0.0, 3.0]
    assert axis.tau(stamps([float(c) for c in counts], unit)).tolist() == pytest.approx([0.0, 3.0], abs=1e-9)


@given(st.integers(-2**40, 2**40), st.integers(-2**31, 2**31), st.sampled_from(sorted(UNITS)))
def test_counts_are_subtracted_before_they_are_rounded(since, origin, unit):
    count = origin // UNITS[unit] + since
    got = pl.TimeAxis(origin, 7.0, **UNIX).tau(stamps([count], unit)).item()
    want = (count * UNITS[unit] - origin) / 7
    assert abs(Fraction(got) - want) <= abs(want) * Fraction(1, 2**51) + Fraction(1, 10**25)


def test_nanoseconds_of_today_keep_their_last_digit():
    axis = pl.TimeAxis(NOW, 1e-9, **UNIX)
    counts = torch.tensor([NOW * 10**9 + n for n in (0, 1, 2, 255)])
    assert axis.tau(stamps(counts.tolist(), "ns")).tolist() == [0.0, 1.0, 2.0, 255.0]
    assert (counts.double().diff() == 0).any(), "float64 alone merges them"
    assert pl.TimeAxis(0.25, 1.0, **UNIX).tau(stamps([1, 2])).tolist() == [0.75, 1.75], "an origin between two counts"


def test_milliseconds_declared_as_seconds_are_noticed():
    axis = replace(AXIS, declared_range=(0.0, 1000.0))
    right = stamps([(NOW + 7200) * 1000], "ms")
    assert axis.tau(right).tolist() == [2.0] and axis.tau(stamps([NOW, NOW + 3_600_000])).tolist() == [0.0, 1000.0]
    error = refused(lambda: module(axis=axis)(replace(right, unit="s")), "tau")
    assert "'s'" in str(error) and "milliseconds" in str(error)
    refused(lambda: axis.tau(stamps([NOW - 1])), "tau")
    assert AXIS.tau(replace(right, unit="s")).tolist() == [((NOW + 7200) * 1000 - NOW) / 3600], "without a range nothing shows it"


@pytest.mark.parametrize("field, other", [("clock", "boot"), ("zone", "Europe/Paris"), ("zone", None)])
def test_times_of_another_clock_or_zone_are_refused(field, other):
    with pytest.raises(pl.FrameMismatchError, match=field):
        module()(stamps([NOW], **{field: other}))


def test_missing_times_are_an_error_or_a_zero_row_by_name():
    times = stamps([[NOW + 10.0, math.nan], [NOW + 20.0, NOW + 30.0]], present=torch.tensor([[True, True], [False, True]]))
    assert refused(lambda: module()(times), "present").value == [[0, 1]]
    m = module(missing="zero_row")
    term = m(times)
    assert term.present.tolist() == [[True, False], [False, True]]
    assert torch.equal(term.rows[~term.present], torch.zeros(2, 3))
    assert torch.equal(term.rows[term.present], m(stamps([NOW + 10.0, NOW + 30.0])).rows)
    term.rows.sum().backward()
    assert m.phi.grad[0] == 2.0 and m.omega.grad.isfinite().all()
    counts = stamps([[NOW + 10, -2**63]], present=torch.tensor([[True, False]]))  # NumPy's "not a time" behind a mask
    assert torch.equal(m(counts).rows, m(stamps([[NOW + 10.0, math.nan]])).rows)


@pytest.mark.parametrize("function, linear", [("sin", "first"), ("cos", "last")])
def test_gradients_reach_frequencies_phases_and_times(function, linear):
    axis = pl.TimeAxis(1.5, 2.0, **UNIX)
    m = module(4, axis, function=function, linear=linear, output_dtype=torch.float64).double()
    values = torch.tensor([[0.3, 4.0], [-2.0, 1.5]], dtype=torch.float64, requires_grad=True)

    def rows(values, omega, phi):
        return torch.func.functional_call(m, {"omega": omega, "phi": phi}, (pl.Timestamps(values=values, unit="s", **UNIX),)).rows
    assert torch.autograd.gradcheck(rows, (values, m.omega, m.phi))


def test_half_precision_moves_leave_the_frequencies_alone():
    m = module(8)
    want = m(stamps([NOW + 10**7])).rows
    for moved in (copy.deepcopy(m).bfloat16(), torch.nn.Sequential(copy.deepcopy(m)).half()[0]):
        assert moved.omega.dtype == torch.float32 and torch.equal(moved(stamps([NOW + 10**7])).rows, want)
    x = torch.full((1, 1, 8), 0.3, dtype=torch.bfloat16)
    m.output_dtype = torch.float64
    once = (x.double() + m(stamps([NOW + 10**7])).rows).to(torch.bfloat16)
    assert torch.equal(m(stamps([NOW + 10**7])).add_to(x), once)
    assert module(8).to("meta").to_empty(device="cpu").omega.dtype == torch.float32


def test_a_batch_is_its_sequences_and_rows_are_added_once():
    m = module()
    values = [[NOW, NOW + 60], [NOW + 5, NOW - 5]]
    term = m(stamps(values))
    assert torch.equal(term.rows, torch.stack([m(stamps(v)).rows for v in values]))
    x = term.add_to(torch.zeros(2, 2, 3))
    assert torch.equal(x, term.rows)
    refused(lambda: term.add_to(x), "x")
    assert m(replace(stamps([0]), values=torch.zeros(2, 0, dtype=torch.int64), present=None)).rows.shape == (2, 0, 3)


@pytest.mark.parametrize("change, field", [
    ({"axis": replace(AXIS, unit_seconds=3.6)}, "unit_seconds"), ({"axis": replace(AXIS, origin=0)}, "origin"), ({"axis": replace(AXIS, zone=None)}, "zone"),
    ({"axis": replace(AXIS, clock="boot")}, "clock"), ({"axis": replace(AXIS, declared_range=(0, 1))}, "declared_range"),
    ({"function": "cos"}, "function"), ({"linear": "last"}, "linear"), ({"missing": "zero_row"}, "missing")])
def test_a_checkpoint_says_what_its_weights_mean(change, field):
    saved = module().state_dict()
    same = module()
    same.load_state_dict(saved)
    assert torch.equal(same(stamps([NOW + 9])).rows[:, 0].detach(), (saved["omega"][0] * torch.tensor([0.0025], dtype=torch.float64) + saved["phi"][0]).float())
    refused(lambda: module(**change).load_state_dict(saved), field)


def test_a_checkpoint_that_was_cast_whole_is_refused():
    refused(lambda: module().load_state_dict({name: t.half() for name, t in module().state_dict().items()}), "_extra_state")
    for other in (torch.tensor([1, 2], dtype=torch.uint8), torch.tensor(list(b"[]"), dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8, device="meta"), None):
        refused(lambda: module().load_state_dict({**module().state_dict(), "_extra_state": other}), "_extra_state")


def test_times_on_another_device_are_refused():
    refused(lambda: module().to("meta")(stamps([NOW])), "times")


def test_compiled_rows_equal_eager_ones():
    class Timed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = module(missing="zero_row")

        def forward(self, values, present, x):
            return self.rows(pl.Timestamps(values=values, unit="s", **UNIX, present=present)).add_to(x)

    m, x, present = Timed(), torch.randn(2, 3, 3), torch.tensor([[True, False, True], [True, True, True]])
    for values in (NOW + torch.arange(6).reshape(2, 3), (NOW + torch.rand(2, 3, dtype=torch.float64) * 1e6).masked_fill(~present, math.nan)):
        want = m(values, present, x)
        assert torch.equal(torch.compile(m, fullgraph=True, backend="aot_eager")(values, present, x), want)
        assert torch.equal(torch.export.export(m, (values, present, x)).module()(values, present, x), want)


@pytest.mark.parametrize("change, field", [
    ({"values": torch.tensor([1.0])}, "values"), ({"values": torch.tensor([True])}, "values"), ({"values": torch.tensor(1)}, "values"),
    ({"values": [3]}, "values"), ({"values": torch.ones(1).numpy()}, "values"),
    ({"values": torch.tensor([math.inf], dtype=torch.float64)}, "values"), ({"values": torch.tensor([LARGEST_COUNT])}, "values"),
    ({"values": torch.tensor([-2**63])}, "values"), ({"unit": None}, "unit"), ({"unit": "year"}, "unit"), ({"clock": ""}, "clock"), ({"zone": 1}, "zone"),
    ({"present": torch.tensor([1])}, "present"), ({"present": torch.tensor([[True]])}, "present")])
def test_bad_timestamps_are_refused(change, field):
    refused(lambda: pl.Timestamps(**{"values": torch.tensor([1]), "unit": "s", **UNIX, **change}), field)


@pytest.mark.parametrize("change, field", [({"origin": math.nan}, "origin"), ({"origin": True}, "origin"), ({"unit_seconds": 0}, "unit_seconds"),
                                           ({"clock": None}, "clock"), ({"declared_range": (1, 1)}, "declared_range"),
                                           ({"declared_range": 5}, "declared_range")])
def test_bad_axes_are_refused(change, field):
    refused(lambda: replace(AXIS, **change), field)


@pytest.mark.parametrize("settings, field", [({"d_model": 1}, "d_model"), ({"axis": 3600.0}, "axis"), ({"function": "triangle"}, "function"),
                                             ({"linear": 0}, "linear"), ({"missing": "drop"}, "missing"), ({"output_dtype": torch.int64}, "output_dtype")])
def test_bad_modules_are_refused_at_construction(settings, field):
    refused(lambda: module(**settings), field)


def test_an_origin_that_counts_cannot_reach_is_refused():
    far = pl.TimeAxis(5e9, 1.0, **UNIX)
    assert far.tau(stamps([5_000_000_007])).tolist() == [7.0]
    refused(lambda: far.tau(stamps([0], "ns")), "unit")
