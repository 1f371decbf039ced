"""Failures of padded batches, special tokens and streams (0x08): every shape is right, and a token stands on another token's coordinate.

Convention of the section: a mask is True (1) at a token, positions count from 0, a pad is a column that holds no token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from positionlib.attention import attend
from positionlib.check import check_arrays
from positionlib.data import minilm_positions
from positionlib.errors import PositionContractError, require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.mechanisms.learned import LearnedAbsolute, position_ids_from_mask
from positionlib.padding import masked_mean

TOKENS, PAD_STATE, BOS = 3, 9.0, 1


def layout(pads: int, side: str, tokens: int = TOKENS) -> Int[Tensor, "B N"]:
    """The mask of one row: ``tokens`` ones and ``pads`` zeros on one side."""
    ones, zeros = [1] * tokens, [0] * pads
    return torch.tensor([zeros + ones if side == "left" else ones + zeros])


def token_states(mask: Int[Tensor, "B N"], ids: Int[Tensor, "B N"]) -> Float[Tensor, "k D"]:
    """Outputs at the tokens of one row of a small decoder: contents plus MiniLM's position rows, then one causal attention.

    The k-th token always has the same content, and padding is hidden as a key, so only the position ids can make a difference.
    """
    table = torch.from_numpy(minilm_positions()).double()
    contents = torch.randn(8, table.shape[1], generator=torch.Generator().manual_seed(4), dtype=torch.float64) / 20
    active = mask == 1
    states = torch.full((*mask.shape, table.shape[1]), PAD_STATE, dtype=torch.float64)
    states[active] = contents[: int(active.sum())]
    rows = LearnedAbsolute(*table.shape).double()
    rows.load_state_dict({"weight": table})
    columns = torch.arange(mask.shape[1])
    geometry = AttentionGeometry(ids, ids, allowed=columns[None, :] <= columns[:, None], mode="causal", key_active=active)
    x = rows(geometry).add_to(states).detach()[:, None]
    return attend(x, x, x, None, geometry, scale=4.0)[:, 0][active]


def require_clean(fields: Mapping[str, Any], family: str) -> None:
    """Refuse a call of which :func:`positionlib.check.check_arrays` reports anything, by the first finding."""
    for found in check_arrays(fields, family).findings:
        raise PositionContractError(found.field, found.code, f"a clean call; {found.message}", found.remedy)


def feeding(family: str) -> Callable[[Mapping[str, Any]], None]:
    """The guard of one family's calls."""
    return lambda fields: require_clean(fields, family)


def left_padded(policy: str) -> dict[str, Any]:
    """A batch of a prompt with two pads before it and one without any, numbered under one policy."""
    mask = torch.cat((layout(2, "left"), layout(0, "left", 5)))
    return {"attention_mask": mask, "position_ids": position_ids_from_mask(mask, policy)}


def _prompt(policy: str) -> Float[Tensor, "k D"]:
    mask = layout(2, "left")
    return token_states(mask, position_ids_from_mask(mask, policy))


register(Failure(
    id="0x08.left-pad-counted", section="0x08", kind="wrong_answer", title="A left-padded prompt is numbered by its columns",
    broken=lambda: _prompt("contiguous"), right=lambda: _prompt("compress_active"), guard=feeding("gpt2"), guard_name="position-check",
    broken_subject=lambda: left_padded("contiguous"), right_subject=lambda: left_padded("compress_active"),
    source="article 0x08; ndif-team/nnsight#672; huggingface/transformers#21080"))


def _decode(ids: list[list[int]]) -> dict[str, Any]:
    """One new token a row after a prefill with three pads in row 0."""
    return {"attention_mask": [[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]], "cache_length": 5, "position_ids": ids}


register(Failure(
    id="0x08.decode-counts-pads", section="0x08", kind="wrong_answer", title="After left padding every row decodes at the shared storage column",
    broken=lambda: torch.tensor([[5], [5]]), right=lambda: torch.tensor([[2], [5]]), guard=feeding("gpt2"), guard_name="position-check",
    broken_subject=lambda: _decode([[5], [5]]), right_subject=lambda: _decode([[2], [5]]), source="article 0x08; unslothai/unsloth#3699"))


def roberta_call(policy: str) -> dict[str, Any]:
    """A right-padded batch for a RoBERTa checkpoint, numbered under one policy."""
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    extra = {"padding_idx": 1} if policy == "roberta" else {}
    return {"attention_mask": mask, "position_ids": position_ids_from_mask(mask, policy, **extra)}


register(Failure(
    id="0x08.mixed-conventions", section="0x08", kind="wrong_answer", title="A RoBERTa table is read with ids that count from 0",
    broken=lambda: roberta_call("contiguous")["position_ids"], right=lambda: roberta_call("roberta")["position_ids"],
    guard=feeding("roberta"), guard_name="position-check",
    broken_subject=lambda: roberta_call("contiguous"), right_subject=lambda: roberta_call("roberta"), source="article 0x08 and 0x0C, padding and mask bugs"))


