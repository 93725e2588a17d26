"""Plans what one DDL statement leads to in the sink, from its effect on the source and the user's policy.

Invariant: planning changes nothing. The intent holds all steps, or planning raises a definite error and there are none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration, AlteredColumn, Unchanged, alteration
from headrace.model.schema import Column, TableName, TableSchema
from headrace.model.schema_change import (
    AddColumn,
    ChangeForeignKeys,
    ChangeIndexes,
    ChangeOptions,
    ChangePrimaryKey,
    CreateTable,
    DropColumn,
    DropTable,
    ModifyColumn,
    RenameColumn,
    tables_of,
)
from headrace.pipes.lifecycle.schema_change_intents import Intent
from headrace.pipes.mysql.statement_plan import APPLIED, IGNORED, KEPT, StatementPlan
from headrace.pipes.state.pipe_state import TableState
from headrace.retry import retrying
from headrace.settings.schema_policy import ChangeKind, Policy
from headrace.sinks.schema_changes import DdlPlan, TargetNameTaken, renamed_from
from headrace.sources.mysql.schema.alter_effects import effect_of

_ALTERATIONS = (AddColumn, DropColumn, RenameColumn, ModifyColumn, ChangePrimaryKey, ChangeIndexes, ChangeForeignKeys, ChangeOptions)


@dataclass(frozen=True, slots=True)
class AlterPlanner:
    plan: StatementPlan

    def plan_alterations(self) -> None:
        for name in sorted({change.table for change in self.plan.outcome.changes if isinstance(change, _ALTERATIONS)}):
            self._alter(name)

    def _alter(self, name: TableName) -> None:
        final = next((new for new, old in self.plan.outcome.moved.items() if old == name), name)
        table, schema = self.plan.known_table(name), self.plan.after.tables.get(final)
        if table is None or schema is None or name in self.plan.state.awaiting_resync or not self.plan.context.is_selected(final):
            return
        changes = [change for change in self.plan.outcome.changes if isinstance(change, _ALTERATIONS) and name in tables_of(change)]
        session = self.plan.outcome.query.session
        source_alteration = alteration(table.schema, replace(schema, name=name), changes, lambda change: effect_of(change, session))
        hidden = self._hidden(table, source_alteration)
        schemas = self.plan.context.schemas
        left = schemas.named(self._left(source_alteration), table.schema, table.hidden)
        seen = replace(self._shown(source_alteration, table.hidden, hidden), left=left)
        fresh = {one.column.name for one in source_alteration.altered_columns if one.origin is None}
        kinds = _kinds_of(self._shown(source_alteration, table.hidden, tuple(set(hidden) - fresh)))
        altered = self.plan.advance(table, schema=schema, hidden=hidden)
        self.plan.altered[name] = altered
        if final == name:
            self.plan.intent.tables[name] = altered
        policies = {self.plan.policy_for(kind, name) for kind in kinds}
        if not self.plan.was_loaded_before(name):
            # Rows were read after the statement, or are being read, with the old schema.
            if kinds:
                self.plan.resync(final, "it was altered while it was being read", kinds)
            elif final == name:
                self.plan.intent.tables[name] = replace(table, schema=schema, hidden=hidden)
            return
        found = self.plan.plan_in_sink(lambda sink: sink.plan_alteration(_without_left(seen), self.plan.version))
        if Policy.RESYNC in policies:
            found = replace(found, reread=found.reread or "it was chosen to read it again")
        found = replace(found, reread=found.reread or schemas.reread_reason(source_alteration, table.hidden, hidden))
        if found.prepared and final == name:
            self.plan.intent.prepared.add(name)
        if not kinds and not found.steps and not found.reread:
            return
        self.plan.intent.steps += found.steps
        if found.reread:
            self.plan.resync(final, found.reread, kinds, found)
        else:
            outcome = IGNORED if policies == {Policy.IGNORE} else APPLIED
            self.plan.record(name, kinds, found, outcome, f"ignored: {', '.join(sorted(left))}" if left and outcome is APPLIED else "")

    def _shown(self, source_alteration: Alteration, hidden: tuple[str, ...], hidden_after: tuple[str, ...]) -> Alteration:
        """Return the alteration of the sink's schema; raise if the transforms no longer fit the table."""
        with self.plan.hint_resync(source_alteration.before.name):
            return self.plan.context.schemas.alteration(source_alteration, hidden, hidden_after)

    def _hidden(self, table: TableState, source_alteration: Alteration) -> tuple[str, ...]:
        """Return the columns that are not replicated after the statement."""
        ignores = self.plan.policy.of(ChangeKind.ADD_COLUMN) is Policy.IGNORE
        return tuple(
            one.column.name for one in source_alteration.altered_columns if (ignores if one.origin is None else one.origin in table.hidden)
        )

    def _left(self, source_alteration: Alteration) -> frozenset[str]:
        """Return the columns that stay unchanged in the target by policy."""
        dropped = source_alteration.dropped if self.plan.policy.of(ChangeKind.DROP_COLUMN) is Policy.IGNORE else ()
        modified: Iterable[str] = ()
        if self.plan.policy.of(ChangeKind.MODIFY_COLUMN) is Policy.IGNORE:
            modified = (
                one.origin
                for one in source_alteration.altered_columns
                if one.origin is not None and _is_modified(source_alteration.before, one)
            )
        return frozenset((*dropped, *modified))


