"""Creates, recognises and alters the tables and the view of a base table.

Invariant: a preparation or alteration that a crash interrupted is completed by running it again. The comment of the rows table contains the
base table's definition for which the tables were last completed; Headrace recognises its tables by it. Objects of others are never changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.cql.tables import ColumnRole, CqlTable
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.storage import CELLS_SUFFIX, PARTITIONS_SUFFIX, CellStorage, columns_sql
from headrace.sinks.clickhouse.cells.view import view_sql
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, Connection, connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import check_name_lengths, quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_names import target_name

_CELLS_COMMENT: Final = "Headrace, cells of "
_VIEW_COMMENT: Final = "Headrace, made of cells of "
_SETTINGS: Final = {**CREATE_SETTINGS, "max_query_size": str(16 << 20), "max_ast_elements": "2000000"}
"""The view of a table with hundreds of columns exceeds the server's default limits."""


@dataclass(frozen=True, slots=True)
class TableLocations:
    """Names of a base table's tables and view."""

    database: str
    table: str

    @property
    def view(self) -> str:
        return self._quoted("")

    @property
    def cells(self) -> str:
        return self._quoted(CELLS_SUFFIX)

    @property
    def partitions(self) -> str:
        return self._quoted(PARTITIONS_SUFFIX)

    @property
    def names(self) -> tuple[str, str, str]:
        return self.table, self.table + CELLS_SUFFIX, self.table + PARTITIONS_SUFFIX

    def _quoted(self, suffix: str) -> str:
        return f"{quote_name(self.database)}.{quote_name(self.table + suffix)}"


def table_locations(table: CqlTable, scope: TargetScope) -> TableLocations:
    return TableLocations(*target_name(table.name, scope.target, scope.options))


def prepare_tables(scope: TargetScope, tables: Iterable[CqlTable]) -> None:
    """Check all tables, then create missing ones; tables with another definition are altered."""
    _check_one_host(scope)
    wanted = [(table, table_locations(table, scope)) for table in tables]
    _check_target_conflicts(wanted)
    connection = connect(scope.target)
    known: list[CqlTable | None] = []
    for table, locations in wanted:
        check_name_lengths(locations.database, locations.table + PARTITIONS_SUFFIX)
        with translate_errors(scope.target, f"looking at table {locations.database}.{locations.table}"):
            known.append(_read_definition(connection, table, locations))
    plans = [list(_preparation_statements(table, locations, before)) for (table, locations), before in zip(wanted, known, strict=True)]
    for (table, _), statements in zip(wanted, plans, strict=True):
        with translate_errors(scope.target, f"making the tables of {table.name}"):
            for statement in statements:
                connection.client.command(statement, settings=connection.supported(_SETTINGS))


def alter_tables(scope: TargetScope, old: CqlTable, new: CqlTable) -> None:
    """Apply an alteration of the base table to the tables and the view."""
    locations = table_locations(new, scope)
    connection = connect(scope.target)
    with translate_errors(scope.target, f"altering the tables of {new.name}"):
        before = _read_definition(connection, new, locations) or old
        for statement in list(_preparation_statements(new, locations, before)):
            connection.client.command(statement, settings=connection.supported(_SETTINGS))


def clear_tables(scope: TargetScope, table: CqlTable) -> None:
    """Truncate a base table's tables."""
    locations, connection = table_locations(table, scope), connect(scope.target)
    with translate_errors(scope.target, f"emptying the tables of {table.name}"):
        for name, _, _ in _tables(CellStorage(table), locations):
            connection.client.command(f"TRUNCATE TABLE {name}")


def _preparation_statements(table: CqlTable, locations: TableLocations, before: CqlTable | None) -> Iterator[str]:
    """Yield the statements that create or complete the tables."""
    storage = CellStorage(table)
    yield f"CREATE DATABASE IF NOT EXISTS {quote_name(locations.database)}"
    for name, columns, roles in _tables(storage, locations):
        key = ", ".join(map(quote_name, storage.sort_key(*roles)))
        comment = f" COMMENT {quote_text(_comment(table))}"
        yield (
            f"CREATE TABLE IF NOT EXISTS {name} ({columns_sql(columns)}) ENGINE = AggregatingMergeTree ORDER BY ({key}) "
            f"SETTINGS allow_suspicious_indices = 1{comment}"
        )
    if before is not None and before != table:
        yield from _alter_statements(CellStorage(before), storage, locations)
    yield (
        f"CREATE OR REPLACE VIEW {locations.view} AS {view_sql(storage, locations.cells, locations.partitions)} "
        f"COMMENT {quote_text(_VIEW_COMMENT + str(table.name))}"
    )
    if before is not None and before != table:
        yield from _drop_statements(CellStorage(before), storage, locations)
        yield f"ALTER TABLE {locations.cells} MODIFY COMMENT {quote_text(_comment(table))}"


def _tables(storage: CellStorage, locations: TableLocations) -> Iterator[tuple[str, list[tuple[str, str]], tuple[ColumnRole, ...]]]:
    yield locations.cells, storage.row_columns(), (ColumnRole.PARTITION, ColumnRole.CLUSTERING)
    if storage.is_clustered:
        yield locations.partitions, storage.partition_columns(), (ColumnRole.PARTITION,)


