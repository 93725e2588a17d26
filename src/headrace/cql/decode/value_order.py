"""The order of serialised values, by type: that of clustering columns, of sets' elements and of maps' keys.

Ties between cells are decided by the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache
from struct import unpack
from typing import Any, Final
from uuid import UUID

from cassandra.marshal import uvint_unpack

from headrace.cql import timeuuid
from headrace.cql.types import CqlType

_FIXED: Final = frozenset({"boolean", "int", "float", "bigint", "double", "timestamp", "uuid", "timeuuid"})
"""Types whose values in a vector have no length prefix."""
OrderKey = Callable[[bytes], Any]
_SIGNED: Final = frozenset({"tinyint", "smallint", "int", "bigint", "timestamp", "varint", "counter"})


@cache
def order_key(kind: CqlType) -> OrderKey:
    """Return the sort key of a type's values."""
    if kind.name in _SIGNED:
        return _integer
    keys = [order_key(arg) for arg in kind.args]
    if kind.name in {"tuple", "udt"}:
        return lambda value: [(0, 0) if part is None else (1, key(part)) for key, part in zip(keys, parts(value), strict=False)]
    if kind.name in {"list", "set", "map"}:
        return lambda value: [keys[i % len(keys)](part) for i, part in enumerate(elements(value))]
    if kind.name == "vector":
        return lambda value: list(map(keys[0], vector_elements(kind, value)))
    return _KEYS.get(kind.name, bytes)


def _integer(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _by_bits(bits: int, width: int) -> int:
    """Return a float's bits in numeric order: minus zero before zero, NaN last."""
    top = 1 << (width - 1)
    return -(bits ^ top) - 1 if bits & top else bits


def _decimal(value: bytes) -> Decimal:
    """Return the number; decimals are compared exactly across scales."""
    sign, digits, _ = Decimal(_integer(value[4:])).as_tuple()
    return Decimal((sign, digits, -_integer(value[:4])))


def _uuid(value: bytes) -> tuple[int, int, int]:
    found = UUID(bytes=value)
    version = (found.int >> 76) & 15
    return version, found.time if version == 1 else found.int >> 64, found.int & (1 << 64) - 1


_KEYS: Final[dict[str, OrderKey]] = {
    "float": lambda value: _by_bits(unpack(">I", value)[0], 32),
    "double": lambda value: _by_bits(unpack(">Q", value)[0], 64),
    "decimal": _decimal,
    "timeuuid": lambda value: timeuuid.order_key(UUID(bytes=value)),
    "uuid": _uuid,
}


def parts(value: bytes) -> Iterator[bytes | None]:
    """Return the parts of a serialised tuple or user type, or of a collection after its count; empty for null."""
    at = 0
    while at < len(value):
        size = _integer(value[at : at + 4])
        at += 4
        yield None if size < 0 else value[at : at + size]
        at += max(size, 0)


def elements(value: bytes) -> list[bytes]:
    """Return the elements of a serialised collection; a map's keys and values in turn."""
    return [part if part is not None else b"" for part in parts(value[4:])]


def has_fixed_size(kind: CqlType) -> bool:
    """Return whether a vector's elements of this type have no length prefix."""
    return kind.name in _FIXED or (kind.name == "vector" and has_fixed_size(kind.args[0]))


def vector_elements(kind: CqlType, value: bytes) -> list[bytes]:
    if has_fixed_size(kind.args[0]):
        width = len(value) // kind.size
        return [value[at : at + width] for at in range(0, len(value), width)]
    found, at = [], 0
    while at < len(value):
        size, prefix = uvint_unpack(value[at : at + 9])
        at += prefix
        found.append(value[at : at + size])
        at += size
    return found
