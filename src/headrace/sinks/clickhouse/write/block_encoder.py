"""Encodes a change block as the Arrow stream of one INSERT.

Invariant: the server stores every value unchanged. ClickHouse's Arrow reader converts silently where types differ: integers wrap, decimals
lose digits, fractions of seconds and years out of range are clipped. So a block is sent only in the exact types of its table, without a
NULL where the table has none, and after the codecs have checked every value (see `types.codec`). All checks work on whole columns. Encoding
is a pure function of the block: a replay sends the same rows with the same versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.model.column_types import DATE_FORMS
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.bookkeeping.dead_letters import RejectedRows, RowRejected, event_of, position_text, row_text
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.server.server_limits import ServerLimits
from headrace.sinks.clickhouse.tables.metadata_columns import metadata_field, metadata_values
from headrace.sinks.clickhouse.tables.target_table import StoredColumn, TargetTable
from headrace.sinks.clickhouse.types.codec import ColumnCodec, find_failing_values
from headrace.sinks.clickhouse.types.codec_registry import codec_for
from headrace.sinks.clickhouse.types.scalar_values import render_value

_LEAST_BUFFER, _MOST_KEPT_BUFFER = 1 << 16, 1 << 25
_NOT_STORED = "correct the value in the source, choose on_refused_row = dead_letter, or leave the table out with --exclude"


class BlockEncoder:
    """Encodes the blocks of one table; built once, used for every block."""

    def __init__(self, target_table: TargetTable, limits: ServerLimits, *, compression: str | None = None) -> None:
        self._schema = target_table.schema
        self._columns = target_table.columns
        self._places = [target_table.schema.columns.index(column.source) for column in target_table.columns]
        self._types = [c.arrow_type for c in target_table.schema.columns]
        self._carriers = [codec_for(c.source, c.type, limits) for c in target_table.columns]
        self._metadata_columns = target_table.metadata_columns
        fields = [pa.field(c.name, made.wire, made.nullable) for c, made in zip(target_table.columns, self._carriers, strict=True)]
        self._arrow_schema = pa.schema([*fields, *map(metadata_field, target_table.metadata_columns)])
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._compressed = compression is not None
        self._buffer: Any = None

    @property
    def schema(self) -> TableSchema:
        return self._schema

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._arrow_schema.names)

    @property
    def converts(self) -> bool:
        """Whether the server converts a column, which needs `CONVERSION_SETTINGS`."""
        return any(codec.sent_as for codec in self._carriers)

    def statement(self, table: str) -> str:
        names = ", ".join(map(quote_name, self.columns))
        if not self.converts:
            return f"INSERT INTO {table} ({names}) FORMAT ArrowStream\n"
        sent = [(c.name, made.sent_as, c.type) for c, made in zip(self._columns, self._carriers, strict=True)]
        sent += [(mark.name, "", mark.type) for mark in self._metadata_columns]
        structure = ", ".join(f"{quote_name(name)} {of or kind}" for name, of, kind in sent)
        chosen = ", ".join(f"CAST({quote_name(name)} AS {kind})" if of else quote_name(name) for name, of, kind in sent)
        return f"INSERT INTO {table} ({names}) SELECT {chosen} FROM input({quote_text(structure)}) FORMAT ArrowStream\n"

    def encode(self, block: ChangeBlock, prefix: bytes = b"") -> memoryview:
        """Return the prefix followed by the block as an Arrow stream of one batch; valid until the next call."""
        batch = self._checked(block)
        if self._compressed:
            # Measuring the size first would compress the batch twice.
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
        columns = block.images.columns
        arrays = [
            self._encode_column(column, codec, columns[place], block)
            for column, codec, place in zip(self._columns, self._carriers, self._places, strict=True)
        ]
        metadata_columns = [metadata_values(mark, block) for mark in self._metadata_columns]
        return pa.record_batch([*arrays, *metadata_columns], schema=self._arrow_schema)

    def _encode_column(self, column: StoredColumn, codec: ColumnCodec, array: Any, block: ChangeBlock) -> Any:
        """Return the column as it is sent; raise `RowRejected` for the first row with a value that would not be stored unchanged."""
        for check in codec.checks:
            bad = check.find(array)
            if bad is not None:
                raise self._rejection(column, block, bad, check.why)
        if codec.recode is None:
            return array
        try:
            return codec.recode(array)
        except pa.ArrowInvalid as error:
            raise self._rejection(column, block, find_failing_values(array, codec.recode), _rejection_reason(column, error)) from error

    def find_rejected_rows(self, block: ChangeBlock) -> RejectedRows:
        """Return all rows with a value that would not be stored unchanged, each with its first such column and the reason."""
        found: dict[int, tuple[str, str]] = {}
        columns = block.images.columns
        for column, codec, place in zip(self._columns, self._carriers, self._places, strict=True):
            for bad, why in _find_rejected_values(column, codec, columns[place]):
                for row in np.flatnonzero(pc.fill_null(bad, False).to_numpy(zero_copy_only=False)).tolist():
                    value = render_value(columns[place][row])
                    found.setdefault(row, (column.source.name, f"{column.source.name} = {value} {why}"))
        return RejectedRows.of(found)

    def _measure(self, batch: pa.RecordBatch) -> int:
        counted = pa.MockOutputStream()
        self._write(batch, counted)
        return int(counted.size())

    def _write(self, batch: pa.RecordBatch, out: Any) -> None:
        with pa.ipc.new_stream(out, self._arrow_schema, options=self._options) as stream:
            stream.write_batch(batch)

    def _reserve(self, length: int) -> Any:
        """Return a buffer of at least that length. The last buffer is reused: allocating memory costs more than the copy."""
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

    def _rejection(self, column: StoredColumn, block: ChangeBlock, bad: Any, why: str) -> RowRejected:
        source = column.source
        row = pc.index(bad, pa.scalar(True)).as_py()
        value = render_value(block.images.column(source.name)[row])
        hint = _NOT_STORED
        if source.form in DATE_FORMS:
            hint = f"use a newer ClickHouse server (26.x holds the years 0000 to 9999); or {_NOT_STORED}"
        place = f"table {self._schema.name}{row_text(block, row)}, column {source.name}, {position_text(block.version[row].as_py())}"
        return RowRejected(f"{source.name} = {value} {why}", place=place, hint=hint, event=event_of(block, row))


def _find_rejected_values(column: StoredColumn, codec: ColumnCodec, array: Any) -> Iterator[tuple[Any, str]]:
    """Yield, check by check, the values that would not be stored unchanged. The recoding is tried only on values that pass the checks."""
    passed = np.ones(len(array), dtype=bool)
    for check in codec.checks:
        bad = check.find(array)
        if bad is not None:
            passed &= ~pc.fill_null(bad, False).to_numpy(zero_copy_only=False)
            yield bad, check.why
    if codec.recode is None:
        return
    places = np.flatnonzero(passed)
    kept = array.take(pa.array(places))
    try:
        codec.recode(kept)
    except pa.ArrowInvalid as error:
        bad = np.zeros(len(array), dtype=bool)
        bad[places[find_failing_values(kept, codec.recode).to_numpy(zero_copy_only=False)]] = True
        yield pa.array(bad), _rejection_reason(column, error)


def _rejection_reason(column: StoredColumn, error: pa.ArrowInvalid) -> str:
    return f"is not a value that {column.type} holds ({error})"
