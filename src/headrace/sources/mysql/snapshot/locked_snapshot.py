"""Snapshots of many tables at one log position: one driver, several readers, the tables locked for milliseconds.

The sequence is MaterializeMySQL's: FLUSH TABLES, FLUSH TABLES WITH READ LOCK, the log position, consistent-snapshot transactions, SHOW
CREATE TABLE, UNLOCK TABLES. The transactions belong to readers in other processes, perhaps on other machines. Driver and readers share only
the server, so they signal each other by its named locks. Holding a lock is a signal. It ends with its connection.

    driver                                     each reader
    holds "driver" (as long as it lives)
                                               sets "ready"
    locks the tables, notes the position
    sets "open"                                sees it: starts its transaction, notes the position
                                               sets "done"
    all done: shows the tables, clears "open",
    unlocks the tables
    sets "go"                                  sees it: clears "ready", reads its chunks

Why no reader sees a wrong state: "open" is set only while the tables are locked. A reader reads nothing before "go", and the driver sets
that only if every reader was done while it held the lock. If the driver dies at any point, its signals end and every reader stops. Every
wait has a timeout, and every timeout unlocks the tables.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

from pymysql.connections import Connection

from headrace.errors import DefiniteError, TransientError
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableName
from headrace.sources.mysql.server.connection import TRANSACTIONAL_ENGINES, MySQLAddress, connect, is_mariadb, query, quote_name
from headrace.sources.mysql.server.position import UNKNOWN_GTID, BinlogPosition
from headrace.sources.mysql.snapshot.log_watermark import gtid_at, log_end, note_position

log = logging.getLogger("headrace.mysql")

_POLL_S: Final = 0.002
_LOCK_S: Final = 10
"""How long to queue for the lock of one table."""
_RELOAD_HINT: Final = "GRANT RELOAD ON *.* to the user, or take the snapshot without locks (lock_free)"


@dataclass(frozen=True, slots=True)
class Rendezvous(JsonRecord):
    """What driver and readers of one snapshot share. Serialised as JSON."""

    readers: int
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    gather_s: float = 120.0
    """How long the driver and its readers wait for each other. Nothing is locked meanwhile."""
    lock_s: float = 10.0
    """The longest time that the tables stay locked, and that the driver queues for the lock (others queue behind it)."""

    def signal_name(self, name: str, reader: int | None = None) -> str:
        return f"headrace:{self.token}:{name}" + ("" if reader is None else f":{reader}")


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """The log position that all readers see, and the table definitions at that position."""

    position: BinlogPosition
    definitions: dict[TableName, str]
    """Each table's SHOW CREATE TABLE."""
    locked_s: float
    """How long writes were blocked."""


