"""Decides whether an existing table can store a source table, and how.

Invariant: an accepted table stores every row image of its schema exactly and shows the source's rows through its engine. Every other table
is rejected with a reason and a hint; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.server.options import Deletes, MissingColumns, TableOptions
from headrace.sinks.clickhouse.tables.create_table import VERSION_COLUMN_COMMENT
from headrace.sinks.clickhouse.tables.engine_parser import nondeterministic_function, plain_columns, source_columns, split_key
from headrace.sinks.clickhouse.tables.metadata_columns import find_metadata_columns, missing_metadata_columns
from headrace.sinks.clickhouse.tables.system_tables import ExistingColumn, ExistingTable
from headrace.sinks.clickhouse.tables.table_inspection import START_OVER, InspectedTable
from headrace.sinks.clickhouse.tables.target_table import ComputedColumn, EngineFamily, MetadataColumn, Storage, StoredColumn, TargetTable
from headrace.sinks.clickhouse.types.codec_registry import type_mismatch
from headrace.sinks.clickhouse.types.type_mapping import DELETED, OCCURRENCE, ROW
from headrace.sinks.clickhouse.types.type_names import is_nullable


def plan_existing_table(
    plan: TargetTable, found: ExistingTable, options: TableOptions, local_table: ExistingTable | None = None
) -> TargetTable:
    """Return the `TargetTable` of an existing table; raise `DefiniteError` if it cannot be used.

    `plan` is the table that Headrace would create; `local_table` is the table below a Distributed one.
    """
    return _ExistingTablePlanner(plan, found, options, local_table).target_table()


def find_missing_columns(
    plan: TargetTable, found: ExistingTable, options: TableOptions, local_table: ExistingTable | None = None
) -> ColumnAdditions:
    """Return the columns that the table lacks, if `missing_columns = add` lets Headrace add them; else nothing."""
    if options.missing_columns != MissingColumns.ADD:
        return ColumnAdditions()
    return _ExistingTablePlanner(plan, found, options, local_table).missing()


def is_created_by_headrace(table: ExistingTable) -> bool:
    """Whether Headrace created the table: by the comment of its version column, or by the computed columns of older releases."""
    marked = any(column.comment == VERSION_COLUMN_COMMENT for column in table.columns)
    return marked or any(column.default_kind == "MATERIALIZED" and column.name in (DELETED, ROW) for column in table.columns)


@dataclass(frozen=True, slots=True)
class ColumnAdditions:
    columns: tuple[ExistingColumn, ...] = ()

    def apply_to(self, found: ExistingTable) -> ExistingTable:
        """Return the table as it will be after the columns are added."""
        there = {column.name for column in found.columns}
        return replace(found, columns=(*found.columns, *(column for column in self.columns if column.name not in there)))


class _ExistingTablePlanner(InspectedTable):
    def _check_computed_columns(self, metadata_columns: Iterable[MetadataColumn]) -> None:
        """Refuse a Distributed table that would send its own values of columns that the shards compute, which hidden columns allow."""
        if not self.is_distributed or not any(mark.hidden for mark in metadata_columns):
            return
        for held in self.table.columns:
            outer = self.found.column(held.name)
            computed = held.default_kind, held.default_expression
            if held.default_kind == "MATERIALIZED" and outer is not None and computed != (outer.default_kind, outer.default_expression):
                raise self.mismatch(
                    f"its column {held.name} is not computed as in the table that holds the rows ({held.default_expression})",
                    "make both tables of equal columns",
                )

    def target_table(self) -> TargetTable:
        columns = tuple(self._stored_column(column) for column in self.plan.columns)
        metadata_columns = find_metadata_columns(self)
        self._check_other_columns(columns, metadata_columns)
        self._check_computed_columns(metadata_columns)
        moving = self._key_dependencies(columns, metadata_columns)
        found = TargetTable(
            self.plan.schema,
            self.plan.database,
            self.plan.table,
            self.family,
            columns,
            metadata_columns,
            moving,
            False,
            self.local_table_name() if self.is_distributed else None,
            self.options.deletes == Deletes.IGNORE,
            self._storage(metadata_columns),
            self.family is EngineFamily.REPLACING and self.argument(1) is not None,
            any(column.in_partition_key and not column.in_sort_key for column in self.table.columns),
            is_created_by_headrace(self.table),
            self.plan.view_table,
        )
        return replace(found, matches_plan=self._matches_plan(found))

    def missing(self) -> ColumnAdditions:
        """Return the source columns and metadata columns that the table lacks."""
        wanted = [ExistingColumn(column.name, column.type) for column in self.plan.columns] + missing_metadata_columns(self)
        tables = (self.found, self.table) if self.is_distributed else (self.found,)
        columns = [column for column in wanted if any(table.column(column.name) is None for table in tables)]
        return ColumnAdditions(tuple(columns))

    def _stored_column(self, column: StoredColumn) -> StoredColumn:
        found = self.column(column.name)
        if found is None:
            raise self.mismatch(
                f"it has no column {column.name}",
                f"ALTER TABLE {self.local_table_sql()} ADD COLUMN {quote_name(column.name)} {column.type}; or choose missing_columns = add,"
                " map the source's column to another one by `rename`, or leave it out with --exclude-columns",
            )
        if found.default_kind not in ("", "DEFAULT"):
            raise self.mismatch(
                f"its column {found.name} is computed ({found.default_kind}), not stored", "make it an ordinary column, or leave it out"
            )
        why = type_mismatch(column.source, found.type) if found.type != column.type else ""
        if why:
            raise self.mismatch(f"its column {column.name} is {found.type}, not {column.type}: {why}", f"change it to {column.type}")
        return replace(column, type=found.type)

    def _check_other_columns(self, columns: tuple[StoredColumn, ...], metadata_columns: tuple[MetadataColumn, ...]) -> None:
        """Columns that Headrace does not write need a default or must be Nullable."""
        ours = {column.name for column in columns} | {mark.name for mark in metadata_columns}
        for column in self.table.columns:
            if column.name not in ours and not column.default_kind and not is_nullable(column.type):
                raise self.mismatch(
                    f"it has a column {column.name} {column.type} that the source has not, without a default and without NULLs",
                    f"give it a DEFAULT, make it Nullable, or map a source's column to it by `rename`; or {START_OVER}",
                )

    def _key_dependencies(self, columns: tuple[StoredColumn, ...], metadata_columns: tuple[MetadataColumn, ...]) -> tuple[str, ...]:
        """Return the source columns on which the table's keys depend; check that all images of a row get one key."""
        row_key, table = self.plan.schema.row_key, self.table
        sort_key = split_key(table.sort_key)
        # The version column of VersionedCollapsingMergeTree is the last column of the sort key, but does not move rows.
        version = self.argument(1) if self.family is EngineFamily.VERSIONED else None
        keyed = [column for column in table.columns if (column.in_sort_key or column.in_partition_key) and column.name != version]
        if self.family is not EngineFamily.HISTORY:
            self._check_metadata_not_in_key(keyed, metadata_columns)
            plain = plain_columns(sort_key)
            lacking = next((column.name for column in columns if column.source.name in row_key and column.name not in plain), None)
            if lacking is not None:
                shown = ", ".join(sort_key)
                raise self.mismatch(
                    f"its sort key is ({shown}), which does not hold the key's column {lacking}: different rows would be merged",
                    f"make the table with a sort key that holds {', '.join(map(quote_name, self.plan.key))}, in any order, alone or with"
                    " other columns",
                )
        computed = {column.name: column.default_expression for column in table.columns if column.default_expression}
        stored = {column.name for column in columns}
        needed = [*(quote_name(column.name) for column in keyed), self.shard_by]
        for column in keyed:
            nondeterministic = nondeterministic_function(column.default_expression) if column.name not in stored else None
            if nondeterministic and self.family is not EngineFamily.HISTORY:
                raise self.mismatch(
                    f"its key depends on column {column.name} = {column.default_expression}, which is not decided by the row",
                    "make the table with a key of columns of the row",
                )
        if not row_key:
            return ()
        return tuple(dict.fromkeys((*row_key, *source_columns(needed, columns, computed))))

    def _check_metadata_not_in_key(self, keyed: list[ExistingColumn], metadata_columns: tuple[MetadataColumn, ...]) -> None:
        allowed = {OCCURRENCE, ROW} | ({self.argument(1)} if self.family is EngineFamily.VERSIONED else set())
        wrong = next(
            (column.name for column in keyed if column.name not in allowed and any(column.name == mark.name for mark in metadata_columns)),
            None,
        )
        if wrong is not None:
            raise self.mismatch(
                f"its sort or partition key holds {wrong}, which differs between images of one row: they would never be merged",
                f"make the table without {wrong} in its keys",
            )

    def _storage(self, metadata_columns: tuple[MetadataColumn, ...]) -> Storage:
        hidden = {mark.name for mark in metadata_columns if mark.hidden}
        computed = tuple(
            ComputedColumn(column.name, column.type, column.default_expression)
            for column in self.table.columns
            if column.default_kind == "MATERIALIZED" and column.name not in hidden
        )
        arguments = self.engine.names or ()
        sort_key = split_key(self.table.sort_key)
        if self.family is EngineFamily.VERSIONED and sort_key and plain_columns(sort_key[-1:]) == {arguments[-1]}:
            # The server appends the version column to the declared sort key.
            sort_key = sort_key[:-1]
        return Storage(
            self.engine.name,
            arguments,
            sort_key,
            self.table.partition_key,
            self.engine.settings,
            computed,
            cluster=self.plan.storage.cluster if self.is_distributed or self.engine.replication else "",
            shard_by=self.shard_by,
            replication=self.engine.replication,
        )

    def _matches_plan(self, found: TargetTable) -> bool:
        """Whether the table equals the one that Headrace would create, except for columns with defaults."""
        plan, ours = self.plan, {column.name for column in self.table.columns if column.default_kind}
        ours |= {column.name for column in found.columns} | {mark.name for mark in found.metadata_columns}
        return (
            (found.family, found.columns, found.metadata_columns, found.local_table)
            == (plan.family, plan.columns, plan.metadata_columns, plan.local_table)
            and found.storage.arguments == plan.storage.arguments
            and _normalized(found.storage.sort_key) == _normalized(plan.storage.sort_key)
            and _normalized(split_key(found.storage.partition_by)) == _normalized(split_key(plan.storage.partition_by))
            and all(column.name in ours for column in self.table.columns)
        )


def _normalized(key: tuple[str, ...]) -> list[str]:
    """Drop backticks and spaces, which the server may render differently."""
    return [one.replace("`", "").replace(" ", "") for one in key]
