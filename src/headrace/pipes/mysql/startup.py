"""Starts a run: loads or creates the state and checks it before anything is created or written.

Invariant: the schema of a table in the state is the schema at the position that is stored with it.

A pipe resumes in the same server's log, or, by GTID and under a new epoch, in a log with the same history. `state.epoch`, `state.start` and
`state.identity` change in one write, before anything is read from the new server. Spark offsets of an older epoch then mean "the start of
this one" (see `MySQLPlanner`). `state.uncheckpointed_gtids` holds the transactions whose rows may be in the sink beyond Spark's checkpoint:
those read by snapshots, and those of batches that a failover left open.
"""

from __future__ import annotations

import functools
import glob
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from headrace.model.setting_values import CascadeMode
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.lifecycle.sink_schema import SinkSchemaResolver, store_column_settings
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.state.pipe_state import PipeState, SnapshotLog, StateDirectory, TableState
from headrace.pipes.state.resync_requests import pending_requests, request_resync
from headrace.pipes.state.stored_progress import SinkRecord, warn_of_old_state
from headrace.pipes.state.stored_settings import check_unmatched, settings_in, store_settings, warn_of_unmatched
from headrace.retry import retrying
from headrace.runtime.checkpoint import committed_offset, planned_offset
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.registry import is_same_sink
from headrace.sources.base import Offset
from headrace.sources.mysql.binlog.log_comparison import LogPurged, LogReplaced
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.failover import check_same_log, continue_on, joined
from headrace.sources.mysql.preflight.required import ServerIdentity, check_database, check_no_prepared, check_tables
from headrace.sources.mysql.schema.information_schema import capture_catalog, capture_schemas, describe_around, visible_position
from headrace.sources.mysql.schema.schema_history import SchemaHistory
from headrace.sources.mysql.server.connection import READ_AGAIN, MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.log_watermark import check_reached, log_end
from headrace.sources.mysql.start_position import complete_gtid, identify_start, read_server_gtids, resolve_start
from headrace.stage_report import enter_stage
from headrace.transforms.transform_plan import find_name_conflicts

log = logging.getLogger("headrace")


def committed_position(directory: StateDirectory, state: PipeState) -> BinlogPosition:
    """Return the committed position in the current log."""
    start = BinlogPosition.from_json(state.start)
    committed = committed_offset(directory.checkpoint)
    return max(start, BinlogPosition.from_json(committed)) if committed is not None else start


def written_position(directory: StateDirectory, state: PipeState) -> BinlogPosition:
    """Return the position up to which rows may have been written: a planned batch may have been written in part."""
    committed, planned = committed_position(directory, state), _planned(directory)
    return max(committed, planned) if planned is not None and planned.epoch == state.epoch else committed


def _planned(directory: StateDirectory) -> BinlogPosition | None:
    """The end of the last planned batch, committed or not."""
    planned = planned_offset(directory.checkpoint)
    return None if planned is None else BinlogPosition.from_json(planned)


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


@dataclass(frozen=True, slots=True)
class StartedPipe:
    state: PipeState
    history: SchemaHistory
    target: BinlogPosition
    """The end of the log at startup; `--once` stops there."""
    is_new: bool
    logs_cascades: bool
    """Whether the server logs the rows that a foreign key changes."""