def _exchanged(exchange: bool) -> dict[str, Any]:
    fields = left_padded("compress_active")
    return {**fields, "position_ids": fields["position_ids"].flip(0) if exchange else fields["position_ids"]}


register(Failure(
    id="0x08.mask-ids-disagree", section="0x08", kind="wrong_answer", title="The batch was reordered, its position ids were not",
    broken=lambda: _exchanged(True)["position_ids"], right=lambda: _exchanged(False)["position_ids"], guard=feeding("gpt2"), guard_name="position-check",
    broken_subject=lambda: _exchanged(True), right_subject=lambda: _exchanged(False), source="article 0x0C, attention mask and position_ids disagree"))


def content_positions(ids: list[int]) -> Int[Tensor, "n"]:
    """Positions of the tokens that are not BOS."""
    return torch.tensor([p for p, token in enumerate(ids) if token != BOS])


TRAINED, DOUBLED, MISSING = [1, 50, 51, 52], [1, 1, 50, 51, 52], [50, 51, 52]
for _slug, _served, _what in (("double-bos", DOUBLED, "A template and the tokenizer both put BOS in front"), ("missing-bos", MISSING, "Serving leaves out the BOS of training")):
    register(Failure(
        id=f"0x08.{_slug}", section="0x08", kind="wrong_answer", title=_what,
        broken=lambda ids=_served: content_positions(ids), right=lambda: content_positions(TRAINED),
        guard=lambda ids: require_clean({"input_ids": [ids], "bos_token_id": BOS}, "gpt2"), guard_name="position-check",
        broken_subject=lambda ids=_served: ids, right_subject=lambda: TRAINED,
        source="article 0x08; vllm-project/vllm#27517; princeton-pli/retaining-by-doing#5"))

STATES = torch.tensor([[[10.0, 1.0], [20.0, 2.0], [60.0, 3.0], [110.0, 50.0]]])
MASK = torch.tensor([[True, True, True, False]])


def mean_of_all(states: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
    """A pooling that forgets the mask."""
    return states.mean(1)


def last_column(states: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
    """A readout that takes the last column for the last token."""
    return states[:, -1]


def last_token(states: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
    """The state of each row's last token, wherever its padding is."""
    column = (torch.arange(mask.shape[1]) * mask).amax(1)
    return states[torch.arange(len(states)), column]


def check_readout(readout: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Refuse a readout whose result moves when only the states of padding move. Tried on a left- and a right-padded row.

    Raises
    ------
    PositionContractError
        the readout reads a padding row; the value says by how much its result moved.
    """
    for mask in (MASK, MASK.flip(1)):
        other = torch.where(mask[..., None], STATES, STATES + 1000.0)
        moved = float((readout(other, mask) - readout(STATES, mask)).abs().max())
        require(moved == 0, "readout", moved, "no change when only padding changes", "Read active rows only: masked_mean, or the last token of each row.")


for _slug, _wrong, _right, _what, _source in (
        ("pool-reads-pads", mean_of_all, masked_mean, "Mean pooling over every column", "article 0x08; huggingface/sentence-transformers#2569"),
        ("last-column", last_column, last_token, "The last column of a right-padded row is read for its last token", "article 0x08, last_valid_index")):
    register(Failure(
        id=f"0x08.{_slug}", section="0x08", kind="wrong_answer", title=_what,
        broken=lambda f=_wrong: f(STATES, MASK), right=lambda f=_right: f(STATES, MASK), guard=check_readout, guard_name="readout",
        broken_subject=lambda f=_wrong: f, right_subject=lambda f=_right: f, source=_source))


def cross_offsets(geometry: AttentionGeometry) -> Int[Tensor, "Q K"]:
    """Key minus query of raw position numbers, whatever they count."""
    return geometry.key_positions[None, :] - geometry.query_positions[:, None]


_CROSS = {"query_frame": "target", "key_frame": "source", "mode": "cross"}


def cross_geometry() -> AttentionGeometry:
    """Three target rows that read four source rows."""
    return AttentionGeometry(torch.arange(3), torch.arange(4), **_CROSS)


register(Failure(
    id="0x08.streams-confused", section="0x08", kind="wrong_answer", title="Target and source positions are subtracted as if they shared an origin",
    broken=lambda: cross_offsets(cross_geometry()), right=lambda: torch.zeros(3, 4, dtype=torch.long),
    guard=lambda geometry: geometry.require_shared_frame("offsets"), guard_name="coordinate-frame",
    broken_subject=cross_geometry, right_subject=lambda: AttentionGeometry.causal_self(3),
    source="article 0x08 and 0x0C, source and target streams; huggingface/transformers#8518"))
