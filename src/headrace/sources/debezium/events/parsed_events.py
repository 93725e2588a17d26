"""Parsed events: what every format's parser makes of records, and what the reader makes blocks of.

One `Events` holds the events of one partition that are described by one schema, as columns, in the order of their offsets. An event has one
*image*: the row that it puts there (c, u, r) or takes away (d). What the row was before an update is asked for by column, because nearly
always only the sort key's columns of it matter; the few updates that move a row are parsed once more for the whole of it. Values are in
*wire types* (`wire_type`): what `values` then makes the columns' own types of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sources.debezium.events.fields import ConnectField, RowFields, WireFormat
from headrace.sources.debezium.events.records import Records

Rows = npt.NDArray[np.int64]
"""Indices of records."""

CREATE, UPDATE, DELETE, READ, TRUNCATE, MESSAGE = (ord(letter) for letter in "cudrtm")
"""What `Events.op` holds: the code of the envelope's letter."""

SOURCE: Final = pa.schema(
    [
        ("connector", pa.string()),
        ("db", pa.string()),
        ("schema", pa.string()),
        ("table", pa.string()),
        ("snapshot", pa.string()),
        ("file", pa.string()),
        ("pos", pa.int64()),
        ("row", pa.int64()),
        ("lsn", pa.int64()),
        ("server_id", pa.int64()),
        ("ts_us", pa.int64()),
    ]
)
"""What an event says of its source, by the names of the envelope's `source`; NULL for what it does not say.

`ts_us` is when the source committed: `source.ts_us`, else `source.ts_ms` in microseconds."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one partition under one schema."""

    fields: RowFields
    wire: WireFormat
    record: Rows
    """Which record each event is."""
    op: npt.NDArray[np.uint8]
    """c, u, d or r (flat: by `__op` and `__deleted`; u if it does not say); t and m have no image: every value of it is NULL."""
    image: pa.RecordBatch
    """The row put there or taken away: the columns of `fields.row`, in wire types, of as many rows as there are events. A value is NULL if
    the event says null, or does not hold the field."""
    source: pa.RecordBatch
    """Of schema `SOURCE`; columns that the parser was not asked for are NULL."""
    has_before: npt.NDArray[np.bool_]
    """Which updates say what the row was before."""
    before: pa.RecordBatch
    """The columns that were asked for of the row before an update; NULL in all other events. Of as many rows as there are events."""
    keys_only: npt.NDArray[np.bool_] | None = None
    """Deletions of which only the key is known (tombstones of flat topics): the other columns of their image are NULL."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A record that cannot be read."""

    record: int
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ParsedEvents:
    """What a parser made of records: each of them is in exactly one place here."""

    events: tuple[Events, ...] = ()
    refused: tuple[Rejection, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    """Records that are of another kind than row events, such as "heartbeat", and their number."""
    tombstones: tuple[int, ...] = ()
    """Records whose value says no more than null: tombstones, as some converters write them."""


class EventParser(Protocol):
    """Turns records of one format into events."""

    saw_flat: bool
    """Whether any of them was a row without an envelope."""
    saw_deleted: bool
    """Whether such rows say themselves that they are deleted."""

    def parse(self, records: Records, rows: Rows, before: Sequence[str] | None) -> ParsedEvents:
        """The events of these records, none of which is a tombstone. `before`: the columns asked for of rows before updates; None: all."""

    def parse_keys(self, records: Records, rows: Rows) -> ParsedEvents:
        """The same for tombstones of flat topics: deletions that know no more than the record's key (`keys_only`); `source` is all NULL."""


def sends_zero_dates(source: pa.RecordBatch) -> bool:
    """Whether events are of MySQL or MariaDB, which put zero values into a required column that is added without a default."""
    if not any(source[name].null_count for name in ("file", "pos")):
        return True
    return set(pc.unique(source["connector"]).to_pylist()) <= {"mysql", "mariadb"}


def may_be_unsigned(source: pa.RecordBatch) -> bool:
    """Whether events may be of a source that has unsigned integers: of MySQL or MariaDB, or of one that events do not name."""
    return set(pc.unique(source["connector"]).to_pylist()) <= {"mysql", "mariadb", "", None}


def take_events(events: Events, rows: Rows) -> Events:
    """Some of the events."""
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


def wire_type(field: ConnectField, wire: WireFormat) -> pa.DataType:
    """In what Arrow type a field's values come out of a format's parser.

    JSON's numbers are int64 or float64, its bytes base64 in text. Maps are JSON documents in text in both formats.
    """
    if field.type == "struct":
        return pa.struct([pa.field(inner.name, wire_type(inner, wire)) for inner in field.fields])
    if field.type == "array":
        return pa.list_(wire_type(field.items, wire) if field.items is not None else pa.string())
    return (_JSON if wire is WireFormat.JSON else _AVRO)[field.type]


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
