"""Reads generations and streams from the cluster's system tables.

Keyspaces with vnodes: `cdc_generation_timestamps` and `cdc_streams_descriptions_v2`, for the whole cluster. Keyspaces with tablets:
`cdc_timestamps` and `cdc_streams`, per table; a table that occurs there has tablets. The keyspaces that hold them are options.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from cassandra import InvalidRequest

from headrace.cql.session import CqlSession
from headrace.cql.timeuuid import micros
from headrace.cql.types import quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.retry import retrying
from headrace.sources.scylla.generations import Groups, grouped
from headrace.sources.scylla.position import moment
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.windows import start_us

CURRENT: Final = 0
"""The state of a stream that belongs to a generation; closed and opened streams are listed separately."""
_CLOCK_S: Final = 10.0
_LONGEST_S: Final = 5.0


@dataclass(slots=True)
class ServerCatalog:
    """The `StreamCatalog` of a cluster. Not thread-safe."""

    session: CqlSession
    options: ScyllaOptions
    clock: Callable[[], float] = time.monotonic
    _known: dict[TableName | None, tuple[float, list[int]]] = field(default_factory=dict)
    """Generations and when they were queried; None: the cluster's."""
    _streams: dict[tuple[TableName | None, int], Groups] = field(default_factory=dict)
    _queried_at: float = float("-inf")
    _ahead: int = 0
    """By how many microseconds the server's clock is ahead of `clock`."""
    _with_tablets: bool | None = None

    def now(self) -> int:
        if self.clock() - self._queried_at > _CLOCK_S:
            [(now_id,)] = self._query("SELECT now() FROM system.local")
            assert isinstance(now_id, UUID)
            # Take the time after the answer, so that the server's clock is not ahead of it.
            self._queried_at = self.clock()
            self._ahead = micros(now_id) - int(self._queried_at * 1e6)
        return int(self.clock() * 1e6) + self._ahead

    def has_tablets(self, table: TableName) -> bool:
        """Whether the table's streams are its own."""
        return bool(self._of_table(table))

    def generations(self, table: TableName) -> list[int]:
        found = self._of_table(table) or self._kept(None, self._of_cluster)
        if not found:
            raise DefiniteError(
                f"the cluster lists no generation of CDC streams for {table}",
                place=f"{self.options.generations}.cdc_generation_timestamps, {self.options.tablets}.cdc_timestamps",
                hint="generations exist once a table has cdc = {'enabled': true}; on a server other than ScyllaDB name the keyspace that "
                "holds them: --set scylla.generations=KEYSPACE",
            )
        return found

    def streams(self, table: TableName, generation: int) -> Groups:
        own = table if self.has_tablets(table) else None
        found = self._streams.get((own, generation))
        if found is None:
            found = self._tablet_streams(own, generation) if own is not None else self._vnode_streams(generation)
            if not found:
                raise DefiniteError(
                    f"the streams of generation {moment(start_us(generation))} of {table} no longer exist: its log cannot be read",
                    place=str(self.session.address),
                    hint="if the table was dropped and created again, start over with a new --state and empty targets",
                )
            self._streams[own, generation] = found
        return found

    def close(self) -> None:
        self.session.close()

    def _of_table(self, table: TableName) -> list[int]:
        return self._kept(table, lambda: self._tablet_generations(table)) if self._with_tablets is not False else []

    def _kept(self, key: TableName | None, ask: Callable[[], list[int]]) -> list[int]:
        """Return a cached answer while it is fresh enough (`StreamCatalog.generations`)."""
        queried_at, found = self._known.get(key, (float("-inf"), []))
        if self.clock() - queried_at >= min(self.options.confidence / 2, _LONGEST_S):
            begun = self.clock()
            found = ask()
            self._known[key] = (begun, found)
        return found

    def _of_cluster(self) -> list[int]:
        table = f"{quoted(self.options.generations)}.cdc_generation_timestamps"
        rows = self._query_if_exists(f"SELECT toUnixTimestamp(time) FROM {table} WHERE key = 'timestamps'")
        return sorted(row[0] for row in rows or ())

    def _tablet_generations(self, table: TableName) -> list[int]:
        select = f"SELECT toUnixTimestamp(timestamp) FROM {quoted(self.options.tablets)}.cdc_timestamps"
        rows = self._query_if_exists(f"{select} WHERE keyspace_name = %s AND table_name = %s", (table.database, table.table))
        if self._with_tablets is None:
            self._with_tablets = rows is not None
        return sorted(row[0] for row in rows or ())

    def _vnode_streams(self, generation: int) -> Groups:
        table = f"{quoted(self.options.generations)}.cdc_streams_descriptions_v2"
        rows = self._query(f"SELECT range_end, streams FROM {table} WHERE time = {generation:d}")
        return tuple(tuple(sorted(row.streams)) for row in sorted(rows, key=lambda row: row.range_end) if row.streams)

    def _tablet_streams(self, table: TableName, generation: int) -> Groups:
        rows = self._query(
            f"SELECT stream_id FROM {quoted(self.options.tablets)}.cdc_streams "
            f"WHERE keyspace_name = %s AND table_name = %s AND timestamp = {generation:d} AND stream_state = {CURRENT}",
            (table.database, table.table),
        )
        # Each tablet has its own replicas; neighbours most likely share some.
        return grouped([row.stream_id for row in rows], self.options.streams_per_query)

    def _query(self, query: str, parameters: tuple[str, ...] | None = None) -> list[Any]:
        """Return a query's rows; retry while servers are unreachable."""
        return retrying(lambda: self.session.execute(query, parameters))

    def _query_if_exists(self, query: str, parameters: tuple[str, ...] | None = None) -> list[Any] | None:
        """Return a query's rows; None if the cluster has no such table."""
        try:
            return self._query(query, parameters)
        except DefiniteError as error:
            if isinstance(error.__cause__, InvalidRequest):
                return None
            raise
