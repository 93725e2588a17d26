"""A file of pipes, written: sections with their keys in order, and comments above them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.config.document.document import Keys
from headrace.settings.toml_writer import toml_key, toml_value

SCHEMA_LINE: Final = "#:schema headrace.schema.json"


@dataclass(slots=True)
class AnnotatedToml:
    """What a file is to say."""

    content: dict[str, Any] = field(default_factory=dict)
    above: dict[Keys, list[str]] = field(default_factory=dict)
    """Comments above a section or key; above the empty path: at the top."""
    beside: dict[Keys, str] = field(default_factory=dict)
    """Comments at the end of a key's line."""

    def note(self, path: Keys, text: str) -> None:
        self.above.setdefault(path, []).append(text)


def render_toml(written: AnnotatedToml) -> str:
    """The file."""
    lines = [*_comments(written, ()), *_lines(written, written.content, ())]
    return "\n".join(lines).strip("\n") + "\n"


def _lines(written: AnnotatedToml, table: Mapping[str, Any], path: Keys) -> Iterator[str]:
    keys = [name for name, value in table.items() if not _is_section(path, name, value)]
    if keys or (len(path) == 2 and not table) or (path and path in written.above):
        yield ""
        yield from _comments(written, path)
        yield f"[{'.'.join(map(toml_key, path))}]"
    for name in keys:
        yield from _comments(written, (*path, name))
        beside = written.beside.get((*path, name), "")
        yield f"{toml_key(name)} = {toml_value(table[name])}" + (f"  # {beside}" if beside else "")
    for name, value in table.items():
        if _is_section(path, name, value):
            yield from _lines(written, value, (*path, name))


def _comments(written: AnnotatedToml, path: Keys) -> Sequence[str]:
    return [f"# {line}".rstrip() for text in written.above.get(path, ()) for line in text.splitlines() or [""]]


def _is_section(path: Keys, name: str, value: Any) -> bool:
    """Sections, the policies of a pipe, and the settings of single tables; other tables are values."""
    if not isinstance(value, dict):
        return False
    inner = len(path) == 2 and name in ("tables", "schema_changes")
    return not path or (len(path) == 1 and path[0] != "headrace") or inner or (len(path) == 3 and path[2] == "tables")
