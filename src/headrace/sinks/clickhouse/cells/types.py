"""Maps CQL types to ClickHouse types, and serialised values to SQL.

A type is *plain* if one SQL expression decodes its serialised bytes: then a cell stores only these bytes. Cells of other types (numbers of
any size, durations, frozen values) store the bytes and the value, decoded by `headrace.cql.decode.arrow_arrays`.

CQL's dates and timestamps span millions of years, and the server silently clips what it does not hold. `check_timestamps` checks every
block before it is written, also inside of nested values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cql.blocks import BatchPosition
from headrace.cql.decode.arrow_arrays import to_arrow
from headrace.cql.log import TIME
from headrace.cql.types import CqlType, unsupported_type
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.cell_kernels import HEAD, LONG_HEAD
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.server.server_limits import ServerLimits

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow
_TEMPORAL: Final = frozenset({"date", "timestamp"})
_MILLI: Final = 1000
_TYPES: Final = {
    "ascii": "String",
    "bigint": "Int64",
    "blob": "String",
    "boolean": "Bool",
    "date": "Date32",
    "decimal": "String",
    "double": "Float64",
    "duration": "Tuple(months Nullable(Int32), days Nullable(Int32), nanoseconds Nullable(Int64))",
    "float": "Float32",
    "inet": "String",
    "int": "Int32",
    "smallint": "Int16",
    "text": "String",
    "time": "Time64(9)",
    "timestamp": "DateTime64(3, 'UTC')",
    "timeuuid": "UUID",
    "tinyint": "Int8",
    "uuid": "UUID",
    "varint": "String",
}
_PLAIN: Final = {
    "bigint": "reinterpretAsInt64(reverse({0}))",
    "boolean": "toBool({0} != '\\0')",
    "date": "addDays(toDate32('1970-01-01'), toInt64(reinterpretAsUInt32(reverse({0}))) - 2147483648)",
    "double": "reinterpretAsFloat64(reverse({0}))",
    "float": "reinterpretAsFloat32(reverse({0}))",
    "inet": "if(length({0}) = 4, IPv4NumToString(reinterpretAsUInt32(reverse({0}))), "
    "IPv6NumToString(toFixedString(substring(concat({0}, repeat('\\0', 16)), 1, 16), 16)))",
    "int": "reinterpretAsInt32(reverse({0}))",
    "smallint": "reinterpretAsInt16(reverse({0}))",
    "time": "CAST(reinterpret(reinterpretAsInt64(reverse({0})), 'Decimal64(9)') AS Time64(9))",
    "timestamp": "fromUnixTimestamp64Milli(reinterpretAsInt64(reverse({0})), 'UTC')",
    "timeuuid": "reinterpretAsUUID(concat(reverse(substring({0}, 1, 8)), reverse(substring({0}, 9, 8))))",
    "tinyint": "reinterpretAsInt8({0})",
    "uuid": "reinterpretAsUUID(concat(reverse(substring({0}, 1, 8)), reverse(substring({0}, 9, 8))))",
}
_BYTES: Final = frozenset({"ascii", "blob", "text"})
WIDTHS: Final = {
    "bigint": 8,
    "boolean": 1,
    "date": 4,
    "double": 8,
    "float": 4,
    "int": 4,
    "smallint": 2,
    "time": 8,
    "timestamp": 8,
    "timeuuid": 16,
    "tinyint": 1,
    "uuid": 16,
}
"""Size of a value in bytes, where all values have the same. CQL's *empty* value has none."""
_EXACT: Final = frozenset(_PLAIN) - {"double", "float"} | _BYTES
_TIME: Final = "reinterpretAsUInt64(reverse(substring({0}, 1, 8)))"
_FROM_ORDER: Final = (
    "reinterpretAsUUID(concat("
    f"reinterpretAsFixedString(bitOr(bitOr(bitShiftLeft({_TIME}, 32), bitShiftLeft(bitAnd(bitShiftRight({_TIME}, 32), 65535), 16)), "
    f"bitOr(4096, bitShiftRight({_TIME}, 48)))), "
    "reinterpretAsFixedString(bitXor(reinterpretAsUInt64(reverse(substring({0}, 9, 8))), 9259542123273814144))))"
)
"""Decodes a timeuuid from its sort key (`headrace.cql.timeuuid.order_key`)."""


class FieldNaming(Enum):
    """Names of a user type's fields: as the user sees them, by index (unaffected by renames), or none."""

    SHOWN = "shown"
    INDEXED = "kept"
    UNNAMED = "bare"


def value_type(kind: CqlType, naming: FieldNaming = FieldNaming.SHOWN) -> str:
    """Return the ClickHouse type of a value that is not missing."""
    if kind.name in _TYPES:
        return _TYPES[kind.name]
    match kind.name:
        case "map":
            return f"Map({value_type(kind.args[0], naming)}, {value_type(kind.args[1], naming)})"
        case "udt" if naming is not FieldNaming.UNNAMED:
            names = kind.fields if naming is FieldNaming.SHOWN else map(field_name, range(len(kind.fields)))
            fields = zip(names, kind.args, strict=True)
            return f"Tuple({', '.join(f'{quote_name(name)} {nullable_type(arg, naming)}' for name, arg in fields)})"
        case "tuple" | "udt":
            return f"Tuple({', '.join(nullable_type(arg, naming) for arg in kind.args)})"
        case "list" | "set" | "vector":
            return f"Array({value_type(kind.args[0], naming)})"
        case _:
            raise unsupported_type(kind)


def field_name(index: int) -> str:
    """Return the stored name of a user type's field."""
    return f"f{index}"


