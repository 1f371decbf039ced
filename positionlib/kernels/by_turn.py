"""The host's share of rotations inside attention: shapes and dtypes. The kernel's is ``rotary``."""

from __future__ import annotations

import torch

from positionlib.capabilities import FREQUENCY_GRADIENT
from positionlib.errors import UnsupportedPositionContract, require
from positionlib.forms import ByTurn
from positionlib.kernels.arguments import Call
from positionlib.kernels.checks import require_part
from positionlib.kernels.launch import accumulator


def with_turns(call: Call, form: ByTurn) -> Call:
    """The call with the cosines and sines by which its rows turn, in the dtype of sums.

    Raises
    ------
    PositionContractError
        turns of other rows than the call's, of no pair, of more pairs than the heads have or of different numbers of them.
    UnsupportedPositionContract
        a gradient of the turns is required: the kernel has none, and it would be lost without a word.
    """
    (batch, _, queries, width), keys = call.q.shape, call.k.shape[2]
    pairs = (0, *getattr(form.query_turns, "shape", ()))[-1]
    require(0 < 2 * pairs <= width, "query_turns", form.query_turns, f"1 to {width // 2} pairs for width {width}", "Build the term for the model's d_head.")
    for name, turns, rows in (("query_turns", form.query_turns, queries), ("key_turns", form.key_turns, keys)):
        require_part(name, turns, call.q, *((*lead, rows, 2, pairs) for lead in ((), (1,), (batch,))))
        if turns.requires_grad and torch.is_grad_enabled():
            raise UnsupportedPositionContract(name, turns, "cosines and sines that require no gradient", "Detach them, or rotate q and k before the call.",
                                              frozenset({FREQUENCY_GRADIENT}))
    require(isinstance(form.interleaved, bool), "interleaved", form.interleaved, "True or False", "Say which channels are pairs.")
    wide = accumulator(call.q.dtype)
    return call._replace(query_turns=form.query_turns.to(wide), key_turns=form.key_turns.to(wide), interleaved=form.interleaved)
