"""The line of each key in a TOML file, for messages (`tomllib` does not report lines), and TOML output, which is read back unchanged.

Invariant: a reported line contains the key's name. For a key that cannot be found (inside an inline table), the line of the enclosing key
is reported, or none.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

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
        for place in [place for place, character in enumerate(line) if character == "="]:
            key = parse_key(line[:place])
            if key is not None:
                _note(found, table + key, number)
                break
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


_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_HEADRACE: Final = ("headrace",)
_SETTINGS_SECTIONS: Final = (("*",), ("sink", "tables"), ("sink", "tables", "*"), ("transforms", "*"))
_PIPE_SECTIONS: Final = (
    ("*",),
    *((kind, "*") for kind in ("sources", "sinks", "pipes", "alerts")),
    *(("*", "*", name) for name in ("tables", "schema_changes")),
    ("*", "*", "tables", "*"),
)
"""Tables that are written as sections; all others are inline values."""


@dataclass(slots=True)
class AnnotatedToml:
    """The content of a pipe file, with comments."""

    content: dict[str, Any] = field(default_factory=dict)
    above: dict[Keys, list[str]] = field(default_factory=dict)
    """Comments above a section or key; above the empty path: at the top."""
    trailing: dict[Keys, str] = field(default_factory=dict)
    """Comments at the end of a key's line."""
    optional: set[Keys] = field(default_factory=set)
    """Keys that are written as comments, with the value that they have without being set."""

    def note(self, path: Keys, text: str) -> None:
        self.above.setdefault(path, []).append(text)


def to_toml(settings: dict[str, Any]) -> str:
    return _render(AnnotatedToml(settings), _SETTINGS_SECTIONS)


def render_toml(written: AnnotatedToml) -> str:
    return _render(written, _PIPE_SECTIONS)


def _render(written: AnnotatedToml, sections: tuple[Keys, ...]) -> str:
    return "\n".join([*_comments(written, ()), *_lines(written, written.content, (), sections)]).strip("\n") + "\n"


def _lines(written: AnnotatedToml, table: Mapping[str, Any], path: Keys, sections: tuple[Keys, ...]) -> Iterator[str]:
    inner = [name for name, value in table.items() if isinstance(value, dict) and _matches((*path, name), sections)]
    keys = [name for name in table if name not in inner]
    if path and (keys or path in written.above or (not table and path != _HEADRACE)):
        yield ""
        yield from _comments(written, path)
        yield f"[{'.'.join(map(_key, path))}]"
    for name in keys:
        yield from _comments(written, (*path, name))
        trailing = written.trailing.get((*path, name), "")
        off = "#" if (*path, name) in written.optional else ""
        yield f"{off}{_key(name)} = {_value(table[name])}" + (f"  # {trailing}" if trailing else "")
    for name in inner:
        yield from _lines(written, table[name], (*path, name), sections)


def _matches(path: Keys, sections: tuple[Keys, ...]) -> bool:
    return any(len(path) == len(one) and all(mask in ("*", name) for mask, name in zip(one, path, strict=True)) for one in sections)


def _comments(written: AnnotatedToml, path: Keys) -> list[str]:
    return [f"# {line}".rstrip() for text in written.above.get(path, ()) for line in text.splitlines() or [""]]


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(name)} = {_value(one)}' for name, one in value.items())} }}" if value else "{}"
    return repr(value)


def _text(text: str) -> str:
    # JSON's escapes are valid in TOML, which also needs one for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
