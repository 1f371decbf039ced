"""The contract: every field is checked, every field alone changes every identity, and a document is the contract or nothing."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

import positionlib as pl
from positionlib.checkpoints import PositionCheckpointContract, Release
from positionlib.checkpoints.contracts import CHOICES
from tests.checkpoints.test_migration import grown, table
from tests.refusals import refused

T5 = PositionCheckpointContract(
    family="t5", source_revision="huggingface/transformers 5.24.0", table_layout="buckets_heads", table_rows=32, head_count=4, head_assignment=(0, 1, 2, 3),
    relative_sign="key_minus_query", clipping_or_bucket_rule="32 to 128", score_scale_factor=0, cls_rule=None, layer_sharing="first_layer", formula=None,
    max_positions=None, position_id_offset=0, padding_convention="contiguous", source_target_tables="separate", added="nowhere", bias_and_scale="outside",
    pairing="none", generated_buffers=())
OTHER = {"family": "t5x", "source_revision": "google-research/t5x cc342d4", "table_layout": "heads_buckets", "table_rows": 64, "head_assignment": (1, 0, 2, 3),
         "relative_sign": "query_minus_key", "clipping_or_bucket_rule": "32 to 64", "score_scale_factor": 1, "cls_rule": "row 0", "layer_sharing": "each_layer",
         "formula": "sines", "max_positions": 512, "position_id_offset": 2, "padding_convention": "roberta", "source_target_tables": "shared",
         "added": "before_norm", "bias_and_scale": "inside", "pairing": "half_split", "generated_buffers": ("position_ids",)}


def test_the_first_eleven_fields_are_the_articles():
    assert [f.name for f in fields(T5)][:11] == ["family", "source_revision", "table_layout", "table_rows", "head_count", "head_assignment", "relative_sign",
                                                 "clipping_or_bucket_rule", "score_scale_factor", "cls_rule", "layer_sharing"]


@pytest.mark.parametrize("name", [*OTHER, "head_count"])
def test_every_field_alone_is_refused_by_name_and_changes_the_identity(name):
    changes = {"head_count": 3, "head_assignment": (0, 1, 2)} if name == "head_count" else {name: OTHER[name]}
    other = replace(T5, **changes)
    error = refused(lambda: T5.require_declared(other), ", ".join(f"contract.{n}" for n in changes))
    assert repr(getattr(other, name))[:10] in str(error)
    assert other.scheme_id != T5.scheme_id
    release = {"release_id": "r1", "checkpoint_id": "c1", "runtime_backend": "eager"}
    assert other.admission(**release) != T5.admission(**release)
    T5.require_declared(replace(T5))
    T5.admit_cache(replace(T5).scheme_id)
    refused(lambda: T5.admit_cache(other.scheme_id), "scheme_id")


def test_all_differences_are_named_at_once():
    other = replace(T5, relative_sign="query_minus_key", score_scale_factor=3)
    refused(lambda: T5.require_declared(other), "contract.relative_sign, contract.score_scale_factor")
    refused(lambda: T5.require_declared({"family": "t5"}), "declared")


def test_a_release_admits_no_cache_of_another_contract():
    """0x07's state machine and 0x09E's contract meet in one tuple."""
    learned = replace(T5, family="bert", table_layout="rows_width", table_rows=4, max_positions=4, added="before_norm")
    served = learned.admission("r1", "c1", runtime_backend="eager")
    release = Release.draft(table(identity=served))
    release.admit(served)
    refused(lambda: release.admit(replace(learned, position_id_offset=2).admission("r1", "c1", runtime_backend="eager")), "cache.position_method")
    refused(lambda: release.admit(replace(learned, padding_convention="opt").admission("r1", "c1", runtime_backend="eager")),
            "cache.position_method, cache.position_id_policy")
    assert grown(table(identity=served), 6).identity.position_method == served.position_method


def test_a_geometry_carries_the_scheme():
    assert pl.AttentionGeometry.encoder(3, scheme_id=T5.scheme_id).scheme_id == T5.scheme_id
    assert T5.scheme_id.startswith("t5:") and len(T5.scheme_id) == len("t5:") + 16


@pytest.mark.parametrize("name, value", [
    ("family", ""), ("family", 3), ("source_revision", None), ("cls_rule", " "), ("formula", 1), ("table_rows", 0), ("table_rows", None), ("table_rows", True),
    ("head_count", 0), ("head_count", 2.0), ("score_scale_factor", -1), ("position_id_offset", -1), ("max_positions", 0), ("max_positions", "512"),
    ("head_assignment", (0, 1, 2)), ("head_assignment", (0, 1, 2, 2)), ("head_assignment", (0, 1, 2, 4)), ("head_assignment", [0, 1, 2, 3]),
    ("head_assignment", ("0", 1, 2, 3)), ("generated_buffers", "position_ids"), ("generated_buffers", (3,)), *((name, "unheard of") for name in CHOICES),
    *((name, None) for name in CHOICES)])
def test_a_field_that_says_nothing_is_refused(name, value):
    refused(lambda: replace(T5, **{name: value}), name)
    refused(lambda: replace(T5, table_layout="none"), "table_rows")


def test_a_document_is_the_whole_contract_or_refused():
    document = json.loads(json.dumps(T5.to_dict()))
    assert PositionCheckpointContract.from_dict(document) == T5
    for name in document:
        refused(lambda: PositionCheckpointContract.from_dict({key: value for key, value in document.items() if key != name}),
                "schema" if name == "schema" else "document")
    refused(lambda: PositionCheckpointContract.from_dict(document | {"schema": "position-checkpoint/2"}), "schema")
    refused(lambda: PositionCheckpointContract.from_dict(document | {"sign": "key_minus_query"}), "document")
    refused(lambda: PositionCheckpointContract.from_dict(document | {"head_assignment": [3, 3, 3, 3]}), "head_assignment")
    refused(lambda: PositionCheckpointContract.from_dict([1]), "document")
