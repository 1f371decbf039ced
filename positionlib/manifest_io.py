"""Read and write manifest documents. What is read is hostile until proven otherwise.

A document is one mapping, ``positional_call``. YAML is read without aliases, merges, tags or repeated keys, JSON without repeated keys;
both are bounded in size and depth before anything is built.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from positionlib.errors import PositionContractError, require

ROOT = "positional_call"
YAML_LIMIT = 2**16  # a person reads YAML, and its reader needs a second for this much; calls of more than some 1,000 rows travel as JSON
JSON_LIMIT = 32 * 2**20
DEPTH_LIMIT = 16


class _Loader(yaml.SafeLoader):
    """The safe loader without aliases (their expansion is unbounded), tags, merge keys and repeated keys."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise PositionContractError("document", f"*{event.anchor}", "no YAML aliases", "Write the value out: aliases can expand without bound.")
        # A tag names another reader for the value, and PyYAML's own fail in ways that no YAMLError covers.
        tag = getattr(self.peek_event(), "tag", None)
        require(tag is None, "document", tag, "no YAML tags", "Write the plain value, in quotes if it is text.")
        self._depth = getattr(self, "_depth", 0) + 1
        require(self._depth <= DEPTH_LIMIT, "document", f"{self._depth} levels", f"at most {DEPTH_LIMIT} levels of nesting", "A manifest has three.")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node, deep=False):
        require(not any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value), "document", "<<", "no merge keys", "Write the fields out.")
        keys = [self.construct_object(key, deep=True) if isinstance(key, yaml.ScalarNode) else "?" for key, _ in node.value]
        _refuse_repeats(keys)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 reads 010 as 8, 1_0 as 10 and 1:0 as 60; a reader of YAML 1.2 does not. Only plain decimals are numbers here.
_INTEGER = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {first: [(tag, rule) for tag, rule in rules if tag != _INTEGER]
                                   for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"^(?:0|-?[1-9][0-9]*)$"), list("-0123456789"))


def _refuse_repeats(keys: list[Any]) -> None:
    seen: set[Any] = set()
    for key in keys:
        require(isinstance(key, str), "document", key, "field names as text", "Quote the key.")
        require(key not in seen, key, key, "each field once", "Two values for one field: keep the one that is meant.")
        seen.add(key)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeats([key for key, _ in pairs])
    return dict(pairs)


def read_yaml(text: str | bytes) -> dict[str, Any]:
    """The mapping under ``positional_call`` of a YAML document."""
    text = _text(text, YAML_LIMIT, "YAML", "Send long calls as JSON.")
    try:
        return root(yaml.load(text, Loader=_Loader))  # a restricted SafeLoader
    except PositionContractError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise PositionContractError("document", " ".join(str(error).split()), "one plain YAML mapping", "Repair the syntax.") from None


def read_json(text: str | bytes) -> dict[str, Any]:
    """The mapping under ``positional_call`` of a JSON document."""
    return root(read_json_value(text))


def read_json_value(text: str | bytes) -> Any:
    """What a JSON document of any form holds, under the same bounds."""
    text = _text(text, JSON_LIMIT, "JSON", "Split the call.")
    try:
        return json.loads(text, object_pairs_hook=_object)
    except PositionContractError:
        raise
    except (ValueError, RecursionError) as error:
        raise PositionContractError("document", str(error), "one JSON object", "Repair the syntax.") from None


def write_yaml(fields: dict[str, Any]) -> str:
    """A YAML document of the fields, in their order, short lists on one line."""
    text = yaml.safe_dump({ROOT: fields}, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
    require(len(text.encode()) <= YAML_LIMIT, "document", f"{len(text.encode())} bytes", f"at most {YAML_LIMIT} bytes of YAML", "Use to_json() for long calls.")
    return text


def write_json(fields: dict[str, Any], indent: int | None = None) -> str:
    """A JSON document of the fields, in their order."""
    return json.dumps({ROOT: fields}, indent=indent, ensure_ascii=False)


def _text(text: str | bytes, limit: int, form: str, remedy: str) -> str:
    require(isinstance(text, (str, bytes)), "document", text, f"{form} as text or bytes", "Read the file first: the reader opens none.")
    # Characters first: encoding a huge string only to refuse it would cost what the limit protects.
    require(len(text) <= limit, "document", f"{len(text)} long", f"at most {limit} bytes of {form}", remedy)
    try:
        return text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise PositionContractError("document", str(error), "UTF-8", "Re-encode the file.") from None


def root(document: Any) -> dict[str, Any]:
    """The mapping under ``positional_call`` of what was read."""
    require(isinstance(document, dict) and list(document) == [ROOT] and isinstance(document.get(ROOT), dict), "document",
            sorted(map(str, document)) if isinstance(document, dict) else type(document).__name__, f"one mapping under {ROOT!r}",
            f"Put every field under {ROOT}:.")
    return document[ROOT]
