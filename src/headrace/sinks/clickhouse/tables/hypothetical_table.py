"""A table that Headrace would make, as the server would describe it: for translations that are made without a server."""

from __future__ import annotations

from headrace.sinks.clickhouse.server.quoting import quote_text
from headrace.sinks.clickhouse.tables.create_table import MADE, engine_sql
from headrace.sinks.clickhouse.tables.engine_parser import names_in
from headrace.sinks.clickhouse.tables.system_tables import ExistingColumn, ExistingTable
from headrace.sinks.clickhouse.tables.target_table import MetadataRole, TargetTable


def describe_planned_table(layout: TargetTable) -> ExistingTable:
    """What `found` would say of the table that holds the rows."""
    storage = layout.storage
    sorted_by = {name for expression in storage.sort_key for name in names_in(expression)}
    partitioned_by = set(names_in(storage.partition_by)) if storage.partition_by else set()
    columns = [ExistingColumn(column.name, column.type, comment=column.comment) for column in layout.columns]
    columns += [ExistingColumn(mark.name, mark.type, comment=MADE if mark.meaning is MetadataRole.VERSION else "") for mark in layout.marks]
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


def describe_planned_distributed_table(layout: TargetTable) -> ExistingTable:
    """What `found` would say of the table that distributes the rows."""
    assert layout.holder is not None
    places = ", ".join(map(quote_text, (layout.storage.cluster, *layout.holder)))
    return ExistingTable(f"Distributed({places}, {layout.storage.shard_by})", "", describe_planned_table(layout).columns, "", "Distributed")
