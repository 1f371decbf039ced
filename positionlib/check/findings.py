"""What the checker says: findings, each of a named kind with its remedy, and the report that holds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# Every kind of finding and what to do about it. A code that is not here cannot be reported.
REMEDIES = {
    # where tokens stand
    "left-pad-counted": "Number real tokens only: position_ids_from_mask(mask, 'compress_active').",
    "decode-counts-pads": "Continue each row after its own real tokens, not after the shared storage column.",
    "decode-restarts": "Continue from the committed length; a new query does not restart.",
    "cursor-twice": "Add the committed length once: the cursor has already moved.",
    "cache-convention": "Number prefill and decode alike: rebuild the cache, or continue in its own numbering.",
    "offset-missing": "This family's ids are table rows: add its padding_idx + 1, or leave position_ids out.",
    "offset-twice": "The module adds its row offset itself: pass positions that count from 0.",
    "shifted": "Take the coordinate of each token from the call, not from a tensor's length.",
    "one-position": "Give each token a coordinate of its own: one id was broadcast.",
    "rounded": "Keep position ids int64 throughout: a half format merges neighbours.",
    "reversed": "Positions grow with the columns.",
    "restarts": "Declare the sequences (segment_ids or cu_seqlens), or number the row through.",
    "packed-continues": "Restart the coordinates in each packed sequence, as it is numbered alone.",
    "pads-between": "Pad on the left before decoding, or number real tokens only: distances across the padding are too long.",
    "gap": "Number consecutive tokens consecutively.",
    "repeated": "Give no two tokens of a sequence one coordinate.",
    "row-swapped": "Reorder ids, mask and positions together.",
    "disordered": "Move each coordinate with its token.",
    "range": "Shorten the call or migrate the table to more rows; new rows are untrained.",
    "negative": "Padding keeps a position: hide it by the mask.",
    "positions-unread": "Leave position_ids out: this family takes its coordinate elsewhere.",
    # which rows are tokens
    "mask-inverted": "Compare once, 1 = token: attention_mask = (input_ids != pad_token_id).",
    "mask-too-short": "The mask covers the cache and the new tokens.",
    "mask-missing": "Pass the attention_mask of the padded batch.",
    "mask-rewritten": "A cached column keeps its state: append to the mask and change nothing before.",
    "pad-read": "Mark padding with 0 in the attention_mask.",
    "token-hidden": "Mark tokens with 1 in the attention_mask.",
    "empty-row": "Drop the row, or give it a token.",
    "lengths": "Take lengths, mask and ids from one tokenisation.",
    "boundaries": "cu_seqlens is 0, then the end of each sequence, and ends at the number of tokens.",
    "segment-split": "Give the later run an id of its own, or sort the rows.",
    "cache-length": "Count the columns that the calls before have written.",
    "cache-unexpected": "A bidirectional model reads every token at once: run the whole sequence again.",
    "bos-twice": "The template has rendered BOS: encode with add_special_tokens=False.",
    "bos-missing": "Encode as in training: every content token has moved by one.",
    # who reads whom
    "pairs-inverted": "State the polarity and compare once: True = may attend.",
    "triangle-top-left": "Align the triangle to the last key: visible where key position <= query position.",
    "rows-not-keys": "A padding mask hides key columns: broadcast it along queries, mask[:, None, :].",
    "slot-visible": "Hide the slots that nothing was written to.",
    "future-visible": "Put the causal rule back: key position <= query position.",
    "segment-leak": "Let rows interact within equal segment ids only.",
    "pad-visible": "Hide padding as a key from every query.",
    "blind-row": "Let every token read itself.",
    "key-hidden": "Show each token all earlier ones of its sequence; this family has no window.",
    # a manifest and a family
    "contract": "Correct the field.",
    "causality": "Use the mask that the family was trained with.",
    "method": "Name the method that the checkpoint has.",
    "bucket-direction": "An encoder's buckets are bidirectional, a causal decoder's are not: use the stack's own rule.",
    "relation-sign": "Use the sign that the table was trained with.",
    # a model that is probed
    "probe-chunks": "Take query positions, mask and bias of a chunk from the committed length.",
    "probe-decode": "Take a new token's position from the committed length, and let it read the whole cache and nothing else.",
    "probe-left-padding": "Number real tokens only, and hide padding as a key.",
    "probe-right-padding": "Hide padding as a key from every query.",
    "probe-padded-decode": "Continue each row after its own tokens, and keep its cached padding hidden.",
    "probe-packed": "Let a sequence read itself only, and take the positions that are passed in.",
    "probe-batch": "Look for an axis that takes the batch for the length.",
    "probe-future": "Put the causal rule back into this path.",
    "probe-order": "Add the positions: without them this layer sees a bag of tokens.",
    "probe-shift": "Use the position_ids that are passed in, on queries and keys alike.",
}


@dataclass(frozen=True)
class Finding:
    """One fault: its kind, the batch row (None: all rows), the field at fault, what is wrong, and what to do."""

    code: str
    row: int | None
    field: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} ({self.field}): {self.message}. {self.remedy}"


def finding(code: str, row: int | None, field: str, message: str) -> Finding:
    """A finding of a listed kind, with that kind's remedy."""
    return Finding(code, row, field, message, REMEDIES[code])


def pads(count: int) -> str:
    """``1 pad``, ``3 pads``."""
    return f"{count} pad" if count == 1 else f"{count} pads"


@dataclass(frozen=True)
class Report:
    """What was fed, line by line, and what is wrong with it. ``status``: 0 without findings, 1 with some."""

    explanation: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def status(self) -> int:
        return 1 if self.findings else 0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dicts, lists, numbers and texts."""
        return {"status": self.status, "findings": [asdict(f) for f in self.findings], "explanation": list(self.explanation)}

    def __str__(self) -> str:
        count = len(self.findings)
        return "\n".join([*self.explanation, *map(str, self.findings), f"{count} finding{'' if count == 1 else 's'}" if count else "clean"])
