"""How far the snapshots of ScyllaDB tables are: the token ranges of each table that are in the sink.

Invariant: a range that is recorded as done is completely in the sink. The rest of the ring may be split differently in the next run.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.jsonl import MISSHAPEN
from headrace.model.schema import TableName
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.sources.scylla.position import parse_name
from headrace.sources.scylla.snapshot.reader import ChunkResult
from headrace.sources.scylla.snapshot.row_recheck import LogStartTimes
from headrace.sources.scylla.snapshot.token_ranges import TokenRange, covered, left_over

FILE = "copies.jsonl"


@dataclass(slots=True)
class TableProgress:
    """The snapshot of one table."""

    begun: LogStartTimes
    done: list[TokenRange] = field(default_factory=list)
    rows: int = 0

    @property
    def left(self) -> list[TokenRange]:
        return left_over(self.done)

    @property
    def is_complete(self) -> bool:
        return self.begun.last is not None

    @property
    def share(self) -> float:
        return 1.0 if self.is_complete else covered(self.done)


class SnapshotProgress:
    """The snapshots of one pipe's tables; safe for threads. Tables that started without a snapshot are not included."""

    def __init__(self, directory: StateDirectory) -> None:
        self._journal = directory.journal(FILE)
        self._lock = threading.Lock()
        self.tables: dict[TableName, TableProgress] = {}
        for number, entry in enumerate(self._journal.read(), 1):
            try:
                self._apply(entry)
            except MISSHAPEN as error:
                raise self._journal.damaged(number, repr(error)) from error

    def begin(self, table: TableName, begun: LogStartTimes) -> None:
        """Start a table's snapshot; it replaces an earlier one."""
        self._note({"table": str(table), "begun": begun.to_json()})

    def finish(self, table: TableName, chunk: ChunkResult) -> None:
        """Record that a chunk is in the sink."""
        self._note({"table": str(table), "done": chunk.to_json()})

    def complete(self, table: TableName, last: int) -> None:
        """Record that all of a table is in the sink; no read saw anything that was written after `last`."""
        self._note({"table": str(table), "last": last})

    def forget(self, table: TableName) -> None:
        """Drop the table's snapshot."""
        self._note({"table": str(table), "begun": None})

    def begun(self) -> dict[TableName, LogStartTimes]:
        """Return how the tables' snapshots started, for readers of their logs."""
        with self._lock:
            return {name: copy.begun for name, copy in self.tables.items()}

    @property
    def rows(self) -> int:
        with self._lock:
            return sum(copy.rows for copy in self.tables.values())

    def _note(self, entry: dict[str, Any]) -> None:
        with self._lock:
            self._journal.append(entry)
            self._apply(entry)

    def _apply(self, entry: dict[str, Any]) -> None:
        table = parse_name(entry["table"])
        if "begun" in entry:
            self.tables.pop(table, None)
            if entry["begun"] is not None:
                self.tables[table] = TableProgress(LogStartTimes.from_json(entry["begun"]))
            return
        found = self.tables[table]
        if "done" in entry:
            done = ChunkResult.from_json(entry["done"])
            found.done.append(done.read)
            found.rows += done.rows
        else:
            found.begun = replace(found.begun, last=entry["last"])
