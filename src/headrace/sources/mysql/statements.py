"""Statements found in the log between changes of rows: which of them matter to the replicated tables.

Deliberately coarse until schema changes are followed: it errs on the side of stopping. A statement is harmless only if its kind cannot
touch table data, or if none of its words names a replicated table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from headrace.model.schema import TableName
from headrace.sources.mysql.events import Query


class Effect(Enum):
    """What a statement may have done to the replicated tables."""

    NONE = auto()
    CREATED = auto()
    """A table was made; its rows, if any, follow as changes."""
    ALTERED = auto()
    """A definition may have changed; the data did not change without row events."""
    DESTRUCTIVE = auto()
    """Rows went, came or moved without row events: it cannot be passed over."""


@dataclass(frozen=True, slots=True)
class Assessment:
    effect: Effect
    tables: tuple[TableName, ...] = ()


_COMMENT = re.compile(r"/\*(?!!|M!).*?\*/|--[ \t][^\n]*|#[^\n]*", re.DOTALL)
_VERSION_COMMENT = re.compile(r"/\*M?!\d*\s*|\*/")
_STRING = re.compile(r"'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\"", re.DOTALL)
_NAME = r"(?:`(?:[^`]|``)+`|[\w$\u0080-\uffff]+)"
_FULL_NAME = re.compile(rf"({_NAME})(?:\s*\.\s*({_NAME}))?")
_CREATE = re.compile(r"CREATE\s+(OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?", re.IGNORECASE)
_HARMLESS = re.compile(
    r"(GRANT|REVOKE|FLUSH|ANALYZE|OPTIMIZE|REPAIR|CHECK|SET|USE|KILL|RESET|PURGE|INSTALL|UNINSTALL|LOCK|UNLOCK|DO|SHOW)\b"
    r"|(CREATE|DROP)\s+TEMPORARY\b"
    r"|(CREATE|ALTER)\s+(DATABASE|SCHEMA)\b"
    r"|(CREATE|DROP|ALTER|RENAME)\s+(OR\s+REPLACE\s+)?"
    r"(DEFINER\s*=\s*\S+\s+|AGGREGATE\s+|SQL\s+SECURITY\s+\w+\s+|ALGORITHM\s*=\s*\w+\s+|SPATIAL\s+REFERENCE\s+|UNDO\s+)*"
    r"(USER|ROLE|VIEW|PROCEDURE|FUNCTION|TRIGGER|EVENT|SERVER|TABLESPACE|LOGFILE|SEQUENCE|PACKAGE|SYSTEM|RESOURCE|LIBRARY)\b",
    re.IGNORECASE,
)
_DROP_DATABASE = re.compile(rf"DROP\s+(?:DATABASE|SCHEMA)\s+(?:IF\s+EXISTS\s+)?({_NAME})", re.IGNORECASE)
_DEFINITION = re.compile(
    r"ALTER\s+(ONLINE\s+|IGNORE\s+)*TABLE\b|(CREATE|DROP)\s+(UNIQUE\s+|FULLTEXT\s+|SPATIAL\s+|OR\s+REPLACE\s+)*INDEX\b", re.IGNORECASE
)
_DATA_MOVING_CLAUSE = re.compile(
    r"\b(DROP|TRUNCATE|EXCHANGE|CONVERT|DISCARD|IMPORT)\s+(PARTITION|TABLESPACE|TABLE)\b|\bRENAME\s+(TO|AS)\b|\bRENAME\s+`", re.IGNORECASE
)


def assess(query: Query, wanted: Callable[[TableName], bool]) -> Assessment:
    """What `query` means for the tables that are `wanted`."""
    text = _VERSION_COMMENT.sub(" ", _COMMENT.sub(" ", query.statement)).strip()
    if not text or _HARMLESS.match(text):
        return Assessment(Effect.NONE)
    dropped = _DROP_DATABASE.match(text)
    if dropped:
        name = TableName(_unquoted(dropped.group(1)), "*")
        return Assessment(Effect.DESTRUCTIVE, (name,)) if wanted(name) or _may_hold(name.database, wanted) else Assessment(Effect.NONE)
    bare = _STRING.sub("''", text)
    created = _CREATE.match(bare)
    if created:
        found = _FULL_NAME.match(bare, created.end())
        tables = (_full_name(found, query.database),) if found else ()
        if not tables or not wanted(tables[0]):
            return Assessment(Effect.NONE)
        return Assessment(Effect.DESTRUCTIVE if created.group(1) else Effect.CREATED, tables)
    named = tuple(sorted({name for name in _names(bare, query.database) if wanted(name)}))
    if not named:
        return Assessment(Effect.NONE)
    if _DEFINITION.match(bare) and not _DATA_MOVING_CLAUSE.search(bare):
        return Assessment(Effect.ALTERED, named)
    return Assessment(Effect.DESTRUCTIVE, named)


def _names(text: str, database: str) -> list[TableName]:
    """Every word or pair of words that could be a table's name."""
    found = []
    for match in _FULL_NAME.finditer(text):
        found.append(_full_name(match, database))
        if match.group(2):
            found.append(TableName(database, _unquoted(match.group(1))))
    return found


def _full_name(match: re.Match[str], database: str) -> TableName:
    first, second = match.group(1), match.group(2)
    return TableName(_unquoted(first), _unquoted(second)) if second else TableName(database, _unquoted(first))


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _may_hold(database: str, wanted: Callable[[TableName], bool]) -> bool:
    return wanted(TableName(database, "any"))
