"""Creates, recognises and alters the tables and the views of a base table.

Invariant: a preparation or alteration that a crash interrupted is completed by running it again. The comment of the table of cells contains
the base table's definition for which the tables were last completed, the comment of the table of merged rows the one for which it was last
filled; Headrace recognises its tables by them. Objects of others are never changed. The view of the base table's name shows the source's
rows at any moment: it reads cells while merged rows are filled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.cql.tables import ColumnRole, CqlTable
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.merged_rows.merger import run_steps
from headrace.sinks.clickhouse.cells.merged_rows.row_merge import NO_TRANSFORMS, MergeStep, RowMerge, RowTables
from headrace.sinks.clickhouse.cells.merged_rows.row_transforms import RowTransforms, check_names, row_transforms
from headrace.sinks.clickhouse.cells.storage import CELLS_SUFFIX, LIVE_SUFFIX, PARTITIONS_SUFFIX, ROWS_SUFFIX, CellStorage, columns_sql
from headrace.sinks.clickhouse.cells.view import view_sql
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, DROP_SETTINGS, Connection, connect, long_running_connection
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import check_name_lengths, places_condition, quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import target_name
from headrace.transforms.options import Transforms

_CELLS_COMMENT: Final = "Headrace, cells of "
_VIEW_COMMENT: Final = "Headrace, made of cells of "
_ROWS_COMMENT: Final = "Headrace, rows of "
_MERGED: Final = ", merged when they are written"
"""The end of the comment of a view that reads merged rows. Releases before these know the view by the beginning, and replace it; then
merged rows are outdated."""
_TRANSFORMS: Final = "transforms"
"""The key of the transforms in the comment of the table of merged rows, if there are some."""
_NOTHING: Final = Transforms()
_SETTINGS: Final = {**CREATE_SETTINGS, "max_query_size": str(16 << 20), "max_ast_elements": "2000000", **DROP_SETTINGS}
"""The view of a table with hundreds of columns exceeds the server's default limits. Merged rows of any size can be filled again."""


@dataclass(frozen=True, slots=True)
class TableLocations:
    """Names of a base table's tables and views."""

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
    def live(self) -> str:
        """The view that merges cells at each query."""
        return self._quoted(LIVE_SUFFIX)

    @property
    def rows(self) -> str:
        return self._quoted(ROWS_SUFFIX)

    def names(self, *, merges: bool = True) -> tuple[str, ...]:
        """Return the names of all objects; `merges`: also those of merged rows."""
        suffixes = ("", CELLS_SUFFIX, PARTITIONS_SUFFIX, *((ROWS_SUFFIX, LIVE_SUFFIX) if merges else ()))
        return tuple(self.table + suffix for suffix in suffixes)

    def _quoted(self, suffix: str) -> str:
        return f"{quote_name(self.database)}.{quote_name(self.table + suffix)}"


def table_locations(table: CqlTable, scope: TargetScope) -> TableLocations:
    return TableLocations(*target_name(table.name, scope.target, scope.options))


def row_merge(table: CqlTable, locations: TableLocations, transforms: RowTransforms = NO_TRANSFORMS) -> RowMerge:
    """Return the statements that merge a base table's rows."""
    here = f"database = {quote_text(locations.database)} AND name = {quote_text(locations.table + ROWS_SUFFIX)}"
    comment = f"ifNull((SELECT comment FROM system.tables WHERE {here}), '')"
    is_altered = f"{comment} != {quote_text(_rows_comment(table, transforms))}"
    return RowMerge(CellStorage(table), RowTables(locations.cells, locations.partitions, locations.rows, is_altered), transforms)


@dataclass(frozen=True, slots=True)
class _Existing:
    """A base table's objects in ClickHouse."""

    cells: CqlTable | None = None
    """The definition that the tables of cells were created for; None if there are none."""
    rows: CqlTable | None = None
    """The definition that merged rows were filled for; None if there are none, or not all."""
    transforms: RowTransforms = NO_TRANSFORMS
    """By which merged rows were filled."""
    names: frozenset[str] = frozenset()
    merges: bool = True
    """Whether the table is to have merged rows."""


@dataclass(frozen=True, slots=True)
class _Preparation:
    """Statements that create or complete a base table's tables and views, in this order."""

    create: list[str] = field(default_factory=list)
    fill: list[MergeStep] = field(default_factory=list)
    """May take hours."""
    complete: list[str] = field(default_factory=list)


