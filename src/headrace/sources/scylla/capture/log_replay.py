"""Replays log rows into partitions of cells.

Deltas are exact: a collection cleared in a row of time T was cleared at T - 1. Images add nothing and are skipped. Used to restore the
state of an earlier capture, and to check that the log is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from headrace.cql import timeuuid
from headrace.cql.decode.value_order import elements, parts
from headrace.cql.log import OPERATION, SEQUENCE, TIME, TTL, Operation, deleted, deleted_elements
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.errors import DefiniteError
from headrace.sources.scylla.capture.mutations import WriteContext
from headrace.sources.scylla.capture.storage_model import Cell, ClusteringBound, Key, Partition, RangeTombstone, StoredRow

Values = Mapping[str, bytes | None]
"""A log row's columns, serialised."""
_STARTS = {Operation.RANGE_START_INCLUSIVE: True, Operation.RANGE_START_EXCLUSIVE: False}
_ENDS = {Operation.RANGE_END_INCLUSIVE: True, Operation.RANGE_END_EXCLUSIVE: False}
_IMAGES = frozenset({Operation.PREIMAGE, Operation.POSTIMAGE})


def replay_log(table: CqlTable, rows: Iterable[Values], written: int) -> dict[Key, Partition]:
    """Return the partitions described by rows of a table's log, with batches in any order. `written`: write times, seconds since 1970."""
    found: dict[Key, Partition] = {}
    starts: dict[tuple[bytes, int], ClusteringBound] = {}
    for row in sorted(rows, key=lambda row: (row[TIME] or b"", row[SEQUENCE] or b"")):
        time, sequence = row[TIME] or b"", int.from_bytes(row[SEQUENCE] or b"", "big")
        moment = WriteContext(timeuuid.micros(UUID(bytes=time)), int.from_bytes(row.get(TTL) or b"", "big"), written)
        operation = Operation(int.from_bytes(row[OPERATION] or b"", "big", signed=True))
        key = tuple(row[column.name] or b"" for column in table.partition_key)
        partition = found.setdefault(key, Partition())
        if operation in _STARTS:
            starts[time, sequence] = ClusteringBound(_clustering(table, row), _STARTS[operation])
        elif operation in _ENDS:
            start = starts.get((time, sequence - 1))
            if start is None:
                raise DefiniteError("the log has the end of a range without its start", place=f"table {table.name}", hint="report it")
            partition.merge(
                Partition(ranges={RangeTombstone(start, ClusteringBound(_clustering(table, row), _ENDS[operation]), moment.timestamp)})
            )
        elif operation not in _IMAGES:
            _apply(table, partition, operation, row, moment)
    return found


def _clustering(table: CqlTable, row: Values) -> Key:
    return tuple(value for column in table.clustering if (value := row.get(column.name)) is not None)


def _apply(table: CqlTable, partition: Partition, operation: Operation, row: Values, moment: WriteContext) -> None:
    if operation in (Operation.PARTITION_DELETE, Operation.SERVICE_PARTITION_DELETE):
        partition.merge(Partition(deleted=moment.timestamp))
        return
    clustering = _clustering(table, row)
    if operation in (Operation.ROW_DELETE, Operation.SERVICE_ROW_DELETE):
        partition.row(clustering).merge(StoredRow(deleted=moment.timestamp))
        return
    is_static = operation is Operation.UPDATE and bool(table.clustering) and not clustering
    held = partition.static if is_static else partition.row(clustering)
    if operation is Operation.INSERT:
        held.merge(StoredRow(marker=moment.live(b"")))
    for column in table.static if is_static else table.regular:
        _apply_column(held, column, row, moment)


def _apply_column(held: StoredRow, column: CqlColumn, row: Values, moment: WriteContext) -> None:
    value, is_deleted = row.get(column.name), row.get(deleted(column.name)) == b"\x01"
    if column.type.is_atomic:
        if value is not None or is_deleted:
            held.put(column.name, moment.cell(value))
        return
    gone = elements(row.get(deleted_elements(column.name)) or b"")
    added = _added(column, value)
    if not (is_deleted or gone or added):
        return
    collection = held.collection(column.name)
    if is_deleted:
        collection.clear(moment.timestamp - 1)
    for key in gone:
        collection.put(key, Cell(moment.timestamp, None))
    for key, part in added:
        collection.put(key, moment.live(part))


def _added(column: CqlColumn, value: bytes | None) -> list[tuple[bytes, bytes]]:
    if value is None:
        return []
    if column.type.name == "udt":
        return [(i.to_bytes(2, "big"), part) for i, part in enumerate(parts(value)) if part is not None]
    items = elements(value)
    if column.type.name == "set":
        return [(item, b"") for item in items]
    return list(zip(items[::2], items[1::2], strict=True))
