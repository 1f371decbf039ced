"""Which columns are tokens, and who reads whom: the mask against ids, lengths and cache, and a pair mask against the family's rule."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from positionlib.check.families import Family
from positionlib.check.feed import Feed, boundaries_fit
from positionlib.check.findings import Finding, finding, pads
from positionlib.check.numbering import sequences

BLINDING = {"mask-inverted", "mask-missing"}  # which columns are tokens is then unknown, and with it everything else


def check_mask(call: Feed, family: Family) -> list[Finding]:
    """Findings about the token mask: its width and polarity, and whether ids, lengths and packed boundaries agree with it."""
    found = _padding(call)
    if {f.code for f in found} & BLINDING:
        return found
    if call.past and not family.causal:
        found.append(finding("cache-unexpected", None, "cache_length", f"{family.name} is bidirectional, and {call.past} columns are cached"))
    if call.past and call.mask_covers == "new":
        found.append(finding("mask-too-short", None, "attention_mask", f"the mask covers {call.new.shape[1]} new columns and not the {call.past} cached ones"))
    found += [finding("empty-row", row, "attention_mask", f"row {row} has no token") for row in range(call.batch) if not call.active[row].any()]
    if call.lengths is not None:
        counted = call.active.sum(-1)
        found += [finding("lengths", row, "lengths", f"row {row} has {int(counted[row])} tokens by its mask and {int(call.lengths[row])} by its length")
                  for row in (counted != call.lengths).nonzero().flatten().tolist()]
    if call.boundaries is not None and not boundaries_fit(call.boundaries, call.new.shape[1]):
        begin, end = call.boundaries[0], call.boundaries[-1]
        falls = "" if list(call.boundaries) == sorted(call.boundaries) else ", falls between"
        found.append(finding("boundaries", None, "cu_seqlens", f"cu_seqlens begins at {begin}{falls} and ends at {end}, and the packed row has "
                             f"{call.new.shape[1]} tokens"))
    return found + _segments(call) + _opening(call)


def _segments(call: Feed) -> list[Finding]:
    found, count = [], call.new.long().cumsum(-1)
    for sequence in sequences(call):
        first, last = sequence.columns[0], sequence.columns[-1]
        if sequence.packed and count[sequence.row, last] - count[sequence.row, first] >= len(sequence.columns):
            owner = int(call.segments[sequence.row, first])
            found.append(finding("segment-split", sequence.row, "segment_ids", f"segment {owner} of row {sequence.row} comes back after another one"))
    return found


def _padding(call: Feed) -> list[Finding]:
    """The mask against the ids: padding that is read, tokens that are hidden, a mask the other way round or none at all."""
    if call.input_ids is None or call.pad_token_id is None:
        return []
    padding = call.input_ids == call.pad_token_id
    if call.mask_covers != "none" and bool(padding.any()) and not bool(padding.all()) and torch.equal(call.new, padding):
        return [finding("mask-inverted", None, "attention_mask", "the mask is 1 exactly where the ids are padding")]
    found = []
    for row in range(call.batch):
        hidden = (~padding[row] & ~call.new[row]).nonzero().flatten().tolist()
        if hidden:
            found.append(finding("token-hidden", row, "attention_mask", f"row {row} hides the token in column {hidden[0]}"))
        left, right = _edges(call, padding[row], row)
        # In a decode step a finished row goes on with padding ids, which nobody keeps.
        if left + right and not call.past:
            side = "left" if left else "right"
            code, fault = ("mask-missing", "no mask hides") if call.mask_covers == "none" else ("pad-read", "the mask shows")
            found.append(finding(code, row, "attention_mask", f"row {row} has {pads(left or right)} on the {side} that {fault}"))
    return found


def _edges(call: Feed, padding: Bool[Tensor, "N"], row: int) -> tuple[int, int]:
    """How many padding ids at the left and right edge are marked as tokens; one may be a BOS or EOS that shares the padding's id."""
    shown = (padding & call.new[row]).long()
    left, right = (int(run.cumprod(0).sum()) for run in (shown, shown.flip(0)))
    return (0 if left == 1 and call.pad_token_id == call.bos_token_id else left), (0 if right == 1 and call.pad_token_id == call.eos_token_id else right)


