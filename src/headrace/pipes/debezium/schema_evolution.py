"""Applies the schemas of events to the sink: creates tables, adds columns, widens types.

The order makes every crash harmless, as in `pipes.lifecycle.schema_change_intents`. The intent is saved first: steps, the resulting table,
the ledger's row. Then its steps are executed and recorded one by one. Then the ledger is written, and last the state. A process that finds
an intent finishes it first. After that the batch that brought the change is read again; nothing of it counts before.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableName, TableSchema
from headrace.model.schema_change import AddColumn, ModifyColumn
from headrace.pipes.debezium.counted_tables import COUNTING, check_counting_target, unfollowed_change
from headrace.pipes.debezium.type_lookup import TypeLookup
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.state.pipe_state import TableState
from headrace.retry import retrying
from headrace.settings.schema_policy import ChangeKind, Policy, SchemaPolicy
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable
from headrace.sinks.schema_changes import DdlPlan, LedgerEntry, Step
from headrace.sources.debezium.events.records import DetectedSchema, Truncation
from headrace.sources.debezium.types.schema_widening import WidenedSchema, widen_schema

_APPLIED, _IGNORED = "applied", "ignored"
_REFUSED_POLICIES = (Policy.KEEP, Policy.RESYNC)


def check_policy(policy: SchemaPolicy) -> None:
    """Refuse policies that need the source's rows or statements."""
    for kind, chosen in policy.chosen:
        if chosen in _REFUSED_POLICIES:
            raise DefiniteError(
                f"{kind} cannot be {chosen} for a pipe from Kafka: topics do not hold the tables' rows to read them again, nor statements",
                place="schema_changes",
                hint="choose apply, ignore or halt",
            )


@dataclass(slots=True)
class ClickHouseTables(SinkTables):
    sink: ClickHouseSink


