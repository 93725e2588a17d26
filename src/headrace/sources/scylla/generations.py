"""Stream generations of a table's log, read from the cluster's system tables, and functions over them.

A generation is named by the time from which it operates; clients learn of it before that time. Its streams never change. Tables of
keyspaces with vnodes share the cluster's generations (`cdc_generation_timestamps`, `cdc_streams_descriptions_v2`); a table with tablets has
its own (`cdc_timestamps`, `cdc_streams`), and every table that occurs there has tablets. The keyspaces that hold these tables are options.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from cassandra import InvalidRequest

from headrace.cql.timeuuid import micros
from headrace.cql.types import quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.retry import retrying
from headrace.sources.scylla.position import StreamPosition, following, generation_at, moment, start_us
from headrace.sources.scylla.snapshot.options import ScyllaOptions

if TYPE_CHECKING:
    from headrace.cql.session import CqlSession

log = logging.getLogger("headrace.scylla")

Groups = tuple[tuple[bytes, ...], ...]
"""Stream ids grouped by token range, so that a group has the same replicas."""
_MARGIN_S: Final = 60
START_FORMS: Final = "write now, oldest, or a time such as 2026-05-01T12:00:00Z"


@dataclass(frozen=True, slots=True)
class LogStart:
    """The start position of a pipe in a table's log."""

    place: StreamPosition
    ttl: int
    """TTL of the log's rows in seconds; 0: they do not expire."""
    promised: int
    """Microseconds since 1970: everything written from then on must be read."""


def floor_us(ttl: int, now: int) -> int:
    """Return the time before which rows have expired, or soon will."""
    return now - max(ttl - min(_MARGIN_S, ttl // 10), 0) * 1_000_000 if ttl else 0


def start_at(generations: Sequence[int], time: int) -> StreamPosition:
    """Return the position from which everything after `time` is read."""
    found = generation_at(generations, time)
    if found is None:
        return StreamPosition(generations[0], start_us(generations[0]) - 1)
    return StreamPosition(found, time)


def oldest(generations: Sequence[int]) -> StreamPosition:
    """Return the position before the first row of a log. A row written with a timestamp in the past may be older than the log's TTL."""
    return start_at(generations, 0)


def past_lost_streams(catalog: ServerCatalog, table: TableName, place: StreamPosition, floor: int) -> StreamPosition:
    """Return the position, or the start of a later generation if the streams of earlier ones are no longer known.

    Only generations that ended before `floor` are skipped: all rows written in time have expired there.
    """
    generations = catalog.generations(table)
    while (after := following(generations, place.generation)) is not None and start_us(after) <= floor:
        try:
            catalog.streams(table, place.generation)
            break
        except DefiniteError as error:
            log.warning("%s; rows that were written to it later with timestamps of that time are not read", error.message)
            place = StreamPosition(after, start_us(after) - 1, place.since)
    return place


def expired(generations: Sequence[int], since: int, floor: int) -> list[str]:
    """Return the generations, or parts of them, between two times whose rows have all expired, as text."""
    found = []
    for one in generations:
        after = following(generations, one)
        first, last = max(start_us(one), since), min(start_us(after) if after is not None else floor, floor)
        if first < last:
            found.append(f"generation {moment(start_us(one))}: {moment(first)} to {moment(last)}")
    return found


def lost_log(table: TableName, since: int, floor: int, ttl: int) -> DefiniteError:
    """Return the error for rows that may have expired unread."""
    return DefiniteError(
        f"the log of {table} was read up to {moment(since)}, and keeps its rows for {ttl} s: those before {moment(floor)} are gone unread",
        place=f"table {table}",
        hint="start over with a new --state and empty targets, so that the table is copied again; or go on without them: "
        "--set scylla.expired=skip. A longer life of the log helps next time: ALTER TABLE … WITH cdc = {'enabled': true, 'ttl': …}",
    )


def shares(groups: Groups, share: int, of: int, at_once: int) -> list[tuple[bytes, ...]]:
    """Return one task's share of the streams, as lists for its queries; every stream is in exactly one share."""
    return [group[first : first + at_once] for group in groups[share::of] for first in range(0, len(group), at_once)]


def grouped(streams: Sequence[bytes], at_once: int) -> Groups:
    """Group streams without known ranges by their order: a stream id begins with its token."""
    ordered = sorted(streams)
    return tuple(tuple(ordered[first : first + at_once]) for first in range(0, len(ordered), at_once))


CURRENT: Final = 0
"""The state of a stream that belongs to a generation; closed and opened streams are listed separately."""
_CLOCK_S: Final = 10.0
_LONGEST_S: Final = 5.0


@dataclass(slots=True)
class ServerCatalog:
    """A cluster's generations and streams. Not thread-safe."""

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
        """Return the servers' time, microseconds since 1970."""
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
        """Return the generations in ascending order (milliseconds since 1970), at most half of the confidence time old."""
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
        """Return a generation's streams; raise if it does not exist."""
        own = table if self.has_tablets(table) else None
        found = self._streams.get((own, generation))
        if found is None:
            found = self._tablet_streams(own, generation) if own is not None else self._vnode_streams(generation)
            if not found:
                message = f"the streams of generation {moment(start_us(generation))} of {table} no longer exist: its log cannot be read"
                hint = "if the table was dropped and created again, start over with a new --state and empty targets"
                raise DefiniteError(message, place=str(self.session.address), hint=hint)
            self._streams[own, generation] = found
        return found

    def close(self) -> None:
        self.session.close()

    def _of_table(self, table: TableName) -> list[int]:
        return self._kept(table, lambda: self._tablet_generations(table)) if self._with_tablets is not False else []

    def _kept(self, key: TableName | None, ask: Callable[[], list[int]]) -> list[int]:
        """Return a cached answer while it is fresh enough."""
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
