"""Reads files of keys and values with their lines (Java properties, Kafka Connect's JSON, YAML: see `yaml_files`), and lists in values.

Invariant: content other than keys and texts is an error. Debezium's regular expressions become globs: names, wildcards such as `.*` and
`[^.]+`, and alternatives; others are errors.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.config.importers.yaml_files import read_yaml
from headrace.errors import DefiniteError

SUFFIXES: Final = (".properties", ".json", ".yml", ".yaml")
_QUOTED: Final = re.compile(r'"[^"]*"')
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class Entry(NamedTuple):
    key: str
    value: str
    line: int


def read_entries(text: str, file: str) -> list[Entry]:
    """Return the keys of a file; its suffix determines the format."""
    suffix = Path(file).suffix.lower()
    if suffix in (".yml", ".yaml"):
        found = [Entry(*one) for one in read_yaml(text, file)]
    else:
        found = list((_json if suffix == ".json" else _properties)(text, file))
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
        key, value = _unescaped(key), _unescaped(value).rstrip()
        if value.startswith('"') and not key.endswith(("password", "pass")):
            # Java keeps the quotes; the connector's own files have them around texts, also over several lines.
            while not _QUOTED.fullmatch(value) and number < len(lines):
                value = f"{value}\n{lines[number].rstrip()}"
                number += 1
            if not _QUOTED.fullmatch(value):
                raise DefiniteError('" is never closed', place=f"{file}, line {first}", hint="close it, or write the text without quotes")
            value = value[1:-1]
        yield Entry(key, value, first)


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


_PLAIN: Final = re.compile(r"[A-Za-z0-9_$#@ -]")


def split_list(text: str) -> list[str]:
    """Split a list at commas outside of parentheses."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth <= 0:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    return [part for part in (*parts, current.strip()) if part]


def globs_of(expression: str) -> list[str]:
    """Return globs that match the same names as a regular expression; raise `ValueError` if there are none."""
    text = expression.strip().removeprefix("^").removesuffix("$")
    group = re.search(r"\((?:\?:)?([^()]*)\)", text)
    if group is not None:
        following = text[group.end() : group.end() + 1]
        if following and following in "*+?{":
            raise ValueError(text)
        before, after = text[: group.start()], text[group.end() :]
        return [glob for choice in group[1].split("|") for glob in globs_of(f"{before}{choice}{after}")]
    if "|" in text:
        return [glob for choice in text.split("|") for glob in globs_of(choice)]
    return [_glob(text)]


def list_of_globs(text: str, key: str, place: str) -> list[str]:
    found = []
    for expression in split_list(text):
        try:
            found += globs_of(expression)
        except ValueError:
            raise DefiniteError(
                f"{expression!r} in {key} cannot be written as globs", place=place, hint="name the tables, with .* for any text"
            ) from None
    return list(dict.fromkeys(found))


def _glob(text: str) -> str:
    letters, at = "", 0
    while at < len(text):
        letter = text[at]
        if text.startswith((".*", ".+", "[^.]*", "[^.]+", "\\w*", "\\w+"), at):
            some = text.startswith((".+", "[^.]+", "\\w+"), at)
            letters += "?*" if some else "*"
            at += 5 if letter == "[" else 3 if letter == "\\" else 2
        elif letter == "\\" and text[at + 1 : at + 2] and not text[at + 1].isalnum():
            letters += glob.escape(text[at + 1])
            at += 2
        # An unescaped dot matches any character, but users mean a dot.
        elif letter == "." or _PLAIN.match(letter):
            letters += letter
            at += 1
        else:
            raise ValueError(text)
    return letters
