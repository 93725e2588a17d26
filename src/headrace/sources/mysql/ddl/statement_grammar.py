"""The grammar of statements: a text to its syntax tree, in all forms of MySQL and MariaDB.

Every statement is one of three kinds: a change of a table or a database, which is parsed; a row change, which is named; or one that cannot
change a table, recognised by its first words. Anything else raises `NotUnderstood`: no statement is skipped because it could not be parsed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from headrace.model.schema import TableName
from headrace.sources.mysql.ddl import ast
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.ddl.table_grammar import (
    parse_clauses,
    parse_create_index,
    parse_element,
    parse_option,
    parse_parts,
    split_elements,
)
from headrace.sources.mysql.ddl.token_cursor import DdlCursor

_HARMLESS: Final = re.compile(
    r"GRANT|REVOKE|FLUSH|OPTIMIZE|REPAIR|CHECK|CHECKSUM|SET|USE|KILL|RESET|PURGE|INSTALL|UNINSTALL|LOCK|UNLOCK|SHOW|XA"
    r"|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|START|STOP|CHANGE|HELP|DESCRIBE|DESC|EXPLAIN|CACHE|BINLOG|HANDLER|SIGNAL"
    r"|RESIGNAL|PREPARE|EXECUTE|DEALLOCATE|SHUTDOWN|RESTART|CLONE|BACKUP"
)
_ROWS: Final = re.compile(r"INSERT|UPDATE|DELETE|REPLACE|LOAD|CALL|WITH|IMPORT|MERGE|TABLE|VALUES|SELECT|DO")
"""Servers log a SELECT or a DO only for the function that it calls, which changes rows."""
_OTHER_OBJECTS: Final = re.compile(
    r"USER|ROLE|VIEW|PROCEDURE|FUNCTION|TRIGGER|EVENT|SERVER|TABLESPACE|LOGFILE|SEQUENCE|PACKAGE|SYSTEM|RESOURCE|LIBRARY"
    r"|CATALOG|INSTANCE|AGGREGATE|DEFINER|ALGORITHM|SQL|UNDO|JSON"
)


def parse_statement(text: str, database: str, dialect: Dialect, sql_mode: int) -> ast.StatementText | None:
    """Parse a statement; None if it changes no table. Names without a database are in `database`."""
    cursor = DdlCursor(text, database, dialect, sql_mode)
    _skip_settings(cursor)
    if cursor.at_end:
        return None
    word = cursor.keyword()
    if _ROWS.fullmatch(word):
        return ast.RowStatement(word)
    if _HARMLESS.fullmatch(word):
        return None
    cursor.next()
    if word == "ANALYZE":
        return _analyze(cursor)
    rule = {"CREATE": _create, "ALTER": _alter, "DROP": _drop, "RENAME": _rename, "TRUNCATE": _truncate}.get(word)
    if rule is None:
        raise cursor.surprise("a statement")
    found = rule(cursor)
    if found is not None and not cursor.at_end:
        raise cursor.surprise("the end of the statement")
    return found


def _skip_settings(cursor: DdlCursor) -> None:
    """Skip MariaDB's SET STATEMENT variable = value FOR, which may precede any statement."""
    if not cursor.accept("SET", "STATEMENT"):
        return
    while not cursor.at_end and not cursor.accept("FOR"):
        cursor.skip_unit()


def _analyze(cursor: DdlCursor) -> ast.StatementText | None:
    cursor.accept_any("NO_WRITE_TO_BINLOG", "LOCAL")
    if cursor.accept_any("TABLE", "TABLES"):
        return None
    # ANALYZE of a statement runs it.
    return ast.RowStatement(cursor.keyword() or "ANALYZE")


def _create(cursor: DdlCursor) -> ast.StatementText | None:
    or_replace = cursor.accept("OR", "REPLACE")
    if cursor.accept("TEMPORARY"):
        if not cursor.accept("TABLE"):
            return None
        cursor.if_not_exists()
        made = ast.CreateTemporary(cursor.table())
        cursor.skip_all()
        return made
    if cursor.accept("TABLE"):
        return _create_table(cursor, or_replace=or_replace)
    if cursor.accept_any("DATABASE", "SCHEMA"):
        if_not_exists = cursor.if_not_exists()
        name = cursor.database_name()
        return ast.CreateDatabaseText(name, _options(cursor), if_not_exists, or_replace)
    if cursor.is_next("SPATIAL", "REFERENCE") or _OTHER_OBJECTS.fullmatch(cursor.keyword()):
        return None
    key = parse_create_index(cursor, or_replace=or_replace)
    if key is None:
        raise cursor.surprise("what is created")
    cursor.expect("ON")
    table = cursor.table()
    key = parse_parts(cursor, key)
    # Its options, the algorithm, the lock and the timeout.
    cursor.skip_all()
    return ast.AlterTable(table, (ast.AddKey(key),))


def _create_table(cursor: DdlCursor, *, or_replace: bool) -> ast.StatementText | None:
    if_not_exists = cursor.if_not_exists()
    made = ast.CreateTableText(cursor.table(), if_not_exists=if_not_exists, or_replace=or_replace)
    if cursor.accept("LIKE"):
        return replace(made, like=cursor.table())
    if cursor.keyword(1) == "LIKE" and cursor.accept_sign("("):
        cursor.expect("LIKE")
        made = replace(made, like=cursor.table())
        cursor.expect_sign(")")
        return made
    if cursor.sees("(") and cursor.keyword(1) not in ("SELECT", "WITH", "VALUES", "TABLE") and not cursor.sees("(", 1):
        columns, keys, versioned = _elements(cursor)
        made = replace(made, columns=columns, keys=keys, versioned=versioned)
    return _create_table_tail(cursor, made)


