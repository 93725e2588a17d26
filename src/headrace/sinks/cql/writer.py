"""Writes blocks to a cluster, and updates lists on Apache Cassandra.

When `write` returns, the block is durable and visible at the address's consistency. Order and repetition of blocks do not matter.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace

from headrace.cql.blocks import LogBlock, RowBlock
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.sinks.cql.cassandra_lists import follow, follow_keys, keys_table
from headrace.sinks.cql.execution import run
from headrace.sinks.cql.log_row_writes import LogRows, plan
from headrace.sinks.cql.snapshot_writes import BaseRows

Clock = Callable[[], float]


class ReplayWriter:
    """Belongs to one task; the session with the cluster belongs to the process."""

    def __init__(self, session: CqlSession, target: Callable[[CqlTable], CqlTable], concurrency: int, clock: Clock = time.time) -> None:
        self._session, self._target, self._concurrency, self._clock = session, target, concurrency, clock

    def write(self, block: LogBlock | RowBlock) -> None:
        target = self._target(block.table)
        beside = keys_table(target)
        if beside is not None and self._takes_list_keys:
            beside = None
        if isinstance(block, LogBlock):
            self._replay(block, target, beside)
        else:
            self._restore(block, target, beside)

    @functools.cached_property
    def _takes_list_keys(self) -> bool:
        return takes_list_keys(self._session)

    def close(self) -> None:
        """Nothing is left to do: every write was acknowledged."""

    def _replay(self, block: LogBlock, target: CqlTable, beside: CqlTable | None) -> None:
        rows = LogRows(block, target, int(self._clock()))
        planned = plan(rows, target, keyed_lists=beside is None)
        writes = planned.writes
        if beside is not None:
            writes += plan(rows, beside, keyed_lists=False, markers=False).writes
        run(self._session, writes, rows.place, self._concurrency)
        if beside is not None and len(planned.listed):
            follow(self._session, rows, planned.listed.tolist(), target, beside)

    def _restore(self, block: RowBlock, target: CqlTable, beside: CqlTable | None) -> None:
        now = int(self._clock())
        rows = BaseRows(block, target, now)
        writes = list(rows.writes(keyed_lists=beside is None))
        if beside is not None:
            writes += BaseRows(block, beside, now).map_writes()
        run(self._session, writes, rows.place, self._concurrency)
        if beside is not None:
            for scope, keys in rows.listed():
                follow_keys(self._session, keys, scope, replace(scope, table=table_name(beside.name)), rows.place)


def takes_list_keys(session: CqlSession) -> bool:
    """Return whether the cluster is ScyllaDB, which writes list elements by their keys."""
    query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'system' AND table_name = 'scylla_local'"
    return bool(session.execute(query))
