"""Applies the DDL statements of the log to the sink.

Each statement is a barrier: everything before it is in the sink, nothing after it is. The schema history tells its effect on the source;
the planner turns it into an intent by the user's policy, or halts the pipe with the statement. Repeating a statement after a crash is
harmless: a table that was altered has a captured position after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.schema_change import AddColumn, ChangePrimaryKey, DropColumn, ModifyColumn, RenameColumn, RenameTable, tables_of
from headrace.pipes.lifecycle.schema_change_intents import IntentExecutor
from headrace.pipes.mysql.schema_change_planner import SchemaChangePlanner
from headrace.pipes.mysql.statement_plan import StatementPlan
from headrace.settings.schema_policy import ChangeKind, Policy, SchemaPolicy
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.schema.schema_history import DdlOutcome, OutcomeKind, SchemaHistory
from headrace.sources.mysql.server.position import BinlogPosition

log = logging.getLogger("headrace")

_SKIP_POLICY = SchemaPolicy(
    tuple((kind, Policy.IGNORE if SchemaPolicy.allows(kind, Policy.IGNORE) else Policy.RESYNC) for kind in ChangeKind)
)
_DEFINING = (AddColumn, DropColumn, RenameColumn, ModifyColumn, ChangePrimaryKey, RenameTable)


@dataclass(frozen=True, slots=True)
class SchemaChangeFollower:
    history: SchemaHistory
    executor: IntentExecutor
    policy: SchemaPolicy
    before_change: Callable[[frozenset[TableName]], None] = lambda _: None
    """Called with the tables that a statement changes, before it is applied."""

    def apply(self, query: Query, position: BinlogPosition, left_out: TableName | None = None) -> None:
        """Apply the statement's effect to the sink; raise `DefiniteError` if that is not possible.

        `left_out`: the table that the statement creates, if its group also held rows that were skipped.
        """
        followed = self.history.follow(query, position)
        if left_out is not None and self.executor.context.is_selected(left_out):
            made = frozenset({left_out})
            followed = replace(followed, outcome=OutcomeKind.RESYNC, arrived=followed.arrived | made, emptied=followed.emptied - made)
        self._do(followed)

    def skip(self, query: Query, position: BinlogPosition, left_out: TableName | None = None) -> None:
        """Skip a statement: targets stay unchanged, and a table whose rows would be wrong without it is read again."""
        try:
            replace(self, policy=_SKIP_POLICY).apply(query, position, left_out)
        except DefiniteError as error:
            # Its effect is unknown; the log is read as if the statement had none.
            log.warning("a statement that is left out is not understood: %s", error.message)

    def _do(self, followed: DdlOutcome) -> None:
        query, position = followed.query, followed.position
        if followed.outcome is OutcomeKind.NOTHING:
            log.debug("passing over a statement at %s: %s", position, query.statement)
            return
        if followed.mentioned and not any(self.executor.is_after_capture(name, position) for name in followed.mentioned):
            log.info("passing over a statement before the tables it names were read: %s", shortened(query.statement))
            return
        followed.check()
        self._check_start(followed)
        after, applier = self.history.as_of(position), self.executor.context.targets.sink.schema_applier
        plan = StatementPlan(followed, after, self.executor, self.policy, applier)
        intent = SchemaChangePlanner(plan).plan_intent()
        self.before_change(intent.touched)
        self.executor.execute(intent)
        for entry in intent.entries:
            result = f"{entry.outcome}: {entry.detail}" if entry.detail else entry.outcome
            self.executor.context.view.schema_change(entry.source_table, shortened(entry.statement), result)
        for note in plan.notes:
            self.executor.context.view.note(f"{note}: {shortened(query.statement)}")

    def _check_start(self, followed: DdlOutcome) -> None:
        """Halt if a statement changed a table between the start position and the capture of its schema: earlier rows had another schema."""
        looked = self.executor.context.state.schemas_captured_at
        if looked is None or followed.position > BinlogPosition.from_json(looked):
            return
        changed = [
            change
            for change in followed.changes
            if isinstance(change, _DEFINING) and self.executor.context.is_selected(tables_of(change)[-1])
        ]
        if changed:
            raise DefiniteError(
                f"reading began before a table was changed, and it is known only as it is now: {followed.query.statement}",
                place=str(followed.position),
                hint=f"start at or after {followed.position}, with a new state directory, or with a snapshot",
            )


def shortened(statement: str) -> str:
    text = " ".join(statement.split())
    return text if len(text) <= 120 else f"{text[:117]}..."
