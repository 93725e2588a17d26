"""Log files as servers before checksums wrote them, made of a real MariaDB log by the documented format.

No such server runs here. MariaDB still writes the same row events (version 1), and with `binlog_checksum = NONE`, `binlog_row_metadata =
NO_LOG` and `mysql56_temporal_format = OFF` the same table maps and values. Newer parts are removed: GTIDs (their transactions begin with a
QUERY event `BEGIN` again), its own status variables, and the longer format description.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from headrace.demo.private_server import Setting

MAGIC = b"\xfebin"
HEADER = struct.Struct("<IBIIIH")
QUERY, FORMAT_DESCRIPTION, GTID, STANDALONE = 2, 15, 162, 1
ADDED_SINCE = frozenset({160, 161, 163})
SETTINGS: dict[str, Setting] = {
    "binlog_checksum": "NONE",
    "binlog_row_metadata": "NO_LOG",
    "binlog_annotate_row_events": False,
    "mysql56_temporal_format": False,
    "explicit_defaults_for_timestamp": False,
    "character_set_server": "latin1",
}
_STATUS_SIZES = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3}
_STATUS_TEXTS = frozenset({5, 6})
# Post-header lengths by type from 1 on: sources of MySQL 5.0, 5.1 and 5.5, Format_description_log_event.
_LENGTHS_50 = bytes.fromhex("380d0008001200040404041200004b00041a")
_LENGTHS_51 = bytes.fromhex("380d0008001200040404041200005300041a0800000008080802")
_LENGTHS_55 = bytes.fromhex("380d0008001200040404041200005400041a080000000808080200")
LENGTHS = {"5.0": _LENGTHS_50, "5.1": _LENGTHS_51, "5.2": _LENGTHS_51, "5.5": _LENGTHS_55}
"""By the first two numbers of a server's version; MariaDB 5.2 is MySQL 5.1's."""


def format_description(version: str, timestamp: int = 1, server_id: int = 1) -> bytes:
    """The first event of a file: no algorithm, no checksum."""
    lengths = LENGTHS[".".join(version.split(".")[:2])]
    body = struct.pack("<H50sIB", 4, version.encode(), timestamp, 19) + lengths
    return event(FORMAT_DESCRIPTION, body, len(MAGIC), timestamp, server_id)


def event(kind: int, body: bytes, offset: int, timestamp: int = 1, server_id: int = 1, flags: int = 0) -> bytes:
    """An event that lies at an offset of its file."""
    size = HEADER.size + len(body)
    return HEADER.pack(timestamp, kind, server_id, size, offset + size, flags) + body


def as_old(log: bytes, version: str) -> bytes:
    """A log file of MariaDB as a server of an old version would have written it."""
    old = MAGIC
    for timestamp, kind, server_id, flags, body in _events(log):
        if kind == FORMAT_DESCRIPTION:
            old += format_description(version, timestamp, server_id)
        elif kind == GTID and not body[12] & STANDALONE:
            old += event(QUERY, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0BEGIN", len(old), timestamp, server_id, 8)
        elif kind == QUERY:
            old += event(kind, _old_query(body), len(old), timestamp, server_id, flags)
        elif kind != GTID and kind not in ADDED_SINCE:
            assert kind < 27, f"servers before checksums know no event of type {kind}"
            old += event(kind, body, len(old), timestamp, server_id, flags)
    return old


def _events(log: bytes) -> Iterator[tuple[int, int, int, int, bytes]]:
    at = len(MAGIC)
    while at < len(log):
        timestamp, kind, server_id, size, _, flags = HEADER.unpack_from(log, at)
        yield timestamp, kind, server_id, flags, log[at + HEADER.size : at + size]
        at += size


def _old_query(body: bytes) -> bytes:
    """A QUERY event without the status variables that MariaDB added."""
    size = struct.unpack_from("<H", body, 11)[0]
    status, at = body[13 : 13 + size], 0
    while at < size and status[at] < 128:
        at += 1 + (1 + status[at + 1] if status[at] in _STATUS_TEXTS else _STATUS_SIZES[status[at]])
    return body[:11] + struct.pack("<H", at) + status[:at] + body[13 + size :]
