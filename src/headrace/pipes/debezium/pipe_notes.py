"""A Debezium pipe's notes: the version rule of each table, the ids of topics, and the source's log position at the end of each partition.

Invariant: a repeated batch is read with what was known before it. So the tails of the last batch and of the one before are stored, each
with the batch's number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.jsonl import MISSHAPEN
from headrace.model.schema import TableName
from headrace.pipes.state.json_file import damaged
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot
from headrace.sources.debezium.events.records import Truncation
from headrace.sources.debezium.events.source_marks import MarkKey, Marks, SourceMark

FILE: Final = "debezium.json"
Tails = Mapping[tuple[str, int], LogTail]


@dataclass(slots=True)
class DebeziumPipeNotes:
    """The notes of one pipe, in one file that is replaced as a whole."""

    directory: StateDirectory
    orders: dict[TableName, TableVersioning] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    """The id of each topic that was read."""
    batch: int = -1
    """The last batch with notes."""
    before: Tails = field(default_factory=dict)
    after: Tails = field(default_factory=dict)
    emptied: dict[TableName, int] = field(default_factory=dict)
    """The versions of the last truncations: lagging partitions may still bring rows from before them."""
    snapshots: dict[tuple[TableName, str], KeylessSnapshot] = field(default_factory=dict)
    """The snapshot that tables without a key show, by topic."""
    filled: dict[TableName, set[str]] = field(default_factory=dict)
    """The topics that brought changes of each table."""
    sent_before: int = 0
    """How many unreadable records batches before `batch` sent to the dead-letter topic."""
    sent: int = 0
    """How many all batches sent."""
    marks_before: Marks = field(default_factory=dict)
    marks: Marks = field(default_factory=dict)
    """The marks of tables whose target counts rows."""
    rows_batch: int = -1
    """The last batch of which all rows of snapshots are stored in such tables."""
    partitions: dict[str, int] = field(default_factory=dict)
    """How many partitions the topics of such tables had when they were read first."""

    @classmethod
    def load(cls, directory: StateDirectory) -> DebeziumPipeNotes:
        raw = directory.read(FILE)
        if raw is None:
            return cls(directory)
        try:
            orders = {TableName(database, table): TableVersioning.from_json(order) for database, table, order in raw["orders"]}
            emptied = {TableName(database, table): version for database, table, version in raw.get("emptied", ())}
            snapshots = [KeylessSnapshot.from_json(one) for one in raw.get("snapshots", ())]
            filled = {TableName(database, table): set(topics) for database, table, topics in raw.get("filled", ())}
            tails = _read_tails(raw["before"]), _read_tails(raw["after"])
            by_topic = {(one.table, one.topic): one for one in snapshots}
            sent = raw.get("sent_before", 0), raw.get("sent", 0)
            marks = _read_marks(raw.get("marks_before", ())), _read_marks(raw.get("marks", ()))
            rows = raw.get("rows_batch", -1), raw.get("partitions", {})
            return cls(directory, orders, raw["topics"], raw["batch"], *tails, emptied, by_topic, filled, *sent, *marks, *rows)
        except MISSHAPEN as error:
            raise damaged(error, str(directory.path / FILE)) from error

    def tails_for(self, batch: int) -> Tails:
        return self.before if batch <= self.batch else self.after

    def marks_for(self, batch: int) -> Marks:
        return self.marks_before if batch <= self.batch else self.marks

    def note_orders(self, found: Mapping[TableName, TableVersioning]) -> bool:
        """Save new version rules; return whether there were any. A table's rule never changes."""
        return self._update(orders={**found, **self.orders})

    def note_batch(self, batch: int, tails: Tails, sent: int = 0, marks: Marks | None = None) -> None:
        """Save the tails and marks of a batch in the sink, and how many records it sent to the dead-letter topic; a repetition counts
        once."""
        before, marks_before = dict(self.tails_for(batch)), dict(self.marks_for(batch))
        sent_before = self.sent_before if batch <= self.batch else self.sent
        counts = {"batch": batch, "sent_before": sent_before, "sent": sent_before + sent}
        after, marks_after = {**before, **tails}, dict(marks_before if marks is None else marks)
        self._update(before=before, after=after, marks_before=marks_before, marks=marks_after, **counts)

    def note_topics(self, ids: Mapping[str, str]) -> None:
        self._update(topics={**self.topics, **ids})

    def note_filled(self, found: Mapping[TableName, set[str]]) -> None:
        """Save which topics brought changes of tables."""
        self._update(filled=self.filled | {name: self.filled.get(name, set()) | topics for name, topics in found.items()})

    def note_snapshots(self, counting: Mapping[tuple[TableName, str], KeylessSnapshot]) -> None:
        self._update(snapshots=dict(counting))

    def note_rows(self, batch: int) -> None:
        """Save that all rows of snapshots in a batch are stored, in tables that count rows."""
        self._update(rows_batch=batch)

    def note_partitions(self, counts: Mapping[str, int]) -> None:
        """Save how many partitions topics have that are read first."""
        self._update(partitions={**counts, **self.partitions})

    def note_emptied(self, truncations: Iterable[Truncation]) -> None:
        emptied = dict(self.emptied)
        for one in truncations:
            emptied[one.table] = max(one.version, emptied.get(one.table, 0))
        self._update(emptied=emptied)

    def _update(self, **values: Any) -> bool:
        """Save notes that have changed; return whether there were any."""
        changed = {name: value for name, value in values.items() if getattr(self, name) != value}
        for name, value in changed.items():
            setattr(self, name, value)
        if changed:
            self.save()
        return bool(changed)

    def save(self) -> None:
        content = {
            "orders": [[name.database, name.table, order.to_json()] for name, order in sorted(self.orders.items())],
            "topics": self.topics,
            "batch": self.batch,
            "before": _tails(self.before),
            "after": _tails(self.after),
            "emptied": [[name.database, name.table, version] for name, version in sorted(self.emptied.items())],
            "snapshots": [one.to_json() for _, one in sorted(self.snapshots.items())],
            "sent_before": self.sent_before,
            "sent": self.sent,
            "marks_before": _marks(self.marks_before),
            "marks": _marks(self.marks),
            "rows_batch": self.rows_batch,
            "partitions": self.partitions,
            "filled": [[name.database, name.table, sorted(topics)] for name, topics in sorted(self.filled.items())],
        }
        self.directory.replace(FILE, content)


def _tails(tails: Tails) -> list[Any]:
    return [[topic, partition, tail.to_json()] for (topic, partition), tail in sorted(tails.items())]


def _read_tails(raw: list[Any]) -> dict[tuple[str, int], LogTail]:
    return {(topic, partition): LogTail.from_json(tail) for topic, partition, tail in raw}


def _marks(marks: Marks) -> list[Any]:
    return [[name.database, name.table, topic, partition, mark.to_json()] for (name, topic, partition), mark in sorted(marks.items())]


def _read_marks(raw: Iterable[Any]) -> dict[MarkKey, SourceMark]:
    return {(TableName(database, table), topic, part): SourceMark.from_json(mark) for database, table, topic, part, mark in raw}
