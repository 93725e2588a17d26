"""The log table of a base table: its name, columns and operations.

Key columns are copied. Each other column `X` gives `X` and `cdc$deleted_X`; a non-atomic one gives its frozen form (a list becomes a map
by timeuuid) and also `cdc$deleted_elements_X`. Static columns become regular ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError
from headrace.model.schema import TableName

SUFFIX: Final = "_scylla_cdc_log"
STREAM, TIME, SEQUENCE = "cdc$stream_id", "cdc$time", "cdc$batch_seq_no"
OPERATION, TTL, END = "cdc$operation", "cdc$ttl", "cdc$end_of_batch"


class Operation(IntEnum):
    """`cdc$operation`. The service deletes are made by ScyllaDB itself (rows that expired as a whole)."""

    PREIMAGE = 0
    UPDATE = 1
    INSERT = 2
    ROW_DELETE = 3
    PARTITION_DELETE = 4
    RANGE_START_INCLUSIVE = 5
    RANGE_START_EXCLUSIVE = 6
    RANGE_END_INCLUSIVE = 7
    RANGE_END_EXCLUSIVE = 8
    POSTIMAGE = 9
    SERVICE_ROW_DELETE = -3
    SERVICE_PARTITION_DELETE = -4


def deleted(column: str) -> str:
    """Return the log column that marks a column, or a whole collection, as deleted."""
    return f"cdc$deleted_{column}"


def deleted_elements(column: str) -> str:
    """The log's column that holds the keys of deleted elements."""
    return f"cdc$deleted_elements_{column}"


def added_type(base: CqlType) -> CqlType:
    """The type of the log's column of the same name."""
    if base.name == "list" and not base.is_atomic:
        return CqlType("map", (CqlType("timeuuid"), base.args[0]), frozen=True)
    return base.as_frozen()


def key_type(base: CqlType) -> CqlType:
    """Return the type that identifies elements of a non-atomic column: a map's key, a set's element, a list's timeuuid, a field's index."""
    if base.name == "list":
        return CqlType("timeuuid")
    return CqlType("smallint") if base.name == "udt" else base.args[0]


def log_table(base: CqlTable) -> CqlTable:
    """The definition of a base table's log table. Raises for counters, as ScyllaDB does."""
    if any(column.type.name == "counter" for column in base.columns):
        message = f"Cannot create CDC log for table {base.name}. Counter support not implemented."
        raise DefiniteError(message, place=f"table {base.name}", hint="leave the table out")
    head = [
        CqlColumn(STREAM, CqlType("blob"), ColumnRole.PARTITION),
        CqlColumn(TIME, CqlType("timeuuid"), ColumnRole.CLUSTERING),
        CqlColumn(SEQUENCE, CqlType("int"), ColumnRole.CLUSTERING),
    ]
    rest = [
        *_plain(((OPERATION, "tinyint"), (TTL, "bigint"), (END, "boolean"))),
        *(CqlColumn(column.name, column.type) for column in (*base.partition_key, *base.clustering)),
    ]
    for column in base.cells:
        rest.append(CqlColumn(column.name, added_type(column.type)))
        rest += _plain([(deleted(column.name), "boolean")])
        if not column.type.is_atomic:
            keys = CqlType("set", (key_type(column.type),), frozen=True)
            rest.append(CqlColumn(deleted_elements(column.name), keys))
    return CqlTable(TableName(base.name.database, base.name.table + SUFFIX), (*head, *sorted(rest, key=lambda c: c.name)))


def _plain(columns: Iterable[tuple[str, str]]) -> list[CqlColumn]:
    return [CqlColumn(name, CqlType(kind)) for name, kind in columns]
