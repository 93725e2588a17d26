"""Parsed events: the output of every format's parser, and the input of the reader.

One `Events` holds the events of one partition with one schema, as columns, in offset order. An event has one *image*: the row that it
writes (c, u, r) or deletes (d). Before images are requested by column, because usually only the sort key's columns matter; the few updates
that move a row are parsed again for the whole row. Values are in *wire types* (`wire_type`), which `values` converts to column types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sources.debezium.events.records import Records

Rows = npt.NDArray[np.int64]
"""Indices of records."""
CREATE, UPDATE, DELETE, READ, TRUNCATE, MESSAGE = (ord(letter) for letter in "cudrtm")
"""Values of `Events.op`: the code of the envelope's letter."""
SOURCE: Final = pa.schema(
    [
        ("connector", pa.string()),
        ("name", pa.string()),
        ("db", pa.string()),
        ("schema", pa.string()),
        ("table", pa.string()),
        ("snapshot", pa.string()),
        ("gtid", pa.string()),
        ("file", pa.string()),
        ("pos", pa.int64()),
        ("row", pa.int64()),
        ("lsn", pa.int64()),
        ("server_id", pa.int64()),
        ("ts_us", pa.int64()),
    ]
)
"""Source fields of an event, by the names of the envelope's `source`; NULL if absent.

`ts_us` is the source's commit time: `source.ts_us`, else `source.ts_ms` in microseconds."""
_SHARED: Final = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "map": pa.string(),
}
_JSON: Final = {
    **_SHARED,
    "int8": pa.int64(),
    "int16": pa.int64(),
    "int32": pa.int64(),
    "float32": pa.float64(),
    "float": pa.float64(),
    "bytes": pa.string(),
}
_AVRO: Final = {
    **_SHARED,
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "float32": pa.float32(),
    "float": pa.float32(),
    "bytes": pa.binary(),
}


class WireFormat(StrEnum):
    """The form in which a format's parser returns values."""

    JSON = "json"
    """JSON numbers, strings and booleans; bytes as base64; structs as structs."""
    AVRO = "avro"
    """Avro values; bytes as bytes."""


@dataclass(frozen=True, slots=True)
class ConnectField:
    name: str
    type: str
    """Connect's type: int8, int16, int32, int64, float32 (in JSON: float), float64 (double), boolean, string, bytes, array, map, struct."""
    semantic: str = ""
    """The schema's name, such as `io.debezium.time.MicroTimestamp`; empty for a plain value."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    optional: bool = True
    default: Any = None
    fields: tuple[ConnectField, ...] = ()
    """The fields of a struct."""
    items: ConnectField | None = None
    """The items of an array."""


@dataclass(frozen=True, slots=True)
class RowFields:
    """A table's row as events describe it."""

    row: tuple[ConnectField, ...]
    key: tuple[str, ...]
    """The names of the key's fields, in order; empty for a table without a key."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one partition under one schema."""

    fields: RowFields
    wire: WireFormat
    record: Rows
    """The record of each event."""
    op: npt.NDArray[np.uint8]
    """c, u, d or r (flat rows: by `__op` and `__deleted`; u by default). t and m have no image: all its values are NULL."""
    image: pa.RecordBatch
    """The row written or deleted: the columns of `fields.row` in wire types, one row per event. NULL if the event has null or lacks the
    field."""
    source: pa.RecordBatch
    """Of schema `SOURCE`; columns that were not requested are NULL."""
    has_before: npt.NDArray[np.bool_]
    """Whether each update contains a before image."""
    before: pa.RecordBatch
    """The requested columns of before images, one row per event; NULL for other events."""
    keys_only: npt.NDArray[np.bool_] | None = None
    """Deletes of which only the key is known (tombstones of flat topics): other columns of their image are NULL."""


@dataclass(frozen=True, slots=True)
class Rejection:
    record: int
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ParsedEvents:
    """The result of a parser: each record is in exactly one of its parts."""

    events: tuple[Events, ...] = ()
    refused: tuple[Rejection, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    """Number of other records by kind, such as "heartbeat"."""
    tombstones: tuple[int, ...] = ()
    """Records whose value is JSON null: tombstones of some converters."""


class EventParser(Protocol):
    saw_flat: bool
    """Whether any of them was a row without an envelope."""
    saw_deleted: bool
    """Whether flat rows carry their own deletion flag."""
    lacks_op: bool
    """Whether a flat row does not name its operation: a row of a snapshot then looks like a change."""

    def parse(self, records: Records, rows: Rows, before: Sequence[str] | None) -> ParsedEvents:
        """Parse records that are not tombstones. `before`: the columns requested of before images; None: all."""

    def parse_keys(self, records: Records, rows: Rows) -> ParsedEvents:
        """The same for tombstones of flat topics: deletions that know no more than the record's key (`keys_only`); `source` is all NULL."""


def sends_zero_dates(source: pa.RecordBatch) -> bool:
    """Return whether events are from MySQL or MariaDB, which fill a new required column without a default with zero values."""
    if not any(source[name].null_count for name in ("file", "pos")):
        return True
    return set(pc.unique(source["connector"]).to_pylist()) <= {"mysql", "mariadb"}


def may_be_unsigned(source: pa.RecordBatch) -> bool:
    """Return whether the source may have unsigned integers: MySQL, MariaDB, or unknown."""
    return set(pc.unique(source["connector"]).to_pylist()) <= {"mysql", "mariadb", "", None}


def take_events(events: Events, rows: Rows) -> Events:
    if len(rows) == len(events.op):
        return events
    taken = pa.array(rows)
    return Events(
        events.fields,
        events.wire,
        events.record[rows],
        events.op[rows],
        events.image.take(taken),
        events.source.take(taken),
        events.has_before[rows],
        events.before.take(taken),
        None if events.keys_only is None else events.keys_only[rows],
    )


def key_deletions(fields: RowFields, wire: WireFormat, record: Rows, image: pa.RecordBatch) -> Events:
    count = len(record)
    source = pa.RecordBatch.from_arrays([pa.nulls(count, kind) for kind in SOURCE.types], schema=SOURCE)
    op, no, yes = np.full(count, DELETE, np.uint8), np.zeros(count, np.bool_), np.ones(count, np.bool_)
    return Events(fields, wire, record, op, image, source, no, no_columns(count), yes)


def no_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def millis_to_micros(millis: pa.Int64Array) -> pa.Int64Array:
    """Return NULL for impossible times: they are only displayed."""
    sane = pc.and_(pc.less(millis, 1 << 53), pc.greater(millis, -(1 << 53)))
    return pc.multiply(pc.if_else(sane, millis, pa.scalar(None, pa.int64())), 1000)


def wire_type(field: ConnectField, wire: WireFormat) -> pa.DataType:
    """Return the Arrow type of a field's values in a format's parser.

    JSON's numbers are int64 or float64, its bytes base64 in text. Maps are JSON documents in text in both formats.
    """
    if field.type == "struct":
        return pa.struct([pa.field(inner.name, wire_type(inner, wire)) for inner in field.fields])
    if field.type == "array":
        return pa.list_(wire_type(field.items, wire) if field.items is not None else pa.string())
    return (_JSON if wire is WireFormat.JSON else _AVRO)[field.type]