def _opening(call: Feed) -> list[Finding]:
    """The first ids of each sequence of a prefill: exactly one BOS."""
    if call.bos_token_id is None or call.input_ids is None or call.past:
        return []
    found = []
    for sequence in sequences(call):
        ids = call.input_ids[sequence.row, sequence.columns].tolist()
        if ids[:2] == [call.bos_token_id] * 2:
            found.append(finding("bos-twice", sequence.row, "input_ids", f"{sequence.name} begins with BOS twice: every content token has moved by one"))
        elif ids[0] != call.bos_token_id:
            found.append(finding("bos-missing", sequence.row, "input_ids", f"{sequence.name} begins with id {ids[0]}, not with BOS {call.bos_token_id}"))
    return found


def check_pairs(call: Feed, family: Family) -> list[Finding]:
    """Findings about who reads whom, at most one of a kind a row; only queries that are tokens are looked at."""
    if call.pairs is None:
        return []
    found, slots, width = [], call.pairs.shape[-1], call.active.shape[1]
    keys = torch.nn.functional.pad(call.active, (0, slots - width))
    owner = call.segments if call.segments is not None else torch.zeros_like(call.new, dtype=torch.long)
    same = torch.ones(call.batch, owner.shape[1], slots, dtype=torch.bool)
    same[..., call.past:width] = owner[:, :, None] == owner[:, None, :]
    column, query = torch.arange(slots), call.past + torch.arange(owner.shape[1])[:, None]
    earlier = column <= query if family.causal else column < width
    for row in range(call.batch):
        tokens = call.new[row]
        if not tokens.any():
            continue
        rules = _Rules(call.pairs[row], earlier & keys[row] & same[row], tokens, keys[row], earlier.expand(len(tokens), -1), same[row], column >= width)
        found += [finding(code, row, "pair_mask", f"row {row} {fault}") for code, fault in rules.faults(call.past)]
    return found


class _Rules:
    """One row's pair mask beside the rules that it should be the AND of."""

    def __init__(self, got: Tensor, want: Tensor, tokens: Tensor, keys: Tensor, earlier: Tensor, same: Tensor, empty: Tensor) -> None:
        self.got, self.want, self.tokens, self.keys = got, want, tokens, keys
        self.earlier, self.same, self.empty = earlier, same, empty

    def faults(self, past: int) -> list[tuple[str, str]]:
        """(code, what is wrong with the row), the most telling first; one that explains the whole mask stands alone."""
        got, want, keys = self.got[self.tokens], self.want[self.tokens], self.keys
        if torch.equal(got, want):
            return []
        if torch.equal(got, ~want):
            return [("pairs-inverted", "is the complement of what the family reads")]
        local = torch.ones_like(self.got).tril()
        if past and torch.equal(got, (local & keys & self.same)[self.tokens]):
            return [("triangle-top-left", f"aligns its triangle to the first key: its first query reads {int(got[0].sum())} of {int(want[0].sum())} keys")]
        padding = ~keys & ~self.empty
        earlier, same, found = self.earlier[self.tokens], self.same[self.tokens], []
        if bool((~self.tokens).any()) and not self.got[~self.tokens].any() and torch.equal(got, earlier & same & ~self.empty):
            return [("rows-not-keys", "hides padding as queries and shows it as keys")]
        for code, shown, fault in (("slot-visible", self.empty, "which is an empty slot"), ("future-visible", ~earlier & ~self.empty, "which comes later"),
                                   ("segment-leak", ~same & earlier, "of another sequence"), ("pad-visible", padding & earlier, "which is padding")):
            if bool((pair := got & shown).any()):
                found.append((code, f"lets {self._first(pair)}, {fault}"))
        blind = ~got.any(-1)
        if bool(blind.any()):
            found.append(("blind-row", f"gives query {int(self.tokens.nonzero().flatten()[blind][0])} no key at all"))
        elif bool((missing := want & ~got).any()):
            found.append(("key-hidden", f"does not let {self._first(missing)}"))
        return found

    def _first(self, pair: Tensor) -> str:
        query, key = pair.nonzero()[0].tolist()
        return f"query {int(self.tokens.nonzero()[query])} read column {key}"
