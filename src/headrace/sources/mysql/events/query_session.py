"""The session settings of a logged statement, from the status variables of its QUERY event.

The meaning of a statement depends on them: which quotes delimit a name, and what an omitted character set or an omitted NULL stands for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from headrace.model.json_record import JsonRecord

_FLAGS, _SQL_MODE, _CATALOG_OLD, _AUTO_INCREMENT, _CHARSET, _TIME_ZONE, _CATALOG, _LC_TIME = range(8)
_CHARSET_DATABASE, _TABLE_MAP_FOR_UPDATE, _DATA_WRITTEN, _INVOKER, _UPDATED_DATABASES, _MICROSECONDS = range(8, 14)
_EXPLICIT_TIMESTAMPS, _XID_LOGGED, _UTF8MB4_COLLATION, _REQUIRE_KEY, _ENCRYPTION = range(16, 21)
_MARIADB_NOW, _MARIADB_XID, _MARIADB_GTID_FLAGS = range(128, 131)

_FIXED_SIZES: Final = {
    _FLAGS: 4,
    _SQL_MODE: 8,
    _AUTO_INCREMENT: 4,
    _CHARSET: 6,
    _LC_TIME: 2,
    _CHARSET_DATABASE: 2,
    _TABLE_MAP_FOR_UPDATE: 8,
    _DATA_WRITTEN: 4,
    _MICROSECONDS: 3,
    _EXPLICIT_TIMESTAMPS: 1,
    _XID_LOGGED: 8,
    _UTF8MB4_COLLATION: 2,
    _REQUIRE_KEY: 1,
    _ENCRYPTION: 1,
    _MARIADB_NOW: 3,
    _MARIADB_XID: 8,
}
_MARIADB_EXPLICIT_TIMESTAMPS: Final = 1 << 24
_START_ALTER, _COMMIT_ALTER, _ROLLBACK_ALTER = 2, 4, 8
_TOO_MANY_DATABASES: Final = 254


@dataclass(frozen=True, slots=True)
class Session(JsonRecord):
    """The settings that a statement's meaning depends on."""

    sql_mode: int = 0
    client_charset: str = ""
    """The character set of the statement's text."""
    connection_charset: str = ""
    """The character set to which the server converted the statement's strings."""
    server_charset: str = ""
    """The default character set of a new database."""
    explicit_timestamps: bool = True
    """Whether a TIMESTAMP column is nullable by default."""
    time_zone: str = ""
    """The session's time zone; empty if the statement converted no times."""
    is_void_alter: bool = False
    """MariaDB logs a long ALTER twice: at its start, and when it is committed or rolled back. Only a committed one has an effect."""


def parse_session(status: bytes) -> Session:
    """Parse a QUERY event's status variables. Variables after an unknown one cannot be parsed, as in the servers themselves."""
    values = _variables(status)
    flags = int.from_bytes(values.get(_FLAGS, b""), "little")
    explicit = values.get(_EXPLICIT_TIMESTAMPS)
    if explicit is None and _FLAGS in values and not {_UTF8MB4_COLLATION, _XID_LOGGED} & values.keys():
        # A server without MySQL's newer variables uses a flag, as MariaDB does.
        explicit_timestamps = bool(flags & _MARIADB_EXPLICIT_TIMESTAMPS)
    else:
        explicit_timestamps = explicit != b"\0"
    client, connection, server = struct.unpack("<HHH", values[_CHARSET]) if _CHARSET in values else (0, 0, 0)
    phase = values.get(_MARIADB_GTID_FLAGS, b"\0")[0]
    return Session(
        int.from_bytes(values.get(_SQL_MODE, b""), "little"),
        _charset(client),
        _charset(connection),
        _charset(server),
        explicit_timestamps,
        values.get(_TIME_ZONE, b"")[1:].decode("ascii", "replace"),
        is_void_alter=bool(phase & (_START_ALTER | _ROLLBACK_ALTER)),
    )


def decode_statement(raw: bytes, session: Session) -> str:
    """Decode a statement from the character set of its client."""
    if raw.isascii() or not session.client_charset:
        return raw.decode("utf8", "replace")
    from headrace.sources.mysql.charsets.charsets import decode_text

    return decode_text(session.client_charset, raw)


def _charset(collation: int) -> str:
    from headrace.sources.mysql.charsets.charsets import UnknownCharset, charset_of_collation

    try:
        return charset_of_collation(collation) if collation else ""
    except UnknownCharset:
        return ""


def _variables(status: bytes) -> dict[int, bytes]:
    """Return the status variables by number."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(status):
        number, at = status[at], at + 1
        size = _size(number, status, at)
        if size is None or at + size > len(status):
            break
        found[number] = status[at : at + size]
        at += size
    return found


def _size(number: int, status: bytes, at: int) -> int | None:
    """Return the size of a variable's value; None if the variable is unknown."""
    if number in _FIXED_SIZES:
        return _FIXED_SIZES[number]
    first = status[at] if at < len(status) else 0
    if number in (_TIME_ZONE, _CATALOG):
        return 1 + first
    if number == _CATALOG_OLD:
        return 2 + first
    if number == _INVOKER:
        second = at + 1 + first
        return 2 + first + (status[second] if second < len(status) else 0)
    if number == _UPDATED_DATABASES:
        return 1 if first == _TOO_MANY_DATABASES else _names_size(status, at + 1, first) + 1
    if number == _MARIADB_GTID_FLAGS:
        return 9 if first & (_COMMIT_ALTER | _ROLLBACK_ALTER) else 1
    return None


def _names_size(status: bytes, at: int, count: int) -> int:
    end = at
    for _ in range(count):
        end = status.find(b"\0", end) + 1 or len(status)
    return end - at
