"""Calls for the checker's tests: clean ones of every family, and one for each kind of fault that a call can carry."""

from __future__ import annotations

import torch

from positionlib.check.families import FAMILIES

LEFT, RIGHT, FULL = [[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]], [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], [[1, 1, 1, 1], [1, 1, 1, 1]]
PAD, BOS = 9, 1
IDS = {"left": [[1, 5, 6, 7, 8], [9, 9, 9, 1, 5]], "right": [[1, 5, 6, 7, 8], [1, 5, 9, 9, 9]]}
TRIANGLE = torch.ones(5, 5, dtype=torch.bool).tril()


def visible(mask, *, past: int = 0, causal: bool = True, slots: int = 0, segments=None):
    """The pair mask [B, N, K + slots] of a token mask, column by column."""
    mask = torch.as_tensor(mask).bool()
    rows, keys = mask.shape
    out = torch.zeros(rows, keys - past, keys + slots, dtype=torch.bool)
    for b in range(rows):
        for q in range(past, keys):
            for k in range(keys):
                same = segments is None or segments[b][q - past] == segments[b][k - past]
                out[b, q - past, k] = bool(mask[b, k]) and same and (k <= q or not causal)
    return out


def clean():
    """(name, family, calls): calls that nobody should be told anything about."""
    for name, family in FAMILIES.items():
        reads, causal = family.coordinate == "position_ids", family.causal
        for side, mask in (("left", LEFT), ("right", RIGHT), ("full", FULL)):
            active = torch.tensor(mask).bool()
            ids = {"position_ids": family.ids(active, 0)} if reads else {}
            pairs = {"pair_mask": visible(mask, causal=causal)}
            if family.policy != "contiguous" or side != "left" or not family.absolute:
                yield f"{side} prefill, numbered by the model", name, [{"attention_mask": mask}]
            yield f"{side} prefill", name, [{"attention_mask": mask, **ids, **pairs, "lengths": active.sum(-1).tolist()}]
            if side != "full":
                yield f"{side} prefill with ids", name, [{"attention_mask": mask, **ids, "input_ids": IDS[side], "pad_token_id": PAD, "bos_token_id": BOS}]
            if causal and not (side == "right" and family.coordinate == "columns"):
                longer = torch.cat((active, torch.ones(len(active), 1).bool()), 1)
                past = active.shape[1]
                step = {"position_ids": family.ids(longer, past)} if reads else {}
                seen = {"pair_mask": visible(longer, past=past, slots=3)}
                yield f"{side} decode", name, [{"attention_mask": longer.long(), "cache_length": past, **step, **seen}]
                more = {"position_ids": step["position_ids"] + 1} if reads else {}
                yield f"{side} prefill and decode", name, [{"attention_mask": mask, **ids}, {"attention_mask": longer.long(), **step},
                                                           {**more, **({} if reads else {"input_ids": [[5]] * len(active)})}]
        yield "no padding, nothing passed", name, [{"input_ids": [[1, 2, 3, 4]]}]
        yield "one token", name, [{"input_ids": [[1]], "bos_token_id": 1}]
        if causal:
            yield "chunks", name, [{"input_ids": [[1, 2, 3]]}, {"input_ids": [[4, 5]]}, {"input_ids": [[6]]}]
        packed = torch.tensor([[0, 1, 2, 0, 1]]) + family.first
        ids = {"position_ids": packed} if reads else {}
        yield "packed", name, [{"input_ids": [[1, 4, 5, 1, 6]], "bos_token_id": 1, "cu_seqlens": [0, 3, 5], **ids,
                                "pair_mask": visible([[1] * 5], causal=causal, segments=[[0, 0, 0, 1, 1]])}]
        inside = {"position_ids": packed + torch.tensor([4, 4, 4, 0, 0])} if reads else {}
        yield "packed window inside a document", name, [{"segment_ids": [[4, 4, 4, 7, 7]], **inside}]
        if not family.absolute and reads:
            yield "left pads counted, which differences do not notice", name, [{"attention_mask": LEFT, "position_ids": [0, 1, 2, 3, 4]},
                                                                              {"position_ids": [[5], [5]]}]
    yield "padding shares its id with BOS and EOS", "gpt2", [
        {"input_ids": [[9, 5, 6, 9]], "attention_mask": [[1, 1, 1, 1]], "pad_token_id": 9, "bos_token_id": 9, "eos_token_id": 9}]
    yield "a finished row goes on with padding ids", "gpt2", [decode([[5], [2]], input_ids=[[7], [9]], pad_token_id=9)]
    yield "the table is just long enough", "opt", [{"input_ids": [[1, 2, 3, 4]], "table_rows": 6}]
    yield "padding in OPT reads row 1", "opt", [{"attention_mask": LEFT, "table_rows": 7}]


