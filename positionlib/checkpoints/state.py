"""What every reader of released weights asks of a state dict and its configuration: fields, tensors and their names, all reconciled.

Nothing is guessed and nothing is dropped. A field that is needed has to be there; a tensor is expected and of its shape, or a generated
buffer that holds what its source generates, or a name that the reader lists because no position depends on it. The rest is refused, all
of it in one error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from positionlib.contract import KINDS, is_finite_number
from positionlib.errors import PositionContractError, require, require_count, whole_number
from positionlib.rules import frequency_ladder

State = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
# A plan has an entry a layer and a head, and a rule one a bucket: no model has more, and a damaged number would fill the memory.
SAID = 200  # faults that one refusal lists; those beyond are counted
LIMITS = {"layer": 2**14, "head": 2**16, "bucket": 2**12, "bins": 2**12}


@dataclass(frozen=True)
class Generated:
    """A buffer that a source computes and a checkpoint may hold all the same.

    Attributes
    ----------
    what : the buffer, in words.
    size : how many numbers it has.
    values : makes them, float64 or integers; only once a buffer of that size is there to be compared.
    form : ``range`` admits integers alone, since a cast index has lost some; ``mask`` any dtype; ``waves`` values as near as the
        stored dtype has them.
    """

    what: str
    size: int
    values: Callable[[], Tensor]
    form: str

    def holds(self, stored: Tensor) -> bool:
        """Whether the stored buffer is this one."""
        if stored.numel() != self.size or stored.dtype.is_complex or self.form == "range" and stored.dtype not in KINDS["Int"][1]:
            return False
        given, wanted = stored.reshape(-1).double(), self.values().reshape(-1).double()
        if self.form != "waves":
            return torch.equal(given, wanted)
        near = 4 * torch.finfo(stored.dtype if stored.dtype.is_floating_point else torch.float32).eps
        return bool(torch.allclose(given, wanted, rtol=near, atol=near))


def position_range(rows: int) -> Generated:
    """The range 0..rows−1 that BERT and its relatives slice."""
    return Generated(f"the range 0..{rows - 1} in integers", rows, lambda: torch.arange(rows), "range")


def causal_mask(rows: int) -> Generated:
    """The lower triangle that GPT-2 and GPT-J keep."""
    return Generated(f"the lower triangle of {rows} rows", rows * rows, lambda: torch.ones(rows, rows, dtype=torch.bool).tril(), "mask")


def hidden_score(value: float) -> Generated:
    """The number that stands for a hidden score."""
    return Generated(f"{value:g}", 1, lambda: torch.tensor([value]), "waves")


def inverse_frequencies(width: int, base: float) -> Generated:
    """base^(−2c/width): another base or width is another model."""
    return Generated(f"base {base:g} to the powers −2c/{width}", width // 2, lambda: frequency_ladder(width // 2, width, base), "waves")


def mapping(field: str, given: Mapping) -> Mapping:
    """``given``, when it is a mapping by name."""
    require(isinstance(given, Mapping) and all(isinstance(name, str) for name in given), field, given, "a mapping by name", "Pass a dict.")
    return given


def fields(config: Mapping, *names: str) -> tuple:
    """The configuration's values of these names, every one of which has to be there."""
    missing = [name for name in names if name not in mapping("config", config)]
    require(not missing, "config", sorted(missing), "a mapping with these fields too", "Pass the whole configuration of the checkpoint: no value is guessed.")
    return tuple(config[name] for name in names)


def counts(config: Mapping, *names: str) -> tuple[int, ...]:
    """As :func:`fields`, of whole numbers from 1."""
    found = tuple(require_count(f"config.{name}", value) for name, value in zip(names, fields(config, *names)))
    for name, value in zip(names, found):
        limit = next((limit for word, limit in LIMITS.items() if word in name), None)
        require(limit is None or value <= limit, f"config.{name}", value, f"at most {limit}", "Take it from the checkpoint's own configuration.")
    return found


def switch(config: Mapping, name: str, absent: bool | None = None) -> bool:
    """A field that is True or False. ``absent`` is the source's default, where the tensors would show another setting; else it has to be there."""
    (value,) = fields(config, name) if absent is None else (mapping("config", config).get(name, absent),)
    require(isinstance(value, bool), f"config.{name}", value, "True or False", "Take it from the checkpoint's own configuration.")
    return value


def only(config: Mapping, **values: Any) -> None:
    """Refuse a configuration that says anything else of these fields: there is no part for it here. Absent is the source's default."""
    for name, value in values.items():
        stated = mapping("config", config).get(name, value)
        require(type(stated) is type(value) and stated == value, f"config.{name}", stated, f"{value!r}", "Another setting computes something else, "
                "which this conversion has no part for.")


def aliased(config: Mapping, **names: str) -> dict[str, Any]:
    """The configuration with the source's own names in the place of the other ones that it reads; both may be there if they agree."""
    known = dict(mapping("config", config))
    for name, other in names.items():
        if other in known:
            value = known.pop(other)
            stated = known.setdefault(name, value)
            require(type(stated) is type(value) and stated == value, f"config.{other}", value, f"{stated!r}, as {name}", "They are two names of one setting.")
    return known


