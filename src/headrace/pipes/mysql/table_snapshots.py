"""Which snapshots of a pipe's tables are planned, pending and complete.

Invariant: a snapshot counts only if its number is the one in the table's state; a later snapshot of the table replaces it.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.state.pipe_state import SnapshotLog, TableSnapshot
from headrace.pipes.state.resync_requests import pending_requests
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk


@dataclass(frozen=True, slots=True)
class TableSnapshots:
    context: PipeContext[SinkTables]
    log: SnapshotLog

    @property
    def is_complete(self) -> bool:
        return all(snapshot.complete for _, snapshot in self.current())

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Tables whose rows are not all in the sink yet, no matter how far the stream is."""
        begun = {str(name) for name, one in self.current() if not one.complete}
        return tuple(sorted(begun | self._requested() | set(map(str, self.context.state.awaiting_resync.copy()))))

    def _requested(self) -> set[str]:
        """Tables with a resync request that has not started."""
        globs = [table for request in pending_requests(self.context.directory) for table in request.tables]
        requested, named = Selection(tuple(globs)), {table for table in globs if not glob.has_magic(table)}
        return named | {str(name) for name in list(self.context.state.tables) if globs and requested(name)}

    def stale_versions(self, names: Iterable[TableName]) -> dict[TableName, int]:
        """The versions below which rows of these tables are stale: the table's last snapshot has replaced or deleted them, or will.

        An exact snapshot makes no row stale before it is read: it replaces all changes that the stream writes until then.
        """
        found = {name: snapshot for name in names if (snapshot := self.of(name)) is not None and snapshot.begins_at is not None}
        shown = [self.context.sink_schema(self.context.state.tables[name].schema) for name in found]
        needs = self.context.targets.requirements(shown) if shown else {}
        places = {name: one.began_at if one.pending and needs[name].exact else one.begins_at for name, one in found.items()}
        return {name: BinlogPosition.from_json(place).version for name, place in places.items() if place is not None}

    def current(self) -> list[tuple[TableName, TableSnapshot]]:
        return [(name, snapshot) for name in list(self.context.state.tables) if (snapshot := self.of(name)) is not None]

    def of(self, name: TableName) -> TableSnapshot | None:
        """The current snapshot of a table, or None."""
        table, snapshot = self.context.state.tables.get(name), self.log.tables.get(str(name))
        return snapshot if table is not None and snapshot is not None and snapshot.number == table.snapshot else None

    def readable(self) -> list[tuple[TableName, TableSnapshot]]:
        """Current snapshots that may continue. A waiting table starts over instead: its target does not have its columns."""
        return [(name, snapshot) for name, snapshot in self.current() if name not in self.context.state.awaiting_resync]

    def pending(self) -> list[Chunk]:
        return [Chunk.from_json(raw) for _, snapshot in self.readable() for raw in snapshot.pending]
