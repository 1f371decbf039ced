"""Manifest documents: the article's field names, hostile YAML and JSON, and the JSON Schema."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from positionlib import manifest_io
from positionlib.call import PositionCall
from positionlib.errors import PositionContractError
from positionlib.manifest_io import JSON_LIMIT, YAML_LIMIT

ARTICLE = {
    "schema": None, "article_owner": None, "public_slug": None,
    "request": ["request_id", "release_id", "checkpoint_id", "adapter_id"],
    "row_space": ["storage_rows", "sequence_id_per_row", "stream_per_row", "logical_position_per_row", "active_token_per_row"],
    "query_space": ["row_indices", "logical_positions", "coordinate_frame"],
    "key_space": ["row_indices", "cache_slots", "logical_positions", "coordinate_frame"],
    "position_method": ["family", "state_object", "relation_sign", "clipping_or_bucket_rule", "score_bias_shape"],
    "visibility": ["mask_id", "polarity", "segment_isolation"],
    "cache": ["cache_id", "committed_length", "past_seen_tokens", "coordinate_frame", "checkpoint_id", "release_id"],
    "numerical_state": ["index_dtype", "parameter_dtype", "compute_dtype", "score_accumulation_dtype"],
    "runtime": ["backend_id", "implementation_revision"],
}


def test_the_document_has_the_articles_fields_in_the_articles_order():
    document = json.loads(PositionCall.decode(2).to_json())
    assert list(document) == ["positional_call"]
    body = document["positional_call"]
    assert list(body) == list(ARTICLE)
    assert {part: list(body[part]) for part, fields in ARTICLE.items() if fields} == {part: fields for part, fields in ARTICLE.items() if fields}
    assert body["schema"] == "numinens.position-call.v1" and body["article_owner"] == "M3.3"
    assert body["public_slug"] == "m3-3-position-encoding-and-context-geometry"


@pytest.mark.parametrize("path", [f"{part}.{field}" for part, fields in ARTICLE.items() for field in fields or []
                                  if f"{part}.{field}" not in ("key_space.row_indices", "key_space.cache_slots")] + ["schema", "request"])
def test_every_field_is_required_and_named_when_missing(path):
    document = PositionCall.decode(2).to_dict()
    *parents, leaf = path.split(".")
    del (document[parents[0]] if parents else document)[leaf]
    with pytest.raises(PositionContractError) as caught:
        PositionCall.from_json(json.dumps({"positional_call": document}))
    assert caught.value.field == path


LAUGHS = "a: &a [x, x]\n" + "\n".join(f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}]" for p, c in zip("abcdefgh", "bcdefghi")) + "\n"


@pytest.mark.parametrize(("text", "says"), [
    (LAUGHS, "aliases"), ("positional_call: &a\n  request: *a\n", "aliases"), ("positional_call:\n  <<: {schema: v}\n", "no merge keys"),
    ("positional_call: {schema: a, schema: b}\n", "each field once"), ("positional_call: {}\npositional_call: {}\n", "each field once"),
    ("positional_call: {1: a}\n", "field names as text"), ("positional_call: {[1]: a}\n", "plain YAML"), ("positional_call: {? {a: b} : c}\n", "plain YAML"),
    ("positional_call: !!python/object/apply:os.system ['true']\n", "no YAML tags"), ("positional_call: !!set {a, b}\n", "no YAML tags"),
    ("positional_call: [\n", "plain YAML"), ("[" * 20_000, "levels of nesting"), ("a: " * 3 + "b", "plain YAML"), ("", "one mapping"), ("- 1\n", "one mapping"),
    ("positional_call: 1\n", "one mapping"), ("positional_call: {}\nother: {}\n", "one mapping"), ("a: 1\n---\nb: 2\n", "plain YAML"),
    ("positional_call: {schema: 9999-99-99}\n", "plain YAML"), ("\x00", "plain YAML"), (b"\xff\xfe\xff", "UTF-8"), (None, "text or bytes"),
    ("positional_call: {schema: numinens.position-call.v2}\n", "numinens.position-call.v1"), ("positional_call: {schema: [v1]}\n", "numinens.position-call.v1"),
    (f"positional_call: {{schema: {'9' * 5000}}}\n", "plain YAML"),
])
def test_hostile_yaml_is_refused_quickly(text, says):
    start = time.perf_counter()
    with pytest.raises(PositionContractError) as caught:
        PositionCall.from_yaml(text)
    assert says in str(caught.value) and time.perf_counter() - start < 2.0


@pytest.mark.parametrize(("text", "says"), [
    ('{"positional_call": {"schema": 1, "schema": 2}}', "each field once"), ("[" * 200_000, "one JSON object"), ("{", "one JSON object"), ("null", "one mapping"),
    ('{"positional_call": {"schema": NaN}}', "numinens.position-call.v1"), ("1" * 10_000, "one JSON object"), ('{"positional_call": []}', "one mapping"), (b"\xff", "UTF-8"),
])
def test_hostile_json_is_refused(text, says):
    with pytest.raises(PositionContractError) as caught:
        PositionCall.from_json(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(("read", "limit"), [(PositionCall.from_yaml, YAML_LIMIT), (PositionCall.from_json, JSON_LIMIT)])
def test_huge_documents_are_refused_before_they_are_read(read, limit):
    assert YAML_LIMIT < 10 * 2**20
    for text in ("a" * (limit + 1), b"a" * (limit + 1)):
        start = time.perf_counter()
        with pytest.raises(PositionContractError, match="at most"):
            read(text)
        assert time.perf_counter() - start < 0.5


def test_what_is_too_long_to_read_as_yaml_is_not_written_as_yaml(monkeypatch):
    monkeypatch.setattr(manifest_io, "YAML_LIMIT", 2_000)
    call = PositionCall.decode(60)
    with pytest.raises(PositionContractError, match="to_json"):
        call.to_yaml()
    assert PositionCall.from_json(call.to_json()) == call


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(ARTICLE)) | st.text(max_size=8), inner, max_size=4), max_leaves=12),
       st.sampled_from([part for part, fields in ARTICLE.items() if fields]), st.integers(0, 4))
def test_no_junk_escapes_as_another_error(junk, part, index):
    document = PositionCall.decode(2).to_dict()
    names = ARTICLE[part]
    if index < len(names):
        document[part][names[index]] = junk
    else:
        document[part] = junk
    try:
        call = PositionCall.from_json(json.dumps({"positional_call": document}))
    except PositionContractError as error:
        assert error.field and error.remedy
    else:
        assert call.to_dict() == document  # the junk happened to be a legal value, and was kept as it was


def test_yaml_traps_name_the_field():
    text = PositionCall.decode(2).to_yaml()
    for old, new, field in (("mask_id: causal", "mask_id: no", "visibility.mask_id"), ("backend_id: eager", "backend_id: 1.5", "runtime.backend_id"),
                            ("committed_length: 2", "committed_length: 2.0", "cache.committed_length"), ("[0, 1, 2]", "[0, 1, yes]", "row_space.storage_rows.2")):
        assert old in text
        with pytest.raises(PositionContractError) as caught:
            PositionCall.from_yaml(text.replace(old, new, 1))
        assert caught.value.field == field


def test_json_schema_states_the_contract():
    schema = PositionCall.json_schema()
    assert schema["$id"] == "urn:numinens.position-call.v1" and schema["required"] == ["positional_call"] and schema["additionalProperties"] is False
    body = schema["$defs"]["PositionCall"]
    assert body["properties"]["schema"]["const"] == "numinens.position-call.v1" and set(body["properties"]) == set(ARTICLE)
    for model, part in (("Request", "request"), ("RowSpace", "row_space"), ("QuerySpace", "query_space"), ("PositionMethod", "position_method"),
                        ("Visibility", "visibility"), ("Cache", "cache"), ("NumericalState", "numerical_state"), ("Runtime", "runtime")):
        assert schema["$defs"][model]["required"] == ARTICLE[part] and schema["$defs"][model]["additionalProperties"] is False
    assert schema["$defs"]["Visibility"]["properties"]["polarity"]["enum"] == ["true_is_visible", "true_is_masked"]
    assert json.loads(json.dumps(schema)) == schema


def test_json_schema_agrees_with_the_reader():
    jsonschema = pytest.importorskip("jsonschema", reason="not run: jsonschema is not installed")
    validate = jsonschema.Draft202012Validator(PositionCall.json_schema())
    for call in (PositionCall.decode(2), PositionCall.padded([[0, 1], [1, 1]]).append(), PositionCall.packed([2, 1]), PositionCall.cross(2, 3)):
        document = json.loads(call.to_json())
        assert not list(validate.iter_errors(document))
        document["positional_call"]["visibility"]["polarity"] = "yes"
        assert [list(e.path) for e in validate.iter_errors(document)] == [["positional_call", "visibility", "polarity"]]


@pytest.mark.parametrize("text", ["010", "1_0", "1:0", "0x8", "0b1000"])
def test_only_plain_decimal_numbers_are_numbers(text):
    document = PositionCall.decode(8).to_yaml()
    assert document.count("committed_length: 8") == 1
    with pytest.raises(PositionContractError, match="committed_length"):
        PositionCall.from_yaml(document.replace("committed_length: 8", f"committed_length: {text}"))
