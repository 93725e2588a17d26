"""Resumes by GTID where file and offset are meaningless: on another server of the same replication group, or after a log reset.

Why no change is lost and no wrong row remains: the new server must have executed every transaction whose rows may be in the sink, that is
those of committed batches, of a planned and perhaps half written batch, and of a snapshot. The last transactions of those batches must be
identical in both logs, because a server that was reset or restored from a backup reuses GTIDs for other transactions. So the sink's content
is a past state of the new server, and the log from the committed set on leads from it to the present. The new server must also have all of
that log. Changes that were written but not committed come again under a higher epoch, and the merge keeps the later ones. All checks run
before anything is changed. If the process dies before the new start is saved, the same checks run again.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.sources.mysql.binlog.log_comparison import LogReplaced, check_log, describe_transaction, identify_head, log_replaced
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.segments.transaction_labels import name_group
from headrace.sources.mysql.server.connection import READ_AGAIN, MySQLAddress, query
from headrace.sources.mysql.server.gtid import missing_from, parse_gtid_set, read_gtid_set
from headrace.sources.mysql.server.position import UNKNOWN_GTID, BinlogPosition, LoggedTransaction
from headrace.sources.mysql.start_position import (
    begins_with,
    latest_of,
    log_files,
    read_groups,
    read_server_gtids,
    resolve_gtid,
)

log = logging.getLogger("headrace")

PATIENCE_S: Final = 10.0
_POLL_S: Final = 0.2
_GTID_OF_EVENT: Final = re.compile(r"GTID_NEXT= ?'(?P<mysql>[^']+)'|GTID (?P<mariadb>[0-9]+-[0-9]+-[0-9]+)")


def check_same_log(connection: Connection[Any], address: MySQLAddress, position: BinlogPosition) -> None:
    """Raise `LogReplaced` if this is not the log that was read up to the position, `LogPurged` if the server no longer has the file.

    A position that version 0.9 saved has no identity. GTIDs then detect only some replaced logs.
    """
    check_log(connection, address, position)
    gtids = read_server_gtids(connection, address)
    if (
        gtids is None
        or position.gtid == UNKNOWN_GTID
        or (position.identity is not None and position.identity.start < position.identity.end)
    ):
        return
    missing = gtids.lacks(position.gtid)
    if missing:
        raise log_replaced(position, f"the server has not executed {missing}", address)
    before = missing_from(begins_with(connection, address, position.file), position.gtid, mariadb=gtids.mariadb)
    try:
        after = "" if position.ahead else _next_gtid(connection, address, position)
    except DefiniteError as error:
        raise log_replaced(position, f"no event begins at {position}", address) from error
    if before or (after and not missing_from(after, position.gtid, mariadb=gtids.mariadb)):
        raise log_replaced(position, "its transactions there are others", address)


def continue_on(
    connection: Connection[Any],
    address: MySQLAddress,
    committed: BinlogPosition,
    touched: Sequence[BinlogPosition | str] = (),
    *,
    unless_found: DefiniteError | None = None,
) -> BinlogPosition:
    """Return the position to resume at in this server's log, with a new epoch.

    `committed` is the position that the sink has surely reached. `touched` are positions and GTID sets whose rows may be in the sink beyond
    that. The last transactions of `committed` and of those positions must be identical in this log. If the log no longer has them, the
    server's executed set counts, but not if there is evidence of another log: then `unless_found` is raised.
    """
    sets = [committed.gtid, *(gtid for one in touched if (gtid := one if isinstance(one, str) else one.gtid))]
    # An empty set is known: no transaction was executed before.
    if UNKNOWN_GTID in sets:
        raise DefiniteError(
            "this is another source server (or its log was reset), and replication has no GTIDs to resume by",
            place=str(address),
            hint=f"go back to the former server, or {READ_AGAIN}; turn GTIDs on (gtid_mode = ON) to be able to change servers",
        )
    gtids = read_server_gtids(connection, address)
    if gtids is None:
        raise DefiniteError(
            "this is another source server (or its log was reset), and its transactions have no GTIDs",
            place=str(address),
            hint="set gtid_mode = ON there",
        )
    text = "".join(sets)
    if text and gtids.mariadb != (":" not in text):
        raise DefiniteError(
            "the state belongs to a server of the other family (MySQL, MariaDB), whose GTIDs mean nothing here",
            place=str(address),
            hint=f"use the state directory of this source, or a new one; {READ_AGAIN}",
        )
    _check_logged(connection, address, missing_from(gtids.purged, committed.gtid, mariadb=gtids.mariadb))
    for text in sets:
        _await_executed(connection, address, text)
    for position in (committed, *(one for one in touched if isinstance(one, BinlogPosition))):
        _check_transaction(connection, address, position, unless_found)
    # The positions of prepared XA transactions in this log are unknown; they lie somewhere before the start.
    start = resolve_gtid(connection, address, committed.gtid, committed.epoch + 1, from_oldest=bool(committed.prepared))
    last = committed.identity.transaction if committed.identity is not None else None
    return replace(start, identity=replace(identify_head(address, start.file), transaction=last))


def _check_transaction(
    connection: Connection[Any], address: MySQLAddress, position: BinlogPosition, unless_found: DefiniteError | None
) -> None:
    read = position.identity.transaction if position.identity is not None else None
    logged = find_transaction(connection, address, read.gtid) if read is not None else None
    if read is None or logged is None:
        if unless_found is not None:
            raise unless_found
        if read is not None:
            log.warning(
                "the log of %s no longer has transaction %s, so its content cannot be compared with what was read; "
                "headrace verify compares the tables",
                address,
                read.gtid,
            )
    elif read.contradicts(logged):
        raise LogReplaced(
            f"the source's log has another transaction {read.gtid} than the one that was read up to {position}",
            place=str(address),
            hint="the server was reset or restored from a backup, or is not a replica of the former one: return to the former server, or "
            f"{READ_AGAIN}",
        )


def find_transaction(connection: Connection[Any], address: MySQLAddress, gtid: str) -> LoggedTransaction | None:
    """Return a transaction from the server's log; None if its log no longer has it, or never had it."""
    mariadb = ":" not in gtid
    files = log_files(connection, address)
    # The first file that begins after the transaction.
    first = bisect_left(files, True, key=lambda file: not missing_from(gtid, begins_with(connection, address, file), mariadb=mariadb))
    if first == 0:
        return None
    for copy, groups in read_groups(address, files[first - 1]):
        for group in groups[read_gtid_set(gtid).holds(groups[:, scan.GTID])]:
            # A MariaDB GTID position includes all transactions before it.
            if name_group(group, copy.name, mariadb=mariadb) == gtid:
                return describe_transaction(copy, group, gtid)
    return None


