"""Existing tables as `system.tables` and `system.columns` report them, or would report planned ones (for DDL plans without a server)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from clickhouse_connect.driver.client import Client

from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import places_condition
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import VERSION_COLUMN_COMMENT, distributed_engine_sql, engine_sql, hidden_default
from headrace.sinks.clickhouse.tables.engine_parser import (
    DistributedEngine,
    EngineParseError,
    parse_distribution,
    parse_engine,
    referenced_names,
)
from headrace.sinks.clickhouse.tables.target_table import MetadataRole, Place, TargetTable


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


def find_with_local_tables(
    target: ClickHouseTarget, places: Iterable[Place], doing: str = "looking at tables"
) -> tuple[Mapping[Place, ExistingTable], Mapping[Place, ExistingTable]]:
    """Return those of the tables that exist and, for Distributed tables, the local tables below them. `doing`: for error messages."""
    with translate_errors(target, doing):
        client = connect(target).client
        found = _find_tables(client, places)
        beneath: dict[Place, DistributedEngine] = {}
        for place, table in found.items():
            if table.kind == "Distributed":
                # `plan_existing_table` reports an engine that cannot be parsed.
                with contextlib.suppress(EngineParseError):
                    beneath[place] = parse_distribution(parse_engine(table.engine))
        if not beneath:
            return found, {}
        held = {place: (over.database or place[0], over.table) for place, over in beneath.items()}
        local_tables = _find_tables(client, held.values())
        # The clusters that have other servers than this one.
        wide = {row[0] for row in client.query("SELECT DISTINCT cluster FROM system.clusters WHERE NOT is_local").result_rows}
        found.update({place: replace(found[place], has_remote_shards=over.cluster in wide) for place, over in beneath.items()})
        return found, {place: local_tables[where] for place, where in held.items() if where in local_tables}


def _find_tables(client: Client, places: Iterable[Place]) -> dict[Place, ExistingTable]:
    wanted = sorted(set(places))
    if not wanted:
        return {}
    columns: dict[Place, list[ExistingColumn]] = {}
    for database, table, name, kind, default, expression, sorts, partitions, comment in client.query(
        f"{_COLUMNS} WHERE {places_condition(wanted, 'table')} ORDER BY position"
    ).result_rows:
        column = ExistingColumn(name, kind, default, expression, bool(sorts), bool(partitions), comment)
        columns.setdefault((database, table), []).append(column)
    return {
        (database, name): ExistingTable(engine, sort_key, tuple(columns.get((database, name), ())), partition_key, kind)
        for database, name, engine, sort_key, partition_key, kind in client.query(f"{_TABLES} WHERE {places_condition(wanted)}").result_rows
    }


def describe_planned_table(target_table: TargetTable) -> ExistingTable:
    """Return what `system_tables` would report for the table that stores the rows."""
    storage = target_table.storage
    sorted_by = {name for expression in storage.sort_key for name in referenced_names(expression)}
    partitioned_by = set(referenced_names(storage.partition_by)) if storage.partition_by else set()
    columns = [ExistingColumn(column.name, column.type, comment=column.comment) for column in target_table.columns]
    columns += [
        ExistingColumn(
            mark.name,
            mark.type,
            "MATERIALIZED" if mark.hidden else "",
            hidden_default(mark.role) if mark.hidden else "",
            comment=VERSION_COLUMN_COMMENT if mark.role is MetadataRole.VERSION else "",
        )
        for mark in target_table.metadata_columns
    ]
    columns += [ExistingColumn(one.name, one.type, "MATERIALIZED", one.expression) for one in storage.computed]
    keyed = tuple(
        replace(column, in_sort_key=column.name in sorted_by, in_partition_key=column.name in partitioned_by) for column in columns
    )
    return ExistingTable(engine_sql(storage), ", ".join(storage.sort_key), keyed, storage.partition_by, storage.engine)


def describe_planned_distributed_table(target_table: TargetTable) -> ExistingTable:
    """Return what `system_tables` would report for the Distributed table."""
    return ExistingTable(distributed_engine_sql(target_table), "", describe_planned_table(target_table).columns, "", "Distributed")
