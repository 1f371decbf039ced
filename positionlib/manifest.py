"""The parts of the positional-call manifest ``numinens.position-call.v1`` (article, section 0x02A), as frozen models.

Field names are the article's. Every model refuses unknown fields, converts nothing (``True`` is no position, ``3.0`` is no row), holds
tuples and never lists, and raises :class:`~positionlib.errors.PositionContractError` with the dotted path of the field at fault.

Where the article leaves a field open, this is what it means here:

- ``row_indices`` count the entries of the ``row_space`` lists; ``cache_slots`` are values of ``storage_rows``.
- A batch is flat: row b, column s of a [B, S] batch is entry b*S + s, and ``segment_isolation`` says how sequences are kept apart:
  ``batch_rows`` (each on a batch row of its own), ``sequence_ids`` (they share one row, equal ids may interact) or ``none``.
- ``committed_length`` is the coordinate of the next token, one number, or one a sequence in order of first appearance;
  ``past_seen_tokens`` counts the storage rows a sequence has in the cache, padding included. Left padding makes the two differ.
- ``mask_id`` ``full`` and ``causal`` are rules that the library compiles; any other id names a mask that the caller supplies.
- ``family`` has the article's five values. A rotary transform belongs to the next topic and is no family of this schema.
- ``clipping_or_bucket_rule`` is a :class:`Rule`, because a name alone does not identify a bucket rule.
"""

from __future__ import annotations

import difflib
from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, Strict, StringConstraints
from pydantic import ValidationError, WithJsonSchema, model_validator

from positionlib.errors import PositionContractError, require
from positionlib.geometry import LARGEST_POSITION

SCHEMA = "numinens.position-call.v1"
_NO_COPY = "Manifests are immutable: use call.replace({'dotted.field': value}), which validates the result."
_KINDS = {
    "int_type": ("an integer (no boolean, no float)", "Write whole numbers; positions and rows are counts."),
    "int_from_float": ("an integer (no boolean, no float)", "Write whole numbers; positions and rows are counts."),
    "bool_type": ("true or false", "Write booleans, and state the polarity where a mask is meant."),
    "string_type": ("text", "Quote it in YAML: bare yes, no, on, off and numbers are not text there."),
    "missing": ("a value", "Add the field; the schema has no hidden default for it."),
}


class Contract(BaseModel):
    """A frozen model whose refusals are :class:`PositionContractError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise _refusal(error, type(self)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise PositionContractError(name, value, "no assignment", _NO_COPY)

    def __delattr__(self, name: str) -> None:
        raise PositionContractError(name, getattr(self, name, None), "no deletion", _NO_COPY)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Read a mapping; pydantic's errors become the library's, which name the field."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise _refusal(error, cls) from None

    def model_copy(self, *, update: dict[str, Any] | None = None, deep: bool = False) -> Self:
        """A validated copy; pydantic's own would accept any ``update`` unseen."""
        fields = {info.alias or name: getattr(self, name) for name, info in type(self).model_fields.items()}
        return type(self)(**{**fields, **(update or {})})

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
        """Refused: it would skip validation."""
        raise PositionContractError(cls.__name__, values, "a validated construction", f"Call {cls.__name__}(...) itself.")


def _refusal(error: ValidationError, model: type[Contract]) -> PositionContractError:
    """The first fault of a validation as the library's own error, its field as a dotted path."""
    faults = error.errors(include_url=False)
    # A misspelt field shows up twice, as missing and as unknown; the second names the cure.
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    path = [str(part) for part in first["loc"]]
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, PositionContractError):
        return type(inner)(".".join([*path, *filter(None, [inner.field])]), inner.value, inner.expected, inner.remedy)
    expected, remedy = _KINDS.get(first["type"], (first["msg"][:1].lower() + first["msg"][1:], "Correct the field."))
    if first["type"] == "extra_forbidden":
        names = [info.alias or name for name, info in model.model_fields.items()]
        close = difflib.get_close_matches(path[-1], names, n=1)
        expected, remedy = "no such field", f"Did you mean {close[0]}?" if close else f"The fields are {', '.join(names)}."
    elif first["type"] == "literal_error":
        expected, remedy = f"one of {first['ctx']['expected']}", "Name one of the schema's values."
    value = "(missing)" if first["type"] == "missing" else first["input"]
    return PositionContractError(".".join(path) or model.__name__, value, expected, remedy)


