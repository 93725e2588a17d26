"""Applies cascades in ClickHouse after each batch, from the key logs that its tasks wrote.

Every step may be repeated after a crash. Effects on a table that is a parent itself, or whose rows move to other keys, are added to its
key log before its rows change, because they cannot be derived from the changed rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.model.cascades import NO_KEY, Cascade, CascadePlan
from headrace.model.column_types import ValueForm
from headrace.model.schema import ReferentialAction, TableName
from headrace.sinks.base import TextComparison
from headrace.sinks.clickhouse.bookkeeping.own_tables import OWN_DATABASE, own_name
from headrace.sinks.clickhouse.cascades.effects import SETTINGS, ChildTable
from headrace.sinks.clickhouse.cascades.key_log import KeyLog, key_logs, own_prefix, short_hash
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, DROP_SETTINGS, INSERT_SETTINGS, fetch_rows, run_statements
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.server.options import OnRefusedRow
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, resolve_tables
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable
from headrace.sinks.clickhouse.tables.views import live_condition

_DOING: Final = "applying foreign keys to child tables"
_MOST_ROUNDS: Final = 100_000
_PAIRS: Final = 1_000
_NOT_NULLABLE: Final = ("Array(", "Map(", "Tuple(", "JSON", "Variant(", "Dynamic", "Point", "Ring", "LineString", "Multi", "Polygon")


class ClickHouseCascadeStore:
    """The cascades of one pipe in one sink. Its targets keep their definitions: after a statement there is another store."""

    def __init__(self, scope: TargetScope, plan: CascadePlan, pipe: str, texts: TextComparison) -> None:
        self._scope, self._plan, self._pipe, self._texts = scope, plan, pipe, texts
        self._floors: Mapping[TableName, int] = {}

    def find_obstacle(self, cascade: Cascade) -> str:
        if self._scope.options.cluster:
            return "the target is a cluster, where one statement does not see the rows of all shards"
        targets = self._targets
        child = targets[cascade.child]
        if self._scope.target.others or any(table.local_table is not None or table.storage.replication for table in targets.values()):
            return "the target has several hosts or replicas, and one may not have the rows yet that were written to another"
        if not child.has_key:
            return NO_KEY
        if child.family is not EngineFamily.REPLACING or child.metadata_column(MetadataRole.VERSION) is None or not live_condition(child):
            return f"the engine of {child.full_name} is not a ReplacingMergeTree with a version and a deletion column"
        if child.ignores_deletes:
            return f"{child.full_name} keeps deleted rows"
        if self._scope.options.of(cascade.child).on_refused_row is OnRefusedRow.DEAD_LETTER:
            return "the table has on_refused_row = dead_letter, and a row that is written later has missed the key's changes"
        in_key = sorted(set(cascade.key.columns).intersection(child.key_dependencies))
        if in_key and ReferentialAction.SET_NULL in (cascade.key.on_delete, cascade.key.on_update):
            return f"it sets {', '.join(in_key)} to NULL, which is part of the key of {child.full_name}"
        unfit = [column.name for column in child.columns if column.type.startswith(_NOT_NULLABLE)] if in_key else []
        if unfit and cascade.moves_rows(in_key):
            return f"it moves rows of {child.full_name} to other keys, and a key log cannot hold its column {unfit[0]}"
        return _missing_column(cascade.key.columns, child) or _missing_column(cascade.key.parent_columns, targets[cascade.parent])

    def prepare(self, floors: Mapping[TableName, int]) -> None:
        self._floors = dict(floors)
        logs = self._logs
        wanted = {name for log in logs.values() for name in (log.name, log.base_name, log.spellings_name)}
        wanted |= set(self._work_names().values())
        self._run(f"CREATE DATABASE IF NOT EXISTS {quote_name(OWN_DATABASE)}")
        existing = self._existing()
        for name in existing - wanted:
            self._run(f"DROP TABLE IF EXISTS {own_name(name)} SYNC")
        for log in logs.values():
            self._run(log.create_sql())
            if log.has_text:
                self._run(log.create_spellings_sql())
            if log.has_states and log.base_name not in existing:
                # It gets its name when it is complete.
                unfinished = own_name(f"{log.name}_filling")
                self._run(log.create_base_sql(unfinished))
                self._run(log.fill_base_sql(unfinished))
                self._run(f"RENAME TABLE {unfinished} TO {log.base}")

    def apply(self) -> None:
        logs = self._logs
        if self._plan.parents.isdisjoint(self._written(logs)):
            return
        children = {name: self._child(name, logs) for group in self._plan.groups() for name in group}
        for group in self._plan.groups():
            self._derive_events({name: children[name] for name in group if name in logs}, logs)
            for name in group:
                self._change_rows(children[name], logs.get(name))

    def clear(self) -> None:
        logs = self._logs
        existing = self._existing() if any(log.has_states for log in logs.values()) else set()
        for name in self._written(logs):
            if logs[name].has_states and logs[name].base_name in existing:
                for statement in logs[name].advance_base_sql():
                    self._run(statement)
            self._run(f"TRUNCATE TABLE {logs[name].qualified} SYNC")

    def is_clear(self) -> bool:
        return not self._written(self._logs)

    def drop_copies(self) -> None:
        for log in self._logs.values():
            if log.has_states:
                self._run(f"DROP TABLE IF EXISTS {log.base} SYNC")

    def _derive_events(self, children: Mapping[TableName, ChildTable], logs: Mapping[TableName, KeyLog]) -> None:
        for _ in _rounds(children):
            before = {name: self._count_derived(logs[name]) for name in children}
            for name, child in children.items():
                self._spell(child, logs[name])
                self._run(child.derive_events_sql(logs[name]))
            if all(self._count_derived(logs[name]) == before[name] for name in children):
                return

    def _spell(self, child: ChildTable, own_log: KeyLog | None = None) -> None:
        """Copy the events of text keys for each spelling in the child table that the source treats as equal."""
        for name in {cascade.parent for cascade in child.cascades}:
            if child.logs[name].has_text:
                self._run(f"TRUNCATE TABLE {child.logs[name].spellings} SYNC")
        for cascade in child.cascades:
            log = child.logs[cascade.parent]
            for column, referenced in zip(cascade.key.columns, cascade.key.parent_columns, strict=True):
                if child.target.stored_column(column).source.form is not ValueForm.TEXT:
                    continue
                old = log.old(referenced)
                events = self._texts_of(f"SELECT DISTINCT {old} FROM {log.events} WHERE {old} IS NOT NULL")
                if not events:
                    continue
                spelt = child.spellings_sql(column, own_log)
                if self._texts.folds_ascii_letters_only(cascade.parent, referenced) and all(_is_plain(text) for text in events):
                    folded = f"SELECT lower(trimRight({old})) FROM {log.events} WHERE {old} IS NOT NULL"
                    spelt = f"SELECT * FROM ({spelt}) WHERE lower(trimRight(__text)) IN ({folded}) OR match(__text, '[^ -~]')"
                pairs = self._equal_texts(cascade.parent, referenced, events, self._texts_of(spelt))
                for start in range(0, len(pairs), _PAIRS):
                    listed = ", ".join(f"({quote_text(event)}, {quote_text(text)})" for event, text in pairs[start : start + _PAIRS])
                    self._run(
                        f"INSERT INTO {log.spellings} SELECT e.* REPLACE (p.text AS {old}) FROM {log.events} AS e "
                        f"INNER JOIN values('event String, text String', {listed}) AS p ON e.{old} = p.event"
                    )

    def _equal_texts(self, table: TableName, column: str, events: list[str], texts: list[str]) -> list[tuple[str, str]]:
        """Return the pairs of an event's text and a child's text that differ and are equal in the source."""
        weights = self._texts.weights(table, column, events + texts)
        by_weight: dict[str, list[str]] = {}
        for weight, event in zip(weights, events, strict=False):
            by_weight.setdefault(weight, []).append(event)
        found = zip(weights[len(events) :], texts, strict=True)
        return [(event, text) for weight, text in found for event in by_weight.get(weight, ()) if event != text]

    def _texts_of(self, sql: str) -> list[str]:
        return [str(text) for (text,) in self._query(sql)]

    def _change_rows(self, child: ChildTable, own_log: KeyLog | None) -> None:
        if own_log is not None and child.target.source in self._plan.moving:
            for statement in child.write_events_sql(own_log):
                self._run(statement)
            return
        self._spell(child)
        if child.is_only_deleted_from:
            self._run(child.delete_rows_sql())
            return
        self._run(f"DROP TABLE IF EXISTS {child.work} SYNC")
        self._run(child.create_work_sql())
        self._run(child.start_work_sql())
        for number in _rounds((child,), 1):
            self._run(child.next_round_sql(number))
            if not self._count(child.count_round_sql(number)):
                break
        self._run(child.write_results_sql())
        self._run(f"DROP TABLE {child.work} SYNC")

    def _child(self, name: TableName, logs: Mapping[TableName, KeyLog]) -> ChildTable:
        work = own_name(self._work_names()[name])
        return ChildTable(self._targets[name], self._plan.of_child(name), logs, work, self._floors.get(name, 0))

    def _work_names(self) -> dict[TableName, str]:
        children = {cascade.child for cascade in self._plan.cascades}
        return {name: f"{own_prefix(self._pipe)}work_{short_hash(str(name))}" for name in children}

    @functools.cached_property
    def _targets(self) -> dict[TableName, TargetTable]:
        return dict(resolve_tables(self._scope, self._plan.schemas.values()))

    @property
    def _logs(self) -> dict[TableName, KeyLog]:
        return key_logs(self._plan, self._targets, self._pipe, self._floors)

    def _existing(self) -> set[str]:
        prefix = quote_text(own_prefix(self._pipe))
        rows = self._query(f"SELECT name FROM system.tables WHERE database = {quote_text(OWN_DATABASE)} AND startsWith(name, {prefix})")
        return {str(name) for (name,) in rows}

    def _written(self, logs: Mapping[TableName, KeyLog]) -> list[TableName]:
        """Return the tables whose logs have rows."""
        if not logs:
            return []
        names = ", ".join(quote_text(log.name) for log in logs.values())
        sql = f"SELECT name FROM system.tables WHERE database = {quote_text(OWN_DATABASE)} AND name IN ({names}) AND total_rows > 0"
        filled = {str(name) for (name,) in self._query(sql)}
        return [name for name, log in logs.items() if log.name in filled]

    def _count_derived(self, log: KeyLog) -> int:
        return self._count(f"SELECT count() FROM {log.qualified} WHERE derived")

    def _count(self, sql: str) -> int:
        return int(self._query(sql)[0][0])

    def _run(self, sql: str) -> None:
        run_statements(self._scope.target, _DOING, sql, settings={**INSERT_SETTINGS, **CREATE_SETTINGS, **DROP_SETTINGS, **SETTINGS})

    def _query(self, sql: str) -> Sequence[Sequence[Any]]:
        return fetch_rows(self._scope.target, _DOING, sql)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _missing_column(columns: Iterable[str], target: TargetTable) -> str:
    stored = {column.source.name for column in target.columns}
    lacking = [name for name in columns if name not in stored]
    return f"the target of {target.source} has no column {', '.join(lacking)}" if lacking else ""


def _rounds(tables: Iterable[object], start: int = 0) -> Iterator[int]:
    if not list(tables):
        return
    yield from range(start, _MOST_ROUNDS)
    raise DefiniteError(
        f"a foreign key still changes rows after {_MOST_ROUNDS} rounds", hint="this is a defect of Headrace; please report it"
    )