def decode(new: list[list[int]], mask=None, **more):
    mask = mask or [[1] * 6, [0, 0, 0, 1, 1, 1]]
    return {"attention_mask": mask, "cache_length": 5, "position_ids": new, **more}


def pairs(change, mask=LEFT, **more):
    seen = visible(mask, past=more.get("cache_length", 0), slots=more.pop("slots", 0))
    change(seen)
    return {"attention_mask": mask, "position_ids": [[0, 1, 2, 3, 4], [0, 0, 0, 0, 1]][: len(mask)], **more, "pair_mask": seen}


def put(*cells, value=True):
    def change(seen):
        for cell in cells:
            seen[cell] = value
    return change


FAULTS = [  # code, where it comes from, family, calls
    ("left-pad-counted", "O01", "gpt2", [{"attention_mask": LEFT, "position_ids": [0, 1, 2, 3, 4]}]),
    ("left-pad-counted", "O03", "bert", [{"attention_mask": LEFT}]),
    ("decode-counts-pads", "O02", "gpt2", [{"attention_mask": LEFT, "position_ids": [[0, 1, 2, 3, 4], [0, 0, 0, 0, 1]]}, {"position_ids": [[5], [5]]}]),
    ("decode-counts-pads", "O02", "llama", [{"attention_mask": LEFT, "position_ids": [[0, 1, 2, 3, 4], [1, 1, 1, 0, 1]]}, {"position_ids": [[5], [5]]}]),
    ("decode-restarts", "O12", "gpt2", [{"cache_length": 50, "position_ids": [[0, 1]]}]),
    ("decode-restarts", "0x0C chunks that reset", "llama", [{"input_ids": [[1, 2, 3]]}, {"position_ids": [[0, 1, 2]]}]),
    ("cursor-twice", "O17", "gpt2", [{"cache_length": 9, "position_ids": [[18]]}]),
    ("cursor-twice", "O79", "llama", [{"input_ids": [[1, 2, 3, 4]]}, {"position_ids": [[8, 9, 10, 11]]}]),
    ("cache-convention", "0x0C prefill and decode disagree", "gpt2", [decode([[5], [2]], cache_positions=[[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]])]),
    ("cache-convention", "0x0C prefill and decode disagree", "llama", [{"attention_mask": LEFT}, {"position_ids": [[5], [2]]}]),
    ("offset-missing", "O04", "roberta", [{"attention_mask": RIGHT, "position_ids": [0, 1, 2, 3, 4]}]),
    ("offset-twice", "O05", "opt", [{"input_ids": [[1, 2, 3]], "position_ids": [[2, 3, 4]]}]),
    ("shifted", "O07", "gpt2", [{"input_ids": [[1, 2, 3]], "position_ids": [[1, 2, 3]]}]),
    ("shifted", "O32", "llama", [decode([[6], [6]], mask=[[1] * 6] * 2)]),
    ("one-position", "0x07 a slice of one row", "bert", [{"position_ids": [[5, 5, 5]]}]),
    ("one-position", "BERT relative_key with a cache", "llama", [{"cache_length": 5, "position_ids": [[6, 6]]}]),
    ("rounded", "O36", "llama", [{"position_ids": torch.arange(250, 260).bfloat16().long()}]),
    ("rounded", "O38", "gpt2", [{"position_ids": torch.arange(2060).half().long()}]),
    ("reversed", "O41", "gpt2", [{"position_ids": [[4, 3, 2, 1, 0]]}]),
    ("restarts", "O09", "llama", [{"position_ids": [[0, 1, 2, 0, 1]]}]),
    ("packed-continues", "O08", "gpt2", [{"segment_ids": [[0, 0, 0, 1, 1]], "position_ids": [[0, 1, 2, 3, 4]]}]),
    ("pads-between", "O34", "mpt", [{"attention_mask": RIGHT}, {"input_ids": [[1], [2]]}]),
    ("pads-between", "O34", "llama", [{"attention_mask": [[1, 1, 0, 1, 1]]}]),
    ("gap", "O56", "gpt2", [{"position_ids": [[0, 1, 3, 4]]}]),
    ("repeated", "O56", "gpt2", [{"position_ids": [[0, 1, 1, 2]]}]),
    ("row-swapped", "0x0C row order", "gpt2", [{"attention_mask": [[0, 1, 1, 1, 1], [0, 0, 0, 1, 1]], "position_ids": [[0, 0, 0, 0, 1], [0, 0, 1, 2, 3]]}]),
    ("disordered", "0x0C concatenation", "bert", [{"position_ids": [[0, 3, 1, 2]]}]),
    ("range", "O52", "gpt2", [{"position_ids": [[0, 1, 2]], "table_rows": 2}]),
    ("range", "O04", "roberta", [{"input_ids": [list(range(2, 515))], "table_rows": 514}]),
    ("range", "O50", "opt", [{"cache_length": 4, "input_ids": [[5, 6]], "table_rows": 7}]),
    ("negative", "O70", "gpt2", [{"attention_mask": LEFT, "position_ids": [[0, 1, 2, 3, 4], [-1, -1, -1, 0, 1]]}]),
    ("positions-unread", "0x08A", "bloom", [{"position_ids": [[0, 1, 2]]}]),
    ("mask-inverted", "O78", "gpt2", [{"input_ids": IDS["right"], "attention_mask": [[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]], "pad_token_id": PAD}]),
    ("mask-too-short", "O14", "bloom", [{"cache_length": 5, "input_ids": [[3]], "attention_mask": [[1]]}]),
    ("mask-missing", "0x08", "gpt2", [{"input_ids": IDS["left"], "position_ids": [[0, 1, 2, 3, 4], [0, 0, 0, 0, 1]], "pad_token_id": PAD}]),
    ("mask-rewritten", "0x0C mask and positions disagree", "llama", [{"attention_mask": LEFT}, {"attention_mask": [[1] * 6] * 2}]),
    ("pad-read", "O06", "bert", [{"input_ids": IDS["right"], "attention_mask": [[1] * 5] * 2, "pad_token_id": PAD}]),
    ("token-hidden", "0x0C mask and positions disagree", "bert", [{"input_ids": [[1, 5, 6]], "attention_mask": [[1, 1, 0]], "pad_token_id": PAD}]),
    ("empty-row", "O16", "t5", [{"attention_mask": [[1, 1], [0, 0]]}]),
    ("lengths", "O78", "bert", [{"attention_mask": RIGHT, "lengths": [5, 3]}]),
    ("lengths", "O78", "bert", [{"input_ids": [[1, 2, 3]], "lengths": [4]}]),
    ("boundaries", "O10", "llama", [{"input_ids": [[1, 2, 3, 4]], "cu_seqlens": [0, 3]}]),
    ("boundaries", "O10", "llama", [{"input_ids": [[1, 2, 3, 4]], "cu_seqlens": [0, 3, 2, 4]}]),
    ("segment-split", "O10", "llama", [{"segment_ids": [[0, 0, 1, 1, 0]], "position_ids": [[0, 1, 0, 1, 2]]}]),
    ("cache-length", "O79", "gpt2", [{"input_ids": [[1, 2, 3, 4]]}, {"input_ids": [[5]], "cache_length": 8}]),
    ("cache-unexpected", "0x08A", "bert", [{"input_ids": [[3]], "cache_length": 4, "position_ids": [[4]]}]),
    ("bos-twice", "O07", "llama", [{"input_ids": [[1, 1, 50, 51]], "bos_token_id": 1}]),
    ("bos-missing", "0x08", "llama", [{"input_ids": [[50, 51]], "bos_token_id": 1}]),
    ("pairs-inverted", "O41", "gpt2", [pairs(lambda seen: seen.logical_not_())]),
    ("triangle-top-left", "O15", "gpt2", [{"cache_length": 4, "position_ids": [[4, 5]], "pair_mask": torch.ones(2, 6).tril().bool()}]),
    ("rows-not-keys", "O77", "bert", [{"attention_mask": [[1, 1, 0]], "pair_mask": [[1, 1, 1], [1, 1, 1], [0, 0, 0]]}]),
    ("slot-visible", "O18", "gpt2", [pairs(put((0, 0, 7)), mask=[[1] * 6], cache_length=5, slots=3) | {"position_ids": [[5]]}]),
    ("future-visible", "O42", "gpt2", [pairs(put((0, 2, 3)))]),
    ("segment-leak", "O09", "llama", [{"segment_ids": [[0, 0, 0, 1, 1]], "position_ids": [[0, 1, 2, 0, 1]], "pair_mask": TRIANGLE}]),
    ("pad-visible", "O06", "gpt2", [pairs(put((1, 4, 0)))]),
    ("blind-row", "O16", "gpt2", [pairs(put((0, 0, 0), value=False))]),
    ("key-hidden", "0x0C a missing key", "gpt2", [pairs(put((0, 3, 1), value=False))]),
]
