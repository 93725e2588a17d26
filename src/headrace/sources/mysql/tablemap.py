"""TABLE_MAP events: how a table's columns lie in the row events that follow.

Parsed once per distinct map. The mandatory part gives storage types and their metadata; the optional part (`binlog_row_metadata=FULL`)
also gives names, which then decide which column is which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.model.schema import TableName
from headrace.sources.mysql.events import truncated

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 10, 11, 12, 13, 15, 16, 17, 18, 19
VECTOR, JSON, NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 242, 245, 246, 247, 248, 252, 253, 254, 255

TYPE_NAMES: Final = {
    value: name for name, value in list(globals().items()) if name.isupper() and isinstance(value, int)
}

_METADATA_SIZE: Final = {
    FLOAT: 1,
    DOUBLE: 1,
    BLOB: 1,
    JSON: 1,
    GEOMETRY: 1,
    VECTOR: 1,
    TIMESTAMP2: 1,
    DATETIME2: 1,
    TIME2: 1,
    VARCHAR: 2,
    VAR_STRING: 2,
    STRING: 2,
    NEWDECIMAL: 2,
    BIT: 2,
    ENUM: 2,
    SET: 2,
}

_SIGNEDNESS_FIELD, _NAMES_FIELD = 1, 4
_NUMERIC: Final = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR})


@dataclass(frozen=True, slots=True)
class TableMap:
    """One table's columns as they are stored in row events."""

    name: TableName
    types: tuple[int, ...]
    """Storage types; ENUM and SET are resolved (the event hides them in STRING)."""
    metadata: tuple[int, ...]
    """Per column: as in the event, or for STRING the maximal length in bytes, for ENUM and SET the size in bytes."""
    names: tuple[str, ...] | None
    """Column names, when the server wrote full metadata."""
    unsigned: tuple[bool, ...] | None
    """Per column, when the server wrote any optional metadata."""


def parse_table_map(body: bytes, place: str) -> TableMap:
    """A TABLE_MAP event's body after table id and flags, without checksum."""
    try:
        return _parse(body)
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise truncated("TABLE_MAP", place) from error


def _parse(body: bytes) -> TableMap:
    database, at = _short_string(body, 0)
    table, at = _short_string(body, at)
    count, at = _length(body, at)
    raw_types = body[at : at + count]
    at += count
    metadata_size, at = _length(body, at)
    metadata_end = at + metadata_size
    types, metadata = [], []
    for raw_type in raw_types:
        size = _METADATA_SIZE.get(raw_type, 0)
        if at + size > metadata_end:
            raise ValueError("metadata")
        kind, value = _resolve(raw_type, body[at : at + size])
        types.append(kind)
        metadata.append(value)
        at += size
    if len(types) != count or at != metadata_end:
        raise ValueError("columns")
    at += (count + 7) // 8
    names, unsigned = _optional(body, at, tuple(types))
    return TableMap(TableName(database, table), tuple(types), tuple(metadata), names, unsigned)


def _resolve(raw_type: int, metadata: bytes) -> tuple[int, int]:
    if raw_type == STRING:
        real, low = metadata
        if real in (ENUM, SET):
            return real, low
        # Lengths over 255 hide two of their bits, inverted, in the type byte.
        return STRING, low | ((real & 0x30) ^ 0x30) << 4
    if raw_type == NEWDECIMAL:
        return raw_type, metadata[0] << 8 | metadata[1]
    if raw_type == BIT:
        return raw_type, metadata[1] * 8 + metadata[0]
    return raw_type, int.from_bytes(metadata, "little")


def _optional(body: bytes, at: int, types: tuple[int, ...]) -> tuple[tuple[str, ...] | None, tuple[bool, ...] | None]:
    names: tuple[str, ...] | None = None
    unsigned: tuple[bool, ...] | None = None
    while at < len(body):
        field = body[at]
        size, at = _length(body, at + 1)
        end = at + size
        if end > len(body):
            raise ValueError("optional metadata")
        if field == _SIGNEDNESS_FIELD:
            unsigned = _signedness(body[at:end], types)
        elif field == _NAMES_FIELD:
            found = []
            cursor = at
            while cursor < end:
                length, cursor = _length(body, cursor)
                found.append(body[cursor : cursor + length].decode("utf8"))
                cursor += length
            if len(found) != len(types):
                raise ValueError("names")
            names = tuple(found)
        at = end
    return names, unsigned


def _signedness(bits: bytes, types: tuple[int, ...]) -> tuple[bool, ...]:
    flags = []
    numeric = 0
    for kind in types:
        if kind in _NUMERIC:
            flags.append(bool(bits[numeric >> 3] & (0x80 >> (numeric & 7))))
            numeric += 1
        else:
            flags.append(False)
    return tuple(flags)


def _short_string(body: bytes, at: int) -> tuple[str, int]:
    size = body[at]
    if at + size + 2 > len(body):
        raise ValueError("name")
    return body[at + 1 : at + 1 + size].decode("utf8"), at + size + 2


def _length(body: bytes, at: int) -> tuple[int, int]:
    first = body[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first] if first in (252, 253, 254) else 0
    if width == 0 or at + 1 + width > len(body):
        raise ValueError("length")
    return int.from_bytes(body[at + 1 : at + 1 + width], "little"), at + 1 + width
