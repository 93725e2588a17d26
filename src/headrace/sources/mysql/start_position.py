"""Resolves where in *this* server's log to start: `now`, `oldest`, a file and offset, or a GTID set.

Invariant: a returned position is the end of a whole group that the server has. It has its GTID set wherever the server has GTIDs, so that a
failover can resume from it. A GTID set is resolved to the newest file that begins within it; the reader skips transactions of that file
that are in the set (`BinlogPosition.ahead`, see `AppliedGroups`). The set may be ahead in one place and behind in another, so no offset
alone is right. Names and times decide nothing, so resolving again on an unchanged log gives the same position.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.shutdown import temporary_directory
from headrace.sources.mysql.binlog.log_comparison import describe_transaction, identify, identify_head
from headrace.sources.mysql.binlog.relay import Appender, punch_hole
from headrace.sources.mysql.binlog.replication_client import NewFile, NewFormat, ReplicationStream
from headrace.sources.mysql.events.event_types import MAGIC
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.preflight.required import check_position
from headrace.sources.mysql.segments.group_addresses import IndexedLogFile
from headrace.sources.mysql.segments.transaction_labels import name_group
from headrace.sources.mysql.server.connection import READ_AGAIN, MySQLAddress, is_mariadb, query
from headrace.sources.mysql.server.gtid import missing_from, parse_gtid_set
from headrace.sources.mysql.server.position import UNKNOWN_GTID, BinlogPosition, file_number
from headrace.sources.mysql.snapshot.log_watermark import gtid_at, log_end, note_position

FORMS: Final = (
    "write now, oldest, FILE:OFFSET such as binlog.000042:157, a MySQL GTID set such as UUID:1-99, or a MariaDB position such as 0-1-99"
)

_FILE_OFFSET: Final = re.compile(r"(?P<file>.+\.[0-9]+):(?P<offset>[0-9]+)")
_MYSQL_GTIDS: Final = re.compile(r"[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}:.*", re.DOTALL)
_MARIADB_GTIDS: Final = re.compile(r"[0-9]+-[0-9]+-[0-9]+(\s*,\s*[0-9]+-[0-9]+-[0-9]+)*")
_HEAD_EVENTS: Final = 5
_IDENTIFY_BYTES: Final = 16 << 20
"""A log file up to this size is read once to identify the log at a start."""


@dataclass(frozen=True, slots=True)
class ServerGtids:
    """The transactions that a server has executed, and those of them that none of its log files has."""

    mariadb: bool
    executed: str
    """MariaDB: the last GTID of every domain *and* server. The last GTID of a domain alone does not distinguish two histories."""
    purged: str = ""
    """MariaDB: only transactions that were never in its log. Its oldest file lists those that were purged."""

    @property
    def latest(self) -> str:
        """Return the shortest set that stands for the same transactions: in MariaDB the last GTID of a domain includes all before it."""
        return latest_of(self.executed) if self.mariadb else self.executed

    def lacks(self, wanted: str) -> str:
        if not self.mariadb:
            return missing_from(wanted, self.executed, mariadb=False)
        last: dict[tuple[int, int], int] = {}
        for domain, server, sequence in _triples(self.executed):
            last[domain, server] = max(sequence, last.get((domain, server), 0))
        return ",".join(f"{d}-{s}-{n}" for d, s, n in _triples(wanted) if last.get((d, s), 0) < n)


def read_server_gtids(connection: Connection[Any], address: MySQLAddress) -> ServerGtids | None:
    """Return None if the server's transactions have no GTIDs."""
    if is_mariadb(connection):
        state, applied = map(_plain, query(connection, address, "SELECT @@global.gtid_binlog_state, @@global.gtid_slave_pos")[0])
        unlogged = ServerGtids(mariadb=True, executed=state).lacks(applied)
        return ServerGtids(mariadb=True, executed=",".join(text for text in (state, applied) if text), purged=unlogged)
    mode, executed, purged = query(connection, address, "SELECT @@global.gtid_mode, @@global.gtid_executed, @@global.gtid_purged")[0]
    if str(mode).upper() != "ON":
        return None
    return ServerGtids(mariadb=False, executed=_plain(executed), purged=_plain(purged))


