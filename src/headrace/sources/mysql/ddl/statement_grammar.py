"""The grammar of statements: a text to its syntax tree, in all forms of MySQL and MariaDB.

Every statement is one of three kinds: a change of a table or a database, which is parsed; a row change, which is named; or one that cannot
change a table, recognised by its first words. Anything else raises `NotUnderstood`: no statement is skipped because it could not be parsed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from headrace.model.schema import TableName
from headrace.sources.mysql.ddl.alter_grammar import parse_clauses
from headrace.sources.mysql.ddl.ast import (
    AddKey,
    AlterDatabaseText,
    AlterTable,
    Clause,
    ColumnText,
    CreateDatabaseText,
    CreateTableText,
    CreateTemporary,
    DropDatabaseText,
    DropKey,
    DropTables,
    Ignored,
    KeyText,
    OptionsText,
    RenameTables,
    RowStatement,
    StatementText,
    Truncate,
)
from headrace.sources.mysql.ddl.column_grammar import parse_column
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.ddl.key_grammar import parse_create_index, parse_key, parse_option, parse_parts, starts_key
from headrace.sources.mysql.ddl.token_cursor import DdlCursor

_HARMLESS: Final = re.compile(
    r"GRANT|REVOKE|FLUSH|OPTIMIZE|REPAIR|CHECK|CHECKSUM|SET|USE|KILL|RESET|PURGE|INSTALL|UNINSTALL|LOCK|UNLOCK|DO|SHOW|XA"
    r"|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|START|STOP|CHANGE|HELP|DESCRIBE|DESC|EXPLAIN|CACHE|BINLOG|SELECT|HANDLER|SIGNAL"
    r"|RESIGNAL|PREPARE|EXECUTE|DEALLOCATE|SHUTDOWN|RESTART|CLONE|BACKUP"
)
_ROWS: Final = re.compile(r"INSERT|UPDATE|DELETE|REPLACE|LOAD|CALL|WITH|IMPORT|MERGE|TABLE|VALUES")
_OTHER_OBJECTS: Final = re.compile(
    r"USER|ROLE|VIEW|PROCEDURE|FUNCTION|TRIGGER|EVENT|SERVER|TABLESPACE|LOGFILE|SEQUENCE|PACKAGE|SYSTEM|RESOURCE|LIBRARY"
    r"|CATALOG|INSTANCE|AGGREGATE|DEFINER|ALGORITHM|SQL|UNDO|JSON"
)


def parse_statement(text: str, database: str, dialect: Dialect, sql_mode: int) -> StatementText:
    """Parse a statement. Names without a database are in `database`."""
    cursor = DdlCursor(text, database, dialect, sql_mode)
    _skip_settings(cursor)
    if cursor.at_end:
        return Ignored("an empty statement")
    word = cursor.keyword()
    if _ROWS.fullmatch(word):
        return RowStatement(word)
    if _HARMLESS.fullmatch(word):
        return Ignored(word)
    cursor.next()
    if word == "ANALYZE":
        return _analyze(cursor)
    rule = {"CREATE": _create, "ALTER": _alter, "DROP": _drop, "RENAME": _rename, "TRUNCATE": _truncate}.get(word)
    if rule is None:
        raise cursor.surprise("a statement")
    found = rule(cursor)
    if not isinstance(found, Ignored) and not cursor.at_end:
        raise cursor.surprise("the end of the statement")
    return found


def _skip_settings(cursor: DdlCursor) -> None:
    """Skip MariaDB's SET STATEMENT variable = value FOR, which may precede any statement."""
    if not cursor.accept("SET", "STATEMENT"):
        return
    while not cursor.at_end and not cursor.accept("FOR"):
        if cursor.sees("("):
            cursor.skip_parentheses()
        else:
            cursor.next()


def _analyze(cursor: DdlCursor) -> StatementText:
    cursor.accept_any("NO_WRITE_TO_BINLOG", "LOCAL")
    if cursor.accept_any("TABLE", "TABLES"):
        return Ignored("ANALYZE TABLE")
    # ANALYZE of a statement runs it.
    return RowStatement(cursor.keyword() or "ANALYZE")


def _create(cursor: DdlCursor) -> StatementText:
    or_replace = cursor.accept("OR", "REPLACE")
    if cursor.accept("TEMPORARY"):
        if not cursor.accept("TABLE"):
            return Ignored("CREATE TEMPORARY")
        cursor.if_not_exists()
        made = CreateTemporary(cursor.table())
        cursor.skip_all()
        return made
    if cursor.accept("TABLE"):
        return _create_table(cursor, or_replace=or_replace)
    if cursor.accept_any("DATABASE", "SCHEMA"):
        if_not_exists = cursor.if_not_exists()
        name = cursor.database_name()
        return CreateDatabaseText(name, _options(cursor), if_not_exists, or_replace)
    if cursor.is_next("SPATIAL", "REFERENCE") or _OTHER_OBJECTS.fullmatch(cursor.keyword()):
        return Ignored(f"CREATE {cursor.keyword()}")
    key = parse_create_index(cursor, or_replace=or_replace)
    if key is None:
        raise cursor.surprise("what is created")
    cursor.expect("ON")
    table = cursor.table()
    key = parse_parts(cursor, key)
    # Its options, the algorithm, the lock and the timeout.
    cursor.skip_all()
    return AlterTable(table, (AddKey(key),))


