"""What the driver does about the statements between changes of rows.

Each statement is a barrier: everything before it is in the sink when it is looked at, nothing after it is. The history says what it did to
the source; here it is done to the sink, or the pipe halts with the statement. All of it may happen again after a crash, to the same effect:
rows are taken away by version, and the state is saved before the batch counts as done.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import DefiniteError
from headrace.model.evolution import (
    AddColumn,
    ChangePrimaryKey,
    DropColumn,
    ModifyColumn,
    RenameColumn,
    RenameTable,
    tables_of,
)
from headrace.model.schema import TableName, TableSchema
from headrace.pipes.progress import ProgressView
from headrace.pipes.settings import OnSchemaChange
from headrace.pipes.state import PipeState, SnapshotLog, StateDirectory, TableState
from headrace.pipes.targets import Targets
from headrace.retry import retrying
from headrace.sources.mysql.events import Query
from headrace.sources.mysql.history import Followed, Outcome, SchemaHistory
from headrace.sources.mysql.keeping import columns_of, keeps_values
from headrace.sources.mysql.position import BinlogPosition

log = logging.getLogger("headrace")

_DEFINING = (AddColumn, DropColumn, RenameColumn, ModifyColumn, ChangePrimaryKey, RenameTable)

Shown = Callable[[TableSchema], TableSchema]
"""A source's table as the sink gets to see it."""


