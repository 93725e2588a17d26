"""A target table as the sink uses it: where it is, what its engine does with rows, and which column holds what.

A layout says everything that writing, reading, sweeping and altering need to know of a table, whether Headrace made it or found it. It is
pure: it is resolved once from what the server says (`target_tables`), and carries no connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.model.schema import Column, TableName, TableSchema
from headrace.sinks.clickhouse.server.quoting import quote_name

VIEW_SUFFIX = "_current"


class EngineFamily(StrEnum):
    """What an engine does with rows of one key."""

    REPLACING = "replacing"
    """Keeps the one with the highest version."""
    COLLAPSING = "collapsing"
    """Takes away pairs of opposite signs; the order of writing counts."""
    VERSIONED = "versioned"
    """Takes away pairs of opposite signs and equal version, in any order."""
    HISTORY = "history"
    """Keeps them all."""
    COALESCING = "coalescing"
    """Keeps the last value of each column; the order of writing counts."""


class MetadataRole(StrEnum):
    """What a column of ours says of an image."""

    VERSION = "version"
    SIGN = "sign"
    """1 for an image that is there, -1 for one that is taken away."""
    DELETED = "deleted"
    """0 and 1 for the same."""
    OPERATION = "operation"
    """The word for what happened: snapshot, insert, update, delete."""
    COMMIT_TIME = "commit_time"
    CONTENT = "content"
    """A hash of the row: the version of a table whose images cancel each other."""
    OCCURRENCE = "occurrence"
    """Which of equal rows it is, in a table without a key."""


@dataclass(frozen=True, slots=True)
class MetadataColumn:
    """A column of ours that rows are inserted with."""

    name: str
    role: MetadataRole
    type: str


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A source's column and where its values are kept."""

    source: Column
    name: str
    type: str
    """As the server spells it."""
    codec: str = ""
    comment: str = ""
    ttl: str = ""
    """When values expire, if they do."""


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A column that ClickHouse computes when a row is inserted."""

    name: str
    type: str
    expression: str


@dataclass(frozen=True, slots=True)
class Storage:
    """How the table that holds the rows keeps them: what follows its columns in CREATE TABLE."""

    engine: str = "ReplacingMergeTree"
    """Without its forms for clusters."""
    arguments: tuple[str, ...] = ()
    """The engine's columns."""
    sort_key: tuple[str, ...] = ()
    """SQL, expression by expression."""
    partition_by: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    computed: tuple[ComputedColumn, ...] = ()
    cluster: str = ""
    """Made ON CLUSTER, replicated; empty: on the server alone."""
    replica: tuple[str, ...] = ()
    """Path and replica's name for Keeper; empty: the servers' own."""
    shard_by: str = ""
    additions: tuple[str, ...] = ()
    """SQL of columns and indexes beyond the source's and ours."""
    clauses: tuple[tuple[str, str], ...] = ()
    """More clauses by choice: PRIMARY KEY, SAMPLE BY, TTL."""
    replication: str = ""
    """Of a table that was found: `Replicated` or `Shared`, if it is."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """One target table."""

    schema: TableSchema
    """What is carried of the source's table."""
    database: str
    table: str
    family: EngineFamily
    columns: tuple[StoredColumn, ...]
    """In the source's order."""
    metadata_columns: tuple[MetadataColumn, ...]
    key_dependencies: tuple[str, ...]
    """Source columns whose change moves a row: its key, and all that sort, partition and shard key depend on."""
    matches_plan: bool = True
    """Whether it is what Headrace would make; else it was found and is adapted to."""
    local_table: tuple[str, str] | None = None
    """The table that holds the rows, where this one only distributes them."""
    ignores_deletes: bool = False
    storage: Storage = Storage()
    final_hides_deleted: bool = True
    """Whether `FINAL` itself leaves out what is marked as deleted."""
    spans_partitions: bool = False
    """Whether images of one sort key may lie in several partitions: then these are collapsed one by one."""
    created_by_headrace: bool = True
    """Whether Headrace made the table: only such a table may be dropped to be made anew."""

    @property
    def source(self) -> TableName:
        return self.schema.name

    @property
    def full_name(self) -> str:
        """`database.table`, unquoted: for messages."""
        return f"{self.database}.{self.table}"

    @property
    def qualified(self) -> str:
        """The quoted name, for SQL."""
        return f"{quote_name(self.database)}.{quote_name(self.table)}"

    @property
    def has_key(self) -> bool:
        return bool(self.schema.row_key)

    @property
    def needs_before_images(self) -> bool:
        """Whether updates must come with what was there before."""
        return not self.has_key or self.family in (EngineFamily.COLLAPSING, EngineFamily.VERSIONED)

    @property
    def counts_duplicates(self) -> bool:
        """Whether an image that is written twice counts twice: blocks are then written under a token, and snapshots at one position."""
        return self.family in (EngineFamily.COLLAPSING, EngineFamily.VERSIONED, EngineFamily.HISTORY)

    @property
    def needs_consistent_snapshot(self) -> bool:
        """Whether rows of a snapshot must be those of one position, because nothing in the table puts an older image behind a newer one."""
        return self.counts_duplicates or self.family is EngineFamily.COALESCING or not self.has_key

    @property
    def needs_ordered_writes(self) -> bool:
        """Whether blocks must be written in the order of the log, cut the same way each time."""
        return self.counts_duplicates or self.family is EngineFamily.COALESCING

    @property
    def cancels_by_content_hash(self) -> bool:
        """Whether images cancel each other by a hash of the row: when columns change, all rows must be hashed again (the table rebuilt)."""
        version = self.storage.arguments[-1] if self.family is EngineFamily.VERSIONED and self.storage.arguments else ""
        return bool(version) and all(column.name != version for column in self.columns)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the table that tell its rows apart."""
        return tuple(self.stored_column(name).name for name in self.schema.row_key)

    @property
    def insert_settings(self) -> dict[str, str]:
        """What an INSERT must say besides: a Distributed table answers when its shards have the rows, and never picks one at random."""
        return {"distributed_foreground_insert": "1", "insert_distributed_one_random_shard": "0"} if self.local_table is not None else {}

    @property
    def view(self) -> str:
        """Where the source's rows are read by name, if that view is made."""
        return f"{quote_name(self.database)}.{quote_name(self.table + VIEW_SUFFIX)}"

    def metadata_column(self, role: MetadataRole) -> MetadataColumn | None:
        return next((metadata_column for metadata_column in self.metadata_columns if metadata_column.role is role), None)

    def stored_column(self, name: str) -> StoredColumn:
        """Where a source's column is kept."""
        return next(column for column in self.columns if column.source.name == name)
