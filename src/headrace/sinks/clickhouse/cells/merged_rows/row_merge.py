"""The table of merged rows: one row per key as the source shows it, merged from cells when they are written instead of at each query.

It is a `ReplacingMergeTree`. `row:version` is a time of the server before the merge began, and greater than the versions that it replaces;
`row:expires` is the second at which the first live cell of the row expires. Key columns are `key:X` and `sort:X` as in the rows table of
cells, other columns are `value:X`: masked if the user chose so, and missing if the user left them out.

Invariant: a version is taken after the merge's own cells are visible, and before the merge reads. So a merge that misses some cells has a
lower version than the merge of these cells, and the newest version has seen all of them, whatever ran concurrently. Merging again writes
the same row with a higher version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from headrace.cql.tables import ColumnRole, CqlColumn
from headrace.sinks.clickhouse.cells.merged_rows.row_transforms import RowTransforms
from headrace.sinks.clickhouse.cells.storage import ORDER, CellStorage, sort_name
from headrace.sinks.clickhouse.cells.types import is_exact, is_nullable, nullable_type, value_sql, value_type
from headrace.sinks.clickhouse.cells.view import (
    EXPIRES,
    KeyConditions,
    column_type,
    key_columns,
    live_partitions_sql,
    live_rows_sql,
    merged_sql,
    range_bounds_sql,
    row_exists_sql,
    shown_columns,
    static_exists_sql,
)
from headrace.sinks.clickhouse.server.identifiers import quote_name as q

VERSION, DELETED, ROW_EXPIRES = "row:version", "row:deleted", "row:expires"
NEVER: Final = (1 << 64) - 1
"""`row:expires` of a row without expiring cells."""
NO_TRANSFORMS: Final = RowTransforms()
TOUCHED: Final = "touched"
"""The temporary table of keys that a statement merges."""
SCOPE, RANGE = "scope", "range"
"""Its columns that tell which rows a key stands for (`KeyScope`), and the range, encoded as in the cells' `part:ranges`."""
MERGE_SETTINGS: Final = {
    "join_use_nulls": "0",
    "join_algorithm": "parallel_hash,hash",
    "insert_null_as_default": "0",
    "transform_null_in": "0",
    "use_skip_indexes_if_final": "0",
    "optimize_move_to_prewhere_if_final": "0",
    # It takes two thirds of the time to analyse a statement, and finds nothing.
    "optimize_and_compare_chain": "0",
    "max_query_size": str(16 << 20),
    "max_ast_elements": "2000000",
}


@dataclass(frozen=True, slots=True)
class RowTables:
    """Quoted names of the tables that a merge reads and writes."""

    cells: str
    partitions: str
    rows: str
    is_altered: str = "0"
    """SQL: whether the table of merged rows belongs to another definition of the base table. A merge by an old definition would clear
    the columns that it does not know."""


class KeyScope(IntEnum):
    """The rows that a key stands for. The clustering columns of a partition or range are empty."""

    ROW = 0
    PARTITION = 1
    RANGE = 2


@dataclass(frozen=True, slots=True)
class KeySource:
    """The keys that a statement merges."""

    columns: Mapping[str, str]
    """SQL of each column of the sort key, by its name."""
    source: str
    """The FROM operand, with conditions."""
    scopes: frozenset[KeyScope] = frozenset({KeyScope.ROW})
    """The scopes of the keys."""
    in_ranges: str = ""
    """A SELECT of the keys of the rows in touched ranges."""

    def condition(self, names: list[str]) -> str:
        """Return the PREWHERE of rows whose columns are among the keys."""
        return f" PREWHERE {self._among(names)}"

    def row_condition(self, key: list[str], partition_key: list[str]) -> str:
        """Return the PREWHERE of the rows that are merged."""
        if self.scopes == {KeyScope.ROW}:
            return self.condition(key)
        conditions = []
        if KeyScope.ROW in self.scopes:
            conditions.append(self._among(key, f" WHERE {SCOPE} = {KeyScope.ROW}"))
        if KeyScope.PARTITION in self.scopes:
            conditions.append(self._among(partition_key, f" WHERE {SCOPE} = {KeyScope.PARTITION}"))
        if KeyScope.RANGE in self.scopes:
            conditions.append(f"({', '.join(map(q, key))}) IN ({self.in_ranges})")
        return f" PREWHERE ({' OR '.join(conditions)})"

    def _among(self, names: list[str], where: str = "") -> str:
        wanted, found = ", ".join(map(q, names)), ", ".join(self.columns[name] for name in names)
        return f"({wanted}) IN (SELECT {found} FROM {self.source}{where})"


