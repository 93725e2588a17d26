"""Reads Debezium's schema history topic: MySQL and MariaDB tables as their connectors describe them.

With it, events without types are read exactly: `BIGINT UNSIGNED`, `DATETIME(3)`, `ENUM` with its members. The MySQL source's DDL rules
decide how a statement changes a type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from headrace.errors import DefiniteError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableName, TableSchema
from headrace.sources.mysql.ddl.ast import ColumnText, DefaultForm, DefaultText, TypeText
from headrace.sources.mysql.ddl.column_definition import Setting, define_column
from headrace.sources.mysql.ddl.column_grammar import parse_type
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.ddl.token_cursor import DdlCursor, NotUnderstood

_DIALECTS: Final = {"mysql": Dialect(mariadb=False, version=80_400), "mariadb": Dialect(mariadb=True, version=101_100)}
_PART: Final = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')
_AFTERWORDS: Final = re.compile(r"\s+(?:UNSIGNED|SIGNED|ZEROFILL)\b.*", re.IGNORECASE)
_NAMED: Final = frozenset({"ENUM", "SET"})
_NOW: Final = re.compile(r"(?:current_timestamp|now|localtime|localtimestamp)(?:\s*\(\s*\d*\s*\))?", re.IGNORECASE)
_MOMENTS: Final = frozenset({ValueForm.DATE, ValueForm.TIMESTAMP, ValueForm.TIME})
_LITERALS: Final = frozenset({ValueForm.TEXT, ValueForm.BYTES, ValueForm.MEMBERS})
_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a", "t": "\t", "b": "\b"}
_BEGINNING: Final = "1970-01-01 00:00:00"
_HINT: Final = "name the connector's own topic of schema changes (its topic.prefix) as schema_topic, or let events carry their schemas"


class DdlOperation(StrEnum):
    CREATE = "CREATE"
    ALTER = "ALTER"
    DROP = "DROP"


@dataclass(frozen=True, slots=True)
class TableDefinition:
    operation: DdlOperation
    table: TableName
    schema: TableSchema | None
    """None if the table was dropped."""
    previous: TableName | None = None
    """The former name, if it was renamed."""
    ddl: str = ""
    position: tuple[str, int, int] = ("", 0, 0)
    """Log file, position in it, and the server's id (0: a snapshot's definition)."""


def read_record(value: bytes) -> tuple[TableDefinition, ...]:
    """Return the tables that one record of the topic describes, with or without Connect's schema around it."""
    try:
        message = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise DefiniteError(f"a record of the topic of schema changes is not JSON: {error}", hint=_HINT) from error
    if isinstance(message, dict) and set(message) == {"schema", "payload"}:
        message = message["payload"]
    return read_change(message)


def read_change(message: Any) -> tuple[TableDefinition, ...]:
    changes = message.get("tableChanges") if isinstance(message, dict) else None
    if not isinstance(changes, list):
        raise DefiniteError("a record of the topic of schema changes describes no tables", hint=_HINT)
    source = message.get("source") or {}
    connector = str(source.get("connector", ""))
    try:
        position = str(source.get("file") or ""), int(source.get("pos") or 0), int(source.get("server_id") or 0)
    except (TypeError, ValueError) as error:
        raise DefiniteError(f"a record of the topic of schema changes cannot be read: {error!r}", hint=_HINT) from error
    found = (_definition(change, connector, str(message.get("ddl") or "")) for change in changes)
    return tuple(replace(one, position=position) for one in found)


def apply_definitions(definitions: Iterable[TableDefinition], tables: Mapping[TableName, TableSchema]) -> dict[TableName, TableSchema]:
    """The tables after the records read so far, in the order of the topic."""
    known = dict(tables)
    for one in definitions:
        if one.previous is not None and one.previous != one.table:
            known.pop(one.previous, None)
        if one.schema is None:
            known.pop(one.table, None)
        else:
            known[one.table] = one.schema
    return known


def _definition(change: Mapping[str, Any], connector: str, ddl: str) -> TableDefinition:
    try:
        operation = DdlOperation(change["type"])
        name = _table_name(str(change["id"]))
        previous = _table_name(str(change["previousId"])) if change.get("previousId") else None
        table = change.get("table")
        if operation is DdlOperation.DROP or table is None:
            return TableDefinition(DdlOperation.DROP, name, None, previous, ddl)
        return TableDefinition(operation, name, _schema(name, table, _dialect(connector)), previous, ddl)
    except (KeyError, ValueError, TypeError) as error:
        raise DefiniteError(f"a record of the topic of schema changes cannot be read: {error!r}", hint=_HINT) from error


