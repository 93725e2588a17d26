"""Writes postimages, deletions and snapshot rows as row versions.

A version is the change's microsecond and its number in the batch; a deletion comes last in its microsecond, because a tombstone wins over a
cell of the same time. Snapshot rows have the time at which they were read. So blocks may be written any number of times.

A deletion of a range or a partition deletes the visible rows in it that have a lower version. It is the only operation for which order
matters: all earlier rows must be stored. The rows of a stream come in order, batch after batch, and the snapshot ends before the log
starts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.cql.blocks import LogBlock, RowBlock, fixed_bytes
from headrace.cql.decode.arrow_arrays import Cells, MalformedValue, split_collections
from headrace.cql.log import SEQUENCE, TIME, Operation
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.batches import damaged_value
from headrace.sinks.clickhouse.cells.key_order import order_keys, range_keys
from headrace.sinks.clickhouse.cells.typed_arrays import typed_array
from headrace.sinks.clickhouse.cells.types import WIDTHS, FieldNaming, is_bytes, is_plain, nullable_type, value_sql, with_user_field_names
from headrace.sinks.clickhouse.postimages.tables import ORDER, SIGN, VERSION, qualified
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, INSERT_SETTINGS, connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope

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
        names, sent, made, arrays = [], [], [], []
        for column in table.columns:
            cells = Cells.of(block.rows.column(column.name)).take(chosen)
            name = quote_name(column.name)
            kind, value = _sent(column, name)
            names.append(name)
            sent.append(f"{name} {kind}")
            made.append(value)
            arrays.append(_array(column, cells, logged=logged))
        if table.clustering:
            joined = order_keys(table.clustering, lambda name: Cells.of(block.rows.column(name)).take(chosen))[1]
            _add(names, sent, made, arrays, ORDER, "String", joined)
        _add(names, sent, made, arrays, SIGN, "Int8", pa.array(signs))
        _add(names, sent, made, arrays, VERSION, "UInt64", pa.array(versions))
        statement = (
            f"INSERT INTO {qualified(table, self._scope)} ({', '.join(names)}) SELECT {', '.join(made)} "
            f"FROM input({quote_text(', '.join(sent))}) FORMAT ArrowStream\n"
        )
        self._send(
            table, statement.encode(), pa.RecordBatch.from_arrays(arrays, names=[column.name for column in table.columns] + _own(table))
        )

    def _send(self, table: CqlTable, statement: bytes, batch: pa.RecordBatch) -> None:
        connection = connect(self._scope.target)
        out = pa.BufferOutputStream()
        out.write(statement)
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
            connection = connect(self._scope.target)
            with translate_errors(self._scope.target, f"deleting rows of table {table.name}"):
                connection.client.command(
                    f"INSERT INTO {target} ({names}, {SIGN}, {VERSION}) SELECT {names}, -1, {version} FROM {target} FINAL "
                    f"WHERE {of} AND {condition} AND {VERSION} < {version}",
                    settings=connection.supported(CREATE_SETTINGS),
                )

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


def _add(names: list[str], sent: list[str], made: list[str], arrays: list[Array], name: str, kind: str, array: Array) -> None:
    names.append(name)
    sent.append(f"{name} {kind}")
    made.append(name)
    arrays.append(array)


def _own(table: CqlTable) -> list[str]:
    return [*([ORDER] if table.clustering else []), SIGN, VERSION]


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
