"""Released weights in, modules with the same numbers out, under a contract that says what the weights mean (0x09E, 0x08A).

    state, config = pl.checkpoints.read_checkpoint(folder)
    weights = pl.convert(state, config, family="t5")
    weights.contract.table_layout, weights.parts            'buckets_heads', ('encoder.attention.0', ...)
    layer = weights["encoder.attention.0"]                  a SelfAttention, made when it is first asked for

A family's :class:`Plan` is made from the configuration alone: the contract, the shape of every tensor, and how each part is filled. Then
the state dict has to be exactly that. What does not reconcile is refused before anything is built, and nothing is loaded "not strictly".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from positionlib.checkpoints.contracts import PositionCheckpointContract
from positionlib.checkpoints.state import Generated, Shapes, State, admit, inside, mapping
from positionlib.errors import require, require_choice, whole_number


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """What a family's configuration says about its weights.

    Attributes
    ----------
    contract : the conventions.
    read : shape of each tensor that the parts are made of.
    elsewhere : shape of each tensor of the model that no position depends on; it has to be there and is left behind.
    parts : how each part is made.
    prefix : what stands before every name of the base model when a head was trained on it.
    heads : names of such heads, of any shape.
    optional : names of ``elsewhere`` that a checkpoint may leave out.
    generated : buffers that the source computes.
    equal : names of one tensor.
    former : ends of names by which old files call the same tensors, and what they are called now.
    zero_rows : names whose row 0 pads and has to be zero.
    """

    contract: PositionCheckpointContract
    read: Shapes
    elsewhere: Shapes
    parts: Mapping[str, Callable[[Conversion], nn.Module]]
    prefix: str = ""
    heads: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    generated: Mapping[str, Generated] = field(default_factory=dict)
    equal: tuple[tuple[str, str], ...] = ()
    zero_rows: tuple[str, ...] = ()
    former: Mapping[str, str] = field(default_factory=dict)


class Conversion(Mapping[str, nn.Module]):
    """The parts by name, each made once, on first use, on the CPU and in the state's dtype. They hold copies.

    Attributes
    ----------
    contract : what the weights mean.
    reconciled : the state dict's names by what became of them: ``read``, ``elsewhere``, ``generated``, ``head``.
    state : the base model's tensors under its own names.
    """

    def __init__(self, plan: Plan, state: State, reconciled: Mapping[str, tuple[str, ...]]) -> None:
        self.contract, self.state, self.reconciled = plan.contract, state, reconciled
        self._makers, self._made = plan.parts, {}

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts."""
        return tuple(self._makers)

    def __getitem__(self, part: str) -> nn.Module:
        require_choice("part", part, self.parts)
        if part not in self._made:
            self._made[part] = self._makers[part](self)
        return self._made[part]

    def __iter__(self):
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def inside(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below a prefix, without it."""
        return inside(self.state, prefix)


def contract(config: Mapping, *, family: str, head_assignment: Sequence[int] | None = None) -> PositionCheckpointContract:
    """What the weights of this configuration mean; see :func:`convert`. No tensor is needed."""
    return _plan(config, family, head_assignment).contract


def convert(state: State, config: Mapping, *, family: str, declared: PositionCheckpointContract | None = None,
            head_assignment: Sequence[int] | None = None) -> Conversion:
    """A family's weights as modules of this library, or a refusal that names everything that does not reconcile.

    Parameters
    ----------
    state : the model's tensors under the source's names, from :func:`positionlib.checkpoints.read_checkpoint` or a module's state_dict().
    config : its configuration as a mapping, as in config.json.
    family : one of ``positionlib.checkpoints.FAMILIES``. It fixes every convention that no shape shows; none is recognised from the names.
    declared : the contract that the target was built for. A field that differs from the source's is refused.
    head_assignment : the head in each slot of the tensors, where joined shards put them in another order; None is 0, 1, 2, … Learned
        state was sharded with its heads and stands in their slots; slopes are computed, and follow their heads.

    Raises
    ------
    PositionContractError
        ``state``: names, shapes, dtypes, generated buffers or tied tensors that do not reconcile, all in one message. ``config.NAME``: a
        setting that is missing or has no part here. ``contract.NAME``: a declared convention that is not the source's.
    """
    plan = _plan(config, family, head_assignment)
    if declared is not None:
        plan.contract.require_declared(declared)
    present = _present(mapping("state", state), plan.former)
    names = {name: present[whole] for name, whole in _without_prefix(present, plan).items()}
    own = {name: state[stored] for name, stored in names.items()}
    admit(f"{plan.contract.family} ({plan.contract.source_revision})", own, plan.read | plan.elsewhere, optional=plan.optional, generated=plan.generated,
          others=plan.heads, equal=plan.equal, zero_rows=plan.zero_rows)
    groups = {"read": plan.read, "elsewhere": plan.elsewhere, "generated": plan.generated, "head": plan.heads}
    return Conversion(plan, own, {group: tuple(names[name] for name in own if name in known) for group, known in groups.items()})


def _plan(config: Mapping, family: str, head_assignment: Sequence[int] | None) -> Plan:
    from positionlib.checkpoints.families import FAMILIES

    make = FAMILIES[require_choice("family", family, tuple(FAMILIES))]
    numbers = hasattr(head_assignment, "tolist") and getattr(head_assignment, "device", None) != torch.device("meta")
    given = head_assignment.tolist() if numbers else head_assignment
    require(given is None or isinstance(given, Sequence) and not isinstance(given, str) and all(whole_number(h) is not None for h in given),
            "head_assignment", head_assignment, "head ids, or None", "Name the head of every slot.")
    return make(mapping("config", config), None if given is None else tuple(int(h) for h in given))


def _present(state: State, former: Mapping[str, str]) -> dict[str, str]:
    """The names by which the source calls its tensors now, and the name of each in the state dict."""
    names = {name: next((name.removesuffix(old) + new for old, new in former.items() if name.endswith(old)), name) for name in state}
    twice = [name for name, now in names.items() if now != name and now in state]
    require(not twice, "state", sorted(twice), "each tensor under one name", "It is there under its present name too: keep one.")
    return {now: name for name, now in names.items()}


def _without_prefix(names: Collection[str], plan: Plan) -> dict[str, str]:
    """The base model's names, and each one's whole name. Either all of them carry the prefix or none does."""
    if not any(plan.prefix and name.startswith(plan.prefix) for name in names):
        return {name: name for name in names}
    bare = [name for name in names if not name.startswith(plan.prefix) and name not in plan.heads]
    short = {name.removeprefix(plan.prefix): name for name in names}
    require(len(short) == len(names) and not bare, "state", sorted(bare), f"every name of the base model below {plan.prefix!r}, or none",
            "Two checkpoints were merged: keep one.")
    return short
