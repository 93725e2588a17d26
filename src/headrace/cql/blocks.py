"""Raw rows from a CQL server: columns of serialized values.

A value has the native protocol's serialization (version 4); CQL's null is Arrow's. Values are decoded only where needed, and ties between
values are decided by these bytes, as servers do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.cql.log import OPERATION, STREAM, TIME, Operation
from headrace.cql.tables import CqlTable
from headrace.cql.timeuuid import bulk_micros, micros

_IMAGES: Final = (Operation.PREIMAGE, Operation.POSTIMAGE)


@dataclass(frozen=True, slots=True)
class LogBlock:
    """Rows of a base table's log, each stream's in the order of its log; never a part of a batch (`cdc$end_of_batch`)."""

    table: CqlTable
    """The base table when the rows were read."""
    rows: pa.RecordBatch
    """The log table's columns by their names, each `binary`."""
    written: pa.Int64Array
    """Write time of the log row, seconds since 1970 by the server's clock (from the remaining TTL); null if unknown.

    An expiry counts from that time. It differs much from `cdc$time` only if the writer chose the timestamp.
    """

    @property
    def subject(self) -> str:
        return str(self.table.name)

    @property
    def changes(self) -> int:
        """The number of rows that are changes (not images)."""
        return int(np.isin(self.operations, _IMAGES, invert=True).sum())

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)

    @property
    def newest(self) -> int:
        """The newest `cdc$time`, in microseconds; 0 if there is no row."""
        return int(self.times.max(initial=0))

    @property
    def operations(self) -> NDArray[np.int8]:
        return fixed_bytes(self.rows.column(OPERATION), 1).view(np.int8)[:, 0]

    @property
    def times(self) -> NDArray[np.int64]:
        """The microseconds of each row's `cdc$time`."""
        return bulk_micros(fixed_bytes(self.rows.column(TIME), 16))


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows of the base table with the write times of their cells: a part of a snapshot, or reread rows."""

    table: CqlTable
    rows: pa.RecordBatch
    """The base table's columns by their names, each `binary`. Static columns have rows of their own, with null clustering columns, and are
    null in all others (in a table without clustering columns nothing is static).

    A list (not frozen) holds exactly the elements that were written up to `as_of`, in their order: the log's elements after `as_of` are
    additional; null is an empty list as of then. Of all else, cells after `as_of` may be among them: they have the log's timestamps. A row
    whose regular columns are all null is there by its marker alone; of all other rows' markers nothing is known."""
    times: pa.RecordBatch
    """For each column that is not of the key, by its name, `list<int64>`: the write times of its cells in microseconds, one for an atomic
    column, one for each element (in the order of the value; a user type: one per field) for others. Null: the server does not provide
    it; then `as_of` is used."""
    expiries: pa.RecordBatch
    """The same for expiries: seconds since 1970; null in the list where a cell does not expire."""
    as_of: int
    """Microseconds since 1970. The rows contain every write with a timestamp up to this, and possibly later ones."""
    again: bool = False
    """Whether the rows were read again because the log named what a snapshot cannot know (a list's keys, a row's marker): then the rows
    asked for and not found are in `gone`. (Of static columns nothing is gone: they are null.)"""
    gone: pa.RecordBatch | None = None
    """Keys of rows that were asked for and are not there: as of `as_of`, none of their regular cells and no marker lives. The key's columns
    as in `rows`; clustering columns are never null here."""
    replaces: bool = False
    """Whether the rows are repaired: a sink that stores cells deletes those up to `as_of` that are not in these rows (all of `gone`)."""

    @property
    def subject(self) -> str:
        return str(self.table.name)

    @property
    def changes(self) -> int:
        return int(self.rows.num_rows)

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)

    @property
    def newest(self) -> int:
        """Always 0: rows are not changes."""
        return 0


def fixed_bytes(column: pa.BinaryArray, width: int) -> NDArray[np.uint8]:
    """Return a column of fixed-width values as a matrix; raise `ValueError` if a value has another width."""
    start, count = column.offset, len(column)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[start : start + count + 1] if count else np.zeros(1, np.int32)
    if column.null_count or (np.diff(offsets) != width).any():
        raise ValueError(f"not all values have {width} bytes")
    if not count:
        return np.empty((0, width), np.uint8)
    data = np.frombuffer(column.buffers()[2], np.uint8)
    return data[offsets[0] : offsets[-1]].reshape(count, width)


_FORM: Final = re.compile(r"log of (?P<table>\S+), stream 0x(?P<stream>[0-9a-f]{32}), cdc\$time (?P<time>[0-9a-f-]{36})")


@dataclass(frozen=True, slots=True)
class BatchPosition:
    table: str
    """`keyspace.table`."""
    stream: bytes
    time: bytes

    @classmethod
    def of_row(cls, table: str, rows: pa.RecordBatch, row: int) -> Self:
        return cls(table, rows.column(STREAM)[row].as_py() or bytes(16), rows.column(TIME)[row].as_py() or bytes(16))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the text form; None if it is not a batch position."""
        found = _FORM.fullmatch(text)
        return cls(found["table"], bytes.fromhex(found["stream"]), UUID(found["time"]).bytes) if found else None

    @property
    def micros(self) -> int:
        """Its time, in microseconds since 1970."""
        return micros(UUID(bytes=self.time))

    @property
    def id(self) -> bytes:
        """Stream and `cdc$time`, which identify a batch within its log."""
        return self.stream + self.time

    def __str__(self) -> str:
        return f"log of {self.table}, stream 0x{self.stream.hex()}, cdc$time {UUID(bytes=self.time)}"
