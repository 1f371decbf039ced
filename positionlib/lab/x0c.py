"""Failures of 0x0C that no other section shows: chunks, templates, stored prefixes and head order. Lost metadata is in ``metadata.py``.

Convention of the section: positions count from 0, an offset is key minus query, a mask is True where a key may be read.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.attention import attend
from positionlib.call import PositionCall
from positionlib.check import check_calls
from positionlib.errors import PositionContractError, require
from positionlib.geometry import AttentionGeometry
from positionlib.lab import metadata  # noqa: F401 - registers the other half of this section
from positionlib.lab.registry import Failure, register
from positionlib.lab.x02a import decode_document
from positionlib.lab.x08 import feeding, layout, token_states
from positionlib.lab.x09c import check_document, check_slopes
from positionlib.lab.x0d import HAND_K, HAND_Q, hand_term, rotate_row
from positionlib.mechanisms.sinusoidal import sinusoidal_rows
from positionlib.rules import alibi_slopes
from positionlib.terms import SlopeBias

SECTION = "0x0C"
HALVING = SlopeBias(slopes=torch.tensor([math.log(2)], dtype=torch.float64))  # each step back halves the weight
HEADS, MOVED = 4, (2, 0, 3, 1)  # the converted checkpoint stores head MOVED[h] as its head h


def last_row_weights(positions: list[int]) -> Float[Tensor, "n"]:
    """Weights of the last token over all tokens, which carry these positions: equal content, and half the weight for each step back."""
    n, at = len(positions), torch.tensor(positions)
    earlier = torch.arange(n)[None, :] <= torch.arange(n)[:, None]
    geometry = AttentionGeometry(at, at, allowed=earlier, mode="causal")
    blank = torch.zeros(1, 1, n, 1, dtype=torch.float64)
    return attend(blank, blank, blank, HALVING, geometry, return_trace=True)[1].probabilities[0, 0, -1]


# --- guards ---------------------------------------------------------------------------------------------------------

def check_followed(calls: list[dict[str, Any]]) -> None:
    """Refuse a prefill and its decode step that do not count alike, by the first finding of :func:`positionlib.check.check_calls`."""
    for found in check_calls(calls, "llama").findings:
        raise PositionContractError(found.field, found.code, f"a clean call; {found.message}", found.remedy)


def check_prefix(found: tuple[PositionCall, PositionCall]) -> None:
    """Refuse a stored prefix whose cache identity, the request apart, is not the one under which it would be written today.

    ``found`` is the prefill that wrote the prefix and the prefill that would write it now.
    """
    wrote, now = (call.identity().cache_identity for call in found)
    differs = [name for name in wrote._fields if name != "request_id" and getattr(wrote, name) != getattr(now, name)]
    require(not differs, f"cache_identity.{', '.join(differs)}", [getattr(wrote, name) for name in differs],
            f"{[getattr(now, name) for name in differs]}, as this call would write it", "Key stored prefixes by the whole cache identity, not by token ids.")


# --- cases: chunks and templates ------------------------------------------------------------------------------------

register(Failure(
    id="0x0C.chunk-reset", section=SECTION, kind="wrong_answer", title="A long text is read in chunks, and each chunk counts from 0",
    broken=lambda: last_row_weights([0, 1, 0, 1]), right=lambda: last_row_weights([0, 1, 2, 3]),
    guard=check_document, guard_name="position-manifest", source="article 0x0C; pytorch/torchtitan#2849",
    broken_subject=lambda: decode_document([0, 1], 2), right_subject=lambda: decode_document([2, 3], 2)))


def packed_ids(second: list[int]) -> dict[str, Any]:
    """Two independent documents of four tokens in one row; the second carries these positions."""
    return {"segment_ids": [[0] * 4 + [1] * 4], "position_ids": [[0, 1, 2, 3, *second]]}


def _second_document(ids: list[int]) -> Float[Tensor, "4 D"]:
    return token_states(layout(0, "left", 4), torch.tensor([ids]))


register(Failure(
    id="0x0C.chunk-not-reset", section=SECTION, kind="wrong_answer", title="Independent documents share a row, and the second one counts on",
    broken=lambda: _second_document([4, 5, 6, 7]), right=lambda: _second_document([0, 1, 2, 3]), guard=feeding("gpt2"), guard_name="position-check",
    source="article 0x0C; allenai/OLMo-core#591; huggingface/nanoVLM#201",
    broken_subject=lambda: packed_ids([4, 5, 6, 7]), right_subject=lambda: packed_ids([0, 1, 2, 3])))


def _templated(ids: list[int]) -> Float[Tensor, "5 D"]:
    return token_states(layout(0, "left", 5), torch.tensor([ids]))


register(Failure(
    id="0x0C.template-not-counted", section=SECTION, kind="wrong_answer", title="Two template tokens go in front, and the prompt keeps its old ids",
    broken=lambda: _templated([0, 0, 0, 1, 2]), right=lambda: _templated([0, 1, 2, 3, 4]), guard=feeding("gpt2"), guard_name="position-check",
    source="article 0x0C, off-by-one positions after BOS or chat-template insertion",
    broken_subject=lambda: {"position_ids": [[0, 0, 0, 1, 2]]}, right_subject=lambda: {"position_ids": [[0, 1, 2, 3, 4]]}))

# --- cases: prefill, decode and stored prefixes ---------------------------------------------------------------------


def _decode_step(query: int) -> Float[Tensor, "4"]:
    """Scores of a new token at ``query``, with rotated keys of three cached tokens at 0, 1, 2 and its own."""
    term = hand_term()
    keys = torch.stack([rotate_row(term, HAND_K, at) for at in (0, 1, 2, query)])
    return keys @ rotate_row(term, HAND_Q, query)


def two_calls(query: int) -> list[dict[str, Any]]:
    """A prefill of three tokens behind two pads, counted without the pads, and one decode step at ``query``."""
    return [{"attention_mask": [[0, 0, 1, 1, 1]], "position_ids": [[0, 0, 0, 1, 2]]},
            {"attention_mask": [[0, 0, 1, 1, 1, 1]], "position_ids": [[query]]}]


register(Failure(
    id="0x0C.prefill-decode", section=SECTION, kind="wrong_answer", title="Prefill leaves the pads out of its count, decode counts them",
    broken=lambda: _decode_step(5), right=lambda: _decode_step(3), guard=check_followed, guard_name="position-check",
    source="article 0x0C; scouzi1966/maclocal-api#92", broken_subject=lambda: two_calls(5), right_subject=lambda: two_calls(3)))

PREFIX = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)


def _rows(first: int, n: int) -> Float[Tensor, "n 4"]:
    return sinusoidal_rows(torch.arange(first, first + n), 4, output_dtype=torch.float64)


def _reading(keys: Float[Tensor, "3 4"], query: Float[Tensor, "4"], term: SlopeBias | None) -> Float[Tensor, "3"]:
    """Weights of a new token, the fourth, over a stored prefix of three keys."""
    k = keys[None, None]
    geometry = AttentionGeometry(torch.tensor([3]), torch.arange(3))
    return attend(query[None, None, None], k, k, term, geometry, return_trace=True)[1].probabilities[0, 0, 0]


def prefix_call(request: str, *, method: dict[str, Any], first: int = 0, adapter: str | None = None) -> PositionCall:
    """The prefill of three prefix tokens whose first one stands at ``first``."""
    return PositionCall.padded([[1, 1, 1]], causal=True, first_position=first, request_id=request, release_id="r1", checkpoint_id="c1",
                               method=method, heads=1, adapter_id=adapter)


ROWS_ADDED: dict[str, Any] = {"family": "fixed_abs", "state_object": "sinusoidal"}
BIASED: dict[str, Any] = {"family": "bias", "state_object": "alibi", "relation_sign": "key_minus_query"}

register(Failure(
    id="0x0C.prefix-scheme", section=SECTION, kind="wrong_answer", title="A prefix that was stored with added rows is read by a model with a score bias",
    broken=lambda: _reading(PREFIX + _rows(0, 3), PREFIX[0], HALVING), right=lambda: _reading(PREFIX, PREFIX[0], HALVING),
    guard=check_prefix, guard_name="cache-identity", source="article 0x0C, reusing a prefix cache across position schemes",
    broken_subject=lambda: (prefix_call("a", method=ROWS_ADDED), prefix_call("b", method=BIASED)),
    right_subject=lambda: (prefix_call("a", method=BIASED), prefix_call("b", method=BIASED))))


def _behind(stored_at: int) -> Float[Tensor, "3"]:
    """Weights over a prefix that belongs at 4, 5, 6, from a query at 7, when its keys were made at ``stored_at`` and the two after it."""
    return _reading(PREFIX + _rows(stored_at, 3), PREFIX[0] + _rows(7, 1)[0], None)


register(Failure(
    id="0x0C.prefix-origin", section=SECTION, kind="wrong_answer", title="A prefix stored at 0 is reused behind four other tokens",
    broken=lambda: _behind(0), right=lambda: _behind(4), guard=check_prefix, guard_name="cache-identity",
    source="article 0x0C, reusing a prefix cache across origins; MemTensor/MemOS#2315 (with rotations)",
    broken_subject=lambda: (prefix_call("a", method=ROWS_ADDED), prefix_call("b", method=ROWS_ADDED, first=4)),
    right_subject=lambda: (prefix_call("a", method=ROWS_ADDED, first=4), prefix_call("b", method=ROWS_ADDED, first=4))))

ADAPTERS = {"a": torch.eye(4, dtype=torch.float64), "b": torch.eye(4, dtype=torch.float64).flip(0)}  # what each adds to the key projection


def _adapted(stored_by: str) -> Float[Tensor, "3"]:
    """Weights over a prefix whose keys were made under one adapter, W_K = 2 + what it adds. Scores are whole bits: 3, 0, 3 or 3, 0, 2."""
    keys = PREFIX @ (2 * torch.eye(4, dtype=torch.float64) + ADAPTERS[stored_by])
    return _reading(keys, torch.tensor([2 * math.log(2), 0, 0, 0], dtype=torch.float64), None)


register(Failure(
    id="0x0C.prefix-adapter", section=SECTION, kind="wrong_answer", title="A prompt cache is found by its tokens, and was written under another adapter",
    broken=lambda: _adapted("a"), right=lambda: _adapted("b"), guard=check_prefix, guard_name="cache-identity",
    source="ggml-org/llama.cpp#26207; article 0x0C, cache reuse across coordinate identities",
    broken_subject=lambda: (prefix_call("1", method=ROWS_ADDED, adapter="a"), prefix_call("2", method=ROWS_ADDED, adapter="b")),
    right_subject=lambda: (prefix_call("1", method=ROWS_ADDED, adapter="b"), prefix_call("2", method=ROWS_ADDED, adapter="b"))))

# --- cases: head order ----------------------------------------------------------------------------------------------


def _by_head(slopes: Float[Tensor, "H"]) -> Float[Tensor, "H 8"]:
    """Outputs of the last of eight tokens, head by head in the trained order, from a checkpoint that stores its heads as MOVED."""
    maker = torch.Generator().manual_seed(12)
    q, k, v = (torch.randn(1, HEADS, 8, 4, generator=maker, dtype=torch.float64)[:, list(MOVED)] for _ in range(3))
    out = attend(q, k, v, SlopeBias(slopes=slopes.double()), AttentionGeometry.causal_self(8))
    return out[0, torch.tensor(MOVED).argsort(), -1]


def moved_slopes(along: bool) -> Float[Tensor, "H"]:
    """The slopes of four heads, in the stored order of the heads or left as they were."""
    return alibi_slopes(HEADS)[list(MOVED)] if along else alibi_slopes(HEADS)


register(Failure(
    id="0x0C.head-order", section=SECTION, kind="wrong_answer", title="A conversion reorders the heads of Q, K and V, and leaves their slopes",
    broken=lambda: _by_head(moved_slopes(False)), right=lambda: _by_head(moved_slopes(True)),
    guard=lambda slopes: check_slopes(slopes, HEADS, MOVED), guard_name="alibi-head-order",
    source="article 0x0C; huggingface/transformers#17886 (heads pruned, their bias columns not)",
    broken_subject=lambda: moved_slopes(False), right_subject=lambda: moved_slopes(True)))
