"""Resizing a learned position table: weight, moments, configuration, id range and identity move together, or nothing does.

    P'[r] = P[r] bit for bit,  r < P_old          P'[r] by a named policy,  P_old ≤ r < P_new
    m'[r] = m[r]                                  m'[r] = 0                                       every optimizer moment m

A row that exists is not a row that was trained: each carries where it came from. A cache made under the old identity is not reusable
under the new one, whatever its shape, and rolling back means going on with the old object, which a migration leaves as it was.

``policy`` of the new rows. None of them is a length extension by itself: what the rows do has to be measured.

- ``zeros``: no coordinate at all.
- ``normal``: independent draws of a stated ``std`` from a ``generator``, as at initialisation.
- ``mean``: the mean of the old position rows.
- ``repeat``: the old position rows again from the first (Longformer, Beltagy et al. 2020, section 5).
- ``interpolate``: row r reads the old table at r (N_old − 1) / (N_new − 1), as if it were stretched; the old rows stay unstretched, so
  the seam jumps back.
- ``formula``: a ``formula`` of the new positions, such as a sinusoid: it says nothing of the rows that were learned before them.
- ``truncate``: fewer rows; the last ones are dropped. It is the only way to shrink.

A master copy of the weight is migrated like the weight, and the weight is rounded from it. A factored second moment (Adafactor) is
refused: its rows and columns describe no single row. One Adam ``step`` serves all rows, so a new row's empty moments are not corrected
for: late in a run its first update is (1 − β_1) / √(1 − β_2) learning rates long, 3.2 with the usual betas, where a first step is 1.

Sources: the article's section 0x07; the moments' names are torch.optim's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import require, require_choice, require_count
from positionlib.identity import AdmissionTuple
from positionlib.mechanisms.learned import admit_position_ids
from positionlib.rules import require_values

POLICIES = ("zeros", "normal", "mean", "repeat", "interpolate", "formula", "truncate")
PROVENANCE = ("trained", "untrained", *(f"new:{policy}" for policy in POLICIES[:-1]))


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class PositionTable:
    """A position table with everything that must agree with it. It is checked when it is made, so no half of a migration exists.

    Attributes
    ----------
    weight : [P, D], the whole table; a shard is gathered first.
    identity : the article's admission tuple. ``table_rows`` is P; ``config_max_position_embeddings`` is P (BERT, GPT-2, RoBERTa, which
        counts its reserved rows) or P − row_offset (OPT).
    provenance : one word a row: ``trained``, ``untrained`` (it was there, and no training example reached it), or ``new:`` and a policy.
    row_offset : rows before position 0 (OPT: 2, RoBERTa: padding_idx + 1).
    moments : the optimizer's state of the weight, by its names: tensors [P, D], and scalars such as ``step``. Empty without training.
    position_ids : the stored id range [R]; regenerated from the configuration when left out.
    shards : pieces into which a sharded checkpoint cuts the rows of the weight and of its moments; 1 is whole.

    Raises
    ------
    PositionContractError
        any two that do not agree, by the name of the one to mend.
    """

    weight: Float[Tensor, "P D"]
    identity: AdmissionTuple
    provenance: Sequence[str]
    row_offset: int = 0
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    position_ids: Tensor | None = None
    shards: int = 1

    def __post_init__(self) -> None:
        weight, identity = self.weight, self.identity
        require(isinstance(weight, Tensor) and weight.ndim == 2 and weight.dtype.is_floating_point and weight.numel() > 0
                and not weight.is_meta, "weight", weight, "a floating-point table [rows, width] with values", "Pass position_embeddings.weight.")
        rows = len(weight)
        require(rows > require_count("row_offset", self.row_offset, 0), "row_offset", self.row_offset, f"less than {rows} rows", "Leave a row for position 0.")
        require(isinstance(identity, AdmissionTuple), "identity", identity, "an AdmissionTuple", "Take it from identity(call, ...).admission_tuple.")
        require(identity.table_rows == rows, "identity.table_rows", identity.table_rows, f"{rows}, the rows of the weight", "Migrate both together.")
        configured = identity.config_max_position_embeddings
        require(configured in (rows, rows - self.row_offset), "identity.config_max_position_embeddings", configured,
                " or ".join(str(n) for n in sorted({rows, rows - self.row_offset})), "Configure the positions that have a row, no more and no fewer.")
        require(isinstance(self.moments, Mapping), "moments", self.moments, "tensors by the optimizer's names", "Pass optimizer.state[weight].")
        for name, moment in self.moments.items():
            require(isinstance(moment, Tensor) and moment.layout == torch.strided and (moment.ndim == 0 or moment.shape == weight.shape), f"moments.{name}", moment,
                    f"shape {tuple(weight.shape)}, or a scalar", "Migrate the moments with the weight; a factored moment has no rows to keep.")
        object.__setattr__(self, "moments", dict(self.moments))
        object.__setattr__(self, "provenance", tuple(self.provenance))
        require(len(self.provenance) == rows and all(word in PROVENANCE for word in self.provenance), "provenance", self.provenance,
                f"{rows} words of {', '.join(PROVENANCE)}", "Take it from row_provenance(counts).")
        ids = torch.arange(configured) if self.position_ids is None else admit_position_ids(self.position_ids, configured)
        object.__setattr__(self, "position_ids", ids)
        require(require_count("shards", self.shards) <= rows, "shards", self.shards, f"at most {rows}, one a row", "A shard holds whole rows.")

    @property
    def capacity(self) -> int:
        """How many positions have a row: the runtime's admission limit."""
        return len(self.weight) - self.row_offset

    @property
    def shard_rows(self) -> tuple[tuple[int, int], ...]:
        """(first row, row behind the last) of every shard, cut as torch.chunk and DTensor's Shard(0) cut: the last ones may be empty.

        They follow from the rows, so that no migration leaves the offsets of the old table behind.
        """
        rows = len(self.weight)
        size = -(-rows // self.shards)
        return tuple((min(n * size, rows), min((n + 1) * size, rows)) for n in range(self.shards))


@checked
def row_provenance(counts: Int[Tensor, "P"], before: Sequence[str] | None = None) -> tuple[str, ...]:
    """One word a row after training: ``trained`` where a row was addressed, else what it was ``before`` (at first: ``untrained``).

    ``counts`` are those of :func:`positionlib.mechanisms.learned.coverage` or ``row_support``, reserved rows included.
    """
    require_values("counts", counts)
    reached = (counts > 0).tolist()
    before = ("untrained",) * len(reached) if before is None else before
    require(len(before) == len(reached), "before", before, f"{len(reached)} words, one a row", "Count over the rows of this table.")
    return tuple("trained" if hit else word for hit, word in zip(reached, before))


@checked
def migrate_position_table(table: PositionTable, new_rows: int, *, policy: str, release_id: str, checkpoint_id: str, std: float | None = None,
                           generator: torch.Generator | None = None, formula: Callable[[Tensor], Tensor] | None = None) -> PositionTable:
    """The table with ``new_rows`` rows, reserved ones included, under a new identity. The old one is left as it was and shares no memory.

    ``formula`` takes the new positions, int64 [A] counted without reserved rows, and gives their rows [A, D].

    Raises
    ------
    PositionContractError
        an unknown policy, fewer rows without ``policy="truncate"``, a release or checkpoint id that is the old one's, a ``normal`` policy
        without its std and generator, a ``formula`` policy without its formula, any of them with another policy, or a formula that
        gives no finite rows of this width.
    """
    rows, added = len(table.weight), require_count("new_rows", new_rows, table.row_offset + 1) - len(table.weight)
    require_choice("policy", policy, POLICIES)
    require(added != 0, "new_rows", new_rows, f"another number than {rows}", "This table has these rows already.")
    require((added < 0) == (policy == "truncate"), "new_rows", new_rows, f"{'fewer' if policy == 'truncate' else 'more'} than {rows} under policy {policy!r}",
            "Dropping trained rows is asked for by name: policy='truncate'.")
    for name, new in (("release_id", release_id), ("checkpoint_id", checkpoint_id)):
        require(isinstance(new, str) and new not in ("", getattr(table.identity, name)), name, new, f"a name other than {getattr(table.identity, name)!r}",
                "Another table is another release: live caches of the old one must not match.")
    drawn = policy == "normal"
    require(std is not None and std > 0 if drawn else std is None, "std", std,
            "a finite number above 0 for policy 'normal', None for others", "The usual one is the model's initializer_range, 0.02.")
    require(isinstance(generator, torch.Generator) if drawn else generator is None, "generator", generator,
            "a torch.Generator for policy 'normal', None for others", "Seed one: a migration is repeatable.")
    require(callable(formula) if policy == "formula" else formula is None, "formula", formula, "a function of positions for policy 'formula', None for others",
            "Pass lambda positions: sinusoidal_rows(positions, width).")
    old = table.weight.detach()
    if added < 0:
        weight, moments = old[:new_rows].clone(), {name: m[:new_rows].clone() if m.ndim else m.clone() for name, m in table.moments.items()}
    else:
        fresh = _fresh_rows(old[table.row_offset :], added, policy, std, generator, formula)
        weight = torch.cat((old, fresh.to(old)))
        moments = {name: torch.cat((m, m.new_zeros(added, m.shape[1]))) if m.ndim else m.clone() for name, m in table.moments.items()}
    identity = table.identity._replace(release_id=release_id, checkpoint_id=checkpoint_id, table_rows=new_rows,
                                       config_max_position_embeddings=table.identity.config_max_position_embeddings + added)
    return replace(table, weight=weight, moments=moments, identity=identity, position_ids=None,
                   provenance=table.provenance[:new_rows] + (f"new:{policy}",) * max(added, 0))


def _fresh_rows(positions: Float[Tensor, "N D"], added: int, policy: str, std: float | None, generator: torch.Generator | None,
                formula: Callable[[Tensor], Tensor] | None) -> Float[Tensor, "A D"]:
    """New rows, float64 where they are computed: they are rounded once, to the table's dtype."""
    length, width = positions.shape
    if policy == "normal":
        return float(std) * torch.randn(added, width, generator=generator, device=generator.device)
    if policy == "formula":
        rows = formula(torch.arange(length, length + added, device=positions.device))
        dense = isinstance(rows, Tensor) and rows.dtype.is_floating_point and rows.layout == torch.strided and not rows.is_meta
        require(dense and rows.shape == (added, width) and bool(rows.isfinite().all()), "formula", rows, f"finite rows [{added}, {width}] of the positions {length}..{length + added - 1}", "Give one row a position, as wide as the table.")
        return rows.detach()
    if policy == "mean":
        return positions.double().mean(0).expand(added, -1)
    if policy == "repeat":
        return positions[torch.arange(added, device=positions.device) % length]
    if policy == "interpolate":
        # Whole numbers: a float index would miss the last row by its rounding.
        place, span = torch.arange(length, length + added, device=positions.device) * (length - 1), length + added - 1
        low, share = place // span, (place % span).double()[:, None] / span
        return torch.lerp(positions[low].double(), positions[(low + 1).clamp(max=length - 1)].double(), share)
    return positions.new_zeros(added, width)
