"""Failures of 0x08A: a coordinate rule that is not the one of training: after a chunk, in a packed row, or after a conversion.

Convention of the section: positions count from 0 and are table rows unless an offset is named; a mask is True (1) at a token; a
*document* is what was written as one text, a packed row holds several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.attention import attend
from positionlib.call import PositionCall
from positionlib.check import check_arrays, check_calls
from positionlib.errors import PositionContractError, require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.mechanisms.sinusoidal import Sinusoidal

SECTION, ROWS, WIDTH = "0x08A", 16, 8
TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])


def numbers(*shape: int, seed: int) -> Float[Tensor, "..."]:
    """Fixed numbers of any shape, as a stand-in for trained ones."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WORDS, TABLE = numbers(16, WIDTH, seed=1), numbers(ROWS, WIDTH, seed=2)


def read(tokens: Int[Tensor, "N"], chunks: Sequence[int], starts: Sequence[int]) -> Float[Tensor, "N D"]:
    """States after one causal attention over a text that arrives in chunks; chunk c counts its positions from ``starts[c]``.

    Keys and values of earlier chunks are cached. Visibility follows storage order, so only the table rows depend on ``starts``.
    """
    done, cached, out = 0, [], []
    for size, start in zip(chunks, starts, strict=True):
        x = WORDS[tokens[done : done + size]] + TABLE[start + torch.arange(size)]
        cached.append(x)
        keys = torch.cat(cached)[None, None]
        out.append(attend(x[None, None], keys, keys, None, AttentionGeometry.decode(done, size))[0, 0])
        done += size
    return torch.cat(out)


def packed_states(lengths: Sequence[int], **rule: Any) -> Float[Tensor, "N D"]:
    """States of documents packed into one row, isolated from one another, numbered under a rule of :meth:`PositionCall.packed`."""
    geometry = PositionCall.packed(list(lengths), **rule).geometry()
    x = (WORDS[TOKENS[: sum(lengths)]] + TABLE[geometry.query_positions])[None, None]
    return attend(x, x, x, None, geometry)[0, 0]


def clean(report) -> None:
    """Refuse a report with findings, by the first one."""
    for found in report.findings:
        raise PositionContractError(found.field, found.code, f"a clean call; {found.message}", found.remedy)


def in_chunks(chunks: Sequence[int], starts: Sequence[int]) -> list[dict[str, Any]]:
    """The calls of a prompt in chunks, as arrays."""
    seen, calls = 0, []
    for size, start in zip(chunks, starts):
        seen += size
        calls.append({"attention_mask": [[1] * seen], "position_ids": [list(range(start, start + size))]})
    return calls


register(Failure(
    id="0x08A.restart-after-chunk", section=SECTION, kind="wrong_answer", title="The second chunk of a prompt counts from 0 again",
    broken=lambda: read(TOKENS, (5, 3), (0, 0)), right=lambda: read(TOKENS, (5, 3), (0, 5)), guard=lambda calls: clean(check_calls(calls, "gpt2")),
    guard_name="position-check", broken_subject=lambda: in_chunks((5, 3), (0, 0)), right_subject=lambda: in_chunks((5, 3), (0, 5)),
    source="article 0x08A; huggingface/transformers#43082; pytorch/torchtitan#2849"))


def _next(position: int) -> dict[str, Any]:
    return {"attention_mask": [[1] * 7], "cache_length": 6, "position_ids": [[position]]}


register(Failure(
    id="0x08A.proposed-not-accepted", section=SECTION, kind="wrong_answer", title="Decoding goes on after the proposed tokens, not after the accepted ones",
    broken=lambda: torch.tensor([8]), right=lambda: torch.tensor([6]), guard=lambda call: clean(check_arrays(call, "gpt2")), guard_name="position-check",
    broken_subject=lambda: _next(8), right_subject=lambda: _next(6), source="article 0x08A, continue positions from the accepted prefix"))


def _packed(ids: list[int]) -> dict[str, Any]:
    return {"attention_mask": [[1] * 5], "segment_ids": [[0, 0, 0, 1, 1]], "position_ids": [ids]}


