"""Finds the line of each key in a TOML file, for messages; `tomllib` does not report lines.

Invariant: a reported line contains the key's name. For a key that cannot be found (inside an inline table), the line of the enclosing key
is reported, or none.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, TypeAlias

Keys: TypeAlias = tuple[str, ...]
"""The names of a dotted key."""
_HEADER = re.compile(r"\s*\[\[?(.+?)\]\]?\s*(?:#.*)?$")


def find_key_lines(text: str) -> Mapping[Keys, int]:
    """Return the line of each table and key of a valid TOML text."""
    found: dict[Keys, int] = {}
    table: Keys = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            path = _parse_path(f"[{header.group(1)}]")
            if path is not None:
                table = path
                _note(found, table, number)
            continue
        key = _key(line)
        if key is not None:
            _note(found, table + key, number)
    return found


def _note(found: dict[Keys, int], path: Keys, number: int) -> None:
    for end in range(1, len(path) + 1):
        found.setdefault(path[:end], number)


def nearest_line(lines: Mapping[Keys, int], path: Keys) -> int | None:
    """Return the line of a key, or of the nearest enclosing key."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


def parse_key(text: str) -> Keys | None:
    """Split a dotted TOML key; None if the text is not a key."""
    return _parse_path(f"{text} = 0")


def _key(line: str) -> Keys | None:
    for place in [place for place, character in enumerate(line) if character == "="]:
        path = parse_key(line[:place])
        if path is not None:
            return path
    return None


def _parse_path(text: str) -> Keys | None:
    try:
        content: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while isinstance(content, dict) and content:
        if len(content) != 1:
            return None
        name, content = next(iter(content.items()))
        path.append(name)
    return tuple(path) or None
