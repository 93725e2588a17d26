"""A server's tables as it describes them now: `information_schema` to `TableSchema`.

A column whose values could not be carried over exactly is refused here, before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sources.mysql.connection import MySQLAddress, query
from headrace.sources.mysql.finish import UTF8_CHARSETS

_SYSTEM: Final = frozenset({"mysql", "information_schema", "performance_schema", "sys"})

_INTEGERS: Final = {
    "tinyint": (Kind.INT8, Kind.UINT8),
    "smallint": (Kind.INT16, Kind.UINT16),
    "mediumint": (Kind.INT32, Kind.UINT32),
    "int": (Kind.INT32, Kind.UINT32),
    "bigint": (Kind.INT64, Kind.UINT64),
}
_TEXT: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BINARY: Final = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_PLAIN: Final = {"float": Kind.FLOAT32, "double": Kind.FLOAT64, "date": Kind.DATE, "year": Kind.YEAR, "json": Kind.JSON}
_FRACTIONAL: Final = {"datetime": Kind.DATETIME, "timestamp": Kind.TIMESTAMP, "time": Kind.TIME}

_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a", "t": "\t", "b": "\b"}
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)


def capture_schemas(connection: Connection[Any], address: MySQLAddress, wanted: Callable[[TableName], bool]) -> list[TableSchema]:
    """The wanted base tables, in order of their names."""
    found = [(TableName(database, table), kind) for database, table, kind in query(connection, address, _TABLES)]
    chosen = sorted((name, kind) for name, kind in found if name.database.lower() not in _SYSTEM and wanted(name))
    for name, kind in chosen:
        if kind != "BASE TABLE":
            # The log holds their rows too: left out silently here, they would stop the stream later.
            raise DefiniteError(f"{name} is a {kind}, which is not replicated yet", place=str(name), hint="leave it out with --tables")
    return [_capture(connection, address, name) for name, _ in chosen]


_TABLES = """
SELECT table_schema, table_name, table_type FROM information_schema.tables
WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'SEQUENCE')"""
_COLUMNS = """
SELECT column_name, data_type, column_type, is_nullable, character_set_name, numeric_precision, numeric_scale, datetime_precision
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"""
_PRIMARY = """
SELECT column_name FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index"""


def _capture(connection: Connection[Any], address: MySQLAddress, name: TableName) -> TableSchema:
    where = (name.database, name.table)
    columns = tuple(_column(name, *row) for row in query(connection, address, _COLUMNS, where))
    key = tuple(row[0] for row in query(connection, address, _PRIMARY, where))
    return TableSchema(name, columns, key)


def _column(
    table: TableName,
    name: str,
    data_type: str,
    column_type: str,
    is_nullable: str,
    charset: str | None,
    precision: int | None,
    scale: int | None,
    digits: int | None,
) -> Column:
    nullable = is_nullable == "YES"
    word = data_type.lower()
    if word in _INTEGERS:
        signed, unsigned = _INTEGERS[word]
        return Column(name, unsigned if "unsigned" in column_type.lower() else signed, nullable, source_type=column_type)
    if word == "decimal":
        return Column(name, Kind.DECIMAL, nullable, precision=int(precision or 0), scale=int(scale or 0), source_type=column_type)
    if word in _PLAIN:
        return Column(name, _PLAIN[word], nullable, source_type=column_type)
    if word in _FRACTIONAL:
        return Column(name, _FRACTIONAL[word], nullable, precision=int(digits or 0), source_type=column_type)
    if word == "bit":
        return Column(name, Kind.BIT, nullable, precision=int(precision or 1), source_type=column_type)
    if word in ("enum", "set"):
        return Column(name, Kind(word), nullable, members=parse_members(column_type), source_type=column_type, charset=charset or "")
    if word in _BINARY:
        return Column(name, Kind.BYTES, nullable, source_type=column_type)
    if word in _TEXT:
        if charset not in UTF8_CHARSETS:
            raise _refused(
                table, name, f"{column_type} in character set {charset}", "use utf8mb4 for it, or leave the table out with --tables"
            )
        return Column(name, Kind.STRING, nullable, source_type=column_type, charset=charset or "")
    raise _refused(table, name, column_type, "leave the table out with --tables")


def parse_members(column_type: str) -> tuple[str, ...]:
    """The names in `enum('a','it''s')`."""
    return tuple(_unescape(match.group(1)) for match in _MEMBER.finditer(column_type))


def _unescape(text: str) -> str:
    return re.sub(
        r"''|\\(.)", lambda found: "'" if found.group(0) == "''" else _ESCAPES.get(found.group(1), found.group(1)), text, flags=re.DOTALL
    )


def _refused(table: TableName, column: str, column_type: str, hint: str) -> DefiniteError:
    return DefiniteError(f"column {column} of {table} has type {column_type}, which is not replicated yet", place=str(table), hint=hint)
