"""Changes keys of a pipe file and leaves every other byte as it is: comments, order and formatting.

Invariant: the text that results means exactly the old content with the changes. This is checked by parsing it with another parser; a file
whose form does not permit the change is an error, and is not written.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Array, Table

from headrace.errors import DefiniteError
from headrace.settings.toml_text import AnnotatedToml, Keys, render_toml

Changes: TypeAlias = Iterable[tuple[Keys, Any]]
"""Paths of keys or sections with their new values; None removes."""


def edit_text(text: str, changes: Changes) -> str:
    """Return the text of a pipe file with changed keys. New sections follow at the end."""
    before = tomllib.loads(text)
    wanted, fresh = copy.deepcopy(before), dict[str, Any]()
    try:
        document = tomlkit.parse(text)
        for path, value in changes:
            _set(wanted, path, value)
            section = _find(document, path[:-1])
            if section is None:
                if value is not None:
                    _set(fresh, path, value)
            elif value is None:
                if path[-1] in section:
                    del section[path[-1]]
            elif section.get(path[-1]) != value:
                _put(section, path[-1], value)
        made = tomlkit.dumps(document)
        if fresh:
            made = f"{made.rstrip()}\n\n{render_toml(AnnotatedToml(fresh))}" if made.strip() else render_toml(AnnotatedToml(fresh))
        if tomllib.loads(made) == wanted:
            return made
    except (TOMLKitError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError):
        pass
    raise DefiniteError(
        "the form of this file does not permit the change",
        place=", ".join(".".join(path) for path, _ in changes),
        hint="change the file by hand, and run headrace reload; sections such as [pipes.NAME] can be changed here, inline tables cannot",
    )


def remove_section(text: str, path: Keys) -> str:
    """Return the text without a section, the sections below it, and the comment directly above it; other comments stay."""
    wanted = tomllib.loads(text)
    _set(wanted, path, None)
    # The last section of a kind leaves no `[kind]`.
    without_empty = {name: value for name, value in wanted.items() if name != path[0] or value}
    made = "".join(_split(text, path)[0])
    try:
        if tomllib.loads(made) in (wanted, without_empty):
            return made
    except tomllib.TOMLDecodeError:
        # The section is not written as headers with keys below.
        pass
    return edit_text(text, [(path, None)])


def section_text(text: str, path: Keys) -> str:
    """Return the lines of a section, and of the sections below it."""
    return "".join(_split(text, path)[1]).strip("\n") + "\n"


def _split(text: str, path: Keys) -> tuple[list[str], list[str]]:
    """Return the lines outside of a section and those inside. A comment directly above the section is in neither."""
    names = r"\s*\.\s*".join(f"[\"']?{re.escape(name)}[\"']?" for name in path)
    own = re.compile(rf"\s*\[\s*{names}\s*[.\]]")
    kept: list[str] = []
    inside: list[str] = []
    block: list[str] = []
    is_inside = False
    for line in [*text.splitlines(keepends=True), "["]:
        if line.lstrip().startswith("["):
            # Comments at the end stand above the next section.
            trailing = _trailing_comments(block)
            inside += block[: len(block) - len(trailing)]
            kept += trailing
            is_inside, block = own.match(line) is not None, []
            while is_inside and kept and kept[-1].lstrip().startswith("#"):
                kept.pop()
        (block if is_inside else kept).append(line)
    return kept[:-1], inside


def _trailing_comments(lines: list[str]) -> list[str]:
    """Return the comments after the last key and the first empty line."""
    end = max((number for number, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), default=-1)
    rest = lines[end + 1 :]
    first = next((number for number, line in enumerate(rest) if line.lstrip().startswith("#")), len(rest))
    return rest[first:]


def _find(document: Any, path: Keys) -> Any:
    found = document
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def _put(section: Any, key: str, value: Any) -> None:
    """Set a key of a section in place."""
    there = section.get(key)
    if isinstance(there, Array) and isinstance(value, list):
        _change_list(there, value)
    elif key in section:
        section[key] = _item(value)
    else:
        # tomlkit puts a new key behind the comments that stand above the next section.
        body = section.value.body if isinstance(section, Table) else []
        above_next = []
        while body and body[-1][0] is None:
            above_next.append(body.pop())
        section[key] = _item(value)
        for _, item in reversed(above_next):
            section.value.append(None, item)


def _change_list(there: Array, value: list[str]) -> None:
    """Change the entries of a list; lines and comments of entries that stay are kept."""
    for entry in [one for one in there if one not in value]:
        there.remove(entry)
    for entry in value:
        if entry not in there:
            there.append(entry)


def _item(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    made = tomlkit.inline_table()
    made.update(value)
    return made


def _set(content: dict[str, Any], path: Keys, value: Any) -> None:
    if value is None:
        section = _find(content, path[:-1])
        if section is not None:
            section.pop(path[-1], None)
        return
    for name in path[:-1]:
        content = content.setdefault(name, {})
    content[path[-1]] = value
