"""Stream generations of a table's log: the interface, and functions over it.

A generation is named by the time from which it operates; clients learn of it before that time. Its streams never change. Tables of
keyspaces with vnodes share the cluster's generations; a table with tablets has its own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.position import StreamPosition, moment
from headrace.sources.scylla.windows import following, generation_at, start_us

log = logging.getLogger("headrace.scylla")

Groups = tuple[tuple[bytes, ...], ...]
"""Stream ids grouped by token range, so that a group has the same replicas."""
_MARGIN_S: Final = 60
START_FORMS: Final = "write now, oldest, or a time such as 2026-05-01T12:00:00Z"


class StreamCatalog(Protocol):
    """A cluster's generations and streams."""

    def now(self) -> int:
        """Return the servers' time, microseconds since 1970."""

    def generations(self, table: TableName) -> Sequence[int]:
        """Return the generations in ascending order (milliseconds since 1970), at most half of the confidence time old."""

    def streams(self, table: TableName, generation: int) -> Groups:
        """Return a generation's streams. Raises if it does not exist."""

    def close(self) -> None: ...


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


def past_lost_streams(catalog: StreamCatalog, table: TableName, place: StreamPosition, floor: int) -> StreamPosition:
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
