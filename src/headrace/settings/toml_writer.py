"""Settings written down as a TOML file, for people to read and for `settings_file` to read back unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from headrace.settings.settings_file import PlainSettings

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(settings: PlainSettings) -> str:
    """The text of a file with these settings."""
    return "\n".join(_lines(settings, ())) + "\n"


def _lines(table: PlainSettings, path: tuple[str, ...]) -> Iterator[str]:
    if path and (not table or any(not _is_section(path, name, value) for name, value in table.items())):
        yield f"[{'.'.join(map(toml_key, path))}]"
    for name, value in table.items():
        if not _is_section(path, name, value):
            yield f"{toml_key(name)} = {toml_value(value)}"
    for name, value in table.items():
        if _is_section(path, name, value):
            yield from _lines(value, (*path, name))


def _is_section(path: tuple[str, ...], name: str, value: Any) -> bool:
    """Sections, and those of single tables; other tables are values."""
    whole = not path or path in (("sink", "tables"), ("transforms",)) or (path == ("sink",) and name == "tables")
    return isinstance(value, dict) and whole


def toml_key(name: str) -> str:
    """A name, quoted where TOML needs it."""
    return name if _BARE.fullmatch(name) else _text(name)


def toml_value(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{toml_key(name)} = {toml_value(one)}' for name, one in value.items())} }}" if value else "{}"
    return repr(value)


def _text(text: str) -> str:
    # JSON's escapes are TOML's as well, but for one character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