@dataclass(frozen=True, slots=True)
class MergeStep:
    """Two statements: one returns the version, the next merges rows with it."""

    version: str
    """In nanoseconds since 1970. A statement that took its own time could have read before."""
    head: str
    tail: str

    def insert(self, version: int) -> str:
        return f"{self.head}{version}{self.tail}"


@dataclass(frozen=True, slots=True)
class RowMerge:
    """Statements that merge the rows of one base table."""

    storage: CellStorage
    tables: RowTables
    transforms: RowTransforms = NO_TRANSFORMS

    def columns(self) -> list[tuple[str, str]]:
        """Return name and type of every column."""
        found = []
        for column in key_columns(self.storage):
            is_missing = self.storage.static and column.role is ColumnRole.CLUSTERING and is_nullable(column.type)
            found.append((f"key:{column.name}", nullable_type(column.type) if is_missing else value_type(column.type)))
            if not is_exact(column.type):
                found.append((sort_name(column), "String"))
        stored = [one for one in (*self.storage.static, *self.storage.regular) if self.transforms.shows(one.column)]
        found += [(f"value:{one.column.name}", column_type(one)) for one in stored]
        return [*found, (VERSION, "UInt64"), (DELETED, "UInt8"), (ROW_EXPIRES, "UInt64")]

    def create_sql(self, comment: str) -> str:
        """Return the statement that creates the table, or replaces it by an empty one."""
        columns = ", ".join(f"{q(name)} {kind}" for name, kind in self.columns())
        key = ", ".join(map(q, self._key))
        return (
            f"CREATE OR REPLACE TABLE {self.tables.rows} ({columns}, INDEX {q(ROW_EXPIRES)} {q(ROW_EXPIRES)} TYPE minmax GRANULARITY 1) "
            f"ENGINE = ReplacingMergeTree({q(VERSION)}, {q(DELETED)}) ORDER BY ({key}) "
            f"SETTINGS allow_nullable_key = 1, allow_suspicious_indices = 1 COMMENT {comment}"
        )

    def view_sql(self) -> str:
        """Return the SELECT that shows the merged rows."""
        shown = filter(self.transforms.shows, shown_columns(self.storage))
        names = [f"{q(_stored_name(column))} AS {q(self.transforms.name_of(column))}" for column in shown]
        return f"SELECT {', '.join(names)} FROM {self.tables.rows} FINAL SETTINGS enable_time_time64_type = 1"

    def steps(self, keys: KeySource | None) -> list[MergeStep]:
        """Return the steps that merge the rows with these keys, in this order; None: all rows."""
        found = [self._insert_rows(keys)]
        return [*found, self._insert_static(keys)] if self.storage.static else found

    def touched(self, scopes: frozenset[KeyScope]) -> KeySource:
        """Return the keys of the temporary table `touched`, which holds the columns of the sort key as they are in a batch: serialised."""
        columns = {sort_name(column): column for column in key_columns(self.storage)}
        decoded = {name: value_sql(column.type, q(name)) if is_exact(column.type) else q(name) for name, column in columns.items()}
        return KeySource(decoded, TOUCHED, scopes, self._in_ranges(decoded) if KeyScope.RANGE in scopes else "")

    def _in_ranges(self, decoded: Mapping[str, str]) -> str:
        """Return a SELECT of the keys of rows in the touched ranges. It runs after these ranges are visible: a row that it misses has no
        visible cell yet, so the merge of its first cell will see the range."""
        key = self._partition_key
        ranges = f"FROM {TOUCHED} WHERE {SCOPE} = {KeyScope.RANGE}"
        partitions = f"({', '.join(map(q, key))}) IN (SELECT {', '.join(decoded[name] for name in key)} {ranges})"
        stored = f"SELECT {', '.join(map(q, [*self._key, ORDER]))} FROM {self.tables.cells} PREWHERE {partitions}"
        first, second = range_bounds_sql(RANGE)
        bounds = ", ".join([*(f"{decoded[name]} AS {q(f'of:{name}')}" for name in key), f"{first} AS first", f"{second} AS second"])
        same = " AND ".join(f"r.{q(name)} = b.{q(f'of:{name}')}" for name in key)
        inside = f"r.{q(ORDER)} >= b.first AND r.{q(ORDER)} < b.second"
        names = ", ".join(f"r.{q(name)}" for name in self._key)
        return f"SELECT {names} FROM ({stored}) AS r INNER JOIN (SELECT {bounds} {ranges}) AS b ON {same} WHERE {inside}"

    def typed(self) -> KeySource:
        """Return the keys of the temporary table `touched`, which holds the columns of the sort key in their types."""
        return KeySource({name: q(name) for name in self._key}, TOUCHED)

    def key(self, *, of_rows: bool) -> list[str]:
        """Return the sort key's columns that identify a row, or a partition."""
        return self._key if of_rows else self._partition_key

    def due_sql(self, since: int) -> str:
        """Return a SELECT of the keys of rows with a cell that has expired since a time (seconds since 1970)."""
        nullable = {name for name, kind in self.columns() if kind.startswith("Nullable(")}
        columns = [f"{f'assumeNotNull({q(name)})' if name in nullable else q(name)} AS {q(name)}" for name in self._key]
        is_due = self.due_condition(since)
        # The index finds all versions that are due; of these, FINAL drops those that were merged since.
        candidates = KeySource({name: q(name) for name in self._partition_key}, f"{self.tables.rows} WHERE {is_due}")
        chosen = f"{self.tables.rows} FINAL{candidates.condition(self._partition_key)} WHERE {is_due}"
        return f"SELECT {', '.join(columns)} FROM {chosen}"

    def due_condition(self, since: int) -> str:
        """Return the condition of versions with a cell that has expired since a time; an index finds them."""
        return f"{q(ROW_EXPIRES)} > {since} AND {q(ROW_EXPIRES)} <= toUnixTimestamp(now())"

    @property
    def _key(self) -> list[str]:
        return self.storage.sort_key(ColumnRole.PARTITION, ColumnRole.CLUSTERING)

    @property
    def _partition_key(self) -> list[str]:
        return self.storage.sort_key(ColumnRole.PARTITION)

    def _insert_rows(self, keys: KeySource | None) -> MergeStep:
        own = "" if keys is None else keys.row_condition(self._key, self._partition_key)
        conditions = KeyConditions(own, "" if keys is None else keys.condition(self._partition_key))
        merged = merged_sql(self.storage, self.tables.cells, self.tables.partitions, conditions)
        exists = row_exists_sql(self.storage)
        chosen = self._chosen(shown_columns(self.storage), {name: q(name) for name in self._key}, f"({exists})")
        return self._step(chosen, live_rows_sql(self.storage, merged, expiries=True), own, keys)

    def _insert_static(self, keys: KeySource | None) -> MergeStep:
        """Return the step for partitions that have only static cells: it runs after the rows of these partitions are merged."""
        condition = "" if keys is None else keys.condition(self._partition_key)
        first = self.storage.table.clustering[0]
        is_row = f"isNotNull({q(f'key:{first.name}')})" if is_exact(first.type) else f"notEmpty({q(sort_name(first))})"
        key = ", ".join(map(q, self._partition_key))
        others = f"SELECT {key} FROM {self.tables.rows} FINAL{condition} WHERE {is_row}"
        exists = f"(({static_exists_sql(self.storage)}) AND ({key}) NOT IN ({others}))"
        clustering = {sort_name(column): "''" for column in self.storage.table.clustering}
        sorts = {name: clustering.get(name, q(name)) for name in self._key}
        chosen = self._chosen(shown_columns(self.storage, static_only=True), sorts, exists)
        return self._step(chosen, live_partitions_sql(self.storage, self.tables.partitions, condition, expiries=True), condition, keys)

    def _chosen(self, shown: Mapping[CqlColumn, str], sorts: Mapping[str, str], exists: str) -> dict[str, str]:
        """Return SQL by column, without the version."""
        found = {
            _stored_name(column): self.transforms.value_sql(column, value)
            for column, value in shown.items()
            if self.transforms.shows(column)
        }
        found |= {name: value for name, value in sorts.items() if name.startswith("sort:")}
        found[DELETED] = f"NOT {exists}"
        expiry = f"reinterpretAsUInt64(reverse(substring({q(EXPIRES)}, 2, 8)))"
        found[ROW_EXPIRES] = f"if({exists} AND {q(EXPIRES)} < '\\x02', {expiry}, {NEVER})"
        return found

    def _step(self, chosen: Mapping[str, str], rows: str, condition: str, keys: KeySource | None) -> MergeStep:
        """Return the step that inserts rows; `condition` selects the stored rows that are replaced."""
        # A clock that was set back must not make a merge lose.
        newest = f"SELECT max({q(VERSION)}) + 1 FROM {self.tables.rows}{condition}"
        version = f"SELECT greatest(toUInt64(toUnixTimestamp64Nano(now64(9))), ({newest}))"
        if keys is not None:
            # Cells of a new column are written after the definition is altered, so their merge has a higher version.
            version += f" + throwIf({self.tables.is_altered}, 'the table was altered since its rows were read')"
        names = ", ".join(map(q, [VERSION, *chosen]))
        head = f"INSERT INTO {self.tables.rows} ({names}) SELECT "
        return MergeStep(version, head, f", {', '.join(chosen.values())} FROM ({rows})")


def _stored_name(column: CqlColumn) -> str:
    return f"key:{column.name}" if column.role in (ColumnRole.PARTITION, ColumnRole.CLUSTERING) else f"value:{column.name}"
