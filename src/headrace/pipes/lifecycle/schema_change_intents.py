"""Intents: the changes of target tables that one DDL statement leads to, saved before they are executed.

The order makes every crash harmless. First the intent is saved: all steps, and the resulting state. Then the steps are executed; each is
recorded when done and may be repeated. Then the ledger is written; a repeated row is ignored. Last, the resulting state replaces the intent
in one write. A run that finds an intent finishes it first; it needs neither the statement nor the former tables. Changes of the tables
before the statement are skipped from then on: they are in the sink, altered with the other rows.
"""

from __future__ import annotations

import functools
import glob
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.state.pipe_state import SnapshotLog, TableState
from headrace.retry import retrying
from headrace.sinks.schema_changes import LedgerEntry, Step
from headrace.sources.mysql.server.position import BinlogPosition

log = logging.getLogger("headrace")


@dataclass(slots=True)
class Intent:
    """Everything that one statement leads to."""

    position: BinlogPosition
    steps: list[Step] = field(default_factory=list)
    done: int = 0
    """The number of executed steps."""
    tables: dict[TableName, TableState] = field(default_factory=dict)
    """Tables after the statement."""
    dropped_tables: set[TableName] = field(default_factory=set)
    """Names that no longer exist after the statement."""
    ignored: set[TableName] = field(default_factory=set)
    prepared: set[TableName] = field(default_factory=set)
    """Those of `tables` whose targets are created or completed after the steps."""
    stale_tables: list[TableSchema] = field(default_factory=list)
    """Tables (sink schemas) whose rows from before the statement are deleted."""
    resyncs: set[TableName] = field(default_factory=set)
    """Tables that are read again; their changes are skipped until then."""
    concurrent_resyncs: set[TableName] = field(default_factory=set)
    """Tables that are read again alongside their changes."""
    entries: list[LedgerEntry] = field(default_factory=list)

    @property
    def changes_state_only(self) -> bool:
        return not (self.steps or self.prepared or self.stale_tables or self.resyncs or self.concurrent_resyncs or self.entries)

    @property
    def touched(self) -> frozenset[TableName]:
        """All tables that the statement changes, by their old and new names."""
        stale = {schema.name for schema in self.stale_tables}
        return frozenset({*self.tables, *self.dropped_tables, *self.prepared, *self.resyncs, *self.concurrent_resyncs, *stale})

    def to_json(self) -> dict[str, Any]:
        return {
            "position": self.position.to_json(),
            "steps": [step.to_json() for step in self.steps],
            "done": self.done,
            "tables": [table.to_json() for table in self.tables.values()],
            "gone": _names(self.dropped_tables),
            "ignored": _names(self.ignored),
            "prepared": _names(self.prepared),
            "swept": [schema.to_json() for schema in self.stale_tables],
            "reread": _names(self.resyncs),
            "beside": _names(self.concurrent_resyncs),
            "entries": [entry.to_json() for entry in self.entries],
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Intent:
        tables = [TableState.from_json(table) for table in raw["tables"]]
        return cls(
            BinlogPosition.from_json(raw["position"]),
            [Step.from_json(step) for step in raw["steps"]],
            raw["done"],
            {table.schema.name: table for table in tables},
            _read_names(raw["gone"]),
            _read_names(raw["ignored"]),
            _read_names(raw["prepared"]),
            [TableSchema.from_json(schema) for schema in raw["swept"]],
            _read_names(raw["reread"]),
            _read_names(raw.get("beside", [])),
            [LedgerEntry.from_json(entry) for entry in raw["entries"]],
        )


@dataclass(frozen=True, slots=True)
class IntentExecutor:
    context: PipeContext[SinkTables]
    snapshots: SnapshotLog
    request_resync: Callable[[tuple[str, ...]], None] | None
    """Requests a resync of tables (globs); None if there is no server to read them from."""

    def sink_schema_of(self, table: TableState) -> TableSchema:
        return self.context.schemas(table.schema, table.hidden)

    def is_after_capture(self, name: TableName, position: BinlogPosition) -> bool:
        """Whether the statement came after the table's schema was captured."""
        table = self.context.state.tables.get(name)
        return table is None or position > BinlogPosition.from_json(table.captured_at)

    def execute(self, intent: Intent) -> None:
        """Save and execute the intent. Raise before any step if another pipe owns a target."""
        retrying(lambda: self.context.targets.claim(intent.tables))
        self.context.state.intent = intent.to_json()
        if not intent.changes_state_only:
            self.context.directory.save(self.context.state)
        self.finish()

    def finish(self) -> None:
        """Execute the remaining steps of the intent in the state, if there is one."""
        if self.context.state.intent is None:
            return
        intent = Intent.from_json(self.context.state.intent)
        while intent.done < len(intent.steps):
            self._do(intent.steps[intent.done], intent)
            intent.done += 1
            self.context.state.intent = intent.to_json()
            self.context.directory.save(self.context.state)
        self._prepare(intent)
        self._delete_stale(intent)
        self.record_done(intent)

    def _do(self, step: Step, intent: Intent) -> None:
        try:
            # Targets of tables that await a resync may be renamed, too.
            changed = intent.touched | self.context.state.awaiting_resync
            retrying(functools.partial(self.context.targets.run_step, step, changed))
        except DefiniteError as error:
            names = " ".join(str(name) for name in sorted(intent.tables))
            if not names or self.request_resync is None:
                raise
            again = f"headrace resync {names} --state {self.context.directory.path}"
            hint = f"{error.hint}; or have read again what it is about: {again}, then start again"
            raise DefiniteError(error.message, place=error.place, hint=hint) from error

    def record_done(self, intent: Intent) -> None:
        """Record the executed intent, first in the ledger, then in the state."""
        for name, table in intent.tables.items():
            if not self.snapshots.is_planned(name, table.snapshot):
                self.snapshots.plan(name, table.snapshot, [])
        again = intent.resyncs | intent.concurrent_resyncs
        if again and self.request_resync is not None:
            # Write the request before the state: a crash in between must not leave a table that waits for no request.
            self.request_resync(tuple(glob.escape(str(name)) for name in sorted(again)))
        retrying(lambda: self.context.targets.sink.schema_applier().record(intent.entries))
        self._apply(intent)
        self.context.directory.save(self.context.state)

    def _prepare(self, intent: Intent) -> None:
        schemas = [self.sink_schema_of(table) for name, table in intent.tables.items() if name in intent.prepared]
        if schemas:
            retrying(lambda: self.context.targets.prepare(schemas))

    def _delete_stale(self, intent: Intent) -> None:
        for schema in intent.stale_tables:
            retrying(functools.partial(self.context.targets.delete_stale, schema, intent.position.version))
            snapshot = self.snapshots.tables.get(str(schema.name))
            if snapshot is not None and snapshot.pending and schema.name not in intent.dropped_tables:
                # Rows that its chunks have read and not yet written must be deleted, too.
                self.snapshots.set_stale_before(schema.name, intent.position.to_json())

    def _apply(self, intent: Intent) -> None:
        state, here = self.context.state, intent.position.to_json()
        for name in intent.dropped_tables:
            state.tables.pop(name, None)
            state.awaiting_resync.discard(name)
            state.ignored.discard(name)
        # A batch ends with its statement, so a replay never reaches names that earlier statements dropped.
        state.dropped_tables = {name: place for name, place in state.dropped_tables.items() if place == here}
        state.dropped_tables.update(dict.fromkeys(intent.dropped_tables, here))
        for name, table in intent.tables.items():
            state.tables[name] = table
            state.ignored.discard(name)
        state.ignored |= intent.ignored
        state.awaiting_resync |= intent.resyncs
        state.intent = None


def resume(executor: IntentExecutor, requested: Callable[[TableName], bool]) -> None:
    """Finish an earlier run's intent. If the sink refuses a step, skip the steps if all tables are read again anyway."""
    begun = executor.context.state.intent
    if begun is None:
        return
    try:
        executor.finish()
    except DefiniteError as error:
        intent = Intent.from_json(begun)
        if not intent.tables or not all(map(requested, intent.tables)):
            raise
        log.warning("%s; left out, because the tables are read again", error.message)
        # Their targets do not fit until then.
        intent.resyncs |= intent.tables.keys()
        executor.record_done(intent)


def _read_names(raw: list[list[str]]) -> set[TableName]:
    return {TableName(*name) for name in raw}


def _names(names: set[TableName]) -> list[list[str]]:
    return [[name.database, name.table] for name in sorted(names)]
