"""The row kernels, forward and backward, against the mechanisms' terms; in the interpreter where there is no GPU."""

import math

import mpmath
import pytest
import torch

from positionlib.errors import PositionContractError
from positionlib.kernels import row_ops, rows
from positionlib.mechanisms.sinusoidal import inverse_frequencies, sinusoidal_rows
from tests.kernels.cases import DEVICE
from tests.kernels.row_cases import BY_NAME, CASES, draw, error, expected, far_apart, frequencies, run, wanted

pytest.importorskip("triton")
proof = pytest.mark.skipif(DEVICE == "cuda", reason="float64 is for the interpreter")


@proof
@pytest.mark.parametrize("case", [case for case in CASES if "2_31" not in case.name], ids=lambda c: c.name)
def test_float64_is_the_term(case):
    t = draw(case, torch.float64)
    assert error(case, torch.float64, wanted(case, t), t) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["sines", "sines_across_2_31", "lookup_crowded", "grid_leading", "times_cosine_last", "times_missing",
                                  "half_split_part", "half_split_across_2_31", "interleaved_part"])
def test_working_precisions(name, dtype):
    """2·10⁻⁶ in float32; in float16, one rounding of results of order 3 and no more."""
    case = BY_NAME[name]
    t = draw(case, dtype)
    assert error(case, dtype, wanted(case, t), t) <= (0.2 if dtype == torch.float32 else 0.3)


def through_the_front_door(case, t):
    """The case by its public function."""
    s = case.settings
    if case.kind == "sinusoidal":
        return rows.add_sinusoidal(t.x, *t.exact, frequencies(case), layout=s["layout"])
    if case.kind == "learned":
        return rows.add_row(t.x, *t.trained, *t.exact, row_offset=s["row_offset"])
    if case.kind == "grid":
        return rows.add_grid(t.x, *t.trained, *t.exact)
    if case.kind == "time2vec":
        return rows.add_time2vec(t.x, t.exact[0], *t.trained, function=s["function"], linear=s["linear"], present=t.exact[1])
    return rows.rotate(t.x, *t.exact, frequencies(case), pairing=s["pairing"])


@pytest.mark.parametrize("name", ["sines", "sines_in_blocks", "sines_cut", "lookup", "grid_leading", "times", "times_cosine_last", "times_missing",
                                  "half_split_part", "interleaved_part"])
