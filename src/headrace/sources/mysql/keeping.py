"""Whether a column's new definition leaves the values that are there as they are.

An ALTER may rewrite every row without a single row event: cut text, pad bytes, round numbers, recompute. Only what surely keeps each value
is said to keep it here; whoever is not sure reads the table again.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from headrace.model.evolution import AddColumn, DropColumn, ModifyColumn, RenameColumn, SchemaChange
from headrace.model.schema import Column, Kind

_UNICODE: Final = frozenset({"utf8mb4", "utf16", "utf16le", "utf32"})
_WORD: Final = re.compile(r"\s*([a-z]+)\s*(?:\((\d+)\))?", re.IGNORECASE)
_LENGTHS: Final = {
    "tinytext": 1 << 8,
    "text": 1 << 16,
    "mediumtext": 1 << 24,
    "longtext": 1 << 32,
    "tinyblob": 1 << 8,
    "blob": 1 << 16,
    "mediumblob": 1 << 24,
    "longblob": 1 << 32,
}
_AS_THEY_ARE: Final = frozenset(
    {
        *(kind for kind in Kind if kind.value.startswith(("int", "uint"))),
        *(Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME, Kind.YEAR, Kind.BIT, Kind.JSON),
        *(Kind.GEOMETRY, Kind.VECTOR, Kind.UUID, Kind.INET4, Kind.INET6),
    }
)
"""Kinds whose values do not depend on how else the type is spelled."""


def keeps_values(change: SchemaChange) -> bool:
    """Whether the rows that are there hold after a change of one table what they held before, under the same names."""
    match change:
        case AddColumn() | DropColumn() | RenameColumn():
            return False
        case ModifyColumn(_, column, new_column):
            return _keeps(column, new_column)
    return True


def columns_of(change: SchemaChange) -> tuple[str, ...]:
    """The columns that a change is about."""
    match change:
        case AddColumn(_, column):
            return (column.name,)
        case DropColumn(_, name):
            return (name,)
        case RenameColumn(_, name, new_name):
            return name, new_name
        case ModifyColumn(_, column):
            return (column.name,)
    return ()


def _keeps(old: Column, new: Column) -> bool:
    if (old.kind, old.precision, old.scale) != (new.kind, new.precision, new.scale) or (old.nullable and not new.nullable):
        return False
    if old.generated or new.generated:
        # What is computed, and how, may have changed with it.
        return replace(old, default=None, comment="", invisible=False) == replace(new, default=None, comment="", invisible=False)
    if old.kind in _AS_THEY_ARE:
        return True
    if old.kind in (Kind.ENUM, Kind.SET):
        return new.members[: len(old.members)] == old.members and _keeps_characters(old, new)
    if old.kind in (Kind.STRING, Kind.BYTES):
        return _keeps_length(old.source_type, new.source_type) and _keeps_characters(old, new)
    return old.source_type == new.source_type


def _keeps_characters(old: Column, new: Column) -> bool:
    return old.charset == new.charset or new.charset in _UNICODE


def _keeps_length(old: str, new: str) -> bool:
    old_word, old_length = _form(old)
    new_word, new_length = _form(new)
    if new_word in ("char", "binary"):
        # Both pad or cut what they hold.
        return (old_word, old_length) == (new_word, new_length) or (old_word == new_word == "char" and new_length >= old_length)
    return new_length >= old_length


def _form(source_type: str) -> tuple[str, int]:
    """A type's first word, and how much it holds at most."""
    found = _WORD.match(source_type)
    if found is None:
        return source_type, 0
    word = found[1].lower()
    return word, _LENGTHS.get(word, int(found[2] or 1))
