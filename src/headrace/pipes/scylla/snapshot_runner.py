"""Takes snapshots of ScyllaDB tables alongside the log: chunks of token ranges as Spark jobs, each recorded when it is in the sink.

The log keeps its rows for a day only, so the stream does not wait for snapshots. It starts before the snapshot; rows in both merge to the
same (see `sources.scylla.snapshot.reader`). A crash repeats the chunks that were running.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.cql.address import CqlAddress
from headrace.cql.schema_reader import describe_all
from headrace.cql.session import shared_session
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError, HeadraceError
from headrace.model.schema import TableName
from headrace.pipes.lifecycle.context import PipeContext, SnapshotInterrupted
from headrace.pipes.scylla.pipe_notes import ScyllaPipeNotes
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.pipes.scylla.snapshot_progress import SnapshotProgress, TableProgress
from headrace.retry import bind_context, pause, retrying
from headrace.runtime.interface import RuntimeSession
from headrace.runtime.reports import SplitDone
from headrace.runtime.tasks import Task
from headrace.sources.base import Split
from headrace.sources.scylla.snapshot.base_rows import WriteTimeColumns
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.reader import ChunkResult, TokenChunk, TokenRangeReader, server_time
from headrace.sources.scylla.snapshot.row_recheck import LogStartTimes
from headrace.sources.scylla.snapshot.table_probe import probe_write_times, read_ring
from headrace.sources.scylla.snapshot.token_ranges import Ring, cut

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
        """Whether a snapshot is running."""
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
            self._thread = threading.Thread(
                target=bind_context(self._run), args=(session, parallelism), name="headrace-copies", daemon=True
            )
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
        """Whether a table was altered since it was read."""
        found = retrying(lambda: describe_all(shared_session(self.address), tables))
        return any(found[name].table != table for name, table in tables.items())

    def _round(
        self,
        session: RuntimeSession,
        parallelism: int,
        tables: Mapping[TableName, CqlTable],
        rings: Mapping[TableName, Ring],
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

        session.run_splits(self._task(reader), splits, parallelism, on_done, on_idle)

    def _tables(self) -> dict[TableName, CqlTable]:
        """The tables with the sink's current schemas."""
        return {name: note.table for name, note in list(self.notes.tables.items())}

    def _task(self, reader: TokenRangeReader) -> Task:
        retry = functools.partial(retrying, deadline_s=self.context.settings.retry_timeout_s)
        return Task(reader, self.context.targets.sink, retry)

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
