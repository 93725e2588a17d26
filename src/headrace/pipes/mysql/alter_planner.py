"""Plans ALTER TABLE: which columns the sink adds, drops, renames and modifies, by the user's policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.model.alter_effects import Alteration, AlteredColumn, Unchanged, alteration
from headrace.model.schema import Column, TableName, TableSchema
from headrace.model.schema_change import (
    AddColumn,
    ChangeForeignKeys,
    ChangeIndexes,
    ChangeOptions,
    ChangePrimaryKey,
    DropColumn,
    ModifyColumn,
    RenameColumn,
    tables_of,
)
from headrace.pipes.mysql.statement_plan import APPLIED, IGNORED, StatementPlan
from headrace.pipes.state.pipe_state import TableState
from headrace.settings.schema_policy import ChangeKind, Policy
from headrace.sources.mysql.schema.alter_effects import effect_of

_ALTERATIONS = (AddColumn, DropColumn, RenameColumn, ModifyColumn, ChangePrimaryKey, ChangeIndexes, ChangeForeignKeys, ChangeOptions)


@dataclass(frozen=True, slots=True)
class AlterPlanner:
    """Plans the alterations of one statement."""

    plan: StatementPlan

    def plan_alterations(self) -> None:
        for name in sorted({change.table for change in self.plan.outcome.changes if isinstance(change, _ALTERATIONS)}):
            self._alter(name)

    def _alter(self, name: TableName) -> None:
        final = next((new for new, old in self.plan.outcome.moved.items() if old == name), name)
        table, schema = self.plan.known_table(name), self.plan.after.tables.get(final)
        if (
            table is None
            or schema is None
            or name in self.plan.executor.context.state.awaiting_resync
            or not self.plan.executor.context.is_selected(final)
        ):
            return
        changes = [change for change in self.plan.outcome.changes if isinstance(change, _ALTERATIONS) and name in tables_of(change)]
        session = self.plan.outcome.query.session
        source_alteration = alteration(table.schema, replace(schema, name=name), changes, lambda change: effect_of(change, session))
        hidden = self._hidden(table, source_alteration)
        schemas = self.plan.executor.context.schemas
        left = schemas.named(self._left(source_alteration), table.schema, table.hidden)
        seen = replace(self._shown(source_alteration, table.hidden, hidden), left=left)
        fresh = {altered_column.column.name for altered_column in source_alteration.altered_columns if altered_column.origin is None}
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
            return self.plan.executor.context.schemas.alteration(source_alteration, hidden, hidden_after)

    def _hidden(self, table: TableState, source_alteration: Alteration) -> tuple[str, ...]:
        """Return the columns that are not replicated after the statement."""
        ignores = self.plan.policy.of(ChangeKind.ADD_COLUMN) is Policy.IGNORE
        return tuple(
            altered_column.column.name
            for altered_column in source_alteration.altered_columns
            if (ignores if altered_column.origin is None else altered_column.origin in table.hidden)
        )

    def _left(self, source_alteration: Alteration) -> frozenset[str]:
        """Return the columns that stay unchanged in the target by policy."""
        dropped = source_alteration.dropped if self.plan.policy.of(ChangeKind.DROP_COLUMN) is Policy.IGNORE else ()
        modified: Iterable[str] = ()
        if self.plan.policy.of(ChangeKind.MODIFY_COLUMN) is Policy.IGNORE:
            modified = (
                altered_column.origin
                for altered_column in source_alteration.altered_columns
                if altered_column.origin is not None and _is_modified(source_alteration.before, altered_column)
            )
        return frozenset((*dropped, *modified))


def _kinds_of(seen: Alteration) -> list[ChangeKind]:
    """Return the kinds of changes that affect the sink."""
    found: set[ChangeKind] = set()
    if any(altered_column.origin is None for altered_column in seen.altered_columns):
        found.add(ChangeKind.ADD_COLUMN)
    if seen.dropped:
        found.add(ChangeKind.DROP_COLUMN)
    if any(altered_column.origin not in (None, altered_column.column.name) for altered_column in seen.altered_columns):
        found.add(ChangeKind.RENAME_COLUMN)
    if any(altered_column.origin is not None and _is_modified(seen.before, altered_column) for altered_column in seen.altered_columns):
        found.add(ChangeKind.MODIFY_COLUMN)
    if seen.moves_key:
        found.add(ChangeKind.CHANGE_KEY)
    return [kind for kind in ChangeKind if kind in found]


def _is_modified(before: TableSchema, altered_column: AlteredColumn) -> bool:
    """Whether the column's type or values change."""
    assert altered_column.origin is not None
    return not isinstance(altered_column.effect, Unchanged) or _material(before.column(altered_column.origin)) != _material(
        altered_column.column
    )


def _material(column: Column) -> tuple[object, ...]:
    return column.kind, column.nullable, column.precision, column.scale, column.members


def _without_left(seen: Alteration) -> Alteration:
    """Treat columns that stay unchanged by policy as unaltered."""
    altered_columns = (
        replace(altered_column, effect=Unchanged()) if altered_column.origin in seen.left else altered_column
        for altered_column in seen.altered_columns
    )
    return replace(seen, altered_columns=tuple(altered_columns))