def _sequence(value: Any) -> tuple:
    require(isinstance(value, (list, tuple)), "", value, "a list", "Convert arrays and tensors with .tolist().")
    return tuple(value)


def _identifier(value: str) -> str:
    require(bool(value.strip()) and value.isprintable(), "", value, "a non-empty printable id", "Write null where there is none, or an explicit name.")
    return value


def _owner(value: Any) -> int | str:
    good = (type(value) is int and 0 <= value <= LARGEST_POSITION) or (type(value) is str and 0 < len(value) <= 256 and value.isprintable())
    require(good, "", value, "a non-negative integer or a non-empty printable text", "Name the sequence that owns the row.")
    return value


def _count_or_counts(value: Any) -> int | tuple[int, ...]:
    many = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    good = bool(many) and all(type(n) is int and 0 <= n <= LARGEST_POSITION for n in many)
    require(good, "", value, "a non-negative integer, or one a sequence", "Count tokens; 0 means that nothing is cached.")
    return many if isinstance(value, (list, tuple)) else value


_COUNT_SCHEMA = {"type": "integer", "minimum": 0}
Count = Annotated[int, Strict(), Field(ge=0, le=LARGEST_POSITION)]
Flag = Annotated[bool, Strict()]
Id = Annotated[str, Strict(), StringConstraints(max_length=256), AfterValidator(_identifier)]
# Any: the validator decides by itself, and pydantic's serialiser for a union would warn about the tuples that it returns.
Owner = Annotated[Any, PlainValidator(_owner), WithJsonSchema({"anyOf": [_COUNT_SCHEMA, {"type": "string", "minLength": 1}]})]
Counts = Annotated[tuple[Count, ...], BeforeValidator(_sequence)]
CountOrCounts = Annotated[Any, PlainValidator(_count_or_counts), WithJsonSchema(
    {"anyOf": [_COUNT_SCHEMA, {"type": "array", "items": _COUNT_SCHEMA, "minItems": 1}]})]
FloatType = Literal["float64", "float32", "bfloat16", "float16"]


def _same_length(field: str, values: tuple, length: int, than: str) -> None:
    require(len(values) == length, field, f"{len(values)} entries", f"{length} entries, as {than}", "Give one entry a row, padding included.")


def _distinct(field: str, values: tuple) -> None:
    twice = [value for value, times in Counter(values).items() if times > 1]
    require(not twice, field, twice[:1], "each row once", "A row read twice would count twice in the softmax.")


class Request(Contract):
    """Whose call this is, and which weights answer it."""

    request_id: Id
    release_id: Id
    checkpoint_id: Id
    adapter_id: Id | None


class RowSpace(Contract):
    """Every row that a side of the call refers to, in storage order. Padding is a state of a row, not a missing row."""

    storage_rows: Counts
    sequence_id_per_row: Annotated[tuple[Owner, ...], BeforeValidator(_sequence)]
    stream_per_row: Annotated[tuple[Literal["encoder", "decoder", "shared"], ...], BeforeValidator(_sequence)]
    logical_position_per_row: Counts
    active_token_per_row: Annotated[tuple[Flag, ...], BeforeValidator(_sequence)]

    @model_validator(mode="after")
    def _rows_agree(self) -> Self:
        require(len(self.storage_rows) > 0, "storage_rows", (), "at least one row", "A call without rows has no geometry.")
        for name in ("sequence_id_per_row", "stream_per_row", "logical_position_per_row", "active_token_per_row"):
            _same_length(name, getattr(self, name), len(self.storage_rows), "storage_rows has")
        _distinct("storage_rows", self.storage_rows)
        return self


