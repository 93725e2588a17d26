"""Captures a server's tables: `information_schema` to `TableSchema`.

A column whose values cannot be replicated exactly is refused here, before anything is written. The number of queries does not depend on the
number of tables.

Rules, which the DDL grammar must reproduce:

- `source_type` is COLUMN_TYPE; `charset` is CHARACTER_SET_NAME, for text, enums and sets (binary strings have none);
- a table's `charset` is that of its TABLE_COLLATION;
- `indexes` are all but the primary key, in the order of their names (code points): the servers list them in different orders;
- an index's `columns` are its parts that are columns; it is `whole` if no part is a prefix (SUB_PART) or an expression. Parts that the
  server reports as prefixes are prefixes: all parts of a SPATIAL index are;
- `default` is None without a default and for DEFAULT NULL; a literal is its value's text as the server prints it, without quotes (`5`,
  `1.50`, `abc`; `b'101'` for a BIT, `0x61` for a binary string); an expression is in parentheses, as the server prints it, and
  CURRENT_TIMESTAMP is `(current_timestamp())` or `(current_timestamp(3))` on both families. ON UPDATE is not part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.column_types import COLUMN_TYPES, FRACTIONAL_FORMS, ValueForm
from headrace.model.schema import Column, Index, Kind, TableName, TableSchema
from headrace.sources.mysql.schema.foreign_keys import read_foreign_keys
from headrace.sources.mysql.server.connection import MySQLAddress, is_mariadb, query
from headrace.sources.mysql.type_names import find_kind

_SYSTEM: Final = frozenset({"mysql", "information_schema", "performance_schema", "sys"})

_WITH_CLOCK: Final = ("datetime", "timestamp", "time")
_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a", "t": "\t", "b": "\b"}
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9.]+(?:e[-+]?[0-9]+)?|b'[01]*'", re.IGNORECASE)
_HEX = re.compile(r"[xX]'((?:[0-9a-fA-F]{2})*)'")
_NOW = re.compile(r"current_timestamp(?:\((\d*)\))?", re.IGNORECASE)


def capture_schemas(connection: Connection[Any], address: MySQLAddress, wanted: Callable[[TableName], bool]) -> list[TableSchema]:
    """Return the wanted base tables, in the order of their names."""
    found = [(TableName(database, table), kind) for database, table, kind in query(connection, address, _TABLES)]
    chosen = sorted((name, kind) for name, kind in found if name.database.lower() not in _SYSTEM and wanted(name))
    for name, kind in chosen:
        if kind != "BASE TABLE":
            # The log has their rows too: if they were omitted silently here, they would stop the stream later.
            raise DefiniteError(f"{name} is a {kind}, which is not replicated yet", place=str(name), hint="leave it out with --exclude")
    return _capture(connection, address, [name for name, _ in chosen]) if chosen else []


_TABLES = """
SELECT table_schema, table_name, table_type FROM information_schema.tables
WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'SEQUENCE')"""
_DETAILS = """
SELECT table_schema, table_name, table_collation, table_comment FROM information_schema.tables WHERE table_schema IN %s"""
_COLUMNS = """
SELECT table_schema, table_name, column_name, data_type, column_type, is_nullable, character_set_name, numeric_precision, numeric_scale,
  datetime_precision, extra, column_default, column_comment
FROM information_schema.columns WHERE table_schema IN %s ORDER BY table_schema, table_name, ordinal_position"""
_INDEXES = """
SELECT table_schema, table_name, index_name, column_name, non_unique, sub_part
FROM information_schema.statistics WHERE table_schema IN %s ORDER BY table_schema, table_name, index_name, seq_in_index"""


def _capture(connection: Connection[Any], address: MySQLAddress, names: list[TableName]) -> list[TableSchema]:
    databases = (sorted({name.database for name in names}),)
    mariadb = is_mariadb(connection)
    if not mariadb:
        _show_generated_keys(connection, address)
    details = {TableName(database, table): rest for database, table, *rest in query(connection, address, _DETAILS, databases)}
    columns: dict[TableName, list[Column]] = {name: [] for name in names}
    for database, table, *row in query(connection, address, _COLUMNS, databases):
        name = TableName(database, table)
        if name in columns:
            columns[name].append(_column(name, _Described(*row), mariadb))
    parts: dict[TableName, dict[str, list[_IndexPart]]] = {name: {} for name in names}
    for database, table, index, *part in query(connection, address, _INDEXES, databases):
        name = TableName(database, table)
        if name in parts:
            parts[name].setdefault(index, []).append(_IndexPart(*part))
    foreign_keys = read_foreign_keys(connection, address, [name for name in names if columns[name]])
    return [
        replace(_table(name, columns[name], parts[name], *details[name]), foreign_keys=tuple(foreign_keys.get(name, ())))
        for name in names
        if columns[name]
    ]


def _show_generated_keys(connection: Connection[Any], address: MySQLAddress) -> None:
    """Make the session show primary keys that MySQL generated: the log contains them even if the server is set to hide them."""
    if query(connection, address, "SHOW VARIABLES LIKE 'show_gipk_in_create_table_and_information_schema'"):
        query(connection, address, "SET SESSION show_gipk_in_create_table_and_information_schema = ON")


@dataclass(frozen=True, slots=True)
class _Described:
    """A row of `information_schema.columns`."""

    name: str
    data_type: str
    column_type: str
    is_nullable: str
    charset: str | None
    precision: int | None
    scale: int | None
    digits: int | None
    extra: str
    default: str | None
    comment: str


@dataclass(frozen=True, slots=True)
class _IndexPart:
    """A row of `information_schema.statistics`; an empty column means an expression."""

    column: str | None
    non_unique: int
    prefix: int | None


def _table(
    name: TableName, columns: list[Column], indexes: dict[str, list[_IndexPart]], collation: str | None, comment: str | None
) -> TableSchema:
    key = tuple(part.column for part in indexes.get("PRIMARY", ()) if part.column is not None)
    others = tuple(_index(index, indexes[index]) for index in sorted(indexes) if index != "PRIMARY")
    return TableSchema(name, tuple(columns), key, others, charset_of(collation or ""), comment or "")


def _index(name: str, parts: list[_IndexPart]) -> Index:
    columns = tuple(part.column for part in parts if part.column is not None)
    whole = len(columns) == len(parts) and all(part.prefix is None for part in parts)
    return Index(name, columns, not parts[0].non_unique, whole)


def charset_of(collation: str) -> str:
    """Return the character set of a collation: its name's first word, on every server."""
    return collation.split("_", 1)[0]


