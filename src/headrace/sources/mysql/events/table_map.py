"""TABLE_MAP events: the layout of a table's columns in the row events that follow.

Parsed once per distinct map. The mandatory part has storage types, their metadata, and which columns are nullable. The optional part
(`binlog_row_metadata=FULL`) also has names, by which columns are then matched, the exact names of enum and set members, collations, the
primary key, and more: enough for a schema (`table_map_schema.schema_of`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.model.schema import TableName
from headrace.sources.mysql.events.event_types import packed_integer, truncated

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 10, 11, 12, 13, 15, 16, 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
VECTOR, JSON, NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 242, 245, 246, 247, 248, 252, 253, 254, 255

TYPE_NAMES: Final = {value: name for name, value in list(globals().items()) if name.isupper() and isinstance(value, int)}

_METADATA_SIZE: Final = {
    **dict.fromkeys((FLOAT, DOUBLE, BLOB, JSON, GEOMETRY, VECTOR, BLOB_COMPRESSED, TIMESTAMP2, DATETIME2, TIME2), 1),
    **dict.fromkeys((VARCHAR, VARCHAR_COMPRESSED, VAR_STRING, STRING, NEWDECIMAL, BIT, ENUM, SET), 2),
}

# The fields of the optional metadata.
_SIGNEDNESS, _DEFAULT_COLLATION, _COLLATIONS, _NAMES, _SET_MEMBERS, _ENUM_MEMBERS, _SHAPES, _KEY, _KEY_WITH_PREFIXES = range(1, 10)
_NAMED_DEFAULT_COLLATION, _NAMED_COLLATIONS, _VISIBILITY, _DIMENSIONS = range(10, 14)
_TEXTS: Final = frozenset({VARCHAR, VAR_STRING, STRING, BLOB, VARCHAR_COMPRESSED, BLOB_COMPRESSED, VECTOR})
"""Column types for which the server lists collations, including vectors and other bytes (MariaDB also geometry)."""
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
    members: tuple[tuple[bytes, ...] | None, ...]
    """Per column, the member names of an ENUM or SET in the column's own character set, when the server wrote full metadata."""
    nullable: tuple[bool, ...] = ()
    collations: tuple[int, ...] | None = None
    """Per column, the number of its collation (0 for columns without one), if the server wrote full metadata that is understood."""
    primary_key: tuple[int, ...] | None = None
    """The key's columns, in key order, when the server wrote full metadata; prefixes count as their columns."""
    visible: tuple[bool, ...] | None = None
    """Per column, when the server wrote it: MySQL 8.0.23 and later."""
    shapes: tuple[int, ...] = ()
    """Per GEOMETRY column, its type: 0 for any, 1 for POINT and so on, in the order of well-known binary."""
    dimensions: tuple[int, ...] = ()
    """Per VECTOR column, the maximum number of elements."""


def parse_table_map(body: bytes, place: str) -> TableMap:
    """Parse a TABLE_MAP event's body after table id and flags, without checksum."""
    try:
        return _parse(body)
    except (LookupError, ValueError) as error:
        raise truncated("TABLE_MAP", place) from error


def parse_table_name(body: bytes, place: str) -> TableName:
    """Parse only the name in a TABLE_MAP event's body, to filter tables before their columns are parsed."""
    try:
        database, at = _short_string(body, 0)
        return TableName(database, _short_string(body, at)[0])
    except (LookupError, ValueError) as error:
        raise truncated("TABLE_MAP", place) from error


def _parse(body: bytes) -> TableMap:
    database, at = _short_string(body, 0)
    table, at = _short_string(body, at)
    count, at = packed_integer(body, at)
    raw_types = body[at : at + count]
    at += count
    metadata_size, at = packed_integer(body, at)
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
    nullable = tuple(bool(body[at + (c >> 3)] >> (c & 7) & 1) for c in range(count))
    at += (count + 7) // 8
    if at > len(body):
        raise ValueError("columns")
    fields = _optional(body, at)
    return TableMap(
        TableName(database, table),
        tuple(types),
        tuple(metadata),
        _names(fields[_NAMES], count) if _NAMES in fields else None,
        _signedness(fields[_SIGNEDNESS], types) if _SIGNEDNESS in fields else None,
        _members(fields, types),
        nullable,
        _collations(fields, types) if _NAMES in fields else None,
        _primary_key(fields, count) if _NAMES in fields else None,
        _visibility(fields[_VISIBILITY], count) if _VISIBILITY in fields else None,
        tuple(_numbers(fields.get(_SHAPES, b""))),
        tuple(_numbers(fields.get(_DIMENSIONS, b""))),
    )


