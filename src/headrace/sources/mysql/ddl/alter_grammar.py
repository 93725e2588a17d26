"""The grammar of ALTER TABLE's clauses."""

from __future__ import annotations

import logging
from typing import Final

from headrace.model.schema_change import FIRST
from headrace.sources.mysql.ddl.ast import (
    AddColumns,
    AddKey,
    AlterColumn,
    ChangeColumn,
    Clause,
    ColumnText,
    ConvertTo,
    DisturbRows,
    DropColumnClause,
    DropForeignKey,
    DropKey,
    KeyText,
    OptionsText,
    RenameColumnClause,
    RenameKey,
    RenameTo,
    SetOptions,
    Versioning,
)
from headrace.sources.mysql.ddl.column_grammar import accept_charset, parse_column, parse_default
from headrace.sources.mysql.ddl.key_grammar import parse_key, parse_option, starts_key
from headrace.sources.mysql.ddl.token_cursor import DdlCursor

log = logging.getLogger("headrace.ddl")

_NO_CHANGE: Final = ("FORCE", "ENABLE", "DISABLE", "ALGORITHM", "LOCK", "SECONDARY_LOAD", "SECONDARY_UNLOAD")
_KEEPS_ROWS: Final = ("REORGANIZE", "COALESCE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK", "REPAIR", "REMOVE", "PARTITION")
"""Partition operations that do not change the table's rows."""


def parse_clauses(cursor: DdlCursor) -> tuple[Clause, ...]:
    """Parse all clauses of an ALTER TABLE, after the table's name."""
    clauses: list[Clause] = []
    while not cursor.at_end:
        clauses += _clause(cursor)
        if cursor.at_end:
            break
        if not cursor.accept_sign(",") and cursor.keyword() not in ("PARTITION", "REMOVE"):
            raise cursor.surprise("a comma or the end")
    return tuple(clauses)


def _clause(cursor: DdlCursor) -> list[Clause]:
    word = cursor.keyword()
    if cursor.accept("ADD"):
        return _add(cursor)
    if cursor.accept("DROP"):
        return _drop(cursor)
    if cursor.accept("MODIFY"):
        cursor.accept("COLUMN")
        if_exists = cursor.if_exists()
        name = cursor.name()
        return [ChangeColumn(name, parse_column(cursor, name), _place(cursor), if_exists)]
    if cursor.accept("CHANGE"):
        cursor.accept("COLUMN")
        if_exists = cursor.if_exists()
        name = cursor.name()
        return [ChangeColumn(name, parse_column(cursor, cursor.name()), _place(cursor), if_exists)]
    if cursor.accept("ALTER"):
        return _alter(cursor)
    if cursor.accept("RENAME"):
        return _rename(cursor)
    if cursor.accept("CONVERT"):
        return _convert(cursor)
    if cursor.accept("ORDER", "BY"):
        _skip_to_end(cursor)
        return []
    if word in ("DISCARD", "IMPORT", "TRUNCATE", "EXCHANGE"):
        return _disturb(cursor)
    if word in _KEEPS_ROWS:
        log.debug("leaving out a clause about partitions: %s", cursor.text)
        _skip_to_end(cursor)
        return []
    if word in _NO_CHANGE:
        cursor.skip_item()
        return []
    if cursor.accept_any("WITH", "WITHOUT"):
        cursor.expect("VALIDATION")
        return []
    return _options(cursor)


def _options(cursor: DdlCursor) -> list[Clause]:
    """Parse table options, separated by spaces."""
    options = OptionsText()
    while not cursor.at_stop and cursor.keyword() not in ("PARTITION", "REMOVE"):
        options = parse_option(cursor, options)
    return [SetOptions(options)]


def _add(cursor: DdlCursor) -> list[Clause]:
    if cursor.accept("PARTITION"):
        log.debug("leaving out a clause about partitions: %s", cursor.text)
        _skip_to_end(cursor)
        return []
    if cursor.accept("SYSTEM", "VERSIONING"):
        return [Versioning("ADD SYSTEM VERSIONING")]
    if cursor.accept("PERIOD", "FOR"):
        cursor.name()
        cursor.skip_parentheses()
        return [Versioning("ADD PERIOD")]
    if starts_key(cursor):
        key = parse_key(cursor)
        return [AddKey(key)] if key is not None else []
    cursor.accept("COLUMN")
    if_not_exists = cursor.if_not_exists()
    if not cursor.accept_sign("("):
        column = parse_column(cursor, cursor.name())
        return [AddColumns((column,), column.keys, _place(cursor), if_not_exists)]
    columns: list[ColumnText] = []
    keys: list[KeyText] = []
    while True:
        if starts_key(cursor):
            key = parse_key(cursor)
            keys += [key] if key is not None else []
        else:
            column = parse_column(cursor, cursor.name())
            columns.append(column)
            keys += column.keys
        if not cursor.accept_sign(","):
            break
    cursor.expect_sign(")")
    return [AddColumns(tuple(columns), tuple(keys), None, if_not_exists)]