@dataclass(frozen=True, slots=True)
class PipeStartup:
    connection: Connection[Any]
    address: MySQLAddress
    directory: StateDirectory
    settings: PipeSettings
    sink_name: str
    targets: SinkTables
    view: ProgressView

    def open(self, server: ServerIdentity, record: SinkRecord) -> StartedPipe:
        """Load or create the state and the schema history. `record` is the sink's record of the state."""
        self.targets.applies_cascades = not server.logs_cascades and self.settings.cascades is CascadeMode.APPLY
        state = self.directory.load()
        new, everything = state is None, None
        if state is None:
            state = self._new_state(server)
            self.directory.begin(state)
        else:
            self._check(state)
            is_old = is_older_than_sink(self.directory, state, record)
            everything = self._resume_log(state, server)
            self._request_resyncs(state, is_old=is_old)
        known = Dialect.of(server.version, folds_case=server.folds_case, in_utc=server.in_utc)
        # The stream checks and applies them (see `cascade_runner`).
        dialect = replace(known, applies_cascades=True)
        history = SchemaHistory(functools.partial(state.is_selected, self.settings.selection), dialect, self.directory.history)
        if new:
            self._begin(state, history, server)
        else:
            if everything is not None:
                history.begin(everything, BinlogPosition.from_json(state.start))
            self._resume_tables(state, history)
        if new and not state.tables:
            check_database(self.connection, self.address, self.settings.selection)
        check_unmatched(self.settings.selection, {*state.tables, *state.awaiting_resync, *state.ignored}, str(self.address), is_new=new)
        for pattern in self.settings.projection.unmatched(table.schema for table in state.tables.values()):
            log.warning("no column of the chosen tables matches %s", pattern)
        warn_of_unmatched(settings_in(state, str(self.settings.state)).sink, state.tables)
        self._check_transforms(state, is_new=new)
        enter_stage(f"checking {len(state.tables)} tables of {self.address}")
        check_tables(self.connection, self.address, state.tables)
        return StartedPipe(state, history, log_end(self.connection, self.address, state.epoch), new, server.logs_cascades)

    def _resume_log(self, state: PipeState, server: ServerIdentity) -> SchemaCatalog | None:
        """Resume in the server's log, by GTID if it is another log, or start in its new log if a resync request asks for that."""
        if any(request.new_log for request in pending_requests(self.directory)):
            return self._begin_new_log(state, server)
        has_snapshot_rows = any(snapshot.done for snapshot in SnapshotLog(self.directory).tables.values())
        position, planned = committed_position(self.directory, state), _planned(self.directory)
        first_error: DefiniteError | None = None
        if state.identity == server.identity:
            try:
                check_same_log(self.connection, self.address, position)
                if planned is not None and planned.epoch == state.epoch and planned.identity is not None:
                    check_same_log(self.connection, self.address, planned)
                return None
            except DefiniteError as error:
                first_error = error
        try:
            if has_snapshot_rows and not state.uncheckpointed_gtids:
                raise DefiniteError(
                    "this is another source server, and the snapshot of the former one was not complete",
                    place=str(self.address),
                    hint=f"go back to the former server, or {READ_AGAIN}",
                )
            self._resume_by_gtid(state, server, position, planned, first_error)
        except DefiniteError as error:
            if first_error is None or (isinstance(error, LogReplaced) and isinstance(first_error, LogPurged)):
                raise
            # GTIDs do not help, so the first error is the cause.
            raise first_error from error
        return None

    def _resume_by_gtid(
        self,
        state: PipeState,
        server: ServerIdentity,
        position: BinlogPosition,
        planned: BinlogPosition | None,
        first_error: DefiniteError | None,
    ) -> None:
        touched: list[BinlogPosition | str] = [state.uncheckpointed_gtids]
        if planned is not None and planned != position:
            touched.append(planned)
        # A purged file is no evidence of another log; any other error is.
        evidence = None if isinstance(first_error, LogPurged) else first_error
        start = continue_on(self.connection, self.address, position, touched, unless_found=evidence)
        state.source, state.identity = str(self.address), server.identity
        state.start, state.epoch = start.to_json(), start.epoch
        open_batch = "" if planned is None else planned.gtid
        state.uncheckpointed_gtids = joined(state.uncheckpointed_gtids, open_batch, mariadb=server.mariadb)
        self.directory.save(state)
        log.warning("going on by GTID on %s with %s, epoch %d, from %s", self.address, position.gtid, start.epoch, start)
        self.view.failover(f"continues by GTID on {self.address}, epoch {start.epoch}, from {start}")

    def _begin_new_log(self, state: PipeState, server: ServerIdentity) -> SchemaCatalog:
        """Start the state at the end of the server's current log, under a new epoch, and return the catalog there.

        Positions of the former log no longer count, and every table must be read again. The resync request stays until all tables are
        saved, so a crash before that only leads to another epoch.
        """
        check_no_prepared(self.connection, self.address)
        wanted = functools.partial(state.is_selected, self.settings.selection)
        found, start = capture_catalog(self.connection, self.address, wanted, state.epoch + 1)
        start = identify_start(self.address, complete_gtid(self.connection, self.address, start), mariadb=server.mariadb)
        state.source, state.identity, state.epoch, state.start = str(self.address), server.identity, start.epoch, start.to_json()
        state.uncheckpointed_gtids, state.schemas_captured_at, state.dropped_tables = "", None, {}
        log.warning("reading every table again from %s, epoch %d, from %s", self.address, start.epoch, start)
        self.view.failover(f"reads every table again from {self.address}, epoch {start.epoch}, from {start}")
        return found

    def _check_transforms(self, state: PipeState, *, is_new: bool) -> None:
        """Halt at names that are probably misspelt in a new pipe. Later they are only logged: a statement may have dropped the column."""
        for misfit in find_name_conflicts(self.settings.transforms, [table.schema for table in state.tables.values()]):
            if is_new and misfit.is_sure:
                raise misfit.error()
            log.warning("%s (%s): %s", misfit.message, misfit.place, misfit.hint)

    def _new_state(self, server: ServerIdentity) -> PipeState:
        selection = self.settings.selection.to_json()
        return PipeState(str(self.address), server.identity, self.sink_name, selection, {}, 0, self.settings.stored_options)

    def _begin(self, state: PipeState, history: SchemaHistory, server: ServerIdentity) -> None:
        everything, start = capture_catalog(self.connection, self.address, self.settings.selection, epoch=0)
        if self.settings.start_at:
            # Tables are assumed to have their current schemas since the start; a statement in between that changes one halts the pipe.
            state.schemas_captured_at = start.to_json()
            start = resolve_start(self.connection, self.address, self.settings.start_at)
        else:
            check_no_prepared(self.connection, self.address)
            start = complete_gtid(self.connection, self.address, start)
        start = identify_start(self.address, start, mariadb=server.mariadb)
        history.begin(everything, start)
        state.start = start.to_json()
        chosen = {name: schema for name, schema in everything.tables.items() if self.settings.selection(name)}
        state.tables.update({name: TableState(schema, start.to_json()) for name, schema in chosen.items()})

    def _resume_tables(self, state: PipeState, history: SchemaHistory) -> None:
        """Add tables that were created while the pipe was stopped, and remove those that are no longer selected."""
        rewind_history(history, self.directory, state)
        history.compact(committed_position(self.directory, state))
        chosen_before = Selection.from_json(state.selection)
        selection = state.current_selection(self.settings.selection)
        state.selection = selection.to_json()
        for name in [name for name in state.tables if not selection(name)]:
            log.info("%s is no longer chosen; its copy stays as it is", name)
            del state.tables[name]
        written = written_position(self.directory, state)
        schemas, seen = retrying(lambda: capture_tables(self.connection, self.address, selection, state.epoch, written))
        snapshots = SnapshotLog(self.directory)
        for name in state.tables.keys() - {schema.name for schema in schemas}:
            if snapshots.tables.get(str(name)) is not None and snapshots.tables[str(name)].pending:
                # The table was dropped during its snapshot; its DROP is still to come in the log.
                if self.targets.append_only:
                    # It may have been renamed instead; its rows must then be read under the new name.
                    request_resync(self.directory, (glob.escape(str(name)),))
                snapshots.plan(name, state.tables[name].snapshot, [])
        # Waiting tables have a resync request already.
        came = [schema for schema in schemas if schema.name not in state.tables.keys() | state.ignored | state.awaiting_resync]
        if self.targets.append_only:
            # A selected table that did not exist was created by a statement; the log holds it and all changes since.
            came = [schema for schema in came if not chosen_before(schema.name)]
        for schema in came:
            SinkSchemaResolver(self.settings).check_new(schema)
        history.learn(came, seen)
        for schema in came:
            # The snapshot includes every change up to this position.
            number = snapshots.next_number(schema.name)
            state.tables[schema.name] = TableState(schema, seen.to_json(), seen.to_json(), number)

    def _check(self, state: PipeState) -> None:
        place = str(self.settings.state)
        if not is_same_sink(state.sink, self.sink_name):
            raise DefiniteError(
                f"the state belongs to another sink, {state.sink}", place=place, hint="use the state directory of this sink, or a new one"
            )
        # Hosts of the cluster may have changed.
        state.sink = self.sink_name
        requested = [Selection(request.tables) for request in pending_requests(self.directory)]

        def read_again(name: TableName) -> bool:
            return any(one(name) for one in requested)

        store_settings(state, self.settings.choices, place, read_again)
        store_column_settings(self.targets, state, self.settings, read_again)

    def _request_resyncs(self, state: PipeState, *, is_old: bool) -> None:
        """Request a resync of waiting tables and of tables whose changes would count twice or be lost.

        Tables that count rows are read again if the state is an old copy, or if their rows come from a former server's log: that log
        repeats changes under other versions. So are tables that were altered by a statement that the former server logged and Spark did not
        commit.
        """
        names = set(state.awaiting_resync)
        former = [table for name, table in state.tables.items() if _read_in_epoch(table) < state.epoch and name not in names]
        names.update(table.schema.name for table in former if _is_ahead(table, committed_offset(self.directory.checkpoint)))
        counted = list(state.tables.values()) if is_old else former
        if counted:
            showing = SinkSchemaResolver(self.settings)
            needs = retrying(lambda: self.targets.requirements([showing(table.schema, table.hidden) for table in counted]))
            names.update(name for name, need in needs.items() if need.exact and not self.targets.append_only)
        if names:
            request_resync(self.directory, tuple(glob.escape(str(name)) for name in sorted(names)))