def _elements(cursor: DdlCursor) -> tuple[tuple[ast.ColumnText, ...], tuple[ast.KeyText, ...], bool]:
    """Parse the parenthesised list of CREATE TABLE: its columns, its indexes, and whether the table is system versioned."""
    cursor.expect_sign("(")
    columns, keys = split_elements(cursor.items(lambda: _element(cursor)))
    cursor.expect_sign(")")
    periods = [key for key in keys if key.kind == "period"]
    versioned = any(column.generated.startswith("row") for column in columns) or any(one.name.upper() == "SYSTEM_TIME" for one in periods)
    required = {part.lower() for period in periods for part in period.columns}
    columns = tuple(replace(column, nullable=False) if column.name.lower() in required else column for column in columns)
    return columns, tuple(key for key in keys if key.kind != "period"), versioned


def _element(cursor: DdlCursor) -> ast.ColumnText | ast.KeyText | None:
    if cursor.accept("PERIOD", "FOR"):
        return parse_parts(cursor, ast.KeyText("period", cursor.name(), ()))
    return parse_element(cursor)


def _create_table_tail(cursor: DdlCursor, made: ast.CreateTableText) -> ast.CreateTableText:
    options = made.options
    while not cursor.at_end:
        if cursor.accept("WITH", "SYSTEM", "VERSIONING"):
            made = replace(made, versioned=True)
        elif cursor.accept("PARTITION"):
            _skip_partitioning(cursor)
        elif cursor.keyword() in ("SELECT", "AS", "IGNORE", "REPLACE", "WITH", "VALUES") or cursor.sees("("):
            cursor.skip_all()
            made = replace(made, selects=True)
        elif not cursor.accept_sign(","):
            options = parse_option(cursor, options)
    return replace(made, options=options)


def _skip_partitioning(cursor: DdlCursor) -> None:
    """Skip everything up to a SELECT, which may follow."""
    while not cursor.at_end and cursor.keyword() not in ("SELECT", "AS", "IGNORE", "REPLACE"):
        cursor.skip_unit()


def _options(cursor: DdlCursor) -> ast.OptionsText:
    options = ast.OptionsText()
    while not cursor.at_end:
        options = parse_option(cursor, options)
    return options


def _alter(cursor: DdlCursor) -> ast.StatementText | None:
    ignore = False
    while (word := cursor.keyword()) in ("ONLINE", "OFFLINE", "IGNORE"):
        ignore |= word == "IGNORE"
        cursor.next()
    if cursor.accept("TABLE"):
        cursor.if_exists()
        table = cursor.table()
        _skip_wait(cursor)
        return ast.AlterTable(table, parse_clauses(cursor), ignore)
    if cursor.accept_any("DATABASE", "SCHEMA"):
        named = not (cursor.keyword() in ("CHARACTER", "CHARSET", "DEFAULT", "COLLATE", "ENCRYPTION", "READ") and not _is_named(cursor))
        name = cursor.database_name() if named else cursor.database
        if cursor.accept("UPGRADE"):
            return None
        return ast.AlterDatabaseText(name, _options(cursor))
    if _OTHER_OBJECTS.fullmatch(cursor.keyword()):
        return None
    raise cursor.surprise("what is altered")


def _is_named(cursor: DdlCursor) -> bool:
    """Whether a word that may begin an option is the database's name."""
    return cursor.keyword() in ("ENCRYPTION", "READ", "CHARSET") and cursor.keyword(1) in ("CHARACTER", "CHARSET", "DEFAULT", "COLLATE")


def _skip_wait(cursor: DdlCursor) -> None:
    if cursor.accept("WAIT"):
        cursor.number()
    else:
        cursor.accept("NOWAIT")


def _drop(cursor: DdlCursor) -> ast.StatementText | None:
    if cursor.accept("TEMPORARY"):
        return None
    if cursor.accept_any("TABLE", "TABLES"):
        cursor.if_exists()
        tables = cursor.items(cursor.table)
        _skip_wait(cursor)
        cursor.accept_any("RESTRICT", "CASCADE")
        return ast.DropTables(tables)
    if cursor.accept_any("DATABASE", "SCHEMA"):
        cursor.if_exists()
        return ast.DropDatabaseText(cursor.database_name())
    cursor.accept_any("ONLINE", "OFFLINE")
    if cursor.accept("INDEX"):
        clause = ast.DropKey(if_exists=cursor.if_exists(), name=cursor.name())
        cursor.expect("ON")
        table = cursor.table()
        cursor.skip_all()
        return ast.AlterTable(table, (clause,))
    if cursor.is_next("SPATIAL", "REFERENCE") or _OTHER_OBJECTS.fullmatch(cursor.keyword()):
        return None
    raise cursor.surprise("what is dropped")


def _rename(cursor: DdlCursor) -> ast.StatementText | None:
    if cursor.keyword() == "USER":
        return None
    if not cursor.accept_any("TABLE", "TABLES"):
        raise cursor.surprise("TABLE")
    cursor.if_exists()
    return ast.RenameTables(cursor.items(lambda: _renamed(cursor)))


def _renamed(cursor: DdlCursor) -> tuple[TableName, TableName]:
    old = cursor.table()
    _skip_wait(cursor)
    cursor.expect("TO")
    return old, cursor.table()


def _truncate(cursor: DdlCursor) -> ast.StatementText | None:
    cursor.accept("TABLE")
    table = cursor.table()
    _skip_wait(cursor)
    return ast.Truncate(table)
