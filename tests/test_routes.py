"""The route of every kind of term, found by comparing runs; and what the comparison refuses."""
import pytest
import torch

import positionlib as pl
from positionlib.errors import PositionContractError
from positionlib.routes import TENSORS, changed, require_route, run

WEIGHTS = [torch.randn(8, 8, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (1, 2, 3)]
CONTENT = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FULL, CAUSAL = pl.AttentionGeometry.encoder(5), pl.AttentionGeometry.causal_self(5)


def layer(term, geometry=FULL):
    return run(CONTENT, WEIGHTS, term, geometry, heads=2)


def terms():
    torch.manual_seed(0)
    t5 = pl.T5Bias(heads=2, num_buckets=32, max_distance=128, bidirectional=True)
    torch.nn.init.normal_(t5.weight)
    return {"sinusoidal": pl.Sinusoidal(8)(FULL), "learned": pl.LearnedAbsolute(9, 8)(FULL), "t5": t5(FULL),
            "rotary": pl.Rotary(4, pairing="half_split")(FULL), "shaw": pl.ShawRelative(2, 4, sign="key_minus_query")(FULL),
            "shaw values": pl.ShawRelative(2, 4, sign="key_minus_query", sides="values")(FULL)}


@pytest.mark.parametrize(("name", "names"), [
    ("sinusoidal", "XQKVSAY"), ("learned", "XQKVSAY"), ("t5", "SAY"), ("rotary", "QKSAY"), ("shaw", "SAY"), ("shaw values", "Y")])
def test_each_term_enters_at_its_own_tensor(name, names):
    assert "".join(changed(layer(None), layer(terms()[name]))) == names


def test_a_mask_enters_at_m_and_the_last_row_reads_all():
    before, after = layer(None), layer(pl.NoPE()(CAUSAL), CAUSAL)
    assert changed(before, after) == ("M", "A", "Y")
    torch.testing.assert_close(before["Y"][:, :, -1], after["Y"][:, :, -1])


def test_a_run_is_the_layer():
    for term in terms().values():
        seen = layer(term)
        assert tuple(seen) == TENSORS
        rows = term.add_to(CONTENT) if hasattr(term, "add_to") else CONTENT
        q, k, v = ((rows @ w).reshape(2, 5, 2, 4).transpose(1, 2) for w in WEIGHTS)
        plain = None if hasattr(term, "add_to") else term
        torch.testing.assert_close(seen["Y"], pl.attend(q, k, v, plain, FULL))


def test_changed_counts_shapes_and_ignores_rounding():
    a = {"X": torch.zeros(2), "Y": torch.ones(3)}
    assert changed(a, {"X": torch.zeros(2) + 1e-12, "Y": torch.ones(3)}) == ()
    assert changed(a, {"X": torch.zeros(1), "Y": torch.tensor([1.0, 1.0, 2.0])}) == ("X", "Y")
    with pytest.raises(PositionContractError, match="Compare two runs"):
        changed(a, {"X": torch.zeros(2)})


def test_the_guard_names_where_the_coordinate_came_in():
    content, bias = layer(None), layer(terms()["t5"])
    require_route("S", content, bias)
    with pytest.raises(PositionContractError, match="No coordinate reached the layer"):
        require_route("S", content, content)
    with pytest.raises(PositionContractError, match="first changed tensor = 'S': expected Q"):
        require_route("Q", content, bias)


def test_weights_that_do_not_fit_are_refused():
    for weights, field in ((WEIGHTS[:2], "weights"), ([WEIGHTS[0][:4], *WEIGHTS[1:]], "W_Q"), ([*WEIGHTS[:2], WEIGHTS[2][:, :7]], "W_V")):
        with pytest.raises(PositionContractError) as caught:
            run(CONTENT, weights, None, FULL, heads=2)
        assert caught.value.field == field
