"""Builds blocks of log rows and base rows; the driver serialises the values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.cql import timeuuid
from headrace.cql.blocks import LogBlock, RowBlock
from headrace.cql.log import END, OPERATION, SEQUENCE, STREAM, TIME, TTL, log_table
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import CqlType
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sources.scylla.snapshot.base_rows import WriteTimeColumns
from testkit.generators.cql_values import numbers_of, serialised


def write(sink: CellSink, *blocks: LogBlock | RowBlock) -> None:
    """Write the blocks in one split."""
    writer = sink.writer()
    for block in blocks:
        writer.write(block)
    writer.complete()
    writer.close()


def log_block(table: CqlTable, entries: Iterable[Mapping[str, Any]], written: int | None = None) -> LogBlock:
    """Each entry: `op`, `at` (microseconds), perhaps `ttl` and `stream`, and values of the log's columns by their names."""
    log = log_table(table)
    rows = []
    for place, entry in enumerate(entries):
        row = {
            STREAM: entry.get("stream", b"\x01" * 16),
            TIME: timeuuid.make(entry["at"], 0x8000000000000000 | entry.get("batch", 0)),
            SEQUENCE: place,
            OPERATION: entry["op"],
            TTL: entry.get("ttl"),
            END: True,
        }
        rows.append({**row, **{name: value for name, value in entry.items() if name not in {"op", "at", "ttl", "stream", "batch"}}})
    columns = [
        pa.array([None if row.get(c.name) is None else serialised(c.type, row[c.name]) for row in rows], pa.binary()) for c in log.columns
    ]
    batch = as_read(pa.record_batch(columns, names=[c.name for c in log.columns]))
    return LogBlock(table, batch, pa.array([written] * len(rows), pa.int64()))


def all_write_times(table: CqlTable) -> WriteTimeColumns:
    """All columns, as of a server that returns the write times of collections."""
    return WriteTimeColumns(frozenset(column.name for column in table.cells))


def atomic_write_times(table: CqlTable) -> WriteTimeColumns:
    """The columns of a server that returns no write times of collections."""
    return WriteTimeColumns(frozenset(column.name for column in table.cells if column.type.is_atomic))


def as_read(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows in read-only memory, as pages are."""
    found: pa.RecordBatch = pa.ipc.read_record_batch(pa.py_buffer(batch.serialize().to_pybytes()), batch.schema)
    return found


Timed = tuple[Any, Any, Any]
"""A value with its write times (one, a list, or None if unknown) and its expiries."""


def row_block(table: CqlTable, as_of: int, rows: Sequence[Mapping[str, Any]], gone: Sequence[Mapping[str, Any]] = ()) -> RowBlock:
    """Each row: the key's columns by name, and `Timed` for others."""
    cells = table.cells
    values = [
        pa.array([_raw(c, row[c.name][0] if c in cells and c.name in row else row.get(c.name)) for row in rows], pa.binary())
        for c in table.columns
    ]
    stamps = [
        pa.record_batch(
            [pa.array([_listed(row[c.name][part]) if c.name in row else None for row in rows], pa.list_(pa.int64())) for c in cells],
            names=[c.name for c in cells],
        )
        for part in (1, 2)
    ]
    keys = [c for c in table.columns if c not in cells]
    lost = pa.record_batch([pa.array([_raw(c, row[c.name]) for row in gone], pa.binary()) for c in keys], names=[c.name for c in keys])
    batch = as_read(pa.record_batch(values, names=[c.name for c in table.columns]))
    times, expiries = stamps
    return RowBlock(table, batch, times, expiries, as_of, again=bool(gone), gone=lost if gone else None)


def _raw(column: CqlColumn, value: Any) -> bytes | None:
    return None if value is None else serialised(column.type, value)


def _listed(value: Any) -> list[int | None] | None:
    return value if value is None or isinstance(value, list) else [value]


def read_view(client: Any, query: str, kinds: Sequence[CqlType]) -> list[tuple[Any, ...]]:
    """Read a view in ClickHouse, in the plain form of `testkit.generators.cql_values.oracle_value`; `kinds` are the columns' CQL types."""
    settings = {"output_format_arrow_string_as_string": "0", "output_format_arrow_fixed_string_as_fixed_byte_array": "1"}
    found = client.query_arrow(query, settings=settings)
    columns = [
        [_plain(kind, value) for value in column.cast(numbers_of(column.type)).to_pylist()]
        for kind, column in zip(kinds, found.columns, strict=True)
    ]
    return list(zip(*columns, strict=True))


def _plain(kind: CqlType, value: Any) -> Any:
    if value is None:
        return None
    match kind.name:
        case "list" | "set" | "vector":
            return [_plain(kind.args[0], part) for part in value]
        case "map":
            return [(_plain(kind.args[0], key), _plain(kind.args[1], part)) for key, part in value]
        case "tuple" | "udt":
            return {name: _plain(arg, part) for (name, part), arg in zip(value.items(), kind.args, strict=True)}
        case "text" | "ascii" | "inet" | "varint" | "decimal":
            return value.decode()
        case "float" | "double":
            return (value, math.copysign(1, value))
        case _:
            return value


def as_clickhouse(kind: CqlType, value: Any) -> Any:
    """Return a plain value as ClickHouse shows it where its type has no NULL: an empty collection, missing fields."""
    match kind.name:
        case "list" | "set" | "vector":
            return [as_clickhouse(kind.args[0], part) for part in value or []]
        case "map":
            return [(as_clickhouse(kind.args[0], key), as_clickhouse(kind.args[1], part)) for key, part in value or []]
        case "tuple" | "udt":
            names = kind.fields if kind.name == "udt" else [str(place + 1) for place in range(len(kind.args))]
            return {name: as_clickhouse(arg, (value or {}).get(name)) for name, arg in zip(names, kind.args, strict=True)}
        case "duration":
            return value or {"months": None, "days": None, "nanoseconds": None}
        case _:
            return value
