"""Renders a resolved configuration: references expanded, optionally with defaults, without secrets.

Invariant: no secret is shown. Masked are passwords in addresses, keys with the name of a secret, and values from files or from variables
with the name of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from headrace.config.addresses import redact, resolve_path
from headrace.config.configuration import Configuration, ConfiguredPipe
from headrace.config.document.document import HEADRACE, PIPES, SINKS, SOURCES, Document
from headrace.config.document.substitution import is_secret_name, references_in
from headrace.config.file_keys import CLASS
from headrace.config.key_catalog import Section, list_sections
from headrace.pipes.spec import PipeSpec
from headrace.settings.dataclass_fields import to_plain
from headrace.settings.toml_lines import Keys
from headrace.settings.toml_writer import AnnotatedToml, render_toml

MASK: Final = "***"


def render_configuration(document: Document, configuration: Configuration, *, defaults: bool = False) -> str:
    """Render the file as TOML; `configuration` is its resolved form."""
    written = AnnotatedToml()
    written.note((), f"{document.file}, as it is understood")
    named = {HEADRACE: {""}, **_used(document, configuration)}
    for kind, names in named.items():
        for name in document.content.get(kind, {}) if kind != HEADRACE else names:
            if name in names:
                path = (kind, name) if name else (kind,)
                _add(written, document, path, _raw_section(document, path), defaults)
    for pipe in configuration.pipes:
        for text in _comments(pipe):
            written.note((PIPES, pipe.name), text)
    return render_toml(written)


def summarize(configuration: Configuration) -> str:
    """Describe the pipes, one line per source."""
    lines = []
    for pipe in configuration.pipes:
        state = "" if pipe.enabled else " (disabled)"
        lines += [f"{part.name}{state}: {redact(part.source)} -> {redact(part.sink)}, {_tables(part)}" for part in pipe.specs]
    return "\n".join(lines)


def _comments(pipe: ConfiguredPipe) -> list[str]:
    return [f"{part.name}: {_tables(part)}; state in {part.settings.state}" for part in pipe.specs]


def _tables(part: PipeSpec) -> str:
    return f"tables {part.settings.selection}"


def _used(document: Document, configuration: Configuration) -> Mapping[str, set[str]]:
    pipes = {pipe.name for pipe in configuration.pipes}
    raw = [_raw_section(document, (PIPES, name)) for name in pipes]
    sources = {name for one in raw for name in (one.get("source"), *one.get("sources", ())) if name}
    return {SOURCES: sources, SINKS: {one["sink"] for one in raw}, PIPES: pipes}


def _raw_section(document: Document, path: Keys) -> dict[str, Any]:
    found: Any = document.content
    for name in path:
        found = found.get(name, {})
    return dict(found)


def _add(written: AnnotatedToml, document: Document, path: Keys, raw: Mapping[str, Any], defaults: bool) -> None:
    table = written.content
    for name in path:
        table = table.setdefault(name, {})
    for name, value in raw.items():
        table[name] = _mask(document, (*path, name), value)
    if not defaults:
        return
    for name, one in _section(path[0], str(table.get("url", ""))).fields.items():
        if name not in table and name not in ("source", "sources", "password", "password_file", CLASS):
            table[name] = to_plain(one.kind, one.default)
            written.trailing[*path, name] = "the default"


def _section(kind: str, url: str) -> Section:
    fitting = [one for one in list_sections() if one.header.split(".")[0] == kind and (not one.url or re.match(one.url, url))]
    return fitting[0]


def _mask(document: Document, path: Keys, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _mask(document, (*path, name), one) for name, one in value.items()}
    if isinstance(value, list):
        return [_mask(document, path, one) for one in value]
    if not isinstance(value, str):
        return value
    if path[-1] == "url":
        return redact(resolve_path(document.resolve(path, value), document.directory), MASK)
    if path[-1] != "password_file" and (is_secret_name(path[-1]) or any(map(_is_secret_reference, references_in(value)))):
        return MASK
    return document.resolve(path, value)


def _is_secret_reference(reference: str) -> bool:
    return reference.startswith("file:") or is_secret_name(reference.partition(":-")[0])
