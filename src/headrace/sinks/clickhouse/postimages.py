"""The ClickHouse sink for CDC postimages: ordinary tables with one row per key, of which the newest version wins.

A table is a `ReplacingMergeTree` with the metadata columns `_sign`, `_version`, `_deleted`. With clustering columns it also has `_order`:
the clustering key as bytes that sort like the source, by which ranges are deleted.

A version is the change's microsecond and its number in the batch; a deletion comes last in its microsecond, because a tombstone wins over a
cell of the same time. Snapshot rows have the time at which they were read. So blocks may be written any number of times.

A deletion of a range or a partition deletes the visible rows in it that have a lower version. It is the only operation for which order
matters: all earlier rows must be stored. The rows of a stream come in order, batch after batch, and the snapshot ends before the log
starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.cql.blocks import LogBlock, RowBlock, fixed_bytes
from headrace.cql.decode.arrow_arrays import Cells, MalformedValue, split_collections
from headrace.cql.log import SEQUENCE, TIME, Operation
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.clickhouse.bookkeeping.dead_letters import ClickHouseLateRowStore
from headrace.sinks.clickhouse.bookkeeping.progress_store import ClickHouseProgressStore
from headrace.sinks.clickhouse.bookkeeping.target_claims import ClickHouseTargetClaims
from headrace.sinks.clickhouse.cells.batches import damaged_value
from headrace.sinks.clickhouse.cells.key_order import order_keys, range_keys
from headrace.sinks.clickhouse.cells.typed_arrays import typed_array
from headrace.sinks.clickhouse.cells.types import (
    WIDTHS,
    FieldNaming,
    is_bytes,
    is_exact,
    is_plain,
    nullable_type,
    value_sql,
    value_type,
    with_user_field_names,
)
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, DROP_SETTINGS, INSERT_SETTINGS, connect, fetch_rows, run_statements
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import check_name_lengths, places_condition, qualify, quote_name, quote_text
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import Place, target_name

SIGN, VERSION, DELETED, ORDER = "_sign", "_version", "_deleted", "_order"
_OURS: Final = "Headrace, images of "
_REMEDY: Final = "keep its cells instead, which holds everything: leave scylla.kept out"


def qualified(table: CqlTable, scope: TargetScope) -> str:
    return qualify(target_name(table.name, scope.target, scope.options))


def column_type(column: CqlColumn) -> str:
    return value_type(column.type) if column.role in (ColumnRole.PARTITION, ColumnRole.CLUSTERING) else nullable_type(column.type)


def _check_table(table: CqlTable) -> None:
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


def _prepare(target: ClickHouseTarget, table: CqlTable, place: Place) -> None:
    """Create the table, or alter it to the base table's current definition."""
    check_name_lengths(*place)
    doing = f"making the table of {table.name}"
    statements = _statements(table, _known(target, doing, table, place), place)
    run_statements(target, doing, *statements, settings=CREATE_SETTINGS)


def _known(target: ClickHouseTarget, doing: str, table: CqlTable, place: Place) -> CqlTable | None:
    """Return the definition that the target was created for; None if there is no target."""
    rows = fetch_rows(target, doing, f"SELECT comment FROM system.tables WHERE {places_condition([place])}")
    if not rows:
        return None
    head, _, definition = str(rows[0][0]).partition(": ")
    if head != _OURS + str(table.name):
        raise DefiniteError(
            f"there is a table {'.'.join(place)} that was not made for images of {table.name}",
            place=f"table {table.name}",
            hint="drop or rename it, or choose another database",
        )
    return CqlTable.from_json(json.loads(definition))


def _statements(table: CqlTable, before: CqlTable | None, place: Place) -> Iterator[str]:
    target = qualify(place)
    comment = quote_text(f"{_OURS}{table.name}: {json.dumps(table.to_json())}")
    if before is None:
        columns = [f"{quote_name(column.name)} {column_type(column)}" for column in table.columns]
        columns += [f"{ORDER} String"] if table.clustering else []
        columns += [f"{SIGN} Int8", f"{VERSION} UInt64", f"{DELETED} UInt8 MATERIALIZED {SIGN} = -1"]
        key = ", ".join(quote_name(column.name) for column in (*table.partition_key, *table.clustering))
        yield f"CREATE DATABASE IF NOT EXISTS {quote_name(place[0])}"
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


Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow
Rows = npt.NDArray[np.intp]

_SEQUENCE_BITS: Final = 12
_LAST: Final = (1 << _SEQUENCE_BITS) - 1
_ROW_DELETES: Final = (Operation.ROW_DELETE, Operation.SERVICE_ROW_DELETE)
_PARTITION_DELETES: Final = (Operation.PARTITION_DELETE, Operation.SERVICE_PARTITION_DELETE)
_STARTS: Final = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_START_EXCLUSIVE)
_DELTAS: Final = (Operation.UPDATE, Operation.INSERT)


