"""Plans what one DDL statement leads to in the sink, from its effect on the source and the user's policy.

Invariant: planning changes nothing. The intent holds all steps, or planning raises a definite error and there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.model.schema_change import (
    CreateTable,
)
from headrace.pipes.lifecycle.schema_change_intents import Intent
from headrace.pipes.mysql.alter_planner import AlterPlanner
from headrace.pipes.mysql.rename_planner import RenamePlanner
from headrace.pipes.mysql.statement_plan import APPLIED, IGNORED, KEPT, StatementPlan
from headrace.pipes.state.pipe_state import TableState
from headrace.retry import retrying
from headrace.settings.schema_policy import ChangeKind, Policy
from headrace.sinks.schema_changes import DdlPlan


@dataclass(slots=True)
class SchemaChangePlanner:
    """Plans one statement. Whole tables are planned here; alterations and renames have their own modules."""

    plan: StatementPlan
    _vacated: set[TableName] = field(default_factory=set)
    """Names whose target is dropped or renamed."""

    def plan_intent(self) -> Intent:
        """Return the intent of the statement."""
        outcome = self.plan.outcome
        made = {change.schema.name for change in outcome.changes if isinstance(change, CreateTable)}
        for name in sorted(outcome.emptied - made):
            self._plan_truncate(name)
        AlterPlanner(self.plan).plan_alterations()
        moved = RenamePlanner(self.plan).plan_renames()
        for name in sorted((outcome.gone | (outcome.emptied & made)) - moved):
            self._plan_drop(name)
        for name in sorted(made - outcome.arrived - outcome.recapture):
            self._plan_create(name)
        for name in sorted(outcome.arrived | outcome.disturbed | outcome.recapture):
            self.plan.resync(name, "rows of it are not in the log")
        self.plan.check_resyncs()
        return self.plan.intent

    def _plan_truncate(self, name: TableName) -> None:
        table = self.plan.known_table(name)
        is_waiting = name in self.plan.executor.context.state.awaiting_resync
        if table is None or (is_waiting and self.plan.policy.of(ChangeKind.TRUNCATE_TABLE) is not Policy.KEEP):
            return
        kind, schema = ChangeKind.TRUNCATE_TABLE, self.plan.executor.sink_schema_of(table)
        policy = self.plan.policy_for(kind, name)
        if policy is Policy.IGNORE:
            self.plan.intent.tables[name] = self.plan.advance(table, rows_from=table.rows_from)
            self.plan.record(name, [kind], DdlPlan(), IGNORED)
        elif is_waiting:
            # The resync recreates the table.
            self.plan.add_steps(name, [kind], self._retain_target(schema, "truncated", again=False), KEPT)
        elif policy is Policy.KEEP and not self.plan.is_loaded(name):
            self.plan.intent.tables[name] = self.plan.advance(table, rows_from=table.rows_from)
            self.plan.intent.prepared.add(name)
            # Rows that were read before the statement may be written after it.
            self.plan.intent.stale_tables.append(schema)
            self.plan.add_steps(name, [kind], self._retain_target(schema, "truncated", again=True), KEPT)
        elif not self.plan.is_loaded(name):
            self.plan.intent.stale_tables.append(schema)
            self.plan.intent.tables[name] = self.plan.advance(table, rows_from=table.rows_from)
            # Append-only sinks record the truncation for their consumers.
            emptying = (
                self.plan.plan_in_sink(lambda sink: sink.plan_emptying(schema, self.plan.version))
                if self.plan.executor.context.targets.append_only
                else DdlPlan()
            )
            self.plan.intent.steps += emptying.steps
            self.plan.record(name, [kind], emptying, APPLIED, "its rows were taken away by version, for it is being read")
        else:
            keeps = policy is Policy.KEEP
            if keeps:
                found = self._retain_target(schema, "truncated", again=True)
            else:
                found = self.plan.plan_in_sink(lambda sink: sink.plan_emptying(schema, self.plan.version))
            self.plan.intent.tables[name] = self.plan.advance(table)
            if keeps:
                self.plan.intent.prepared.add(name)
            elif not found.steps:
                # A target with history retains the rows and records a deletion for each.
                self.plan.intent.stale_tables.append(schema)
            self.plan.add_steps(name, [kind], found, KEPT if keeps or not found.steps else APPLIED)

    def _plan_drop(self, name: TableName) -> None:
        """Plan a table that no longer exists under this name."""
        table = self.plan.known_table(name)
        if table is None:
            if name in self.plan.executor.context.state.awaiting_resync | self.plan.executor.context.state.ignored:
                self.plan.intent.dropped_tables.add(name)
            return
        kind, schema = ChangeKind.DROP_TABLE, self.plan.executor.sink_schema_of(table)
        policy = self.plan.policy_for(kind, name)
        self.plan.intent.dropped_tables.add(name)
        if policy is Policy.IGNORE:
            self.plan.record(name, [kind], DdlPlan(), IGNORED, "the target keeps its rows")
        elif policy is Policy.KEEP:
            # This includes a table whose snapshot is not complete: the rows read so far are retained.
            self._vacated.add(name)
            self.plan.add_steps(name, [kind], self._retain_target(schema, "dropped", again=False), KEPT)
        elif self.plan.executor.context.targets.append_only and name in self.plan.executor.context.state.awaiting_resync:
            self.plan.record(name, [kind], DdlPlan(), KEPT, "it was to be read again; the target stays as it was")
        elif self.plan.executor.context.targets.append_only and not self.plan.is_loaded(name):
            self.plan.intent.stale_tables.append(schema)
            self.plan.record(name, [kind], DdlPlan(), APPLIED, "its rows were taken away by version, for it was being read")
        else:
            self._drop_target(name, schema)

    def _drop_target(self, name: TableName, schema: TableSchema) -> None:
        """Drop the target, even during its snapshot: a chunk that is written later finds no table and is skipped."""
        kind = ChangeKind.DROP_TABLE
        try:
            found = self.plan.plan_in_sink(lambda sink: sink.plan_removal(schema))
        except DefiniteError as error:
            if name not in self.plan.executor.context.state.awaiting_resync:
                raise
            # The snapshot would have refused this target, which Headrace did not create and which does not fit. It holds no rows of the
            # table.
            self.plan.record(name, [kind], DdlPlan(), KEPT, f"it was to be read again; the target stays as it was: {error.message}")
            return
        if found.vacates:
            self._vacated.add(name)
        elif name not in self.plan.executor.context.state.awaiting_resync and not self.plan.is_loaded(name):
            # Rows that were read before the statement may be written after it.
            self.plan.intent.stale_tables.append(schema)
        self.plan.add_steps(name, [kind], found, APPLIED if found.steps else KEPT)

    def _plan_create(self, name: TableName) -> None:
        schema = self.plan.after.tables.get(name)
        if (
            schema is None
            or not self.plan.executor.context.is_selected(name)
            or not self.plan.executor.is_after_capture(name, self.plan.outcome.position)
        ):
            return
        kind = ChangeKind.CREATE_TABLE
        if self.plan.policy_for(kind, name) is Policy.IGNORE:
            self.plan.intent.ignored.add(name)
            self.plan.record(name, [kind], DdlPlan(), IGNORED)
            return
        if not self.plan.is_loaded(name):
            # Chunks of an earlier table of this name may still be pending; they would read this table with the old schema.
            self.plan.resync(name, "it was recreated while it was being read")
            return
        with self.plan.hint_resync(name):
            self.plan.executor.context.schemas.check_new(schema)
            shown = self.plan.executor.context.schemas(schema, ())
        self._check_target_conflict(shown)
        here = self.plan.outcome.position.to_json()
        number = self.plan.executor.snapshots.next_number(name)
        keeps = self.plan.policy.of(ChangeKind.DROP_TABLE) is Policy.KEEP
        try:
            # The current target does not matter if it is dropped or renamed first.
            found = DdlPlan() if name in self._vacated else self.plan.plan_in_sink(lambda sink: sink.plan_creation(shown))
        except DefiniteError as error:
            if keeps and not self.plan.executor.context.targets.append_only:
                found = self._retain_target(shown, "dropped", again=False)
                self._vacated.add(name)
            elif self.plan.can_replace_target:
                self.plan.resync(name, f"a target for an earlier table of this name is there: {error.message}")
                return
            else:
                raise
        self.plan.intent.dropped_tables.discard(name)
        self.plan.intent.tables[name] = TableState(schema, here, here, number)
        self.plan.intent.prepared.add(name)
        if keeps and not found.steps and name not in self._vacated and self._target_holds_rows(shown):
            found = self._retain_target(shown, "dropped", again=True)
        elif not found.steps and self.plan.policy.of(ChangeKind.DROP_TABLE) is not Policy.IGNORE:
            # The target may hold rows of an earlier table of this name.
            self.plan.intent.stale_tables.append(shown)
        self.plan.add_steps(name, [kind], found, APPLIED)

    def _retain_target(self, schema: TableSchema, why: str, *, again: bool) -> DdlPlan:
        """Rename the target to retain it, unless Headrace did not create it and its columns differ."""
        return self.plan.plan_in_sink(lambda sink: sink.plan_keeping(schema, f"{why}_{self.plan.position_tag}", again=again))

    def _target_holds_rows(self, schema: TableSchema) -> bool:
        targets = self.plan.executor.context.targets
        return not targets.append_only and retrying(lambda: targets.holds_rows(schema))

    def _check_target_conflict(self, made: TableSchema) -> None:
        """Raise if another table has the same target: both would write to it, and its stale rows would be deleted."""
        tables = {**self.plan.executor.context.state.tables, **self.plan.intent.tables}
        others = self.plan.intent.dropped_tables | self.plan.executor.context.state.awaiting_resync | {made.name}
        left = [table for name, table in tables.items() if name not in others]
        self.plan.executor.context.targets.check_target_conflicts([*map(self.plan.executor.sink_schema_of, left), made])