@dataclass(frozen=True, slots=True)
class SchemaEvolution:
    context: PipeContext[ClickHouseTables]
    descriptions: TypeLookup

    @property
    def policy(self) -> SchemaPolicy:
        return self.context.settings.schema_changes

    def apply(self, found: Iterable[DetectedSchema]) -> bool:
        changed = [self._apply(one) for one in together(self.descriptions.refine(found))]
        return any(changed)

    def finish(self) -> None:
        if self.context.state.intent is not None:
            self._finish(self.context.state.intent)

    def truncate(self, emptied: Iterable[Truncation]) -> None:
        """Delete the rows of truncated tables from before the truncation. Repeatable."""
        for one in emptied:
            table = self.context.state.tables.get(one.table)
            if table is None:
                continue
            policy = self.policy.of(ChangeKind.TRUNCATE_TABLE)
            if policy is Policy.HALT:
                raise self._halted(ChangeKind.TRUNCATE_TABLE, str(one.table), "was emptied", "")
            if policy is Policy.APPLY:
                self._delete_stale(table, one)
            self._record(one, f"{one.table} was emptied", _APPLIED if policy is Policy.APPLY else _IGNORED)

    def start_over(self, tables: Iterable[Truncation]) -> None:
        """Delete the older rows of tables without a key that the connector has read again. Repeatable."""
        for one in tables:
            table = self.context.state.tables.get(one.table)
            if table is not None:
                self._delete_stale(table, one)
                self._record(one, f"{one.table} starts over with a second snapshot", _APPLIED)

    def _delete_stale(self, table: TableState, one: Truncation) -> None:
        schema = self.context.schemas(table.schema, table.hidden)
        retrying(functools.partial(self.context.targets.delete_stale, schema, one.version))

    def _record(self, one: Truncation, text: str, outcome: str) -> None:
        entry = LedgerEntry(
            self.context.settings.pipe_name, one.version, "", str(one.table), ChangeKind.TRUNCATE_TABLE.value, text, "", outcome, ""
        )
        retrying(functools.partial(self.context.targets.sink.schema_applier().record, [entry]))
        self.context.view.schema_change(str(one.table), text, outcome)
        self.context.view.note(text)

    def _apply(self, found: DetectedSchema) -> bool:
        name = found.schema.name
        if name in self.context.state.ignored or not self.context.settings.selection(name):
            return False
        known = self.context.state.tables.get(name)
        if known is None:
            self._create(found)
            return True
        growth = _grown(known.schema, found)
        if growth.alteration is not None:
            self._alter(known, growth, growth.alteration, found)
        return growth.alteration is not None

    def _create(self, found: DetectedSchema) -> None:
        schema = found.schema
        policy = self._allowed(ChangeKind.CREATE_TABLE, found, "is new")
        if policy is Policy.IGNORE:
            self._execute(None, DdlPlan(), found, [ChangeKind.CREATE_TABLE], "new table", _IGNORED)
            return
        self.context.schemas.check_new(schema)
        shown = self.context.schemas(schema, ())
        others = [self.context.schemas(table.schema, table.hidden) for table in self.context.state.tables.values()]
        self.context.targets.check_target_conflicts([*others, shown])
        retrying(lambda: self.context.targets.claim([schema.name]))
        filtered = bool(self.context.settings.transforms.of(schema.name).filter)
        read = replace(found, schema=self.context.schemas.read(schema, ()))
        check_engine(self.context.targets, shown, read, filtered=filtered)
        plan = retrying(lambda: self.context.targets.sink.schema_applier().plan_creation(shown))
        columns = ", ".join(f"{column.name} {type_text(column)}" for column in schema.columns)
        text = f"new table: {columns}; key {', '.join(schema.primary_key) or 'none'}"
        self._execute(TableState(schema, _place(found)), plan, found, [ChangeKind.CREATE_TABLE], text, _APPLIED)

    def _alter(self, known: TableState, growth: WidenedSchema, alteration: Alteration, found: DetectedSchema) -> None:
        text = "; ".join([*(_change_text(change) for change in growth.changes), *growth.notes])
        kinds = _kinds_of(growth)
        policies = {kind: self._allowed(kind, found, f"has changed ({text})") for kind in kinds}
        hidden = known.hidden
        if policies.get(ChangeKind.ADD_COLUMN) is Policy.IGNORE:
            hidden += tuple(altered_column.column.name for altered_column in alteration.altered_columns if altered_column.origin is None)
        left: frozenset[str] = frozenset()
        if policies.get(ChangeKind.MODIFY_COLUMN) is Policy.IGNORE:
            modified = (change.column.name for change in growth.changes if isinstance(change, ModifyColumn))
            left = self.context.schemas.named(modified, known.schema, known.hidden)
        seen = replace(self.context.schemas.alteration(alteration, known.hidden, hidden), left=left)
        shown = self.context.schemas(known.schema, known.hidden)
        counts = retrying(lambda: self.context.targets.sink.target_table(shown)).family in COUNTING
        try:
            plan = retrying(lambda: self.context.targets.sink.schema_applier().plan_alteration(seen, 0))
        except DefiniteError as error:
            if counts:
                raise unfollowed_change(found.schema.name, text, error.message, found.place, kinds) from error
            raise
        if counts and any(step.replaces for step in plan.steps):
            why = "its rows cancel each other by a hash of all columns, and a rebuilt table does not know which blocks it has"
            raise unfollowed_change(found.schema.name, text, why, found.place, kinds)
        reread = plan.reread or self.context.schemas.reread_reason(alteration, known.hidden, hidden)
        if reread:
            raise DefiniteError(
                f"the copy of table {found.schema.name} cannot follow its change ({text}): {reread}",
                place=found.place,
                hint="alter the copy by hand, or drop it and start over with another --state and a new snapshot of Debezium's",
            )
        outcome = _IGNORED if set(policies.values()) == {Policy.IGNORE} else _APPLIED
        table = replace(known, schema=growth.schema, hidden=hidden, captured_at=_place(found))
        self._execute(table, plan, found, kinds, text, outcome)

    def _execute(
        self, table: TableState | None, plan: DdlPlan, found: DetectedSchema, kinds: Iterable[ChangeKind], text: str, outcome: str
    ) -> None:
        # Only the ledger's key comes from the clock, and it is saved before it is used.
        version, name = time.time_ns() // 1000, found.schema.name
        entry = LedgerEntry(
            self.context.settings.pipe_name,
            version,
            found.place,
            str(name),
            ", ".join(kinds),
            text,
            "\n".join(plan.statements),
            outcome,
            "",
        )
        intent = {
            "steps": [step.to_json() for step in plan.steps],
            "done": 0,
            "name": [name.database, name.table],
            "table": None if table is None else table.to_json(),
            "entry": entry.to_json(),
        }
        self._finish(intent)
        self.context.view.schema_change(str(name), text, outcome)
        self.context.view.note(f"{name} {'follows' if outcome == _APPLIED else 'stays as it is in the sink'}: {text} ({found.place})")

    def _finish(self, intent: dict[str, Any]) -> None:
        self._save(intent)
        name, steps = TableName(*intent["name"]), [Step.from_json(step) for step in intent["steps"]]
        while intent["done"] < len(steps):
            retrying(functools.partial(self.context.targets.run_step, steps[intent["done"]], [name]))
            intent["done"] += 1
            self._save(intent)
        table = None if intent["table"] is None else TableState.from_json(intent["table"])
        if table is not None:
            shown = self.context.schemas(table.schema, table.hidden)
            retrying(lambda: self.context.targets.prepare([shown]))
        retrying(functools.partial(self.context.targets.sink.schema_applier().record, [LedgerEntry.from_json(intent["entry"])]))
        if table is None:
            self.context.state.ignored.add(name)
        else:
            self.context.state.tables[name] = table
        self._save(None)

    def _save(self, intent: dict[str, Any] | None) -> None:
        self.context.state.intent = intent
        self.context.directory.save(self.context.state)

    def _allowed(self, kind: ChangeKind, found: DetectedSchema, what: str) -> Policy:
        policy = self.policy.of(kind)
        if policy is Policy.HALT:
            raise self._halted(kind, str(found.schema.name), what, found.place)
        return policy

    def _halted(self, kind: ChangeKind, name: str, what: str, place: str) -> DefiniteError:
        hint = f"start again with --schema-changes {kind}=apply to have the copy follow"
        return DefiniteError(f"table {name} {what}, and {kind} is set to halt", place=place, hint=hint)


