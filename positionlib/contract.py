"""Signatures that are kept: an argument is what its annotation says, or is refused by name before any arithmetic.

    @checked
    def masked_mean(states: Float[Tensor, "*B N D"], active: Bool[Tensor, "*B N"]) -> ...

reads ``states`` as a dense floating-point tensor of at least two axes and ``active`` as booleans of the same length N and on the same
device. Equal letters are equal lengths, and leading axes of one name fit together as batches do. The floating-point tensors of a call
have one dtype; ``Int`` is any integer type but bool, and arrives as int64, since a difference of bytes wraps around. Counts are whole
numbers, factors are finite, lists of numbers may be tuples, arrays or tensors and arrive as lists, and a class means its instances.
What the annotations leave open (a name, a range) is the function's own to check. A compiled graph skips all of it.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from positionlib.errors import PositionContractError, require, whole_number

KINDS = {  # of every jaxtyping annotation in this library; eight-bit floats have no arithmetic
    "Float": ("floating-point", (torch.float16, torch.bfloat16, torch.float32, torch.float64), "Cast it: nothing is converted unasked."),
    "Int": ("integer", (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
            "Keep positions, offsets and ids as integers: a float has already lost some (bfloat16 merges 256 and 257)."),
    "Bool": ("boolean", (torch.bool,), "State the polarity and compare, as in mask == 1."),
}
Target = TypeVar("Target", bound=Callable)


def checked(target: Target) -> Target:
    """A function that looks at its arguments first; of a class, its ``__init__`` does.

    Raises
    ------
    PositionContractError
        an argument that is not what its annotation says; ``field`` is the argument's name.
    """
    if not inspect.isclass(target):
        return _looking(target, target)
    target.__init__ = _looking(target.__init__, target)
    return target


def is_finite_number(value: object) -> bool:
    """A number that a float64 holds: no boolean, no NaN, no infinity, and no integer of 400 digits."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _looking(function: Callable, annotated: Callable) -> Callable:
    """The function after a look at its arguments, by the annotations of itself or of the dataclass that it makes."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @functools.wraps(function)
    def run(*args, **kwargs):
        if torch.compiler.is_compiling() or len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
            return function(*args, **kwargs)  # Python's own words on a call that does not bind
        arguments = dict(zip(names, args)) | kwargs
        _Call(arguments).check(_rules(annotated))
        return function(**arguments)

    return run


@dataclass(frozen=True)
class _Rule:
    """What one annotation asks. ``dtypes`` is empty where it names no tensor, ``fits`` where it names nothing else."""

    optional: bool
    words: str
    remedy: str
    dtypes: frozenset[torch.dtype]
    star: str | None
    axes: tuple[str, ...]
    lists: bool
    fits: tuple[Callable[[Any], bool], ...]


@functools.cache
def _rules(annotated: Callable) -> dict[str, _Rule]:
    """One rule for each annotation, made at the first call: names of other modules are not there before."""
    return {name: _rule(hint) for name, hint in get_type_hints(annotated).items() if name != "return"}


def _rule(hint: Any) -> _Rule:
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    arrays = [choice for choice in choices if hasattr(choice, "dim_str")]
    others = [choice for choice in choices if choice not in arrays and choice is not type(None)]
    kinds = [KINDS[array.dtype.__name__] for array in arrays]  # tensors of one union differ in nothing but their dtype
    axes = arrays[0].dim_str.split() if arrays else []
    words = [f"a{'n' * (kinds[0][0] == 'integer')} {' or '.join(word for word, _, _ in kinds)} tensor"] if arrays else []
    words += [f"a list of {get_args(choice)[0].__name__}" if get_origin(choice) is Sequence else getattr(choice, "__name__", str(choice)) for choice in others]
    star = axes.pop(0) if axes and axes[0].startswith("*") else None
    fits = (_is_device,) if torch.device in others else tuple(_predicate(choice) for choice in others)
    return _Rule(type(None) in choices, " or ".join(words), kinds[0][2] if kinds else "Numbers are finite, and booleans are no numbers.",
                 frozenset(dtype for _, dtypes, _ in kinds for dtype in dtypes), star, tuple(axes),
                 any(get_origin(choice) is Sequence for choice in others), fits)


def _predicate(hint: Any) -> Callable[[Any], bool]:
    if get_origin(hint) is Sequence:
        item = _predicate(get_args(hint)[0])
        return lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(item, value))
    if hint in (int, float):
        return is_finite_number if hint is float else lambda value: whole_number(value) is not None
    if hint is str or not inspect.isclass(hint) or hasattr(hint, "dim_str") or getattr(hint, "_is_protocol", False):
        return lambda value: True
    return lambda value: isinstance(value, hint)


def _is_device(value: Any) -> bool:
    try:
        torch.device(value)
    except (TypeError, RuntimeError, ValueError):
        return False
    return True


class _Call:
    """One call's arguments, and what is already known of its lengths, its batch, its dtype and its device."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.lengths: dict[str, tuple[int, str]] = {}
        self.leading: dict[str, torch.Size] = {}
        self.dtype: tuple[torch.dtype, str] | None = None
        me = arguments.get("self")
        owner = vars(me) if hasattr(me, "__dict__") else {}
        held = me.parameters() if "_parameters" in owner else owner.values()  # a module's plain attributes may stay behind when it moves
        self.place = next(((t.device, "the object's own tensors") for t in held if isinstance(t, Tensor)), None)

    def check(self, rules: dict[str, _Rule]) -> None:
        """Refuse what does not fit; integers become int64, and arrays where a list is meant become lists."""
        for name, value in self.arguments.items():
            rule = rules.get(name)
            if rule is None or value is None and rule.optional:
                continue
            if rule.dtypes and (isinstance(value, Tensor) or not rule.fits):
                self.check_tensor(name, value, rule)
            else:
                if rule.lists and hasattr(value, "tolist") and not (isinstance(value, Tensor) and (value.is_meta or value.layout != torch.strided)):
                    self.arguments[name] = value = value.tolist()
                require(any(fits(value) for fits in rule.fits), name, value, rule.words, rule.remedy)
            device = getattr(value, "device", None)
            if isinstance(device, torch.device):
                known, holder = self.place = self.place or (device, name)
                require(device == known, name, device, f"device {known}, as {holder}", "Move both to one device.")

    def check_tensor(self, name: str, value: Any, rule: _Rule) -> None:
        require(isinstance(value, Tensor) and value.dtype in rule.dtypes and value.layout == torch.strided, name, value, rule.words, rule.remedy)
        extra = value.ndim - len(rule.axes)
        shape = f"shape [{' '.join((rule.star or '', *rule.axes)).strip()}]"
        require(extra == 0 or extra > 0 and rule.star is not None, name, value, shape,
                "An axis of one is not added or dropped: its meaning would be a guess.")
        for axis, length in zip(rule.axes, value.shape[extra:]):
            known, holder = self.lengths.setdefault(axis, (int(axis) if axis.isdigit() else length, name))
            require(known == length, name, value, f"{axis} = {known}" + f", as {holder} has" * (holder != name), f"Give it {shape}.")
        if rule.star:
            before = self.leading.get(rule.star, torch.Size())
            try:
                self.leading[rule.star] = torch.broadcast_shapes(before, value.shape[:extra])
            except RuntimeError:
                raise PositionContractError(name, value, f"leading axes that fit {tuple(before)}", f"Give it {shape}.") from None
        if value.dtype in KINDS["Int"][1]:
            self.arguments[name] = value.long()
        elif value.dtype.is_floating_point:
            dtype, holder = self.dtype = self.dtype or (value.dtype, name)
            require(value.dtype == dtype, name, value, f"{dtype}, as {holder} has", "Cast one of them: which, is yours to say.")
