"""Decides in which server's log a pipe resumes: the same one, or, by GTID and under a new epoch, a log with the same history.

Invariant: `state.epoch`, `state.start` and `state.identity` change in one write, before anything is read from the new server. Spark offsets
of an older epoch then mean "the start of this one" (see `MySQLPlanner`). `state.uncheckpointed_gtids` holds the transactions whose
rows may be in the sink beyond Spark's checkpoint: those read by snapshots, and those of batches that a failover left open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.schema_change import SchemaCatalog
from headrace.pipes.state.pipe_state import PipeState, StateDirectory
from headrace.runtime.checkpoint import committed_offset, planned_offset
from headrace.sources.mysql.binlog.log_comparison import LogPurged
from headrace.sources.mysql.failover import check_same_log, continue_on, joined
from headrace.sources.mysql.preflight.prepared_xa import check_no_prepared
from headrace.sources.mysql.preflight.required import ServerIdentity
from headrace.sources.mysql.schema.catalog_capture import capture_catalog
from headrace.sources.mysql.schema.schema_history import SchemaHistory
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.log_identity import READ_AGAIN, LogReplaced
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.start_position import complete_gtid, identify_start, read_server_gtids

log = logging.getLogger("headrace")


def committed_position(directory: StateDirectory, state: PipeState) -> BinlogPosition:
    """Return the committed position in the current log."""
    start = BinlogPosition.from_json(state.start)
    committed = committed_offset(directory.checkpoint)
    return max(start, BinlogPosition.from_json(committed)) if committed is not None else start


def written_position(directory: StateDirectory, state: PipeState) -> BinlogPosition:
    """Return the position up to which rows may have been written: a planned batch may have been written in part."""
    planned = planned_offset(directory.checkpoint)
    found = BinlogPosition.from_json(planned) if planned is not None else None
    return (
        found
        if found is not None and found.epoch == state.epoch and found > committed_position(directory, state)
        else committed_position(directory, state)
    )


def resume_on_server(
    connection: Connection[Any],
    address: MySQLAddress,
    directory: StateDirectory,
    state: PipeState,
    server: ServerIdentity,
    *,
    rows_copied: bool,
) -> None:
    """Check that the state can resume in this server's log; if it is another log, move the state to it by GTID.

    `rows_copied`: whether the sink may hold snapshot rows.
    """
    position, planned = committed_position(directory, state), _planned(directory)
    first_error: DefiniteError | None = None
    if state.identity == server.identity:
        try:
            check_same_log(connection, address, position)
            if planned is not None and planned.epoch == state.epoch and planned.identity is not None:
                check_same_log(connection, address, planned)
            return
        except DefiniteError as error:
            first_error = error
    try:
        _resume_by_gtid(connection, address, directory, state, server, first_error, rows_copied=rows_copied)
    except DefiniteError as error:
        if first_error is None or (isinstance(error, LogReplaced) and isinstance(first_error, LogPurged)):
            raise
        # GTIDs do not help, so the first error is the cause.
        raise first_error from error


def _planned(directory: StateDirectory) -> BinlogPosition | None:
    """The end of the last planned batch, committed or not."""
    planned = planned_offset(directory.checkpoint)
    return None if planned is None else BinlogPosition.from_json(planned)


def _resume_by_gtid(
    connection: Connection[Any],
    address: MySQLAddress,
    directory: StateDirectory,
    state: PipeState,
    server: ServerIdentity,
    first_error: DefiniteError | None,
    *,
    rows_copied: bool,
) -> None:
    if rows_copied and not state.uncheckpointed_gtids:
        raise DefiniteError(
            "this is another source server, and the snapshot of the former one was not complete",
            place=str(address),
            hint=f"go back to the former server, or {READ_AGAIN}",
        )
    position, planned = committed_position(directory, state), _planned(directory)
    open_batch = "" if planned is None else planned.gtid
    touched: list[BinlogPosition | str] = (
        [state.uncheckpointed_gtids] if planned is None or planned == position else [state.uncheckpointed_gtids, planned]
    )
    # A purged file is no evidence of another log; any other error is.
    evidence = None if isinstance(first_error, LogPurged) else first_error
    start = continue_on(connection, address, position, touched, unless_found=evidence)
    state.source, state.identity = str(address), server.identity
    state.start, state.epoch = start.to_json(), start.epoch
    state.uncheckpointed_gtids = joined(state.uncheckpointed_gtids, open_batch, mariadb=server.mariadb)
    directory.save(state)
    log.warning("going on by GTID on %s with %s, epoch %d, from %s", address, position.gtid, start.epoch, start)


def begin_new_log(
    connection: Connection[Any],
    address: MySQLAddress,
    state: PipeState,
    server: ServerIdentity,
    wanted: Callable[[TableName], bool],
) -> SchemaCatalog:
    """Start the state at the end of the server's current log, under a new epoch, and return the catalog there.

    Positions of the former log no longer count, and every table must be read again. The caller keeps the resync request until all tables
    are saved, so a crash before that only leads to another epoch.
    """
    check_no_prepared(connection, address)
    found, start = capture_catalog(connection, address, wanted, state.epoch + 1)
    start = identify_start(address, complete_gtid(connection, address, start), mariadb=server.mariadb)
    state.source, state.identity, state.epoch, state.start = str(address), server.identity, start.epoch, start.to_json()
    state.uncheckpointed_gtids, state.schemas_captured_at, state.dropped_tables = "", None, {}
    log.warning("reading every table again from %s, epoch %d, from %s", address, start.epoch, start)
    return found


def rewind_history(history: SchemaHistory, directory: StateDirectory, state: PipeState) -> None:
    """Restart the schema history at the start of this log, with the schemas of the last commit on the former server.

    Statements of an uncommitted batch come again from this server at other positions. This runs at every start until a batch of this epoch
    is committed, so a crash in between is harmless.
    """
    committed = committed_offset(directory.checkpoint)
    left = BinlogPosition.from_json(committed) if committed is not None else BinlogPosition(".0", 0)
    if left.epoch < state.epoch:
        history.begin(history.as_of(left), BinlogPosition.from_json(state.start))


def clear_snapshot_gtids(directory: StateDirectory, state: PipeState) -> None:
    """Forget the snapshots' transactions: until the new snapshot ends, it is unknown which transactions its rows include."""
    if state.uncheckpointed_gtids:
        state.uncheckpointed_gtids = ""
        directory.save(state)


def store_snapshot_gtids(connection: Connection[Any], address: MySQLAddress, directory: StateDirectory, state: PipeState) -> None:
    """Store the server's executed GTIDs after all snapshots have ended: their rows include no later transaction."""
    gtids = read_server_gtids(connection, address)
    if gtids is not None and not state.uncheckpointed_gtids:
        state.uncheckpointed_gtids = gtids.latest
        directory.save(state)
