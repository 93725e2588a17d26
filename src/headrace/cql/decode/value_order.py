"""The order of serialised values, by type: that of clustering columns, of sets' elements and of maps' keys.

Ties between cells are another matter: those are settled by the bytes themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    found: OrderKey | None = {"float": _float, "double": _double, "decimal": _decimal, "timeuuid": _timeuuid, "uuid": _uuid}.get(kind.name)
    if found is not None:
        return found
    if kind.name in {"tuple", "udt"}:
        return _tuple_key(kind)
    if kind.name in {"list", "set", "map"}:
        return _collection_key(kind)
    if kind.name == "vector":
        return _vector_key(kind)
    return bytes


def _integer(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _by_bits(bits: int, width: int) -> int:
    """Return a float's bits in numeric order: minus zero before zero, NaN last."""
    top = 1 << (width - 1)
    return -(bits ^ top) - 1 if bits & top else bits


def _float(value: bytes) -> int:
    return _by_bits(unpack(">I", value)[0], 32)


def _double(value: bytes) -> int:
    return _by_bits(unpack(">Q", value)[0], 64)


class _Scaled:
    """A decimal number, compared exactly across scales."""

    __slots__ = ("scale", "unscaled")

    def __init__(self, value: bytes) -> None:
        self.scale = int.from_bytes(value[:4], "big", signed=True)
        self.unscaled = int.from_bytes(value[4:], "big", signed=True)

    def _pair(self, other: _Scaled) -> tuple[int, int]:
        most = max(self.scale, other.scale)
        return self.unscaled * 10 ** (most - self.scale), other.unscaled * 10 ** (most - other.scale)

    def __lt__(self, other: _Scaled) -> bool:
        mine, its = self._pair(other)
        return mine < its

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Scaled):
            return NotImplemented
        mine, its = self._pair(other)
        return mine == its

    __hash__ = None  # type: ignore[assignment]


def _decimal(value: bytes) -> _Scaled:
    return _Scaled(value)


def _timeuuid(value: bytes) -> bytes:
    return timeuuid.order_key(UUID(bytes=value))


def _uuid(value: bytes) -> tuple[int, int, int]:
    found = UUID(bytes=value)
    version = (found.int >> 76) & 15
    return version, found.time if version == 1 else found.int >> 64, found.int & (1 << 64) - 1


def parts(value: bytes, count: int | None = None) -> Iterator[bytes | None]:
    """Return the parts of a serialised tuple or user type, or (after a count) of a collection; empty for null."""
    at = 0
    while at < len(value) and (count is None or count > 0):
        size = int.from_bytes(value[at : at + 4], "big", signed=True)
        at += 4
        yield None if size < 0 else value[at : at + size]
        at += max(size, 0)
        count = None if count is None else count - 1


def elements(value: bytes) -> list[bytes]:
    """Return the elements of a serialised collection; a map's keys and values in turn."""
    return [part if part is not None else b"" for part in parts(value[4:])]


def _tuple_key(kind: CqlType) -> OrderKey:
    keys = [order_key(arg) for arg in kind.args]

    def key(value: bytes) -> Any:
        return [(0, 0) if part is None else (1, of(part)) for of, part in zip(keys, parts(value), strict=False)]

    return key


def _collection_key(kind: CqlType) -> OrderKey:
    keys = [order_key(arg) for arg in kind.args]

    def key(value: bytes) -> Any:
        return [keys[i % len(keys)](part) for i, part in enumerate(elements(value))]

    return key


def _vector_key(kind: CqlType) -> OrderKey:
    inner = order_key(kind.args[0])

    def key(value: bytes) -> Any:
        return [inner(part) for part in vector_elements(kind, value)]

    return key


def has_fixed_size(kind: CqlType) -> bool:
    """Return whether a vector's elements of this type have no length prefix."""
    return kind.name in _FIXED or (kind.name == "vector" and has_fixed_size(kind.args[0]))


def vector_elements(kind: CqlType, value: bytes) -> list[bytes]:
    """Return the elements of a serialised vector."""
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
