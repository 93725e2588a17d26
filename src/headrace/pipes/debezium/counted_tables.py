"""Tables whose target counts rows (collapsing engines): which ones topics can fill exactly, and how their blocks are named.

Such a target must get every change once. A batch is a range of offsets in Spark's log, its windows are cut by the records alone, and each
block has the name of its window, which the sink's deduplication token contains. Marks drop the events that the connector sent twice
(`sources.debezium.events.source_marks`). A case in which this cannot be exact is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableName
from headrace.pipes.debezium.position import KafkaPosition
from headrace.settings.schema_policy import ChangeKind
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable
from headrace.sources.debezium.events.records import DetectedSchema, Records, Truncation
from headrace.sources.debezium.events.source_marks import FROM_SNAPSHOT, KEEP_NEWEST, START_OVER, MarkKey, Marks, SourceMark
from headrace.sources.debezium.offset_range_reader import OffsetRange
from headrace.sources.debezium.repeated_events import UNCOUNTABLE

COUNTING: Final = (EngineFamily.COLLAPSING, EngineFamily.VERSIONED)
_ANOTHER: Final = "rename the existing table, or give the copy another name (target of the table): Headrace then creates one that fits"
_BY_HASH: Final = "its rows cancel each other by a hash of all values"
_UNSTABLE: Final = "a JSON, floating-point, VECTOR or spatial type"


@dataclass(frozen=True, slots=True)
class CountedTopics:
    """The tables whose target counts rows, and the topics that cannot fill them. Picklable."""

    tables: Mapping[TableName, bool] = field(default_factory=dict)
    """Whether the target needs the changes of a row in their order, by table."""
    spread: frozenset[str] = frozenset()
    """The topics with several partitions."""
    compacted: frozenset[str] = frozenset()
    """The topics from which Kafka removes older records of a key."""
    changed: frozenset[MarkKey] = frozenset()
    """The tables and partitions that brought changes before this batch."""
    has_rows: bool = False
    """Whether all rows of snapshots in this batch are stored."""

    def takes(self, piece: ChangeBlock, records: Records) -> bool | None:
        """Return whether a piece is written now; None: in the next round, because rows of a snapshot must be stored before it.

        A row of a snapshot that is read again is recognised among the stored rows, unless a change has cancelled it. So the first changes
        of a partition are written when the state tells that all rows before them are stored.
        """
        if piece.op[0].as_py() == Op.SNAPSHOT:
            return not self.has_rows
        return True if self.has_rows or (piece.schema.name, records.topic, records.partition) in self.changed else None

    def check(self, table: TableName, records: Records) -> bool:
        """Return whether a table's target counts rows. Raise `DefiniteError` if the topic cannot fill it."""
        if table not in self.tables:
            return False
        topic, place = records.topic, f"{records.topic}[{records.partition}]"
        if topic in self.compacted:
            raise DefiniteError(
                f"the target of {table} counts rows, and Kafka removes older changes of a row from the topic (cleanup.policy=compact)",
                place=place,
                hint=f"set cleanup.policy=delete for the topic {topic}; if records were removed already, {FROM_SNAPSHOT}; or {KEEP_NEWEST}",
            )
        if self.tables[table] and topic in self.spread:
            raise DefiniteError(
                f"the target of {table} is a CollapsingMergeTree, which needs the changes of a row in their order, and partitions of the "
                "topic are read at the same time",
                place=place,
                hint=f"{START_OVER} and --engine versioned, which needs no order; or use a topic with one partition",
            )
        return True


def name_pieces(block: ChangeBlock, records: Records) -> Iterator[ChangeBlock]:
    """Yield the rows of a snapshot and the changes of a window, each with its name."""
    first, last = records.offset[0].as_py(), records.offset[-1].as_py()
    read = pc.equal(block.op, pa.scalar(Op.SNAPSHOT, pa.uint8())).to_numpy(zero_copy_only=False)
    for kind, rows in (("rows", read), ("changes", ~read)):
        if rows.any():
            piece = block if rows.all() else block.taken(rows)
            yield replace(piece, name=f"{records.topic}[{records.partition}]@{first}-{last}:{kind}")