def prepare_tables(
    scope: TargetScope, tables: Iterable[CqlTable], *, merges: bool | None = None, transforms: Transforms = _NOTHING
) -> None:
    """Check all tables, then create missing ones; tables with another definition are altered, and merged rows filled by other transforms
    are filled again.

    `merges`: merged rows are stored; else the view merges cells at each query. None: as existing tables do; new ones store them.
    """
    _check_one_host(scope)
    wanted = [(table, table_locations(table, scope)) for table in tables]
    for table, _ in wanted:
        check_names(transforms, table)
    _check_target_conflicts([(table, locations, locations.names(merges=False)) for table, locations in wanted])
    connection = connect(scope.target)
    known: list[_Existing] = []
    for table, locations in wanted:
        check_name_lengths(locations.database, locations.table + PARTITIONS_SUFFIX)
        with translate_errors(scope.target, f"looking at table {locations.database}.{locations.table}"):
            known.append(_read_existing(connection, table, locations, merges=merges))
    _check_target_conflicts(
        [(table, locations, locations.names(merges=before.merges)) for (table, locations), before in zip(wanted, known, strict=True)]
    )
    plans = [
        _plan_preparation(table, locations, before, _transforms_of(table, transforms, before))
        for (table, locations), before in zip(wanted, known, strict=True)
    ]
    for (table, _), plan in zip(wanted, plans, strict=True):
        _run(scope, plan, f"making the tables of {table.name}")


def alter_tables(
    scope: TargetScope, old: CqlTable, new: CqlTable, *, merges: bool | None = None, transforms: Transforms = _NOTHING
) -> None:
    """Apply an alteration of the base table to the tables and the views."""
    locations = table_locations(new, scope)
    connection = connect(scope.target)
    with translate_errors(scope.target, f"altering the tables of {new.name}"):
        before = _read_existing(connection, new, locations, merges=merges)
    plan = _plan_preparation(new, locations, replace(before, cells=before.cells or old), _transforms_of(new, transforms, before))
    _run(scope, plan, f"altering the tables of {new.name}")


def clear_tables(scope: TargetScope, table: CqlTable) -> None:
    """Truncate a base table's tables."""
    locations, connection = table_locations(table, scope), connect(scope.target)
    with translate_errors(scope.target, f"emptying the tables of {table.name}"):
        for name, _, _ in _tables(CellStorage(table), locations):
            connection.client.command(f"TRUNCATE TABLE {name}", settings=connection.supported(DROP_SETTINGS))
        if stores_rows(scope, locations):
            connection.client.command(f"TRUNCATE TABLE {locations.rows}", settings=connection.supported(DROP_SETTINGS))


def stores_rows(scope: TargetScope, locations: TableLocations) -> bool:
    """Whether a base table has merged rows, which every writer of cells must merge."""
    with translate_errors(scope.target, f"looking at table {locations.rows}"):
        here = f"database = {quote_text(locations.database)} AND name = {quote_text(locations.table + ROWS_SUFFIX)}"
        sql = f"SELECT count() FROM system.tables WHERE {here} AND startsWith(comment, {quote_text(_ROWS_COMMENT)})"
        return bool(connect(scope.target).client.query(sql).result_rows[0][0])


def stored_transforms(scope: TargetScope, locations: TableLocations) -> RowTransforms:
    """Return the transforms by which a base table's merged rows were filled."""
    with translate_errors(scope.target, f"looking at table {locations.rows}"):
        here = f"database = {quote_text(locations.database)} AND name = {quote_text(locations.table + ROWS_SUFFIX)}"
        found = connect(scope.target).client.query(f"SELECT comment FROM system.tables WHERE {here}").result_rows
    return _transforms_in(str(found[0][0])) if found else NO_TRANSFORMS


def tables_with_rows(scope: TargetScope, tables: Iterable[CqlTable]) -> list[CqlTable]:
    """Return the tables that have merged rows."""
    named = {
        (locations.database, locations.table + ROWS_SUFFIX): table for table in tables for locations in [table_locations(table, scope)]
    }
    if not named:
        return []
    is_ours = f"startsWith(comment, {quote_text(_ROWS_COMMENT)})"
    query = f"SELECT database, name FROM system.tables WHERE {places_condition(named)} AND {is_ours}"
    with translate_errors(scope.target, "looking for tables of merged rows"):
        found = connect(scope.target).client.query(query, settings={"max_query_size": str(16 << 20)}).result_rows
    return [named[str(database), str(name)] for database, name in found]


