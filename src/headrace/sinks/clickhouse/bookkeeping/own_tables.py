"""Headrace's own tables in the sink, in the database `headrace`.

Invariant: every row may be written again, because a crash or a lost answer repeats it. Tables replace rows by key (the last insertion wins,
independent of clocks). Rows come singly and often, so merged parts are removed soon.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.bounded_client import json_rows
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, INSERT_SETTINGS, connect, run_statements
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import on_cluster, qualify, quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import TargetTable
from headrace.sinks.schema_changes import LedgerEntry

OWN_DATABASE = "headrace"
MOMENT = "DateTime64(6, 'UTC')"
"""The type of columns with a time."""
OWN_NAMES = ("positions", "lag", "errors", "schema_changes", "pipes", "targets", "cleanups")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_JSON_SETTINGS = {"output_format_json_quote_64bit_integers": "0"}
_OLD_PARTS_LIFETIME_S = 30


def own_name(table: str) -> str:
    return qualify((OWN_DATABASE, table))


@dataclass(frozen=True, slots=True)
class OwnTable:
    name: str
    columns: tuple[tuple[str, str], ...]
    """Name and type, in order."""
    sort_key: tuple[str, ...]
    """The row inserted last replaces others of its key."""

    @property
    def qualified(self) -> str:
        return own_name(self.name)


LEDGER = OwnTable(
    "schema_changes",
    (
        ("pipe", "String"),
        ("version", "UInt64"),
        ("position", "String"),
        ("source_table", "String"),
        ("kind", "LowCardinality(String)"),
        ("statement", "String"),
        ("translation", "String"),
        ("outcome", "LowCardinality(String)"),
        ("detail", "String"),
        ("time", "DateTime64(3, 'UTC')"),
    ),
    ("pipe", "version", "source_table"),
)
"""Schema changes: the source's statement, the sink's statements and the outcome."""


class OwnTables:
    def __init__(self, scope: TargetScope) -> None:
        self._scope, self._target = scope, scope.target

    def ensure(self, table: OwnTable) -> None:
        """Create the database, the table, and columns that an older release did not have."""
        # Other hosts of a cluster may lack what this one has.
        if not self._scope.options.cluster and self.columns(table).issuperset(name for name, _ in table.columns):
            return
        statements = create_statements(table, self._scope)
        run_statements(self._target, f"creating table {table.qualified}", *statements, settings=CREATE_SETTINGS)

    def create_view(self, name: str, body: str) -> None:
        statement = f"CREATE OR REPLACE VIEW {own_name(name)}{on_cluster(self._scope.options.cluster)} AS {body}"
        run_statements(self._target, f"creating view {OWN_DATABASE}.{name}", statement)

    def insert(self, table: OwnTable, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows of JSON values, one for every column; they are stored and visible when this returns."""
        names = [name for name, _ in table.columns]
        lines = [json.dumps({name: row[name] for name in names}) for row in rows]
        if not lines:
            return
        connection = connect(self._target)
        columns = ", ".join(map(quote_name, names))
        body = "\n".join([f"INSERT INTO {table.qualified} ({columns}) FORMAT JSONEachRow", *lines])
        with translate_errors(self._target, f"writing {len(lines)} rows to {table.qualified}"):
            settings = {**connection.few_rows_settings, **connection.supported(INSERT_SETTINGS)}
            connection.client.raw_insert("", None, body.encode(), settings=settings)

    def select(self, table: OwnTable, columns: Sequence[str], condition: str = "1", order: str = "") -> list[list[Any]]:
        """Return current rows as JSON values."""
        ordered = f" ORDER BY {order}" if order else ""
        listed = ", ".join(map(quote_name, columns))
        return self._query(f"SELECT {listed} FROM {table.qualified} FINAL WHERE {condition}{ordered}")

    def exists(self, table: OwnTable) -> bool:
        return bool(self.columns(table))

    def columns(self, table: OwnTable) -> set[str]:
        """Return the table's columns; empty if the table does not exist."""
        sql = f"SELECT name FROM system.columns WHERE database = {quote_text(OWN_DATABASE)} AND table = {quote_text(table.name)}"
        return {name for (name,) in self._query(sql)}

    def existing_tables(self, tables: Collection[str]) -> set[str]:
        """Return those of the tables (`database.table`) that exist."""
        if not tables:
            return set()
        listed = ", ".join(map(quote_text, sorted(tables)))
        sql = f"SELECT concat(database, '.', name) AS qualified FROM system.tables WHERE qualified IN ({listed})"
        return {name for (name,) in self._query(sql)}

    def sync(self, table: OwnTable) -> None:
        """Wait until the current host has all rows that were written to other replicas."""
        if not (self._target.others or self._scope.options.cluster):
            return
        here = f"database = {quote_text(OWN_DATABASE)} AND table = {quote_text(table.name)}"
        if self._query(f"SELECT 1 FROM system.replicas WHERE {here}"):
            run_statements(self._target, f"waiting for the replica of {table.qualified}", f"SYSTEM SYNC REPLICA {table.qualified}")

    def delete_pipe(self, pipe: str) -> None:
        """Delete every row about a pipe. The row in `pipes` goes last, so that an interrupted run can be repeated."""
        here = f"database = {quote_text(OWN_DATABASE)}"
        # Two queries: ClickHouse before 24.7 has no sets from subqueries in conditions on system.columns.
        found = self._query(f"SELECT DISTINCT table FROM system.columns WHERE {here} AND name = 'pipe' AND default_kind = ''")
        views = self._query(f"SELECT name FROM system.tables WHERE {here} AND engine LIKE '%View'")
        tables = sorted((name for (name,) in found if [name] not in views), key=lambda name: name == "pipes")
        statements = (f"DELETE FROM {own_name(table)} WHERE pipe = {quote_text(pipe)}" for table in tables)
        run_statements(self._target, f"forgetting pipe {pipe}", *statements, settings={"lightweight_deletes_sync": "2"})

    def _query(self, sql: str) -> list[list[Any]]:
        connection = connect(self._target)
        with translate_errors(self._target, "reading Headrace's tables"):
            return json_rows(connection.client.raw_query(sql, settings=connection.supported(_JSON_SETTINGS), fmt="JSONCompactEachRow"))


