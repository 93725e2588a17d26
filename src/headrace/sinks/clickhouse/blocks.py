"""From a change block to the Arrow stream that one INSERT carries.

Invariant: what leaves here is stored by the server value for value. ClickHouse's Arrow reader converts silently where types differ
(integers wrap, decimals lose digits, fractions of seconds and years out of range are clipped), so a block leaves only in exactly the
types that its table was made from, without a NULL where the table has none, and with every date and time within what the type holds.
All checks are on whole columns. Encoding is a pure function of the block: a replay sends the same rows with the same versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change import ChangeBlock
from headrace.model.schema import Column, Kind, TableSchema
from headrace.sinks.clickhouse.carriers import to_wire, wire_type
from headrace.sinks.clickhouse.layout import Layout
from headrace.sinks.clickhouse.limits import ServerLimits
from headrace.sinks.clickhouse.marks import mark_field, mark_values
from headrace.sinks.clickhouse.types import is_stored_nullable, storage_type
from headrace.sinks.clickhouse.values import render_value

Check = Callable[["pa.Array[Any]", ChangeBlock], None]
_LEAST_BUFFER, _MOST_KEPT_BUFFER = 1 << 16, 1 << 25
_NOT_STORED = "correct the value in the source, or leave the table out with --exclude"


class BlockEncoder:
    """Encodes blocks of one table; built once, then run on every block."""

    def __init__(self, layout: Layout, limits: ServerLimits, *, compression: str | None = None) -> None:
        schema = layout.schema
        fields = [pa.field(c.name, wire_type(c.source), is_stored_nullable(schema, c.source)) for c in layout.columns]
        self._schema = schema
        self._types = [c.arrow_type for c in schema.columns]
        self._marks = layout.marks
        self._arrow_schema = pa.schema([*fields, *map(mark_field, layout.marks)])
        self._checks = [_checks(schema, c, limits) for c in schema.columns]
        self._recodes = [to_wire(c) for c in schema.columns]
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._compressed = compression is not None
        self._buffer: Any = None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._arrow_schema.names)

    def encode(self, block: ChangeBlock, prefix: bytes = b"") -> memoryview:
        """The prefix, then the block as an Arrow stream of one batch; valid until the next call."""
        batch = self._checked(block)
        if self._compressed:
            # Measuring it first would compress it twice.
            grown = pa.BufferOutputStream()
            grown.write(prefix)
            self._write(batch, grown)
            return memoryview(grown.getvalue())
        length = len(prefix) + self._measure(batch)
        buffer = self._reserve(length)
        out = pa.FixedSizeBufferWriter(buffer)
        out.write(prefix)
        self._write(batch, out)
        out.close()
        return memoryview(buffer)[:length]

    def _checked(self, block: ChangeBlock) -> pa.RecordBatch:
        self._check_shape(block)
        arrays: list[Any] = []
        for array, checks, recode in zip(block.images.columns, self._checks, self._recodes, strict=True):
            for check in checks:
                check(array, block)
            arrays.append(array if recode is None else recode(array))
        marks = [mark_values(mark, block) for mark in self._marks]
        return pa.record_batch([*arrays, *marks], schema=self._arrow_schema)

    def _measure(self, batch: pa.RecordBatch) -> int:
        counted = pa.MockOutputStream()
        self._write(batch, counted)
        return int(counted.size())

    def _write(self, batch: pa.RecordBatch, out: Any) -> None:
        with pa.ipc.new_stream(out, self._arrow_schema, options=self._options) as stream:
            stream.write_batch(batch)

    def _reserve(self, length: int) -> Any:
        """A buffer of at least that length: the last one again where it is large enough, because fresh memory costs more than the copy."""
        if self._buffer is not None and self._buffer.size >= length:
            return self._buffer
        buffer = pa.allocate_buffer(max(length, _LEAST_BUFFER))
        self._buffer = buffer if length <= _MOST_KEPT_BUFFER else None
        return buffer

    def _check_shape(self, block: ChangeBlock) -> None:
        names = [c.name for c in self._schema.columns]
        if block.images.schema.names != names or block.images.schema.types != self._types:
            raise DefiniteError(
                f"a block's columns are not those of its schema: {block.images.schema.types} under {block.images.schema.names}",
                place=f"table {self._schema.name}",
                hint="this is a defect of the source; please report it",
            )
        if not (len(block.op) == len(block.version) == block.rows) or block.op.null_count or block.version.null_count:
            raise DefiniteError(
                "a block has an image without operation or version",
                place=f"table {self._schema.name}",
                hint="this is a defect of the source; please report it",
            )


def _checks(schema: TableSchema, column: Column, limits: ServerLimits) -> list[Check]:
    checks: list[Check] = []
    if not is_stored_nullable(schema, column) and not (column.kind is Kind.VECTOR and column.nullable):
        checks.append(_check_no_null(schema, column))
    match column.kind:
        case Kind.DATE:
            checks.append(_check_range(schema, column, pa.int32(), limits.first_day, limits.last_day))
        case Kind.DATETIME | Kind.TIMESTAMP:
            checks.append(_check_range(schema, column, pa.int64(), limits.first_instant_us, limits.last_instant_us))
        case Kind.TIME:
            checks.append(_check_range(schema, column, pa.int64(), limits.first_time_us, limits.last_time_us))
    if column.kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME) and column.precision < 6:
        checks.append(_check_fraction(schema, column))
    return checks


def _check_no_null(schema: TableSchema, column: Column) -> Check:
    def check(array: pa.Array[Any], block: ChangeBlock) -> None:
        # A dictionary array can hide a NULL in its dictionary.
        nulls = array.null_count or (array.dictionary.null_count if pa.types.is_dictionary(array.type) else 0)
        if nulls:
            bad = pc.is_null(array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array)
            if pc.any(bad).as_py():
                raise _refusal(schema, column, block, bad, "is NULL, but the column has no NULLs")

    return check


def _check_range(schema: TableSchema, column: Column, integer: pa.DataType, first: int, last: int) -> Check:
    def check(array: pa.Array[Any], block: ChangeBlock) -> None:
        numbers = array.view(integer)
        bounds = pc.min_max(numbers)
        least, most = bounds["min"].as_py(), bounds["max"].as_py()
        if least is not None and (least < first or most > last):
            bad = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
            raise _refusal(schema, column, block, bad, f"is outside what this server's {storage_type(schema, column)} holds")

    return check


def _check_fraction(schema: TableSchema, column: Column) -> Check:
    unit = pa.scalar(10 ** (6 - column.precision), pa.int64())

    def check(array: pa.Array[Any], block: ChangeBlock) -> None:
        numbers = array.view(pa.int64())
        bad = pc.not_equal(pc.multiply(pc.divide(numbers, unit), unit), numbers)
        if pc.any(bad).as_py():
            raise _refusal(schema, column, block, bad, f"has more than {column.precision} fractional digits")

    return check


def _refusal(schema: TableSchema, column: Column, block: ChangeBlock, bad: Any, why: str) -> DefiniteError:
    row = pc.index(bad, pa.scalar(True)).as_py()
    key = ", ".join(f"{name}={render_value(block.images.column(name)[row])}" for name in schema.row_key)
    value = render_value(block.images.column(column.name)[row])
    hint = _NOT_STORED
    if column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        hint = f"use a newer ClickHouse server (26.x holds the years 0000 to 9999); or {_NOT_STORED}"
    return DefiniteError(f"{column.name} = {value} {why}", place=f"table {schema.name}, row {key}, column {column.name}", hint=hint)