def _check_logged(connection: Connection[Any], address: MySQLAddress, absent: str) -> None:
    """Raise if required transactions are in no log of the server because it does not log replicated changes."""
    found = query(connection, address, "SHOW GLOBAL VARIABLES WHERE variable_name IN ('log_replica_updates', 'log_slave_updates')")
    if absent and any(str(value).upper() != "ON" for _, value in found):
        raise DefiniteError(
            f"the source has {found[0][0]} = OFF: transactions that it replicated are not in its own log: {absent}",
            place=str(address),
            hint=f"set {found[0][0]} = ON on replicas before they take over; {READ_AGAIN}",
        )


def _await_executed(connection: Connection[Any], address: MySQLAddress, text: str) -> None:
    """Wait until a replica has executed the set; a replica that does not within this time may never do so."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        gtids = read_server_gtids(connection, address)
        missing = gtids.lacks(text) if gtids is not None else text
        if not missing:
            return
        if time.monotonic() > deadline:
            raise DefiniteError(
                f"the source has not executed {missing}, of which changes may be in the target already",
                place=str(address),
                hint=f"if it is a replica that lags, start again when it has caught up; if the transactions are lost, {READ_AGAIN}",
            )
        time.sleep(_POLL_S)


def _next_gtid(connection: Connection[Any], address: MySQLAddress, position: BinlogPosition) -> str:
    """Return the GTID of the group that begins at a position; empty if none does."""
    rows = query(connection, address, f"SHOW BINLOG EVENTS IN %s FROM {position.offset} LIMIT 1", (position.file,))
    found = _GTID_OF_EVENT.search(str(rows[0][5])) if rows else None
    text = (found["mysql"] or found["mariadb"]) if found is not None else ""
    return "" if text == "ANONYMOUS" else text


def joined(first: str, second: str, *, mariadb: bool) -> str:
    """Return the union of two sets, for `touched`."""
    texts = ",".join(text for text in (first, second) if text)
    return latest_of(texts) if mariadb else str(parse_gtid_set(texts, mariadb=False))