def latest_of(text: str) -> str:
    last: dict[int, tuple[int, int]] = {}
    for domain, server, sequence in _triples(text):
        last[domain] = max(last.get(domain, (0, 0)), (sequence, server))
    return ",".join(f"{domain}-{server}-{sequence}" for domain, (sequence, server) in sorted(last.items()))


def resolve_start(connection: Connection[Any], address: MySQLAddress, text: str, epoch: int = 0) -> BinlogPosition:
    wanted = text.strip()
    if wanted == "now":
        return _now(connection, address, epoch)
    if wanted == "oldest":
        oldest = log_files(connection, address)[0]
        return complete_gtid(connection, address, BinlogPosition(oldest, len(MAGIC), UNKNOWN_GTID, epoch))
    place = _FILE_OFFSET.fullmatch(wanted)
    if place is not None:
        position = BinlogPosition(place["file"], int(place["offset"]), UNKNOWN_GTID, epoch)
        check_position(connection, address, position)
        return _complete(connection, address, position, check=True)
    mariadb = is_mariadb(connection)
    if (_MARIADB_GTIDS if mariadb else _MYSQL_GTIDS).fullmatch(wanted):
        return resolve_gtid(connection, address, str(parse_gtid_set(wanted, mariadb=mariadb)), epoch)
    if (_MYSQL_GTIDS if mariadb else _MARIADB_GTIDS).fullmatch(wanted):
        written, served = ("MySQL", "MariaDB") if mariadb else ("MariaDB", "MySQL")
        raise DefiniteError(f"{wanted!r} is written as {written}'s GTIDs are, but the source is {served}", place=str(address), hint=FORMS)
    raise DefiniteError(f"{wanted!r} is not a place in a log", place=str(address), hint=FORMS)


def resolve_gtid(
    connection: Connection[Any], address: MySQLAddress, wanted: str, epoch: int = 0, *, from_oldest: bool = False
) -> BinlogPosition:
    """Return the position from which the server's log holds every transaction that `wanted` lacks."""
    gtids = read_server_gtids(connection, address)
    if gtids is None:
        raise DefiniteError(
            "the source's transactions have no GTIDs, so a GTID names no place in its log", place=str(address), hint="set gtid_mode = ON"
        )
    missing = gtids.lacks(wanted)
    if missing:
        raise DefiniteError(
            f"the source has not executed {missing}",
            place=str(address),
            hint="check the GTIDs: they are of another server, or not yet replicated to this one",
        )
    _check_purged(missing_from(gtids.purged, wanted, mariadb=gtids.mariadb), address)
    files = log_files(connection, address)

    def before(file: str) -> str:
        return missing_from(begins_with(connection, address, file), wanted, mariadb=gtids.mariadb)

    # Each file begins with a larger set than the one before it.
    first = bisect_left(files, True, key=lambda file: bool(before(file)))
    if first == 0:
        _check_purged(before(files[0]), address)
    chosen = files[0] if from_oldest else files[first - 1]
    return BinlogPosition(chosen, len(MAGIC), wanted, epoch, ahead=True)


def complete_gtid(connection: Connection[Any], address: MySQLAddress, position: BinlogPosition) -> BinlogPosition:
    """Return the position with its GTID set. If the set is unknown and the server can know it, read the file from its beginning."""
    return position if position.gtid != UNKNOWN_GTID else _complete(connection, address, position, check=False)


def _complete(connection: Connection[Any], address: MySQLAddress, position: BinlogPosition, *, check: bool) -> BinlogPosition:
    before = _groups_before(address, position)
    text = UNKNOWN_GTID
    if is_mariadb(connection):
        found = gtid_at(connection, address, position)
        text = found if found == UNKNOWN_GTID else str(parse_gtid_set(found, mariadb=True))
    elif read_server_gtids(connection, address) is not None:
        gtid = parse_gtid_set(begins_with(connection, address, position.file), mariadb=False)
        for groups in before:
            gtid = gtid.add_groups(groups[:, scan.GTID])
        text = str(gtid)
    if check:
        # Reading up to the position is the check, if it was not done before.
        for _ in before:
            pass
    return replace(position, gtid=text)


def _now(connection: Connection[Any], address: MySQLAddress, epoch: int) -> BinlogPosition:
    if read_server_gtids(connection, address) is None:
        return replace(log_end(connection, address, epoch), gtid=UNKNOWN_GTID)
    position = note_position(connection, address, epoch)
    connection.commit()
    return complete_gtid(connection, address, position)