register(Failure(
    id="0x08A.continued-not-reset", section=SECTION, kind="wrong_answer", title="Packed documents were trained from 0 each and are served with numbers that continue",
    broken=lambda: packed_states((3, 2), reset=False), right=lambda: packed_states((3, 2)), guard=lambda call: clean(check_arrays(call, "gpt2")),
    guard_name="position-check", broken_subject=lambda: _packed([0, 1, 2, 3, 4]), right_subject=lambda: _packed([0, 1, 2, 0, 1]),
    source="article 0x08A; huggingface/nanoVLM#201"))

register(Failure(
    id="0x08A.collator-from-zero", section=SECTION, kind="wrong_answer", title="A packed RoBERTa batch is numbered from 0 in each document",
    broken=lambda: TABLE[torch.tensor([0, 1, 2, 0, 1])], right=lambda: TABLE[torch.tensor([2, 3, 4, 2, 3])],
    guard=lambda call: clean(check_arrays(call, "roberta")), guard_name="position-check",
    broken_subject=lambda: _packed([0, 1, 2, 0, 1]), right_subject=lambda: _packed([2, 3, 4, 2, 3]),
    source="huggingface/transformers#47496; huggingface/sentence-transformers#3879"))


def check_piece(piece: tuple[int, Sequence[int]]) -> None:
    """Refuse positions of a document's piece that do not start where the checkpoint was trained: (declared start, positions)."""
    declared, positions = piece
    wanted = list(range(declared, declared + len(positions)))
    require(list(positions) == wanted, "position_ids", list(positions), f"{wanted}, as trained", "Number a piece of a document as training did.")


register(Failure(
    id="0x08A.global-not-local", section=SECTION, kind="wrong_answer", title="Pieces of a document were trained from 0 and are served with their place in the document",
    broken=lambda: read(TOKENS[4:], (4,), (4,)), right=lambda: read(TOKENS[4:], (4,), (0,)), guard=check_piece, guard_name="trained start",
    broken_subject=lambda: (0, [4, 5, 6, 7]), right_subject=lambda: (0, [0, 1, 2, 3]),
    source="article 0x0C, long-document chunks preserve global positions when local reset was intended"))


class Contract(NamedTuple):
    """What a conversion must keep of an absolute input: the five lines of the article's list."""

    values: str = "learned"          # the table itself, or a formula: "sinusoidal"
    rows: int = ROWS                 # maximum position count, offset rows included
    offset: int = 2                  # the first token reads this row
    shared: bool = True              # one table for source and target
    added: str = "before_norm"       # or "after_norm"


TRAINED = Contract()
CHANGES = {"values": "sinusoidal", "rows": 6, "offset": 0, "shared": False, "added": "after_norm"}


def embed(contract: Contract, tokens: Int[Tensor, "N"] = TOKENS) -> Float[Tensor, "2 N D"]:
    """Input states of a source and a target of the same tokens. Too few rows are met as careless code does: by clamping."""
    ids = (torch.arange(len(tokens)) + contract.offset).clamp(max=contract.rows - 1)
    table = TABLE if contract.values == "learned" else Sinusoidal(WIDTH)(AttentionGeometry.encoder(ROWS)).rows.double()
    other = table if contract.shared else numbers(ROWS, WIDTH, seed=3)
    streams = []
    for rows in (table[ids], other[ids]):
        x = WORDS[tokens]
        norm = torch.nn.functional.layer_norm
        streams.append(norm(x + rows, (WIDTH,)) if contract.added == "before_norm" else norm(x, (WIDTH,)) + rows)
    return torch.stack(streams)


def check_conversion(found: Contract) -> None:
    """Refuse a converted input that is not the trained one, by the first line that differs."""
    for name, was, now in zip(Contract._fields, TRAINED, found):
        require(now == was, name, now, f"{was!r}, as trained", "Carry it over: changing it is another architecture, not a loader option.")


for _name, _value in CHANGES.items():
    register(Failure(
        id=f"0x08A.converted-{_name}", section=SECTION, kind="wrong_answer", title=f"A conversion loses one line of the contract: {_name}",
        broken=lambda n=_name, v=_value: embed(TRAINED._replace(**{n: v})), right=lambda: embed(TRAINED), guard=check_conversion, guard_name="conversion",
        broken_subject=lambda n=_name, v=_value: TRAINED._replace(**{n: v}), right_subject=lambda: TRAINED, source="article 0x08A, checkpoint conversion"))
