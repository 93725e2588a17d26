"""Records when each read of a table's log took place, to distinguish rows that arrived later from rows that were read.

A time is read when it has a known age, or later: after a restart, or while the pipe catches up. Only later reads are recorded. A row
counts as unseen if it was written after the earliest time at which its read can have been. Rows that a read has seen although they may
count as unseen by that rule (they arrived while it was due) are remembered by their positions, so that no row is delivered twice.

Every error of this bookkeeping is on the safe side: a row is delivered twice, or reported although it was delivered; none is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.cql.blocks import fixed_bytes
from headrace.cql.log import STREAM, TIME
from headrace.model.schema import TableName
from headrace.sources.scylla.generations import LogStart
from headrace.sources.scylla.position import FIRST, LogPosition, StreamPosition
from headrace.sources.scylla.snapshot.options import ScyllaOptions

CLOCK_US: Final = 2_000_000
"""Precision with which the write time of a row is known."""
MOST_REMEMBERED: Final = 10_000
"""Row positions remembered per read of a table's log."""
_PUNCTUAL_US: Final = 10_000_000
"""A read that is less late than this is not recorded."""
_MOST_NOTED: Final = 1000


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """The reads of one table's log, as a task needs them. Times are microseconds since 1970."""

    ages: tuple[int, ...] = (0,)
    """How long after a time each read of it is due."""
    begin: int = -1
    """The first read starts after this time. Earlier writes are known without the log."""
    late: tuple[tuple[tuple[int, int], ...], ...] = ()
    """For each read: pairs (log time, read time); everything after the log time was read at the read time or later."""
    seen: tuple[frozenset[bytes], ...] = ()
    """For each read: the positions (stream and `cdc$time`) of rows that it saw although they may count as unseen."""

    @property
    def last(self) -> int:
        return len(self.ages) - 1

    def earliest(self, read_number: int, times: NDArray[np.int64]) -> NDArray[np.int64]:
        # Only later reads cover the look-back window before the start; no read covers what is before it.
        unread = times <= (self.begin if read_number == FIRST else self.begin - (self.ages[-1] - self.ages[0]))
        found: NDArray[np.int64] = np.where(unread, self.begin, times + self.ages[read_number])
        for after, at in self.late[read_number] if self.late else ():
            np.maximum(found, at, out=found, where=times > after)
        return found

    def unseen(self, read_number: int, rows: pa.RecordBatch, times: NDArray[np.int64], written: pa.Int64Array) -> NDArray[np.bool_]:
        """Return which rows may have been written after a read of their times, as far as is known."""
        found: NDArray[np.bool_] = self.after(read_number, times, written)
        known = self.seen[read_number] if self.seen else frozenset()
        if known and found.any():
            where = np.flatnonzero(found)
            places = batch_ids(rows.take(pa.array(where)))
            found[where] = [place not in known for place in places]
        return found

    def after(self, read_number: int, times: NDArray[np.int64], written: pa.Int64Array, sure_us: int = -CLOCK_US) -> NDArray[np.bool_]:
        """Return which rows were written after a read of their times, by more than `sure_us`; rows with unknown write time are excluded."""
        known = np.asarray(written.is_valid().to_numpy(zero_copy_only=False))
        found: NDArray[np.bool_] = known & (written.fill_null(0).to_numpy() * 1_000_000 > self.earliest(read_number, times) + sure_us)
        return found

    def borderline(self, read_number: int, rows: pa.RecordBatch, times: NDArray[np.int64], written: pa.Int64Array) -> dict[str, int]:
        """Return rows that a read has seen and that may count as unseen: positions in hexadecimal, and write times.

        (The margin is wide because each read estimates the write time, with an error of more than a second.)
        """
        if not self.last or written.null_count == len(written):
            return {}
        where = pa.array(np.flatnonzero(self.after(read_number, times, written, -3 * CLOCK_US))[:MOST_REMEMBERED])
        return dict(zip((one.hex() for one in batch_ids(rows.take(where))), written.take(where).to_pylist(), strict=True))


def batch_ids(rows: pa.RecordBatch) -> list[bytes]:
    """Return the positions of log rows: stream and `cdc$time`."""
    both = np.hstack([fixed_bytes(rows.column(STREAM), 16), fixed_bytes(rows.column(TIME), 16)])
    return [one.tobytes() for one in both]


