"""What each model family does with a call: where its coordinate comes from, how it counts padding, who may read whom.

The released behaviour of transformers 4.57.6, the revision of ``tests/fixtures/position_ids``. Where one name covers two models, each has its own:
``falcon`` is the rotary Falcon (7B, 40B), ``falcon-alibi`` the one with ``config.alibi``; ``t5`` is T5's encoder, ``t5-decoder`` its decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from positionlib.errors import require_choice
from positionlib.mechanisms.learned import position_ids_from_mask

PADDING_IDX = 1  # RoBERTa's


@dataclass(frozen=True)
class Family:
    """The conventions of one family.

    Attributes
    ----------
    method : what the coordinate is used for, in the words of the manifest's ``position_method.family``, or ``rotary``.
    coordinate : ``position_ids`` (passed in, else made by ``policy``), ``attention_mask`` (always made by ``policy``), or ``columns``.
    policy : how the model numbers a call by itself, a policy of :func:`positionlib.mechanisms.learned.position_ids_from_mask`.
    causal : whether a token reads earlier tokens only.
    absolute : whether a shift of a whole sequence changes the output; scores that read differences do not notice one.
    first : the id of a sequence's first token. ``row_offset`` is added to an id inside the model.
    """

    name: str
    method: str
    coordinate: str
    policy: str
    causal: bool
    absolute: bool
    first: int = 0
    row_offset: int = 0

    def own_ids(self, active: Bool[Tensor, "B K"], past: int) -> Int[Tensor, "B N"]:
        """The ids that the model makes by itself for the columns after ``past``; ``active`` is True for real tokens, cached ones included."""
        if self.policy == "contiguous":
            return position_ids_from_mask(active[:, past:], "contiguous", past=past)
        if self.policy == "roberta":
            return position_ids_from_mask(active[:, past:], "roberta", past=past, padding_idx=PADDING_IDX)
        return position_ids_from_mask(active, self.policy)[:, past:] - self.row_offset

    def ids(self, active: Bool[Tensor, "B K"], past: int) -> Int[Tensor, "B N"]:
        """The ids under which a sequence means the same with and without padding: its k-th real token has ``first`` + k."""
        return position_ids_from_mask(active, "compress_active")[:, past:] + self.first

    @property
    def direction(self) -> str:
        return "causal" if self.causal else "bidirectional"

    def describe(self) -> str:
        """One line: what the family reads, and how it counts."""
        own = {"contiguous": "counts columns, padding included", "roberta": f"counts real tokens from row {self.first}, padding gets row {PADDING_IDX}",
               "opt": "counts real tokens of attention_mask", "generation_v5": "counts real tokens of attention_mask"}[self.policy]
        source = f"reads position_ids; without them it {own}" if self.coordinate == "position_ids" else f"reads no position_ids; it {own}"
        offset = f"; adds {self.row_offset} to reach its table row" if self.row_offset else ""
        return f"{self.name}: {self.method}, {self.direction}; {source}{offset}"


FAMILIES = {family.name: family for family in (
    Family("gpt2", "learned_abs", "position_ids", "contiguous", causal=True, absolute=True),
    Family("opt", "learned_abs", "position_ids", "opt", causal=True, absolute=True, row_offset=2),
    Family("bert", "learned_abs", "position_ids", "contiguous", causal=False, absolute=True),
    Family("roberta", "learned_abs", "position_ids", "roberta", causal=False, absolute=True, first=PADDING_IDX + 1),
    Family("llama", "rotary", "position_ids", "contiguous", causal=True, absolute=False),
    Family("falcon", "rotary", "position_ids", "contiguous", causal=True, absolute=False),
    Family("falcon-alibi", "bias", "attention_mask", "generation_v5", causal=True, absolute=False),
    Family("bloom", "bias", "attention_mask", "generation_v5", causal=True, absolute=False),
    Family("mpt", "bias", "columns", "contiguous", causal=True, absolute=False),
    Family("t5", "bias", "columns", "contiguous", causal=False, absolute=False),
    Family("t5-decoder", "bias", "columns", "contiguous", causal=True, absolute=False),
)}


def family(name: str) -> Family:
    """The family of that name.

    Raises
    ------
    PositionContractError
        a name that is not listed.
    """
    return FAMILIES[require_choice("family", name, tuple(FAMILIES))]
