"""Applies foreign keys to child tables in the sink: MariaDB, and MySQL before 9.6, do not log the child rows that a key changes.

Tasks log the changes of parents in the sink. After a batch is written, and before it is committed, the sink applies them to the children
(`sinks.base.CascadeStore`). While rows of a table are being read, its parents' changes are kept: a row that was read before a change and
written after it still gets the effect.
"""

from __future__ import annotations

import functools
import glob
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.errors import DefiniteError
from headrace.model.cascades import Cascade, CascadePlan, plan_cascades, source_obstacles
from headrace.model.column_types import DATE_FORMS
from headrace.model.schema import ForeignKey, TableName, TableSchema
from headrace.model.setting_values import CascadeMode, ZeroDates
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.mysql.cascade_texts import may_change_comparison, text_cascades
from headrace.pipes.state.resync_requests import request_resync
from headrace.retry import retrying
from headrace.sinks.base import CascadeStore
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.server.collations import SourceCollations
from headrace.sources.mysql.server.position import BinlogPosition

log = logging.getLogger("headrace")

_NO_CASCADES = CascadePlan({}, ())


@dataclass(slots=True)
class CascadeRunner:
    context: PipeContext[SinkTables]
    is_needed: bool
    """Whether the source leaves out of its log what its foreign keys change."""
    texts: SourceCollations
    incomplete: Callable[[], Iterable[str]]
    """Returns the tables of which rows are still to be read."""
    floors: Callable[[Iterable[TableName]], Mapping[TableName, int]]
    """Returns the versions below which the rows of these tables are stale, because a later snapshot has read them again, or will."""
    plan: CascadePlan = field(default=_NO_CASCADES, init=False)
    _checked: tuple[CascadePlan, list[Cascade]] = field(default=(_NO_CASCADES, []), init=False)
    _warned: frozenset[str] = field(default=frozenset(), init=False)
    _store: CascadeStore | None = field(default=None, init=False)
    _floors: Mapping[TableName, int] = field(default_factory=dict, init=False)
    """The floors that the store has."""
    _has_begun: bool = field(default=False, init=False)
    _is_applied: bool = field(default=False, init=False)
    """Whether the logged changes are applied, and all rows that they concern were in the sink before."""
    _is_stale: bool = field(default=False, init=False)
    """Whether a statement may have changed tables of the plan."""

    def begin(self, schemas: Mapping[TableName, TableSchema], reached: BinlogPosition, *, is_committed: bool) -> CascadePlan:
        """Return the cascades between the tables of the next batch, which have these schemas in the source.

        `is_committed`: whether everything up to `reached` is committed, and nothing after it is written.
        """
        if self.plan and is_committed and self._is_applied:
            self._run(lambda store: store.clear())
            self._is_applied = False
        parents = self.context.targets.cascade_parents
        plan = self.find(schemas, reached)
        floors = self.floors(plan.schemas)
        if plan != self.plan or self._is_stale:
            before, self.plan, self._is_stale = self.plan, plan, False
            if before or plan:
                self._store = self.context.targets.sink.cascade_store(plan, self.texts)
                self._run(lambda store: store.prepare(floors))
            # A table that was no parent may have been read while the stream wrote, so its copy may lack rows.
            turned = {name for name in self.context.targets.cascade_parents - parents if plan.needs_states(name)}
            self._read_again({*before.schemas, *turned})
        elif floors != self._floors:
            self._run(lambda store: store.prepare(floors))
        self._floors, self._has_begun = floors, True
        return plan

    def find(self, schemas: Mapping[TableName, TableSchema], reached: BinlogPosition) -> CascadePlan:
        """Return the cascades that the sink applies; raise `DefiniteError` for one that it cannot apply exactly."""
        parents = {key.parent for schema in schemas.values() for key in schema.foreign_keys if key.cascades}
        self.context.targets.cascade_parents = frozenset(parents)
        mode = self.context.settings.cascades
        if not self.is_needed or not any(key.cascades for schema in schemas.values() for key in schema.foreign_keys):
            return _NO_CASCADES
        if mode is CascadeMode.APPLY:
            self._wait_for_parents(schemas, reached)
        waiting = self.context.state.awaiting_resync
        shown = {name: self.context.sink_schema(schema) for name, schema in schemas.items() if name not in waiting}
        found = [Cascade(name, key) for name, schema in sorted(shown.items()) for key in schema.foreign_keys if key.cascades]
        if mode is CascadeMode.IGNORE:
            self._warn(found)
            return _NO_CASCADES
        if mode is CascadeMode.HALT and found:
            raise _refused(found[0], 'the setting cascades = "halt" forbids it', 'set cascades = "apply"')
        plan = plan_cascades(shown.values())
        needs = self.context.targets.requirements(plan.schemas.values()) if plan else {}
        plan = plan.with_target_keys({name: need.key_columns for name, need in needs.items()})
        if (plan, found) != self._checked:
            self._check(found, plan, schemas)
            self._checked = plan, found
        return plan

    def apply(self) -> None:
        """Apply the changes of parents that the batch has written."""
        if self.plan:
            complete = set(map(str, self.plan.schemas)).isdisjoint(self.incomplete())
            self._run(lambda store: store.apply())
            self._is_applied = complete

    def is_settled(self) -> bool:
        """Whether no logged change will be applied again. If one is, later deletions of the rows must be in the sink."""
        store = self._store
        return self._has_begun and (store is None or retrying(store.is_clear, deadline_s=self.context.settings.retry_timeout_s))

    def before_statement(self, query: Query, position: BinlogPosition) -> None:
        """Prepare for any statement, which ends at this position. Have child tables read again if the collations that were read contain
        the statement, and the changes before it do not.
        """
        self.texts.forget()
        if self.texts.read_until < position:
            return
        for cascade in text_cascades(self.plan):
            found = {cascade.child, *self.plan.descendants(cascade.child)}
            stale = sorted(str(name) for name in found if (self._rows_from(name) or position) <= position)
            if stale and may_change_comparison(query.statement, cascade):
                log.warning("tables %s are read again: the collation of foreign key %s may have changed", ", ".join(stale), cascade)
                request_resync(self.context.directory, tuple(map(glob.escape, stale)))

    def before_change(self, tables: frozenset[TableName]) -> None:
        """Prepare for a statement that changes these tables in any way."""
        if not tables.isdisjoint(self.plan.schemas):
            self._run(lambda store: store.drop_copies())
            self._is_stale = True

    def _run(self, step: Callable[[CascadeStore], object]) -> None:
        store = self._store
        assert store is not None  # `_check` has refused other sinks
        retrying(lambda: step(store), deadline_s=self.context.settings.retry_timeout_s)

    def _read_again(self, tables: Iterable[TableName]) -> None:
        """Start the snapshots over that were running under another plan: the changes that were kept for them may be lost."""
        names = set(map(str, tables)).intersection(self.incomplete())
        if names:
            request_resync(self.context.directory, tuple(map(glob.escape, sorted(names))))

    def _check(self, found: Iterable[Cascade], plan: CascadePlan, schemas: Mapping[TableName, TableSchema]) -> None:
        store = self.context.targets.sink.cascade_store(plan, self.texts)
        for cascade in found:
            why = self._obstacle(cascade, schemas)
            if not why:
                why = "the sink only appends" if store is None else retrying(functools.partial(store.find_obstacle, cascade))
            if why:
                raise _refused(cascade, why, f"leave the table out with --exclude {cascade.child}")

    def _obstacle(self, cascade: Cascade, schemas: Mapping[TableName, TableSchema]) -> str:
        for why in source_obstacles(cascade, schemas, self.texts.ignores_trailing_spaces):
            return why
        child = schemas[cascade.child]
        if self.context.settings.zero_dates is not ZeroDates.HALT and any(child.column(n).form in DATE_FORMS for n in cascade.key.columns):
            return "it connects dates, of which zero_dates replaces some"
        transformed = [name for name in (cascade.child, cascade.parent) if not self._is_plain(schemas[name])]
        return f"the rows of {transformed[0]} are transformed" if transformed else ""

    def _is_plain(self, schema: TableSchema) -> bool:
        return self.context.schemas.transform_plan(schema, ()).is_plain

    def _wait_for_parents(self, schemas: Mapping[TableName, TableSchema], reached: BinlogPosition) -> None:
        """Have children read again whose parents' changes are skipped: a parent that waits to be read again, or was read at a later
        position than its child and than the stream has reached.
        """
        state = self.context.state
        waiting = set(state.awaiting_resync)

        def is_incomplete(name: TableName, key: ForeignKey) -> bool:
            return key.cascades and (key.parent in waiting or self._is_skipped(key.parent, name, reached))

        while True:
            more = {
                name
                for name, schema in schemas.items()
                if name not in waiting and any(is_incomplete(name, key) for key in schema.foreign_keys)
            }
            if not more:
                break
            waiting |= more
        if waiting - state.awaiting_resync and not self.context.targets.append_only:
            request_resync(self.context.directory, tuple(glob.escape(str(name)) for name in sorted(waiting)))
            state.awaiting_resync |= waiting
            self.context.directory.save(state)

    def _is_skipped(self, parent: TableName, child: TableName, reached: BinlogPosition) -> bool:
        """Whether the stream skips changes of the parent that the child's rows do not contain."""
        parent_from, child_from = (self._rows_from(name) for name in (parent, child))
        return parent_from is not None and parent_from > reached and (child_from is None or child_from < parent_from)

    def _rows_from(self, name: TableName) -> BinlogPosition | None:
        table = self.context.state.tables.get(name)
        position = None if table is None or table.rows_from is None else BinlogPosition.from_json(table.rows_from)
        return position if position is not None and position.epoch == self.context.state.epoch else None

    def _warn(self, found: Iterable[Cascade]) -> None:
        names = frozenset(map(str, found))
        for name in sorted(names - self._warned):
            log.warning("the changes that foreign key %s makes are not replicated (cascades = ignore)", name)
        self._warned |= names


def _refused(cascade: Cascade, why: str, remedy: str) -> DefiniteError:
    return DefiniteError(
        f"foreign key {cascade} changes rows that the source does not log, and Headrace cannot apply it exactly: {why}",
        place=f"table {cascade.child}",
        hint=f'{remedy}, make the key RESTRICT, or accept different rows with cascades = "ignore"',
    )