@dataclass(slots=True)
class ReadTimeRecord:
    """The driver's record of the reads of one table's log."""

    late: list[list[tuple[int, int]]] = field(default_factory=list)
    seen: list[dict[bytes, int]] = field(default_factory=list)
    """For each read: positions of rows and their write times, in seconds since 1970."""

    def to_read_times(self, ages: Sequence[int], begin: int) -> ReadTimes:
        """Return the record in the form that tasks need."""
        self._resize(len(ages))
        return ReadTimes(tuple(ages), begin, tuple(map(tuple, self.late)), tuple(map(frozenset, self.seen)))

    def record_reads(self, ages: Sequence[int], before: Sequence[StreamPosition], after: Sequence[StreamPosition], now: int) -> bool:
        """Record the reads of a batch that starts now, between these positions, if they are late. Return whether anything was recorded."""
        self._resize(len(ages))
        changed = False
        for noted, age, first, last in zip(self.late, ages, before, after, strict=True):
            # A position without a window was reached together with the previous read: only this entry shows that its rows are delivered.
            if first.time != last.time and (last.since < 0 or now - last.time - age > _PUNCTUAL_US):
                noted.append((first.time, now))
                changed = True
                if len(noted) > _MOST_NOTED:
                    # A time without an entry uses that of an earlier one: it counts as read earlier, which is safe.
                    del noted[::2]
        return changed

    def remember(
        self, read_number: int, places: Mapping[str, int], before: Sequence[StreamPosition], after: Sequence[StreamPosition]
    ) -> None:
        """Remember positions of rows that a read has seen (see `ReadTimes.borderline`) in a batch between these positions.

        Reads that jumped to the end of this one in the same batch have seen the same rows.
        """
        seen = {bytes.fromhex(place): written for place, written in places.items()}
        for one in range(read_number, len(self.seen)):
            if one != read_number and (after[one].since >= 0 or after[one].time == before[one].time):
                break
            self.seen[one] |= seen

    def drop_expired(self, ttl: int, now: int) -> None:
        """Drop entries of expired rows, and the oldest positions if there are too many."""
        for number, (noted, places) in enumerate(zip(self.late, self.seen, strict=True)):
            self.late[number] = [(after, at) for after, at in noted if at + ttl * 1_000_000 > now]
            alive = {place: written for place, written in places.items() if (written + ttl) * 1_000_000 > now}
            self.seen[number] = dict(sorted(alive.items(), key=lambda one: one[1])[-MOST_REMEMBERED:])

    def reset(self, now: int, known: Mapping[bytes, int]) -> None:
        """Reset: everything written up to now reached the sink in another way.

        `known`: positions and write times of rows that an audit has found. They may be younger than write times can show (`CLOCK_US`), and
        would count as unseen again.
        """
        self.late = [[(-1, now)] for _ in self.late]
        self.seen = [dict(known) for _ in self.seen]

    def to_json(self) -> dict[str, Any]:
        return {"late": self.late, "seen": [{place.hex(): at for place, at in one.items()} for one in self.seen]}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ReadTimeRecord:
        late = [[(int(after), int(at)) for after, at in noted] for noted in raw["late"]]
        return cls(late, [{bytes.fromhex(place): int(at) for place, at in one.items()} for one in raw["seen"]])

    def _resize(self, reads: int) -> None:
        """Adapt to the configured number of reads. A new read starts with the record of the last one."""
        while len(self.late) < reads:
            self.late.append(list(self.late[-1]) if self.late else [])
            self.seen.append(dict(self.seen[-1]) if self.seen else {})
        del self.late[reads:], self.seen[reads:]


def read_ages(options: ScyllaOptions, ttl: int) -> tuple[int, ...]:
    """Return how long after a time each read of it is due, including the first one."""
    return tuple(options.confidence_us + age for age in (0, *options.reread_ages_us(ttl)))


def places_of(
    name: TableName, start: LogStart, options: ScyllaOptions, before: LogPosition, after: LogPosition
) -> tuple[list[StreamPosition], list[StreamPosition]]:
    """Return how far each read of a table's log is before and after a batch."""
    reads, begin = len(read_ages(options, start.ttl)), start.place
    old, new = (
        [position.places.get(name, begin), *(position.rereads.get((name, read_number), begin) for read_number in range(1, reads))]
        for position in (before, after)
    )
    return old, new