class PostimageWriter:
    """Writes to one server; belongs to one task."""

    def __init__(self, scope: TargetScope) -> None:
        self._scope = scope

    def write(self, block: LogBlock | RowBlock) -> None:
        """Write the block durably; it is visible when this returns."""
        if isinstance(block, RowBlock):
            rows = np.arange(block.rows.num_rows)
            self._insert(block, rows, np.ones(len(rows), np.int8), np.full(len(rows), block.as_of << _SEQUENCE_BITS, np.uint64))
        else:
            self._write_log(block)

    def close(self) -> None:
        """Does nothing: the process keeps the connection for its next task."""

    def _write_log(self, block: LogBlock) -> None:
        operations, clustered = block.operations, bool(block.table.clustering)
        self._check(block, operations)
        gone = np.isin(operations, _ROW_DELETES if clustered else (*_ROW_DELETES, *_PARTITION_DELETES))
        chosen = np.flatnonzero((operations == Operation.POSTIMAGE) | gone)
        if len(chosen):
            sequence = fixed_bytes(block.rows.column(SEQUENCE), 4).copy().view(">i4")[:, 0].astype(np.int64)
            last = np.where(gone, _LAST, np.minimum(sequence, _LAST - 1))
            versions = (block.times << _SEQUENCE_BITS | last).astype(np.uint64)
            self._insert(block, chosen, np.where(gone, -1, 1).astype(np.int8)[chosen], versions[chosen])
        if clustered:
            self._delete_parts(block, operations)

    def _check(self, block: LogBlock, operations: npt.NDArray[np.int8]) -> None:
        """Raise `DefiniteError` if a change has no postimage: nothing of it would be written."""
        times = np.ascontiguousarray(fixed_bytes(block.rows.column(TIME), 16)).view("V16")[:, 0]
        shown, changed = (set(times[np.isin(operations, which)].tolist()) for which in ((Operation.POSTIMAGE,), _DELTAS))
        if changed - shown:
            name = block.table.name
            raise DefiniteError(
                "a change has no postimage",
                place=f"log of {name}",
                hint=f"ALTER TABLE {name} WITH cdc = {{'enabled': true, 'postimage': true}}, and start over with another --state; "
                "or keep its cells instead: leave scylla.kept out",
            )

    def _insert(self, block: LogBlock | RowBlock, chosen: Rows, signs: npt.NDArray[np.int8], versions: npt.NDArray[np.uint64]) -> None:
        table, logged = block.table, isinstance(block, LogBlock)
        # Name, type in which the column is sent, its SQL value, and the array.
        columns: list[tuple[str, str, str, Array]] = []
        for column in table.columns:
            cells = Cells.of(block.rows.column(column.name)).take(chosen)
            columns.append((column.name, *_sent(column, quote_name(column.name)), _array(column, cells, logged=logged)))
        if table.clustering:
            joined = order_keys(table.clustering, lambda name: Cells.of(block.rows.column(name)).take(chosen))[1]
            columns.append((ORDER, "String", ORDER, joined))
        columns += [(SIGN, "Int8", SIGN, pa.array(signs)), (VERSION, "UInt64", VERSION, pa.array(versions))]
        names = ", ".join(quote_name(name) for name, *_ in columns)
        sent = ", ".join(f"{quote_name(name)} {kind}" for name, kind, *_ in columns)
        statement = (
            f"INSERT INTO {qualified(table, self._scope)} ({names}) SELECT {', '.join(value for _, _, value, _ in columns)} "
            f"FROM input({quote_text(sent)}) FORMAT ArrowStream\n"
        )
        batch = pa.RecordBatch.from_arrays([array for *_, array in columns], names=[name for name, *_ in columns])
        connection = connect(self._scope.target)
        out = pa.BufferOutputStream()
        out.write(statement.encode())
        with pa.ipc.new_stream(out, batch.schema) as stream:
            stream.write_batch(batch)
        body: Any = memoryview(out.getvalue())
        with translate_errors(self._scope.target, f"writing {batch.num_rows} rows of table {table.name}"):
            settings = connection.supported({**INSERT_SETTINGS, **CREATE_SETTINGS})
            connection.client.raw_insert("", None, body, settings=settings)

    def _delete_parts(self, block: LogBlock, operations: npt.NDArray[np.int8]) -> None:
        table = block.table
        starts = np.flatnonzero(np.isin(operations, _STARTS))
        parts = np.flatnonzero(np.isin(operations, _PARTITION_DELETES))
        bounds = self._bounds(block, starts, operations) if len(starts) else []
        for row, condition in [*((int(row), "1") for row in parts), *zip(map(int, starts), bounds, strict=True)]:
            version = (int(block.times[row]) << _SEQUENCE_BITS) | _LAST
            of = " AND ".join(_equals(column, block.rows.column(column.name)[row].as_py()) for column in table.partition_key)
            names = ", ".join([*(quote_name(column.name) for column in (*table.partition_key, *table.clustering)), ORDER])
            target = qualified(table, self._scope)
            statement = (
                f"INSERT INTO {target} ({names}, {SIGN}, {VERSION}) SELECT {names}, -1, {version} FROM {target} FINAL "
                f"WHERE {of} AND {condition} AND {VERSION} < {version}"
            )
            run_statements(self._scope.target, f"deleting rows of table {table.name}", statement, settings=CREATE_SETTINGS)

    def _bounds(self, block: LogBlock, starts: Rows, operations: npt.NDArray[np.int8]) -> list[str]:
        """Return the condition of each range. A range's end is the log row after its start."""

        def keys(rows: Rows) -> Array:
            return order_keys(block.table.clustering, lambda name: Cells.of(block.rows.column(name)).take(rows))[1]

        after_first = pa.array(operations[starts] == Operation.RANGE_START_EXCLUSIVE)
        after_second = pa.array(operations[starts + 1] == Operation.RANGE_END_INCLUSIVE)
        found = []
        for raw in range_keys(keys(starts), after_first, keys(starts + 1), after_second).to_pylist():
            size = int.from_bytes(raw[:4], "big")
            first, second = raw[4 : 4 + size], raw[4 + size :]
            found.append(f"{ORDER} >= unhex('{first.hex()}') AND {ORDER} < unhex('{second.hex()}')")
        return found


