"""Hints for misplaced keys and for keys of other tools. Only for messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from headrace.config.key_catalog import list_sections
from headrace.settings.foreign_names import REPLACEMENTS
from headrace.settings.schema_policy import ChangeKind

_REPHRASINGS: Final[tuple[tuple[str, Callable[[re.Match[str]], str]], ...]] = (
    (r" under \[kafka\] or \[debezium\]", lambda _: " under [sinks.NAME], or [sources.NAME] of topics"),
    (r"use --([a-z-]+)( '[^']*')?( or --[a-z-]+)?", lambda found: f"write {found[1].replace('-', '_')} of the source"),
    (r"under \[(sink|kafka|debezium)\]", lambda found: f"under [{'sources' if found[1] == 'debezium' else 'sinks'}.NAME]"),
    (r"\[sink\.tables\.", lambda _: "[pipes.NAME.tables."),
    (r"under \[schema_changes\]", lambda _: "under [pipes.NAME.schema_changes]"),
    (r"write master of the source", lambda _: 'write master = "local[N]" under [headrace]'),
    (r"--([a-z]+(?:-[a-z]+)*)", lambda found: found[1].replace("-", "_")),
)
"""Replacements from terms of settings files and flags to terms of a pipe file."""
_FLAG: Final = re.compile(r"(?<![\w-])--([a-z][a-z-]*[a-z])")
_SETTING: Final = re.compile(r"--set [a-z]+\.([a-z_]+)")
_SCHEMA_CHANGES: Final = "schema_changes"
_AMBIGUOUS_KEYS: Final = frozenset({"set", "state"})
"""Keys with the name of a flag and another meaning."""


def hint_for(name: str, raw: Any, here: str) -> str:
    """Return where the key belongs or what to write instead; empty if unknown. `here` is the title of the section with the key."""
    places = [section.title for section in list_sections() if name in section.fields and section.title != here]
    if name in set(ChangeKind):
        places = ["[pipes.NAME.schema_changes]"]
    if places:
        return f"it is a setting of {' and of '.join(places)}"
    for known in _dotted(name, raw):
        if known in REPLACEMENTS:
            return rephrase_for_file(REPLACEMENTS[known])
    return ""


def rephrase_for_file(hint: str) -> str:
    """Rephrase a hint about flags and settings files for a pipe file."""
    for pattern, words in _REPHRASINGS:
        hint = re.sub(pattern, words, hint)
    return hint


def _dotted(name: str, raw: Any) -> list[str]:
    """Return the name, and the longer names that a dotted key of another tool stands for."""
    if not isinstance(raw, dict):
        return [name]
    return [f"{name}.{rest}" for inner, value in raw.items() for rest in _dotted(inner, value)] + [name]


def add_file_keys(hint: str) -> str:
    """Add to a hint about flags the corresponding keys and sections of a pipe file."""
    flags = (*_FLAG.findall(hint), *_SETTING.findall(hint))
    keys = dict.fromkeys(flag.replace("-", "_") for flag in flags)
    places = [f"{key} in [{header}]" for key in keys for header in _headers_with(key)[:1]]
    if _SCHEMA_CHANGES in keys:
        places.append(f"[pipes.NAME.{_SCHEMA_CHANGES}]")
    return f"{hint} (in the file: {', '.join(places)})" if places else hint


def _headers_with(key: str) -> list[str]:
    """Return the sections that have the key."""
    return [section.header for section in list_sections() if key in section.fields and key not in _AMBIGUOUS_KEYS]
