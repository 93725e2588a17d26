"""Renders single values of a source column as SQL constants of the stored type.

Invariant: the constant equals what the column would store for the same value in a block, because it uses the column's codec.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Any, assert_never
from uuid import UUID

import pyarrow as pa

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.server.scalar_values import time_text
from headrace.sinks.clickhouse.server.server_limits import ANY_SERVER
from headrace.sinks.clickhouse.types.codec_registry import codec_for
from headrace.sinks.clickhouse.types.type_names import parse_stored_type


def constant_sql(column: Column, stored: str, value: object) -> str | None:
    """Return a value as a SQL constant (dates as days, times as microseconds); None if the type does not store it unchanged."""
    codec = codec_for(column, stored, ANY_SERVER)
    array = _array(column, value)
    if codec.loses or any(check.find(array) is not None for check in codec.checks):
        return None
    try:
        sent = array if codec.recode is None else codec.recode(array)
    except pa.ArrowInvalid:
        return None
    return f"CAST({_written(parse_stored_type(stored).plain.name, sent[0])}, {quote_text(stored)})"


def scalar_value(scalar: Any) -> object:
    """Return an Arrow scalar as `constant_sql` takes it."""
    if pa.types.is_temporal(scalar.type):
        return scalar.value
    return scalar.as_py()


def _array(column: Column, value: object) -> Any:
    match column.form:
        case ValueForm.MEMBERS:
            return pa.array([value], pa.string()).dictionary_encode()
        case ValueForm.DATE:
            return pa.array([value], pa.int32()).view(column.arrow_type)
        case ValueForm.TIMESTAMP | ValueForm.TIME:
            return pa.array([value], pa.int64()).view(column.arrow_type)
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.FLOAT | ValueForm.DECIMAL | ValueForm.TEXT | ValueForm.JSON:
            return pa.array([value], column.arrow_type)
        case ValueForm.BYTES | ValueForm.FIXED_BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return pa.array([value], column.arrow_type)
        case unknown:
            assert_never(unknown)


def _written(stored: str, sent: Any) -> str:
    """Render an encoded value as SQL."""
    match stored:
        case "UUID":
            return f"'{UUID(bytes=sent.as_py())}'"
        case "IPv4":
            return f"'{IPv4Address(sent.as_py())}'"
        case "IPv6":
            return f"'{IPv6Address(sent.as_py())}'"
    kind = sent.type
    if pa.types.is_time64(kind):
        return f"'{time_text(sent.value)}'"
    if pa.types.is_date32(kind):
        return f"addDays(toDate32('1970-01-01'), {sent.value})"
    if pa.types.is_timestamp(kind):
        return f"addMicroseconds(toDateTime64('1970-01-01 00:00:00', 6, 'UTC'), {sent.value})"
    if pa.types.is_list(kind):
        return f"[{', '.join(_written('', one) for one in sent)}]"
    return _plain(sent)


def _plain(sent: Any) -> str:
    kind, value = sent.type, sent.as_py()
    if pa.types.is_float32(kind):
        return f"reinterpretAsFloat32(toUInt32({int.from_bytes(struct.pack('<f', value), 'little')}))"
    if pa.types.is_float64(kind):
        return f"reinterpretAsFloat64(toUInt64({int.from_bytes(struct.pack('<d', value), 'little')}))"
    if pa.types.is_decimal(kind):
        return f"'{value:f}'"
    if isinstance(value, bytes):
        return f"unhex('{value.hex()}')"
    return quote_text(value) if isinstance(value, str) else str(int(value))
