"""Reads table definitions from a server: columns, log tables, CDC options, and the schema version.

Definitions come from the server's system tables, never from the driver's cache: a result was valid after the call began.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from cassandra import InvalidRequest

from headrace.cql.options import CdcOptions
from headrace.cql.session import CqlSession
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType, parse_type
from headrace.errors import DefiniteError
from headrace.model.schema import TableName

_ROLES: Final = dict(zip(("partition_key", "clustering", "static", "regular"), ColumnRole, strict=True))
_ORDER: Final = tuple(ColumnRole)


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table's current definition."""

    table: CqlTable
    id: UUID
    """Differs after the table is dropped and created again."""


def schema_version(session: CqlSession) -> UUID:
    """Return a number that changes with every change of any table or type; the same on all nodes once they agree."""
    found: UUID = session.execute("SELECT schema_version FROM system.local")[0].schema_version
    return found


def list_keyspaces(session: CqlSession) -> list[str]:
    return sorted(row.keyspace_name for row in session.execute("SELECT keyspace_name FROM system_schema.keyspaces"))


def list_tables(session: CqlSession, keyspace: str) -> list[str]:
    """Return the tables of a keyspace, without materialized views."""
    return sorted(row.table_name for row in _of_keyspace(session, "table_name", "tables", keyspace))


def describe(session: CqlSession, name: TableName) -> CqlTable:
    """Return a table's definition; raise if there is none."""
    return describe_all(session, [name])[name].table


def describe_all(session: CqlSession, names: Iterable[TableName]) -> dict[TableName, TableDescription]:
    """Return the definitions of tables; the error names the first that does not exist."""
    found: dict[TableName, TableDescription] = {}
    wanted: dict[str, list[TableName]] = {}
    for name in names:
        wanted.setdefault(name.database, []).append(name)
    for keyspace, tables in wanted.items():
        known = _Keyspace.read(session, keyspace)
        for name in tables:
            found[name] = known.describe(session, name)
    return found


def describe_types(session: CqlSession, keyspace: str) -> dict[str, CqlType]:
    """Return a keyspace's user types by name, not frozen."""
    return dict(_Keyspace.read(session, keyspace).types)


@dataclass(frozen=True, slots=True)
class _Keyspace:
    ids: Mapping[str, UUID]
    columns: Mapping[str, list[Any]]
    types: Mapping[str, CqlType]

    @classmethod
    def read(cls, session: CqlSession, keyspace: str) -> _Keyspace:
        ids = {row.table_name: row.id for row in _of_keyspace(session, "table_name, id", "tables", keyspace)}
        columns: dict[str, list[Any]] = {}
        wanted = "table_name, column_name, kind, position, type, clustering_order"
        for row in _of_keyspace(session, wanted, "columns", keyspace):
            columns.setdefault(row.table_name, []).append(row)
        raw = {row.type_name: row for row in _of_keyspace(session, "type_name, field_names, field_types", "types", keyspace)}
        return cls(ids, columns, _user_types(keyspace, raw))

    def describe(self, session: CqlSession, name: TableName) -> TableDescription:
        if name.table not in self.ids:
            raise _missing(session, name)
        rows = self.columns.get(name.table, [])
        ordered = sorted(rows, key=lambda row: (_ORDER.index(_ROLES[row.kind]), row.position, row.column_name))
        return TableDescription(CqlTable(name, tuple(_column(row, self.types) for row in ordered)), self.ids[name.table])


def _user_types(keyspace: str, raw: Mapping[str, Any]) -> dict[str, CqlType]:
    """Return the user types of a keyspace, whose fields may be of other user types."""
    made: dict[str, CqlType] = {}
    waiting = dict(raw)
    while waiting:
        for name, row in list(waiting.items()):
            words = [found[0] or found[1] for text in row.field_types for found in re.findall(r'"((?:[^"]|"")+)"|(\w+)', text)]
            if not {word.replace('""', '"') for word in words} & waiting.keys() - {name}:
                args = tuple(parse_type(text, made).as_frozen() for text in row.field_types)
                made[name] = CqlType("udt", args, keyspace=keyspace, udt=name, fields=tuple(row.field_names))
                del waiting[name]
    return made


def _column(row: Any, types: Mapping[str, CqlType]) -> CqlColumn:
    return CqlColumn(row.column_name, parse_type(row.type, types), _ROLES[row.kind], descending=row.clustering_order == "desc")


def _of_keyspace(session: CqlSession, wanted: str, table: str, keyspace: str) -> list[Any]:
    return session.execute(f"SELECT {wanted} FROM system_schema.{table} WHERE keyspace_name = %s", (keyspace,))


def _missing(session: CqlSession, name: TableName) -> DefiniteError:
    if name.database not in list_keyspaces(session):
        return DefiniteError(f"there is no keyspace {name.database!r}", place=str(session.address), hint="check the address's keyspace")
    return DefiniteError(f"there is no table {name}", place=str(session.address), hint="check its name, and that it was not dropped")


def describe_options(session: CqlSession, name: TableName) -> CdcOptions | None:
    """Return a table's CDC options (`WITH cdc = {...}`); None if the server does not provide them, as on Cassandra.

    ScyllaDB has them as text in its own system tables, and in a binary extension in Cassandra's.
    """
    words = _options_in_words(session, name)
    if words is not None:
        return CdcOptions.from_words(words)
    extensions = session.execute(
        "SELECT extensions FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s", (name.database, name.table)
    )
    blob = (extensions[0].extensions or {}).get("cdc") if extensions else None
    words = read_extension(blob) if blob else None
    return CdcOptions.from_words(words) if words else None


def _options_in_words(session: CqlSession, name: TableName) -> dict[str, str] | None:
    """None: the server has no such table, or no such column in it."""
    query = "SELECT cdc FROM system_schema.scylla_tables WHERE keyspace_name = %s AND table_name = %s"
    try:
        rows = session.execute(query, (name.database, name.table))
    except DefiniteError as error:
        if isinstance(error.__cause__, InvalidRequest):
            return None
        raise
    return dict(rows[0].cdc) if rows and rows[0].cdc else None


def read_extension(blob: bytes) -> dict[str, str]:
    """ScyllaDB's own form of a map of texts: a count, then lengths and bytes, all of four bytes with the least first."""
    found: list[str] = []
    try:
        (pairs,) = struct.unpack_from("<I", blob)
        at = 4
        for _ in range(2 * pairs):
            (size,) = struct.unpack_from("<I", blob, at)
            found.append(blob[at + 4 : at + 4 + size].decode())
            at += 4 + size
    except (struct.error, UnicodeDecodeError):
        at = -1
    if at != len(blob):
        raise DefiniteError("the table's CDC options cannot be read", place=blob.hex(), hint="report it, with ScyllaDB's version")
    return dict(zip(found[::2], found[1::2], strict=True))
