"""When deletions are purged: by choice, every so many hours, beside the stream.

A purged deletion no longer stands in the way of an older image of its row, so there must be none to come (decision 21):
- batches: a merge begins between two of them. What is written again after a crash is a whole batch, the deletion with the rest of it;
- rows of a snapshot have the version of the moment at which they were read: nothing is purged while tables are being read;
- rows that wait in the dead letters: their tables are not purged;
- an insert whose answer never came may still be under way on the server: after waiting for a sink, a while passes first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.errors import HeadraceError
from headrace.model.schema import TableSchema
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.retry import bind_context, current_wait, retrying
from headrace.sinks.clickhouse.bookkeeping.own_tables import parse_timestamp_us
from headrace.sinks.clickhouse.dead_letters.dead_letters import count_waiting
from headrace.sinks.clickhouse.maintenance.tombstone_cleanup import (
    CLEANUPS,
    Pause,
    TombstoneCleanup,
    deletion_column,
    last_cleanups,
    record_cleanup,
)
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_table import TargetTable

log = logging.getLogger("headrace")

LOOK_EVERY_S = 30.0
QUIET_S = 900.0


@dataclass(slots=True)
class TombstonePurger:
    """Purges one pipe's tables, one after the other, in a thread beside the stream."""

    targets: SinkTables
    pipe: str
    tables: Callable[[], Iterable[TableSchema]]
    """As the sink sees them."""
    is_settled: Callable[[], bool]
    """Whether no table is being read, or is to be."""
    _began: dict[str, float] = field(default_factory=dict, init=False)
    _next_look: float = field(default=0.0, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def poll(self, pause: Pause) -> None:
        """Begin with what is due, if nothing is under way."""
        if not isinstance(self.targets.sink, ClickHouseSink):
            # What is deleted in another kind of sink is its own affair.
            return
        if (self._thread is not None and self._thread.is_alive()) or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        wanted = [(schema, hours) for schema in self.tables() if (hours := self._hours(schema)) > 0]
        if wanted and self._may_clean():
            self._thread = threading.Thread(target=bind_context(self._run), args=(wanted, pause), name="headrace-cleaning", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait for what is under way."""
        if self._thread is not None:
            self._thread.join()

    @property
    def _sink(self) -> ClickHouseSink:
        sink = self.targets.sink
        assert isinstance(sink, ClickHouseSink)
        return sink

    def _hours(self, schema: TableSchema) -> float:
        return self._sink.options.of(schema.name).cleanup_hours

    def _may_clean(self) -> bool:
        return self.is_settled() and current_wait().quiet_s() > QUIET_S and not current_wait().ending

    def _run(self, wanted: list[tuple[TableSchema, float]], pause: Pause) -> None:
        try:
            tables = self._sink.own_tables()
            tables.ensure(CLEANUPS)
            last = {target: parse_timestamp_us(began) / 1e6 for target, began in last_cleanups(tables).items()}
            for schema, hours in wanted:
                layout = self._sink.target_table(schema)
                target = f"{layout.database}.{layout.table}"
                if not deletion_column(layout):
                    continue
                if time.time() - max(last.get(target, 0.0), self._began.get(target, 0.0)) >= hours * 3600 and self._may_clean():
                    self._began[target] = time.time()
                    self._clean(layout, target, pause)
        except HeadraceError as error:
            # The rows are right without it: the pipe goes on, and it is tried again when it is due again.
            log.error("deletions were not purged: %s", error)

    def _clean(self, layout: TargetTable, target: str, pause: Pause) -> None:
        sink, began_us = self._sink, time.time_ns() // 1000
        tables = sink.own_tables()
        letters = count_waiting(tables, target)
        if letters:
            log.warning("deletions in %s are not purged: %d of its rows wait in headrace.errors (headrace retry)", target, letters)
            retrying(lambda: record_cleanup(tables, target, self.pipe, began_us, 0, f"not done: {letters} rows wait in headrace.errors"))
            return
        try:
            purged = TombstoneCleanup(sink.scope, layout).run(pause, self._may_clean)
        except HeadraceError as error:
            reason = f"failed: {error.message}"
            retrying(lambda: record_cleanup(tables, target, self.pipe, began_us, 0, reason))
            raise
        retrying(lambda: record_cleanup(tables, target, self.pipe, began_us, purged, "done"))
        log.info("purged %d deletions from %s in %.1f s", purged, target, time.time() - began_us / 1e6)