def _place(cursor: DdlCursor) -> str | None:
    if cursor.accept("FIRST"):
        return FIRST
    if cursor.accept("AFTER"):
        return cursor.name()
    return None


def _drop(cursor: DdlCursor) -> list[Clause]:
    if cursor.accept("PRIMARY", "KEY"):
        if_exists = cursor.if_exists()
        return [DropKey("PRIMARY", if_exists)]
    if cursor.accept_any("INDEX", "KEY"):
        if_exists = cursor.if_exists()
        return [DropKey(cursor.name(), if_exists)]
    if cursor.accept("FOREIGN", "KEY"):
        if_exists = cursor.if_exists()
        return [DropForeignKey(cursor.name(), if_exists)]
    if cursor.accept("CHECK"):
        cursor.if_exists()
        cursor.name()
        return []
    if cursor.accept("CONSTRAINT"):
        if_exists = cursor.if_exists()
        return [DropKey(cursor.name(), if_exists, constraint=True)]
    if cursor.accept("PARTITION"):
        _skip_to_end(cursor)
        return [DisturbRows("DROP PARTITION")]
    if cursor.accept("SYSTEM", "VERSIONING"):
        return [Versioning("DROP SYSTEM VERSIONING")]
    if cursor.accept("PERIOD", "FOR"):
        cursor.name()
        return []
    cursor.accept("COLUMN")
    if_exists = cursor.if_exists()
    name = cursor.name()
    cursor.accept_any("RESTRICT", "CASCADE")
    return [DropColumnClause(name, if_exists)]


def _alter(cursor: DdlCursor) -> list[Clause]:
    if cursor.keyword() in ("INDEX", "KEY", "CONSTRAINT", "CHECK"):
        cursor.skip_item()
        return []
    cursor.accept("COLUMN")
    if_exists = cursor.if_exists()
    name = cursor.name()
    if cursor.accept("DROP", "DEFAULT"):
        return [AlterColumn(name, drop_default=True, if_exists=if_exists)]
    cursor.expect("SET")
    if word := cursor.accept_any("VISIBLE", "INVISIBLE"):
        return [AlterColumn(name, invisible=word == "INVISIBLE", if_exists=if_exists)]
    cursor.expect("DEFAULT")
    default = parse_default(cursor)
    return [AlterColumn(name, default, null_default=default is None, if_exists=if_exists)]


def _rename(cursor: DdlCursor) -> list[Clause]:
    if cursor.accept("COLUMN"):
        if_exists = cursor.if_exists()
        name = cursor.name()
        cursor.expect("TO")
        return [RenameColumnClause(name, cursor.name(), if_exists)]
    if cursor.accept_any("INDEX", "KEY"):
        if_exists = cursor.if_exists()
        name = cursor.name()
        cursor.expect("TO")
        return [RenameKey(name, cursor.name(), if_exists)]
    cursor.accept_any("TO", "AS") or cursor.accept_sign("=")
    return [RenameTo(cursor.table())]


def _convert(cursor: DdlCursor) -> list[Clause]:
    if cursor.accept("PARTITION"):
        # MariaDB: a partition becomes a separate table.
        while not cursor.at_end and not cursor.accept("TABLE"):
            cursor.next()
        other = cursor.table()
        _skip_to_end(cursor)
        return [DisturbRows("CONVERT PARTITION", other)]
    if cursor.accept("TABLE"):
        other = cursor.table()
        _skip_to_end(cursor)
        return [DisturbRows("CONVERT TABLE", other)]
    cursor.expect("TO")
    if not accept_charset(cursor):
        raise cursor.surprise("CHARACTER SET")
    charset = "" if cursor.accept("DEFAULT") else cursor.value_name()
    collation = ""
    if cursor.accept("COLLATE"):
        cursor.accept_sign("=")
        collation = cursor.value_name()
    return [ConvertTo(charset, collation)]


def _disturb(cursor: DdlCursor) -> list[Clause]:
    word = cursor.next().keyword
    what = f"{word} {cursor.keyword()}"
    other = None
    if word == "EXCHANGE":
        while not cursor.at_end and not cursor.accept("WITH", "TABLE"):
            cursor.next()
        other = cursor.table()
    _skip_to_end(cursor)
    return [DisturbRows(what, other)]


def _skip_to_end(cursor: DdlCursor) -> None:
    cursor.skip_all()
