"""The key log of a table: the changes of one batch, reduced to the columns that foreign keys need.

A table whose rows move to other keys has all columns in it, because a moved row is written as a whole.

Tasks write it next to the target table. The driver reads it after the batch (see `effects`), and empties it when the batch is committed. A
replay may write a change again; readers treat equal rows as one. Its columns have the types of the target table, so that ClickHouse
compares the values of parent and child as it stores them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.model.cascades import CascadePlan
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.bookkeeping.own_tables import OWN_DATABASE, own_name
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataColumn, MetadataRole, StoredColumn, TargetTable
from headrace.sinks.clickhouse.tables.views import current_rows_sql
from headrace.sinks.clickhouse.types.type_names import is_nullable

PREFIX: Final = "cascade_"
CHECKED: Final = "checked"
_METADATA: Final = (
    MetadataColumn("version", MetadataRole.VERSION, "UInt64"),
    MetadataColumn("op", MetadataRole.OPERATION, "LowCardinality(String)"),
    MetadataColumn("commit_time", MetadataRole.COMMIT_TIME, "DateTime64(6, 'UTC')"),
)


@dataclass(frozen=True, slots=True)
class KeyLog:
    table: TargetTable
    columns: tuple[str, ...]
    """Source columns of the table."""
    pipe: str
    has_states: bool
    """Whether every change is logged (`CascadePlan.needs_states`), and not only those that remove or change a key."""
    floor: int = 0
    """Rows with lower versions are stale."""

    @property
    def name(self) -> str:
        signature = repr((str(self.table.source), [(name, self.type_of(name)) for name in self.columns]))
        return f"{own_prefix(self.pipe)}{short_hash(signature)}"

    @property
    def qualified(self) -> str:
        return own_name(self.name)

    @property
    def base(self) -> str:
        """The quoted name of the table with the rows as of the last commit, if each state is needed.

        The target itself does not keep it: a row that a foreign key deleted may have been inserted again in the batch. A table that was
        read again gets another one, because the stream skips changes that the copy does not have.
        """
        return own_name(self.base_name)

    @property
    def base_name(self) -> str:
        return f"{self.name}_{self.floor}_base" if self.floor else f"{self.name}_base"

    def old(self, column: str) -> str:
        return f"old_{self.columns.index(column)}"

    def new(self, column: str) -> str:
        return f"new_{self.columns.index(column)}"

    def type_of(self, column: str) -> str:
        """Return the ClickHouse type of a column, which accepts NULL."""
        return nullable_type(self.table.stored_column(column).type)

    @property
    def has_text(self) -> bool:
        """Whether a logged column holds text, which the source compares by a collation."""
        return any(self.table.stored_column(name).source.form is ValueForm.TEXT for name in self.columns)

    @property
    def spellings_name(self) -> str:
        return f"{self.name}_spelt"

    @property
    def spellings(self) -> str:
        """The quoted name of the table with copies of events, in which old values are spelt as in the child tables."""
        return own_name(self.spellings_name)

    @property
    def events(self) -> str:
        """The FROM operand that reads the log and its copies."""
        return f"({self._originals} UNION ALL SELECT * FROM {self.spellings})" if self.has_text else self.qualified

    def was(self, column: str) -> str:
        """Return the column of `events` with the old value as it was logged, also in copies."""
        return f"was_{self.columns.index(column)}" if self.has_text else self.old(column)

    def create_spellings_sql(self) -> str:
        return f"CREATE TABLE IF NOT EXISTS {self.spellings} ENGINE = MergeTree ORDER BY version AS {self._originals} WHERE 0"

    @property
    def _originals(self) -> str:
        values = "".join(f", {self.old(name)} AS {self.was(name)}" for name in self.columns)
        return f"SELECT *{values} FROM {self.qualified}"

    def create_sql(self) -> str:
        values = [f"{made(name)} {self.type_of(name)}" for name in self.columns for made in (self.old, self.new)]
        fixed = [
            *(f"{mark.name} {mark.type}" for mark in _METADATA),
            f"{CHECKED} UInt8",
            "derived UInt8 DEFAULT 0",
        ]
        listed = ", ".join([*fixed, *values])
        return f"CREATE TABLE IF NOT EXISTS {self.qualified} ({listed}) ENGINE = MergeTree ORDER BY version"

    def create_base_sql(self, name: str) -> str:
        columns = [self.table.stored_column(column) for column in self.columns]
        listed = ", ".join(f"{quote_name(column.name)} {column.type}" for column in columns)
        key = ", ".join(map(quote_name, self.table.key))
        engine = "ReplacingMergeTree(__version, __dead)"
        return f"CREATE TABLE {name} ({listed}, __version UInt64, __dead UInt8) ENGINE = {engine} ORDER BY ({key})"

    def fill_base_sql(self, name: str) -> str:
        """Return the statement that copies the state from the target."""
        columns = ", ".join(quote_name(self.table.stored_column(column).name) for column in self.columns)
        version = self.table.metadata_column(MetadataRole.VERSION)
        assert version is not None  # a child without versions is refused
        rows, number = current_rows_sql(self.table, versions=True), quote_name(version.name)
        return f"INSERT INTO {name} SELECT {columns}, {number}, 0 FROM ({rows}) WHERE {number} >= {self.floor}"

    def advance_base_sql(self) -> tuple[str, str]:
        """Return the statements that bring the state up to date with the log."""
        moved = " OR ".join(f"{self.old(name)} != {self.new(name)}" for name in self.table.schema.row_key)
        old, new = (
            ", ".join(f"CAST({made(name)} AS {self.table.stored_column(name).type})" for name in self.columns)
            for made in (self.old, self.new)
        )
        gone = f"op = 'delete' OR (op = 'update' AND ({moved}))"
        return (
            f"INSERT INTO {self.base} SELECT {new}, version, 0 FROM {self.qualified} WHERE op != 'delete'",
            f"INSERT INTO {self.base} SELECT {old}, version, 1 FROM {self.qualified} WHERE {gone}",
        )

    @property
    def target(self) -> TargetTable:
        """The log as the target of a block of `rows_of`."""
        columns = [Column(CHECKED, Kind.UINT8, nullable=False)]
        stored = [StoredColumn(columns[0], CHECKED, "UInt8")]
        for name in self.columns:
            source = self.table.stored_column(name)
            for made in (self.old, self.new):
                columns.append(replace(source.source, name=made(name), nullable=True))
                stored.append(StoredColumn(columns[-1], made(name), self.type_of(name)))
        schema = TableSchema(self.table.source, tuple(columns), ())
        return TargetTable(schema, OWN_DATABASE, self.name, EngineFamily.HISTORY, tuple(stored), _METADATA, ())

    def rows_of(self, block: ChangeBlock, schema: TableSchema) -> ChangeBlock:
        """Return the changes of a block as rows of the log. `schema` is that of `target`."""
        op = block.op.to_numpy(zero_copy_only=False)
        before = op == Op.BEFORE
        after_before = np.concatenate(([False], before[:-1])) if len(op) else before
        chosen = ~before & (op != Op.SNAPSHOT)
        unchecked = np.zeros(len(op), dtype=np.bool_) if block.unchecked is None else block.unchecked.to_numpy(zero_copy_only=False)
        if not self.has_states:
            chosen &= ((op == Op.DELETE) | after_before) & ~unchecked
        rows = np.flatnonzero(chosen)
        kinds = op[rows]
        # The old values of an update that changed none of the columns are the new ones: it has no before image.
        old = pa.array(np.where(after_before[rows], rows - 1, rows), mask=kinds == Op.INSERT)
        new = pa.array(rows, mask=kinds == Op.DELETE)
        arrays: list[pa.Array] = [pa.array((~unchecked[rows]).astype(np.uint8))]
        for name in self.columns:
            values = block.images.column(name)
            arrays += [values.take(old), values.take(new)]
        places = pa.array(rows)
        return ChangeBlock(
            schema,
            pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema),
            block.op.take(places),
            block.version.take(places),
            block.commit_ts.take(places),
        )


def key_logs(
    plan: CascadePlan, targets: Mapping[TableName, TargetTable], pipe: str, floors: Mapping[TableName, int]
) -> dict[TableName, KeyLog]:
    found = {}
    for name, columns in plan.logged.items():
        target = targets[name]
        every = tuple(column.source.name for column in target.columns)
        found[name] = KeyLog(target, every if name in plan.moving else columns, pipe, plan.needs_states(name), floors.get(name, 0))
    return found


def own_prefix(pipe: str) -> str:
    """The names of all tables that this package creates for a pipe start with it."""
    return f"{PREFIX}{short_hash(pipe)}_"


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def nullable_type(kind: str) -> str:
    if is_nullable(kind):
        return kind
    if kind.startswith("LowCardinality("):
        return f"LowCardinality(Nullable({kind.removeprefix('LowCardinality(')[:-1]}))"
    return f"Nullable({kind})"
