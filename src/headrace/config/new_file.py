"""Writes the text of a new `headrace.toml` with one pipe: its keys with their descriptions, and common optional keys as comments.

Invariant: descriptions and defaults come from the settings classes, and no secret is written: a password is a reference to an environment
variable.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from headrace.config.addresses import has_account, redact, source_kind
from headrace.config.configuration import Configuration
from headrace.config.document import HEADRACE, PIPES, SINKS, SOURCES, ErrorList, parse_document
from headrace.config.generated_files import SUBJECTS
from headrace.config.key_catalog import SOURCE_KEYS, Section, list_sections
from headrace.config.load import resolve
from headrace.errors import DefiniteError
from headrace.pipes.source_registry import source_connector
from headrace.settings.dataclass_fields import Field, describe_type, merge_fields, to_plain
from headrace.settings.toml_text import AnnotatedToml, Keys, render_toml
from headrace.sinks.registry import sink_connector

_PASSWORD: Final = "password"
OPTIONAL_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    HEADRACE: ("state", "listen", "master"),
    SOURCES: (_PASSWORD, "exclude", "columns", "exclude_columns", "start_at", "start", "snapshot", "zero_dates", "cascades", "registry"),
    SINKS: (_PASSWORD, "engine", "hidden_columns", "view", "on_refused_row", "format", "topic", "compression", "missing", "dropped"),
    PIPES: ("include", "exclude", "prefix"),
}
"""Keys that are written as comments, by the kind of section, if the section has them."""
_WIDTH: Final = 100
_HEAD: Final = """\
A file of pipes for Headrace, written by `headrace init`. Every line may be changed.
Lines such as `#key = value` show keys that are not set, with their defaults. docs/configuration.md lists all keys,
and `headrace config schema` prints a schema for editors.
"""


@dataclass(frozen=True, slots=True)
class NewPipe:
    """One pipe, as it is written to a new file. Addresses contain no passwords."""

    source: str
    sink: str
    name: str
    selection: tuple[str, ...] = ()
    """Globs of tables; of a source in Kafka, of topics."""
    source_password: str = ""
    """The environment variable of the source's password; empty: no password."""
    sink_password: str = ""

    def text(self) -> str:
        """Return the file as TOML with comments."""
        source, sink = plain_name(self.name), _sink_name(self.sink)
        chosen = {selection_key(self.source): list(self.selection)} if self.selection else {}
        written = AnnotatedToml()
        written.note((), _HEAD)
        _add(written, (HEADRACE,), {})
        _add(written, (SOURCES, source), {"url": self.source, **_password(self.source_password), **chosen})
        _add(written, (SINKS, sink), {"url": self.sink, **_password(self.sink_password)})
        _add(written, (PIPES, self.name), {"source": source, "sink": sink})
        return render_toml(written)

    def resolve(self, file: Path) -> Configuration:
        """Return the configuration that `headrace run` will read from the file; raise `DefiniteError` as `headrace config check` does."""
        try:
            return resolve(parse_document(self.text(), str(file), file.resolve().parent))
        except ErrorList:
            raise
        except DefiniteError as error:
            # Its place is a line of a file that does not exist yet.
            raise DefiniteError(error.message, place=f"{redact(self.source)} -> {redact(self.sink)}", hint=error.hint) from error


def selection_key(source: str) -> str:
    """Return the key that selects what is read from a source."""
    keys = merge_fields(*SOURCE_KEYS[source_kind(source, "")])
    return "topics" if "topics" in keys else "tables"


def pipe_name(source: str) -> str:
    """Return a name for the pipe of a source: its database, or its kind."""
    connector = source_connector(source)
    return plain_name(connector.database_of(source)) or connector.name


def plain_name(text: str) -> str:
    """Return the part of a text that can be the name of a section."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")


def _sink_name(sink: str) -> str:
    connector = sink_connector(sink)
    directory = Path(sink.partition(":")[2]).name if connector.is_embedded else ""
    return plain_name(directory) or connector.name


def _password(variable: str) -> dict[str, str]:
    return {_PASSWORD: f"${{{variable}}}"} if variable else {}


def _add(written: AnnotatedToml, path: Keys, keys: Mapping[str, Any]) -> None:
    """Add a section: its keys, then its optional keys, each below its description."""
    section = _section(path[0], str(keys.get("url", "")))
    about = SUBJECTS[section.header]
    written.note(path, f"{about.removesuffix('.')}: {section.subject}." if section.subject else about)
    table = written.content
    for name in path:
        table = table.setdefault(name, {})
    unused = {*keys, *(() if has_account(str(keys.get("url", ""))) else (_PASSWORD,))}
    optional = [name for name in OPTIONAL_KEYS[path[0]] if name in section.fields and name not in unused]
    for name in (*keys, *optional):
        one = section.fields[name]
        table[name] = keys[name] if name in keys else to_plain(one.kind, one.default)
        written.note((*path, name), "\n".join(textwrap.wrap(_description(one), _WIDTH, break_on_hyphens=False)))
    written.optional.update((*path, name) for name in optional)


def _description(one: Field) -> str:
    text = one.text.replace("`", "")
    return f"{text} It is {describe_type(one.kind)}." if isinstance(one.kind, type) and issubclass(one.kind, StrEnum) else text


def _section(kind: str, url: str) -> Section:
    found = (one for one in list_sections() if one.header.split(".")[0] == kind and re.match(one.url, url))
    return next(found)
