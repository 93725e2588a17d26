"""Schedules the purge of deletion markers (tombstones): every `cleanup_hours`, in a thread next to the stream.

After a purge nothing hides an older image of the deleted row, so no older image may still arrive (decision 21):
- batches: a merge starts between two of them, and a crash replays a whole batch, together with its deletions;
- snapshot rows have the version of the position at which they were read: nothing is purged while a snapshot runs;
- dead letters: tables with waiting rows are not purged (`TombstoneStore.purge`);
- an insert without an answer may still run on the server: after an outage of the sink, the purger waits `QUIET_S` first.
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
from headrace.retry import bind_context, current_wait
from headrace.sinks.base import Pause, TombstoneStore

log = logging.getLogger("headrace")

LOOK_EVERY_S = 30.0
QUIET_S = 900.0


@dataclass(slots=True)
class TombstonePurger:
    """Purges the tables of one pipe, one after the other."""

    targets: SinkTables
    pipe: str
    tables: Callable[[], Iterable[TableSchema]]
    """The schemas of the sink's tables."""
    is_settled: Callable[[], bool]
    """Whether no snapshot runs or is planned."""
    _began: dict[str, float] = field(default_factory=dict, init=False)
    _next_look: float = field(default=0.0, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def poll(self, pause: Pause) -> None:
        """Start to purge the tables that are due, unless a purge runs."""
        store = self.targets.sink.tombstone_store()
        if store is None or (self._thread is not None and self._thread.is_alive()) or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        wanted = [(schema, hours) for schema in self.tables() if (hours := store.purge_interval_hours(schema)) > 0]
        if wanted and self._may_purge():
            self._thread = threading.Thread(
                target=bind_context(self._run), args=(store, wanted, pause), name="headrace-cleaning", daemon=True
            )
            self._thread.start()

    def wait(self) -> None:
        """Wait until the running purge ends."""
        if self._thread is not None:
            self._thread.join()

    def _may_purge(self) -> bool:
        return self.is_settled() and current_wait().seconds_since_failure() > QUIET_S and not current_wait().ending

    def _run(self, store: TombstoneStore, wanted: list[tuple[TableSchema, float]], pause: Pause) -> None:
        try:
            last = store.last_purges()
            for schema, hours in wanted:
                # A schema change during a long purge replaces the sink's description of its tables.
                store = self.targets.sink.tombstone_store() or store
                target = store.target(schema)
                if target is None:
                    continue
                if time.time() - max(last.get(target, 0.0), self._began.get(target, 0.0)) >= hours * 3600 and self._may_purge():
                    self._began[target] = time.time()
                    store.purge(schema, self.pipe, pause, self._may_purge)
        except HeadraceError as error:
            # Readers see the right rows without a purge: the pipe continues, and purges again when the interval has passed.
            log.error("deletions were not purged: %s", error)
