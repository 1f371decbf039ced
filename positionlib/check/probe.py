"""Probe a model: does one prompt mean the same whole, in chunks, token by token, padded, packed and in a batch?

Each prompt is first run alone, whole and without padding; every other way of feeding it must give its tokens the same states. Three
more questions have no such reference: does a later token reach an earlier one, does the order of tokens matter, and does the output
follow (absolute families) or ignore (relative ones) a shift of all positions?

A model is asked through a *step*, any callable

    step(input_ids [B, N], attention_mask [B, P + N], position_ids [B, N] or None, segment_ids [B, N] or None, cache or None) -> (layers, cache)

called by keyword. ``layers`` are states [B, N, D], the embedding first and the output last (the output alone will do); the cache is handed
back as it came. ``attention_mask`` is int64, 1 for tokens; ``position_ids`` is None for a family that reads none; ``segment_ids`` is given
for packed prompts only. :func:`transformers_step` makes a step of a model of the transformers library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from positionlib.check.families import Family, family
from positionlib.check.findings import Finding, Report, finding
from positionlib.errors import PositionContractError, UnsupportedPositionContract, require, require_choice
from positionlib.rules import integers

Step = Callable[..., tuple[Sequence[Tensor], Any]]
REGIMES = ("chunks", "decode", "left-padding", "right-padding", "padded-decode", "packed", "batch", "future", "order", "shift")
CAUSAL_ONLY = ("chunks", "decode", "padded-decode", "future")


def probe(step: Step, name: str, prompts: Sequence[Sequence[int]], *, pad_token_id: int, regimes: Sequence[str] = REGIMES, tolerance: float = 1e-4) -> Report:
    """Feed ``prompts`` to a model of the family ``name`` in every regime, and name the first layer and token that differ in each.

    Parameters
    ----------
    prompts : at least two, of different lengths, 4 tokens or more each; a prompt's first two ids differ.
    regimes : which to run; those that a bidirectional family does not have are named as not run.
    tolerance : largest difference that counts as none, as a part of the layer's largest value, but no less than four roundings of the
        states' dtype; for the order of tokens, as a part of what another token makes of it.

    Raises
    ------
    PositionContractError
        prompts that can show nothing, an unknown family or regime, a model that gives two answers to one call (dropout). What the
        model raises on a whole prompt is passed on; what it raises in a regime is a finding.
    """
    kind = family(name)
    require(len(regimes) > 0, "regimes", regimes, "at least one", "Leave it out to run all: where nothing runs, nothing is clean.")
    for regime in regimes:
        require_choice("regimes", regime, REGIMES)
    lengths = [len(p) for p in prompts]
    require(len(set(lengths)) > 1 and min(lengths) > 3 and all(p[0] != p[1] for p in prompts), "prompts", lengths,
            "two or more of different lengths, of 4 tokens or more, whose first two ids differ", "Equal prompts need no padding and show no fault of it.")
    require(isinstance(tolerance, float) and 0 < tolerance < 1, "tolerance", tolerance, "a float between 0 and 1", "It is a part of the largest value.")
    with torch.no_grad():
        session = _Session(step, kind, [integers("prompts", torch.tensor(p)) for p in prompts], pad_token_id, tolerance)
        lines, found = [kind.describe()], []
        for regime in regimes:
            line, fault = session.run(regime)
            lines.append(f"{regime}: {line}")
            found += [fault] if fault else []
    return Report(tuple(lines), tuple(found))


def transformers_step(model: Callable[..., Any], name: str) -> Step:
    """The step of a transformers model of the family ``name``, called with input_ids, attention_mask, past_key_values and output_hidden_states.

    Packed prompts go in as a 4-D additive mask, which only causal families without a bias of their own take.
    """
    kind = family(name)

    def step(input_ids, attention_mask, position_ids, segment_ids, cache):
        if segment_ids is not None:
            if kind.coordinate != "position_ids" or not kind.causal:
                raise UnsupportedPositionContract("segment_ids", segment_ids, "no packing", f"{kind.name} takes a mask [B, K] and no other.",
                                                  frozenset({"packing"}))
            seen = (segment_ids[:, :, None] == segment_ids[:, None, :]).tril()
            attention_mask = torch.zeros(seen.shape, dtype=model.dtype).masked_fill(~seen, torch.finfo(model.dtype).min)[:, None]
        positions = {} if position_ids is None else {"position_ids": position_ids}
        cached = {"past_key_values": cache, "use_cache": True} if kind.causal else {}
        out = model(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True, **positions, **cached)
        last = out.logits if hasattr(out, "logits") else out.last_hidden_state
        return [*out.hidden_states, last], getattr(out, "past_key_values", None)

    return step


def said(error: BaseException) -> str:
    """An exception in one line; its own text may fail too."""
    try:
        text = str(error)
    except Exception:
        text = "an exception whose text cannot be made"
    return f"{type(error).__name__}: {' '.join(text.split())[:200]}"


class _Session:
    """One model, its prompts, and what it says of each alone."""

    def __init__(self, step: Step, kind: Family, prompts: list[Tensor], pad: int, tolerance: float) -> None:
        self.step, self.kind, self.prompts, self.pad, self.tolerance = step, kind, prompts, pad, tolerance
        self.alone = [self._whole(p) for p in prompts]
        again = self._whole(prompts[0])
        finite = all(bool(layer.isfinite().all()) for layers in self.alone for layer in layers)
        require(finite, "step", "states that are not finite", "finite states of a whole prompt", "Repair the model first: there is nothing to compare with.")
        require(all(map(torch.equal, self.alone[0], again)), "step", "two answers to one call", "a model that repeats itself",
                "Switch dropout off: model.eval().")

    def run(self, regime: str) -> tuple[str, Finding | None]:
        """What one regime showed, in words and as a finding."""
        if regime in CAUSAL_ONLY and not self.kind.causal:
            return f"not run: {self.kind.name} is bidirectional", None
        if regime == "shift" and self.kind.coordinate != "position_ids":
            return f"not run: {self.kind.name} reads no position_ids", None
        code = f"probe-{regime}"
        try:
            fault = getattr(self, f"_{regime.replace('-', '_')}")()
        except UnsupportedPositionContract as error:
            return f"not run: {error}", None
        except PositionContractError as error:
            fault = (None, "step", f"is refused: {error}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a model raises when it is fed so, an exit too, is what its user will see
            fault = (None, "step", f"raises {said(error)}")
        if fault is None:
            return "agrees", None
        row, field, message = fault
        return message, finding(code, row, field, f"{regime} {message}")

    def _feed(self, ids: Int[Tensor, "B N"], active: Bool[Tensor, "B K"], cache: Any = None, *, shift: int = 0, segments: Tensor | None = None,
              positions: Tensor | None = None) -> tuple[list[Float[Tensor, "B N D"]], Any]:
        reads = self.kind.coordinate == "position_ids"
        if reads and positions is None:
            positions = self.kind.ids(active, active.shape[1] - ids.shape[1]) + shift
        # Copies both ways: a model may write into what it is given, and may keep what it returns in a buffer that the next call fills.
        answer = self.step(input_ids=ids.clone(), attention_mask=active.long(), position_ids=positions.clone() if reads else None,
                           segment_ids=None if segments is None else segments.clone(), cache=cache)
        require(isinstance(answer, (tuple, list)) and len(answer) == 2, "step", type(answer).__name__, "(layers, cache)",
                "Return a tuple of these two; a transformers model goes through transformers_step.")
        layers, cache = answer
        listed = isinstance(layers, (tuple, list)) and len(layers) > 0 and all(isinstance(layer, Tensor) for layer in layers)
        require(listed, "layers", layers, "a list of states", "List the states of all layers, or the output alone: [output].")
        states = all(layer.is_floating_point() and layer.shape[:2] == ids.shape for layer in layers)
        require(states, "layers", [(layer.dtype, tuple(layer.shape)) for layer in layers],
                f"floating-point states [{ids.shape[0]}, {ids.shape[1]}, D]", "Return the state of every token, batch first.")
        self.unit = max(torch.finfo(layer.dtype).eps for layer in layers)
        return [layer.to(torch.float64, copy=True) for layer in layers], cache

    def _whole(self, prompt: Tensor, **how: Any) -> list[Tensor]:
        return [layer[0] for layer in self._feed(prompt[None], torch.ones(1, len(prompt), dtype=torch.bool), **how)[0]]

    def _differs(self, row: int, got: Sequence[Tensor], tokens: slice = slice(None)) -> tuple[int, str, str] | None:
        """The first layer, and in it the first token, whose state is not that of the prompt alone."""
        for number, (layer, whole) in enumerate(zip(got, self.alone[row], strict=True)):
            scale = float(whole.abs().max())
            distance = (layer - whole[tokens]).abs().amax(-1).nan_to_num(math.inf, math.inf)
            # A half precision rounds a batch otherwise than one row: some roundings of the state are no difference.
            wrong = (distance > max(self.tolerance, 4 * self.unit) * scale).nonzero().flatten()
            if len(wrong):
                token = int(wrong[0])
                where = f"in layer {number} of 0..{len(got) - 1}, at token {token + (tokens.start or 0)} of prompt {row}"
                size = f"by {float(distance[token]):.2g}, where values reach {scale:.2g}"
                return row, f"layers.{number}", f"differs from the whole prompt first {where}: {size}"
        return None

    def _in_parts(self, ends: Sequence[int]) -> tuple[int, str, str] | None:
        prompt, parts, cache = self.prompts[0], [], None
        for start, end in zip([0, *ends], ends):
            layers, cache = self._feed(prompt[None, start:end], torch.ones(1, end, dtype=torch.bool), cache)
            parts.append([layer[0] for layer in layers])
        return self._differs(0, [torch.cat(layers) for layers in zip(*parts)])

    def _chunks(self):
        n = len(self.prompts[0])
        return self._in_parts([n // 2, n])

    def _decode(self):
        return self._in_parts(range(1, len(self.prompts[0]) + 1))

    def _padded(self, left: bool, prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
        """(ids, active) of prompts padded on one side."""
        width = max(map(len, prompts))
        ids, active = torch.full((len(prompts), width), self.pad), torch.zeros(len(prompts), width, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            columns = slice(width - len(prompt), width) if left else slice(len(prompt))
            ids[row, columns], active[row, columns] = prompt, True
        return ids, active

    def _first(self, layers: list[Tensor], rows: Sequence[Any], tokens: slice = slice(None)) -> tuple[int, str, str] | None:
        """The first difference of any prompt; ``rows`` index its states in a layer."""
        found = (self._differs(row, [layer[where] for layer in layers], tokens) for row, where in enumerate(rows))
        return next(filter(None, found), None)

    def _padding(self, left: bool):
        ids, active = self._padded(left, self.prompts)
        return self._first(self._feed(ids, active)[0], [(row, tokens) for row, tokens in enumerate(active)])

    def _left_padding(self):
        return self._padding(left=True)

    def _right_padding(self):
        return self._padding(left=False)

    def _padded_decode(self):
        """A left-padded prefill of all but two tokens of each prompt, then these two, one by one."""
        ids, active = self._padded(True, [p[:-2] for p in self.prompts])
        _, cache = self._feed(ids, active)
        for token in (-2, -1):
            step = torch.stack([p[token] for p in self.prompts])[:, None]
            active = torch.cat((active, torch.ones(len(step), 1, dtype=torch.bool)), 1)
            layers, cache = self._feed(step, active, cache)
            for row, prompt in enumerate(self.prompts):
                at = len(prompt) + token
                if fault := self._differs(row, [layer[row] for layer in layers], slice(at, at + 1)):
                    return fault
        return None

    def _packed(self):
        """All prompts in one row, each numbered from its own start."""
        ids = torch.cat(self.prompts)[None]
        segments = torch.cat([torch.full((len(p),), row) for row, p in enumerate(self.prompts)])[None]
        positions = torch.cat([torch.arange(len(p)) for p in self.prompts])[None] + self.kind.first
        layers, _ = self._feed(ids, torch.ones_like(ids, dtype=torch.bool), segments=segments, positions=positions)
        return self._first(layers, [segments == row for row in range(len(self.prompts))])

    def _batch(self):
        """The prompts beside one another, cut to one length; a bidirectional model, which a cut would change, gets the first beside its reverse."""
        n = min(map(len, self.prompts)) if self.kind.causal else len(self.prompts[0])
        ids = torch.stack([p[:n] for p in self.prompts] if self.kind.causal else [self.prompts[0], self.prompts[0].flip(0)])
        layers, _ = self._feed(ids, torch.ones_like(ids, dtype=torch.bool))
        return self._first(layers, range(len(self.prompts) if self.kind.causal else 1), slice(0, n))

    def _future(self):
        """Another last token: the tokens before it must not notice."""
        prompt = self.prompts[0].clone()
        prompt[-1] = prompt[0] if prompt[-1] != prompt[0] else prompt[1]
        return self._differs(0, [layer[:-1] for layer in self._whole(prompt)], slice(0, len(prompt) - 1))

    def _order(self):
        """The first token moved to just before the last one, which must notice behind the first layer of attention already.

        How much is measured by what another token in the first place does, since attention may be a small part of the state; what is
        smaller than a few roundings of the state is nothing.
        """
        prompt, at = self.prompts[0], min(1, len(self.alone[0]) - 1)
        moved, other = torch.cat((prompt[1:-1], prompt[:1], prompt[-1:])), torch.cat((prompt[1:2], prompt[1:]))
        before, got, changed = (layers[at][-1:] for layers in (self.alone[0], self._whole(moved), self._whole(other)))
        size, content = (float(x.abs().max()) for x in (before, changed - before))
        least = max(self.tolerance * min(content, size), min(self.tolerance, 16 * self.unit) * size)
        return self._same(at, got, before, least, "does not matter: with its first token moved to just before the last one, the last one")

    def _shift(self):
        """All positions one later: an absolute family must notice, a relative one must not."""
        moved = self._whole(self.prompts[0], shift=1)
        if not self.kind.absolute:
            return self._differs(0, moved)
        last = self.alone[0][-1]
        return self._same(len(moved) - 1, moved[-1], last, self.tolerance * float(last.abs().max()), "of all positions by 1 is not noticed: every token")

    def _same(self, number: int, got: Tensor, before: Tensor, least: float, fault: str) -> tuple[int, str, str] | None:
        close = float((got - before).abs().max()) <= least
        return (0, f"layers.{number}", f"{fault} of prompt 0 keeps its state in layer {number}") if close else None
