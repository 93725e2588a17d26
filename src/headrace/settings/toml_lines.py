"""Finds the line of each key in a TOML file, for messages; `tomllib` does not report lines.

Invariant: a reported line contains the key's name. For a key that cannot be found (inside an inline table), the line of the enclosing key
is reported, or none.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str, ...]
_HEADER = re.compile(r"\s*\[\[?(.+?)\]\]?\s*(?:#.*)?$")


def find_key_lines(text: str) -> Mapping[Path, int]:
    """Return the line of each table and key of a valid TOML text."""
    found: dict[Path, int] = {}
    table: Path = ()
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


def _note(found: dict[Path, int], path: Path, number: int) -> None:
    for end in range(1, len(path) + 1):
        found.setdefault(path[:end], number)


def nearest_line(lines: Mapping[Path, int], path: Path) -> int | None:
    """Return the line of a key, or of the nearest enclosing key."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


def parse_key(text: str) -> Path | None:
    """Split a dotted TOML key; None if the text is not a key."""
    return _parse_path(f"{text} = 0")


def _key(line: str) -> Path | None:
    for place in [place for place, character in enumerate(line) if character == "="]:
        path = parse_key(line[:place])
        if path is not None:
            return path
    return None


def _parse_path(text: str) -> Path | None:
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
