"""Random CQL types and values. The driver's codecs are the reference."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from cassandra import cqltypes
from cassandra.util import Date, Duration, Time
from hypothesis import strategies as st

from headrace.cql.decode.arrow_arrays import arrow_type
from headrace.cql.types import NATIVE, CqlType

PROTOCOL: Final = 4
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KEYLESS: Final = {"duration", "counter"}
"""Types that neither a key nor an element of a set may have."""


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def _durations() -> st.SearchStrategy[Duration]:
    parts = st.tuples(st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1))
    return st.tuples(parts, st.sampled_from([1, -1])).map(lambda made: Duration(*(part * made[1] for part in made[0])))


def _decimals() -> st.SearchStrategy[Decimal]:
    numbers = st.integers(-(10**40), 10**40) | st.integers(-999, 999)
    return st.tuples(numbers, st.integers(-60, 60)).map(lambda made: Decimal(made[0]).scaleb(made[1]) if made[0] else Decimal(0))


SCALARS: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "ascii": st.text(st.characters(max_codepoint=127), max_size=12),
    "bigint": integers(64),
    "blob": st.binary(max_size=20),
    "boolean": st.booleans(),
    "date": integers(32).map(Date),
    "decimal": _decimals(),
    "double": st.floats(allow_nan=False),
    "duration": _durations(),
    "float": st.floats(width=32, allow_nan=False),
    "inet": (st.binary(min_size=4, max_size=4).map(IPv4Address) | st.binary(min_size=16, max_size=16).map(IPv6Address)).map(str),
    "int": integers(32),
    "smallint": integers(16),
    "text": st.text(max_size=12),
    "time": st.integers(0, 86_399_999_999_999).map(Time),
    "timestamp": st.integers(-60_000_000_000_000, 250_000_000_000_000),
    "timeuuid": st.binary(min_size=16, max_size=16).map(lambda raw: UUID(bytes=raw, version=1)),
    "tinyint": integers(8),
    "uuid": st.binary(min_size=16, max_size=16).map(lambda raw: UUID(bytes=raw)),
    "varint": st.integers(-(1 << 300), 1 << 300) | st.integers(-(1 << 66), 1 << 66),
}


def cql_types(depth: int = 3, *, key: bool = False) -> st.SearchStrategy[CqlType]:
    """Types nested to a depth; with `key`, only types that a key may have."""
    plain = st.sampled_from(sorted(NATIVE - (_KEYLESS if key else {"counter"}))).map(CqlType)
    return plain if not depth else plain | _made(depth - 1, key=key)


def _made(depth: int, *, key: bool) -> st.SearchStrategy[CqlType]:
    inner, keys = cql_types(depth, key=key), cql_types(depth, key=True)
    parts = st.lists(inner, min_size=1, max_size=4).map(tuple)
    return st.one_of(
        inner.map(lambda arg: CqlType("list", (arg,), frozen=True)),
        keys.map(lambda arg: CqlType("set", (arg,), frozen=True)),
        st.tuples(keys, inner).map(lambda args: CqlType("map", args, frozen=True)),
        parts.map(lambda args: CqlType("tuple", args)),
        parts.map(lambda args: CqlType("udt", args, True, "ks", "ut", tuple(f"f{place}" for place in range(len(args))))),
        st.tuples(inner, st.integers(1, 4)).map(lambda made: CqlType("vector", (made[0],), size=made[1])),
    )


def cql_values(kind: CqlType) -> st.SearchStrategy[Any]:
    """Values as the driver takes them: maps as pairs, so that keys may be anything."""
    if kind.name in SCALARS:
        return SCALARS[kind.name]
    inner = [cql_values(arg) for arg in kind.args]
    if kind.name in {"list", "set"}:
        return st.lists(inner[0], max_size=4)
    if kind.name == "vector":
        return st.lists(inner[0], min_size=kind.size, max_size=kind.size)
    if kind.name == "map":
        return st.lists(st.tuples(inner[0], inner[1]), max_size=4)
    return st.tuples(*(st.none() | part for part in inner))


def serialised(kind: CqlType, value: Any) -> bytes:
    """A value as the driver serialises it; maps, whose keys may not be hashable here, are put together from their parts."""
    if kind.name == "map":
        return struct.pack(">i", len(value)) + b"".join(
            _sized(arg, part) for pair in value for arg, part in zip(kind.args, pair, strict=True)
        )
    if kind.name in {"list", "set"}:
        return struct.pack(">i", len(value)) + b"".join(_sized(kind.args[0], part) for part in value)
    if kind.name in {"tuple", "udt"}:
        return b"".join(_sized(arg, part) for arg, part in zip(kind.args, value, strict=True))
    if kind.name == "vector":
        theirs = driver_type(kind.args[0])
        raw = type("Raw", (), {"serial_size": theirs.serial_size, "serialize": staticmethod(lambda part, _: part), "typename": ""})
        made: Any = type("Vector", (cqltypes.VectorType,), {"vector_size": kind.size, "subtype": raw})
        return bytes(made.serialize([serialised(kind.args[0], part) for part in value], PROTOCOL))
    return bytes(driver_type(kind).serialize(value, PROTOCOL))


def _sized(kind: CqlType, value: Any) -> bytes:
    if value is None:
        return struct.pack(">i", -1)
    raw = serialised(kind, value)
    return struct.pack(">i", len(raw)) + raw


def driver_type(kind: CqlType) -> Any:
    """The driver's codec of a type."""
    inner = [driver_type(arg) for arg in kind.args]
    match kind.name:
        case "list":
            return cqltypes.ListType.apply_parameters(inner)
        case "set":
            return cqltypes.SetType.apply_parameters(inner)
        case "map":
            return cqltypes.MapType.apply_parameters(inner)
        case "tuple":
            return cqltypes.TupleType.apply_parameters(inner)
        case "vector":
            return cqltypes.VectorType.apply_parameters([inner[0], kind.size], None)
        case "udt":
            return cqltypes.UserType.make_udt_class(kind.keyspace, kind.udt, kind.fields, inner)
        case _:
            return cqltypes.lookup_casstype(_DRIVERS_NAMES[kind.name])


