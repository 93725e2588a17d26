"""Generates docs/headrace.schema.json, for editors, and docs/configuration.md from the settings classes.

An editor cannot expand `${…}`, so checks that need a server or the environment are left to `headrace config check`. The schema rejects
nothing that `headrace` accepts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from headrace.config.key_catalog import CLASS, Section, list_sections
from headrace.settings.dataclass_fields import TEXT_LIST, TEXT_MAP, TEXT_PAIRS, Field, Size, to_plain
from headrace.settings.reference_page import policy_rows, row, table
from headrace.settings.schema_policy import ALL_KINDS, ChangeKind, Policy, allowed_policies

_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_NAME: Final = "^[A-Za-z0-9_][A-Za-z0-9_-]*$"
_TYPE_SCHEMAS: Final[dict[Any, dict[str, Any]]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": 0},
    float: {"type": "number", "minimum": 0},
    str: {"type": "string"},
    Path: {"type": "string", "minLength": 1},
    Size: {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^\\s*[0-9]+[KMGkmg]?[iI]?[bB]?\\s*$"}]},
    TEXT_LIST: {"type": "array", "items": {"type": "string"}},
    TEXT_PAIRS: {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
    TEXT_MAP: {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
}


def build_schema() -> dict[str, Any]:
    by_kind: dict[str, list[Section]] = {}
    for section in list_sections():
        by_kind.setdefault(section.header, []).append(section)
    tables = _tables(by_kind['pipes.NAME.tables."GLOB"'])
    pipes = _object(_properties(by_kind["pipes.NAME"][0].fields))
    pipes["properties"] |= {"tables": tables, "schema_changes": _policies()}
    pipes |= {"required": ["sink"], "oneOf": [{"required": ["source"]}, {"required": ["sources"]}]}
    known = _kinds([section for section in by_kind["sinks.NAME"] if section.url], {"tables": tables})
    free = next(section for section in by_kind["sinks.NAME"] if not section.url)
    # The settings of a custom class are unknown.
    sinks = {"if": {"required": [CLASS]}, "then": {"type": "object", "properties": _properties(free.fields)}, "else": known}
    return {
        "$schema": _DRAFT,
        "title": "headrace.toml",
        "description": "Sources, sinks, and pipes that join them. See docs/configuration.md.",
        "type": "object",
        "additionalProperties": False,
        "required": ["pipes"],
        "properties": {
            "headrace": _object(_properties(by_kind["headrace"][0].fields)),
            "sources": _named(_kinds(by_kind["sources.NAME"], {})),
            "sinks": _named(sinks),
            "pipes": _named(pipes),
            "alerts": _named(_kinds(by_kind["alerts.NAME"], {})),
        },
    }


def schema_text() -> str:
    return json.dumps(build_schema(), indent=2) + "\n"


def _named(section: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "propertyNames": {"pattern": _NAME}, "additionalProperties": section}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def _kinds(kinds: Iterable[Section], of_first: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a section with several kinds: all keys of all kinds, restricted to one kind's keys by the address."""
    each = [({**_properties(section.fields), **(of_first if not number else {})}, section.url) for number, section in enumerate(kinds)]
    every: dict[str, list[Any]] = {}
    for properties, _ in each:
        for name, one in properties.items():
            if one not in every.setdefault(name, []):
                every[name].append(one)
    conditions = []
    for properties, url in each:
        # A key that several kinds have may have another type in each.
        own = {name: one for name, one in properties.items() if len(every[name]) > 1}
        then = {"propertyNames": {"enum": sorted(properties)}, **({"properties": own} if own else {})}
        conditions.append({"if": {"required": ["url"], "properties": {"url": {"pattern": url}}}, "then": then})
    anyhow = {name: several[0] if len(several) == 1 else {"anyOf": several} for name, several in every.items()}
    return {**_object(anyhow), "required": ["url"], "allOf": conditions}


