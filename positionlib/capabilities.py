"""Names for what a call of attention asks of a backend, and the refusal that says which of them a backend lacks.

A backend has no list of its abilities: it has the checks that :func:`positionlib.attention.attend` runs before a call, each of which
returns None or a :class:`Refusal`. What a term needs is read off the term: the arrays that it hands a backend for a line of offsets
(:class:`positionlib.terms.ByOffset`) or of rows (:class:`positionlib.terms.ByRow`), or that it has none to hand over.

Needs that only the numbers of a call can show (``SCATTERED``, ``FAR``, ``UNBOUNDED``) stand in a refusal and in no term.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from positionlib.forms import ByOffset, OfRows
from positionlib.rotation import QKTransform
from positionlib.terms import ClassBias, Relation, ScoreBias, SlopeBias, StateRows, Term

STATE_ROWS = "rows added to the state"
BIAS, KEY_BIAS, PAIR_BIAS = "additive bias by offset", "additive bias by key position", "additive bias by pair"
CLASS_BIAS, GIVEN_BIAS = "additive bias by class of pair", "given bias by pair"
ROUNDED_BIAS, OPEN_CLASSES = "bias rounded before the sum", "classes without a last distance"
QUERY_SCORE, KEY_SCORE, VALUE_SUM = "relation score of the query", "relation score of the key", "relation of the values"
CONTENT_BIAS, NO_CONTENT = "content bias", "scores without content"
PAIR_RELATION, PAIR_SCORE, ROW_SCORE = "relation by pair", "scores by pair", "products of position rows"
ROTATION, FREQUENCY_GRADIENT = "rotation of q and k", "gradient of the frequencies"
CAUSAL, PADDING, SEGMENTS, FREE = "causal visibility", "key padding", "segments", "free visibility matrix"
SCATTERED, FAR, UNBOUNDED = "positions in no run", "offsets far apart", "numbers without a bound"

ON_A_LINE = {"bias": BIAS, "query_rows": QUERY_SCORE, "key_rows": KEY_SCORE, "value_rows": VALUE_SUM, "content_bias": CONTENT_BIAS}


class Refusal(NamedTuple):
    """Why a backend does not take a call: ``why`` in words, and what it lacks: ``names``, and the needs of ``term`` but for what it ``has``."""

    why: str
    names: tuple[str, ...] = ()
    term: Term | None = None
    has: tuple[str, ...] = ()

    @property
    def missing(self) -> frozenset[str]:
        """Names of the capabilities that the backend lacks; none where the call alone is at fault (too small, traced)."""
        return frozenset(self.names) | (of_term(self.term) - set(self.has))


def of_term(term: Term | None) -> frozenset[str]:
    """What attention must be able to do so that nothing of the term is dropped."""
    if term is None:
        return frozenset()
    visibility = {CAUSAL} if term.requires == "causal" else set()
    if isinstance(term, StateRows):
        return frozenset({STATE_ROWS})
    if isinstance(term, QKTransform):
        return frozenset({ROTATION})
    held = next((t for t in vars(term).values() if isinstance(t, Tensor)), None)
    line = term.by_offset(torch.zeros(1, dtype=torch.int64, device=None if held is None else held.device), 1.0, torch.float32)
    if isinstance(term, SlopeBias):
        return frozenset(visibility | {KEY_BIAS if term.form.startswith("key") else BIAS} | ({ROUNDED_BIAS} if term.rounded else set()))
    if isinstance(term, ClassBias) and not hasattr(term.rule, "max_distance"):
        visibility.add(OPEN_CLASSES)
    return frozenset(visibility | (_off_the_line(term) if line is None else of_line(line)))


def of_line(line: ByOffset) -> frozenset[str]:
    """What a term needs of which a line of offsets is all that a backend sees."""
    return frozenset({name for field, name in ON_A_LINE.items() if getattr(line, field) is not None} | (set() if line.content else {NO_CONTENT}))


def _off_the_line(term: Term) -> set[str]:
    if isinstance(term, Relation):
        return {PAIR_RELATION} | {name for name, table in ((QUERY_SCORE, term.key_table), (VALUE_SUM, term.value_table)) if table is not None}
    if isinstance(term, OfRows):
        return {ROW_SCORE} if term.by_row().bias is None else {ROW_SCORE, BIAS}
    if not isinstance(term, ScoreBias):
        return {PAIR_SCORE}
    nobody = torch.zeros(0, dtype=torch.int64)
    form = term.by_class(nobody, nobody, 1.0)
    if form is None:
        return {PAIR_BIAS}
    return {name for name, part in ((CLASS_BIAS, form.bias), (GIVEN_BIAS, form.pair_bias)) if part is not None}
