"""Deletes cells that a repaired row does not have at the source.

Cells merge by `max`, so writing what the source has does not remove what it lost. A stored cell is *stale* if it was written up to the time
of the read (`RowBlock.as_of`) and is not among the cells that the read returned. A deletion with the write time of the stale cell replaces
it: a deletion wins against a live cell of the same time, and hides nothing that was written later. The source has a tombstone of that time
or a later one, so a replay of the log cannot bring the value back, and every later log row wins.

Elements of lists need no deletion: `base:X` replaces a list as of the read.

The rows that were read go into a temporary table, as cells. One statement for each table of cells compares both and writes the deletions.
Repeatable: a deletion is written again with the same time.
"""

from __future__ import annotations

from typing import Final, assert_never

import pyarrow as pa

from headrace.cql.tables import ColumnRole
from headrace.cql.types import CqlType
from headrace.sinks.clickhouse.cells.batches import CellBatch, insert_sql, plain_type
from headrace.sinks.clickhouse.cells.merged_rows.merger import merge_settings, own_session
from headrace.sinks.clickhouse.cells.packed_columns import time_bytes
from headrace.sinks.clickhouse.cells.storage import CellColumn, CellForm, CellStorage, cell_type, element_type
from headrace.sinks.clickhouse.cells.types import FieldNaming, is_nullable, is_plain, nullable_type
from headrace.sinks.clickhouse.cells.view import key_names
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name as q
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope

AS_OF: Final = "as:of"
"""The temporary table's column of the time of the read, as in a cell's header."""
REREAD: Final = "reread"


class StaleCells:
    """Deletes the stale cells of one of the two tables of a base table; belongs to one task."""

    def __init__(self, scope: TargetScope, storage: CellStorage, table: str, *, of_rows: bool) -> None:
        self._scope, self._table = scope, table
        roles = (ColumnRole.PARTITION, ColumnRole.CLUSTERING) if of_rows else (ColumnRole.PARTITION,)
        self._storage, self._keys, self._sort_key = storage, key_names(storage, *roles), storage.sort_key(*roles)
        columns = storage.regular if of_rows else storage.static
        self._columns = [one for one in columns if one.form is not CellForm.LIST]
        self._types = {**dict(storage.row_columns() if of_rows else storage.partition_columns()), AS_OF: "String"}
        self._read: list[CellBatch] = []

    def add(self, batch: CellBatch, as_of: int) -> None:
        """Add rows as they were read, with their keys and all their cells."""
        if self._columns:
            self._read.append(CellBatch({**batch.columns, AS_OF: pa.array([time_bytes(as_of)] * batch.rows, pa.binary())}))

    def delete(self) -> None:
        """Delete the stale cells of the rows that were added since the last deletion. A deletion that fails can be repeated."""
        if not self._read:
            return
        connection = connect(self._scope.target)
        columns = ", ".join(f"{q(name)} {plain_type(kind)}" for name, kind in self._types.items())
        with translate_errors(self._scope.target, f"deleting stale cells of {self._table}"), own_session() as session:
            settings = {**merge_settings(connection), **session}
            connection.client.command(f"CREATE TEMPORARY TABLE {REREAD} ({columns})", settings=settings)
            for batch in self._read:
                statement = insert_sql(self._storage, REREAD, batch, self._types).encode()
                connection.client.raw_insert("", None, batch.body(statement), settings=settings)
            connection.client.command(self._sql(), settings=settings)
            connection.client.command(f"DROP TEMPORARY TABLE {REREAD}", settings=session)
        self._read = []

    def _sql(self) -> str:
        found = {name: f"r.{q(name)}" for name in self._keys}
        for cell_column in self._columns:
            found |= _deletions(cell_column)
        names, values = ", ".join(map(q, found)), ", ".join(found.values())
        key = ", ".join(map(q, self._sort_key))
        same = " AND ".join(f"r.{q(name)} = s.{q(name)}" for name in self._sort_key)
        stored = f"SELECT * FROM {self._table} FINAL PREWHERE ({key}) IN (SELECT {key} FROM {REREAD})"
        return f"INSERT INTO {self._table} ({names}) SELECT {values} FROM ({stored}) AS r INNER JOIN {REREAD} AS s ON {same}"


def _deletions(cell_column: CellColumn) -> dict[str, str]:
    """Return, by stored column, the deletions of stale cells of the stored row `r` that was read as `s`."""
    match cell_column.form:
        case CellForm.ATOMIC:
            return {cell_column.cell: _cell_deletion(cell_column.cell, cell_column.kind)}
        case CellForm.FIELDS:
            names = [cell_column.field(index) for index in range(len(cell_column.kind.args))]
            return {name: _cell_deletion(name, kind) for name, kind in zip(names, cell_column.kind.args, strict=True)}
        case CellForm.MAP | CellForm.SET | CellForm.LIST:
            return {cell_column.cell: _element_deletions(cell_column)}
        case unknown:
            assert_never(unknown)


def _cell_deletion(name: str, kind: CqlType) -> str:
    stored, read = (f"{table}.{q(name)}" + ("" if is_plain(kind) else ".1") for table in ("r", "s"))
    deletion = f"if(empty({read}) AND {_is_stale(stored)}, {_deleted(stored)}, '')"
    return deletion if is_plain(kind) else f"CAST(tuple({deletion}, {_no_value(kind)}) AS {cell_type(kind)})"


def _element_deletions(cell_column: CellColumn) -> str:
    cell = "c.1" if cell_column.typed_parts else "c"
    stale = f"mapFilter((k, c) -> {_is_stale(cell)} AND NOT mapContains(s.{q(cell_column.cell)}, k), r.{q(cell_column.cell)})"
    parts = [_deleted(cell)]
    if not is_plain(cell_column.key_kind):
        parts.append("c.2")
    if cell_column.element_kind is not None and not is_plain(cell_column.element_kind):
        parts.append(_no_value(cell_column.element_kind))
    deletion = f"tuple({', '.join(parts)})" if cell_column.typed_parts else parts[0]
    return f"CAST(mapApply((k, c) -> (k, {deletion}), {stale}) AS Map(String, {element_type(cell_column)}))"


def _is_stale(cell: str) -> str:
    """Return whether a cell is not deleted, and was written up to the time of the read."""
    return f"(notEmpty({cell}) AND substring({cell}, 1, 8) <= s.{q(AS_OF)} AND substring({cell}, 9, 1) < '\\x02')"


def _deleted(cell: str) -> str:
    return f"concat(substring({cell}, 1, 8), '\\x02')"


def _no_value(kind: CqlType) -> str:
    return "NULL" if is_nullable(kind) else f"defaultValueOfTypeName({quote_text(nullable_type(kind, FieldNaming.INDEXED))})"
