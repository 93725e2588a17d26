"""Tables that are there, as the server describes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.sinks.clickhouse.client import Connection
from headrace.sinks.clickhouse.names import quote_text


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """A column, and whether the table's keys depend on it."""

    name: str
    type: str
    default_kind: str = ""
    default_expression: str = ""
    in_sort_key: bool = False
    in_partition_key: bool = False


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table: its engine with all arguments and clauses, its sort key, its columns in order."""

    engine: str
    sort_key: str
    columns: tuple[FoundColumn, ...]
    partition_key: str = ""

    def column(self, name: str) -> FoundColumn | None:
        return next((column for column in self.columns if column.name == name), None)


_COLUMNS = (
    "SELECT database, table, name, type, default_kind, default_expression, is_in_sorting_key, is_in_partition_key FROM system.columns"
)
_TABLES = "SELECT database, name, engine_full, sorting_key, partition_key FROM system.tables"


def find_tables(connection: Connection, places: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], FoundTable]:
    """Those of the tables (database, table) that are there."""
    wanted = sorted(set(places))
    if not wanted:
        return {}
    listed = ", ".join(f"({quote_text(database)}, {quote_text(table)})" for database, table in wanted)
    columns: dict[tuple[str, str], list[FoundColumn]] = {}
    for database, table, *described in connection.client.query(
        f"{_COLUMNS} WHERE (database, table) IN ({listed}) ORDER BY position"
    ).result_rows:
        columns.setdefault((database, table), []).append(FoundColumn(*described[:4], *map(bool, described[4:])))
    tables = connection.client.query(f"{_TABLES} WHERE (database, name) IN ({listed})").result_rows
    return {
        (database, name): FoundTable(engine, sort_key, tuple(columns.get((database, name), ())), partition_key)
        for database, name, engine, sort_key, partition_key in tables
    }