def widths(config: Mapping, heads: str, width: str = "hidden_size") -> tuple[int, int]:
    """(width of a state, number of heads), of which the second divides the first."""
    whole, count = counts(config, width, heads)
    require(whole % count == 0, f"config.{width}", whole, f"a multiple of {count} heads", "Pass the config that the layer was made with.")
    return whole, count


def epsilon(config: Mapping, name: str = "layer_norm_eps") -> float:
    """ε of the source's LayerNorms."""
    (eps,) = fields(config, name)
    require(is_finite_number(eps) and eps >= 0, f"config.{name}", eps, "a finite number of at least 0", "Take it from config.json.")
    return float(eps)


def padding_id(config: Mapping, words: int) -> int | None:
    """The word that pads, or None."""
    (word,) = fields(config, "pad_token_id")
    whole = whole_number(word)
    require(word is None or whole is not None and 0 <= whole < words, "config.pad_token_id", word, f"a word of 0..{words - 1}, or None",
            "Take it from config.json.")
    return whole


def linears(width: int, *parts: str, inner: int | None = None, bias: bool = True) -> Shapes:
    """Shapes of square projections, or of [inner, width] ones, each with its bias."""
    out = width if inner is None else inner
    return {f"{part}.{kind}": shape for part in parts for kind, shape in (("weight", (out, width)), ("bias", (out,)))[: 1 + bias]}


def norm(part: str, width: int) -> Shapes:
    """Shapes of a LayerNorm."""
    return {f"{part}.weight": (width,), f"{part}.bias": (width,)}


def layered(prefix: str, layers: int, block: Shapes) -> Shapes:
    """The shapes of one block, once a layer; {} in the prefix is the layer's number."""
    return {prefix.format(layer) + name: shape for layer in range(layers) for name, shape in block.items()}


def inside(state: State, prefix: str) -> dict[str, Tensor]:
    """The tensors below a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def admit(source: str, state: State, shapes: Shapes, *, optional: Collection[str] = (), generated: Mapping[str, Generated] | None = None,
          others: Collection[str] = (), equal: Collection[tuple[str, str]] = (), zero_rows: Collection[str] = ()) -> None:
    """Refuse a state dict that is not exactly these tensors, and say what is wrong with it at once, the first ``SAID`` faults by name.

    ``optional`` names of ``shapes`` may be absent; ``generated`` buffers may be there if they hold what is generated; ``others`` are
    names of any shape that no position depends on; ``equal`` pairs are one tensor under two names, where both are there; the first row
    of ``zero_rows`` is padding.
    """
    given = {name: t for name, t in mapping("state", state).items() if isinstance(t, Tensor) and t.layout == torch.strided and not t.is_meta}
    buffers = generated or {}
    said = [f"{name} is missing" for name in shapes if name not in state and name not in optional]
    said += [f"{name} is unexpected" for name in state if not (name in shapes or name in buffers or name in others)]
    said += [f"{name} is no dense tensor with values" for name in (*shapes, *buffers) if name in state and name not in given]
    said += [f"{name} is {list(given[name].shape)}, not {list(shape)}" for name, shape in shapes.items()
             if name in given and tuple(given[name].shape) != tuple(shape)]
    said += [f"{name} is not {buffer.what}" for name, buffer in buffers.items() if name in given and not buffer.holds(given[name])]
    said += [f"{a} and {b} differ, which are one tensor" for a, b in equal if a in given and b in given and not torch.equal(given[a], given[b])]
    said += [f"{name} has numbers in its row of padding" for name in zero_rows if name in given and len(given[name]) and bool(given[name][0].any())]
    dtypes = {str(given[name].dtype): given[name].dtype in KINDS["Float"][1] for name in shapes if name in given}
    if len(dtypes) > 1 or not all(dtypes.values()):
        said.append(f"the dtypes are {', '.join(sorted(dtypes))}, not one floating-point dtype")
    if said:
        # The configuration of a deeper model would fill the screen, and the memory with it.
        told, more = said[:SAID], f"; and {len(said) - SAID} more" if len(said) > SAID else ""
        raise PositionContractError("state", sorted(state)[:SAID], f"exactly the tensors of {source}", "; ".join(told) + more + ". Cut the layer's own tensors "
                                    "out of the checkpoint, under the source's names, and pass the config they were made with.")


def filled(module: nn.Module, state: State, names: dict[str, str]) -> nn.Module:
    """The module with the state's numbers, each under our name: ``names`` gives ours for theirs, in front of .weight and .bias."""
    own = {}
    for name, tensor in state.items():
        part, dot, kind = name.rpartition(".")
        own[f"{names.get(part, part)}{dot}{kind}" if dot else names.get(name, name)] = tensor
    dtype = next(iter(state.values())).dtype
    # What the whole stack owns (a T5 bias, a DeBERTa table) stands in the module already and keeps its numbers.
    shared = {name: tensor for name, tensor in module.state_dict().items() if name.startswith("mechanism.") and name not in own}
    for name, tensor in shared.items():
        require(tensor.dtype == dtype, name, tensor, f"dtype {dtype}, as the layer's", "A stack has one dtype: convert it before its layers.")
    module.to(dtype).load_state_dict({**shared, **own})
    return module