_DRIVERS_NAMES: Final = {
    "ascii": "AsciiType",
    "bigint": "LongType",
    "blob": "BytesType",
    "boolean": "BooleanType",
    "counter": "CounterColumnType",
    "date": "SimpleDateType",
    "decimal": "DecimalType",
    "double": "DoubleType",
    "duration": "DurationType",
    "float": "FloatType",
    "inet": "InetAddressType",
    "int": "Int32Type",
    "smallint": "ShortType",
    "text": "UTF8Type",
    "time": "TimeType",
    "timestamp": "TimestampType",
    "timeuuid": "TimeUUIDType",
    "tinyint": "ByteType",
    "uuid": "UUIDType",
    "varint": "IntegerType",
}


def oracle_value(kind: CqlType, raw: bytes | None) -> Any:
    """Return the value that the driver reads, in the form of `plain_values`."""
    theirs = driver_type(kind)
    return None if raw is None else _plain(kind, theirs.from_binary(raw, PROTOCOL))


def ordered(kind: CqlType, raw: bytes | None) -> Any:
    """Return the driver's scalars in collections in the server's order: the driver itself sorts sets by Python's order."""
    if raw is None or kind.name not in {"list", "set", "map", "tuple", "udt"}:
        return oracle_value(kind, raw)
    if kind.name in {"tuple", "udt"}:
        names = kind.fields if kind.name == "udt" else [str(place + 1) for place in range(len(kind.args))]
        parts = [*_parts(raw), *[None] * len(kind.args)]
        return {name: ordered(arg, part) for name, arg, part in zip(names, kind.args, parts, strict=False)}
    elements = _parts(raw[4:])
    if kind.name == "map":
        return [(ordered(kind.args[0], key), ordered(kind.args[1], part)) for key, part in zip(elements[::2], elements[1::2], strict=True)]
    return [ordered(kind.args[0], part) for part in elements]


def _parts(raw: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    while raw:
        (size,) = struct.unpack(">i", raw[:4])
        found.append(None if size < 0 else raw[4 : 4 + size])
        raw = raw[4 + max(size, 0) :]
    return found


def _plain(kind: CqlType, value: Any) -> Any:
    if value is None:
        return None
    match kind.name:
        case "list" | "set" | "vector":
            return [_plain(kind.args[0], part) for part in value]
        case "map":
            # `items()` looks each key up by its bytes, which differ for a set that holds a member twice: the driver reads it once.
            return [(_plain(kind.args[0], key), _plain(kind.args[1], part)) for key, part in value._items]
        case "tuple":
            return {str(place + 1): _plain(arg, part) for place, (arg, part) in enumerate(zip(kind.args, value, strict=True))}
        case "udt":
            return {name: _plain(arg, part) for name, arg, part in zip(kind.fields, kind.args, value, strict=True)}
        case "date":
            return value.days_from_epoch
        case "time":
            return value.nanosecond_time
        case "timestamp":
            return (value.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
        case "duration":
            return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
        case "uuid" | "timeuuid":
            return value.bytes
        case "varint" | "decimal":
            return str(value)
        case "float" | "double":
            return (value, math.copysign(1, value))
        case _:
            return value


def plain_values(kind: CqlType, array: Any) -> list[Any]:
    """Return the values of Headrace's arrays in a comparable form: moments as numbers, floats with their sign."""
    assert array.type == arrow_type(kind)
    array.validate(full=True)
    numbers = array.cast(numbers_of(array.type))
    return [_signed(kind, value) for value in numbers.to_pylist()]


def numbers_of(kind: Any) -> Any:
    """The same Arrow type with numbers for moments and bytes for uuids."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_time64(kind) or pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_map(kind):
        return pa.map_(numbers_of(kind.key_type), numbers_of(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(numbers_of(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, numbers_of(field.type)) for field in kind])
    return kind


def _signed(kind: CqlType, value: Any) -> Any:
    if value is None:
        return None
    match kind.name:
        case "list" | "set" | "vector":
            return [_signed(kind.args[0], part) for part in value]
        case "map":
            return [(_signed(kind.args[0], key), _signed(kind.args[1], part)) for key, part in value]
        case "tuple" | "udt":
            return {name: _signed(arg, part) for arg, (name, part) in zip(kind.args, value.items(), strict=True)}
        case "float" | "double":
            return (value, math.copysign(1, value))
        case _:
            return value
