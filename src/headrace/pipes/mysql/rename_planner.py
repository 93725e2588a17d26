"""Plans RENAME TABLE: the target gets the new name if it holds the table's rows; otherwise the table is read again."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.schema import TableName
from headrace.model.schema_change import (
    DropTable,
)
from headrace.pipes.mysql.statement_plan import APPLIED, StatementPlan
from headrace.pipes.state.pipe_state import TableState
from headrace.settings.schema_policy import ChangeKind, Policy
from headrace.sinks.schema_changes import DdlPlan, TargetNameTaken, renamed_from


@dataclass(frozen=True, slots=True)
class RenamePlanner:
    """Plans the renames of one statement."""

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
        elif not all(self.plan.executor.context.schemas.is_same(old, new) for new, old in moved.items()):
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
            pairs.append(
                (self.plan.executor.sink_schema_of(before), self.plan.executor.context.schemas(self.plan.after.tables[new], table.hidden))
            )
        try:
            return self.plan.plan_in_sink(lambda sink: sink.plan_moves(pairs))
        except TargetNameTaken as error:
            # The next snapshot replaces the target of a waiting table, and of a table whose new name was read later.
            left = {change.table for change in self.plan.outcome.changes if isinstance(change, DropTable)}
            if not self.plan.can_replace_target and not moved.keys() & (self.plan.executor.context.state.awaiting_resync | left):
                raise
            return DdlPlan((), f"a target for an earlier table of its new name is there: {error.message}")
