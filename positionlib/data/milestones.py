"""The methods of the book in the order in which they appeared, as data: what carries the geometry, and where it enters.

``shape`` is that of the object which carries it, in symbols: B sequences, n rows of width D, h heads of width d, Q queries, K keys,
P_max positions with a row of their own, k the largest distance kept apart, R buckets. It is a stored tensor, or what the method
computes and adds; a mask is one too.
"""

from __future__ import annotations

from typing import NamedTuple

ENTRANCES = {
    "state": "the rows X",
    "relation": "scores and value sum",
    "score": "the scores S",
    "turn": "q and k",
    "mask": "the mask M",
}


class Milestone(NamedTuple):
    """One method: ``arxiv`` is its first version there, ``source`` names a section of it and a key of the book's bibliography."""

    name: str
    arxiv: str
    entrance: str
    carrier: str
    shape: tuple[str, ...]
    contribution: str
    source: tuple[str, str]

    @property
    def year(self) -> int:
        return 2000 + int(self.arxiv[:2])

    @property
    def when(self) -> float:
        """The year with its month as a fraction: 2017.5 is July 2017."""
        return self.year + (int(self.arxiv[2:4]) - 1) / 12


MILESTONES = (
    Milestone("Transformer", "1706.03762", "state", "sinusoidal rows", ("n", "D"),
              "fixed waves added to the input; learned rows tried beside them", ("vaswani2017attention", "3.5")),
    Milestone("Shaw", "1803.02155", "relation", "key table, value table", ("2k+1", "d"),
              "a learned vector for each clipped offset, in keys and values", ("shaw2018relative", "3.2")),
    Milestone("BERT", "1810.04805", "state", "learned rows", ("P_max", "D"),
              "a trained row for each position, summed with token and segment rows", ("devlin2019bert", "3")),
    Milestone("Transformer-XL", "1901.02860", "score", "two biases u and v", ("h", "d"),
              "scores in four terms, so that cached states of the last segment keep their distances", ("dai2019transformerxl", "3.3")),
    Milestone("T5", "1910.10683", "score", "bucket table", ("R", "h"),
              "one learned number a head for each bucket of offsets, fine near and coarse far", ("raffel2020t5", "2.1")),
    Milestone("DeBERTa", "2006.03654", "score", "relative rows", ("2k", "D"),
              "content and relative position scored against each other, in separate terms", ("he2021deberta", "3.1")),
    Milestone("TUPE", "2006.15595", "score", "position scores", ("h", "Q", "K"),
              "position scored against position with projections of its own", ("ke2021tupe", "3.1")),
    Milestone("ALiBi", "2108.12409", "score", "slopes", ("h",),
              "no rows at the input; a fixed penalty a head, linear in the distance", ("press2022alibi", "3")),
    Milestone("causal NoPE", "2203.16634", "mask", "the causal mask", ("Q", "K"),
              "no positions anywhere; which keys a row may read already depends on its place", ("haviv2022nope", "abstract")),
)
