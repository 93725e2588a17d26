"""Describes a table that Headrace would create as `system.tables` would: for DDL plans that are made without a server."""

from __future__ import annotations

from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.tables.create_table import VERSION_COLUMN_COMMENT, engine_sql, hidden_default
from headrace.sinks.clickhouse.tables.engine_parser import referenced_names
from headrace.sinks.clickhouse.tables.system_tables import ExistingColumn, ExistingTable
from headrace.sinks.clickhouse.tables.target_table import MetadataRole, TargetTable


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
        ExistingColumn(
            column.name,
            column.type,
            column.default_kind,
            column.default_expression,
            column.name in sorted_by,
            column.name in partitioned_by,
            column.comment,
        )
        for column in columns
    )
    return ExistingTable(engine_sql(storage), ", ".join(storage.sort_key), keyed, storage.partition_by, storage.engine)


def describe_planned_distributed_table(target_table: TargetTable) -> ExistingTable:
    """Return what `system_tables` would report for the Distributed table."""
    assert target_table.local_table is not None
    places = ", ".join(map(quote_text, (target_table.storage.cluster, *target_table.local_table)))
    return ExistingTable(
        f"Distributed({places}, {target_table.storage.shard_by})", "", describe_planned_table(target_table).columns, "", "Distributed"
    )
