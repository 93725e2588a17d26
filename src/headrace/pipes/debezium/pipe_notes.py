"""What a pipe from Kafka remembers besides its tables: by which rule each table's versions are made, what tells topics apart from later
ones of their names, and how the source's log was at the end of each partition's last batch.

Invariant: a batch that is read again is read with what was known before it. So the tails of the last batch and of the one before are kept,
each with the batch's number.
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

FILE: Final = "debezium.json"
Tails = Mapping[tuple[str, int], LogTail]


@dataclass(slots=True)
class DebeziumPipeNotes:
    """Kept in one file, replaced as a whole."""

    directory: StateDirectory
    orders: dict[TableName, TableVersioning] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    """The identity of each topic that was read."""
    batch: int = -1
    """The last batch of which something was noted."""
    before: Tails = field(default_factory=dict)
    after: Tails = field(default_factory=dict)
    emptied: dict[TableName, int] = field(default_factory=dict)
    """The versions at which tables were emptied last: what partitions that lag behind still bring from before stays out."""
    snapshots: dict[tuple[TableName, str], KeylessSnapshot] = field(default_factory=dict)
    """Of tables without a key, the snapshot whose rows are there, by topic."""
    filled: dict[TableName, set[str]] = field(default_factory=dict)
    """The topics that brought changes of each table."""

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
            return cls(directory, orders, raw["topics"], raw["batch"], *tails, emptied, by_topic, filled)
        except MISSHAPEN as error:
            raise damaged(error, str(directory.path / FILE)) from error

    def tails_for(self, batch: int) -> Tails:
        """How logs were where a batch begins."""
        return self.before if batch <= self.batch else self.after

    def note_orders(self, found: Mapping[TableName, TableVersioning]) -> bool:
        """Keep rules that are new; whether there were any. A table's rule is never another one."""
        fresh = {name: order for name, order in found.items() if name not in self.orders}
        self.orders |= fresh
        if fresh:
            self.save()
        return bool(fresh)

    def note_batch(self, batch: int, tails: Tails) -> None:
        """A batch is in the sink."""
        before = dict(self.tails_for(batch))
        after = {**before, **tails}
        if batch != self.batch or after != self.after:
            self.batch, self.before, self.after = batch, before, after
            self.save()

    def note_topics(self, ids: Mapping[str, str]) -> None:
        """Topics are read that were not before."""
        if not self.topics.items() >= ids.items():
            self.topics |= ids
            self.save()

    def note_filled(self, found: Mapping[TableName, set[str]]) -> None:
        """Topics brought changes of tables."""
        if any(not topics <= self.filled.get(name, set()) for name, topics in found.items()):
            self.filled |= {name: self.filled.get(name, set()) | topics for name, topics in found.items()}
            self.save()

    def note_snapshots(self, counting: Mapping[tuple[TableName, str], KeylessSnapshot]) -> None:
        """What the target shows of tables without a key is of these."""
        if counting != self.snapshots:
            self.snapshots = dict(counting)
            self.save()

    def note_emptied(self, truncations: Iterable[Truncation]) -> None:
        """Tables were emptied in the source, and are in the sink."""
        known = dict(self.emptied)
        for one in truncations:
            self.emptied[one.table] = max(one.version, self.emptied.get(one.table, 0))
        if self.emptied != known:
            self.save()

    def save(self) -> None:
        content = {
            "orders": [[name.database, name.table, order.to_json()] for name, order in sorted(self.orders.items())],
            "topics": self.topics,
            "batch": self.batch,
            "before": _tails(self.before),
            "after": _tails(self.after),
            "emptied": [[name.database, name.table, version] for name, version in sorted(self.emptied.items())],
            "snapshots": [one.to_json() for _, one in sorted(self.snapshots.items())],
            "filled": [[name.database, name.table, sorted(topics)] for name, topics in sorted(self.filled.items())],
        }
        self.directory.replace(FILE, content)


def _tails(tails: Tails) -> list[Any]:
    return [[topic, partition, tail.to_json()] for (topic, partition), tail in sorted(tails.items())]


def _read_tails(raw: list[Any]) -> dict[tuple[str, int], LogTail]:
    return {(topic, partition): LogTail.from_json(tail) for topic, partition, tail in raw}