def _run(scope: TargetScope, plan: _Preparation, what: str) -> None:
    connection = connect(scope.target)
    with translate_errors(scope.target, what):
        for statement in plan.create:
            connection.client.command(statement, settings=connection.supported(_SETTINGS))
        if plan.fill:
            with long_running_connection(scope.target) as patient:
                run_steps(patient, plan.fill)
        for statement in plan.complete:
            connection.client.command(statement, settings=connection.supported(_SETTINGS))


def _transforms_of(table: CqlTable, transforms: Transforms, existing: _Existing) -> RowTransforms:
    found = row_transforms(transforms, table)
    if not existing.merges and not found.is_empty:
        raise DefiniteError(
            f"transforms apply to merged rows, and {table.name} has none: its view merges cells at each query",
            place=f"table {table.name}",
            hint="store merged rows: --set scylla.merge=write; or remove the transforms",
        )
    return found


def _plan_preparation(table: CqlTable, locations: TableLocations, existing: _Existing, transforms: RowTransforms) -> _Preparation:
    storage, before = CellStorage(table), existing.cells
    plan = _Preparation([f"CREATE DATABASE IF NOT EXISTS {quote_name(locations.database)}"])
    for name, columns, roles in _tables(storage, locations):
        key = ", ".join(map(quote_name, storage.sort_key(*roles)))
        comment = f" COMMENT {quote_text(_comment(table))}"
        plan.create.append(
            f"CREATE TABLE IF NOT EXISTS {name} ({columns_sql(columns)}) ENGINE = AggregatingMergeTree ORDER BY ({key}) "
            f"SETTINGS allow_suspicious_indices = 1{comment}"
        )
    is_altered = before is not None and before != table
    if before is not None and is_altered:
        plan.create.extend(_alter_statements(CellStorage(before), storage, locations))
    if existing.merges:
        _plan_rows(plan, row_merge(table, locations, transforms), locations, existing)
    else:
        plan.complete.append(_live_view(locations.view, table, locations))
        if locations.table + ROWS_SUFFIX in existing.names:
            plan.complete.append(f"DROP TABLE IF EXISTS {locations.rows}")
        if locations.table + LIVE_SUFFIX in existing.names:
            plan.complete.append(f"DROP VIEW IF EXISTS {locations.live}")
    if before is not None and is_altered:
        plan.complete.extend(_drop_statements(CellStorage(before), storage, locations))
        plan.complete.append(f"ALTER TABLE {locations.cells} MODIFY COMMENT {quote_text(_comment(table))}")
    return plan


def _plan_rows(plan: _Preparation, merge: RowMerge, locations: TableLocations, existing: _Existing) -> None:
    """Plan the table of merged rows, and the views. A table that only got columns is not filled again: the columns are empty."""
    table, transforms = merge.storage.table, merge.transforms
    plan.create.append(_live_view(locations.live, table, locations))
    is_filled = existing.rows is not None and not transforms.makes_other_values(existing.transforms)
    added = _added_columns(row_merge(existing.rows, locations, transforms), merge) if existing.rows is not None and is_filled else None
    if added is None:
        if locations.table in existing.names:
            plan.create.append(_live_view(locations.view, table, locations, transforms))
        plan.create.append(merge.create_sql(quote_text(_ROWS_COMMENT + str(table.name))))
        plan.fill.extend(merge.steps(None))
    elif added:
        plan.create.append(f"ALTER TABLE {locations.rows} {', '.join(added)}")
    if (existing.rows, existing.transforms) != (table, transforms):
        plan.complete.append(f"ALTER TABLE {locations.rows} MODIFY COMMENT {quote_text(_rows_comment(table, transforms))}")
    comment = quote_text(f"{_VIEW_COMMENT}{table.name}{_MERGED}")
    plan.complete.append(f"CREATE OR REPLACE VIEW {locations.view} AS {merge.view_sql()} COMMENT {comment}")


