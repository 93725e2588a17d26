"""A target table: where it is, what its engine does with rows, and what each column stores.

A `TargetTable` holds everything that writing, reading, stale-row removal and schema changes need, whether Headrace created the table or
found it. It is pure data without a connection; `target_cache` resolves it from the server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace.model.schema import Column, TableName, TableSchema
from headrace.sinks.clickhouse.server.identifiers import on_cluster, qualify
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget

VIEW_SUFFIX = "_current"
ROWS_SUFFIX: Final = "__rows"
"""Ends the name of a table without a key whose own name is that of a view (`keyless_views`)."""
INSERT_HIDDEN: Final = {"insert_allow_materialized_columns": "1"}
"""Setting of an INSERT that names hidden columns."""


Place = tuple[str, str]
"""Database and table."""


class EngineFamily(StrEnum):
    """What an engine does with rows of equal sort key."""

    REPLACING = "replacing"
    """Keeps the row with the highest version."""
    COLLAPSING = "collapsing"
    """Removes pairs of opposite sign; the order of writing matters."""
    VERSIONED = "versioned"
    """Removes pairs of opposite sign and equal version, in any order."""
    HISTORY = "history"
    """Keeps all rows."""
    COALESCING = "coalescing"
    """Keeps the last non-NULL value of each column; the order of writing matters."""


class MetadataRole(StrEnum):
    """What a metadata column stores about a row image."""

    VERSION = "version"
    SIGN = "sign"
    """1 for an inserted image, -1 for a removed one."""
    DELETED = "deleted"
    """0 for an inserted image, 1 for a removed one."""
    OPERATION = "operation"
    """snapshot, insert, update, delete or before."""
    COMMIT_TIME = "commit_time"
    CONTENT = "content"
    """A hash of the row: the version by which images of a VersionedCollapsingMergeTree cancel each other."""
    OCCURRENCE = "occurrence"
    """Which of several equal rows it is, in a table without a key."""


@dataclass(frozen=True, slots=True)
class MetadataColumn:
    """A column that Headrace adds to each inserted row."""

    name: str
    role: MetadataRole
    type: str
    hidden: bool = field(default=False, compare=False)
    """Whether `SELECT *` omits it: it is MATERIALIZED with a constant, and every INSERT names it. Not compared, because a table that shows
    the column stores the same rows."""


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A source column and the target column that stores it."""

    source: Column
    name: str
    type: str
    """The ClickHouse type, as the server spells it."""
    codec: str = ""
    comment: str = ""
    ttl: str = ""
    """TTL expression; empty: values do not expire."""


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    name: str
    type: str
    expression: str


