"""The plan for one DDL statement: the intent that the planners fill in, and what they know about the tables.

Invariant: planning changes nothing. It reads the state and the target tables. A step that is not allowed or not possible is a definite
error that names the statement and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.schema_change import SchemaCatalog
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.schema_change_intents import Intent, IntentExecutor
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.state.pipe_state import PipeState, TableState
from headrace.pipes.state.resync_requests import pending_requests
from headrace.retry import retrying
from headrace.settings.schema_policy import ChangeKind, Policy, SchemaPolicy
from headrace.sinks.schema_changes import DdlPlan, LedgerEntry, SchemaApplier
from headrace.sources.mysql.schema.schema_history import DdlOutcome
from headrace.sources.mysql.server.position import BinlogPosition, file_number

_OTHER = "definition"
"""The ledger's kind for changes without a policy: comments, the order of columns, lost definitions."""
APPLIED, IGNORED, KEPT, READ_AGAIN = "applied", "ignored", "kept", "read again"


@dataclass(slots=True)
class StatementPlan:
    outcome: DdlOutcome
    after: SchemaCatalog
    """All tables after the statement."""
    executor: IntentExecutor
    policy: SchemaPolicy
    schema_applier: Callable[[], SchemaApplier]
    notes: list[str] = field(default_factory=list)
    """Messages for the user: what happens to which table."""
    intent: Intent = field(init=False)
    altered: dict[TableName, TableState] = field(default_factory=dict)
    """Tables after the statement's alterations, by their names before it."""

    def __post_init__(self) -> None:
        self.intent = Intent(self.outcome.position)

    @property
    def context(self) -> PipeContext[SinkTables]:
        return self.executor.context

    @property
    def state(self) -> PipeState:
        return self.executor.context.state

    @property
    def version(self) -> int:
        return self.outcome.position.version

    @property
    def position_tag(self) -> str:
        position = self.outcome.position
        return f"{file_number(position.file):06d}_{position.offset}"

    def known_table(self, name: TableName) -> TableState | None:
        return self.state.tables.get(name) if self.executor.is_after_capture(name, self.outcome.position) else None

    def is_loaded(self, name: TableName) -> bool:
        """Whether the target holds the table's rows: no snapshot is pending and none is awaited."""
        snapshot = self.executor.snapshots.tables.get(str(name))
        return name not in self.state.awaiting_resync and not (snapshot is not None and snapshot.pending)

    def was_loaded_before(self, name: TableName) -> bool:
        """Whether all rows of the table's snapshot were read before the statement."""
        snapshot = self.executor.snapshots.tables.get(str(name))
        return self.is_loaded(name) and (
            snapshot is None
            # The position of a statement is its end: rows that were read there include its effect.
            or all(BinlogPosition.from_json(place) < self.outcome.position for place in snapshot.read_at)
        )

    def awaits_resync(self, name: TableName) -> bool:
        """Whether a resync request under the table's old name is pending (append-only sinks)."""
        return self.context.targets.append_only and any(Selection(one.tables)(name) for one in pending_requests(self.context.directory))

    def plan_in_sink(self, plan: Callable[[SchemaApplier], DdlPlan]) -> DdlPlan:
        """Plan in the sink, with retries while it is unavailable."""
        return retrying(lambda: plan(self.schema_applier()))

    def advance(self, table: TableState, **changes: object) -> TableState:
        """Return the table's state at the statement's position: all its earlier changes are in the sink."""
        here = self.outcome.position.to_json()
        changed: TableState = replace(table, **{"captured_at": here, "rows_from": here, **changes})  # type: ignore[arg-type]
        return changed

    @property
    def can_replace_target(self) -> bool:
        """Whether a resync may replace a target that is in the way. A target that Headrace did not create is refused."""
        return self.executor.request_resync is not None and self.policy.of(ChangeKind.DROP_TABLE) is Policy.APPLY

    @contextmanager
    def hint_resync(self, name: TableName) -> Iterator[None]:
        """Add a hint to errors of transforms: change the settings and resync the table."""
        try:
            yield
        except DefiniteError as error:
            again = f"headrace resync {name} --state {self.context.directory.path}"
            hint = f"{error.hint}; change the settings, have the table read again by them ({again}), then start again"
            place = f"{error.place}, at {self.outcome.position}: {self.outcome.query.statement}"
            raise DefiniteError(error.message, place=place, hint=hint) from error

    def policy_for(self, kind: ChangeKind, name: TableName) -> Policy:
        policy = self.policy.of(kind)
        if policy is Policy.HALT:
            hint = f"start again with --schema-changes {kind}=apply to have it done"
            if self.executor.request_resync is not None and name in self.after.tables:
                hint += f"; or to read the table again as it is now: headrace resync {name} --state {self.context.directory.path}"
            raise DefiniteError(
                f"table {name} was changed, and {kind} is set to halt: {self.outcome.query.statement}",
                place=str(self.outcome.position),
                hint=hint,
            )
        return policy

    def add_steps(self, name: TableName, kinds: list[ChangeKind], found: DdlPlan, outcome: str) -> None:
        self.intent.steps += found.steps
        self.record(name, kinds, found, outcome)

    def resync(self, name: TableName, why: str, kinds: Iterable[ChangeKind] = (), found: DdlPlan | None = None) -> None:
        waiting = self.state.awaiting_resync | self.intent.resyncs | self.intent.concurrent_resyncs
        if name in waiting or not self.executor.is_after_capture(name, self.outcome.position):
            return
        if self.context.targets.append_only and name in self.after.tables:
            self._resync_alongside(name)
        else:
            self.intent.resyncs.add(name)
        self.record(name, kinds, found or DdlPlan(), READ_AGAIN, why)

    def _resync_alongside(self, name: TableName) -> None:
        """Read the table's rows again alongside its changes, none of which is skipped (append-only sinks)."""
        if name not in self.intent.tables:
            here, known = self.outcome.position.to_json(), self.state.tables.get(name)
            number = known.snapshot if known is not None else self.executor.snapshots.next_number(name)
            # Columns that are hidden stay hidden under the new name.
            former = self.outcome.moved.get(name, name)
            table = self.altered.get(former) or self.state.tables.get(former)
            self.intent.tables[name] = TableState(self.after.tables[name], here, here, number, table.hidden if table is not None else ())
        self.intent.prepared.add(name)
        self.intent.dropped_tables.discard(name)
        self.intent.concurrent_resyncs.add(name)

    def record(self, name: TableName, kinds: Iterable[ChangeKind], found: DdlPlan, outcome: str, detail: str = "") -> None:
        position, statement, translation = str(self.outcome.position), self.outcome.query.statement, "\n".join(found.statements)
        kind = ", ".join(kinds) or _OTHER
        self.intent.entries = [entry for entry in self.intent.entries if entry.source_table != str(name)] + [
            LedgerEntry(self.context.settings.pipe_name, self.version, position, str(name), kind, statement, translation, outcome, detail)
        ]
        self.notes.append(f"{name} {_WORDS[outcome]}")

    def check_resyncs(self) -> None:
        again = self.intent.resyncs | self.intent.concurrent_resyncs
        if again and self.executor.request_resync is None:
            name = min(again)
            raise DefiniteError(
                f"the rows of {name} after this statement are in no log file: {self.outcome.query.statement}",
                place=str(self.outcome.position),
                hint="leave the table out with --exclude, or replicate from the server",
            )


_WORDS = {APPLIED: "follows", IGNORED: "stays as it is in the sink", KEPT: "is kept in the sink", READ_AGAIN: "will be read again"}
