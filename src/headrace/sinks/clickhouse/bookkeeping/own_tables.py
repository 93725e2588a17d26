"""Headrace's own tables in the sink, in the database `headrace`.

Invariant: every row may be written again, because a crash or a lost answer repeats it. Tables either replace rows by key (the last
insertion wins, independent of clocks) or their readers take one row per key. Rows come singly and often, so merged parts are removed soon.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, INSERT_SETTINGS, connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.server.response_rows import json_rows
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import TargetTable

OWN_DATABASE = "headrace"
OWN_NAMES = ("positions", "lag", "errors", "schema_changes", "pipes", "targets", "cleanups")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_JSON_SETTINGS = {"output_format_json_quote_64bit_integers": "0"}
_OLD_PARTS_LIFETIME_S = 30


@dataclass(frozen=True, slots=True)
class OwnTable:
    """Definition of one of Headrace's own tables."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Name and type, in order."""
    sort_key: tuple[str, ...]
    replacing: bool = True
    """Whether the row inserted last replaces others of its key."""

    @property
    def engine(self) -> str:
        return "ReplacingMergeTree" if self.replacing else "MergeTree"

    @property
    def qualified(self) -> str:
        return f"{quote_name(OWN_DATABASE)}.{quote_name(self.name)}"


class OwnTables:
    """Access to Headrace's own tables in one sink."""

    def __init__(self, scope: TargetScope) -> None:
        self._scope, self._target = scope, scope.target

    def ensure(self, table: OwnTable) -> None:
        """Create the database, the table, and columns that an older release did not have."""
        connection = connect(self._target)
        with translate_errors(self._target, f"creating table {table.qualified}"):
            for statement in create_statements(table, self._scope):
                connection.client.command(statement, settings=connection.supported(CREATE_SETTINGS))

    def create_view(self, name: str, body: str) -> None:
        """Create or replace a view over Headrace's own tables."""
        connection = connect(self._target)
        with translate_errors(self._target, f"creating view {OWN_DATABASE}.{name}"):
            statement = f"CREATE OR REPLACE VIEW {quote_name(OWN_DATABASE)}.{quote_name(name)}{_on_cluster(self._scope)} AS {body}"
            connection.client.command(statement)

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
            connection.client.raw_insert("", None, body.encode(), settings=connection.supported(INSERT_SETTINGS))

    def select(self, table: OwnTable, columns: Sequence[str], condition: str = "1", order: str = "") -> list[list[Any]]:
        """Return current rows as JSON values."""
        final = " FINAL" if table.replacing else ""
        ordered = f" ORDER BY {order}" if order else ""
        listed = ", ".join(map(quote_name, columns))
        return self._query(f"SELECT {listed} FROM {table.qualified}{final} WHERE {condition}{ordered}")

    def exists(self, table: OwnTable) -> bool:
        sql = f"SELECT 1 FROM system.tables WHERE database = {quote_text(OWN_DATABASE)} AND name = {quote_text(table.name)}"
        return bool(self._query(sql))

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
            with translate_errors(self._target, f"waiting for the replica of {table.qualified}"):
                connect(self._target).client.command(f"SYSTEM SYNC REPLICA {table.qualified}")

    def delete_pipe(self, pipe: str) -> None:
        """Delete every row about a pipe. The row in `pipes` goes last, so that an interrupted run can be repeated."""
        found = self._query(
            f"SELECT table FROM system.columns WHERE database = {quote_text(OWN_DATABASE)} AND name = 'pipe' AND default_kind = ''"
        )
        views = {
            name
            for (name,) in self._query(
                f"SELECT name FROM system.tables WHERE database = {quote_text(OWN_DATABASE)} AND engine LIKE '%View'"
            )
        }
        connection = connect(self._target)
        for table in sorted({name for (name,) in found} - views, key=lambda name: name == "pipes"):
            with translate_errors(self._target, f"forgetting pipe {pipe}"):
                statement = f"DELETE FROM {quote_name(OWN_DATABASE)}.{quote_name(table)} WHERE pipe = {quote_text(pipe)}"
                connection.client.command(statement, settings=connection.supported({"lightweight_deletes_sync": "2"}))

    def _query(self, sql: str) -> list[list[Any]]:
        connection = connect(self._target)
        with translate_errors(self._target, "reading Headrace's tables"):
            return json_rows(connection.client.raw_query(sql, settings=connection.supported(_JSON_SETTINGS), fmt="JSONCompactEachRow"))


def create_statements(table: OwnTable, scope: TargetScope) -> list[str]:
    """Return the statements that create or complete the table."""
    cluster = scope.options.cluster
    columns = ", ".join(f"{quote_name(name)} {kind}" for name, kind in table.columns)
    key = ", ".join(map(quote_name, table.sort_key))
    engine = table.engine
    if cluster:
        # One set of rows for all shards: every host can answer.
        engine = f"Replicated{engine}({quote_text(f'/clickhouse/headrace/{table.name}')}, '{{shard}}-{{replica}}')"
    where = _on_cluster(scope)
    adding = ", ".join(f"ADD COLUMN IF NOT EXISTS {quote_name(name)} {kind}" for name, kind in table.columns)
    return [
        f"CREATE DATABASE IF NOT EXISTS {quote_name(OWN_DATABASE)}{where}",
        f"CREATE TABLE IF NOT EXISTS {table.qualified}{where} ({columns}) ENGINE = {engine} ORDER BY ({key}) "
        f"SETTINGS old_parts_lifetime = {_OLD_PARTS_LIFETIME_S}",
        f"ALTER TABLE {table.qualified}{where} {adding}",
    ]


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


def _on_cluster(scope: TargetScope) -> str:
    return f" ON CLUSTER {quote_name(scope.options.cluster)}" if scope.options.cluster else ""
