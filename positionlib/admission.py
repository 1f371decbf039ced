"""Whether a backend may run a call: admitted, handed to a named fallback, or refused with the name of what is missing.

    admitted   the backend takes the call as it is
    fallback   another backend runs it, and the admission says which, why, and what the first one lacked
    refused    UnsupportedPositionContract, whose ``missing`` names the capabilities

The answer is the one that :func:`positionlib.attention.attend` gives itself: ``admit`` runs its checks and stops before the first product.
A term is never trimmed to fit a backend: what the backend lacks is refused whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.attention import BACKENDS, check_call, choose
from positionlib.capabilities import CAUSAL, FREE, PADDING, SEGMENTS, Refusal, of_term
from positionlib.errors import UnsupportedPositionContract, require, require_choice
from positionlib.forms import ByOffset
from positionlib.geometry import AttentionGeometry
from positionlib.terms import Term

FALLBACKS = ("sdpa", "blocked", "eager")


@dataclass(frozen=True, eq=False)
class Admission:
    """Who runs a call.

    Attributes
    ----------
    asked : the backend that was asked for; ``auto`` leaves the choice to attend().
    backend : the one that runs the call: pass it to attend().
    reason : in words, as a trace has it; of a fallback, what the backend that was asked for said.
    needs : what the call asks of a backend.
    missing : what the refusing backend lacks of it; empty when the call was admitted, or only too small for another path.
    line : the arrays by offset that a CPU path reads in place of pairs; None where there are none.
    """

    asked: str
    backend: str
    reason: str
    needs: frozenset[str]
    missing: frozenset[str] = frozenset()
    line: ByOffset | None = None

    @property
    def status(self) -> str:
        """``admitted`` or ``fallback``."""
        return "fallback" if self.missing else "admitted"


def admit(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K Dv"], term: Term | None,
          geometry: AttentionGeometry, *, backend: str, scale: float | None = None, fallback: str | None = None) -> Admission:
    """Ask a backend for a call without running it.

    Parameters
    ----------
    backend : one of ``positionlib.attention.BACKENDS``. ``auto`` falls back by itself, in the end to eager.
    scale : as attend() takes it.
    fallback : one of ``FALLBACKS``, which runs what a named backend refuses; None refuses.

    Raises
    ------
    PositionContractError
        what attend() refuses whatever the backend, such as rows that belong to the state; a fallback for ``auto`` or for itself.
    UnsupportedPositionContract
        the backend, and then the fallback, lacks something; ``missing`` names it.
    """
    require_choice("backend", backend, BACKENDS)
    if fallback is not None:
        require_choice("fallback", fallback, FALLBACKS)
        require(backend not in ("auto", fallback), "fallback", fallback, f"another backend than {backend!r}, which is not auto",
                "Name the backend that is wanted first; auto has fallbacks of its own.")
    scale = check_call(q, k, v, term, geometry, scale)
    needs = needs_of(q, k, v, term, geometry)
    try:
        with torch.autocast("cpu" if q.is_meta else q.device.type, enabled=False):
            choice = choose(q, k, v, term, geometry, scale, backend)
    except UnsupportedPositionContract as refused:
        if fallback is None:
            raise
        second = admit(q, k, v, term, geometry, backend=fallback, scale=scale)
        return Admission(backend, fallback, f"{backend} refused: {refused.remedy}", needs, refused.missing, second.line)
    line = None if choice.call is None or isinstance(choice.call.plan, Refusal) else choice.call.plan.by_offset
    return Admission(backend, choice.backend, choice.reason, needs, choice.refused.missing if choice.refused else frozenset(), line)


def needs_of(q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B Hkv K D"], v: Float[Tensor, "B Hkv K Dv"], term: Term | None,
             geometry: AttentionGeometry) -> frozenset[str]:
    """What a call asks of a backend, as far as its term, its rules and its shapes tell. Numbers may ask for more (``UNBOUNDED``)."""
    rules = {CAUSAL: geometry.causal, PADDING: geometry.key_active is not None, SEGMENTS: geometry.query_segments is not None,
             FREE: geometry.allowed is not None}
    shapes = {f"device {q.device.type}", f"dtype {str(q.dtype).removeprefix('torch.')}", f"head width {q.shape[-1]}", f"value width {v.shape[-1]}"}
    return frozenset({name for name, asked in rules.items() if asked} | shapes) | of_term(term)