def test_the_public_functions_are_the_terms(name):
    case = BY_NAME[name]
    t = draw(case, torch.float32)
    want = expected(case, t.x.double(), tuple(p.double() for p in t.trained), t.exact)
    torch.testing.assert_close(through_the_front_door(case, t).double(), want, rtol=1e-6, atol=2e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_bfloat16_on_a_gpu(case):
    t = draw(case, torch.bfloat16)
    assert error(case, torch.bfloat16, wanted(case, t), t) <= 0.3


@proof
@pytest.mark.parametrize("name", ["sines", "lookup_repeated", "grid", "times", "interleaved_part"])
def test_bfloat16_is_widened_on_load_in_the_interpreter(name):
    """What can be proved of bfloat16 here: values are read right and used in float32. The last cast truncates here, hence 2^-7."""
    case = BY_NAME[name]
    t = draw(case, torch.bfloat16)
    for seen, want in zip(run(case, t), wanted(case, t), strict=True):
        assert bool(((seen - want).abs() <= 2**-7 * want.abs() + 1e-5).all())


def exact_rows(positions, frequencies):
    """[sin θ, cos θ] with θ = position · ω in 60 digits, ω the float64 that it is."""
    with mpmath.workdps(60):
        angle = [[p * mpmath.mpf(w) for w in frequencies.tolist()] for p in positions]
        return torch.tensor([[float(f(a)) for f in (mpmath.sin, mpmath.cos) for a in row] for row in angle], dtype=torch.float64)


@pytest.mark.parametrize("dtype, bound", [pytest.param(torch.float64, 2e-9, marks=proof), (torch.float32, 2e-7)], ids=str)
def test_positions_to_2_31_keep_their_phase(dtype, bound):
    """The kernel's bound, |p| · 10⁻¹⁸ and 2·10⁻⁷ in float32; a float64 phase is off by forty times as much, a float32 phase is refused."""
    positions = [2**31, 2**31 - 1, 2**31 - 104729, -(2**31) + 12345, 1_999_999_999, 123_456_789]
    frequencies = inverse_frequencies(64)
    want = exact_rows(positions, frequencies)
    x = torch.zeros(1, len(positions), 64, dtype=dtype, device=DEVICE)
    seen = rows.add_sinusoidal(x, torch.tensor(positions, device=DEVICE), frequencies.to(DEVICE), layout="concatenated")[0].double().cpu()
    assert float((seen - want).abs().max()) < bound
    far = {"layout": "concatenated", "output_dtype": torch.float64}
    term = sinusoidal_rows(torch.tensor(positions), 64, **far)
    assert 4e-8 < float((term - want).abs().max()) < 5e-7
    with pytest.raises(PositionContractError, match="positions"):
        sinusoidal_rows(torch.tensor(positions), 64, construction_dtype=torch.float32, **far)


@proof
def test_frequencies_of_any_size_and_sign():
    """Above one radian the whole radians turn too; a negative frequency turns back."""
    frequencies = torch.tensor([3.75, -0.3, 1000.125, 6.283185307179586, 1e-12, 0.0, -2.0, 1.0], dtype=torch.float64)
    positions = [1, 7, -1000, 2**20 + 1]
    x = torch.zeros(1, len(positions), 16, dtype=torch.float64)
    seen = rows.add_sinusoidal(x, torch.tensor(positions), frequencies, layout="concatenated")[0]
    assert float((seen - exact_rows(positions, frequencies)).abs().max()) < 1e-9


@proof
def test_offsets_beyond_2_31_elements():
    """The third batch row starts 2^31 elements after the first. Memory is reserved and, but for the rows, never touched."""
    x = far_apart(torch.arange(1.0, 121.0).half().reshape(3, 5, 8), 0)
    table = torch.zeros(5, 8, dtype=torch.float16)
    assert torch.equal(rows.add_row(x, table, torch.arange(5)), x)
    assert torch.equal(row_ops.sum_rows(x, torch.arange(5), 5, torch.float32), x.float().sum(0))


def test_an_id_without_a_row_reads_nothing():
    """Where no host looks, as in a compiled graph: NaN, and a gradient that leaves the place out."""
    table, ids = torch.ones(4, 8, device=DEVICE), torch.tensor([3, 4, -1, 2**40, 0], device=DEVICE)
    x = torch.zeros(2, 5, 8, device=DEVICE)
    assert row_ops.add_row(x, table, ids, 0)[..., 0].isnan().tolist() == [[False, True, True, True, False]] * 2
    assert row_ops.add_grid(x, table, table, ids, ids)[..., 0].isnan().tolist() == [[False, True, False, True, False]] * 2
    assert row_ops.sum_rows(torch.ones_like(x), ids, 4, torch.float32)[:, 0].tolist() == [2, 0, 0, 2]


@proof
def test_the_gradient_of_a_crowded_row_is_one_sum_in_a_fixed_order():
    """Whatever order the places come in, sums of exact numbers agree; whole chunks go through the partial sums."""
    case = BY_NAME["lookup_crowded"]
    upstream = draw(case, torch.float32).upstream.round()
    ids = torch.full((case.rows,), 4)
    ids[7] = 2
    total = row_ops.sum_rows(upstream, ids, 6, torch.float32)
    kept = torch.arange(case.rows) != 7
    assert torch.equal(total[4], upstream[:, kept].sum((0, 1))) and torch.equal(total[2], upstream[:, 7].sum(0))
    assert total[[0, 1, 3, 5]].abs().max() == 0


def test_rotating_back_restores_the_row_and_keeps_its_norm():
    x = draw(BY_NAME["half_split"], torch.float32).x
    positions, frequency = torch.arange(40, device=DEVICE) * 50_000_000, torch.tensor([1.0, 0.3, 1e-4], dtype=torch.float64, device=DEVICE)
    turned = rows.rotate(x, positions, frequency, pairing="interleaved")
    assert float((turned - x)[..., :6].abs().max()) > 1 and torch.equal(turned[..., 6:], x[..., 6:])
    torch.testing.assert_close(rows.rotate(turned, -positions, frequency, pairing="interleaved"), x, rtol=0, atol=2e-6)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)


def test_empty_calls():
    """No rows, no batch: nothing to do, and a table's gradient is zero."""
    frequency, table = inverse_frequencies(8).to(DEVICE), torch.ones(3, 8, device=DEVICE, requires_grad=True)
    for batch, n in ((2, 0), (0, 3)):
        x, positions = torch.zeros(batch, n, 8, device=DEVICE), torch.arange(n, device=DEVICE)
        assert rows.add_sinusoidal(x, positions, frequency, layout="interleaved").shape == x.shape
        y = rows.add_row(x, table, positions)
        (gradient,) = torch.autograd.grad(y.sum(), table)
        assert y.shape == x.shape and torch.equal(gradient, torch.zeros_like(table))
        for heads in (1, 0):
            assert rows.rotate(x[:, None].expand(-1, heads, -1, -1), positions, frequency, pairing="interleaved").shape == (batch, heads, n, 8)
        times = torch.zeros(n, dtype=torch.float64, device=DEVICE)
        omega = torch.ones(8, device=DEVICE, requires_grad=True)
        y = rows.add_time2vec(x, times, omega, omega, function="sin", linear="first")
        assert math.isclose(float(torch.autograd.grad(y.sum(), omega)[0].abs().sum()), 0.0)