def check_engine(targets: ClickHouseTables, shown: TableSchema, read: DetectedSchema, *, filtered: bool) -> None:
    """Refuse targets that topics cannot fill exactly. `read`: the columns that are read; `filtered`: whether a transform filters rows."""
    # First the engine: the remedies for missing columns would not make such a table fit.
    existing = retrying(lambda: targets.sink.existing_family(shown.name))
    if existing is EngineFamily.COALESCING:
        raise DefiniteError(
            f"the target of {shown.name} keeps values in the order of writing, and partitions of a topic are written at the same time",
            place=f"table {shown.name}",
            hint="rename the existing table, or give the copy another name (target of the table): Headrace then creates one that fits",
        )
    if existing is not None:
        # Add the columns that the table lacks, where the user chose that.
        retrying(lambda: targets.prepare([shown]))
    table = retrying(lambda: targets.sink.target_table(shown))
    if table.family is EngineFamily.HISTORY:
        _check_history(table)
    elif table.family in COUNTING:
        holds_rows = existing is not None and retrying(lambda: targets.holds_rows(shown))
        check_counting_target(table, read, filtered=filtered, holds_rows=holds_rows, exists=existing is not None)


def _check_history(table: TargetTable) -> None:
    """Refuse histories of which a replay cannot tell which changes they hold."""
    why = ""
    if not table.has_key:
        why = "without a key, equal changes cannot be distinguished"
    elif table.local_table is not None or table.storage.replication:
        why = "a replica may not have the rows yet that another one stored"
    if why:
        raise DefiniteError(
            f"the target of {table.source} keeps every change, and after a crash Headrace could not tell which ones it has: {why}",
            place=f"table {table.source}",
            hint="use an engine that keeps the newest version of each row: --engine replacing, or another target",
        )


def together(found: Iterable[DetectedSchema]) -> list[DetectedSchema]:
    """Merge the found schemas of each table as far as they are compatible.

    Older ones come first, and their default of a new column is retained: it is the value of rows from before the column.
    """
    made: list[DetectedSchema] = []
    for one in found:
        earlier = made[-1] if made and made[-1].schema.name == one.schema.name else None
        try:
            if earlier is None:
                made.append(one)
            else:
                made[-1] = replace(earlier, schema=widen_schema(earlier.schema, one.schema, zeroes=one.zeroes).schema)
        except DefiniteError:
            # The error is raised when the schema is applied, with the position of its record.
            made.append(one)
    return made


def _grown(known: TableSchema, found: DetectedSchema) -> WidenedSchema:
    try:
        return widen_schema(known, found.schema, zeroes=found.zeroes)
    except DefiniteError as error:
        where = f"{found.place}, {error.place}" if error.place else found.place
        hint = f"{error.hint}; nothing from there on counts as read" if error.hint else "nothing from there on counts as read"
        raise DefiniteError(error.message, place=where, hint=hint) from error


def _kinds_of(growth: WidenedSchema) -> list[ChangeKind]:
    words = {AddColumn: ChangeKind.ADD_COLUMN, ModifyColumn: ChangeKind.MODIFY_COLUMN}
    found = {words[type(change)] for change in growth.changes if type(change) in words}
    return [kind for kind in ChangeKind if kind in found]


def _change_text(change: object) -> str:
    match change:
        case AddColumn(_, column):
            return f"new column {column.name} {type_text(column)}"
        case ModifyColumn(_, column, new):
            return f"{column.name} from {type_text(column)} to {type_text(new)}"
    return str(change)


def type_text(column: Column) -> str:
    inside = f"({column.precision},{column.scale})" if column.form is ValueForm.DECIMAL else ""
    return f"{column.kind}{inside}{'' if column.nullable else ' not null'}"


def _place(found: DetectedSchema) -> dict[str, Any]:
    return {"topic": found.topic, "partition": found.partition, "offset": found.offset}
