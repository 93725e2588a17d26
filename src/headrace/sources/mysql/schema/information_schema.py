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

MariaDB shows foreign keys in `information_schema` only to accounts that may change the table, and replication needs no such right. It shows
them to every reader in `SHOW CREATE TABLE`, one table at a time. MySQL shows them to every reader in `information_schema`.

The schema history starts from a catalog at a position. The tables are described before and after the position is noted, until both
descriptions are equal: then no statement lies between them, and they hold at the position itself. So every statement after the position
must be applied, and none before it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pymysql.connections import Connection

from headrace.errors import DefiniteError, TransientError
from headrace.model.column_types import COLUMN_TYPES, FRACTIONAL_FORMS, ValueForm
from headrace.model.schema import Column, ForeignKey, Index, ReferentialAction, TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.server.connection import MySQLAddress, is_mariadb, query, quote_name
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.log_watermark import note_position
from headrace.sources.mysql.type_names import find_kind
from headrace.stage_report import count_stage, enter_stage

log = logging.getLogger("headrace")

D = TypeVar("D")
N = TypeVar("N")

_SYSTEM: Final = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
_WITH_CLOCK: Final = ("datetime", "timestamp", "time")
_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a", "t": "\t", "b": "\b"}
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9.]+(?:e[-+]?[0-9]+)?|b'[01]*'", re.IGNORECASE)
_HEX = re.compile(r"[xX]'((?:[0-9a-fA-F]{2})*)'")
_NOW = re.compile(r"current_timestamp(?:\((\d*)\))?", re.IGNORECASE)
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
_FOREIGN_KEYS = """
SELECT k.table_schema, k.table_name, k.constraint_name, k.column_name, k.referenced_table_schema, k.referenced_table_name,
  k.referenced_column_name, r.delete_rule, r.update_rule
FROM information_schema.key_column_usage k JOIN information_schema.referential_constraints r
  ON r.constraint_schema = k.constraint_schema AND r.constraint_name = k.constraint_name AND r.table_name = k.table_name
WHERE k.table_schema IN %s AND k.referenced_table_name IS NOT NULL
ORDER BY k.table_schema, k.table_name, k.constraint_name, k.ordinal_position"""
_ACTIONS: Final = {
    "CASCADE": ReferentialAction.CASCADE,
    "SET NULL": ReferentialAction.SET_NULL,
    "SET DEFAULT": ReferentialAction.SET_DEFAULT,
}
_NAME: Final = r"`((?:[^`]|``)+)`"
_NAMES: Final = re.compile(_NAME)
_LIST: Final = r"\(((?:`(?:[^`]|``)+`(?:, ?)?)+)\)"
_ACTION: Final = r"(CASCADE|SET NULL|SET DEFAULT|RESTRICT|NO ACTION)"
# The server prints each constraint on a line of its own.
_CONSTRAINT: Final = re.compile(
    rf"^ +CONSTRAINT {_NAME} FOREIGN KEY {_LIST} REFERENCES (?:{_NAME}\.)?{_NAME} {_LIST}"
    rf"(?: ON DELETE {_ACTION})?(?: ON UPDATE {_ACTION})?,?$",
    re.MULTILINE,
)
_FOREIGN_KEY_LINE: Final = re.compile(r"^ +CONSTRAINT `.*` FOREIGN KEY ", re.MULTILINE)
_ATTEMPTS: Final = 20
_BASE_TABLES: Final = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
_CHARSETS: Final = "SELECT schema_name, default_character_set_name FROM information_schema.schemata"


def capture_schemas(connection: Connection[Any], address: MySQLAddress, wanted: Callable[[TableName], bool]) -> list[TableSchema]:
    """Return the wanted base tables, in the order of their names."""
    found = [(TableName(database, table), kind) for database, table, kind in query(connection, address, _TABLES)]
    chosen = sorted((name, kind) for name, kind in found if name.database.lower() not in _SYSTEM and wanted(name))
    for name, kind in chosen:
        if kind != "BASE TABLE":
            # The log has their rows too: if they were omitted silently here, they would stop the stream later.
            raise DefiniteError(f"{name} is a {kind}, which is not replicated yet", place=str(name), hint="leave it out with --exclude")
    return _capture(connection, address, [name for name, _ in chosen]) if chosen else []


def _capture(connection: Connection[Any], address: MySQLAddress, names: list[TableName]) -> list[TableSchema]:
    enter_stage(f"inspecting {len(names)} tables of {address}")
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
    kind = find_kind(described.data_type.lower(), unsigned="unsigned" in described.column_type.lower())
    if kind is None:
        raise DefiniteError(
            f"column {described.name} of {table} has type {described.column_type}, which is not replicated yet",
            place=str(table),
            hint="leave the table out with --exclude",
        )
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
    return tuple(_unescape(match.group(1)) for match in _MEMBER.finditer(column_type))


def _unescape(text: str) -> str:
    return re.sub(
        r"''|\\(.)", lambda found: "'" if found.group(0) == "''" else _ESCAPES.get(found.group(1), found.group(1)), text, flags=re.DOTALL
    )