def _kinds_of(seen: Alteration) -> list[ChangeKind]:
    """Return the kinds of changes that affect the sink."""
    found: set[ChangeKind] = set()
    if any(one.origin is None for one in seen.altered_columns):
        found.add(ChangeKind.ADD_COLUMN)
    if seen.dropped:
        found.add(ChangeKind.DROP_COLUMN)
    if any(one.origin not in (None, one.column.name) for one in seen.altered_columns):
        found.add(ChangeKind.RENAME_COLUMN)
    if any(one.origin is not None and _is_modified(seen.before, one) for one in seen.altered_columns):
        found.add(ChangeKind.MODIFY_COLUMN)
    if seen.moves_key:
        found.add(ChangeKind.CHANGE_KEY)
    return [kind for kind in ChangeKind if kind in found]


def _is_modified(before: TableSchema, one: AlteredColumn) -> bool:
    """Whether the column's type or values change."""
    assert one.origin is not None
    return not isinstance(one.effect, Unchanged) or _material(before.column(one.origin)) != _material(one.column)


def _material(column: Column) -> tuple[object, ...]:
    return column.kind, column.nullable, column.precision, column.scale, column.members


def _without_left(seen: Alteration) -> Alteration:
    """Treat columns that stay unchanged by policy as unaltered."""
    altered_columns = (replace(one, effect=Unchanged()) if one.origin in seen.left else one for one in seen.altered_columns)
    return replace(seen, altered_columns=tuple(altered_columns))


@dataclass(frozen=True, slots=True)
class RenamePlanner:
    plan: StatementPlan

    def plan_renames(self) -> set[TableName]:
        """Plan the renames; return the old names whose targets get new names."""
        moved = {
            new: old for new, old in self.plan.outcome.moved.items() if self.plan.executor.is_after_capture(new, self.plan.outcome.position)
        }
        tables = {new: self.plan.altered.get(old) or self.plan.known_table(old) for new, old in moved.items()}
        kind = ChangeKind.RENAME_TABLE
        policies = {self.plan.policy_for(kind, new) for new in moved}
        if not moved:
            return set()
        # Chunks of an earlier table of the new name may still be pending, as with CREATE TABLE.
        ready = all(map(self.plan.is_loaded, moved.keys() - moved.values())) and all(
            table is not None and self.plan.was_loaded_before(moved[new]) and not self.plan.awaits_resync(moved[new])
            for new, table in tables.items()
        )
        if not ready or Policy.RESYNC in policies:
            found = DdlPlan((), "it is not in the sink yet")
        elif not all(self.plan.context.schemas.is_same(old, new) for new, old in moved.items()):
            found = DdlPlan((), "other transforms hold for its new name")
        else:
            found = self._plan_target_renames(moved, tables)
        if found.reread or self.plan.intent.resyncs & moved.keys():
            for new in moved:
                self.plan.resync(new, found.reread)
            return set()
        self.plan.intent.steps += found.steps
        for new, table in tables.items():
            assert table is not None
            number = self.plan.executor.snapshots.next_number(new)
            self.plan.intent.tables[new] = self.plan.advance(table, schema=self.plan.after.tables[new], snapshot=number)
            self.plan.intent.prepared.add(new)
            self.plan.record(new, [kind], found, APPLIED, renamed_from(str(moved[new])))
        self.plan.intent.dropped_tables |= set(moved.values()) - self.plan.after.tables.keys()
        self.plan.intent.dropped_tables -= set(moved)
        return set(moved.values())

    def _plan_target_renames(self, moved: dict[TableName, TableName], tables: dict[TableName, TableState | None]) -> DdlPlan:
        pairs = []
        for new, table in tables.items():
            before = self.plan.known_table(moved[new])
            assert table is not None
            assert before is not None
            pairs.append((self.plan.executor.sink_schema_of(before), self.plan.context.schemas(self.plan.after.tables[new], table.hidden)))
        try:
            return self.plan.plan_in_sink(lambda sink: sink.plan_moves(pairs))
        except TargetNameTaken as error:
            # The next snapshot replaces the target of a waiting table, and of a table whose new name was read later.
            left = {change.table for change in self.plan.outcome.changes if isinstance(change, DropTable)}
            if not self.plan.can_replace_target and not moved.keys() & (self.plan.state.awaiting_resync | left):
                raise
            return DdlPlan((), f"a target for an earlier table of its new name is there: {error.message}")