def check_counting_target(table: TargetTable, read: DetectedSchema, *, filtered: bool, holds_rows: bool, exists: bool) -> None:
    """Refuse a new table's target that counts rows if its topic cannot fill it exactly.

    `read`: the columns that are read; `filtered`: whether a transform filters rows.
    """
    other_engine = _ANOTHER if exists else "use an engine that keeps the newest version of each row (--engine replacing)"
    why, hint = "", other_engine
    if not table.has_key:
        why = "without a key, rows of a snapshot that the connector sends twice cannot be recognised"
    elif not read.countable:
        why = UNCOUNTABLE
    elif table.local_table is not None or table.storage.replication:
        why = "a replica may not have the rows yet that another one stored"
    elif table.cancels_by_content_hash and not read.certain:
        why = f"{_BY_HASH}, and its events carry no schemas, so that columns of {_UNSTABLE} cannot be recognised"
        hint = f"let the connector send schemas, or set debezium.schema_topic; or {_by_key(exists=exists)}"
    elif table.cancels_by_content_hash and (unstable := [column.name for column in read.schema.columns if _is_unstable(column)]):
        why = f"{_BY_HASH}, and Debezium may send a value of {_UNSTABLE} otherwise in a snapshot than in a change: {', '.join(unstable)}"
        hint = f"leave the columns out (--exclude-columns); or {_by_key(exists=exists)}"
    elif filtered:
        why, hint = "a filter deletes rows that may not be in the target", f"remove the filter; or {other_engine}"
    elif table.metadata_column(MetadataRole.VERSION) is None:
        why = "it has no version column, which tells the rows of a snapshot that it holds"
        hint = f"ALTER TABLE {table.qualified} ADD COLUMN `_version` UInt64; or {_ANOTHER}"
    elif holds_rows:
        why = "it holds rows already, and those of the topic would be added to them"
        hint = f"TRUNCATE TABLE {table.qualified}; or {_ANOTHER}"
    if why:
        raise DefiniteError(f"the target of {table.source} counts rows: {why}", place=f"table {table.source}", hint=hint)


def _is_unstable(column: Column) -> bool:
    # Older connectors send FLOAT and DOUBLE with the same type.
    return column.form in (ValueForm.JSON, ValueForm.FLOAT, ValueForm.VECTOR, ValueForm.GEOMETRY)


def _by_key(*, exists: bool) -> str:
    return _ANOTHER if exists else "use --engine collapsing, which cancels rows by their key, or --engine replacing"


def check_partitions(known: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Refuse topics that got more partitions: an event that the connector sends again may be in another partition than before."""
    for topic, count in known.items():
        if now.get(topic, count) != count:
            raise DefiniteError(
                f"the topic {topic} had {count} partitions, and has {now[topic]}, and its target counts rows: an event that the connector "
                "sends again may be in another partition than before",
                place=topic,
                hint=FROM_SNAPSHOT,
            )


def check_continuity(marks: Marks, ranges: Iterable[OffsetRange], counted: Mapping[TableName, bool]) -> None:
    """Refuse ranges that do not begin where the partition was read to: changes would be missing, or count twice."""
    starts = {(one.topic, one.partition): one.start for one in ranges}
    for (table, topic, partition), mark in marks.items():
        start = starts.get((topic, partition), mark.end)
        if table in counted and start != mark.end:
            raise DefiniteError(
                f"the target of {table} counts rows, and got the topic's records up to offset {mark.end}; the next batch begins at {start}",
                place=f"{topic}[{partition}]@{start}",
                hint=f"the table was not selected for a while, or the state was changed: {FROM_SNAPSHOT}",
            )


def with_ends(marks: Marks, reached: KafkaPosition, counted: Mapping[TableName, bool]) -> dict[MarkKey, SourceMark]:
    """Return marks with the offsets that a batch reached."""
    return {
        key: replace(mark, end=reached.offsets.get(key[1], {}).get(key[2], mark.end)) if key[0] in counted else mark
        for key, mark in marks.items()
    }


def counted_partitions(marks: Iterable[Marks], now: Mapping[str, int]) -> dict[str, int]:
    return {topic: now[topic] for found in marks for _, topic, _ in found}


def unfollowed_change(table: TableName, change: str, why: str, place: str, kinds: Iterable[ChangeKind]) -> DefiniteError:
    ignored = ",".join(f"{kind}=ignore" for kind in kinds)
    return DefiniteError(
        f"the copy of table {table} cannot follow its change ({change}): {why}",
        place=place,
        hint=f"{FROM_SNAPSHOT}; or keep the columns of the copy as they are: --schema-changes {ignored}",
    )


def check_emptied(emptied: Iterable[Truncation], counted: Mapping[TableName, bool]) -> None:
    """Refuse to truncate a target that counts rows: older and newer rows may have been merged."""
    for one in emptied:
        if one.table in counted:
            raise DefiniteError(
                f"table {one.table} was emptied in its source, and the target counts rows: its rows from before cannot be told from those "
                "after",
                place=f"table {one.table}",
                hint=f"{FROM_SNAPSHOT}; or keep the rows in the target: --schema-changes truncate_table=ignore",
            )