def _dialect(connector: str) -> Dialect:
    found = _DIALECTS.get(connector)
    if found is None:
        raise DefiniteError(
            f"types of the connector {connector or 'that is not named'} are not known from its topic of schema changes",
            hint="let its events carry their schemas (value.converter.schemas.enable=true), or use Avro",
        )
    return found


def _table_name(text: str) -> TableName:
    """Parse `"shop"."orders"`; the last two parts count."""
    parts = [quoted.replace('""', '"') if quoted else bare for quoted, bare in _PART.findall(text)]
    if len(parts) < 2:
        raise ValueError(f"{text} names no table")
    return TableName(parts[-2], parts[-1])


def _schema(name: TableName, table: Mapping[str, Any], dialect: Dialect) -> TableSchema:
    charset = str(table.get("defaultCharsetName") or "utf8mb4")
    listed = list(table["columns"])
    if all(column.get("position") for column in listed):
        listed.sort(key=lambda column: int(column["position"]))
    key = tuple(str(part) for part in table.get("primaryKeyColumnNames") or ())
    columns = [_column(name, column, Setting(dialect, charset)) for column in listed]
    required = [replace(column, nullable=False) if column.name in key else column for column in columns]
    return TableSchema(name, tuple(required), key, charset=charset, comment=str(table.get("comment") or ""))


def _column(table: TableName, described: Mapping[str, Any], setting: Setting) -> Column:
    name, auto = str(described["name"]), bool(described.get("autoIncremented"))
    text = ColumnText(
        name,
        _type(table, name, described, setting.dialect),
        nullable=bool(described.get("optional", True)),
        charset=str(described.get("charsetName") or ""),
        auto_increment=auto,
        # Auto-increment columns are also called generated.
        generated="stored" if described.get("generated") and not auto else "",
        comment=str(described.get("comment") or ""),
    )
    plain = define_column(text, setting)
    if text.auto_increment and text.nullable:
        plain = replace(plain, nullable=False)
    default = described.get("defaultValueExpression")
    return plain if default is None else define_column(replace(text, default=_default(plain, str(default))), setting)


def _default(column: Column, text: str) -> DefaultText:
    """Convert the connector's default: the content of a literal, bits as digits, and the epoch for the time of insertion."""
    digits = f"({column.precision})" if column.precision else ""
    if column.form in _MOMENTS and (_NOW.fullmatch(text) or text.startswith(_BEGINNING)):
        return DefaultText(f"CURRENT_TIMESTAMP{digits}", DefaultForm.EXPRESSION)
    if column.form is ValueForm.BITS and re.fullmatch("[01]+", text):
        return DefaultText(str(int(text, 2)), DefaultForm.NUMBER)
    if column.form in _LITERALS:
        text = re.sub(r"''|\\(.)", lambda found: _ESCAPES.get(found[1], found[1]) if found[1] else "'", text, flags=re.DOTALL)
    if column.source_type.startswith("binary("):
        # Servers do not show padding zeros.
        text = text.rstrip("\0")
    return DefaultText(text, DefaultForm.STRING)


def _type(table: TableName, name: str, described: Mapping[str, Any], dialect: Dialect) -> TypeText:
    word = str(described.get("typeExpression") or described["typeName"])
    spelled = _spelled(word, described)
    try:
        cursor = DdlCursor(spelled, table.database, dialect, 0)
        found = parse_type(cursor)
    except NotUnderstood as error:
        raise DefiniteError(
            f"column {name} of {table} has type {spelled}, which is not known",
            place=f"table {table}, column {name}",
            hint="leave the table out with --exclude",
        ) from error
    return found


def _spelled(word: str, described: Mapping[str, Any]) -> str:
    """Return the type with its length or members, as in a statement."""
    if word.upper() in _NAMED:
        return f"{word}({','.join(_quoted(str(member)) for member in described.get('enumValues') or ())})"
    length, scale = described.get("length"), described.get("scale")
    if length is None or "(" in word:
        return word
    inside = f"({length},{scale})" if scale is not None else f"({length})"
    after = _AFTERWORDS.search(word)
    return f"{word}{inside}" if after is None else f"{word[: after.start()]}{inside}{after.group()}"


def _quoted(member: str) -> str:
    if len(member) >= 2 and member[0] == member[-1] == "'":
        return member
    return "'" + member.replace("\\", "\\\\").replace("'", "''") + "'"
