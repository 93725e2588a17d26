"""Scans a table into Arrow batches: a prepared SELECT whose result the compiled kernel decodes as it arrives.

Used by snapshots and by verification. The result streams: memory is one receive buffer and one block.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, assert_never

import numpy as np
import pyarrow as pa
from pymysql.connections import Connection
from pymysql.constants import FIELD_TYPE, FLAG
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from headrace.errors import DefiniteError, TransientError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema, ZeroDates
from headrace.sources.mysql.kernels import resultset
from headrace.sources.mysql.kernels.arrow_arena import Arena
from headrace.sources.mysql.rows.column_finish import (
    ZERO_CODES,
    Finisher,
    check_key_dates,
    check_values,
    finish_column,
    finisher,
    scanned_zero_date,
    slot_for,
    warn_of_zero_dates,
)
from headrace.sources.mysql.rows.row_decoder import MAX_BLOCK_ROWS
from headrace.sources.mysql.server.bounded_connection import LARGEST_ROW_BYTES
from headrace.sources.mysql.server.connection import MySQLAddress, quote_name, server_errors

_UNVALIDATED: Final = frozenset({ValueForm.JSON, ValueForm.DECIMAL, ValueForm.MEMBERS})
"""Forms whose values the kernel copies without validation."""
_STMT_PREPARE, _STMT_EXECUTE, _STMT_CLOSE = 0x16, 0x17, 0x19
_RECEIVE_BYTES: Final = 1 << 20
_DATA_BYTES: Final = 8 << 20
# The limit of 32-bit offsets. The protocol carries rows of at most 1 GiB.
_LARGEST_DATA_BYTES: Final = (1 << 31) - 1
_SPLIT_SIZE: Final = 0xFFFFFF

_INTEGER_TYPES: Final = {
    8: (FIELD_TYPE.TINY,),
    16: (FIELD_TYPE.SHORT,),
    32: (FIELD_TYPE.LONG, FIELD_TYPE.INT24),
    64: (FIELD_TYPE.LONGLONG,),
}
_WITHOUT_LENGTH: Final = frozenset(
    {
        *(stored for types in _INTEGER_TYPES.values() for stored in types),
        *(FIELD_TYPE.FLOAT, FIELD_TYPE.DOUBLE, FIELD_TYPE.YEAR),
        *(FIELD_TYPE.DATE, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP, FIELD_TYPE.TIME),
    }
)
"""Types whose values have no length prefix; all others are strings in the protocol."""


def scan_table(
    connection: Connection[Any],
    address: MySQLAddress,
    schema: TableSchema,
    where: str = "",
    *,
    zero_dates: ZeroDates = ZeroDates.HALT,
    block_rows: int = MAX_BLOCK_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the table's rows that satisfy `where` (SQL), in the server's order, as batches of `schema.arrow_schema`."""
    columns = ", ".join(_selected(column) for column in schema.columns)
    table = f"{quote_name(schema.name.database)}.{quote_name(schema.name.table)}"
    sql = f"SELECT {columns} FROM {table}" + (f" WHERE {where}" if where else "")
    with server_errors(address):
        yield from _Result(connection, address, schema, zero_dates, block_rows).batches(sql)


def _selected(column: Column) -> str:
    """Return the select expression of a column: types that the server would print as text are cast to bytes."""
    name = quote_name(column.name)
    return f"CAST({name} AS BINARY({column.arrow_type.byte_width}))" if column.form is ValueForm.FIXED_BYTES else name


