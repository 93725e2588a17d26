"""Starts a run: loads or creates the state and checks it before anything is created or written.

Invariant: the schema of a table in the state is the schema at the position that is stored with it.
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
from headrace.model.cascade_mode import CascadeMode
from headrace.model.schema import TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.column_settings import store_column_settings
from headrace.pipes.lifecycle.sink_schema import SinkSchemaResolver
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.lifecycle.unmatched_tables import check_unmatched
from headrace.pipes.mysql.failover import begin_new_log, committed_position, resume_on_server, rewind_history, written_position
from headrace.pipes.state.pipe_state import PipeState, SnapshotLog, StateDirectory, TableState
from headrace.pipes.state.resync_requests import pending_requests, request_resync
from headrace.pipes.state.sink_record import SinkRecord, warn_of_old_state
from headrace.pipes.state.stored_settings import settings_in, store_settings, warn_of_unmatched
from headrace.retry import retrying
from headrace.runtime.checkpoint import committed_offset
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.registry import is_same_sink
from headrace.sources.base import Offset
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.preflight.prepared_xa import check_no_prepared
from headrace.sources.mysql.preflight.required import ServerIdentity, check_database, check_tables
from headrace.sources.mysql.schema.catalog_capture import capture_catalog, describe_around, visible_position
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.schema.schema_history import SchemaHistory
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.mysql.start_position import complete_gtid, identify_start, resolve_start
from headrace.transforms.name_checks import find_name_conflicts

log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class StartedPipe:
    """The result of a startup."""

    state: PipeState
    history: SchemaHistory
    target: BinlogPosition
    """The end of the log at startup; `--once` stops there."""
    is_new: bool
    logs_cascades: bool
    """Whether the server logs the rows that a foreign key changes."""


@dataclass(frozen=True, slots=True)
class PipeStartup:
    """Checks one pipe's state and source on one connection."""

    connection: Connection[Any]
    address: MySQLAddress
    directory: StateDirectory
    settings: PipeSettings
    sink_name: str
    targets: SinkTables

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
        check_tables(self.connection, self.address, state.tables)
        return StartedPipe(state, history, log_end(self.connection, self.address, state.epoch), new, server.logs_cascades)

    def _resume_log(self, state: PipeState, server: ServerIdentity) -> SchemaCatalog | None:
        """Resume in the server's log, or start in its new log if a resync request asks for that."""
        if any(request.new_log for request in pending_requests(self.directory)):
            wanted = functools.partial(state.is_selected, self.settings.selection)
            return begin_new_log(self.connection, self.address, state, server, wanted)
        rows_copied = any(snapshot.done for snapshot in SnapshotLog(self.directory).tables.values())
        resume_on_server(self.connection, self.address, self.directory, state, server, rows_copied=rows_copied)
        return None

    def _check_transforms(self, state: PipeState, *, is_new: bool) -> None:
        """Halt at names that are probably misspelt in a new pipe. Later they are only logged: a statement may have dropped the column."""
        for misfit in find_name_conflicts(self.settings.transforms, [table.schema for table in state.tables.values()]):
            if is_new and misfit.is_sure:
                raise misfit.error()
            log.warning("%s (%s): %s", misfit.message, misfit.place, misfit.hint)

    def _new_state(self, server: ServerIdentity) -> PipeState:
        return PipeState(
            str(self.address),
            server.identity,
            self.sink_name,
            self.settings.selection.to_json(),
            {},
            0,
            self.settings.stored_options,
        )

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
        schemas, seen = capture_tables(self.connection, self.address, selection, state.epoch)
        seen = seen.with_version_after(written_position(self.directory, state))
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
    connection: Connection[Any], address: MySQLAddress, wanted: Callable[[TableName], bool], epoch: int
) -> tuple[list[TableSchema], BinlogPosition]:
    """Return the schemas of the wanted tables with a position; rows that are read from now on include every change before it."""
    return describe_around(
        lambda: capture_schemas(connection, address, wanted),
        lambda: visible_position(connection, address, epoch),
        address,
    )


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