def _tables(kinds: Iterable[Section]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for section in kinds:
        properties |= _properties(section.fields)
    return {"type": "object", "propertyNames": {"pattern": "\\."}, "additionalProperties": _object(properties)}


def _properties(fields: Mapping[str, Field]) -> dict[str, Any]:
    return {name: _property(one) for name, one in fields.items()}


def _property(one: Field) -> dict[str, Any]:
    found = {**_kind(one.kind), "description": one.text}
    default = to_plain(one.kind, one.default)
    return found if default in ("", [], {}, None) else {**found, "default": default}


def _kind(kind: Any) -> dict[str, Any]:
    if get_origin(kind) in (Union, UnionType):
        return {"anyOf": [_kind(one) for one in get_args(kind) if one is not type(None)]}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": [one.value for one in kind]}
    return dict(_TYPE_SCHEMAS[kind])


def _policies() -> dict[str, Any]:
    kinds: dict[str, Any] = {kind.value: {"enum": [policy.value for policy in allowed_policies(kind)]} for kind in ChangeKind}
    return _object(
        {**kinds, ALL_KINDS: {"enum": [policy.value for policy in Policy], "description": "Every kind that may have this policy."}}
    )


_HEAD: Final = """\
# Settings of headrace.toml

<!-- generated by `make settings-page`; do not edit by hand -->

Every section and every setting. [pipes.md](pipes.md) shows how to write a file, `headrace config check` reports its errors,
`headrace config show --defaults` prints the resolved file, and editors complete and check it with
[headrace.schema.json](headrace.schema.json) (`headrace config schema`).
Settings with ↻ may change when a pipe restarts; a change of any other needs a new pipe.

- Names of sources, sinks and pipes consist of letters, digits, `_` and `-`.
- `${NAME}` in a text is an environment variable (an error if it is not set or empty), `${NAME:-default}` has a default,
  `${file:PATH}` is the content of a file without its final newline, and `$${` stands for `${`. Values in addresses are
  quoted, so a password may contain any character.
- Relative paths of `state`, `password_file`, `${file:…}`, `chdb:…`, `binlog:…`, `registry` and `kafka_jars` are relative to
  the file's directory; paths in addresses (certificates) are relative to the working directory.
- Sizes are numbers of bytes, or texts such as `"64M"` (K, M, G: powers of 1024).
- An unknown key, or a key that the kind of source or sink does not use, is an error.
"""
SUBJECTS: Final = {
    "headrace": "The process.",
    "sources.NAME": "Where changes come from.",
    "sinks.NAME": "Where they go.",
    "pipes.NAME": "Which sources go to which sink.",
    "alerts.NAME": "Which alerts go to which receivers (see [alerts](operations/alerts.md)).",
}


def configuration_page() -> str:
    about = "The policy for each kind of schema change (see [clickhouse.md](clickhouse.md))."
    return "\n".join([_HEAD, *_sections(), f"## `[pipes.NAME.schema_changes]`\n\n{about}\n\n{table(policy_rows())}\n"])


def _sections() -> Iterator[str]:
    done: set[str] = set()
    known: dict[str, dict[str, Field]] = {}
    for section in list_sections():
        if section.header not in done:
            done.add(section.header)
            yield f"## `[{section.header}]`\n"
            if section.header in SUBJECTS:
                yield f"{SUBJECTS[section.header]}\n"
        if section.subject:
            yield f"### Of {section.subject}\n"
        yield _rows(section, known.setdefault(section.header, {})) + "\n"


def _rows(section: Section, known: dict[str, Field]) -> str:
    """Return the table of a section; settings that an earlier kind has too are only named."""
    own = {name: one for name, one in section.fields.items() if known.get(name) != one}
    shared = [name for name, one in section.fields.items() if known.get(name) == one]
    known.update(section.fields)
    before = f"As above: {', '.join(f'`{name}`' for name in shared)}.\n\n" if shared else ""
    if not own:
        return before.removesuffix("\n\n")
    return before + table(row(section.header, one, name in section.changeable)._replace(name=name) for name, one in own.items())