def _sent(column: CqlColumn, name: str) -> tuple[str, str]:
    """Return the type in which a column is sent, and the SQL that converts it."""
    kind = column.type
    if column.role in (ColumnRole.PARTITION, ColumnRole.CLUSTERING):
        return "String", value_sql(kind, name)
    if not is_plain(kind):
        return nullable_type(kind, FieldNaming.INDEXED), with_user_field_names(kind, name)
    if is_bytes(kind):
        return "Nullable(String)", name
    there = f"length({name}) = {WIDTHS[kind.name]}" if kind.name in WIDTHS else f"length({name}) > 0"
    return "Nullable(String)", f"if({there}, {value_sql(kind, f'assumeNotNull({name})')}, NULL)"


def _array(column: CqlColumn, cells: Cells, *, logged: bool) -> Array:
    kind = column.type
    if is_plain(kind):
        return cells.binary()
    try:
        if logged and kind.name == "list" and not kind.is_atomic:
            # The log stores a list as a map by its elements' keys, in order.
            elements = split_collections(cells, 2)
            values = typed_array(kind.args[0], elements.parts[1], nullable=False)
            made = pa.list_(pa.field("item", values.type, nullable=False))
            offsets = pa.py_buffer(elements.offsets.astype(np.int32))
            return pa.Array.from_buffers(made, len(cells), [None, offsets], children=[values])
        return typed_array(kind, cells, nullable=True)
    except MalformedValue as damage:
        raise damaged_value(damage, column.name) from None


def _equals(column: CqlColumn, raw: bytes) -> str:
    return f"{quote_name(column.name)} = {value_sql(column.type, f'''unhex('{raw.hex()}')''')}"


@dataclass(frozen=True, slots=True)
class PostimageSink(LogSink):
    sink: ClickHouseSink

    @property
    def stores_row_images(self) -> bool:
        return True

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Create missing tables and check existing ones. Nothing is created if one table raises `DefiniteError`."""
        wanted = list(tables)
        for table in wanted:
            _check_table(table)
        for table in wanted:
            _prepare(self.sink.target, table, target_name(table.name, self.sink.target, self.sink.options))

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        del old
        self.prepare([new])

    def clear(self, table: CqlTable) -> None:
        name = qualified(table, self.sink.scope)
        run_statements(self.sink.target, f"emptying the table of {table.name}", f"TRUNCATE TABLE {name}", settings=DROP_SETTINGS)

    def table_store(self) -> Self:
        return self

    def progress_store(self) -> ClickHouseProgressStore:
        return self.sink.progress_store()

    def claims(self) -> ClickHouseTargetClaims:
        return self.sink.claims()

    def target_of(self, name: TableName) -> str:
        return self.sink.target_of(name)

    def late_row_store(self) -> ClickHouseLateRowStore:
        return ClickHouseLateRowStore(self.sink.own_tables())

    def writer(self) -> PostimageWriter:
        return PostimageWriter(self.sink.scope)
