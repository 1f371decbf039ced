"""The release of an enlarged position table: seven states, each entered with its evidence, and one way back.

    DRAFT → TABLE_MIGRATED → (OPTIMIZER_MIGRATED) → CHECKPOINT_RECONCILED → BASE-RANGE_REGRESSION_PASS → EXTENDED-RANGE_EVALUATED → RELEASED

No state is left out but OPTIMIZER_MIGRATED, and that one only by a table that carries no moments: its training is over. A release never
changes; entering a state returns the next one. Until RELEASED the old tuple is served, and rolling back serves it again, whole: table,
configuration, moments and identity are one object, and no cache of another identity is admitted.

Whether the new rows are any good is not decided here: EXTENDED-RANGE_EVALUATED takes an :class:`OutsideReceipt`, which somebody else measured.

Source: the article's section 0x07. Everything is in memory; :mod:`positionlib.checkpoints.store` keeps it in a folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.checkpoints.migration import PositionTable, row_provenance
from positionlib.contract import checked
from positionlib.errors import require, require_count
from positionlib.identity import AdmissionTuple
from positionlib.rules import integers, require_values

STATES = ("DRAFT", "TABLE_MIGRATED", "OPTIMIZER_MIGRATED", "CHECKPOINT_RECONCILED", "BASE-RANGE_REGRESSION_PASS",
          "EXTENDED-RANGE_EVALUATED", "RELEASED")
SKIPPABLE = "OPTIMIZER_MIGRATED"


@dataclass(frozen=True, kw_only=True)
class OutsideReceipt:
    """What somebody outside this release measured of the new positions.

    Attributes
    ----------
    issuer : who measured; not the release or the checkpoint itself.
    identity : the admission tuple that was measured.
    first, last : the positions that were evaluated.
    result : the finding, in the issuer's words. It is kept and not judged.
    """

    issuer: str
    identity: AdmissionTuple
    first: int
    last: int
    result: str

    def __post_init__(self) -> None:
        for name in ("issuer", "result"):
            value = getattr(self, name)
            require(isinstance(value, str) and bool(value.strip()), name, value, "a non-empty text", "An unsigned or empty finding proves nothing.")
        for name in ("first", "last"):
            object.__setattr__(self, name, require_count(name, getattr(self, name), 0))


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class Release:
    """One release on its way from :meth:`draft` to RELEASED. Build it with :meth:`draft` and walk; every refusal names the field to mend.

    Attributes
    ----------
    old : the table that is served now, with everything that belongs to it.
    new : the candidate; after CHECKPOINT_RECONCILED the table as it was read back.
    passed : the states entered so far.
    receipt : what was measured outside, once it was.
    """

    old: PositionTable
    new: PositionTable | None = None
    passed: tuple[str, ...] = ("DRAFT",)
    receipt: OutsideReceipt | None = None

    def __post_init__(self) -> None:
        walk = STATES if SKIPPABLE in self.passed else tuple(state for state in STATES if state != SKIPPABLE)
        require(0 < len(self.passed) <= len(walk) and self.passed == walk[: len(self.passed)], "passed", self.passed,
                f"the first ones of {', '.join(STATES)}", f"Only {SKIPPABLE} may be skipped.")
        for name, entered in (("new", "TABLE_MIGRATED"), ("receipt", "EXTENDED-RANGE_EVALUATED")):
            value, wanted = getattr(self, name), entered in self.passed
            require((value is not None) == wanted, name, value, f"{'one' if wanted else 'none'} in {self.state}", f"It comes with {entered}.")
        if self.new is not None:
            self._enlarges(self.new)

    def _enlarges(self, new: PositionTable) -> None:
        """What an enlarged table keeps, trained further or not."""
        old, rows = self.old, len(self.old.weight)
        require(len(new.weight) > rows and new.weight.shape[1:] == old.weight.shape[1:], "weight", new.weight,
                f"more than {rows} rows of width {old.weight.shape[1]}", "Enlarge it with migrate_position_table.")
        require(new.row_offset == old.row_offset, "row_offset", new.row_offset, f"{old.row_offset}, as before", "Position 0 keeps its row.")
        for name in ("release_id", "checkpoint_id"):
            require(getattr(new.identity, name) != getattr(old.identity, name), f"identity.{name}", getattr(new.identity, name), "a new name",
                    "An enlarged table is another release: old caches must not match it.")
        require(new.identity.position_method == old.identity.position_method, "identity.position_method", new.identity.position_method,
                f"{old.identity.position_method}, as before", "Migrate one thing at a time.")

    @property
    def state(self) -> str:
        """The state reached, by the article's name."""
        return self.passed[-1]

    @property
    def serving(self) -> PositionTable:
        """The table that requests may use: the old one until RELEASED."""
        return self.new if self.state == "RELEASED" else self.old

    @classmethod
    def draft(cls, old: PositionTable) -> Release:
        """A release that has changed nothing yet."""
        return cls(old=old)

    @checked
    def table_migrated(self, new: PositionTable) -> Release:
        """Enter TABLE_MIGRATED with the enlarged table: old rows bit for bit, new rows named as new, both ids new."""
        release, old, rows = self._enter("TABLE_MIGRATED", new=new), self.old, len(self.old.weight)
        require(_same_bits(new.weight[:rows], old.weight), "weight", new.weight, f"rows 0..{rows - 1} bit for bit", "Copy the prefix before any training.")
        require(all(word.startswith("new:") for word in new.provenance[rows:]) and new.provenance[:rows] == old.provenance, "provenance",
                new.provenance[rows:], "'new:' and a policy for every added row, and the old words for the others",
                "A row that was never addressed is not trained, whatever its numbers.")
        return release

    def optimizer_migrated(self) -> Release:
        """Enter OPTIMIZER_MIGRATED: the candidate's moments hold the old ones as a prefix, and zeros for the new rows."""
        candidate, rows = self._candidate("OPTIMIZER_MIGRATED"), len(self.old.weight)
        require(bool(self.old.moments) and set(candidate.moments) == set(self.old.moments), "moments", sorted(candidate.moments),
                f"the old names {sorted(self.old.moments)}", "Migrate every moment, or release for serving without any.")
        for name, moment in candidate.moments.items():
            before = self.old.moments[name]
            kept = _same_bits(moment[:rows], before) and not moment[rows:].any() if moment.ndim else _same_bits(moment, before)
            require(bool(kept), f"moments.{name}", moment, f"the old values in rows 0..{rows - 1}, zeros behind them",
                    "Resume from the migrated optimizer state; fresh moments take other steps.")
        return self._enter("OPTIMIZER_MIGRATED")

    @checked
    def checkpoint_reconciled(self, live: PositionTable, saved: PositionTable, counts: Int[Tensor, "P"] | None = None) -> Release:
        """Enter CHECKPOINT_RECONCILED: what was read back from the checkpoint is what the model holds, in every part.

        ``counts`` are the row counts of training since the migration, as for :func:`row_provenance`; None where none took place.
        """
        candidate = self._candidate("CHECKPOINT_RECONCILED")
        require(live.identity == candidate.identity, "live.identity", live.identity, f"the candidate's {candidate.identity}", "Reconcile the table that was migrated.")
        trained = SKIPPABLE in self.passed
        require(trained or not candidate.moments, "state", self.state, "OPTIMIZER_MIGRATED first, for this table carries moments",
                "Skip it only when training is over: drop the moments.")
        require(trained or counts is None and _same_bits(live.weight, candidate.weight), "live.weight", live.weight, "the migrated weights",
                "A table that trains on goes through OPTIMIZER_MIGRATED.")
        words = candidate.provenance if counts is None else row_provenance(counts, candidate.provenance)
        require(live.provenance == words, "live.provenance", live.provenance, f"{words}", "Call a row trained when an example reached it: row_provenance.")
        for part in ("weight", "position_ids"):
            require(_same_bits(getattr(saved, part), getattr(live, part)), f"saved.{part}", getattr(saved, part), "what the model holds", "Save the checkpoint again.")
        require(saved.identity == live.identity, "saved.identity", saved.identity, f"{live.identity}", "Configuration, ids and weights are saved together.")
        require(saved.shards == live.shards, "saved.shards", saved.shards, f"{live.shards}, as the model is cut", "Save the shards' offsets with the shards.")
        require(saved.row_offset == live.row_offset and saved.provenance == live.provenance, "saved.provenance", saved.provenance,
                f"{live.provenance} from row {live.row_offset}", "Save the provenance with the rows.")
        require(set(saved.moments) == set(live.moments) and all(_same_bits(saved.moments[n], m) for n, m in live.moments.items()), "saved.moments",
                sorted(saved.moments), "the optimizer's state as it is", "Save the optimizer with the model.")
        return self._enter("CHECKPOINT_RECONCILED", new=saved)

    @checked
    def regression_passed(self, positions: Int[Tensor, "N"], before: Float[Tensor, "N D"], after: Float[Tensor, "N D"],
                          tolerance: float) -> Release:
        """Enter BASE-RANGE_REGRESSION_PASS: outputs of both releases on one input, at every old position, differ by at most ``tolerance``."""
        self._candidate("BASE-RANGE_REGRESSION_PASS")
        missing = set(range(self.old.capacity)) - set(integers("positions", positions).tolist())
        require(not missing, "positions", sorted(missing), f"every position 0..{self.old.capacity - 1}", "Test the whole range that was promised before.")
        require(tolerance >= 0, "tolerance", tolerance, "a finite number of at least 0", "State how much may move.")
        for name, value in (("before", before), ("after", after)):
            require_values(name, value)
            require(bool(value.isfinite().all()), name, value, "finite outputs, one row a position", "Run both releases on one input.")
        worst = (after.double() - before.double()).abs().amax(1)
        at = int(worst.argmax())
        require(float(worst[at]) <= tolerance, f"after, position {int(positions[at])}", f"{float(worst[at]):.4g} away", f"at most {tolerance:g}",
                "The extension changed a position that worked: go back, or train with the base range in the mix.")
        return self._enter("BASE-RANGE_REGRESSION_PASS")

    def extended_range_evaluated(self, receipt: OutsideReceipt) -> Release:
        """Enter EXTENDED-RANGE_EVALUATED with a receipt from outside, of this tuple and of all new positions. Its result is not judged."""
        candidate = self._candidate("EXTENDED-RANGE_EVALUATED")
        require(isinstance(receipt, OutsideReceipt), "receipt", receipt, "an OutsideReceipt", "Somebody else must have measured the new positions.")
        own = ("positionlib", candidate.identity.release_id, candidate.identity.checkpoint_id)
        require(receipt.issuer not in own, "receipt.issuer", receipt.issuer, "somebody outside this release", "A release does not vouch for itself.")
        require(receipt.identity == candidate.identity, "receipt.identity", receipt.identity, f"{candidate.identity}", "Measure the tuple that is to be released.")
        wanted = (self.old.capacity, candidate.capacity - 1)
        require((receipt.first, receipt.last) == wanted, "receipt.positions", (receipt.first, receipt.last), f"{wanted}, all new positions", "Evaluate every new row.")
        return self._enter("EXTENDED-RANGE_EVALUATED", receipt=receipt)

    def released(self) -> Release:
        """Enter RELEASED: from now on the new tuple is served."""
        self._candidate("RELEASED")
        return self._enter("RELEASED")

    def rolled_back(self) -> Release:
        """A draft over the old tuple: the very object that was served before, with nothing of the new one. From any state."""
        return Release.draft(self.old)

    def admit(self, cache: AdmissionTuple) -> None:
        """Refuse a live cache that another tuple made, naming every field that differs. Shapes are not looked at."""
        served = self.serving.identity
        require(isinstance(cache, AdmissionTuple), "cache", cache, "an AdmissionTuple", "Keep the tuple that made a cache beside it.")
        other = [name for name in AdmissionTuple._fields if getattr(cache, name) != getattr(served, name)]
        require(not other, "cache." + ", cache.".join(other), tuple(getattr(cache, name) for name in other),
                f"{tuple(getattr(served, name) for name in other)}, as served", "Drop the cache and prefill again: its keys come from another table.")

    def _candidate(self, wanted: str) -> PositionTable:
        """The candidate, when ``wanted`` may be entered from here."""
        at, to = STATES.index(self.state), STATES.index(wanted)
        legal = to == at + 1 or (to == at + 2 and STATES[at + 1] == SKIPPABLE)
        require(legal, "state", self.state, f"{STATES[to - 1]}, to enter {wanted}", f"Only {SKIPPABLE} may be skipped.")
        return self.new

    def _enter(self, wanted: str, **changes) -> Release:
        self._candidate(wanted)
        return replace(self, passed=(*self.passed, wanted), **changes)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal dtype, shape and bytes: 0 is not −0, and a NaN is itself."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*(t.detach().reshape(-1).contiguous().view(torch.uint8) for t in (a, b)))
