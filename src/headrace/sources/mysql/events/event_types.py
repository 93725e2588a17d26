"""The binary log's event types as the server names them, and Python parsers for the rare ones.

The compiled kernels parse frequent events (rows, table maps, transaction bounds). The code here runs once per file, statement or table,
never per row.

The meaning of a logged statement depends on its session's settings, which come from the status variables of its QUERY event: which quotes
delimit a name, and what an omitted character set or an omitted NULL stands for.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.json_record import JsonRecord

MAGIC: Final = b"\xfebin"
HEADER_SIZE: Final = 19
CHECKSUM_SIZE: Final = 4

QUERY_EVENT: Final = 2
STOP_EVENT: Final = 3
ROTATE_EVENT: Final = 4
INTVAR_EVENT: Final = 5
APPEND_BLOCK_EVENT: Final = 9
RAND_EVENT: Final = 13
USER_VAR_EVENT: Final = 14
FORMAT_DESCRIPTION_EVENT: Final = 15
XID_EVENT: Final = 16
BEGIN_LOAD_QUERY_EVENT: Final = 17
EXECUTE_LOAD_QUERY_EVENT: Final = 18
TABLE_MAP_EVENT: Final = 19
WRITE_ROWS_EVENT_V1: Final = 23
UPDATE_ROWS_EVENT_V1: Final = 24
DELETE_ROWS_EVENT_V1: Final = 25
INCIDENT_EVENT: Final = 26
HEARTBEAT_EVENT: Final = 27
IGNORABLE_EVENT: Final = 28
ROWS_QUERY_EVENT: Final = 29
WRITE_ROWS_EVENT: Final = 30
UPDATE_ROWS_EVENT: Final = 31
DELETE_ROWS_EVENT: Final = 32
GTID_EVENT: Final = 33
ANONYMOUS_GTID_EVENT: Final = 34
PREVIOUS_GTIDS_EVENT: Final = 35
TRANSACTION_CONTEXT_EVENT: Final = 36
VIEW_CHANGE_EVENT: Final = 37
XA_PREPARE_EVENT: Final = 38
PARTIAL_UPDATE_ROWS_EVENT: Final = 39
TRANSACTION_PAYLOAD_EVENT: Final = 40
HEARTBEAT_EVENT_V2: Final = 41
GTID_TAGGED_EVENT: Final = 42
ANNOTATE_ROWS_EVENT: Final = 160
BINLOG_CHECKPOINT_EVENT: Final = 161
MARIADB_GTID_EVENT: Final = 162
MARIADB_GTID_LIST_EVENT: Final = 163
QUERY_COMPRESSED_EVENT: Final = 165

DAMAGE_HINT: Final = "check the source's binary log with mysqlbinlog --verify-binlog-checksum; if it is damaged, take a new snapshot"

_FLAGS_AT: Final = 17
_IN_USE_FLAG: Final = 0x01

EVENT_NAMES: Final = {
    value: name.removesuffix("_EVENT") for name, value in list(globals().items()) if name.isupper() and "_EVENT" in name
} | {164: "START_ENCRYPTION"}

_POST_HEADER_SIZES: Final = {
    TABLE_MAP_EVENT: 8,
    **dict.fromkeys((WRITE_ROWS_EVENT_V1, UPDATE_ROWS_EVENT_V1, DELETE_ROWS_EVENT_V1), 8),
    **dict.fromkeys((WRITE_ROWS_EVENT, UPDATE_ROWS_EVENT, DELETE_ROWS_EVENT), 10),
}

_FIXED_FORMAT_SIZE: Final = 57
_EVENT_TYPES_BEFORE_CHECKSUMS: Final = frozenset({18, 26, 27})
"""The numbers of event types that servers without checksums describe: MySQL 5.0; MySQL 5.1, MariaDB 5.1 and 5.2; MySQL 5.5."""
_FIRST_MYSQL_WITH_CHECKSUMS, _FIRST_MARIADB_WITH_CHECKSUMS = (5, 6, 1), (5, 3, 0)

UNSUPPORTED: Final = {
    INCIDENT_EVENT: "the source lost events (INCIDENT); take a new snapshot: remove the state directory and the target tables",
    164: "the binary log is encrypted at rest and was read from files; read it through the server",
}
_FLAGS, _SQL_MODE, _CATALOG_OLD, _AUTO_INCREMENT, _CHARSET, _TIME_ZONE, _CATALOG, _LC_TIME = range(8)
_CHARSET_DATABASE, _TABLE_MAP_FOR_UPDATE, _DATA_WRITTEN, _INVOKER, _UPDATED_DATABASES, _MICROSECONDS = range(8, 14)
_EXPLICIT_TIMESTAMPS, _XID_LOGGED, _UTF8MB4_COLLATION, _REQUIRE_KEY, _ENCRYPTION = range(16, 21)
_MARIADB_NOW, _MARIADB_XID, _MARIADB_GTID_FLAGS, _MARIADB_COLLATIONS = range(128, 132)
_UNORDERED_VARIABLES: Final = frozenset({14, 15, *range(128, 256)})
"""Known variables may follow these numbers. MySQL writes its own variables, which are below 128, in ascending order; MariaDB does not."""

_FIXED_SIZES: Final = {
    **dict.fromkeys((_EXPLICIT_TIMESTAMPS, _REQUIRE_KEY, _ENCRYPTION), 1),
    **dict.fromkeys((_LC_TIME, _CHARSET_DATABASE, _UTF8MB4_COLLATION), 2),
    **dict.fromkeys((_MICROSECONDS, _MARIADB_NOW), 3),
    **dict.fromkeys((_FLAGS, _AUTO_INCREMENT, _DATA_WRITTEN), 4),
    **dict.fromkeys((_SQL_MODE, _TABLE_MAP_FOR_UPDATE, _XID_LOGGED, _MARIADB_XID), 8),
    _CHARSET: 6,
}
"""The sizes of status variables whose size does not depend on their value."""
_MARIADB_EXPLICIT_TIMESTAMPS: Final = 1 << 24
_START_ALTER, _COMMIT_ALTER, _ROLLBACK_ALTER = 2, 4, 8
_TOO_MANY_DATABASES: Final = 254


@dataclass(frozen=True, slots=True)
class Session(JsonRecord):
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


def parse_session(status: bytes, place: str) -> Session:
    """Parse a QUERY event's status variables. Those after an unknown one cannot be parsed: an error if known ones may be among them."""
    values = _variables(status, place)
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
    if raw.isascii() or not session.client_charset:
        return raw.decode("utf8", "replace")
    from headrace.sources.mysql.charsets import decode_text

    return decode_text(session.client_charset, raw)


