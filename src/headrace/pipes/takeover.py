"""Which server's log a state goes on in: the one it came from, or another of the same history, by GTID and with a new epoch.

Invariant: `state.epoch`, `state.start` and `state.identity` change together, in one write, before anything is read from the new server.
Spark's offsets of an older epoch then mean "the beginning of this one" (see `MySQLPlanner`). `state.seen` holds every transaction whose
rows may be in the sink beyond what Spark's checkpoint says: those that snapshots read, and those of batches that a failover left open.
"""

from __future__ import annotations

import logging
from typing import Any

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.pipes.state import PipeState, StateDirectory
from headrace.sources.mysql.connection import MySQLAddress
from headrace.sources.mysql.failover import check_same_log, continue_on, joined
from headrace.sources.mysql.history import SchemaHistory
from headrace.sources.mysql.locate import START_OVER, read_server_gtids
from headrace.sources.mysql.position import BinlogPosition
from headrace.sources.mysql.preflight import ServerIdentity
from headrace.spark.checkpoint import committed_offset, planned_offset

log = logging.getLogger("headrace")


def reached(directory: StateDirectory, state: PipeState) -> BinlogPosition:
    """How far the state is in the log it reads now."""
    start = BinlogPosition.from_json(state.start)
    committed = committed_offset(directory.checkpoint)
    return max(start, BinlogPosition.from_json(committed)) if committed is not None else start


def written(directory: StateDirectory, state: PipeState) -> BinlogPosition:
    """How far rows of the log it reads now may have been written: a batch that was planned may be there in parts."""
    planned = planned_offset(directory.checkpoint)
    found = BinlogPosition.from_json(planned) if planned is not None else None
    return found if found is not None and found.epoch == state.epoch and found > reached(directory, state) else reached(directory, state)


def take_over(
    connection: Connection[Any],
    address: MySQLAddress,
    directory: StateDirectory,
    state: PipeState,
    server: ServerIdentity,
    *,
    rows_copied: bool,
) -> None:
    """Make sure that the state can go on in this server's log; if that is another log, change the state so that it does.

    `rows_copied`: whether the sink may hold rows that a snapshot read.
    """
    position = reached(directory, state)
    if state.identity != server.identity:
        _go_on_by_gtid(connection, address, directory, state, server, position, rows_copied=rows_copied)
        return
    try:
        check_same_log(connection, address, position)
    except DefiniteError as trouble:
        try:
            _go_on_by_gtid(connection, address, directory, state, server, position, rows_copied=rows_copied)
        except DefiniteError as error:
            # GTIDs do not help: what is wrong is what was found first.
            raise trouble from error


def _go_on_by_gtid(
    connection: Connection[Any],
    address: MySQLAddress,
    directory: StateDirectory,
    state: PipeState,
    server: ServerIdentity,
    position: BinlogPosition,
    *,
    rows_copied: bool,
) -> None:
    if rows_copied and not state.seen:
        raise DefiniteError(
            "this is another source server, and the snapshot of the former one was not complete",
            place=str(address),
            hint=f"go back to the former server, or {START_OVER}",
        )
    planned = planned_offset(directory.checkpoint)
    open_batch = BinlogPosition.from_json(planned).gtid if planned is not None else ""
    start = continue_on(connection, address, position, [state.seen, open_batch])
    state.source, state.identity = str(address), server.identity
    state.start, state.epoch = start.to_json(), start.epoch
    state.seen = joined(state.seen, open_batch, mariadb=server.mariadb)
    directory.save(state)
    log.warning("going on by GTID on %s with %s, epoch %d, from %s", address, position.gtid, start.epoch, start)


def rewind(history: SchemaHistory, directory: StateDirectory, state: PipeState) -> None:
    """Let the schema history begin where this log is read from, with the tables as they were at the last commit on the former server.

    Statements that were followed since, in a batch that was not committed, come again from this server, at other positions. Called at
    every start until a batch of this epoch is committed, so a crash in between changes nothing.
    """
    committed = committed_offset(directory.checkpoint)
    left = BinlogPosition.from_json(committed) if committed is not None else BinlogPosition(".0", 0)
    if left.epoch < state.epoch:
        history.begin(history.as_of(left), BinlogPosition.from_json(state.start))


def forget_seen(directory: StateDirectory, state: PipeState) -> None:
    """A snapshot begins: until it has ended, nobody knows which transactions its rows hold."""
    if state.seen:
        state.seen = ""
        directory.save(state)


def note_seen(connection: Connection[Any], address: MySQLAddress, directory: StateDirectory, state: PipeState) -> None:
    """All snapshots have ended: what they read lies before what the server has executed by now."""
    gtids = read_server_gtids(connection, address)
    if gtids is not None and not state.seen:
        state.seen = gtids.latest
        directory.save(state)
