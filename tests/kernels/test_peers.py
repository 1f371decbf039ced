"""Others' fused DeBERTa kernels against ours on the same inputs, output and gradients, both in the interpreter.

flashdeberta 0.0.8 (Knowledgator/FlashDeBERTa) and disentangled-flash 1.1.1 (delyan-boychev/disentangled-flash), both Apache-2.0. Each is
asked for the same tables of projected rows, released DeBERTa's rows and buckets, and right padding.
"""

import contextlib
import importlib
import sys
import types
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

import positionlib as pl
from tests.kernels.cases import DEVICE

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="not run: the interpreter compares, and a GPU does not interpret")
BATCH, HEADS, LENGTH, WIDTH, BUCKETS, FARTHEST = 2, 2, 70, 32, 8, 24
LENGTHS = torch.tensor([LENGTH, 45])
# Relative to the largest number: what sums in another order lose in float32. 3.0e-7 was seen forward, 5.3e-7 backward.
FORWARD, BACKWARD = 1e-6, 2e-6


def flashdeberta(q, k, v, pos_key, pos_query, term):
    """Without the package's own __init__, which loads its models and so asks for transformers."""
    if "flashdeberta" not in sys.modules:
        package = types.ModuleType("flashdeberta")
        package.__path__ = list(find_spec("flashdeberta").submodule_search_locations)
        sys.modules["flashdeberta"] = package
    attention = importlib.import_module("flashdeberta.ops.flash_attention").flash_attention_with_disentangled
    return attention(q, k, v, LENGTHS.int(), pos_key[None], pos_query[None], False, term.score_scale, BUCKETS, FARTHEST)


def disentangled_flash(q, k, v, pos_key, pos_query, term):
    """Its operator, since the function before it asks for a GPU; with tiles of its own, which it would else measure."""
    kernels = importlib.import_module("disentangled_flash.training._kernels")
    position = importlib.import_module("disentangled_flash.position")
    plans = position.SharedPositionPlanCache(position_buckets=BUCKETS, max_relative_positions=FARTHEST, position_embedding_size=BUCKETS)
    plan = plans.compact(LENGTH, q.device)
    tables = [position.pad_position_table(rows[:, plan.active_slots]) for rows in (pos_key, pos_query)]
    band, tiles = plan.gradient_band, (32, 32, 4, 1)
    out, _ = kernels._training_attention_forward_op(
        q, k, v, *tables, plan.delta_to_local, torch.arange(LENGTH) < LENGTHS[:, None], term.score_scale, True, True, True, True, True, 0.0,
        torch.empty(0, dtype=torch.int64), band.low, band.high, band.column_slots, 0, *tiles, *tiles, *tiles)
    return out.unflatten(2, (HEADS, WIDTH)).transpose(1, 2)


PEERS = {"flashdeberta": flashdeberta, "disentangled-flash": disentangled_flash}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.peer(name, major)) for name, major in (("flashdeberta", 0), ("disentangled-flash", 1))])
def test_agrees(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())  # both ask for a GPU by name
    monkeypatch.setattr(torch.library, "wrap_triton", lambda kernel: kernel)
    make = torch.Generator().manual_seed(0)
    module = pl.DeBERTa(HEADS, HEADS * WIDTH, FARTHEST, terms=("c2c", "c2p", "p2c"), third_index="released", projections="own", buckets=BUCKETS,
                        edge="transformers", key_bias=False)
    geometry = pl.AttentionGeometry(torch.arange(LENGTH), torch.arange(LENGTH), key_active=torch.arange(LENGTH) < LENGTHS[:, None])
    real = (torch.arange(LENGTH) < LENGTHS[:, None])[:, None, :, None]  # rows of padding are each one's own affair
    shapes = *[(BATCH, HEADS, LENGTH, WIDTH)] * 3, *[(HEADS, 2 * BUCKETS, WIDTH)] * 2
    leaves = [torch.randn(shape, generator=make).requires_grad_() for shape in shapes]
    term = replace(module(geometry), pos_key=leaves[3], pos_query=leaves[4])
    upstream = torch.randn(shapes[0], generator=make) * real
    results = []
    for out in (pl.attend(*leaves[:3], term, geometry, backend="triton"), PEERS[name](*leaves, term)):
        results.append([out.masked_fill(~real, 0.0), *torch.autograd.grad(out, leaves, upstream)])
    gaps = [float(((ours - theirs).abs().max() / ours.abs().max()).detach()) for ours, theirs in zip(*results)]
    assert gaps[0] <= FORWARD and max(gaps[1:]) <= BACKWARD, gaps