def _charset(collation: int) -> str:
    from headrace.sources.mysql.charsets import UnknownCharset, charset_of_collation

    try:
        return charset_of_collation(collation) if collation else ""
    except UnknownCharset:
        return ""


def _variables(status: bytes, place: str) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at < len(status):
        number, at = status[at], at + 1
        size = _size(number, status, at)
        if size is None and number in _UNORDERED_VARIABLES:
            raise DefiniteError(
                f"cannot read variable {number} of a QUERY event, nor those after it",
                place=place,
                hint="this version of Headrace does not know the variable; please report it with the server's version",
            )
        if size is None:
            break
        if at + size > len(status):
            raise truncated("QUERY", place)
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
    if number == _MARIADB_COLLATIONS:
        return 1 + 4 * first
    return None


def _names_size(status: bytes, at: int, count: int) -> int:
    end = at
    for _ in range(count):
        end = status.find(b"\0", end) + 1 or len(status)
    return end - at


@dataclass(frozen=True, slots=True)
class Query(JsonRecord):
    database: str
    statement: str
    session: Session = field(default_factory=Session)
    error_code: int = 0
    """The error of the statement, which is logged because it had a partial effect."""


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """A FORMAT_DESCRIPTION_EVENT: the server that wrote the file, and whether its events end in a checksum."""

    server_version: str
    checksum: bool


def parse_query(body: bytes, place: str) -> Query:
    """Parse the body of a QUERY_EVENT, without header and checksum."""
    if len(body) < 13:
        raise truncated("QUERY", place)
    database_size = body[8]
    status_size = struct.unpack_from("<H", body, 11)[0]
    start = 13 + status_size
    if start + database_size + 1 > len(body):
        raise truncated("QUERY", place)
    database = body[start : start + database_size].decode("utf8", "surrogateescape")
    session = parse_session(body[13:start], place)
    error_code = struct.unpack_from("<H", body, 9)[0]
    return Query(database, decode_statement(body[start + database_size + 1 :], session), session, error_code)


