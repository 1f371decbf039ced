"""What a positional checkpoint means, beyond its shapes: the contract that a conversion states and a target has to agree with.

    contract(config, family="t5").table_layout        'buckets_heads', which no shape shows when there are as many heads as buckets

The first eleven fields are the article's, with its names (0x09E). Those after ``layer_sharing`` are what 0x08A asks to keep, and the
conventions that released code adds: where a bias stands to the scale, which channels are a pair, which buffers are generated.

A contract differs from another in any field, and so in its ``scheme_id`` and in the ``admission`` tuple: a cache that was filled under
one is never read under the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from positionlib.errors import require, require_choice, require_count, whole_number
from positionlib.identity import AdmissionTuple
from positionlib.mechanisms.learned import POLICIES

SCHEMA = "position-checkpoint/1"
CHOICES = {
    # rows_width: one row a position, as wide as the state. The others name their axes.
    "table_layout": ("none", "rows_width", "buckets_heads", "heads_buckets", "distances_width", "distances_d_head", "distances_heads"),
    "relative_sign": ("none", "key_minus_query", "query_minus_key"),
    # input: once, before the first layer. first_layer: the first owns it and the others reuse it. stack: an object beside the layers.
    "layer_sharing": ("none", "input", "first_layer", "stack", "each_layer"),
    "padding_convention": ("none", *POLICIES),
    "source_target_tables": ("one_stack", "separate", "shared"),
    "added": ("nowhere", "to_words", "before_norm", "after_projection", "to_patches", "to_nodes", "in_mask_decoder"),
    "bias_and_scale": ("no_bias", "outside", "inside"),
    "pairing": ("none", "interleaved", "half_split"),
}
COUNTS = {"head_count": 1, "score_scale_factor": 0, "position_id_offset": 0}
TEXTS = ("family", "source_revision")
OPTIONAL_TEXTS = ("clipping_or_bucket_rule", "cls_rule", "formula")


@dataclass(frozen=True, kw_only=True)
class PositionCheckpointContract:
    """The source's conventions, each by name. Every field is checked; none has a default that a shape could not tell.

    Attributes
    ----------
    family, source_revision : whose weights, and the repository, revision and file that define what they mean.
    table_layout : axes of the learned table, in order; ``none`` where nothing is learned.
    table_rows : rows of that table, special rows included; a bucket or a distance is a row too. None without a table.
    head_count : heads of the whole model.
    head_assignment : the head that stands in slot 0, 1, …: all heads once, in another order where tensor-parallel shards were joined so.
    relative_sign : which difference the rule reads.
    clipping_or_bucket_rule : the rule with its numbers, or None.
    score_scale_factor : f of 1/√(f · d_head); 0 where the source does not divide (T5).
    cls_rule : what is special about CLS or the graph token, or None.
    layer_sharing : who owns the learned state.
    formula : what is computed and not stored, or None.
    max_positions : positions that have a coordinate, or None where there is no end.
    position_id_offset : the row of position 0.
    padding_convention : how the source numbers a padded row, a policy of :func:`positionlib.mechanisms.learned.position_ids_from_mask`.
    source_target_tables : whether a source and a target stack have tables of their own.
    added : where absolute rows enter.
    bias_and_scale : a score bias is added outside the scale, or inside and so divided with the content.
    pairing : the channel pairs of a rotation.
    generated_buffers : names that a state dict may hold though the source computes them.
    """

    family: str
    source_revision: str
    table_layout: str
    table_rows: int | None
    head_count: int
    head_assignment: tuple[int, ...]
    relative_sign: str
    clipping_or_bucket_rule: str | None
    score_scale_factor: int
    cls_rule: str | None
    layer_sharing: str
    formula: str | None
    max_positions: int | None
    position_id_offset: int
    padding_convention: str
    source_target_tables: str
    added: str
    bias_and_scale: str
    pairing: str
    generated_buffers: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in TEXTS + OPTIONAL_TEXTS:
            value = getattr(self, name)
            require(value is None and name in OPTIONAL_TEXTS or isinstance(value, str) and bool(value.strip()), name, value, "a text", "Name it.")
        for name, choices in CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        for name, least in COUNTS.items():
            require_count(name, getattr(self, name), least)
        for name in ("table_rows", "max_positions"):
            require(getattr(self, name) is None or require_count(name, getattr(self, name)) > 0, name, getattr(self, name), "a count or None", "Count rows.")
        require((self.table_rows is None) == (self.table_layout == "none"), "table_rows", self.table_rows, "rows exactly where there is a table",
                "A formula has no rows.")
        heads = self.head_assignment
        require(isinstance(heads, tuple) and all(whole_number(h) is not None for h in heads) and sorted(heads) == list(range(self.head_count)),
                "head_assignment", heads, f"each of the heads 0..{self.head_count - 1} once", "Join the shards of all ranks first, and name the order they "
                "were joined in.")
        buffers = self.generated_buffers
        require(isinstance(buffers, tuple) and all(isinstance(name, str) for name in buffers), "generated_buffers", buffers, "a tuple of names", "Name them.")

    @property
    def scheme_id(self) -> str:
        """A digest of every field: the :attr:`positionlib.AttentionGeometry.scheme_id` of calls on these weights."""
        return f"{self.family}:{hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()[:16]}"

    def admission(self, release_id: str, checkpoint_id: str, *, runtime_backend: str, adapter_id: str | None = None) -> AdmissionTuple:
        """The tuple that a runtime admits these weights under (0x07); a live cache belongs to one tuple alone."""
        return AdmissionTuple(release_id, checkpoint_id, (self.family, self.scheme_id), self.table_rows, self.max_positions, self.padding_convention,
                              adapter_id, runtime_backend)

    def admit_cache(self, scheme_id: str) -> None:
        """Refuse a cache, or anything else that was derived, of another contract."""
        require(scheme_id == self.scheme_id, "scheme_id", scheme_id, f"{self.scheme_id}, these weights'",
                "Drop what was computed under another contract: its shapes may be the same.")

    def require_declared(self, declared: PositionCheckpointContract) -> None:
        """Refuse a target that was built for another contract, naming every field that differs.

        Raises
        ------
        PositionContractError
            ``field`` lists them as ``contract.relative_sign, contract.cls_rule``.
        """
        require(isinstance(declared, PositionCheckpointContract), "declared", declared, "a PositionCheckpointContract", "Build it, or read it by from_dict().")
        other = [f.name for f in fields(self) if getattr(self, f.name) != getattr(declared, f.name)]
        require(not other, ", ".join(f"contract.{name}" for name in other), tuple(getattr(declared, name) for name in other),
                f"{tuple(getattr(self, name) for name in other)}, as the source has it", "Build the target for this source, or convert with its own "
                "family: no shape would have shown the difference.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values and the schema's name, for a JSON file beside the weights."""
        return {"schema": SCHEMA, **{name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> PositionCheckpointContract:
        """The contract of a document that :meth:`to_dict` made.

        Raises
        ------
        PositionContractError
            no mapping, an unknown schema, a field that is missing or unknown, or a value that the contract refuses.
        """
        require(isinstance(document, Mapping), "document", document, "a mapping", "Read the JSON object first.")
        require(document.get("schema") == SCHEMA, "schema", document.get("schema"), repr(SCHEMA), "Another schema's fields may mean something else.")
        names = {f.name for f in fields(cls)}
        for kind, wrong in (("missing", names - set(document)), ("unknown", set(document) - names - {"schema"})):
            require(not wrong, "document", sorted(map(str, wrong)), f"no {kind} fields", "Write it by to_dict(): no field is guessed or dropped.")
        return cls(**{name: tuple(value) if isinstance(value := document[name], list) else value for name in names})
