"""The grammar of ALTER TABLE's clauses, of indexes and constraints, and of table and database options."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from headrace.model.schema_change import FIRST
from headrace.sources.mysql.ddl import ast
from headrace.sources.mysql.ddl.column_grammar import accept_charset, parse_column, parse_default, parse_references, skip_enforced
from headrace.sources.mysql.ddl.token_cursor import DdlCursor, DdlTokenKind

log = logging.getLogger("headrace.ddl")

_NO_CHANGE: Final = ("FORCE", "ENABLE", "DISABLE", "ALGORITHM", "LOCK", "SECONDARY_LOAD", "SECONDARY_UNLOAD")
_KEEPS_ROWS: Final = ("REORGANIZE", "COALESCE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK", "REPAIR", "REMOVE", "PARTITION")
"""Partition operations that do not change the table's rows."""
_OPTION: Final = re.compile(
    "TYPE|AUTO_INCREMENT|AVG_ROW_LENGTH|CHECKSUM|TABLE_CHECKSUM|COMPRESSION|CONNECTION|DELAY_KEY_WRITE|ENCRYPTION|ENCRYPTED"
    "|ENCRYPTION_KEY_ID|ENGINE_ATTRIBUTE|SECONDARY_ENGINE_ATTRIBUTE|SECONDARY_ENGINE|INSERT_METHOD|KEY_BLOCK_SIZE|MAX_ROWS|MIN_ROWS"
    "|PACK_KEYS|PAGE_CHECKSUM|PAGE_COMPRESSED|PAGE_COMPRESSION_LEVEL|PASSWORD|ROW_FORMAT|SEQUENCE|STATS_AUTO_RECALC|STATS_PERSISTENT"
    "|STATS_SAMPLE_PAGES|TABLESPACE|TRANSACTIONAL|UNION|AUTOEXTEND_SIZE|STORAGE|NODEGROUP|IETF_QUOTES"
)
"""The options that may lack an equals sign."""
_STARTS: Final = ("PRIMARY", "UNIQUE", "INDEX", "KEY", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK")


def parse_clauses(cursor: DdlCursor) -> tuple[ast.Clause, ...]:
    clauses: list[ast.Clause] = []
    while not cursor.at_end:
        clauses += _clause(cursor)
        if cursor.at_end:
            break
        if not cursor.accept_sign(",") and cursor.keyword() not in ("PARTITION", "REMOVE"):
            raise cursor.surprise("a comma or the end")
    return tuple(clauses)


def _clause(cursor: DdlCursor) -> list[ast.Clause]:
    word = cursor.keyword()
    if cursor.accept("ADD"):
        return _add(cursor)
    if cursor.accept("DROP"):
        return _drop(cursor)
    if cursor.accept_any("MODIFY", "CHANGE"):
        cursor.accept("COLUMN")
        if_exists = cursor.if_exists()
        name = cursor.name()
        column = parse_column(cursor, cursor.name() if word == "CHANGE" else name)
        return [ast.ChangeColumn(name, column, _place(cursor), if_exists)]
    if cursor.accept("ALTER"):
        return _alter(cursor)
    if cursor.accept("RENAME"):
        return _rename(cursor)
    if cursor.accept("CONVERT"):
        return _convert(cursor)
    if word in ("DISCARD", "IMPORT", "TRUNCATE", "EXCHANGE"):
        return _disturb(cursor)
    if word in _KEEPS_ROWS or cursor.accept("ORDER", "BY"):
        return _skip_rest(cursor)
    if word in _NO_CHANGE:
        cursor.skip_item()
        return []
    if cursor.accept_any("WITH", "WITHOUT"):
        cursor.expect("VALIDATION")
        return []
    return _options(cursor)


def _options(cursor: DdlCursor) -> list[ast.Clause]:
    """Parse table options, separated by spaces."""
    options = ast.OptionsText()
    while not cursor.at_stop and cursor.keyword() not in ("PARTITION", "REMOVE"):
        options = parse_option(cursor, options)
    return [ast.SetOptions(options)]


def _add(cursor: DdlCursor) -> list[ast.Clause]:
    if cursor.accept("PARTITION"):
        return _skip_rest(cursor)
    if cursor.accept("SYSTEM", "VERSIONING"):
        return [ast.Versioning("ADD SYSTEM VERSIONING")]
    if cursor.accept("PERIOD", "FOR"):
        cursor.name()
        cursor.skip_parentheses()
        return [ast.Versioning("ADD PERIOD")]
    if starts_key(cursor):
        key = parse_key(cursor)
        return [ast.AddKey(key)] if key is not None else []
    cursor.accept("COLUMN")
    if_not_exists = cursor.if_not_exists()
    if not cursor.accept_sign("("):
        column = parse_column(cursor, cursor.name())
        return [ast.AddColumns((column,), column.keys, _place(cursor), if_not_exists)]
    elements = cursor.items(lambda: parse_element(cursor))
    cursor.expect_sign(")")
    return [ast.AddColumns(*split_elements(elements), None, if_not_exists)]


def parse_element(cursor: DdlCursor) -> ast.ColumnText | ast.KeyText | None:
    """Parse a column, an index, or a constraint (None) of a table's definition."""
    return parse_key(cursor) if starts_key(cursor) else parse_column(cursor, cursor.name())


def split_elements(
    elements: Iterable[ast.ColumnText | ast.KeyText | None],
) -> tuple[tuple[ast.ColumnText, ...], tuple[ast.KeyText, ...]]:
    """Return the columns, and all indexes, also those that columns define, in the order of the elements."""
    columns = tuple(one for one in elements if isinstance(one, ast.ColumnText))
    keys = tuple(key for one in elements if one is not None for key in (one.keys if isinstance(one, ast.ColumnText) else (one,)))
    return columns, keys


def _place(cursor: DdlCursor) -> str | None:
    if cursor.accept("FIRST"):
        return FIRST
    if cursor.accept("AFTER"):
        return cursor.name()
    return None


def _drop(cursor: DdlCursor) -> list[ast.Clause]:
    if cursor.accept("PRIMARY", "KEY"):
        return [ast.DropKey(ast.PRIMARY, cursor.if_exists())]
    if cursor.accept_any("INDEX", "KEY"):
        return [ast.DropKey(if_exists=cursor.if_exists(), name=cursor.name())]
    if cursor.accept("FOREIGN", "KEY"):
        return [ast.DropForeignKey(if_exists=cursor.if_exists(), name=cursor.name())]
    if cursor.accept("CHECK"):
        cursor.if_exists()
        cursor.name()
        return []
    if cursor.accept("CONSTRAINT"):
        return [ast.DropKey(if_exists=cursor.if_exists(), name=cursor.name(), constraint=True)]
    if cursor.accept("PARTITION"):
        cursor.skip_all()
        return [ast.DisturbRows("DROP PARTITION")]
    if cursor.accept("SYSTEM", "VERSIONING"):
        return [ast.Versioning("DROP SYSTEM VERSIONING")]
    if cursor.accept("PERIOD", "FOR"):
        cursor.name()
        return []
    cursor.accept("COLUMN")
    if_exists = cursor.if_exists()
    name = cursor.name()
    cursor.accept_any("RESTRICT", "CASCADE")
    return [ast.DropColumnClause(name, if_exists)]


def _alter(cursor: DdlCursor) -> list[ast.Clause]:
    if cursor.keyword() in ("INDEX", "KEY", "CONSTRAINT", "CHECK"):
        cursor.skip_item()
        return []
    cursor.accept("COLUMN")
    if_exists = cursor.if_exists()
    name = cursor.name()
    if cursor.accept("DROP", "DEFAULT"):
        return [ast.AlterColumn(name, drop_default=True, if_exists=if_exists)]
    cursor.expect("SET")
    if word := cursor.accept_any("VISIBLE", "INVISIBLE"):
        return [ast.AlterColumn(name, invisible=word == "INVISIBLE", if_exists=if_exists)]
    cursor.expect("DEFAULT")
    default = parse_default(cursor)
    return [ast.AlterColumn(name, default, null_default=default is None, if_exists=if_exists)]


def _rename(cursor: DdlCursor) -> list[ast.Clause]:
    if cursor.accept("COLUMN"):
        if_exists = cursor.if_exists()
        name = cursor.name()
        cursor.expect("TO")
        return [ast.RenameColumnClause(name, cursor.name(), if_exists)]
    if cursor.accept_any("INDEX", "KEY"):
        if_exists = cursor.if_exists()
        name = cursor.name()
        cursor.expect("TO")
        return [ast.RenameKey(name, cursor.name(), if_exists)]
    cursor.accept_any("TO", "AS") or cursor.accept_sign("=")
    return [ast.RenameTo(cursor.table())]


def _convert(cursor: DdlCursor) -> list[ast.Clause]:
    if word := cursor.accept_any("PARTITION", "TABLE"):
        # MariaDB: a partition becomes a separate table, or the opposite.
        while word == "PARTITION" and not cursor.at_end and not cursor.accept("TABLE"):
            cursor.next()
        other = cursor.table()
        cursor.skip_all()
        return [ast.DisturbRows(f"CONVERT {word}", other)]
    cursor.expect("TO")
    if not accept_charset(cursor):
        raise cursor.surprise("CHARACTER SET")
    charset = "" if cursor.accept("DEFAULT") else cursor.value_name()
    return [ast.ConvertTo(charset, cursor.value_name() if cursor.accept_setting("COLLATE") else "")]


def _disturb(cursor: DdlCursor) -> list[ast.Clause]:
    word = cursor.next().keyword
    what = f"{word} {cursor.keyword()}"
    other = None
    if word == "EXCHANGE":
        while not cursor.at_end and not cursor.accept("WITH", "TABLE"):
            cursor.next()
        other = cursor.table()
    cursor.skip_all()
    return [ast.DisturbRows(what, other)]


def _skip_rest(cursor: DdlCursor) -> list[ast.Clause]:
    """Skip clauses about partitions, or about the order of rows."""
    log.debug("leaving out a clause: %s", cursor.text)
    cursor.skip_all()
    return []


def starts_key(cursor: DdlCursor) -> bool:
    return cursor.keyword() in _STARTS or (cursor.is_next("VECTOR") and cursor.keyword(1) in ("INDEX", "KEY"))


def parse_key(cursor: DdlCursor) -> ast.KeyText | None:
    """Parse an index, or a constraint that may create one; None for a constraint that never does."""
    constraint = ""
    if cursor.accept("CONSTRAINT"):
        cursor.if_not_exists()
        if not (cursor.peek().form is DdlTokenKind.WORD and cursor.keyword() in _STARTS):
            constraint = cursor.name()
    if cursor.accept("CHECK"):
        cursor.skip_parentheses()
        skip_enforced(cursor)
        return None
    if cursor.accept("FOREIGN", "KEY"):
        return _foreign(cursor, constraint)
    if cursor.accept("PRIMARY", "KEY"):
        return _rest(cursor, ast.KeyText("primary", "PRIMARY", ()), constraint, named=True)
    if cursor.accept("UNIQUE"):
        cursor.accept_any("INDEX", "KEY")
        return _rest(cursor, ast.KeyText("unique", "", ()), constraint)
    if word := cursor.accept_any("FULLTEXT", "SPATIAL", "VECTOR"):
        cursor.accept_any("INDEX", "KEY")
        return _rest(cursor, ast.KeyText(word.lower(), "", ()), "")
    if not cursor.accept_any("INDEX", "KEY"):
        raise cursor.surprise("an index")
    return _rest(cursor, ast.KeyText("index", "", ()), "")


def _rest(cursor: DdlCursor, key: ast.KeyText, constraint: str, *, named: bool = False) -> ast.KeyText:
    key = replace(key, if_not_exists=cursor.if_not_exists(), name=key.name or constraint)
    if not cursor.sees("(") and not _is_using(cursor):
        name = cursor.name()
        key = key if named else replace(key, name=name)
    _skip_using(cursor)
    key = parse_parts(cursor, key)
    cursor.skip_item()
    return key


def _is_using(cursor: DdlCursor) -> bool:
    return cursor.keyword() in ("USING", "TYPE") and cursor.keyword(1) in ("BTREE", "HASH", "RTREE")


def _skip_using(cursor: DdlCursor) -> None:
    if _is_using(cursor):
        cursor.next()
        cursor.next()


def parse_parts(cursor: DdlCursor, key: ast.KeyText) -> ast.KeyText:
    """Parse the columns of an index, in parentheses."""
    cursor.expect_sign("(")
    parts = [part for part in cursor.items(lambda: _part(cursor)) if part is not None]
    cursor.expect_sign(")")
    return replace(key, columns=tuple(name for name, _ in parts), prefixes=tuple(prefix for _, prefix in parts))


def _part(cursor: DdlCursor) -> tuple[str, int] | None:
    """Parse a part of an index: its column, empty for an expression, and its prefix; None for a period."""
    name, prefix = "", 0
    if cursor.sees("("):
        cursor.skip_parentheses()
    else:
        name = cursor.name()
        if cursor.accept_sign("("):
            prefix = cursor.number()
            cursor.expect_sign(")")
    is_period = cursor.accept("WITHOUT", "OVERLAPS")
    cursor.accept_any("ASC", "DESC")
    return None if is_period else (name, prefix)


def _foreign(cursor: DdlCursor, constraint: str) -> ast.KeyText:
    if_not_exists = cursor.if_not_exists()
    name = "" if cursor.sees("(") else cursor.name()
    key = parse_parts(cursor, ast.KeyText("foreign", constraint or name, (), if_not_exists=if_not_exists))
    cursor.expect("REFERENCES")
    return replace(key, constraint=constraint, references=parse_references(cursor))


def parse_create_index(cursor: DdlCursor, *, or_replace: bool) -> ast.KeyText | None:
    """Parse the index after CREATE [OR REPLACE], up to ON; None if it is no index."""
    kind = "index"
    cursor.accept_any("ONLINE", "OFFLINE")
    if word := cursor.accept_any("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"):
        kind = word.lower()
    if not cursor.accept("INDEX"):
        return None
    if_not_exists = cursor.if_not_exists()
    name = cursor.name()
    _skip_using(cursor)
    return ast.KeyText(kind, name, (), if_not_exists=if_not_exists, or_replace=or_replace)


def parse_option(cursor: DdlCursor, options: ast.OptionsText) -> ast.OptionsText:
    """Parse one option of a table or a database. Options that do not concern columns are skipped."""
    cursor.accept("DEFAULT")
    if accept_charset(cursor):
        return replace(options, charset=cursor.value_name(), collation="")
    if cursor.accept_setting("COLLATE"):
        return replace(options, collation=cursor.value_name())
    if cursor.accept_setting("COMMENT"):
        return replace(options, comment=cursor.string())
    if cursor.accept_setting("ENGINE"):
        return replace(options, engine=cursor.value_name().upper())
    if cursor.accept_any("DATA", "INDEX"):
        cursor.expect("DIRECTORY")
    elif cursor.accept("START"):
        cursor.expect("TRANSACTION")
        return options
    elif cursor.accept("READ"):
        cursor.expect("ONLY")
    elif cursor.sees("=", 1) or _OPTION.fullmatch(cursor.keyword()):
        cursor.name()
    else:
        raise cursor.surprise("an option")
    cursor.accept_sign("=")
    if cursor.sees("("):
        cursor.skip_parentheses()
        return options
    cursor.accept_sign("-")
    if cursor.peek().form in (DdlTokenKind.SIGN, DdlTokenKind.END):
        raise cursor.surprise("an option's value")
    cursor.next()
    # TABLESPACE t STORAGE DISK
    if cursor.accept("STORAGE"):
        cursor.next()
    return options
