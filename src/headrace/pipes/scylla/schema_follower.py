"""Applies schema changes of the source's tables to the sink: added and dropped columns and fields, dropped tables.

A batch is read with one schema per table, the server's when the batch starts. That is late enough for every row in it: rows are read after
the confidence time, and a row has no column that did not exist when it was written. The sink is altered before the batch is read; earlier
rows have no values in new columns, so they merge as before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headrace.cql.schema_reader import schema_version
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.scylla.pipe_notes import ScyllaPipeNotes
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.retry import pause, retrying
from headrace.sources.scylla.generations import LogStart
from headrace.sources.scylla.log_tables import LoggedTable, check_tables_readable, missing_table_error, no_log, select_tables
from headrace.sources.scylla.snapshot.options import ScyllaOptions

log = logging.getLogger("headrace")

_AGREE_TRIES: Final = 10
_AGREE_S: Final = 1.0


@dataclass(slots=True)
class ScyllaSchemaFollower:
    """Follows the schemas of one pipe's tables."""

    context: PipeContext[LogTarget]
    session: CqlSession
    choices: ScyllaOptions
    notes: ScyllaPipeNotes
    came: set[TableName] = field(default_factory=set)
    """Selected tables that have a log and are not replicated yet."""
    outdated: bool = False
    """Whether the planner's log TTLs are outdated."""
    _version: UUID | None = None

    def follow(self, *, again: bool = False) -> bool:
        """Apply changes since the last call to the sink; return whether a table changed. `again`: check even if the version is the same."""
        version = retrying(lambda: schema_version(self.session))
        if version == self._version and not again:
            return False
        changed = self._follow()
        self._version = version
        return changed

    def _follow(self) -> bool:
        now = retrying(self._read_tables)
        changed = False
        for name, note in self.notes.tables.items():
            found = now[name]
            if found.id != note.id:
                hint = "what is in the sink is of the former table: start over with a new --state and empty targets, or --exclude it"
                raise DefiniteError(f"the table {name} was dropped and recreated", place=f"table {name}", hint=hint)
            if found.ttl != note.start.ttl:
                note.start = LogStart(note.start.place, found.ttl, note.start.promised)
                self.notes.save()
                self.outdated = True
            if found.table != note.table:
                self._alter(note.table, found.table)
                note.table = found.table
                self.notes.save()
                changed = True
        return changed

    def _read_tables(self) -> Mapping[TableName, LoggedTable]:
        chosen = select_tables(self.session, self.context.settings.selection)
        self.came = set(chosen.logged) - self.notes.tables.keys()
        for name in self.notes.tables:
            if name in chosen.unlogged:
                raise no_log(name, "its log was there when the pipe began")
            if name not in chosen.logged and self.context.settings.selection(name):
                raise missing_table_error(name, str(self.session.address))
        for _ in range(_AGREE_TRIES):
            try:
                return check_tables_readable(self.session, self.notes.tables, self.choices)
            except DefiniteError:
                # A base table and its log may be altered one after the other.
                pause(_AGREE_S)
        return check_tables_readable(self.session, self.notes.tables, self.choices)

    def _alter(self, old: CqlTable, new: CqlTable) -> None:
        changes = difference(old, new)
        self.context.view.note(f"table {new.name}: {changes}")
        retrying(lambda: self.context.targets.sink.alter(old, new))
        self.context.view.schema_change(str(new.name), changes, "applied")


def difference(old: CqlTable, new: CqlTable) -> str:
    """Describe the difference between two versions of a table."""
    before, after = ({column.name: column.type for column in table.columns} for table in (old, new))
    parts = [f"column {name} added ({kind})" for name, kind in after.items() if name not in before]
    parts += [f"column {name} dropped" for name in before if name not in after]
    for name, kind in after.items():
        if name in before and before[name] != kind:
            is_inside = str(before[name]) == str(kind)
            parts.append(f"the user type in column {name} was altered" if is_inside else f"column {name} is {kind} now")
    return ", ".join(parts) or "columns have another order"
