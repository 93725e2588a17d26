"""Reads existing tables from `system.tables` and `system.columns`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from headrace.sinks.clickhouse.server.client import Connection
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.tables.engine_parser import DistributedEngine, EngineParseError, parse_distribution, parse_engine


@dataclass(frozen=True, slots=True)
class ExistingColumn:
    """A column, and whether the table's keys depend on it."""

    name: str
    type: str
    default_kind: str = ""
    default_expression: str = ""
    in_sort_key: bool = False
    in_partition_key: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class ExistingTable:
    """A table: its engine with all arguments and clauses (empty for views), its sort key, its columns in order."""

    engine: str
    sort_key: str
    columns: tuple[ExistingColumn, ...]
    partition_key: str = ""
    kind: str = ""
    """The bare engine name, which views have too."""
    has_remote_shards: bool = False
    """Of a Distributed table: whether other servers store some of the rows."""

    def column(self, name: str) -> ExistingColumn | None:
        return next((column for column in self.columns if column.name == name), None)


_COLUMNS = (
    "SELECT database, table, name, type, default_kind, default_expression, is_in_sorting_key, is_in_partition_key, comment"
    " FROM system.columns"
)
_TABLES = "SELECT database, name, engine_full, sorting_key, partition_key, engine FROM system.tables"


def find_tables(connection: Connection, places: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], ExistingTable]:
    """Return those of the tables (database, table) that exist."""
    wanted = sorted(set(places))
    if not wanted:
        return {}
    listed = ", ".join(f"({quote_text(database)}, {quote_text(table)})" for database, table in wanted)
    columns: dict[tuple[str, str], list[ExistingColumn]] = {}
    for database, table, name, kind, default, expression, sorts, partitions, comment in connection.client.query(
        f"{_COLUMNS} WHERE (database, table) IN ({listed}) ORDER BY position"
    ).result_rows:
        column = ExistingColumn(name, kind, default, expression, bool(sorts), bool(partitions), comment)
        columns.setdefault((database, table), []).append(column)
    tables = connection.client.query(f"{_TABLES} WHERE (database, name) IN ({listed})").result_rows
    return {
        (database, name): ExistingTable(engine, sort_key, tuple(columns.get((database, name), ())), partition_key, kind)
        for database, name, engine, sort_key, partition_key, kind in tables
    }


def find_with_local_tables(
    connection: Connection, places: Iterable[tuple[str, str]]
) -> tuple[Mapping[tuple[str, str], ExistingTable], Mapping[tuple[str, str], ExistingTable]]:
    """Return those of the tables that exist and, for Distributed tables, the local tables below them."""
    found = dict(find_tables(connection, places))
    beneath: dict[tuple[str, str], DistributedEngine] = {}
    for place, table in found.items():
        if table.kind == "Distributed":
            try:
                beneath[place] = parse_distribution(parse_engine(table.engine))
            except EngineParseError:
                continue  # `plan_existing_table` reports it
    if not beneath:
        return found, {}
    held = {place: (over.database or place[0], over.table) for place, over in beneath.items()}
    local_tables = find_tables(connection, held.values())
    wide = _multi_server_clusters(connection)
    found.update({place: replace(found[place], has_remote_shards=over.cluster in wide) for place, over in beneath.items()})
    return found, {place: local_tables[where] for place, where in held.items() if where in local_tables}


def _multi_server_clusters(connection: Connection) -> frozenset[str]:
    """Return the clusters that have other servers than this one."""
    rows = connection.client.query("SELECT DISTINCT cluster FROM system.clusters WHERE NOT is_local").result_rows
    return frozenset(str(row[0]) for row in rows)
