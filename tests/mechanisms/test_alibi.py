"""ALiBi's forms: what each stores, when they are the same model, and what a shard holds."""

import copy

import pytest
import torch

import positionlib as pl
from positionlib.attention import masked_softmax


def bias(module, g):
    return module(g).materialize(g.query_positions, g.key_positions, torch.float64)


def test_each_form_stores_what_its_source_stores():
    g = pl.AttentionGeometry.decode(2, 2)  # queries 2, 3; keys 0..3
    m = 0.25
    want = {"relative": [[-2, -1, 0, 0], [-3, -2, -1, 0]], "symmetric": [[-2, -1, 0, -1], [-3, -2, -1, 0]], "key_index": [[0, 1, 2, 3]] * 2,
            "key_minus_last": [[-3, -2, -1, 0]] * 2}
    for form, rows in want.items():
        got = bias(pl.ALiBi(1, form=form, slopes=torch.tensor([m])), g)
        assert got.tolist() == [[[[m * x for x in r] for r in rows]]], form


@pytest.mark.parametrize("form", ["key_index", "key_minus_last", "symmetric"])
def test_forms_are_one_model_under_a_causal_mask_and_only_there(form):
    g = pl.AttentionGeometry.causal_self(7)
    scores = torch.randn(1, 4, 7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = bias(pl.ALiBi(4), g), bias(pl.ALiBi(4, form=form), g)
    assert torch.allclose(masked_softmax(scores + a, g.visible.expand(1, 4, 7, 7)), masked_softmax(scores + b, g.visible.expand(1, 4, 7, 7)), atol=1e-14)
    seen = torch.ones(1, 4, 7, 7, dtype=torch.bool)
    assert float((masked_softmax(scores + a, seen) - masked_softmax(scores + b, seen)).abs().max()) > 0.01


def test_a_shard_slices_the_slopes_of_all_heads():
    whole = pl.ALiBi(12).slopes
    shards = [pl.ALiBi(12, head_ids=range(r * 4, r * 4 + 4)).slopes for r in range(3)]
    assert torch.equal(torch.cat(shards), whole) and not torch.equal(shards[0], pl.ALiBi(4).slopes)


def test_a_dtype_move_does_not_round_slopes():
    assert torch.equal(pl.ALiBi(12).to(torch.bfloat16).slopes, pl.alibi_slopes(12)) and pl.ALiBi(12).state_dict() == {}


def test_built_on_meta_with_real_slopes():
    with torch.device("meta"):
        m = pl.ALiBi(4)
    assert torch.equal(m.slopes, pl.alibi_slopes(4)) and m.slopes.device.type == "cpu"


def test_low_precision_distances_are_exact_before_the_product():
    g = pl.AttentionGeometry(torch.tensor([300]), torch.tensor([255, 256, 257, 258]), causal=True)
    got = pl.ALiBi(1, slopes=torch.tensor([0.5]))(g).materialize(g.query_positions, g.key_positions, torch.bfloat16)
    assert got.tolist() == [[[[-22.5, -22.0, -21.5, -21.0]]]]
    far = pl.AttentionGeometry.decode(301)  # 301 has no bfloat16 of its own
    got = pl.ALiBi(1, slopes=torch.tensor([0.75]))(far).materialize(far.query_positions, far.key_positions, torch.bfloat16)
    assert torch.equal(got[0, 0, 0], (-0.75 * torch.arange(301, -1, -1).double()).to(torch.bfloat16))


def test_decode_equals_the_last_row_of_prefill():
    whole, step = pl.AttentionGeometry.causal_self(6), pl.AttentionGeometry.decode(5)
    assert torch.equal(bias(pl.ALiBi(3), step), bias(pl.ALiBi(3), whole)[:, :, 5:])


def test_compressed_positions_make_padding_harmless():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    positions = pl.mechanisms.learned.position_ids_from_mask(mask, "compress_active")
    g = pl.AttentionGeometry(positions, positions, causal=True, key_active=mask)
    alone = pl.AttentionGeometry.causal_self(3)
    assert torch.equal(bias(pl.ALiBi(2), g)[:1, :, 2:, 2:], bias(pl.ALiBi(2), alone))


def test_learned_slopes_start_at_the_given_ones_and_follow_the_distances():
    module, g = pl.ALiBi(4, head_ids=[1, 3], learned=True).double(), pl.AttentionGeometry.causal_self(5)
    assert torch.allclose(module.slopes, pl.alibi_slopes(4)[[1, 3]], rtol=1e-6) and list(module.state_dict()) == ["log_slopes"]
    upstream = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (module(g).materialize(g.query_positions, g.key_positions, torch.float64) * upstream).sum().backward()
    back = (torch.arange(5)[:, None] - torch.arange(5)[None]).clamp_min(0)
    want = torch.stack([-m * (upstream[0, h] * back).sum() for h, m in enumerate(module.slopes.tolist())])
    assert torch.allclose(module.log_slopes.grad, want, atol=1e-12)  # dm/dlog m = m


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_move_leaves_learned_slopes_alone(dtype):
    """In bfloat16 the logarithm of 2^-5 would make a slope that is 1 % off, and the exponential would round it once more."""
    module = pl.ALiBi(8, learned=True)
    for moved in (copy.deepcopy(module).to(dtype), torch.nn.Sequential(copy.deepcopy(module)).to(dtype)[0]):
        assert moved.slopes.dtype == torch.float32 and torch.allclose(moved.slopes.double(), pl.alibi_slopes(8), rtol=1e-6)
    assert copy.deepcopy(module).double().slopes.dtype == torch.float64 and module.to("meta").log_slopes.is_meta


@pytest.mark.parametrize("settings, field", [(dict(heads=0), "heads"), (dict(heads=2, form="absolute"), "form"), (dict(heads=2, slopes=torch.ones(3)), "slopes"),
                                             (dict(heads=2, slopes=torch.tensor([1.0, float("nan")])), "slopes"), (dict(heads=2, head_ids=[2]), "head_ids"),
                                             (dict(heads=2, head_ids=[1.0]), "head_ids"), (dict(heads=2, head_ids=[1, 1]), "head_ids"), (dict(heads=2, inside_scale="no"), "inside_scale"),
                                             (dict(heads=2, learned=1), "learned"), (dict(heads=2, learned=True, slopes=torch.tensor([1.0, 0.0])), "slopes")])
def test_bad_settings_are_refused_at_construction(settings, field):
    with pytest.raises(pl.PositionContractError) as caught:
        pl.ALiBi(**settings)
    assert caught.value.field == field


def test_the_papers_form_needs_a_causal_geometry():
    with pytest.raises(pl.PositionContractError, match="symmetric"):
        pl.ALiBi(2)(pl.AttentionGeometry.encoder(3))
    with pytest.raises(pl.FrameMismatchError):
        pl.ALiBi(2, form="symmetric")(pl.AttentionGeometry.cross(2, 2))