def read_foreign_keys(connection: Connection[Any], address: MySQLAddress, names: Sequence[TableName]) -> dict[TableName, list[ForeignKey]]:
    """Return the foreign keys of each of these child tables, in the order of their names."""
    if not names:
        return {}
    if is_mariadb(connection):
        grants = query(connection, address, "SHOW GRANTS")
        if not any(str(grant[0]).startswith("GRANT ALL PRIVILEGES ON *.* TO") for grant in grants):
            counted = count_stage(f"reading the foreign keys of {address}", names, "tables")
            return {name: _parse_create(name, _show_create(connection, address, name)) for name in counted}
    # All keys in one query, instead of one query per table.
    return _from_information_schema(connection, address, sorted({name.database for name in names}))


def _show_create(connection: Connection[Any], address: MySQLAddress, name: TableName) -> str:
    # The text may contain bytes of another character set: MariaDB prints some defaults as they were written.
    decodes, connection.use_unicode = connection.use_unicode, False
    try:
        [row] = query(connection, address, f"SHOW CREATE TABLE {quote_name(name.database)}.{quote_name(name.table)}")
    finally:
        connection.use_unicode = decodes
    return bytes(row[1]).decode(errors="replace")


def _parse_create(child: TableName, statement: str) -> list[ForeignKey]:
    parsed = _CONSTRAINT.findall(statement)
    if len(parsed) != len(_FOREIGN_KEY_LINE.findall(statement)):
        raise DefiniteError(
            f"the server describes a foreign key of {child} in a form that Headrace does not know",
            place=f"table {child}",
            hint=f"please report its SHOW CREATE TABLE; until then leave the table out with --exclude {child}",
        )
    found = []
    for name, columns, database, parent, referenced, *actions in parsed:
        parent_name = TableName(_unquoted(database) or child.database, _unquoted(parent))
        found.append(ForeignKey(_unquoted(name), _listed(columns), parent_name, _listed(referenced), *map(_action, actions)))
    return sorted(found, key=lambda key: key.name)


def _action(text: str) -> ReferentialAction:
    return _ACTIONS.get(text, ReferentialAction.NONE)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(map(_unquoted, _NAMES.findall(names)))


def _unquoted(name: str) -> str:
    return name.replace("``", "`")


def _from_information_schema(connection: Connection[Any], address: MySQLAddress, databases: list[str]) -> dict[TableName, list[ForeignKey]]:
    found: dict[tuple[TableName, str], ForeignKey] = {}
    rows = query(connection, address, _FOREIGN_KEYS, (databases,))
    for database, table, name, column, parent_database, parent, parent_column, *actions in rows:
        key = TableName(database, table), str(name)
        so_far = found.get(key) or ForeignKey(name, (), TableName(parent_database, parent), (), *map(_action, actions))
        found[key] = replace(so_far, columns=(*so_far.columns, column), parent_columns=(*so_far.parent_columns, parent_column))
    of_tables: dict[TableName, list[ForeignKey]] = {}
    for child, name in sorted(found):
        of_tables.setdefault(child, []).append(found[child, name])
    return of_tables


def read_dialect(connection: Connection[Any], address: MySQLAddress) -> Dialect:
    [(version, folds)] = query(connection, address, "SELECT VERSION(), @@lower_case_table_names")
    return Dialect.of(str(version), folds_case=int(folds) > 0)


def capture_catalog(
    connection: Connection[Any], address: MySQLAddress, wanted: Callable[[TableName], bool], epoch: int
) -> tuple[SchemaCatalog, BinlogPosition]:
    """Return the tables of all databases with wanted tables, and a position at which they are valid.

    A wanted table that cannot be replicated is an error. Other such tables are omitted, as if unknown.
    """
    return describe_around(lambda: _describe(connection, address, wanted), lambda: visible_position(connection, address, epoch), address)


def describe_around(describe: Callable[[], D], note: Callable[[], N], address: MySQLAddress) -> tuple[D, N]:
    """Return the result of `describe`, and of `note` at a moment when it was valid: it was the same before and after."""
    before = describe()
    for _ in range(_ATTEMPTS):
        noted = note()
        after = describe()
        if after == before:
            return after, noted
        before = after
    raise TransientError(
        "the source's tables change faster than they can be described", place=str(address), hint="wait until its migrations are done"
    )


def visible_position(connection: Connection[Any], address: MySQLAddress, epoch: int) -> BinlogPosition:
    """Return a position, and end the transaction in which it was noted."""
    position = note_position(connection, address, epoch)
    connection.commit()
    return position


def _describe(connection: Connection[Any], address: MySQLAddress, wanted: Callable[[TableName], bool]) -> SchemaCatalog:
    names = [TableName(*row) for row in query(connection, address, _BASE_TABLES)]
    databases = {name.database for name in names if wanted(name)}
    schemas = capture_schemas(connection, address, wanted)
    schemas += _describe_others(connection, address, {name for name in names if name.database in databases and not wanted(name)})
    return SchemaCatalog({schema.name: schema for schema in schemas}, dict(query(connection, address, _CHARSETS)))


def _describe_others(connection: Connection[Any], address: MySQLAddress, names: set[TableName]) -> list[TableSchema]:
    try:
        return capture_schemas(connection, address, names.__contains__)
    except DefiniteError:
        found = []
        for name in sorted(names):
            try:
                found += capture_schemas(connection, address, {name}.__contains__)
            except DefiniteError as error:
                log.debug("leaving a table that is not replicated out of the schema history: %s", error)
        return found
