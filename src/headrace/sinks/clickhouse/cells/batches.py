"""The batches written for a block: one for the rows table, one for the partitions table.

Invariant: encoding is a pure function of the block, and all columns merge by `max`. So a batch may be written again, in part, or in any
order, with the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.cql.blocks import BatchPosition
from headrace.cql.decode.arrow_arrays import Cells, MalformedValue
from headrace.cql.log import TIME
from headrace.cql.tables import ColumnRole, CqlColumn
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.key_order import Array, order_keys
from headrace.sinks.clickhouse.cells.storage import ORDER, CellStorage, sort_name
from headrace.sinks.clickhouse.cells.typed_arrays import typed_array
from headrace.sinks.clickhouse.cells.types import FieldNaming, is_exact, is_plain, value_sql, value_type
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text


@dataclass(frozen=True, slots=True)
class CellBatch:
    """Rows for one of the two tables, by column."""

    columns: dict[str, Array]
    """By stored name. Key columns that SQL converts from bytes are bytes here."""

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def body(self, statement: bytes, compression: str | None = None) -> Any:
        """Return the body of an INSERT: the statement, and the rows as an Arrow stream."""
        batch = pa.record_batch(list(self.columns.values()), names=list(self.columns))
        out = pa.BufferOutputStream()
        out.write(statement)
        with pa.ipc.new_stream(out, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
            stream.write_batch(batch)
        return memoryview(out.getvalue())


class BlockColumns:
    """The columns of selected rows of a block, as cells."""

    def __init__(self, rows: pa.RecordBatch, chosen: np.ndarray[Any, np.dtype[Any]], subject: str) -> None:
        self._rows, self._chosen, self._subject = rows, chosen, subject
        self._all = len(chosen) == rows.num_rows
        self._known: dict[str, Cells] = {}

    def __len__(self) -> int:
        return len(self._chosen)

    def __call__(self, name: str) -> Cells:
        """Return a column; raise `DefiniteError` if the block does not have it."""
        found = self._known.get(name)
        if found is None:
            place = self._rows.schema.get_field_index(name)
            if place < 0:
                raise DefiniteError(
                    f"column {name} is not among what was read",
                    place=f"table {self._subject}",
                    hint="if the table was altered just now, restart to read its new definition; else report this",
                )
            cells = Cells.of(self._rows.column(place))
            found = self._known[name] = cells if self._all else cells.take(self._chosen)
        return found

    def is_null(self, name: str) -> bool:
        """Whether the column is null in all rows of the block."""
        place = self._rows.schema.get_field_index(name)
        return place >= 0 and bool(self._rows.column(place).null_count == self._rows.num_rows)

    def place(self, row: int) -> str:
        """Return a row's place for errors: its time in the log, or the first key column in the base table."""
        found = self._rows.slice(int(self._chosen[row]), 1)
        if TIME in found.schema.names:
            return str(BatchPosition.of_row(self._subject, found, 0))
        return f"table {self._subject}, {found.schema.names[0]} = 0x{(found.column(0)[0].as_py() or b'').hex()}"

    def array(self, name: str) -> Array:
        """Return a column's bytes."""
        column = self._rows.column(self._rows.schema.get_field_index(name))
        return column if self._all else self(name).binary()


def key_arrays(storage: CellStorage, read: BlockColumns, *roles: ColumnRole) -> dict[str, Array]:
    """Return the key columns and the sort columns."""
    made: dict[str, Array] = {}
    clustered = ColumnRole.CLUSTERING in roles and storage.is_clustered
    parts, joined = order_keys(storage.table.clustering, read) if clustered else ([], None)
    orders = dict(zip((column.name for column in storage.table.clustering), parts, strict=False))
    for column in storage.table.columns:
        if column.role not in roles:
            continue
        _check_key(column, read)
        made[f"key:{column.name}"] = read.array(column.name) if is_plain(column.type) else _typed(column, read)
        if not is_exact(column.type):
            made[sort_name(column)] = orders[column.name] if column.name in orders else read.array(column.name)
    if joined is not None:
        made[ORDER] = joined
    return made


def _typed(column: CqlColumn, read: BlockColumns) -> Array:
    try:
        return typed_array(column.type, read(column.name), nullable=False)
    except MalformedValue as damage:
        raise damaged_value(damage, column.name, read.place(damage.row)) from None


def _check_key(column: CqlColumn, read: BlockColumns) -> None:
    least = 0 if column.type.name in ("text", "ascii", "blob") else 1
    wrong = np.flatnonzero(read(column.name).sizes < least)
    if len(wrong):
        missing, place = "null" if read(column.name).sizes[wrong[0]] < 0 else "empty", read.place(int(wrong[0]))
        raise DefiniteError(
            f"column {column.name} of the key is {missing}, and ClickHouse cannot sort by that",
            place=place,
            hint="delete that row at the source, or leave the table out",
            event=event_of(place),
        )


def damaged_value(damage: MalformedValue, name: str, place: str = "") -> DefiniteError:
    """Return the error for a damaged value; `place` is its row."""
    return DefiniteError(
        f"a value of column {name} cannot be read: {damage.reason}",
        place=place or f"row {damage.row} of the block",
        hint="an empty value (no bytes) must be another one at the source, or its table left out; if the table or its type was altered "
        "just now, restart to read its new definition; else report this",
        event=event_of(place),
    )


def event_of(place: str) -> str:
    """Return the log batch that `headrace skip` takes; empty for rows of the base table, which cannot be skipped."""
    return place if BatchPosition.parse(place) is not None else ""


def insert_sql(storage: CellStorage, table: str, batch: CellBatch, types: dict[str, str]) -> str:
    """Return the INSERT that precedes the batch's Arrow stream; `types` are the table's column types."""
    kinds = {f"key:{column.name}": column.type for column in storage.table.columns}
    sent, chosen = [], []
    for name in batch.columns:
        kind = kinds.get(name)
        if kind is not None and is_plain(kind):
            sent.append(f"{quote_name(name)} String")
            chosen.append(f"{value_sql(kind, quote_name(name))} AS {quote_name(name)}")
        else:
            sent.append(f"{quote_name(name)} {value_type(kind, FieldNaming.INDEXED) if kind is not None else plain_type(types[name])}")
            chosen.append(quote_name(name))
    names = ", ".join(map(quote_name, batch.columns))
    return f"INSERT INTO {table} ({names}) SELECT {', '.join(chosen)} FROM input({quote_text(', '.join(sent))}) FORMAT ArrowStream\n"


def plain_type(stored: str) -> str:
    """Return the argument type of a SimpleAggregateFunction column."""
    if not stored.startswith("SimpleAggregateFunction("):
        return stored
    return stored.partition(", ")[2][:-1]
