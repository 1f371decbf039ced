"""A manifest under a family's conventions: the call is validated, explained row by row, and its rows are checked as a feed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from positionlib.call import PositionCall
from positionlib.check.arrays import check_feed
from positionlib.check.families import Family, family
from positionlib.check.feed import SEQUENCES, Feed
from positionlib.check.findings import Finding, Report, finding
from positionlib.errors import PositionContractError, require
from positionlib.manifest import SCHEMA
from positionlib.manifest_rules import key_rows, sequences


def check_manifest(document: dict[str, Any], name: str | None) -> Report:
    """What the manifest ``document`` (the mapping under ``positional_call``) describes; without a family only its own rules are checked.

    Raises
    ------
    PositionContractError
        an unknown family, or another schema: versions are not guessed. What breaks the schema itself is a finding.
    """
    kind = None if name is None else family(name)
    require(document.get("schema") == SCHEMA, "schema", document.get("schema"), f"the supported schema {SCHEMA!r}",
            "Migrate the document: versions are not guessed.")
    try:
        call = PositionCall(**document)
    except PositionContractError as error:
        return Report((), (Finding("contract", None, error.field, str(error), error.remedy),))
    lines = tuple(call.explain().splitlines())
    if kind is None:
        return Report(lines, ())
    return Report((kind.describe(), *lines), tuple(_against(call, kind)))


def _against(call: PositionCall, kind: Family) -> list[Finding]:
    found, method = [], call.position_method
    if call.mode == "cross":
        return found  # source and target share no coordinate: there is nothing to continue
    if call.visibility.mask_id in ("full", "causal") and (call.visibility.mask_id == "causal") != kind.causal:
        found.append(finding("causality", None, "visibility.mask_id", f"the mask is {call.visibility.mask_id}, and {kind.name} is {kind.direction}"))
    if method.family != "none" and method.family != kind.method:
        found.append(finding("method", None, "position_method.family", f"the method is {method.family}, and {kind.name}'s is {kind.method}"))
    rule = method.clipping_or_bucket_rule
    if rule is not None and rule.bidirectional is not None and rule.bidirectional == kind.causal:
        found.append(finding("bucket-direction", None, "position_method.clipping_or_bucket_rule.bidirectional",
                             f"bidirectional is {rule.bidirectional}, and {kind.name} is {kind.direction}"))
    if kind.name.startswith("t5") and method.relation_sign == "query_minus_key":
        found.append(finding("relation-sign", None, "position_method.relation_sign", f"{kind.name}'s buckets are of key minus query, not of query minus key"))
    for row, rows in _feeds(call):
        # The declared coordinates must fit one another, and so must those that a model makes by itself when it reads none.
        found += [_located(f, row) for f in check_feed(rows, replace(kind, coordinate="position_ids"))]
        if kind.coordinate != "position_ids":
            found += [_located(f, row) for f in check_feed(replace(rows, position_ids=None, cache_positions=None), kind)]
    return list(dict.fromkeys(found))


def _located(found: Finding, row: int | None) -> Finding:
    """The finding with the manifest's name of its field, and the number of its sequence where that was looked at by itself."""
    fields = {"position_ids": "query_space.logical_positions", "attention_mask": "row_space.active_token_per_row", "cache_length": "cache.past_seen_tokens"}
    alone = {} if row is None else {"row": row, "message": f"sequence {row} by itself: {found.message}"}
    return replace(found, field=fields.get(found.field, found.field), **alone)


def _feeds(call: PositionCall) -> list[tuple[int | None, Feed]]:
    """The call's rows as columns, cached ones first: all sequences at once, or one by one (with their numbers) when their sizes differ."""
    space, queries, asked = call.row_space, call.query_space.row_indices, set(call.query_space.row_indices)
    cached = [row for row in key_rows(call) if row not in asked]
    number_of = {owner: number for number, owner in enumerate(sequences(call))}
    require(len(number_of) <= SEQUENCES, "row_space.sequence_id_per_row", f"{len(number_of)} sequences", f"at most {SEQUENCES}", "Check a part of the batch.")
    if not cached and call.visibility.segment_isolation != "batch_rows":
        segments = torch.tensor([[number_of[space.sequence_id_per_row[row]] for row in queries]])
        return [(None, replace(_columns(call, [[]], [queries]), segments=segments if call.visibility.segment_isolation == "sequence_ids" else None))]
    old, new = [[] for _ in number_of], [[] for _ in number_of]
    for side, rows in ((old, cached), (new, queries)):
        for row in rows:
            side[number_of[space.sequence_id_per_row[row]]].append(row)
    if len({(len(a), len(b)) for a, b in zip(old, new)}) == 1:
        return [(None, _columns(call, old, new))]
    return [(number, _columns(call, [a], [b])) for number, (a, b) in enumerate(zip(old, new)) if b]


def _columns(call: PositionCall, cached: list[list[int]], queries: list[list[int]]) -> Feed:
    space = call.row_space
    active = torch.tensor([[space.active_token_per_row[i] for i in (*old, *new)] for old, new in zip(cached, queries)])
    old, new = (torch.tensor([[space.logical_position_per_row[i] for i in row] for row in rows], dtype=torch.long) for rows in (cached, queries))
    past = old.shape[-1]
    return Feed(active, past, "all", position_ids=new, cache_positions=old if past else None)