def _column(table: TableName, described: _Described, mariadb: bool) -> Column:
    kind = _kind(table, described)
    form = COLUMN_TYPES[kind].form
    extra = described.extra.upper()
    return Column(
        described.name,
        kind,
        described.is_nullable == "YES",
        precision=_precision(form, described),
        scale=int(described.scale or 0) if form is ValueForm.DECIMAL else 0,
        members=parse_members(described.column_type) if form is ValueForm.MEMBERS else (),
        source_type=described.column_type,
        charset=(described.charset or "") if form in (ValueForm.TEXT, ValueForm.MEMBERS) else "",
        generated="virtual" if "VIRTUAL GENERATED" in extra else "stored" if "STORED GENERATED" in extra else "",
        # INVISIBLE stands alone or after a comma or a space, and in no other word.
        invisible="INVISIBLE" in extra,
        auto_increment="AUTO_INCREMENT" in extra,
        default=_default(described, mariadb),
        comment=described.comment,
    )


def _kind(table: TableName, described: _Described) -> Kind:
    kind = find_kind(described.data_type.lower(), unsigned="unsigned" in described.column_type.lower())
    if kind is None:
        raise _refused(table, described.name, described.column_type, "leave the table out with --exclude")
    return kind


def _precision(form: ValueForm, described: _Described) -> int:
    if form is ValueForm.DECIMAL:
        return int(described.precision or 0)
    if form is ValueForm.BITS:
        return int(described.precision or 1)
    return int(described.digits or 0) if form in FRACTIONAL_FORMS else 0


def _default(described: _Described, mariadb: bool) -> str | None:
    """Return the default in the form that both families share; see the rules above."""
    text = described.default
    if text is None or "VIRTUAL GENERATED" in described.extra or "STORED GENERATED" in described.extra:
        return None
    now = _NOW.fullmatch(text)
    if now and (mariadb or "DEFAULT_GENERATED" in described.extra or described.data_type.lower() in _WITH_CLOCK):
        return f"(current_timestamp({now.group(1) or ''}))"
    if not mariadb:
        return f"({text})" if "DEFAULT_GENERATED" in described.extra else text
    if text == "NULL":
        return None
    kind = find_kind(described.data_type.lower())
    is_binary = kind is not None and COLUMN_TYPES[kind].form is ValueForm.BYTES
    if _MEMBER.fullmatch(text):
        literal = _unescape(text[1:-1])
        return _hex_literal(described, literal.encode()) if is_binary else literal
    if is_binary and (in_hex := _HEX.fullmatch(text)):
        # MariaDB 11 prints the default of a binary string so.
        return _hex_literal(described, bytes.fromhex(in_hex[1]))
    return text if _NUMBER.fullmatch(text) else f"({text})"


def _hex_literal(described: _Described, raw: bytes) -> str:
    # MySQL prints a BINARY's default without the zero bytes that pad it.
    return "0x" + (raw.rstrip(b"\0") if described.data_type.lower() == "binary" else raw).hex().upper()


def parse_members(column_type: str) -> tuple[str, ...]:
    """Return the names in `enum('a','it''s')`."""
    return tuple(_unescape(match.group(1)) for match in _MEMBER.finditer(column_type))


def _unescape(text: str) -> str:
    return re.sub(
        r"''|\\(.)", lambda found: "'" if found.group(0) == "''" else _ESCAPES.get(found.group(1), found.group(1)), text, flags=re.DOTALL
    )


def _refused(table: TableName, column: str, column_type: str, hint: str) -> DefiniteError:
    return DefiniteError(f"column {column} of {table} has type {column_type}, which is not replicated yet", place=str(table), hint=hint)