@dataclass(slots=True)
class SchemaChangePlanner:
    plan: StatementPlan
    _vacated: set[TableName] = field(default_factory=set)
    """Names whose target is dropped or renamed."""

    def plan_intent(self) -> Intent:
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
        is_waiting = name in self.plan.state.awaiting_resync
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
                if self.plan.context.targets.append_only
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
            if name in self.plan.state.awaiting_resync | self.plan.state.ignored:
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
        elif self.plan.context.targets.append_only and name in self.plan.state.awaiting_resync:
            self.plan.record(name, [kind], DdlPlan(), KEPT, "it was to be read again; the target stays as it was")
        elif self.plan.context.targets.append_only and not self.plan.is_loaded(name):
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
            if name not in self.plan.state.awaiting_resync:
                raise
            # The snapshot would have refused this target, which Headrace did not create and which does not fit. It holds no rows of the
            # table.
            self.plan.record(name, [kind], DdlPlan(), KEPT, f"it was to be read again; the target stays as it was: {error.message}")
            return
        if found.vacates:
            self._vacated.add(name)
        elif name not in self.plan.state.awaiting_resync and not self.plan.is_loaded(name):
            # Rows that were read before the statement may be written after it.
            self.plan.intent.stale_tables.append(schema)
        self.plan.add_steps(name, [kind], found, APPLIED if found.steps else KEPT)

    def _plan_create(self, name: TableName) -> None:
        schema = self.plan.after.tables.get(name)
        if (
            schema is None
            or not self.plan.context.is_selected(name)
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
            self.plan.context.schemas.check_new(schema)
            shown = self.plan.context.schemas(schema, ())
        self._check_target_conflict(shown)
        here = self.plan.outcome.position.to_json()
        number = self.plan.executor.snapshots.next_number(name)
        keeps = self.plan.policy.of(ChangeKind.DROP_TABLE) is Policy.KEEP
        try:
            # The current target does not matter if it is dropped or renamed first.
            found = DdlPlan() if name in self._vacated else self.plan.plan_in_sink(lambda sink: sink.plan_creation(shown))
        except DefiniteError as error:
            if keeps and not self.plan.context.targets.append_only:
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
        targets = self.plan.context.targets
        return not targets.append_only and retrying(lambda: targets.holds_rows(schema))

    def _check_target_conflict(self, made: TableSchema) -> None:
        """Raise if another table has the same target: both would write to it, and its stale rows would be deleted."""
        tables = {**self.plan.state.tables, **self.plan.intent.tables}
        others = self.plan.intent.dropped_tables | self.plan.state.awaiting_resync | {made.name}
        targets = self.plan.context.targets
        target = targets.sink.target_of(made.name)
        left = [table for name, table in tables.items() if name not in others and targets.sink.target_of(name) == target]
        targets.check_target_conflicts([*map(self.plan.executor.sink_schema_of, left), made])
