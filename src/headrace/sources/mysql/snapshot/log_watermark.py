"""Notes a log position such that everything before it is already visible to a reader.

A server writes a transaction to its log before the engine commits it, so the log may end after changes that a SELECT does not see yet. A
snapshot with that position would hide them for ever. The position noted here has no such transaction before it:

- MariaDB: a consistent-snapshot transaction reports its exact log position.
- MySQL with GTIDs: a transaction's GTID is *owned* from before it reaches the log until after it is visible. Read the position, then wait
  until none of the GTIDs owned at that moment is owned any longer.
- MySQL without GTIDs: a global read lock, held for one statement, waits for commits in progress.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

from pymysql.connections import Connection

from headrace.errors import DefiniteError, TransientError
from headrace.sources.mysql.server.connection import MySQLAddress, is_mariadb, log_status, query
from headrace.sources.mysql.server.position import UNKNOWN_GTID, BinlogPosition

_QUIET_WITHIN_S: Final = 0.5
_COMMITTED_WITHIN_S: Final = 60.0


def note_position(connection: Connection[Any], address: MySQLAddress, epoch: int) -> BinlogPosition:
    """Return a log position. Everything that the connection reads from now on includes every change before it.

    On MariaDB this opens a read transaction: the caller reads in it and ends it with COMMIT.
    """
    if is_mariadb(connection):
        return _note_mariadb(connection, address, epoch)
    mode = query(connection, address, "SELECT @@global.gtid_mode")[0][0]
    if str(mode).upper() == "ON":
        return _note_by_gtid(connection, address, epoch)
    return _note_by_lock(connection, address, epoch)


def check_reached(position: BinlogPosition, reached: BinlogPosition | None, address: MySQLAddress) -> None:
    """Raise `TransientError` if a stream has passed changes that are not visible at the position yet: a snapshot there would lack them.

    A server may send a transaction before its engine commits it (MariaDB with rpl_semi_sync_master_wait_point = AFTER_SYNC).
    """
    if reached is not None and position < reached:
        raise TransientError(f"the source shows its changes up to {position} only, and {reached} was read already", place=str(address))


def log_end(connection: Connection[Any], address: MySQLAddress, epoch: int) -> BinlogPosition:
    """Return the current end of the log, visible or not."""
    file, offset = log_status(connection, address)
    return BinlogPosition(file, offset, epoch=epoch)


def gtid_at(connection: Connection[Any], address: MySQLAddress, position: BinlogPosition) -> str:
    """Return the GTID set of a position in MariaDB's log."""
    found = query(connection, address, "SELECT BINLOG_GTID_POS(%s, %s)", (position.file, position.offset))[0][0]
    return UNKNOWN_GTID if found is None else str(found)


def _note_mariadb(connection: Connection[Any], address: MySQLAddress, epoch: int) -> BinlogPosition:
    query(connection, address, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    status = dict(query(connection, address, "SHOW STATUS LIKE 'binlog_snapshot_%%'"))
    position = BinlogPosition(status["Binlog_snapshot_file"], int(status["Binlog_snapshot_position"]), epoch=epoch)
    return replace(position, gtid=gtid_at(connection, address, position))


def _note_by_gtid(connection: Connection[Any], address: MySQLAddress, epoch: int) -> BinlogPosition:
    deadline = time.monotonic() + _QUIET_WITHIN_S
    while time.monotonic() < deadline:
        executed, owned = _gtids(connection, address)
        position = log_end(connection, address, epoch)
        executed_after, owned_after = _gtids(connection, address)
        # No GTID is owned before or after, and none was executed in between: the executed set is exactly the log up to here.
        if not owned and not owned_after and executed == executed_after:
            return replace(position, gtid=executed)
    return _note_while_busy(connection, address, epoch)


def _note_while_busy(connection: Connection[Any], address: MySQLAddress, epoch: int) -> BinlogPosition:
    position = log_end(connection, address, epoch)
    waiting = _owned(_gtids(connection, address)[1])
    deadline = time.monotonic() + _COMMITTED_WITHIN_S
    while waiting & _owned(_gtids(connection, address)[1]):
        if time.monotonic() > deadline:
            raise TransientError("a transaction on the source stays between log and commit", place=str(address))
        time.sleep(0.002)
    return replace(position, gtid=UNKNOWN_GTID)


def _gtids(connection: Connection[Any], address: MySQLAddress) -> tuple[str, str]:
    executed, owned = query(connection, address, "SELECT @@global.gtid_executed, @@global.gtid_owned")[0]
    return str(executed).replace("\n", ""), str(owned).replace("\n", "")


def _owned(text: str) -> frozenset[str]:
    """Return the GTIDs in `gtid_owned`, which has the form `uuid:7#12:8#13, uuid2:1#4` (number#thread)."""
    found: set[str] = set()
    for part in text.split(","):
        source, *numbers = part.strip().split(":")
        found.update(f"{source}:{number.partition('#')[0]}" for number in numbers)
    return frozenset(found)


def _note_by_lock(connection: Connection[Any], address: MySQLAddress, epoch: int) -> BinlogPosition:
    try:
        query(connection, address, "FLUSH TABLES WITH READ LOCK")
    except DefiniteError as error:
        raise DefiniteError(
            f"without GTIDs the position must be noted under a short global lock: {error.message}",
            place=str(address),
            hint="turn GTIDs on (gtid_mode = ON), or GRANT RELOAD ON *.* to the user",
        ) from error
    try:
        position = log_end(connection, address, epoch)
    finally:
        query(connection, address, "UNLOCK TABLES")
    return replace(position, gtid=UNKNOWN_GTID)
