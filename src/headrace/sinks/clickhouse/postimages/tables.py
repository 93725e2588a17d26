"""The target table of a base table that is replicated by postimages: one row per key, the newest version wins.

It is a `ReplacingMergeTree` with the metadata columns `_sign`, `_version`, `_deleted`. With clustering columns it also has `_order`: the
clustering key as bytes that sort like the source, by which ranges are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.types import is_exact, nullable_type, value_type
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, Connection, connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import check_name_lengths, quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_names import target_name

SIGN, VERSION, DELETED, ORDER = "_sign", "_version", "_deleted", "_order"
_OURS: Final = "Headrace, images of "
_REMEDY: Final = "keep its cells instead, which holds everything: leave scylla.kept out"


def place_of(table: CqlTable, scope: TargetScope) -> tuple[str, str]:
    """Return target database and table."""
    return target_name(table.name, scope.target, scope.options)


def qualified(table: CqlTable, scope: TargetScope) -> str:
    return ".".join(map(quote_name, place_of(table, scope)))


def column_type(column: CqlColumn) -> str:
    return value_type(column.type) if column.role in (ColumnRole.PARTITION, ColumnRole.CLUSTERING) else nullable_type(column.type)


def check_table(table: CqlTable) -> None:
    """Raise `DefiniteError` for tables that postimages cannot represent."""
    place = f"table {table.name}"
    if table.static:
        raise DefiniteError(
            f"column {table.static[0].name} is static: it belongs to all rows of a partition, of which an image shows one",
            place=place,
            hint=_REMEDY,
        )
    for column in (*table.partition_key, *table.clustering):
        if not is_exact(column.type):
            raise DefiniteError(
                f"column {column.name} of the key is of type {column.type}: ClickHouse and CQL do not agree which of its values are equal",
                place=place,
                hint=_REMEDY,
            )
    for column in table.columns:
        if column.name in (SIGN, VERSION, DELETED, ORDER):
            raise DefiniteError(f"column {column.name} has the name of one of Headrace's own", place=place, hint=_REMEDY)


def prepare(scope: TargetScope, table: CqlTable) -> None:
    """Create the target, or alter it to the table's current definition."""
    check_table(table)
    database, name = place_of(table, scope)
    check_name_lengths(database, name)
    connection = connect(scope.target)
    with translate_errors(scope.target, f"making the table of {table.name}"):
        before = _known(connection, table, database, name)
        for statement in _statements(table, before, database, qualified(table, scope)):
            connection.client.command(statement, settings=connection.supported(CREATE_SETTINGS))


def clear(scope: TargetScope, table: CqlTable) -> None:
    with translate_errors(scope.target, f"emptying the table of {table.name}"):
        connect(scope.target).client.command(f"TRUNCATE TABLE {qualified(table, scope)}")


def _known(connection: Connection, table: CqlTable, database: str, name: str) -> CqlTable | None:
    """Return the definition that the target was created for; None if there is no target."""
    query = f"SELECT comment FROM system.tables WHERE database = {quote_text(database)} AND name = {quote_text(name)}"
    rows = connection.client.query(query).result_rows
    if not rows:
        return None
    head, _, definition = str(rows[0][0]).partition(": ")
    if head != _OURS + str(table.name):
        raise DefiniteError(
            f"there is a table {database}.{name} that was not made for images of {table.name}",
            place=f"table {table.name}",
            hint="drop or rename it, or choose another database",
        )
    return CqlTable.from_json(json.loads(definition))


def _statements(table: CqlTable, before: CqlTable | None, database: str, target: str) -> Iterator[str]:
    comment = quote_text(f"{_OURS}{table.name}: {json.dumps(table.to_json())}")
    if before is None:
        columns = [f"{quote_name(column.name)} {column_type(column)}" for column in table.columns]
        columns += [f"{ORDER} String"] if table.clustering else []
        columns += [f"{SIGN} Int8", f"{VERSION} UInt64", f"{DELETED} UInt8 MATERIALIZED {SIGN} = -1"]
        key = ", ".join(quote_name(column.name) for column in (*table.partition_key, *table.clustering))
        yield f"CREATE DATABASE IF NOT EXISTS {quote_name(database)}"
        engine = f"ENGINE = ReplacingMergeTree({VERSION}, {DELETED}) ORDER BY ({key})"
        yield f"CREATE TABLE {target} ({', '.join(columns)}) {engine} COMMENT {comment}"
    elif before != table:
        yield from _altering(before, table, target)
        yield f"ALTER TABLE {target} MODIFY COMMENT {comment}"


def _altering(before: CqlTable, table: CqlTable, target: str) -> Iterator[str]:
    """Yield the ALTER statements for added, dropped and retyped columns. Each may be repeated after a crash."""
    old, new = ({column.name: column for column in one.cells} for one in (before, table))
    if (before.partition_key, before.clustering) != (table.partition_key, table.clustering):
        hint = "start over with another --state"
        raise DefiniteError(f"the key of {table.name} is another one now", place=f"table {table.name}", hint=hint)
    for name in old.keys() - new.keys():
        yield f"ALTER TABLE {target} DROP COLUMN IF EXISTS {quote_name(name)}"
    for name, column in new.items():
        if name not in old:
            yield f"ALTER TABLE {target} ADD COLUMN IF NOT EXISTS {quote_name(name)} {column_type(column)}"
        elif column_type(old[name]) != column_type(column):
            yield f"ALTER TABLE {target} MODIFY COLUMN {quote_name(name)} {column_type(column)}"
