"""Takes snapshots of ScyllaDB tables alongside the log: chunks of token ranges as Spark jobs, each recorded when it is in the sink.

The log keeps its rows for a day only, so the stream does not wait for snapshots. It starts before the snapshot; rows in both merge to the
same (see `sources.scylla.snapshot.reader`). A crash repeats the chunks that were running.

Invariant: a range that is recorded as done is completely in the sink. The rest of the ring may be split differently in the next run.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.cql.address import CqlAddress
from headrace.cql.schema_reader import describe_all
from headrace.cql.session import shared_session
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError, HeadraceError
from headrace.jsonl import MISSHAPEN
from headrace.model.schema import TableName
from headrace.pipes.lifecycle.context import PipeContext, SnapshotInterrupted
from headrace.pipes.scylla.pipe_notes import ScyllaPipeNotes
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.retry import bind_context, pause, retrying
from headrace.runtime.interface import RuntimeSession
from headrace.runtime.reports import SplitDone
from headrace.runtime.tasks import Task
from headrace.sources.base import Split
from headrace.sources.scylla.position import parse_name
from headrace.sources.scylla.snapshot.base_rows import WriteTimeColumns
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.reader import ChunkResult, TokenChunk, TokenRangeReader, server_time
from headrace.sources.scylla.snapshot.row_recheck import LogStartTimes
from headrace.sources.scylla.snapshot.table_probe import probe_write_times, read_ring
from headrace.sources.scylla.snapshot.token_ranges import Ring, TokenRange, covered, cut, left_over

FILE = "copies.jsonl"


@dataclass(slots=True)
class TableProgress:
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


log = logging.getLogger("headrace")

_LEAST_CHUNKS: Final = 4
"""The minimum number of chunks per table for each chunk that is read at once."""


_LOOK_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class ScyllaSnapshotRunner:
    """Takes the snapshots of one pipe's tables in a thread alongside the stream."""

    context: PipeContext[LogTarget]
    address: CqlAddress
    choices: ScyllaOptions
    notes: ScyllaPipeNotes
    progress: SnapshotProgress
    _thread: threading.Thread | None = field(default=None, init=False)
    _failure: HeadraceError | None = field(default=None, init=False)

    def begin(self, table: CqlTable, start: int) -> None:
        """Start a table's snapshot; its log is read from `start`, which lies the confidence time before now."""
        silent = self._telling(table).silent(table)
        if silent:
            log.warning(
                "%s: the server does not tell write times and TTLs of what is in %s; elements that expire stay (see docs/scylla.md)",
                table.name,
                ", ".join(silent),
            )
        self.progress.begin(table.name, LogStartTimes(start))

    @property
    def is_complete(self) -> bool:
        return not self._left()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Tables that are not completely in the sink yet."""
        return tuple(sorted(map(str, self._left())))

    def poll(self, session: RuntimeSession, parallelism: int) -> None:
        """Start the remaining snapshots if none is running; raise the error of the last run."""
        if self.is_busy:
            return
        if self._thread is not None:
            self._thread = None
            if self._failure is not None:
                raise self._failure
        if not self.is_complete and not self.context.is_stopping():
            run = bind_context(self._run)
            self._thread = threading.Thread(target=run, args=(session, parallelism), name="headrace-copies", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait for the running snapshot; it ends soon after the pipe starts to stop."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, session: RuntimeSession, parallelism: int) -> None:
        try:
            self.run(session, parallelism)
        except SnapshotInterrupted:
            self.context.view.note("stopped during the first copy; run again to go on")
        except HeadraceError as error:
            self._failure = error
        # An unexpected error must reach the driver; otherwise it would be lost with the thread.
        except Exception as error:
            self._failure = DefiniteError(f"copying tables failed: {type(error).__name__}: {error}", hint="please report it")
            raise

    def run(self, session: RuntimeSession, parallelism: int, follow: Callable[[], object] = lambda: pause(_LOOK_AGAIN_S)) -> None:
        """Read what is left of all tables, `parallelism` chunks at a time.

        `follow` is called if a table was altered. Alongside the stream it only waits, because the stream applies the change to the sink.
        """
        rings = self._rings()
        self.context.view.snapshot_begins(*self._estimates(rings))
        started, before = time.monotonic(), self.progress.rows
        # Tables that are added meanwhile are read after these.
        while left := {name: copy for name, copy in self._left().items() if name in rings}:
            tables = {name: table for name, table in self._tables().items() if name in left}
            try:
                self._round(session, parallelism, tables, rings)
            except DefiniteError:
                if not self._altered(tables):
                    raise
                follow()
            for name in [name for name, copy in left.items() if not copy.left]:
                # Nodes generate the keys of list elements with their clocks, which may be ahead of the queried one.
                last = server_time(shared_session(self.address)) + self.choices.confidence_us
                self.progress.complete(name, last)
                self.context.view.snapshot_rows(str(name), 0, finished=True)
            if self.context.is_stopping():
                raise SnapshotInterrupted
        self.context.view.snapshot_ends(self.progress.rows - before, time.monotonic() - started)

    def _altered(self, tables: Mapping[TableName, CqlTable]) -> bool:
        found = retrying(lambda: describe_all(shared_session(self.address), tables))
        return any(found[name].table != table for name, table in tables.items())

    def _round(
        self, session: RuntimeSession, parallelism: int, tables: Mapping[TableName, CqlTable], rings: Mapping[TableName, Ring]
    ) -> None:
        """Read each remaining range once; chunks that turn out too large leave a rest for the next round."""
        splits = []
        for name in tables:
            copy = self.progress.tables[name]
            since = copy.begun.first + self.choices.confidence_us
            parts = cut(copy.left, rings[name], _LEAST_CHUNKS * parallelism)
            splits += [TokenChunk(name, part, self.context.settings.chunk_rows, since) for part in parts]
        reader = TokenRangeReader(self.address, tables, {name: self._telling(table) for name, table in tables.items()}, self.choices)

        def on_done(split: Split, report: SplitDone) -> None:
            assert isinstance(split, TokenChunk)
            chunk = report.result_of(ChunkResult)
            self.progress.finish(split.table, chunk)
            self.context.view.snapshot_rows(str(split.table), chunk.rows, finished=False)

        def on_idle() -> None:
            if self.context.is_stopping():
                raise SnapshotInterrupted

        retry = functools.partial(retrying, deadline_s=self.context.settings.retry_timeout_s)
        session.run_splits(Task(reader, self.context.targets.sink, retry), splits, parallelism, on_done, on_idle)

    def _tables(self) -> dict[TableName, CqlTable]:
        """The tables with the sink's current schemas."""
        return {name: note.table for name, note in list(self.notes.tables.items())}

    def _telling(self, table: CqlTable) -> WriteTimeColumns:
        return probe_write_times(shared_session(self.address), table)

    def _left(self) -> dict[TableName, TableProgress]:
        chosen = self._tables()
        return {name: copy for name, copy in list(self.progress.tables.items()) if not copy.is_complete and name in chosen}

    def _rings(self) -> dict[TableName, Ring]:
        session = shared_session(self.address)
        return {name: retrying(lambda name=name: read_ring(session, name)) for name in self._left()}  # type: ignore[misc]

    def _estimates(self, rings: Mapping[TableName, Ring]) -> tuple[dict[str, int], dict[str, int]]:
        """Return the estimated rows of each table, and the rows that are in the sink."""
        found: dict[str, int] = {}
        left = self._left()
        for name, copy in left.items():
            seen = int(copy.rows / copy.share) if copy.share else 0
            found[str(name)] = max(seen, rings[name].partitions, copy.rows)
        return found, {str(name): copy.rows for name, copy in left.items()}