class QuerySpace(Contract):
    """The rows that ask, and their coordinates."""

    row_indices: Counts
    logical_positions: Counts
    coordinate_frame: Id

    @model_validator(mode="after")
    def _sides_agree(self) -> Self:
        require(len(self.row_indices) > 0, "row_indices", (), "at least one query", "A call without queries has no geometry.")
        _same_length("logical_positions", self.logical_positions, len(self.row_indices), "row_indices has")
        _distinct("row_indices", self.row_indices)
        return self


class KeySpace(Contract):
    """The rows, or the cache slots, that are read, and their coordinates. Exactly one of the two lists is given."""

    row_indices: Counts | None = None
    cache_slots: Counts | None = None
    logical_positions: Counts
    coordinate_frame: Id

    @model_validator(mode="after")
    def _sides_agree(self) -> Self:
        given = [n for n in ("row_indices", "cache_slots") if getattr(self, n) is not None]
        require(len(given) == 1, "row_indices", given or None, "either row_indices or cache_slots", "Give one of the two lists, null for the other.")
        rows = getattr(self, given[0])
        require(len(rows) > 0, given[0], (), "at least one key", "A call without keys has no geometry.")
        _same_length("logical_positions", self.logical_positions, len(rows), f"{given[0]} has")
        _distinct(given[0], rows)
        return self


class Rule(Contract):
    """How offsets become classes: the rule's name and its numbers, null where the rule has none."""

    name: Id
    num_buckets: Annotated[int, Strict(), Field(ge=1)] | None = None
    max_distance: Annotated[int, Strict(), Field(ge=1)] | None = None
    bidirectional: Flag | None = None


class PositionMethod(Contract):
    """What the coordinates are used for."""

    family: Literal["fixed_abs", "learned_abs", "relative", "bias", "none"]
    state_object: Id | None
    relation_sign: Literal["key_minus_query", "query_minus_key", "none"]
    clipping_or_bucket_rule: Rule | None
    score_bias_shape: Counts | None

    @model_validator(mode="after")
    def _family_decides(self) -> Self:
        pairwise = self.family in ("relative", "bias")
        require(pairwise == (self.relation_sign != "none"), "relation_sign", self.relation_sign,
                "key_minus_query or query_minus_key" if pairwise else "none",
                f"Family {self.family} {'needs a declared sign' if pairwise else 'has no pairwise offset'}.")
        require(pairwise or self.clipping_or_bucket_rule is None, "clipping_or_bucket_rule", self.clipping_or_bucket_rule, "null",
                f"Family {self.family} classifies no offsets.")
        require((self.family == "bias") == (self.score_bias_shape is not None), "score_bias_shape", self.score_bias_shape,
                "[1 or B, heads, Q, K]" if self.family == "bias" else "null", "State the shape of a score bias, and of nothing else.")
        shape = self.score_bias_shape
        require(shape is None or (len(shape) == 4 and min(shape) > 0), "score_bias_shape", shape, "four sizes of at least 1, [1 or B, heads, Q, K]",
                "Write every axis: a missing or empty axis would broadcast silently.")
        return self


class Visibility(Contract):
    """Which keys are legal. Polarity has no default: the same bits mean the opposite under the other one."""

    mask_id: Id
    polarity: Literal["true_is_visible", "true_is_masked"]
    segment_isolation: Literal["batch_rows", "sequence_ids", "none"]


class Cache(Contract):
    """The cache that the call continues, as it stands before the append."""

    cache_id: Id | None
    committed_length: CountOrCounts
    past_seen_tokens: CountOrCounts
    coordinate_frame: Id
    checkpoint_id: Id
    release_id: Id

    @model_validator(mode="after")
    def _nothing_without_cache(self) -> Self:
        for name in ("committed_length", "past_seen_tokens"):
            count = getattr(self, name)
            require(self.cache_id is not None or count == 0, name, count, "0 where cache_id is null", "Name the cache that holds these tokens.")
        return self


class NumericalState(Contract):
    """The dtypes of one call."""

    index_dtype: Literal["int64", "int32", "int16", "int8", "uint8"]
    parameter_dtype: FloatType
    compute_dtype: FloatType
    score_accumulation_dtype: FloatType


class Runtime(Contract):
    """What runs the call."""

    backend_id: Id
    implementation_revision: Id
