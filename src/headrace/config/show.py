"""Renders a resolved configuration: references expanded, optionally with defaults, without secrets.

Invariant: no secret is shown. Masked are passwords in addresses, keys with the name of a secret, and values from files or from variables
with the name of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from headrace.alerts.rules import redact_receiver
from headrace.config.addresses import redact, resolve_path
from headrace.config.configuration import Configuration
from headrace.config.document import ALERTS, HEADRACE, PIPES, SINKS, SOURCES, Document, is_secret_name, references_in
from headrace.config.key_catalog import CLASS, list_sections
from headrace.pipes.spec import PipeSpec
from headrace.settings.dataclass_fields import to_plain
from headrace.settings.toml_text import AnnotatedToml, Keys, render_toml

MASK: Final = "***"


def render_configuration(document: Document, configuration: Configuration, *, defaults: bool = False) -> str:
    """Render the file as TOML; `configuration` is its resolved form."""
    written = AnnotatedToml()
    written.note((), f"{document.file}, as it is understood")
    named = {HEADRACE: {""}, **_used(document, configuration), ALERTS: {rule.name for rule in configuration.alerts}}
    for kind, names in named.items():
        for name in document.content.get(kind, {}) if kind != HEADRACE else names:
            if name in names:
                path = (kind, name) if name else (kind,)
                _add(written, document, path, _raw_section(document, path), defaults)
    for pipe in configuration.pipes:
        for part in pipe.specs:
            written.note((PIPES, pipe.name), f"{part.name}: {_tables(part)}; state in {part.settings.state}")
    return render_toml(written)


def summarize(configuration: Configuration) -> str:
    """Describe the pipes, one line per source."""
    lines = []
    for pipe in configuration.pipes:
        state = "" if pipe.enabled else " (disabled)"
        lines += [f"{part.name}{state}: {redact(part.source)} -> {redact(part.sink)}, {_tables(part)}" for part in pipe.specs]
    return "\n".join(lines)


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
    fitting = (one for one in list_sections() if one.header.split(".")[0] == path[0] and re.match(one.url, str(table.get("url", ""))))
    for name, one in next(fitting).fields.items():
        if name not in table and name not in ("source", "sources", "password", "password_file", CLASS):
            table[name] = to_plain(one.kind, one.default)
            written.trailing[*path, name] = "the default"


def _mask(document: Document, path: Keys, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _mask(document, (*path, name), one) for name, one in value.items()}
    if isinstance(value, list):
        return [_mask(document, path, one) for one in value]
    if not isinstance(value, str):
        return value
    if path[-1] == "url" and path[0] == ALERTS:
        return redact_receiver(document.resolve(path, value), MASK)
    if path[-1] == "url":
        return redact(resolve_path(document.resolve(path, value), document.directory), MASK)
    if path[-1] != "password_file" and (is_secret_name(path[-1]) or any(map(_is_secret, references_in(value)))):
        return MASK
    return document.resolve(path, value)


def _is_secret(reference: str) -> bool:
    return reference.startswith("file:") or is_secret_name(reference.partition(":-")[0])
