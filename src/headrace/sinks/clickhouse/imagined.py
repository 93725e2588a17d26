"""A table that Headrace would make, as the server would describe it: for translations that are made without a server."""

from __future__ import annotations

from headrace.sinks.clickhouse.creation import computed_column, create_sql, sort_key
from headrace.sinks.clickhouse.found import FoundColumn, FoundTable
from headrace.sinks.clickhouse.layout import Layout


def imagine(layout: Layout) -> FoundTable:
    """What `found` would say of the table."""
    keys = sort_key(layout)
    stored = [(column.name, column.type) for column in layout.columns] + [(mark.name, mark.type) for mark in layout.marks]
    columns = [FoundColumn(name, kind, in_sort_key=name in keys) for name, kind in stored]
    name, kind, expression = computed_column(layout)
    columns.append(FoundColumn(name, kind, "MATERIALIZED", expression, in_sort_key=name in keys))
    return FoundTable(create_sql(layout).partition(" ENGINE = ")[2], ", ".join(keys), tuple(columns))