class _Result:
    def __init__(
        self, connection: Connection[Any], address: MySQLAddress, schema: TableSchema, zero_dates: ZeroDates, block_rows: int
    ) -> None:
        self._connection: Any = connection
        self._address = address
        self._schema = schema
        self._zero_dates, self._zero_code = zero_dates, ZERO_CODES[zero_dates]
        self._block_rows = block_rows
        self._finishers = [finisher(column, None, 0, f"rows of {schema.name}") for column in schema.columns]
        self._slots = [
            slot_for(column, names_as_text=True, finished_later=finish is not None)
            for column, finish in zip(schema.columns, self._finishers, strict=True)
        ]
        self._table = np.array([_encode(column) for column in schema.columns], dtype=np.int32).T.copy()
        self._data_bytes = _DATA_BYTES
        self._raw = np.empty(2 * _RECEIVE_BYTES, dtype=np.uint8)
        self._end = 0
        self._buffered = True
        self._state = np.zeros(resultset.ZEROS + len(schema.columns), dtype=np.int64)

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        connection = self._connection
        connection._execute_command(_STMT_PREPARE, sql)
        statement, columns, parameters = struct.unpack_from("<IHH", connection._read_packet().get_all_data(), 1)
        self._skip_definitions(parameters)
        self._skip_definitions(columns)
        connection._execute_command(_STMT_EXECUTE, struct.pack("<IBI", statement, 0, 1))
        connection._read_packet()
        try:
            self._check_definitions()
            yield from self._rows()
            warn_of_zero_dates(self._schema, [column.name for column in self._schema.columns], self._state[resultset.ZEROS :])
        except BaseException:
            # The rest of the result must not be read as the answer to the next query.
            connection._force_close()
            raise
        connection._execute_command(_STMT_CLOSE, struct.pack("<I", statement))

    def _skip_definitions(self, count: int) -> None:
        if count:
            for _ in range(count + 1):
                self._connection._read_packet()

    def _check_definitions(self) -> None:
        """Check that the result has the captured types: the table may have been altered since."""
        for column in self._schema.columns:
            packet = self._connection._read_packet(FieldDescriptorPacket)
            if not _fits(column, packet.type_code, packet.scale, bool(packet.flags & FLAG.UNSIGNED)):
                raise DefiniteError(
                    f"column {column.name} of {self._schema.name} is no longer {column.source_type or column.kind.value}",
                    place=f"snapshot of {self._schema.name}",
                    hint=f"the table was altered while it was read: headrace resync {self._schema.name}, or start again",
                )
        self._connection._read_packet()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        state = self._state
        arena = self._new_arena()
        while True:
            resultset.decode_rows(
                self._raw, self._end, self._table, arena.rows, arena.a1, arena.a2, arena.a4, arena.a8, arena.layout, self._zero_code, state
            )
            status = int(state[resultset.STATUS])
            if status == resultset.SPLIT:
                status = self._decode_split(arena)
            if status == resultset.MORE:
                self._receive()
            elif status == resultset.FULL:
                if state[resultset.ROWS]:
                    yield self._batch(arena)
                else:
                    self._data_bytes = min(self._data_bytes * 4, _LARGEST_DATA_BYTES)
                arena = self._new_arena()
            elif status == resultset.NOT_A_ROW:
                self._check_end()
                if state[resultset.ROWS]:
                    yield self._batch(arena)
                return
            elif status != resultset.SPLIT:
                raise self._error(status)

    def _new_arena(self) -> Arena:
        self._state[resultset.ROWS] = 0
        return Arena(self._slots, self._block_rows, self._data_bytes)

    def _batch(self, arena: Arena) -> pa.RecordBatch:
        arrays = [
            self._finished(column, finish, array)
            for column, finish, array in zip(
                self._schema.columns, self._finishers, arena.to_arrays(int(self._state[resultset.ROWS])), strict=True
            )
        ]
        place = f"rows of {self._schema.name}"
        check_key_dates(self._schema, [column.name for column in self._schema.columns], self._state[resultset.ZEROS :], place)
        check_values(self._schema, arrays, _UNVALIDATED, place, self._zero_dates)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema.arrow_schema)

    def _finished(self, column: Column, finish: Finisher | None, raw: pa.Array) -> pa.Array:
        if column.form is ValueForm.MEMBERS:
            return raw.dictionary_encode()
        return finish_column(column, finish, raw, f"rows of {self._schema.name}")

    def _receive(self) -> None:
        """Receive more bytes, after dropping the decoded ones."""
        at = int(self._state[resultset.AT])
        if at and (at == self._end or len(self._raw) - self._end < _RECEIVE_BYTES):
            self._raw[: self._end - at] = self._raw[at : self._end].copy()
            self._end -= at
            self._state[resultset.AT] = 0
        if self._end > LARGEST_ROW_BYTES:
            raise DefiniteError(
                f"a row of {self._schema.name} is longer than any server sends",
                place=str(self._address),
                hint="check host and port of the source's address: the answer is not from a MySQL or MariaDB server",
            )
        if len(self._raw) - self._end < _RECEIVE_BYTES:
            self._raw = np.concatenate((self._raw[: self._end], np.empty(max(len(self._raw), _RECEIVE_BYTES), dtype=np.uint8)))
        room = self._raw.data[self._end :]
        if self._buffered:
            # Bytes that the driver has already buffered come first. After that its buffer is empty and bypassed.
            ahead = self._connection._rfile.read1(_RECEIVE_BYTES)
            room[: len(ahead)] = ahead
            received, self._buffered = len(ahead), False
        else:
            received = self._connection._rfile.raw.readinto(room)
        if not received:
            raise TransientError("the source closed the connection in the middle of a result", place=str(self._address))
        self._end += received

    def _decode_split(self, arena: Arena) -> int:
        """Decode a row of 16 MiB or more, which spans several packets; return SPLIT when done, otherwise the reason why not."""
        state = self._state
        if state[resultset.ROWS]:
            return resultset.FULL
        parts, at = [], int(state[resultset.AT])
        while True:
            size = int.from_bytes(self._raw[at : at + 3].tobytes(), "little") if at + 4 <= self._end else _SPLIT_SIZE
            if at + 4 + size > self._end:
                return resultset.MORE
            parts.append(self._raw[at + 4 : at + 4 + size])
            at += 4 + size
            if size < _SPLIT_SIZE:
                break
        payload = np.concatenate(parts)
        limbs, scratch = np.empty(8, dtype=np.uint64), np.zeros(1, dtype=np.int64)
        outputs = arena.a1, arena.a2, arena.a4, arena.a8, arena.layout
        done = resultset.decode_row(payload, 0, len(payload), self._table, 0, *outputs, limbs, scratch, self._zero_code, state)
        if done < 0:
            return int(-done)
        state[resultset.ROWS], state[resultset.AT] = 1, at
        return resultset.SPLIT

    def _check_end(self) -> None:
        at = int(self._state[resultset.AT])
        size = int.from_bytes(self._raw[at : at + 3].tobytes(), "little")
        packet = MysqlPacket(self._raw[at + 4 : at + 4 + size].tobytes(), "utf8mb4")
        # An error packet has a number after its first byte.
        if size >= 3:
            packet.check_error()
        if not size or not packet.is_eof_packet():
            raise DefiniteError("the source sent a result that cannot be read", place=str(self._schema.name))

    def _error(self, status: int) -> DefiniteError:
        column = self._schema.columns[int(self._state[resultset.ERROR_COLUMN])]
        if status == resultset.ZERO_DATE:
            return scanned_zero_date(self._schema, column.name)
        what = f"column {column.name} of {self._schema.name} ({column.source_type})"
        return DefiniteError(f"{what} cannot be read", place=str(self._schema.name))


