"""On which line of a TOML file each key stands, for messages; Python's own parser does not tell.

Invariant: a line that is told is a line on which the key's name is written. Where a key cannot be found (inside of an inline table,
say), the line of what holds it is told, or none.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str, ...]
_HEADER = re.compile(r"\s*\[\[?(.+?)\]\]?\s*(?:#.*)?$")


def find_lines(text: str) -> Mapping[Path, int]:
    """The line of each table and key of a file that is TOML."""
    found: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            path = _path(f"[{header.group(1)}]")
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


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of a key, or of the nearest thing around it."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


def parse_key(text: str) -> Path | None:
    """The parts of a dotted key, quoted where they must be; None if it is no key."""
    return _path(f"{text} = 0")


def _key(line: str) -> Path | None:
    for place in [place for place, character in enumerate(line) if character == "="]:
        path = parse_key(line[:place])
        if path is not None:
            return path
    return None


def _path(text: str) -> Path | None:
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
