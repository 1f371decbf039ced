"""Small models over the library's own mechanisms, whole or with one named fault in how they handle a call."""

from __future__ import annotations

import torch

import positionlib as pl
from positionlib.check.families import FAMILIES

F64 = torch.float64
WIDTH, HEADS, LAYERS, VOCABULARY = 16, 2, 2, 32
MECHANISM = {"gpt2": "learned", "bert": "learned", "opt": "learned", "roberta": "learned", "llama": "rotary", "falcon": "rotary",
             "bloom": "alibi", "falcon-alibi": "alibi", "mpt": "alibi", "t5": "t5", "t5-decoder": "t5"}


class Tiny:
    """Two layers in float64. As a step it returns the embedding, both layers and the output; its cache is unrotated keys and values."""

    def __init__(self, name: str, fault: str | None = None) -> None:
        self.family, self.mechanism, self.fault, self.stale = FAMILIES[name], MECHANISM[name], fault, {}
        torch.manual_seed(3)
        self.table = torch.randn(VOCABULARY, WIDTH, dtype=F64)
        self.weights = torch.randn(LAYERS, 4, WIDTH, WIDTH, dtype=F64) / WIDTH**0.5
        if self.mechanism == "learned":
            self.position = pl.LearnedAbsolute(64, WIDTH, row_offset=self.family.row_offset).to(F64)
            torch.nn.init.normal_(self.position.weight)
        elif self.mechanism == "rotary":
            self.position = pl.Rotary(WIDTH // HEADS, pairing="half_split", base=100.0)
        elif self.mechanism == "alibi":
            self.position = pl.ALiBi(HEADS)
        else:
            self.position = pl.T5Bias(HEADS, 8, 16, bidirectional=not self.family.causal).to(F64)
            torch.nn.init.normal_(self.position.weight)

    def __call__(self, input_ids, attention_mask, position_ids, segment_ids, cache):
        cache = cache or {"layers": [None] * LAYERS, "positions": torch.zeros(len(input_ids), 0, dtype=torch.long)}
        past, new = cache["positions"].shape[1], input_ids.shape[1]
        active = attention_mask.bool()
        if position_ids is None:
            position_ids = self.family.own_ids(active, past)
            if segment_ids is not None and self.family.coordinate == "attention_mask":
                position_ids = torch.arange(new)[None]  # a shift of a whole sequence is nothing to a bias of differences
        queries = self.positions(position_ids, active, past, new)
        keys = torch.cat((cache["positions"], queries), 1)
        geometry = self.geometry(queries, keys, active, segment_ids, past)
        x = self.table[input_ids]
        if self.mechanism == "learned" and self.fault != "no positions":
            x = self.position(geometry).add_to(x)
        layers, kept = [x], []
        for index, (wq, wk, wv, wo) in enumerate(self.weights):
            q, k, v = (self.heads(x @ w) for w in (wq, wk, wv))
            if cache["layers"][index] is not None:
                k, v = (torch.cat((old, now), 2) for old, now in zip(cache["layers"][index], (k, v)))
            kept.append((k, v))
            x = x + self.attend(q, k, v, geometry, past).transpose(1, 2).flatten(2) @ wo
            if self.fault == "NaN in padding" and not bool(active.all()):
                x = x.masked_fill(~active[:, past:, None], torch.nan)
            layers.append(x)
        if self.fault == "a step of one token fails" and past and new == 1:
            raise RuntimeError("The size of tensor a (1) must match the size of tensor b (2)")
        return [*layers, x @ self.table.T], {"layers": kept, "positions": keys}

    def heads(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def positions(self, given, active, past, new):
        given, columns = given.expand(len(active), -1), torch.arange(past, past + new).expand(len(active), -1)
        match self.fault:
            case "decode restarts": return torch.arange(new).expand_as(given) if past else given
            case "cursor advanced twice": return given + past
            case "decode off by one": return given + 1 if past else given
            case "every query at the last key": return columns[:, -1:].expand_as(given) if past else given
            case "padding counted": return columns
            case "decode counts padding": return columns if past else given
            case "packed positions run on": return columns if active.shape[0] == 1 else given
            case "batch taken for length": return torch.arange(len(given))[:, None].expand_as(given)
            case "one row for all": return torch.full_like(given, new)
            case "table cached by length alone": return self.stale.setdefault((len(given), new), given)
        return given

    def geometry(self, queries, keys, active, segments, past):
        causal = self.family.causal
        key_active = torch.ones_like(active) if self.fault == "mask ignored" else ~active if self.fault == "mask inverted" else active.clone()
        if self.fault == "cached padding shown":
            key_active[:, :past] = True
        rows, allowed = torch.arange(queries.shape[1]), None
        # Of the storage rows, so that padding and packing share no triangle with coordinates that restart.
        triangle = torch.arange(keys.shape[1]) <= rows[:, None] + (0 if self.fault == "triangle to the first key" else past)
        if causal:
            allowed = triangle
        if self.fault == "future shown":
            allowed = torch.ones_like(triangle)
        if segments is not None and self.fault != "segments ignored":
            same = segments[:, :, None] == segments[:, None, :]
            allowed = same if allowed is None else same & allowed
        return pl.AttentionGeometry(queries, keys, key_active=key_active, allowed=allowed, mode="causal" if causal else "encoder")

    def attend(self, q, k, v, geometry, past):
        if self.mechanism == "rotary":
            term = self.position(geometry)
            if self.fault == "no positions":
                term = None
            elif self.fault == "queries rotated alone":
                q, term = term.rotate(q, geometry.query_positions), None
            elif self.fault == "cached keys rotated again" and past:
                k = torch.cat((term.rotate(k[:, :, :past], geometry.key_positions[:, :past]), k[:, :, past:]), 2)
        elif self.mechanism == "learned" or self.fault == "no positions" or self.fault == "bias broadcast in decode" and past:
            term = pl.terms.SlopeBias(slopes=torch.zeros(HEADS, dtype=F64))
        else:
            bias = {"alibi": lambda: pl.terms.SlopeBias(slopes=self.position.slopes), "t5": lambda: pl.terms.ClassBias(
                table=self.position.table, rule=self.position.rule, sign="key_minus_query", score_scale=1.0)}
            term = bias[self.mechanism]()
        out = pl.attend(q, k, v, term, geometry)
        if self.fault == "NaN in padding" and not bool(v.isfinite().all()):
            out = out + (0 * v).sum(2, keepdim=True)  # a softmax weight of 0 times NaN
        return out


FAULTS = [  # fault, where it comes from, the family whose model has it, the regimes that notice
    ("decode restarts", "O12", "gpt2", "chunks decode padded-decode"),
    ("decode restarts", "O13", "t5-decoder", "chunks decode padded-decode"),
    ("decode restarts", "O11", "llama", "chunks decode padded-decode"),
    ("decode restarts", "0x0C local arange", "bloom", "chunks decode padded-decode"),
    ("cursor advanced twice", "O17", "gpt2", "chunks decode padded-decode"),
    ("cursor advanced twice", "O79", "llama", "chunks decode padded-decode"),
    ("decode off by one", "O32", "bloom", "chunks decode padded-decode"),
    ("every query at the last key", "BERT relative_key", "llama", "chunks padded-decode"),
    ("padding counted", "O03", "gpt2", "left-padding padded-decode packed shift"),
    ("padding counted", "O01", "bert", "left-padding packed shift"),
    ("decode counts padding", "O02", "gpt2", "padded-decode"),
    ("decode counts padding", "O02", "llama", "padded-decode"),
    ("packed positions run on", "O08", "gpt2", "packed shift"),
    ("segments ignored", "O09", "llama", "packed"),
    ("segments ignored", "O09", "t5", "packed"),
    ("batch taken for length", "O49", "gpt2", "left-padding right-padding padded-decode batch order shift"),
    ("one row for all", "O48", "gpt2", "chunks decode left-padding right-padding padded-decode packed batch order shift"),
    ("table cached by length alone", "O19", "llama", "chunks decode right-padding padded-decode"),
    ("mask ignored", "O06", "bert", "left-padding right-padding"),
    ("mask ignored", "O06", "llama", "left-padding padded-decode"),
    ("mask inverted", "O41", "t5", "left-padding right-padding order"),
    ("cached padding shown", "0x0C a mask of the new tokens", "gpt2", "padded-decode"),
    ("triangle to the first key", "O15", "gpt2", "chunks decode padded-decode"),
    ("future shown", "O42", "llama", "chunks decode padded-decode batch future"),
    ("NaN in padding", "O16", "t5", "left-padding right-padding"),
    ("no positions", "0x0C missing", "gpt2", "order shift"),
    ("no positions", "0x0C missing", "llama", "order"),
    ("no positions", "0x0C missing", "t5", "order"),
    ("bias broadcast in decode", "O14", "bloom", "chunks decode padded-decode"),
    ("cached keys rotated again", "0x0C prefill and decode disagree", "llama", "chunks decode padded-decode"),
    ("queries rotated alone", "0x0C handoff", "llama", "order shift"),
    ("a step of one token fails", "O43 late error", "llama", "decode padded-decode"),
]