def _fits(column: Column, stored: int, scale: int, unsigned: bool) -> bool:
    """Whether values of the result's type decode correctly as the column's kind."""
    match column.form:
        case ValueForm.INTEGER:
            return stored in _INTEGER_TYPES[column.type.bits] and unsigned != column.type.signed
        case ValueForm.FLOAT:
            return stored == (FIELD_TYPE.FLOAT if column.type.bits == 32 else FIELD_TYPE.DOUBLE)
        case ValueForm.YEAR:
            return stored == FIELD_TYPE.YEAR
        case ValueForm.DATE:
            return stored == FIELD_TYPE.DATE
        case ValueForm.TIMESTAMP:
            return stored == (FIELD_TYPE.TIMESTAMP if column.type.zoned else FIELD_TYPE.DATETIME)
        case ValueForm.TIME:
            return stored == FIELD_TYPE.TIME
        case ValueForm.BITS:
            return stored == FIELD_TYPE.BIT
        case ValueForm.DECIMAL:
            return stored == FIELD_TYPE.NEWDECIMAL and scale == column.scale
        case ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS | ValueForm.BYTES | ValueForm.FIXED_BYTES | ValueForm.GEOMETRY:
            return stored not in _WITHOUT_LENGTH
        case ValueForm.VECTOR:
            return stored not in _WITHOUT_LENGTH
        case unknown:
            assert_never(unknown)


def _encode(column: Column) -> tuple[int, int, int]:
    """Return the encoding of a column, its parameter, and the width of the output (in bytes; for decimals in 8-byte words)."""
    match column.form:
        case ValueForm.INTEGER | ValueForm.FLOAT | ValueForm.YEAR:
            width = slot_for(column, names_as_text=True).width
            return resultset.FIXED, width, width
        case ValueForm.DECIMAL:
            return resultset.DECIMAL, column.scale, 4 if column.precision > 38 else 2
        case ValueForm.BITS:
            return resultset.BITS, 0, 8
        case ValueForm.DATE:
            return resultset.DATE, 0, 4
        case ValueForm.TIMESTAMP:
            return resultset.DATETIME, 0, 8
        case ValueForm.TIME:
            return resultset.TIME, 0, 8
        case ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS | ValueForm.BYTES | ValueForm.FIXED_BYTES | ValueForm.GEOMETRY:
            return resultset.TEXT, 0, 0
        case ValueForm.VECTOR:
            return resultset.TEXT, 0, 0
        case unknown:
            assert_never(unknown)