def parse_load_query(body: bytes, place: str) -> Query:
    """Parse the body of an EXECUTE_LOAD_QUERY_EVENT: that of a QUERY_EVENT with the file's part of the statement after the fixed fields."""
    return parse_query(body[:13] + body[26:], place)


def parse_format_description(body: bytes, place: str) -> FormatDescription:
    """Parse the body of a FORMAT_DESCRIPTION_EVENT *with* its trailing checksum bytes, if any."""
    if len(body) < _FIXED_FORMAT_SIZE:
        raise truncated("FORMAT_DESCRIPTION", place)
    version = struct.unpack_from("<H", body)[0]
    if version != 4:
        raise DefiniteError(f"binary log format version {version}, only 4 (MySQL 5.0 and later) can be read", place=place)
    # The byte before the checksum names the algorithm: 0 none, 1 CRC32.
    names_algorithm = _names_algorithm(body)
    lengths = body[_FIXED_FORMAT_SIZE : -CHECKSUM_SIZE - 1 if names_algorithm else None]
    for event, size in _POST_HEADER_SIZES.items():
        # 0: this server never writes the event (version 1 rows in new MySQL, version 2 rows in MariaDB). Old servers do not describe it.
        described = lengths[event - 1] if event <= len(lengths) else None if names_algorithm else 0
        if described not in (0, size):
            raise DefiniteError(f"unknown layout of {EVENT_NAMES[event]} events in the binary log", place=place)
    return FormatDescription(_server_version(body), checksum=names_algorithm and body[-CHECKSUM_SIZE - 1] == 1)


def _names_algorithm(body: bytes) -> bool:
    """Whether a format description names a checksum algorithm, and ends in a checksum itself.

    Its version decides, as in the servers. Only a description of the exact size that old servers write counts as an old one: otherwise
    damage to the version could switch off all checksums.
    """
    if len(body) - _FIXED_FORMAT_SIZE not in _EVENT_TYPES_BEFORE_CHECKSUMS:
        return True
    text = _server_version(body)
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    first = _FIRST_MARIADB_WITH_CHECKSUMS if "MariaDB" in text else _FIRST_MYSQL_WITH_CHECKSUMS
    return found is None or tuple(map(int, found.groups())) >= first


def _server_version(body: bytes) -> str:
    return body[2:52].rstrip(b"\0").decode("ascii", "replace")


def check_format_description(event: bytes, place: str) -> None:
    """Check the event that tells whether checksums are used. It always has a checksum: otherwise damage to it could switch off all others.

    Servers without checksum support write none here either.
    """
    if not _names_algorithm(event[HEADER_SIZE:]):
        return
    unmarked = bytearray(event[:-CHECKSUM_SIZE])
    # A server sets the in-use flag of the file it writes, without updating the checksum.
    unmarked[_FLAGS_AT] &= ~_IN_USE_FLAG & 0xFF
    if int.from_bytes(event[-CHECKSUM_SIZE:], "little") not in (zlib.crc32(event[:-CHECKSUM_SIZE]), zlib.crc32(unmarked)):
        raise DefiniteError("a binary log event is damaged: its checksum is wrong", place=place, hint=DAMAGE_HINT)


def created_at(event: bytes) -> int:
    return int.from_bytes(event[:4], "little")


def packed_integer(body: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the length-encoded integer at a position, and the position after it; raise `LookupError` if it is damaged or cut short."""
    first = body[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    if at + 1 + width > len(body):
        raise IndexError
    return int.from_bytes(body[at + 1 : at + 1 + width], "little"), at + 1 + width


def parse_rotate(body: bytes, place: str) -> tuple[str, int]:
    """Return the next file's name and first position, from a ROTATE_EVENT's body without checksum."""
    if len(body) < 9:
        raise truncated("ROTATE", place)
    try:
        return body[8:].decode("utf8"), struct.unpack_from("<Q", body)[0]
    except UnicodeDecodeError as error:
        raise truncated("ROTATE", place) from error


def truncated(event: str, place: str) -> DefiniteError:
    return DefiniteError(f"{event} event is cut short or damaged", place=place, hint=DAMAGE_HINT)


def unsupported_event(event_type: int, place: str) -> DefiniteError:
    name = EVENT_NAMES.get(event_type, f"of type {event_type}")
    hint = UNSUPPORTED.get(event_type, "this version of Headrace does not know the event; please report it with the server's version")
    return DefiniteError(f"cannot read a binary log event {name}", place=place, hint=hint)
