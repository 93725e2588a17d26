"""The raw content of a pipe file, whatever its format: keys and values with their places, references, and the errors found in it.

References are `${NAME}`, `${NAME:-default}` and `${file:PATH}`; `$${` stands for the characters `${`. Invariant: a reference that cannot
be expanded is an error that names it; its value is never shown. Values in an address are URL-quoted where characters have a meaning: before
the `@`, and after the `?`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from headrace.errors import DefiniteError
from headrace.kafka.address import is_secret
from headrace.kafka.registry import MEMORY
from headrace.settings.dataclass_fields import Field, InvalidValue, closest_match, parse_value, value_hint
from headrace.settings.toml_text import Keys, find_key_lines, nearest_line
from headrace.terminal_text import escape_text


class ErrorList(DefiniteError):
    """Several errors; the message lists them."""

    def __str__(self) -> str:
        # The messages are escaped already.
        return self.message


class UnknownName(DefiniteError):
    """A key or section that does not exist. If it is similar to one that does, its value is read under that name."""


_LINE: Final = re.compile(r", line ([0-9]+)")


class Problems:
    """Collects errors while a file is validated."""

    def __init__(self) -> None:
        self.errors: list[DefiniteError] = []
        self.incomplete: set[Keys] = set()
        """Sections with a value that could not be read. Rules about several values do not hold for them."""

    @contextmanager
    def collect(self, section: Keys = ()) -> Iterator[None]:
        """Collect an error raised inside, and continue after the block."""
        before = len(self.errors)
        try:
            yield
        except DefiniteError as error:
            self.errors.append(error)
        if any(not isinstance(error, UnknownName) for error in self.errors[before:]):
            self.incomplete.add(section)

    def add(self, message: str, place: str, hint: str = "") -> None:
        self.errors.append(DefiniteError(message, place=place, hint=hint))

    def raise_any(self, file: str) -> None:
        """Raise the errors, in the order of their lines."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            ordered = sorted(self.errors, key=_line_of)
            raise ErrorList("\n".join([f"{len(ordered)} errors in {escape_text(file)}", *(f"- {error}" for error in ordered)]))


def _line_of(error: DefiniteError) -> int:
    found = _LINE.search(error.place)
    return int(found[1]) if found else 0


_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE: Final = "file:"
_SECRET_WORDS: Final = ("pass", "secret", "token", "credential", "private", "pwd", "apikey", "api_key", "access_key")


class References:
    """Expands references from the environment and from files."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None, new_files: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._environment = os.environ if environment is None else environment
        self._new_files = new_files or {}
        """The contents of files that are not written yet, by their paths as the document has them."""

    def resolve(self, text: str, place: str, left: frozenset[str] = frozenset(), *, hidden: bool = False) -> str:
        """Expand the references of a text, except the names in `left`. Errors do not repeat a hidden text."""
        return _REFERENCE.sub(lambda found: self._expand(found, place, left, hidden=hidden), text)

    def resolve_address(self, text: str, place: str) -> str:
        """Expand the references of an address. An address that starts with a reference is taken as it is, without quoting."""
        scheme = text.find("://")
        if scheme < 0 or text.startswith("${"):
            return self.resolve(text, place)
        question = text.find("?", scheme)
        account = text.rfind("@", scheme, question if question >= 0 else None)

        def quoted(found: re.Match[str]) -> str:
            led_to = self._expand(found, place, frozenset(), hidden=True)
            inside = scheme < found.start() < account or 0 <= question < found.start()
            return quote(led_to, safe="") if inside and found[1] is not None else led_to

        return _REFERENCE.sub(quoted, text)

    def read_secret(self, path: str, place: str) -> str:
        """Return the content of a file without its final newline."""
        if path in self._new_files:
            return self._new_files[path]
        try:
            return (self._directory / path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise DefiniteError(
                f"the file {path} cannot be read: {reason}", place=place, hint="make it, and let this user read it"
            ) from None

    def _expand(self, found: re.Match[str], place: str, left: frozenset[str], *, hidden: bool) -> str:
        inside = found[1]
        if inside is None:
            return "${"
        if inside in left:
            return found[0]
        if inside.startswith(_FILE):
            return self.read_secret(inside.removeprefix(_FILE), place)
        name, has_default, default = inside.partition(":-")
        if not _NAME.fullmatch(name):
            hint = "write ${NAME}, ${NAME:-default} or ${file:PATH}; $${ for the characters"
            raise DefiniteError(f"{'${…}' if hidden else found[0]} is no reference", place=place, hint=hint)
        value = self._environment.get(name, "")
        if value:
            return value
        if has_default:
            return default
        how = "is empty" if name in self._environment else "is not set"
        raise DefiniteError(f"the environment variable {name} {how}", place=place, hint=f"set it, or write ${{{name}:-DEFAULT}}")


def is_secret_name(name: str) -> bool:
    """Return whether a name looks like the name of a secret."""
    folded = name.lower()
    return is_secret(folded) or any(word in folded for word in _SECRET_WORDS)


def references_in(text: str) -> tuple[str, ...]:
    """Return the targets of a text's references, in order."""
    return tuple(found[1] for found in _REFERENCE.finditer(text) if found[1] is not None)


HEADRACE, SOURCES, SINKS, PIPES, ALERTS = "headrace", "sources", "sinks", "pipes", "alerts"
TOP: Final = (HEADRACE, SOURCES, SINKS, PIPES, ALERTS)
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
    locate: Callable[[Keys], str]
    """Returns where a key of the file stands, for messages."""
    references: References | None = None
    """Expands `${…}`; None if the file format has no references."""
    new_pipes_only: frozenset[Keys] = frozenset()
    """Keys of sinks that a pipe does not get if its state began without them."""
    misspelt: dict[Keys, Keys] = field(default_factory=dict)
    """For sections and keys that are read under the right name: their name in the file. Validation adds to it."""

    def place(self, path: Keys) -> str:
        """Return where a key stands, for messages."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.misspelt:
                return self.place((*self.misspelt[path[:end]], *path[end:]))
        return self.locate(path)

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
        references = self.references or References(self.directory)
        return references.read_secret(path, self.place(place))


def parse_document(
    text: str,
    file: str,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    new_files: Mapping[str, str] | None = None,
) -> Document:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefiniteError(f"the file is not TOML: {error}", place=file, hint='write KEY = "TEXT", KEY = 1 or [SECTION]') from error
    lines = find_key_lines(text)

    def place(path: Keys) -> str:
        line = nearest_line(lines, path)
        return f"{file}, {dotted_key(path)}" if line is None else f"{file}, line {line}, {dotted_key(path)}"

    return Document(file, directory, content, place, References(directory, environment, new_files))


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
            problems.add(f"{name} must be {unfit}{instead}", document.place((*path, name)), value_hint(one, given))
    return values


def require_table(document: Document, path: Keys, raw: Any) -> dict[str, Any]:
    """Return the value if it is a table; raise `DefiniteError` otherwise."""
    if not isinstance(raw, dict):
        raise DefiniteError(f"{path[-1]!r} is a table", place=document.place(path), hint=f"write [{dotted_key(path)}] and its keys below")
    return raw


def unknown_key(document: Document, path: Keys, known: Iterable[str], elsewhere: str = "") -> UnknownName:
    """Report an unknown key, with the section it belongs to."""
    names = sorted(known)
    near = closest_match(path[-1], names)
    hint = elsewhere or (f"did you mean {near}?" if near else f"known: {', '.join(names)}")
    return UnknownName(f"there is no setting {path[-1]!r} in [{dotted_key(path[:-1])}]", place=document.place(path), hint=hint)