def identify_start(address: MySQLAddress, position: BinlogPosition, *, mariadb: bool) -> BinlogPosition:
    """Return the position with the identity of its log, for a position that reading has not reached."""
    if position.offset > _IDENTIFY_BYTES:
        # The last transaction before the position is far from the start of the file. The first batch identifies the log by its own end.
        return replace(position, identity=identify_head(address, position.file))
    identity = identify_head(address, position.file)
    for log_file, groups in read_groups(address, position.file, position.offset):
        named = groups[groups[:, scan.GTID2] != 0]
        last = identity.transaction
        if len(named):
            last = describe_transaction(log_file, named[-1], name_group(named[-1], log_file.name, mariadb=mariadb))
        identity = identify(log_file, groups, position.offset, identity, last) or identity
    return replace(position, identity=identity)


def read_groups(address: MySQLAddress, file: str, end: int | None = None) -> Iterator[tuple[IndexedLogFile, npt.NDArray[np.int64]]]:
    """Yield the groups of a log file up to an offset, or up to its current end, each with a temporary copy of the file."""
    fed = len(MAGIC)
    beginning = BinlogPosition(file, len(MAGIC))
    with temporary_directory("headrace-") as scratch, closing(ReplicationStream(address, beginning, blocking=False)) as stream:
        log_file = IndexedLogFile(file, Path(scratch) / "log", len(MAGIC))
        log_file.path.touch(mode=0o600)
        with closing(Appender(log_file, checksum=False)) as appender:
            for piece in stream.pieces():
                if isinstance(piece, NewFormat):
                    log_file.checksum, log_file.created = piece.checksum, piece.created
                if isinstance(piece, NewFile) and piece.name != file:
                    break
                if not isinstance(piece, np.ndarray):
                    continue
                part = piece if end is None else piece[: end - fed]
                fed += len(part)
                for groups, _ in appender.append(part):
                    yield log_file, groups
                if appender.fault is not None:
                    raise appender.fault
                log_file.safe_end = appender.safe_end
                # Only the current group may be read again.
                punch_hole(log_file.path, 0, appender.safe_end)
                if fed == end:
                    break


def _groups_before(address: MySQLAddress, position: BinlogPosition) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the groups of the position's file before it. The position must be the end of a group, or lie between two groups."""
    if position.offset == len(MAGIC):
        return
    copies: list[IndexedLogFile] = []
    for log_file, groups in read_groups(address, position.file, position.offset):
        copies = [log_file]
        yield groups
    reached = copies[0].safe_end if copies else len(MAGIC)
    if reached != position.offset:
        raise DefiniteError(
            f"{position} is not the end of a transaction in the source's log",
            place=str(address),
            hint=f"the last one before it ends at {position.file}:{reached}; see SHOW BINLOG EVENTS",
        )


def log_files(connection: Connection[Any], address: MySQLAddress) -> list[str]:
    return sorted((str(row[0]) for row in query(connection, address, "SHOW BINARY LOGS")), key=file_number)


def begins_with(connection: Connection[Any], address: MySQLAddress, file: str) -> str:
    """Return the set of transactions before a log file, which the server writes at its head."""
    for row in query(connection, address, f"SHOW BINLOG EVENTS IN %s LIMIT {_HEAD_EVENTS}", (file,)):
        if row[2] in ("Previous_gtids", "Gtid_list"):
            return _plain(str(row[5]).strip("[]"))
    raise DefiniteError(
        f"log file {file} does not list the transactions before it", place=str(address), hint="start at a FILE:OFFSET, or oldest"
    )


def _check_purged(missing: str, address: MySQLAddress) -> None:
    if missing:
        raise DefiniteError(
            f"the source no longer has the log of transactions that are needed: {missing}",
            place=str(address),
            hint=f"keep binary logs longer (binlog_expire_logs_seconds); {READ_AGAIN}",
        )


def _triples(text: str) -> list[tuple[int, int, int]]:
    parsed = (part.strip().split("-") for part in text.split(",") if part.strip())
    return [(int(domain), int(server), int(sequence)) for domain, server, sequence in parsed]


def _plain(text: object) -> str:
    return "".join(str(text or "").split())
