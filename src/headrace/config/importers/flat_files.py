"""Reads flat files of keys and values with their lines: Java properties, Kafka Connect's JSON, YAML without nesting.

Invariant: content other than keys and texts is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.errors import DefiniteError

SUFFIXES: Final = (".properties", ".json", ".yml", ".yaml")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_YAML_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "/": "/", " ": " "}
_YAML_KEY: Final = re.compile(r"""(?:"([^"]*)"|'([^']*)'|([^\s#'"{\[&*!|>%@`-][^:#]*?|-[^\s:#][^:#]*?))\s*:(?:\s+|$)""")


class Entry(NamedTuple):
    """One key."""

    key: str
    value: str
    line: int


def read_entries(text: str, file: str) -> list[Entry]:
    """Return the keys of a file; its suffix determines the format."""
    suffix = Path(file).suffix.lower()
    read = _json if suffix == ".json" else _yaml if suffix in (".yml", ".yaml") else _properties
    found = list(read(text, file))
    seen: dict[str, Entry] = {}
    for one in found:
        if one.key in seen:
            raise DefiniteError(
                f"{one.key} is given twice",
                place=f"{file}, line {one.line}",
                hint=f"leave one out; the other is on line {seen[one.key].line}",
            )
        seen[one.key] = one
    return found


def _properties(text: str, file: str) -> Iterator[Entry]:
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        first = number + 1
        line = lines[number].lstrip(" \t\f")
        number += 1
        if not line or line[0] in "#!":
            continue
        while _goes_on(line) and number < len(lines):
            line = line[:-1] + lines[number].lstrip(" \t\f")
            number += 1
        key, value = _split_property(line)
        if not key:
            raise DefiniteError("a line has no key", place=f"{file}, line {first}", hint="write KEY=VALUE")
        yield Entry(_unescaped(key), _unescaped(value).rstrip(), first)


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split_property(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(" \t\f")
    return key, rest[1:].lstrip(" \t\f") if rest[:1] in ("=", ":") else rest


def _unescaped(text: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        inside = found[1]
        return chr(int(inside[1:], 16)) if len(inside) == 5 else _ESCAPES.get(inside, inside)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replaced, text)


def _json(text: str, file: str) -> Iterator[Entry]:
    try:
        content: Any = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, text, file))
    except ValueError as error:
        raise DefiniteError(f"the file is not JSON: {error}", place=file, hint="correct it") from error
    if not isinstance(content, dict):
        raise DefiniteError("a connector is an object", place=file, hint='write {"name": …, "config": {…}}')
    config = content.get("config")
    if isinstance(config, dict):
        unknown = [name for name in content if name not in ("name", "config", "tasks", "type")]
        if unknown:
            raise DefiniteError(f"{unknown[0]} is no part of a connector", place=_line(text, unknown[0], file), hint="name and config are")
        content = {"name": content.get("name", ""), **{name: value for name, value in config.items() if name != "name"}}
    for name, value in content.items():
        if isinstance(value, dict | list):
            raise DefiniteError(f"{name} must be a text", place=_line(text, name, file), hint="connectors have texts only")
        if value is not None:
            yield Entry(name, _as_text(value), _line_number(text, name))


def _once(pairs: list[tuple[str, Any]], text: str, file: str) -> dict[str, Any]:
    """Return an object; raise for a key that is given twice, which JSON would silently drop."""
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise DefiniteError(f"{name} is given twice", place=_line(text, name, file), hint="leave one out")
        content[name] = value
    return content


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _line_number(text: str, key: str) -> int:
    found = re.search(re.escape(json.dumps(key)) + r"\s*:", text)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def _line(text: str, key: str, file: str) -> str:
    return f"{file}, line {_line_number(text, key)}"


def _yaml(text: str, file: str) -> Iterator[Entry]:
    """Parse top-level keys with texts."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line, first = lines[number], number + 1
        number += 1
        if not line.strip() or line.lstrip().startswith("#") or line.strip() in ("---", "..."):
            continue
        found = _YAML_KEY.match(line)
        if found is None:
            raise DefiniteError(
                "the line is not KEY: VALUE", place=f"{file}, line {first}", hint="write all keys at the left edge, each with a text"
            )
        key, rest = found[1] or found[2] or found[3], line[found.end() :]
        quote = rest[:1] if rest[:1] in ('"', "'") else ""
        if quote:
            # A quoted text may continue on the next lines.
            while not _is_closed(rest, quote) and number < len(lines):
                rest += "\n" + lines[number]
                number += 1
            if not _is_closed(rest, quote):
                raise DefiniteError(f"{quote} is never closed", place=f"{file}, line {first}", hint="close it")
        elif rest[:1] in ("|", ">", "[", "{", "&", "*", "!") or (not rest.strip() and _is_nested(lines, number)):
            raise DefiniteError(f"{key.strip()} is no plain text", place=f"{file}, line {first}", hint='write KEY: "TEXT"')
        yield Entry(key.strip(), _yaml_text(rest, quote), first)


def _is_closed(text: str, quote: str) -> bool:
    return _end_of(text, quote) > 0


def _end_of(text: str, quote: str) -> int:
    """Return the end of a quoted text; 0 if it is not closed."""
    at = 1
    while at < len(text):
        if (quote == '"' and text[at] == "\\") or (quote == "'" and text.startswith("''", at)):
            at += 2
        elif text[at] == quote:
            return at
        else:
            at += 1
    return 0


def _is_nested(lines: list[str], number: int) -> bool:
    following = next((line for line in lines[number:] if line.strip() and not line.lstrip().startswith("#")), "")
    return following[:1] in (" ", "\t", "-")


def _yaml_text(rest: str, quote: str) -> str:
    if not quote:
        return re.split(r"\s+#|^#", rest, maxsplit=1)[0].strip()
    inside = re.sub(r"[ \t]*\n[ \t]*", " ", rest[1 : _end_of(rest, quote)])
    if quote == "'":
        return inside.replace("''", "'")
    return re.sub(r"\\(.)", lambda found: _YAML_ESCAPES.get(found[1], found[0]), inside)