@dataclass(frozen=True, slots=True)
class Follower:
    """Follows the statements of one pipe's log."""

    history: SchemaHistory
    wanted: Callable[[TableName], bool]
    state: PipeState
    directory: StateDirectory
    snapshots: SnapshotLog
    targets: Targets
    shown: Shown
    policy: OnSchemaChange
    reread: Callable[[tuple[str, ...]], None] | None
    """Has tables (globs) read again, where there is a server to read them from."""
    check: Callable[[], None] | None
    """Raises if the server does not log all that happens to the tables."""
    view: ProgressView

    def follow(self, query: Query, position: BinlogPosition, left_out: TableName | None = None) -> None:
        """Do to the sink what the statement did to the source; raises where that is not possible.

        `left_out`: the table that the statement makes, if rows of it stood in one group with the statement and were passed over.
        """
        followed = self.history.follow(query, position)
        if left_out is not None and self.wanted(left_out):
            made = frozenset({left_out})
            followed = replace(followed, outcome=Outcome.RESYNC, arrived=followed.arrived | made, emptied=followed.emptied - made)
        self._do(followed)
        if self.check is not None and "references" in query.statement.lower():
            # A foreign key may change rows of its table behind the log's back.
            self.check()

    def _do(self, followed: Followed) -> None:
        query, position = followed.query, followed.position
        if followed.outcome is Outcome.NOTHING:
            log.debug("passing over a statement at %s: %s", position, query.statement)
            return
        if followed.mentioned and not any(self._is_news(name, position) for name in followed.mentioned):
            log.info("passing over a statement before the tables it names were read: %s", _shortened(query.statement))
            return
        followed.check()
        self._check_start(followed)
        self._empty(followed)
        self._remove(followed)
        self._await_rows(followed)
        self._redefine(followed)
        self.directory.save(self.state)

    def _empty(self, followed: Followed) -> None:
        for name in sorted(followed.emptied):
            table = self._known(name, followed.position)
            if table is not None:
                self._sweep(table, followed.position)
                self.view.note(f"{name} was emptied: {_shortened(followed.query.statement)}")

    def _remove(self, followed: Followed) -> None:
        for name in sorted(followed.gone):
            table = self._known(name, followed.position)
            if table is not None:
                self._sweep(table, followed.position)
                del self.state.tables[name]
                self.view.note(f"{name} is no more; its copy is empty and stays: {_shortened(followed.query.statement)}")
            self.state.waiting.discard(name)

    def _await_rows(self, followed: Followed) -> None:
        """Tables whose rows are not in the log: their changes wait until a new snapshot has them."""
        strange = followed.arrived | followed.disturbed | followed.recapture | set(followed.moved or ())
        self._resync((name for name in strange if self._is_news(name, followed.position)), followed)

    def _redefine(self, followed: Followed) -> None:
        """Take up new tables, and see to those whose definition changed."""
        tables = self.history.as_of(followed.position).tables
        for name in sorted({name for change in followed.changes for name in tables_of(change)} - self.state.waiting):
            schema = tables.get(name)
            if schema is None or not self.wanted(name) or not self._is_news(name, followed.position):
                continue
            table = self.state.tables.get(name)
            if table is None:
                self._add(schema, followed.position)
            elif self._keeps_rows(table.schema, schema, followed) and _materially_equal(self.shown(table.schema), self.shown(schema)):
                table.schema = schema
            elif self.policy is OnSchemaChange.RESYNC:
                self._resync([name], followed)
            else:
                raise self._halt(name, followed)

    def _keeps_rows(self, before: TableSchema, after: TableSchema, followed: Followed) -> bool:
        """Whether all that the sink shows of the table's rows is as it was before."""
        visible = {column.name for schema in (before, after) for column in self.shown(schema).columns}
        changes = [change for change in followed.changes if after.name in tables_of(change)]
        return all(keeps_values(change) or visible.isdisjoint(columns_of(change)) for change in changes)

    def _check_start(self, followed: Followed) -> None:
        """Reading began before the tables were looked at: what changed them in between was not there when their rows were written."""
        looked = self.state.looked_at
        if looked is None or followed.position > BinlogPosition.from_json(looked):
            return
        changed = [change for change in followed.changes if isinstance(change, _DEFINING) and self.wanted(tables_of(change)[-1])]
        if changed:
            raise DefiniteError(
                f"reading began before a table was changed, and it is known only as it is now: {followed.query.statement}",
                place=str(followed.position),
                hint=f"start at or after {followed.position}, with a new state directory, or with a snapshot",
            )

    def _halt(self, name: TableName, followed: Followed) -> DefiniteError:
        hint = "leave the table out with --exclude, or replicate from the server"
        if self.reread is not None:
            hint = (
                f"to read the table again as it is now: headrace resync {name} --state {self.directory.path}, then start again"
                " (or run with --on-schema-change resync to have that done at every such change)"
            )
        return DefiniteError(
            f"table {name} was changed by a statement that the sink does not follow yet: {followed.query.statement}",
            place=str(followed.position),
            hint=hint,
        )

    def _add(self, schema: TableSchema, position: BinlogPosition) -> None:
        """A new table: it was empty when it was made, so its changes in the log are all of it."""
        shown = self.shown(schema)
        retrying(lambda: self.targets.prepare([shown]))
        # A copy of an earlier table of this name may be there.
        retrying(lambda: self.targets.sweep(shown, position.version))
        self.state.tables[schema.name] = TableState(schema, position.to_json())
        self.snapshots.plan(schema.name, 0, [])
        self.view.note(f"new table {schema.name}")

    def _resync(self, names: Iterable[TableName], followed: Followed) -> None:
        chosen = sorted(set(names) - self.state.waiting)
        if not chosen:
            return
        if self.reread is None:
            raise DefiniteError(
                f"the rows of {chosen[0]} after this statement are in no log file: {followed.query.statement}",
                place=str(followed.position),
                hint="leave the table out with --exclude, or replicate from the server",
            )
        # First the request, then the note that the table waits for it: the other way round, a crash in between would let it wait for ever.
        self.reread(tuple(glob.escape(str(name)) for name in chosen))
        self.state.waiting.update(chosen)
        self.directory.save(self.state)
        self.view.note(f"{', '.join(map(str, chosen))} will be read again: {_shortened(followed.query.statement)}")

    def _sweep(self, table: TableState, position: BinlogPosition) -> None:
        schema = self.shown(table.schema)
        retrying(lambda: self.targets.sweep(schema, position.version))
        snapshot = self.snapshots.tables.get(str(schema.name))
        if snapshot is not None and snapshot.pending:
            # What its chunks have read before this and not yet written must go too.
            self.snapshots.sweep_from(schema.name, position.to_json())

    def _known(self, name: TableName, position: BinlogPosition) -> TableState | None:
        return self.state.tables.get(name) if self._is_news(name, position) else None

    def _is_news(self, name: TableName, position: BinlogPosition) -> bool:
        """Whether a statement came after the table was looked at."""
        table = self.state.tables.get(name)
        return table is None or position > BinlogPosition.from_json(table.captured_at)


def _materially_equal(left: TableSchema, right: TableSchema) -> bool:
    """Whether both are stored alike in the sink."""
    return left.row_key == right.row_key and _stored(left) == _stored(right)


def _stored(schema: TableSchema) -> dict[str, Any]:
    return {column.name: (column.kind, column.nullable, column.precision, column.scale) for column in schema.columns}


def _shortened(statement: str) -> str:
    text = " ".join(statement.split())
    return text if len(text) <= 120 else f"{text[:117]}..."