class ConsistentSnapshot:
    """The driver's side. Enter it, start the readers, call `take`. The readers continue after it is left."""

    def __init__(self, address: MySQLAddress, rendezvous: Rendezvous, tables: Sequence[TableName], epoch: int, identity: str = "") -> None:
        """`identity`: the expected server identity, if known."""
        self._address, self._rendezvous, self._tables, self._epoch, self._identity = address, rendezvous, tables, epoch, identity
        self._connection: Connection[Any]

    def __enter__(self) -> Self:
        self._connection = connect(self._address, identity=self._identity)
        _set_signal(self._connection, self._address, self._rendezvous.signal_name("driver"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._connection.open:
            self._connection.close()

    def take(self, keep_waiting: Callable[[], bool] = lambda: True) -> SnapshotPoint:
        """Gather the readers, lock, let them begin, unlock. `keep_waiting` ends it early if it returns false."""
        meeting, readers = self._rendezvous, range(self._rendezvous.readers)
        self._await(self._all_readers_set("ready"), meeting.gather_s, "not all readers of the snapshot have come", keep_waiting)
        query(self._connection, self._address, f"SET SESSION lock_wait_timeout = {math.ceil(meeting.lock_s)}")
        try:
            # LOCAL keeps the statement itself out of the log.
            query(self._connection, self._address, "FLUSH LOCAL TABLES")
            query(self._connection, self._address, "FLUSH TABLES WITH READ LOCK")
        except DefiniteError as error:
            raise DefiniteError(f"the tables cannot be locked: {error.message}", place=str(self._address), hint=_RELOAD_HINT) from error
        started = time.monotonic()
        try:
            position = _locked_position(self._connection, self._address, self._epoch)
            self._set_signal("open")
            self._await(self._all_readers_set("done"), meeting.lock_s, "a reader of the snapshot did not begin in time", keep_waiting)
            definitions = {name: self._definition(name) for name in self._tables}
            query(self._connection, self._address, "DO RELEASE_LOCK(%s)", (meeting.signal_name("open"),))
            query(self._connection, self._address, "UNLOCK TABLES")
        except BaseException:
            # Unlocks the tables and ends every signal, even if no statement can be sent any more.
            self._connection.close()
            raise
        locked_s = time.monotonic() - started
        log.info("tables were locked for %.1f ms to begin the snapshot at %s with %d readers", locked_s * 1e3, position, len(readers))
        self._set_signal("go")
        cleared = self._all_readers_set("ready", is_set=False)
        self._await(cleared, meeting.gather_s, "a reader of the snapshot was lost", keep_waiting)
        return SnapshotPoint(position, definitions, locked_s)

    def _definition(self, name: TableName) -> str:
        sql = f"SHOW CREATE TABLE {quote_name(name.database)}.{quote_name(name.table)}"
        return str(query(self._connection, self._address, sql)[0][1])

    def _set_signal(self, signal_name: str) -> None:
        _set_signal(self._connection, self._address, self._rendezvous.signal_name(signal_name))

    def _all_readers_set(self, signal_name: str, *, is_set: bool = True) -> Callable[[], bool]:
        """Whether all readers have set the signal (or none has)."""
        words = tuple(self._rendezvous.signal_name(signal_name, reader) for reader in range(self._rendezvous.readers))
        sql = "SELECT 1" + ", IS_USED_LOCK(%s)" * len(words)
        return lambda: all((holder is not None) is is_set for holder in query(self._connection, self._address, sql, words)[0][1:])

    def _await(self, ready: Callable[[], bool], seconds: float, otherwise: str, keep_waiting: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline or not keep_waiting():
                raise TransientError(f"{otherwise} ({seconds:g} s)", place=str(self._address))
            time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """A connection whose transaction sees all tables at `position`."""

    connection: Connection[Any]
    position: BinlogPosition


@contextmanager
def open_reader(address: MySQLAddress, rendezvous: Rendezvous, number: int, epoch: int, identity: str = "") -> Iterator[SnapshotReader]:
    """The reader's side: one of `rendezvous.readers`, numbered from 0. Its transaction ends with the block."""
    with closing(connect(address, identity=identity)) as connection:
        yield SnapshotReader(connection, _meet(connection, address, rendezvous, number, epoch))


def _meet(connection: Connection[Any], address: MySQLAddress, rendezvous: Rendezvous, number: int, epoch: int) -> BinlogPosition:
    ready = rendezvous.signal_name("ready", number)
    _set_signal(connection, address, ready)
    # The driver may queue for the lock after all readers have come.
    driver = _await_signal(connection, address, rendezvous, "open", rendezvous.gather_s + rendezvous.lock_s)
    query(connection, address, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    position = _locked_position(connection, address, epoch)
    if _holder(connection, address, rendezvous.signal_name("open")) != driver:
        raise TransientError("the snapshot was given up before all readers had begun", place=str(address))
    _set_signal(connection, address, rendezvous.signal_name("done", number))
    if _await_signal(connection, address, rendezvous, "go", rendezvous.gather_s, driver_seen=True) != driver:
        raise TransientError("the snapshot was given up", place=str(address))
    query(connection, address, "DO RELEASE_LOCK(%s)", (ready,))
    return position


def _await_signal(
    connection: Connection[Any],
    address: MySQLAddress,
    rendezvous: Rendezvous,
    signal_name: str,
    seconds: float,
    *,
    driver_seen: bool = False,
) -> int:
    """Wait for a signal of the driver; return the id of the connection that set it. `driver_seen`: the driver has been seen before."""
    deadline = time.monotonic() + seconds
    while (holder := _holder(connection, address, rendezvous.signal_name(signal_name))) is None:
        driver = _holder(connection, address, rendezvous.signal_name("driver"))
        if time.monotonic() > deadline or (driver_seen and driver is None):
            raise TransientError(
                "the driver of the snapshot has ended" if driver_seen else "the snapshot does not begin", place=str(address)
            )
        driver_seen = driver_seen or driver is not None
        time.sleep(_POLL_S)
    return holder


def _set_signal(connection: Connection[Any], address: MySQLAddress, signal_name: str) -> None:
    if query(connection, address, "SELECT GET_LOCK(%s, 0)", (signal_name,))[0][0] != 1:
        raise DefiniteError(
            f"the server's named lock {signal_name} is taken", place=str(address), hint="give every snapshot its own rendezvous"
        )


def _holder(connection: Connection[Any], address: MySQLAddress, signal_name: str) -> int | None:
    found = query(connection, address, "SELECT IS_USED_LOCK(%s)", (signal_name,))[0][0]
    return None if found is None else int(found)


def _locked_position(connection: Connection[Any], address: MySQLAddress, epoch: int) -> BinlogPosition:
    """Return the end of the log while no transaction can commit: its content is visible, and the GTID set is exactly that of the log."""
    end = log_end(connection, address, epoch)
    if is_mariadb(connection):
        return replace(end, gtid=gtid_at(connection, address, end))
    gtid = query(connection, address, "SELECT IF(@@global.gtid_mode = 'ON', @@global.gtid_executed, NULL)")[0][0]
    return replace(end, gtid=UNKNOWN_GTID if gtid is None else str(gtid).replace("\n", ""))


@contextmanager
def exact_table_snapshot(address: MySQLAddress, name: TableName, epoch: int, identity: str = "") -> Iterator[SnapshotReader]:
    """Provide a transaction that sees one table exactly as of a log position.

    MariaDB reports the position of a snapshot. On MySQL the table is locked against writes for the milliseconds that the start of the
    transaction and the read of the log's end take: earlier changes of the table are committed, later ones are logged later. The position is
    not exact for other tables, whose commits may be in progress. A table of an engine without transactions stays locked until the block
    ends: a SELECT sees its changes at once.
    """
    with closing(connect(address, identity=identity)) as connection:
        if not _has_transactions(connection, address, name):
            _lock(connection, address, name)
            yield SnapshotReader(connection, replace(log_end(connection, address, epoch), gtid=UNKNOWN_GTID))
            return
        if is_mariadb(connection):
            yield SnapshotReader(connection, note_position(connection, address, epoch))
            return
        with _locked(address, name, identity):
            query(connection, address, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            end = log_end(connection, address, epoch)
        yield SnapshotReader(connection, replace(end, gtid=UNKNOWN_GTID))


@contextmanager
def _locked(address: MySQLAddress, name: TableName, identity: str) -> Iterator[None]:
    """Lock one table against writes, on its own connection."""
    with closing(connect(address, identity=identity)) as connection:
        _lock(connection, address, name)
        started = time.monotonic()
        yield
        query(connection, address, "UNLOCK TABLES")
        log.debug("table %s was locked for %.1f ms", name, (time.monotonic() - started) * 1e3)


def _lock(connection: Connection[Any], address: MySQLAddress, name: TableName) -> None:
    query(connection, address, f"SET SESSION lock_wait_timeout = {_LOCK_S}")
    try:
        query(connection, address, f"LOCK TABLES {quote_name(name.database)}.{quote_name(name.table)} READ")
    except DefiniteError as error:
        raise DefiniteError(
            f"table {name} cannot be locked for its snapshot: {error.message}",
            place=str(address),
            hint=f"GRANT LOCK TABLES ON {quote_name(name.database)}.* to the user",
        ) from error


def check_has_transactions(connection: Connection[Any], address: MySQLAddress, name: TableName) -> None:
    """Raise if a transaction that began earlier would see later changes of the table: they would count twice."""
    if not _has_transactions(connection, address, name):
        raise DefiniteError(
            f"table {name} cannot be read as of one position in a consistent snapshot: its engine has no transactions",
            place=f"table {name}",
            hint=f"ALTER TABLE {quote_name(name.database)}.{quote_name(name.table)} ENGINE = InnoDB, or leave out --snapshot consistent",
        )


def _has_transactions(connection: Connection[Any], address: MySQLAddress, name: TableName) -> bool:
    sql = "SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    found = query(connection, address, sql, (name.database, name.table))
    # The SELECT of a table that does not exist raises the error that names it.
    return not found or str(found[0][0]).lower() in TRANSACTIONAL_ENGINES
