"""The raw content of a pipe file: keys and values with their places, whatever the file format."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.config.document.problems import Problems
from headrace.config.document.substitution import References
from headrace.errors import DefiniteError
from headrace.kafka.address import is_secret
from headrace.kafka.registry import MEMORY
from headrace.settings.dataclass_fields import Field, InvalidValue, closest_match, parse_value
from headrace.settings.toml_lines import Keys, find_key_lines, nearest_line

HEADRACE, SOURCES, SINKS, PIPES = "headrace", "sources", "sinks", "pipes"
TOP: Final = (HEADRACE, SOURCES, SINKS, PIPES)
_TOPIC_WORDS: Final = frozenset({"db", "table", "prefix"})
"""In `topic`, these references are replaced for each table."""
_JARS: Final = "kafka_jars"
_RELAY: Final = "relay"
_FOLDERS: Final = ("registry", _JARS)
"""Keys that may name a folder."""


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a file, not yet validated."""

    file: str
    directory: Path
    """The base of relative paths."""
    content: Mapping[str, Any]
    place: Callable[[Keys], str]
    """Returns where a key stands, for messages."""
    references: References | None = None
    """Expands `${…}`; None if the file format has no references."""
    new_pipes_only: frozenset[Keys] = frozenset()
    """Keys of sinks that a pipe does not get if its state began without them."""

    def resolve(self, path: Keys, raw: Any) -> Any:
        """Expand the references in a value."""
        if isinstance(raw, dict):
            return {name: self.resolve((*path, name), one) for name, one in raw.items()}
        if isinstance(raw, list):
            return [self.resolve(path, one) for one in raw]
        if not isinstance(raw, str) or self.references is None:
            return raw
        if path[-1] == "url":
            return self.references.resolve_address(raw, self.place(path))
        left = _TOPIC_WORDS if path[-1] == "topic" else frozenset[str]()
        settled = self.references.resolve(raw, self.place(path), left, hidden=is_secret(path[-1]))
        is_folder = path[-1] in _FOLDERS or (path[0], path[-1]) == (SOURCES, _RELAY)
        return self._resolve_folder(path[-1], settled) if is_folder and settled else settled

    def _resolve_folder(self, name: str, place: str) -> str:
        """Make a folder relative to the file; leave addresses and Maven coordinates unchanged."""
        there = self.directory / place
        is_folder = there.is_dir() if name == _JARS else "://" not in place and place.removesuffix(":") != MEMORY
        return str(there) if is_folder else place

    def read_secret_file(self, path: str, place: Keys) -> str:
        """Read a password file."""
        references = self.references or References(self.directory)
        return references.read_secret(path, self.place(place))


def parse_document(text: str, file: str, directory: Path, environment: Mapping[str, str] | None = None) -> Document:
    """Parse a TOML text."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefiniteError(f"the file is not TOML: {error}", place=file, hint='write KEY = "TEXT", KEY = 1 or [SECTION]') from error
    lines = find_key_lines(text)

    def place(path: Keys) -> str:
        line = nearest_line(lines, path)
        return f"{file}, {dotted_key(path)}" if line is None else f"{file}, line {line}, {dotted_key(path)}"

    return Document(file, directory, content, place, References(directory, environment))


def dotted_key(path: Keys) -> str:
    """Return a key path in TOML syntax."""
    return ".".join(f'"{name}"' if "." in name or not name else name for name in path)


def parse_keys(document: Document, path: Keys, known: Mapping[str, Field], raw: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Return the values of all known keys, with defaults for missing ones."""
    values = {name: one.default for name, one in known.items()}
    for name, given in raw.items():
        one = known[name]
        try:
            values[name] = parse_value(one.kind, given)
        except InvalidValue as unfit:
            # A value for a password key may be a password, whatever its type.
            instead = "" if is_secret(name) else f", not {given!r}"
            problems.add(f"{name} must be {unfit}{instead}", document.place((*path, name)), one.text)
    return values


def require_table(document: Document, path: Keys, raw: Any) -> dict[str, Any]:
    """Return the value if it is a table; raise `DefiniteError` otherwise."""
    if not isinstance(raw, dict):
        raise DefiniteError(f"{path[-1]!r} is a table", place=document.place(path), hint=f"write [{dotted_key(path)}] and its keys below")
    return raw


def unknown_key(document: Document, path: Keys, known: Iterable[str], elsewhere: str = "") -> DefiniteError:
    """Report an unknown key, with the section it belongs to."""
    names = sorted(known)
    near = closest_match(path[-1], names)
    hint = elsewhere or (f"did you mean {near}?" if near else f"known: {', '.join(names)}")
    return DefiniteError(f"there is no setting {path[-1]!r} in [{dotted_key(path[:-1])}]", place=document.place(path), hint=hint)