def capture_tables(
    connection: Connection[Any], address: MySQLAddress, wanted: Callable[[TableName], bool], epoch: int, written: BinlogPosition
) -> tuple[list[TableSchema], BinlogPosition]:
    """Return the schemas of the wanted tables with a position; rows that are read from now on include every change before it.

    `written`: the position up to which the stream may have written. The returned position is not before it.
    """
    schemas, position = describe_around(
        lambda: capture_schemas(connection, address, wanted), lambda: visible_position(connection, address, epoch), address
    )
    check_reached(position, written, address)
    return schemas, position.with_version_after(written)


def is_older_than_sink(directory: StateDirectory, state: PipeState, record: SinkRecord) -> bool:
    """Whether the sink holds changes after the last batch of the state; log a warning if so."""
    is_old = record.is_ahead(max(BinlogPosition.from_json(state.start), written_position(directory, state)).version)
    if is_old:
        warn_of_old_state(record, directory, committed_position(directory, state))
    return is_old


def _is_ahead(table: TableState, committed: Offset | None) -> bool:
    """Whether a statement after the last commit altered the table."""
    if table.rows_from is None or table.rows_from != table.captured_at:
        return False
    return committed is None or BinlogPosition.from_json(table.captured_at) > BinlogPosition.from_json(committed)


def _read_in_epoch(table: TableState) -> int:
    """The epoch of the log that the table's rows come from."""
    return BinlogPosition.from_json(table.rows_from or table.captured_at).epoch