def _alter_statements(old: CellStorage, new: CellStorage, locations: TableLocations) -> Iterator[str]:
    """Yield statements for new and extended columns. A column of the same name with another type is another column: its values are lost."""
    if _key_of(old.table) != _key_of(new.table):
        raise DefiniteError(
            f"the primary key of {new.table.name} is another one than that of the table that was replicated",
            place=f"table {new.table.name}",
            hint=f"it is another table: drop {locations.cells}, {locations.partitions} and the view {locations.view},"
            " and replicate it again",
        )
    for (name, columns, _), (_, before, _) in zip(_tables(new, locations), _tables(old, locations), strict=True):
        was = dict(before)
        actions = []
        for column, kind in columns:
            if column in was and was[column] != kind and _is_extended_column(column, old.table, new.table):
                actions.append(f"MODIFY COLUMN {quote_name(column)} {kind}")
            elif was.get(column) != kind:
                actions.append(f"ADD COLUMN IF NOT EXISTS {quote_name(column)} {kind}")
                if column in was:
                    yield f"ALTER TABLE {name} DROP COLUMN IF EXISTS {quote_name(column)}"
        if actions:
            yield f"ALTER TABLE {name} {', '.join(actions)}"


def _key_of(table: CqlTable) -> list[tuple[str, str, bool]]:
    return [(column.name, str(column.type), column.descending) for column in (*table.partition_key, *table.clustering)]


def _drop_statements(old: CellStorage, new: CellStorage, locations: TableLocations) -> Iterator[str]:
    """Yield statements that drop columns, after the view that read them is replaced."""
    for (name, columns, _), (_, before, _) in zip(_tables(new, locations), _tables(old, locations), strict=True):
        kept = {column for column, _ in columns}
        actions = [f"DROP COLUMN IF EXISTS {quote_name(column)}" for column, _ in before if column not in kept]
        if actions:
            yield f"ALTER TABLE {name} {', '.join(actions)}"


def _is_extended_column(stored: str, old: CqlTable, new: CqlTable) -> bool:
    """Whether a stored column belongs to the same CQL column, whose user type got new or renamed fields."""
    name = stored.split(":", 2 if stored.startswith("field:") else 1)[-1]
    one = next((column for column in old.columns if column.name == name), None)
    other = next((column for column in new.columns if column.name == name), None)
    return one is not None and other is not None and one.role is other.role and is_extended_type(one.type, other.type)


def is_extended_type(old: CqlType, new: CqlType) -> bool:
    """Whether a type is another one with more or renamed fields in its user types."""
    if (old.name, old.frozen, old.size, old.udt) != (new.name, new.frozen, new.size, new.udt) or len(old.args) > len(new.args):
        return False
    if old.name != "udt" and len(old.args) != len(new.args):
        return False
    return all(one == other or is_extended_type(one, other) for one, other in zip(old.args, new.args, strict=False))


def _read_definition(connection: Connection, table: CqlTable, locations: TableLocations) -> CqlTable | None:
    """Return the definition that the tables were created for; None if there are none. Raise `DefiniteError` if another object has one of
    their names."""
    names = ", ".join(map(quote_text, locations.names))
    found = connection.client.query(
        f"SELECT name, engine, comment FROM system.tables WHERE database = {quote_text(locations.database)} AND name IN ({names})"
    ).result_rows
    comments = {str(name): (str(engine), str(comment)) for name, engine, comment in found}
    before: CqlTable | None = None
    for name, (engine, comment) in comments.items():
        ours = _VIEW_COMMENT if name == locations.table else _CELLS_COMMENT
        if not comment.startswith(f"{ours}{table.name}"):
            raise DefiniteError(
                f"{locations.database}.{name} exists ({engine}) and was not created for {table.name}",
                place=f"table {table.name}",
                hint="drop or rename it, or give another target database in the sink's URL",
            )
        if name == locations.table + CELLS_SUFFIX:
            before = CqlTable.from_json(json.loads(comment[len(f"{ours}{table.name}: ") :]))
    return before


def _comment(table: CqlTable) -> str:
    return f"{_CELLS_COMMENT}{table.name}: {json.dumps(table.to_json(), separators=(',', ':'))}"


def _check_target_conflicts(wanted: list[tuple[CqlTable, TableLocations]]) -> None:
    taken: dict[tuple[str, str], CqlTable] = {}
    for table, locations in wanted:
        for name in locations.names:
            other = taken.setdefault((locations.database, name), table)
            if other is not table:
                raise DefiniteError(
                    f"{other.name} and {table.name} would both be written to {locations.database}.{name}",
                    place=f"table {table.name}",
                    hint="leave the database out of the sink's URL (each keyspace then gets its own), or choose with --tables",
                )


def _check_one_host(scope: TargetScope) -> None:
    if scope.target.others or scope.options.cluster:
        raise DefiniteError(
            "tables of cells are made on one server, not on a cluster's",
            place=str(scope.target),
            hint="give one host; a database with the engine Replicated replicates its tables",
        )