def _resolve(raw_type: int, metadata: bytes) -> tuple[int, int]:
    if raw_type == STRING:
        real, low = metadata
        if real in (ENUM, SET):
            return real, low
        # Lengths over 255 store two of their bits, inverted, in the type byte.
        return STRING, low | ((real & 0x30) ^ 0x30) << 4
    if raw_type == NEWDECIMAL:
        return raw_type, metadata[0] << 8 | metadata[1]
    if raw_type == BIT:
        return raw_type, metadata[1] * 8 + metadata[0]
    return raw_type, int.from_bytes(metadata, "little")


def _optional(body: bytes, at: int) -> dict[int, bytes]:
    fields = {}
    while at < len(body):
        field = body[at]
        fields[field], at = _counted(body, at + 1)
    return fields


def _names(field: bytes, count: int) -> tuple[str, ...]:
    names = []
    at = 0
    while at < len(field):
        name, at = _counted(field, at)
        names.append(name.decode("utf8"))
    if len(names) != count:
        raise ValueError("names")
    return tuple(names)


def _members(fields: dict[int, bytes], types: list[int]) -> tuple[tuple[bytes, ...] | None, ...]:
    per_kind = {
        ENUM: _member_lists(fields.get(_ENUM_MEMBERS, b"")),
        SET: _member_lists(fields.get(_SET_MEMBERS, b"")),
    }
    return tuple(next(per_kind[kind], None) if kind in per_kind else None for kind in types)


def _member_lists(field: bytes) -> Iterator[tuple[bytes, ...]]:
    """Return one list of members per ENUM (or SET) column, in column order."""
    at = 0
    while at < len(field):
        count, at = packed_integer(field, at)
        members = []
        for _ in range(count):
            member, at = _counted(field, at)
            members.append(member)
        yield tuple(members)


def _signedness(bits: bytes, types: list[int]) -> tuple[bool, ...]:
    flags = []
    numeric = 0
    for kind in types:
        if kind in _NUMERIC:
            flags.append(bool(bits[numeric >> 3] & (0x80 >> (numeric & 7))))
            numeric += 1
        else:
            flags.append(False)
    return tuple(flags)


def _collations(fields: dict[int, bytes], types: list[int]) -> tuple[int, ...] | None:
    """Return collations by column; None if the server lists them for other columns than expected. The map then gives no schema."""
    texts = [kind in _TEXTS for kind in types]
    if _counts_geometry(fields, types):
        texts = [text or kind == GEOMETRY for text, kind in zip(texts, types, strict=True)]
    named = [kind in (ENUM, SET) for kind in types]
    of_texts = _spread(fields, _DEFAULT_COLLATION, _COLLATIONS, texts)
    of_named = _spread(fields, _NAMED_DEFAULT_COLLATION, _NAMED_COLLATIONS, named)
    if of_texts is None or of_named is None:
        return None
    return tuple(one or other for one, other in zip(of_texts, of_named, strict=True))


def _counts_geometry(fields: dict[int, bytes], types: list[int]) -> bool:
    """Whether the server lists collations of geometry columns: MariaDB does, and it writes no visibility."""
    if _COLLATIONS in fields:
        return len(list(_numbers(fields[_COLLATIONS]))) > sum(kind in _TEXTS for kind in types)
    return _VISIBILITY not in fields and JSON not in types


def _spread(fields: dict[int, bytes], default: int, each: int, chosen: list[bool]) -> list[int] | None:
    """Return the collations of the chosen columns, listed one by one or as a default with exceptions."""
    count = sum(chosen)
    if each in fields:
        listed = list(_numbers(fields[each]))
    elif default in fields:
        usual, *rest = _numbers(fields[default])
        exceptions = dict(zip(rest[::2], rest[1::2], strict=True))
        if any(place >= count for place in exceptions):
            return None
        listed = [exceptions.get(place, usual) for place in range(count)]
    else:
        listed = []
    if len(listed) != count:
        return None
    numbers = iter(listed)
    return [next(numbers) if one else 0 for one in chosen]


def _primary_key(fields: dict[int, bytes], count: int) -> tuple[int, ...]:
    key = list(_numbers(fields.get(_KEY, b""))) or list(_numbers(fields.get(_KEY_WITH_PREFIXES, b"")))[::2]
    if any(column >= count for column in key):
        raise ValueError("key")
    return tuple(key)


def _visibility(bits: bytes, count: int) -> tuple[bool, ...]:
    return tuple(bool(bits[c >> 3] & (0x80 >> (c & 7))) for c in range(count))


def _numbers(field: bytes) -> Iterator[int]:
    at = 0
    while at < len(field):
        number, at = packed_integer(field, at)
        yield number


def _counted(body: bytes, at: int) -> tuple[bytes, int]:
    size, at = packed_integer(body, at)
    if at + size > len(body):
        raise ValueError("length")
    return body[at : at + size], at + size


def _short_string(body: bytes, at: int) -> tuple[str, int]:
    size = body[at]
    if at + size + 2 > len(body):
        raise ValueError("name")
    return body[at + 1 : at + 1 + size].decode("utf8"), at + size + 2
