"""CQL's types in ClickHouse: which type shows a value, and how SQL makes it of the serialised one.

A type is *plain* if one expression of SQL turns its serialised bytes into the value: then a cell carries these bytes and nothing else.
The others (numbers without bound, durations, everything frozen) carry the bytes and the value, made by `headrace.cql.decode.arrow_arrays`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace.cql.types import CqlType
from headrace.sinks.clickhouse.cells.cell_kernels import HEAD, LONG_HEAD
from headrace.sinks.clickhouse.server.quoting import quote_name

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
"""How many bytes a value has, where all have as many. CQL's *empty* value has none."""
_EXACT: Final = frozenset(_PLAIN) - {"double", "float"} | _BYTES
_TIME: Final = "reinterpretAsUInt64(reverse(substring({0}, 1, 8)))"
_FROM_ORDER: Final = (
    "reinterpretAsUUID(concat("
    f"reinterpretAsFixedString(bitOr(bitOr(bitShiftLeft({_TIME}, 32), bitShiftLeft(bitAnd(bitShiftRight({_TIME}, 32), 65535), 16)), "
    f"bitOr(4096, bitShiftRight({_TIME}, 48)))), "
    "reinterpretAsFixedString(bitXor(reinterpretAsUInt64(reverse(substring({0}, 9, 8))), 9259542123273814144))))"
)
"""A timeuuid of the sixteen bytes by which it is sorted (`headrace.cql.timeuuid.order_key`)."""


class Naming(Enum):
    """What a user type's fields are called: as the user sees them, by their index (which no renaming changes), not at all."""

    SHOWN = "shown"
    KEPT = "kept"
    BARE = "bare"


def shown_type(kind: CqlType, naming: Naming = Naming.SHOWN) -> str:
    """The ClickHouse type of a value that is there."""
    if kind.name in _TYPES:
        return _TYPES[kind.name]
    match kind.name:
        case "map":
            return f"Map({shown_type(kind.args[0], naming)}, {shown_type(kind.args[1], naming)})"
        case "udt" if naming is not Naming.BARE:
            names = kind.fields if naming is Naming.SHOWN else map(field_name, range(len(kind.fields)))
            fields = zip(names, kind.args, strict=True)
            return f"Tuple({', '.join(f'{quote_name(name)} {nullable_type(arg, naming)}' for name, arg in fields)})"
        case "tuple" | "udt":
            return f"Tuple({', '.join(nullable_type(arg, naming) for arg in kind.args)})"
        case _:
            return f"Array({shown_type(kind.args[0], naming)})"


def field_name(index: int) -> str:
    """What a user type's field is called where it is kept."""
    return f"f{index}"


def renamed_sql(kind: CqlType, kept: str) -> str:
    """A typed value as it is kept, with its fields called as the user sees them."""
    if not _has_fields(kind):
        return kept
    return f"CAST(CAST({kept} AS {nullable_type(kind, Naming.BARE)}) AS {nullable_type(kind)})"


def _has_fields(kind: CqlType) -> bool:
    return kind.name == "udt" or any(map(_has_fields, kind.args))


def takes_null(kind: CqlType) -> bool:
    """Whether ClickHouse has a NULL for the type; of the others the empty value stands for it."""
    return kind.name in _TYPES and kind.name != "duration"


def nullable_type(kind: CqlType, naming: Naming = Naming.SHOWN) -> str:
    """The ClickHouse type of a value that may be missing."""
    return f"Nullable({shown_type(kind, naming)})" if takes_null(kind) else shown_type(kind, naming)


def is_plain(kind: CqlType) -> bool:
    return kind.name in _PLAIN or kind.name in _BYTES


def is_exact(kind: CqlType) -> bool:
    """Whether two values are one to CQL just if they are one to ClickHouse, and can be sorted by. (Zeros of both signs are two to CQL.)"""
    return kind.name in _EXACT


def is_bytes(kind: CqlType) -> bool:
    """Whether no bytes at all are a value like any other."""
    return kind.name in _BYTES


def value_sql(kind: CqlType, raw: str) -> str:
    """The value of serialised bytes that are a value of a plain type."""
    return raw if is_bytes(kind) else _PLAIN[kind.name].format(raw)


def key_sql(kind: CqlType, raw: str) -> str:
    """An element's key of the bytes that it is kept by: timeuuids are kept so that they sort."""
    return _FROM_ORDER.format(raw) if kind.name == "timeuuid" else value_sql(kind, raw)


def order_sql(kind: CqlType, raw: str) -> str:
    """What elements are sorted by, of the bytes that they are kept by: in that order their server shows them."""
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
    """The value of a plain type, or NULL. `held` is what a cell holds; of a type whose values all have one size, the cell itself.

    CQL's *empty* value is NULL too: then nothing is behind the cell's head.
    """
    if is_bytes(kind):
        return f"if({alive}, {held}, NULL)"
    width = WIDTHS.get(kind.name)
    if width is None:
        return f"if(length({held}) > 0, {value_sql(kind, held)}, NULL)"
    return f"if({alive} AND length({held}) IN ({HEAD + width}, {LONG_HEAD + width}), {value_sql(kind, f'right({held}, {width})')}, NULL)"