def _create_table(cursor: DdlCursor, *, or_replace: bool) -> StatementText:
    if_not_exists = cursor.if_not_exists()
    made = CreateTableText(cursor.table(), if_not_exists=if_not_exists, or_replace=or_replace)
    if cursor.accept("LIKE"):
        return replace(made, like=cursor.table())
    if cursor.sees("(") and cursor.keyword(1) == "LIKE":
        cursor.expect_sign("(")
        cursor.expect("LIKE")
        like = cursor.table()
        cursor.expect_sign(")")
        return replace(made, like=like)
    if cursor.sees("(") and cursor.keyword(1) not in ("SELECT", "WITH", "VALUES", "TABLE") and not cursor.sees("(", 1):
        columns, keys, versioned = _elements(cursor)
        made = replace(made, columns=columns, keys=keys, versioned=versioned)
    return _create_table_tail(cursor, made)


def _elements(cursor: DdlCursor) -> tuple[tuple[ColumnText, ...], tuple[KeyText, ...], bool]:
    """Parse the parenthesised list of CREATE TABLE."""
    columns: list[ColumnText] = []
    keys: list[KeyText] = []
    versioned = False
    periods: set[str] = set()
    cursor.expect_sign("(")
    while True:
        if cursor.accept("PERIOD", "FOR"):
            versioned |= cursor.name().upper() == "SYSTEM_TIME"
            periods |= {part.lower() for part in parse_parts(cursor, KeyText("period", "", ())).columns}
        elif starts_key(cursor):
            key = parse_key(cursor)
            keys += [key] if key is not None else []
        else:
            column = parse_column(cursor, cursor.name())
            versioned |= column.generated.startswith("row")
            columns.append(column)
            keys += column.keys
        if not cursor.accept_sign(","):
            break
    cursor.expect_sign(")")
    required = [replace(column, nullable=False) if column.name.lower() in periods else column for column in columns]
    return tuple(required), tuple(keys), versioned


def _create_table_tail(cursor: DdlCursor, made: CreateTableText) -> CreateTableText:
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
        if cursor.sees("("):
            cursor.skip_parentheses()
        else:
            cursor.next()


def _options(cursor: DdlCursor) -> OptionsText:
    options = OptionsText()
    while not cursor.at_end:
        options = parse_option(cursor, options)
    return options


def _alter(cursor: DdlCursor) -> StatementText:
    ignore = False
    while (word := cursor.keyword()) in ("ONLINE", "OFFLINE", "IGNORE"):
        ignore |= word == "IGNORE"
        cursor.next()
    if cursor.accept("TABLE"):
        if_exists = cursor.if_exists()
        table = cursor.table()
        skip_wait(cursor)
        return AlterTable(table, parse_clauses(cursor), if_exists, ignore)
    if cursor.accept_any("DATABASE", "SCHEMA"):
        named = not (cursor.keyword() in ("CHARACTER", "CHARSET", "DEFAULT", "COLLATE", "ENCRYPTION", "READ") and not _is_named(cursor))
        name = cursor.database_name() if named else cursor.database
        if cursor.accept("UPGRADE"):
            return Ignored("ALTER DATABASE UPGRADE")
        return AlterDatabaseText(name, _options(cursor))
    if _OTHER_OBJECTS.fullmatch(cursor.keyword()):
        return Ignored(f"ALTER {cursor.keyword()}")
    raise cursor.surprise("what is altered")


def _is_named(cursor: DdlCursor) -> bool:
    """Whether a word that may begin an option is the database's name."""
    return cursor.keyword() in ("ENCRYPTION", "READ", "CHARSET") and cursor.keyword(1) in ("CHARACTER", "CHARSET", "DEFAULT", "COLLATE")


def skip_wait(cursor: DdlCursor) -> None:
    if cursor.accept("WAIT"):
        cursor.number()
    else:
        cursor.accept("NOWAIT")


def _drop(cursor: DdlCursor) -> StatementText:
    if cursor.accept("TEMPORARY"):
        return Ignored("DROP TEMPORARY")
    if cursor.accept_any("TABLE", "TABLES"):
        cursor.if_exists()
        tables = _tables(cursor)
        skip_wait(cursor)
        cursor.accept_any("RESTRICT", "CASCADE")
        return DropTables(tables)
    if cursor.accept_any("DATABASE", "SCHEMA"):
        cursor.if_exists()
        return DropDatabaseText(cursor.database_name())
    cursor.accept_any("ONLINE", "OFFLINE")
    if cursor.accept("INDEX"):
        if_exists = cursor.if_exists()
        clause: Clause = DropKey(cursor.name(), if_exists)
        cursor.expect("ON")
        table = cursor.table()
        cursor.skip_all()
        return AlterTable(table, (clause,))
    if cursor.is_next("SPATIAL", "REFERENCE") or _OTHER_OBJECTS.fullmatch(cursor.keyword()):
        return Ignored(f"DROP {cursor.keyword()}")
    raise cursor.surprise("what is dropped")


def _tables(cursor: DdlCursor) -> tuple[TableName, ...]:
    tables = [cursor.table()]
    while cursor.accept_sign(","):
        tables.append(cursor.table())
    return tuple(tables)


def _rename(cursor: DdlCursor) -> StatementText:
    if cursor.keyword() == "USER":
        return Ignored("RENAME USER")
    if not cursor.accept_any("TABLE", "TABLES"):
        raise cursor.surprise("TABLE")
    if_exists = cursor.if_exists()
    pairs = []
    while True:
        old = cursor.table()
        skip_wait(cursor)
        cursor.expect("TO")
        pairs.append((old, cursor.table()))
        if not cursor.accept_sign(","):
            return RenameTables(tuple(pairs), if_exists)


def _truncate(cursor: DdlCursor) -> StatementText:
    cursor.accept("TABLE")
    table = cursor.table()
    skip_wait(cursor)
    return Truncate(table)
