"""The positional call: who asks, who is read, at which coordinates, under which mask, cache and weights.

:class:`PositionCall` is the manifest ``numinens.position-call.v1`` of the article's section 0x02A as one immutable, validated value. Build one
with a builder (``padded``, ``packed``, ``decode``, ``chunked_prefill``, ``cross``), continue one with ``append``, change one with
``replace``, or read one with ``from_yaml`` / ``from_json``. ``geometry()`` compiles it into the tensors that mechanisms use.

The parts are described in :mod:`positionlib.manifest`, what must hold between them in :mod:`positionlib.manifest_rules`.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator

from positionlib import call_builders as build
from positionlib.errors import PositionContractError, require
from positionlib.geometry import AttentionGeometry
from positionlib.identity import IdentityRecord, identity
from positionlib.manifest import (
    SCHEMA, Cache, Contract, KeySpace, NumericalState, PositionMethod, QuerySpace, Request, RowSpace, Runtime, Visibility,
)
from positionlib.manifest_io import ROOT, read_json, read_yaml, write_json, write_yaml
from positionlib.manifest_rules import check_call, key_rows, sequences


class PositionCall(Contract):
    """One positional call. Every field is the article's; ``schema`` is read and written under that name and is ``schema_id`` in Python.

    Raises
    ------
    PositionContractError
        a field is missing, unknown, of the wrong type, or disagrees with another; the error's ``field`` is its dotted path.
    """

    schema_id: Literal["numinens.position-call.v1"] = Field(alias="schema")
    article_owner: Literal["M3.3"] = "M3.3"
    public_slug: Literal["m3-3-position-encoding-and-context-geometry"] = "m3-3-position-encoding-and-context-geometry"
    request: Request
    row_space: RowSpace
    query_space: QuerySpace
    key_space: KeySpace
    position_method: PositionMethod
    visibility: Visibility
    cache: Cache
    numerical_state: NumericalState
    runtime: Runtime

    @model_validator(mode="before")
    @classmethod
    def _known_schema(cls, data: Any) -> Any:
        if isinstance(data, dict) and "schema" in data and data["schema"] != SCHEMA:
            raise PositionContractError("schema", data["schema"], f"the supported schema {SCHEMA!r}", "Migrate the document: versions are not guessed.")
        return data

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        check_call(self)
        return self

    # --- builders -----------------------------------------------------------------------------------------------------------------

    @classmethod
    def padded(cls, mask: Any, side: str | None = None, numbering: str = "contiguous", *, causal: bool = False,
               polarity: str = "true_is_visible", first_position: int = 0, pad_position: int | None = None, **options: Any) -> Self:
        """A padded batch from its token mask [B, S] (bool or 0/1 integers; lists, numpy or torch).

        ``side`` asserts where the padding is ("left", "right"); None asserts nothing. ``numbering``:

        - ``contiguous``: column s is position first_position + s, padding included;
        - ``compressed``: the k-th token is first_position + k whatever the padding side; padding sits, unread, at first_position;
        - ``fixed_pad``: tokens as in ``compressed``, padding at ``pad_position`` (RoBERTa: pad_position=1, first_position=2).
        """
        active = build.token_mask(mask, side, polarity)
        positions = build.number(active, numbering, first_position, pad_position)
        stream = "decoder" if causal else "encoder"
        rows = [build.Row(b, stream, p, a) for b, row in enumerate(active) for p, a in zip(positions[b], row)]
        return cls(**build.self_attention(rows, range(len(rows)), "causal" if causal else "full", "batch_rows", None, options))

    @classmethod
    def packed(cls, lengths: Any, *, causal: bool = True, reset: bool = True, isolate: bool = True, starts: Any = None, **options: Any) -> Self:
        """Sequences packed into one row. ``reset`` restarts coordinates in each (at ``starts``, all 0 unless given), ``isolate`` keeps
        them from reading one another. Reset coordinates without isolation are refused: two rows would share one coordinate."""
        sizes = build.counts("lengths", lengths)
        require(starts is None or reset, "starts", starts, "None when reset=False", "Continuous numbering has one start, 0.")
        begin = [0] * len(sizes) if starts is None else build.counts("starts", starts, minimum=0)
        require(len(begin) == len(sizes), "starts", begin, f"{len(sizes)} starts", "Give one start a sequence.")
        stream, rows = "decoder" if causal else "encoder", []
        for owner, (size, start) in enumerate(zip(sizes, begin)):
            first = start if reset else len(rows)
            rows += [build.Row(owner, stream, first + i, True) for i in range(size)]
        isolation = "sequence_ids" if isolate else "none"
        return cls(**build.self_attention(rows, range(len(rows)), "causal" if causal else "full", isolation, None, options))

    @classmethod
    def decode(cls, committed_length: int, new_tokens: int = 1, **options: Any) -> Self:
        """``new_tokens`` queries that continue a cache of ``committed_length`` tokens, numbered from 0; the keys are the cache and the new rows."""
        (committed,), (new,) = build.counts("committed_length", [committed_length], minimum=0), build.counts("new_tokens", [new_tokens])
        rows = [build.Row(0, "decoder", position, True) for position in range(committed + new)]
        return cls(**build.self_attention(rows, range(committed, committed + new), "causal", "none", (committed, committed), options))

    @classmethod
    def chunked_prefill(cls, lengths: Any, start: int = 0, **options: Any) -> list[Self]:
        """The calls of a prompt processed in chunks, after ``start`` committed tokens: each starts where the one before it ended."""
        (committed,), calls = build.counts("start", [start], minimum=0), []
        for length in build.counts("lengths", lengths):
            calls.append(cls.decode(committed, length, **options))
            committed += length
        return calls

    @classmethod
    def cross(cls, target_length: int, source_length: int, **options: Any) -> Self:
        """Target (decoder) queries that read source (encoder) keys. The two frames differ, so no offset between them exists."""
        (target,), (source,) = build.counts("target_length", [target_length]), build.counts("source_length", [source_length])
        rows = [build.Row(0, "encoder", i, True) for i in range(source)] + [build.Row(0, "decoder", i, True) for i in range(target)]
        return cls(**build.assemble(rows, range(source, source + target), range(source), "target", "source", "full", "none", None, options))

    def append(self, new_tokens: int = 1) -> Self:
        """The call that follows this one: every sequence gets ``new_tokens`` rows after its own last coordinate, and reads all its rows."""
        return type(self)(**build.continuation(self, build.counts("new_tokens", [new_tokens])[0]))

    def replace(self, changes: dict[str, Any]) -> Self:
        """A validated copy with some fields changed, named by dotted path: ``{"request.adapter_id": "a1"}``."""
        document = self.to_dict()
        for path, value in changes.items():
            *parents, leaf = path.split(".")
            part = document
            for name in parents:
                part = part.get(name) if isinstance(part, dict) else None
            require(isinstance(part, dict) and leaf in part, path, value, "the path of a field of the manifest", "Write it as part.field.")
            part[leaf] = value
        return type(self)(**document)

    # --- documents ----------------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The manifest as plain dicts, lists, numbers and texts, in the article's order."""
        return self.model_dump(mode="json", by_alias=True)

    def to_yaml(self) -> str:
        """The manifest as a YAML document."""
        return write_yaml(self.to_dict())

    def to_json(self, indent: int | None = None) -> str:
        """The manifest as a JSON document."""
        return write_json(self.to_dict(), indent)

    @classmethod
    def from_yaml(cls, text: str | bytes) -> Self:
        """Read a YAML document: bounded, without aliases, tags or repeated keys."""
        return cls(**read_yaml(text))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a JSON document: bounded, without repeated keys."""
        return cls(**read_json(text))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """JSON Schema (2020-12) of a manifest document. It states types and names; rules between fields are checked on reading."""
        body = cls.model_json_schema(by_alias=True)
        parts = body.pop("$defs")
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:{SCHEMA}", "type": "object", "additionalProperties": False,
                "required": [ROOT], "properties": {ROOT: {"$ref": "#/$defs/PositionCall"}}, "$defs": {**parts, "PositionCall": body}}

    # --- what the call means ------------------------------------------------------------------------------------------------------

    @property
    def batch(self) -> int | None:
        """B when every sequence has a batch row of its own, else None."""
        return len(sequences(self)) if self.visibility.segment_isolation == "batch_rows" else None

    @property
    def mode(self) -> str:
        """``cross`` between two streams, else ``causal`` or ``encoder`` by the mask."""
        streams = self.row_space.stream_per_row
        if streams[self.query_space.row_indices[0]] != streams[key_rows(self)[0]]:
            return "cross"
        return "causal" if self.visibility.mask_id == "causal" else "encoder"

    @property
    def cu_seqlens(self) -> tuple[int, ...]:
        """Boundaries of the query rows by ownership, never by a coordinate that happens to be 0: [0, ..., Q]."""
        owners = [self.row_space.sequence_id_per_row[row] for row in self.query_space.row_indices]
        return (0, *(i for i in range(1, len(owners)) if owners[i] != owners[i - 1]), len(owners))

    def geometry(self, device: torch.device | str | None = None, *, mask: torch.Tensor | None = None) -> AttentionGeometry:
        """Compile the call into an :class:`~positionlib.geometry.AttentionGeometry` on ``device``.

        Positions are [Q] and [K], or [B, Q] and [B, K] under ``batch_rows``. ``mask`` (bool tensor [Q, K] or [B, Q, K]) is needed exactly
        when ``visibility.mask_id`` is neither ``full`` nor ``causal``; its bits are read by ``visibility.polarity``.
        """
        return build.compile_geometry(self, device, mask)

    def identity(self, **facts: Any) -> IdentityRecord:
        """The record from which the four identities derive; ``facts`` are what a manifest cannot know, see :func:`positionlib.identity.identity`."""
        return identity(self, **facts)

    def explain(self, limit: int = 32) -> str:
        """The row table and the two sides as text; of more than ``limit`` rows the first and the last are shown."""
        return build.describe(self, limit)