def _added_columns(old: RowMerge, new: RowMerge) -> list[str] | None:
    """Return the actions that add columns; None if more than that changed."""
    was, wanted = dict(old.columns()), dict(new.columns())
    if not was.items() <= wanted.items():
        return None
    return [f"ADD COLUMN IF NOT EXISTS {quote_name(name)} {kind}" for name, kind in wanted.items() if name not in was]


def _live_view(name: str, table: CqlTable, locations: TableLocations, transforms: RowTransforms = NO_TRANSFORMS) -> str:
    """Return the statement that creates a view that merges cells at each query."""
    select = view_sql(CellStorage(table), locations.cells, locations.partitions)
    if not transforms.is_empty:
        shown = filter(transforms.shows, table.columns)
        named = [f"{transforms.value_sql(one, f'shown.{quote_name(one.name)}')} AS {quote_name(transforms.name_of(one))}" for one in shown]
        select = f"WITH shown AS ({select}) SELECT {', '.join(named)} FROM shown"
    return f"CREATE OR REPLACE VIEW {name} AS {select} COMMENT {quote_text(_VIEW_COMMENT + str(table.name))}"


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


def _read_existing(connection: Connection, table: CqlTable, locations: TableLocations, *, merges: bool | None) -> _Existing:
    """Return the existing objects. Raise `DefiniteError` if another object has one of the names that are wanted."""
    names = ", ".join(map(quote_text, locations.names()))
    found = connection.client.query(
        f"SELECT name, engine, comment FROM system.tables WHERE database = {quote_text(locations.database)} AND name IN ({names})"
    ).result_rows
    comments = {str(name): (str(engine), str(comment)) for name, engine, comment in found}
    beginnings = {"": _VIEW_COMMENT, LIVE_SUFFIX: _VIEW_COMMENT, ROWS_SUFFIX: _ROWS_COMMENT}
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, (engine, comment) in comments.items():
        beginning = f"{beginnings.get(name.removeprefix(locations.table), _CELLS_COMMENT)}{table.name}"
        if comment == beginning or comment.startswith((f"{beginning}:", f"{beginning}{_MERGED}")):
            texts[name] = comment
        else:
            others[name] = engine
    is_new = locations.table + CELLS_SUFFIX not in texts
    stores = merges if merges is not None else is_new or locations.table + ROWS_SUFFIX in texts
    for name in others.keys() & set(locations.names(merges=stores)):
        raise DefiniteError(
            f"{locations.database}.{name} exists ({others[name]}) and was not created for {table.name}",
            place=f"table {table.name}",
            hint="drop or rename it, or give another target database in the sink's URL",
        )
    cells = _definition_in(texts.get(locations.table + CELLS_SUFFIX, ""))
    # Another release may have written cells without merging them.
    is_merged = texts.get(locations.table, "").endswith(_MERGED)
    rows = _definition_in(texts.get(locations.table + ROWS_SUFFIX, "")) if is_merged and cells is not None else None
    transforms = _transforms_in(texts.get(locations.table + ROWS_SUFFIX, "")) if rows is not None else NO_TRANSFORMS
    return _Existing(cells, rows, transforms, frozenset(texts), stores)


def _definition_in(comment: str) -> CqlTable | None:
    _, found, definition = comment.partition(": ")
    return CqlTable.from_json(json.loads(definition)) if found else None


def _transforms_in(comment: str) -> RowTransforms:
    _, found, definition = comment.partition(": ")
    raw = json.loads(definition).get(_TRANSFORMS) if found else None
    return RowTransforms.from_json(raw) if raw is not None else NO_TRANSFORMS


def _rows_comment(table: CqlTable, transforms: RowTransforms) -> str:
    own = {} if transforms.is_empty else {_TRANSFORMS: transforms.to_json()}
    return f"{_ROWS_COMMENT}{table.name}: {json.dumps({**table.to_json(), **own}, separators=(',', ':'))}"


def _comment(table: CqlTable) -> str:
    return f"{_CELLS_COMMENT}{table.name}: {json.dumps(table.to_json(), separators=(',', ':'))}"


def _check_target_conflicts(wanted: list[tuple[CqlTable, TableLocations, tuple[str, ...]]]) -> None:
    taken: dict[tuple[str, str], CqlTable] = {}
    for table, locations, names in wanted:
        for name in names:
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
