"""Insertion map: which tensor of an attention layer a family changes first, and which shapes it leaves alone.

Every family runs on the same random rows and weights as content alone; the first tensor that differs is where its geometry enters.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from positionlib.attention import attend
from positionlib.geometry import AttentionGeometry
from positionlib.mechanisms.deberta import DeBERTa
from positionlib.mechanisms.learned import LearnedAbsolute
from positionlib.mechanisms.nope import NoPE
from positionlib.mechanisms.rotary import Rotary
from positionlib.mechanisms.shaw import ShawRelative
from positionlib.mechanisms.sinusoidal import Sinusoidal
from positionlib.mechanisms.t5 import T5Bias
from positionlib.rotation import QKTransform
from positionlib.terms import StateRows
from positionlib.widgets.explorer import Control, Explorer
from positionlib.widgets.panels import Badge, Badges, Table

FAMILIES = {
    "content": "content alone", "sinusoidal": "state rows: sinusoidal", "learned": "state rows: learned table",
    "shaw": "relation: Shaw", "t5": "score bias: T5", "deberta": "score terms: DeBERTa", "rotary": "turned q and k: rotary",
    "nope": "mask: causal NoPE",
}
PIPELINE = ("X", "q", "k", "v", "S", "M", "A", "Y")
MEANING = {"X": "rows that enter", "q": "queries", "k": "keys", "v": "values", "S": "scores", "M": "mask (True = may be read)",
           "A": "weights", "Y": "heads' outputs"}
WIDTH, HEADS = 16, 2
SIZES = {"prompt": (6, 6), "decode": (1, 65)}  # queries, keys


@cache
def trace(family: str, call: str, seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of one layer, float64, in the order of ``PIPELINE``. Rows and weights depend on the call and the seed alone.

    ``prompt`` is six rows that read one another, ``decode`` one new row that reads itself and 64 before it. Content alone hides
    nothing; NoPE is the same layer under a causal mask.
    """
    queries, keys = SIZES[call]
    maker = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=maker, dtype=torch.float64)

    x, projections = normal(1, keys, WIDTH), [normal(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(3)]
    whole = AttentionGeometry.causal_self(keys) if family == "nope" else AttentionGeometry.encoder(keys)
    geometry = whole.slice_queries(keys - queries, keys)
    mechanism = mechanism_of(family, seed)
    term = None if mechanism is None else mechanism(whole if family in ("sinusoidal", "learned") else geometry)
    if isinstance(term, StateRows):
        x, term = term.add_to(x), None
    q, k, v = ((side @ w).unflatten(-1, (HEADS, -1)).transpose(1, 2) for side, w in zip((x[:, keys - queries:], x, x), projections))
    y, seen = attend(q, k, v, term, geometry, backend="eager", return_trace=True)
    if isinstance(term, QKTransform):
        q, k = term.rotate(q, geometry.query_positions), term.rotate(k, geometry.key_positions)
    found = {"X": x, "q": q, "k": k, "v": v, "S": seen.scores, "M": seen.visible, "A": seen.probabilities, "Y": y}
    return {name: value.detach() for name, value in found.items()}


def mechanism_of(family: str, seed: int = 0) -> nn.Module | None:
    """The family's module for this small layer, with normal numbers for parameters: a fresh table of near-zeros would show nothing."""
    head = WIDTH // HEADS
    made = {"content": lambda: None, "sinusoidal": lambda: Sinusoidal(WIDTH, output_dtype=torch.float64),
            "learned": lambda: LearnedAbsolute(128, WIDTH), "shaw": lambda: ShawRelative(4, head, sign="key_minus_query"),
            "t5": lambda: T5Bias(HEADS, bidirectional=True, score_scale=None),
            "deberta": lambda: DeBERTa(HEADS, WIDTH, 8, terms=("c2c", "c2p", "p2c"), third_index="paper", projections="own"),
            "rotary": lambda: Rotary(head, pairing="interleaved"), "nope": NoPE}[family]()
    if made is None:
        return None
    maker = torch.Generator().manual_seed(seed)
    for parameter in made.double().parameters():
        parameter.data.normal_(generator=maker)
    return made


def changed(family: str, call: str) -> tuple[str, ...]:
    """The tensors that differ from those of content alone, in the order of ``PIPELINE``."""
    plain, run = trace("content", call), trace(family, call)
    return tuple(name for name in PIPELINE if not torch.allclose(run[name].double(), plain[name].double(), rtol=0, atol=1e-12))


def entrance(family: str, call: str) -> tuple[str, ...]:
    """Where the geometry enters: the first tensor that differs. A turn moves q and k at once, so both stand for it."""
    names = changed(family, call)
    return ("q", "k") if names[:2] == ("q", "k") else names[:1]


def sums_plainly(family: str, call: str) -> bool:
    """Whether the outputs are the weights times the values and nothing else; Shaw adds vectors to the values too."""
    run = trace(family, call)
    return torch.allclose(run["A"] @ run["v"], run["Y"], rtol=0, atol=1e-12)


def learned_numbers(family: str) -> int:
    """How many numbers the family trains in this small layer."""
    mechanism = mechanism_of(family)
    return 0 if mechanism is None else sum(parameter.numel() for parameter in mechanism.parameters())


def _shape(tensor: Tensor) -> str:
    return "[" + ", ".join(map(str, tensor.shape)) + "]"


def _compute(family: str, call: str) -> list:
    run, plain, first, later = trace(family, call), trace("content", call), entrance(family, call), changed(family, call)
    rows = [[name, MEANING[name], _shape(run[name]), "enters here" if name in first else "follows" if name in later else "same"]
            for name in PIPELINE]
    unlike = sum(run[name].shape != plain[name].shape for name in PIPELINE)
    twice = not sums_plainly(family, call)
    place = (" and ".join(first) or "nowhere") + (", and Y" if twice else "")
    return [Badges([Badge("geometry enters at", place, "plain" if first else "warn"),
                    Badge("shapes that changed", f"{unlike} of {len(PIPELINE)}", "bad" if unlike else "ok"),
                    Badge("learned numbers", f"{learned_numbers(family):,}")]),
            Table("One layer, from its rows to its outputs", ["tensor", "what it is", "shape", "beside content alone"], rows,
                  [i for i, name in enumerate(PIPELINE) if name in first], "Marked: the first tensor that differs." if first else "Nothing differs.")]


_CAPTIONS = {
    "content": "Nothing but content. This run is what all the others are compared with; it knows no order.",
    "sinusoidal": "Rows are added to X before the projections, so everything behind X follows, the values too. The rows are computed: nothing is learned.",
    "learned": "The same entrance as sinusoidal rows: X. The rows are trained, one for each of 128 positions, and there is none for position 128.",
    "shaw": "X, q, k and v are those of content. The relation enters the scores, and a second time the sum of the values: Y is more than A times v.",
    "t5": "One learned number a bucket and head is added to S. Nothing before the scores knows about positions, so cached k and v hold none.",
    "deberta": "S is built from content and from relative rows in separate products, under a larger divisor. X, q, k and v stay content.",
    "rotary": "q and k turn by their positions before they meet. X and v stay content, nothing is learned, and there is no bias to add to S.",
}


def _caption(family: str, call: str) -> str:
    scores = _shape(trace(family, call)["S"])
    sizes = f"With six rows S is {scores}." if call == "prompt" else f"For one new row and 65 keys S is {scores}."
    if family != "nope":
        return f"{_CAPTIONS[family]} {sizes}"
    if call == "prompt":
        return f"Only the mask differs from content alone: row i reads i + 1 keys. What a row may read is all that tells it where it is. {sizes}"
    return ("Nothing differs: the newest row may read every key, with the mask or without. In a decode step order reaches it only through what "
            f"earlier layers made of the cached rows, and this is one layer. {sizes}")


def insertion_map() -> Explorer:
    """Which tensor does a family change first? At rest: T5's bias, which leaves everything before the scores alone."""
    return Explorer(
        name="insertion-map", title="Insertion map", question="Which tensor does this family change first, and which shapes change?",
        controls=[Control("family", "Family", tuple(FAMILIES), tuple(FAMILIES.values()), "choice"),
                  Control("call", "Call", tuple(SIZES), ("six rows read one another", "one new row reads 65"))],
        compute=_compute, start={"family": "t5", "call": "prompt"}, caption=_caption)