def with_user_field_names(kind: CqlType, kept: str) -> str:
    """Return a stored value with the user's field names."""
    if not _has_fields(kind):
        return kept
    return f"CAST(CAST({kept} AS {nullable_type(kind, FieldNaming.UNNAMED)}) AS {nullable_type(kind)})"


def _has_fields(kind: CqlType) -> bool:
    return kind.name == "udt" or any(map(_has_fields, kind.args))


def is_nullable(kind: CqlType) -> bool:
    """Whether ClickHouse has NULL for the type; for other types the empty value represents it."""
    return kind.name in _TYPES and kind.name != "duration"


def nullable_type(kind: CqlType, naming: FieldNaming = FieldNaming.SHOWN) -> str:
    """Return the ClickHouse type of a value that may be missing."""
    return f"Nullable({value_type(kind, naming)})" if is_nullable(kind) else value_type(kind, naming)


def is_plain(kind: CqlType) -> bool:
    return kind.name in _PLAIN or kind.name in _BYTES


def is_exact(kind: CqlType) -> bool:
    """Whether CQL and ClickHouse agree on equality, so that rows can be sorted by the value. (Zeros of both signs differ in CQL.)"""
    return kind.name in _EXACT


def is_bytes(kind: CqlType) -> bool:
    """Whether the empty byte string is an ordinary value."""
    return kind.name in _BYTES


def value_sql(kind: CqlType, raw: str) -> str:
    """Return SQL that decodes serialised bytes of a plain type."""
    return raw if is_bytes(kind) else _PLAIN[kind.name].format(raw)


def key_sql(kind: CqlType, raw: str) -> str:
    """Return SQL that decodes an element's stored key; timeuuids are stored as their sort key."""
    return _FROM_ORDER.format(raw) if kind.name == "timeuuid" else value_sql(kind, raw)


def order_sql(kind: CqlType, raw: str) -> str:
    """Return SQL by which elements are sorted, like the source shows them."""
    match kind.name:
        case "bigint" | "int" | "smallint" | "timestamp" | "tinyint":
            return value_sql(kind, raw)
        case "double" | "float":
            return f"({value_sql(kind, raw)}, {raw} < '\\x80')"
        case "uuid":
            by_time = f"concat(substring({raw}, 7, 2), substring({raw}, 5, 2), substring({raw}, 1, 4))"
            version = f"bitShiftRight(reinterpretAsUInt8(substring({raw}, 7, 1)), 4)"
            return f"({version}, if({version} = 1, {by_time}, substring({raw}, 1, 8)), substring({raw}, 9, 8))"
        case _:
            return raw


def cell_value_sql(kind: CqlType, held: str, alive: str) -> str:
    """Return SQL of a plain type's value, or NULL. `held` is the cell's value; for types of a fixed size, the cell itself.

    CQL's *empty* value is NULL too: nothing follows the cell's header.
    """
    if is_bytes(kind):
        return f"if({alive}, {held}, NULL)"
    width = WIDTHS.get(kind.name)
    if width is None:
        return f"if(length({held}) > 0, {value_sql(kind, held)}, NULL)"
    return f"if({alive} AND length({held}) IN ({HEAD + width}, {LONG_HEAD + width}), {value_sql(kind, f'right({held}, {width})')}, NULL)"


def has_timestamps(kind: CqlType) -> bool:
    """Whether values of the type contain dates or timestamps."""
    return kind.name in _TEMPORAL or any(map(has_timestamps, kind.args))


def check_timestamps(columns: Iterable[tuple[str, CqlType]], rows: pa.RecordBatch, limits: ServerLimits, subject: str) -> None:
    """Raise `DefiniteError` if a date or timestamp in these columns is outside of the server's limits."""
    for name, kind in columns:
        if name not in rows.schema.names or rows.column(name).null_count == rows.num_rows:
            continue
        for leaf, array in _leaves(kind, to_arrow(kind, rows.column(name), name)):
            numbers = array.cast(pa.int32() if leaf == "date" else pa.int64())
            first, last = (limits.first_day, limits.last_day)
            if leaf == "timestamp":
                first, last = -(-limits.first_instant_us // _MILLI), limits.last_instant_us // _MILLI
            wrong = np.flatnonzero(
                pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False).to_numpy(zero_copy_only=False)
            )
            if len(wrong):
                unit = "days" if leaf == "date" else "milliseconds"
                # The row of a nested value is unknown.
                event = (
                    str(BatchPosition.of_row(subject, rows, int(wrong[0]))) if kind.name in _TEMPORAL and TIME in rows.schema.names else ""
                )
                raise DefiniteError(
                    f"a {leaf} of column {name}, {numbers[int(wrong[0])]} {unit} since 1970, is not one that ClickHouse holds",
                    place=f"{event or f'table {subject}'}, column {name}",
                    hint="correct the value in the source (ClickHouse 26 holds the years 0000 to 9999), or leave the table out",
                    event=event,
                )


def _leaves(kind: CqlType, array: Array) -> Iterator[tuple[str, Array]]:
    """Yield the dates and timestamps nested in values of a type."""
    if kind.name in _TEMPORAL:
        yield kind.name, array
    elif kind.args and has_timestamps(kind):
        match kind.name:
            case "map":
                parts = [array.keys, array.items]
            case "tuple" | "udt":
                parts = [array.field(place) for place in range(len(kind.args))]
            case "list" | "set" | "vector":
                parts = [array.values]
            case _:
                raise unsupported_type(kind)
        for arg, part in zip(kind.args, parts, strict=True):
            yield from _leaves(arg, part)
