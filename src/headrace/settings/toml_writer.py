"""Writes settings files and pipe files as TOML, which their readers read back unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.settings.settings_file import PlainSettings
from headrace.settings.toml_lines import Keys

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_HEADRACE: Final = ("headrace",)
_SETTINGS_SECTIONS: Final = (("*",), ("sink", "tables"), ("sink", "tables", "*"), ("transforms", "*"))
_PIPE_SECTIONS: Final = (
    ("*",),
    *((kind, "*") for kind in ("sources", "sinks", "pipes")),
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

    def note(self, path: Keys, text: str) -> None:
        self.above.setdefault(path, []).append(text)


def to_toml(settings: PlainSettings) -> str:
    """Render a settings file."""
    return _render(AnnotatedToml(settings), _SETTINGS_SECTIONS)


def render_toml(written: AnnotatedToml) -> str:
    """Render a pipe file."""
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
        yield f"{_key(name)} = {_value(table[name])}" + (f"  # {trailing}" if trailing else "")
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