def create_statements(table: OwnTable, scope: TargetScope) -> list[str]:
    """Return the statements that create or complete the table."""
    cluster = scope.options.cluster
    columns = ", ".join(f"{quote_name(name)} {kind}" for name, kind in table.columns)
    key = ", ".join(map(quote_name, table.sort_key))
    # On a cluster, one set of rows for all shards: every host can answer.
    path = quote_text(f"/clickhouse/headrace/{table.name}")
    engine = f"ReplicatedReplacingMergeTree({path}, '{{shard}}-{{replica}}')" if cluster else "ReplacingMergeTree"
    where = on_cluster(cluster)
    adding = ", ".join(f"ADD COLUMN IF NOT EXISTS {quote_name(name)} {kind}" for name, kind in table.columns)
    return [
        f"CREATE DATABASE IF NOT EXISTS {quote_name(OWN_DATABASE)}{where}",
        f"CREATE TABLE IF NOT EXISTS {table.qualified}{where} ({columns}) ENGINE = {engine} ORDER BY ({key}) "
        f"SETTINGS old_parts_lifetime = {_OLD_PARTS_LIFETIME_S}",
        f"ALTER TABLE {table.qualified}{where} {adding}",
    ]


def record_changes(tables: OwnTables, entries: Iterable[LedgerEntry]) -> None:
    """Write the entries that are not stored yet. Duplicates after a lost answer merge by key."""
    wanted = list(entries)
    if not wanted:
        return
    tables.ensure(LEDGER)
    pipes = ", ".join(sorted({quote_text(entry.pipe) for entry in wanted}))
    versions = ", ".join(sorted({str(entry.version) for entry in wanted}))
    there = {tuple(row) for row in tables.select(LEDGER, LEDGER.sort_key, f"pipe IN ({pipes}) AND version IN ({versions})")}
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    fresh = [entry for entry in wanted if (entry.pipe, entry.version, entry.source_table) not in there]
    tables.insert(LEDGER, [{**entry.to_json(), "time": now} for entry in fresh])


def check_not_own_tables(target_tables: Iterable[TargetTable]) -> None:
    """Raise `DefiniteError` if a source table would be replicated into one of Headrace's own tables."""
    for target_table in target_tables:
        if target_table.database == OWN_DATABASE and target_table.table in OWN_NAMES:
            raise DefiniteError(
                f"{target_table.full_name} is a table that Headrace keeps for itself",
                place=f"table {target_table.source}",
                hint="give a target database in the sink's URL, or another target for the table",
            )


def format_timestamp(microseconds: int) -> str:
    """Format microseconds since 1970 as DateTime64(6, 'UTC')."""
    return (_EPOCH + timedelta(microseconds=microseconds)).strftime("%Y-%m-%d %H:%M:%S.%f")


def parse_timestamp_us(text: str) -> int:
    """The inverse of `format_timestamp`."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
