"""Rotary q and k as LLaMA (half split) and GPT-J (interleaved, some channels) compute them."""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib import AttentionGeometry, Rotary, attend
from positionlib.mechanisms.rotary import convert_pairing
from positionlib.rotation import QKTransform
from tests.oracles.case import Case


def llama(case: Case) -> None:
    """q and k are [B, H, n, d]; cosines and sines repeat for the second half."""
    q, k, positions = case.take("q"), case.take("k"), case.take("position_ids")
    module = Rotary(q.shape[-1], pairing="half_split", base=case.setting("theta"))
    case.check("inv_freq", module.inverse_frequency)
    cosine, sine = circles(module(AttentionGeometry.encoder(1)), positions)
    case.check("cos", torch.cat((cosine, cosine), -1))
    case.check("sin", torch.cat((sine, sine), -1))
    rotated(case, module, q, k, positions)
    if case.has("position_ids_shifted"):
        case.check("scores_shifted", scores(module, q, k, case.take("position_ids_shifted")))


def gptj(case: Case) -> None:
    """q and k are [B, n, H, d]; the table holds sines and then cosines of the positions 0, 1, …"""
    q, k, positions = case.take("q").transpose(1, 2), case.take("k").transpose(1, 2), case.take("position_ids")
    module = Rotary(q.shape[-1], pairing="interleaved", rotary_dim=case.setting("rotary_dim"))
    cosine, sine = circles(module(AttentionGeometry.encoder(1)), torch.arange(len(case.arrays["table"]))[None])
    case.check("table", torch.cat((sine, cosine), -1)[0])
    rotated(case, module, q, k, positions, sequence_first=True)


def rotated(case: Case, module: Rotary, q: Tensor, k: Tensor, positions: Tensor, *, sequence_first: bool = False) -> None:
    term = module(AttentionGeometry(positions, positions))
    for name, x in (("q_rot", q), ("k_rot", k)):
        turned = term.rotate(x, positions)
        case.check(name, turned.transpose(1, 2) if sequence_first else turned)
    case.check("scores", scores(module, q, k, positions))


def scores(module: Rotary, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    geometry = AttentionGeometry(positions, positions)
    return attend(q, k, k, module(geometry), geometry, scale=1.0, return_trace=True)[1].scores


def circles(term: QKTransform, positions: Tensor) -> tuple[Tensor, Tensor]:
    """(cosines, sines) [B, n, pairs]: where the first channel of each pair goes."""
    pairs = len(term.inverse_frequency)
    units = (torch.arange(term.d_head) < pairs).double().expand(len(positions), 1, positions.shape[1], -1)
    units = convert_pairing(units, source="half_split", target=term.pairing, rotary_dim=2 * pairs)
    turned = convert_pairing(term.rotate(units, positions), source=term.pairing, target="half_split", rotary_dim=2 * pairs)[:, 0]
    return turned[..., :pairs], turned[..., pairs : 2 * pairs]


SOURCES = [("modeling_llama.py", "LlamaRotaryEmbedding", llama), ("modeling_gptj.py", "create_sinusoidal_positions", gptj)]