@dataclass(frozen=True, slots=True)
class Storage:
    """What follows the columns in CREATE TABLE of the table that stores the rows."""

    engine: str = "ReplacingMergeTree"
    """Without the prefix Replicated or Shared."""
    arguments: tuple[str, ...] = ()
    """The engine's column arguments."""
    sort_key: tuple[str, ...] = ()
    """SQL expressions."""
    partition_by: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    computed: tuple[ComputedColumn, ...] = ()
    cluster: str = ""
    """Created ON CLUSTER and replicated; empty: on one server."""
    replica: tuple[str, ...] = ()
    """Keeper path and replica name; empty: the server's defaults."""
    shard_by: str = ""
    additions: tuple[str, ...] = ()
    """SQL of extra columns and indexes."""
    clauses: tuple[tuple[str, str], ...] = ()
    """Optional clauses: PRIMARY KEY, SAMPLE BY, TTL."""
    replication: str = ""
    """Of an existing table: `Replicated`, `Shared` or empty."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    schema: TableSchema
    """The replicated columns of the source table."""
    database: str
    table: str
    family: EngineFamily
    columns: tuple[StoredColumn, ...]
    """In the source's order."""
    metadata_columns: tuple[MetadataColumn, ...]
    key_dependencies: tuple[str, ...]
    """Source columns whose change moves a row to another key: the row key, and all columns that sort, partition and shard key read."""
    matches_plan: bool = True
    """Whether the table equals the one that Headrace would create."""
    local_table: Place | None = None
    """Of a Distributed table: the local table that stores the rows."""
    ignores_deletes: bool = False
    storage: Storage = Storage()
    final_hides_deleted: bool = True
    """Whether `FINAL` itself omits deleted rows."""
    spans_partitions: bool = False
    """Whether images of one sort key may be in several partitions, which are then collapsed separately."""
    created_by_headrace: bool = True
    """Whether Headrace created the table. Only such a table may be dropped and created again."""
    view_table: str = ""
    """The name of the view that shows the source's rows; empty: the table's, with `_current`."""

    @property
    def source(self) -> TableName:
        return self.schema.name

    @property
    def full_name(self) -> str:
        """`database.table`, unquoted: for messages."""
        return f"{self.database}.{self.table}"

    @property
    def place(self) -> Place:
        return self.database, self.table

    @property
    def qualified(self) -> str:
        """The quoted name, for SQL."""
        return qualify(self.place)

    @property
    def storage_place(self) -> Place:
        """Database and table that store the rows: below a Distributed table, its local table."""
        return self.local_table or self.place

    @property
    def storage_name(self) -> str:
        """The quoted name of the table that stores the rows."""
        return qualify(self.storage_place)

    @property
    def on_cluster(self) -> str:
        return on_cluster(self.storage.cluster)

    @property
    def has_key(self) -> bool:
        return bool(self.schema.row_key)

    @property
    def needs_before_images(self) -> bool:
        """Whether each update must come with its before image."""
        return not self.has_key or self.family in (EngineFamily.COLLAPSING, EngineFamily.VERSIONED)

    @property
    def counts_duplicates(self) -> bool:
        """Whether an image that is written twice counts twice. Such a table gets blocks with deduplication tokens, and consistent
        snapshots."""
        return self.family in (EngineFamily.COLLAPSING, EngineFamily.VERSIONED, EngineFamily.HISTORY)

    @property
    def needs_consistent_snapshot(self) -> bool:
        """Whether all snapshot rows must be read at one log position, because the table cannot order images by version."""
        return self.counts_duplicates or self.family is EngineFamily.COALESCING or not self.has_key

    @property
    def needs_ordered_writes(self) -> bool:
        """Whether blocks must be written in log order, with the same boundaries at each replay."""
        return self.counts_duplicates or self.family is EngineFamily.COALESCING

    @property
    def cancels_by_content_hash(self) -> bool:
        """Whether images cancel each other by a hash of the row. A column change then changes all hashes: the table must be rebuilt."""
        version = self.storage.arguments[-1] if self.family is EngineFamily.VERSIONED and self.storage.arguments else ""
        return bool(version) and all(column.name != version for column in self.columns)

    @property
    def key(self) -> tuple[str, ...]:
        """The target columns of the row key."""
        return tuple(self.stored_column(name).name for name in self.schema.row_key)

    @property
    def insert_settings(self) -> dict[str, str]:
        """Settings of an INSERT: it may name hidden columns. A Distributed table answers when the shards have the rows, and never
        chooses a shard at random."""
        distributed = {"distributed_foreground_insert": "1", "insert_distributed_one_random_shard": "0"}
        return {
            **(distributed if self.local_table is not None else {}),
            **(INSERT_HIDDEN if any(column.hidden for column in self.metadata_columns) else {}),
        }

    @property
    def view(self) -> str:
        """Name of the view that shows the source's rows, if there is one."""
        return qualify(self.view_place)

    @property
    def view_place(self) -> Place:
        return self.database, self.view_table or self.table + VIEW_SUFFIX

    def metadata_column(self, role: MetadataRole) -> MetadataColumn | None:
        return next((metadata_column for metadata_column in self.metadata_columns if metadata_column.role is role), None)

    def stored_column(self, name: str) -> StoredColumn:
        return next(column for column in self.columns if column.source.name == name)


def target_name(name: TableName, target: ClickHouseTarget, options: ClickHouseOptions) -> Place:
    """Return the target of a source table; sends no request."""
    chosen = options.of(name)
    before, _, table = chosen.target.rpartition(".")
    database = before or chosen.database or target.database or name.database
    return (_filled(database, name) if before or chosen.database else database), _filled(table, name) if table else name.table


def _filled(pattern: str, name: TableName) -> str:
    return pattern.replace("{database}", name.database).replace("{table}", name.table)
