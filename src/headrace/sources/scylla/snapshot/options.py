"""Options of the ScyllaDB source. Picklable; every option is a setting of the same name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.errors import DefiniteError

LEAST_WINDOW_S: Final = 0.5
_NEXT_READ: Final = 4
"""Each reread of the look-back window comes at this multiple of the previous one's age."""
FIXED: Final = frozenset({"kept"})
"""Options that cannot change at a restart."""


class OnExpired(StrEnum):
    """What a pipe does if it stopped for longer than the log's TTL, so that unread rows may have expired."""

    HALT = "halt"
    SKIP = "skip"
    """Continues with the existing rows, and logs what may be missing."""


class StoredForm(StrEnum):
    """How rows are stored in ClickHouse."""

    CELLS = "cells"
    """Every cell, merged as ScyllaDB does; a view shows the rows. Always exact."""
    IMAGES = "images"
    """The postimages of rows, in ordinary tables; as exact as postimages are (see "Images")."""


class MergeTime(StrEnum):
    """When ClickHouse merges cells into rows."""

    AUTO = "auto"
    """New tables: after each block. Existing tables: as they are."""
    WRITE = "write"
    """After each block: queries read plain rows."""
    READ = "read"
    """At each query: writing is cheaper, and queries are slower."""


@dataclass(frozen=True, slots=True)
class ScyllaOptions:
    """How log tables are read."""

    confidence: float = 30.0
    """Seconds to wait before a time of the log is read; the first read misses rows that arrive later (see `again`). Covers the clocks of
    servers and of clients that set timestamps, and slow writes."""
    window: float = 0.0
    """Minimum seconds of the log per batch, once the pipe has caught up; 0: a tenth of `confidence`."""
    again: float = 300.0
    """Seconds after which the log is read again, for rows that arrived later than `confidence` allows: from clients that set timestamps or
    have slow clocks, or written at so low a consistency that only an unavailable replica had them. The log is read once more at four
    times that age, and so on, up to `look_back`. Only if log rows have a TTL. 0: never."""
    look_back: float = 3600.0
    """Maximum seconds between a row's timestamp and its arrival. Each reread delivers only the late rows, and costs one query of three
    small columns for the same streams. Rows that arrive even later are reported (see `audit`). 0: never."""
    audit: float = 21600.0
    """Seconds between two audits of the whole log, which count and locate the rows that arrived later than `look_back` allows (at most a
    quarter of the log's TTL). An audit reads three small columns of every row in the log. 0: never."""
    batch_rows: int = 1_000_000
    """Approximate log rows per window of a table while the pipe catches up; windows grow and shrink accordingly. A batch merges each row
    that it touches once, so larger batches are cheaper for ClickHouse."""
    queries_per_second: float = 1000.0
    """Maximum rate of queries; with many streams, windows get longer."""
    streams_per_query: int = 8
    """Streams per query; those of one token range are queried together."""
    concurrency: int = 16
    """Concurrent queries per task."""
    page_rows: int = 5000
    """Rows per page."""
    kept: StoredForm = StoredForm.CELLS
    """How rows are stored in ClickHouse; `images` needs `cdc = {'enabled': true, 'postimage': true}`, and cannot be changed later."""
    merge: MergeTime = MergeTime.AUTO
    """When ClickHouse merges cells into rows: after each write, so that queries read plain rows, or at each query (`read`). `auto`: after
    each write in new tables, and existing tables stay as they are."""
    expired: OnExpired = OnExpired.HALT
    log_ttl: int = 0
    """TTL of log rows in seconds, if the server does not report it (`cdc = {'ttl': …}` of the table); 0: as the server reports."""
    generations: str = "system_distributed"
    """The keyspace of cdc_generation_timestamps and cdc_streams_descriptions_v2 (keyspaces with vnodes)."""
    tablets: str = "system"
    """The keyspace of cdc_timestamps and cdc_streams (keyspaces with tablets)."""

    def check(self) -> None:
        """Raise `DefiniteError` for invalid numbers."""
        for name in ("batch_rows", "streams_per_query", "concurrency", "page_rows", "queries_per_second"):
            if not getattr(self, name):
                raise DefiniteError(f"{name} must be at least 1", place=f"[scylla] {name}", hint="leave it out to have the default")

    @property
    def confidence_us(self) -> int:
        return int(self.confidence * 1e6)

    def reread_ages_us(self, ttl: int) -> tuple[int, ...]:
        """Return the delays of the rereads after the first read; none if late rows cannot be distinguished."""
        if not (ttl and self.again and self.look_back):
            return ()
        found, age = [], min(self.again, self.look_back)
        while age < self.look_back:
            found.append(int(age * 1e6))
            age *= _NEXT_READ
        return (*found, int(self.look_back * 1e6))

    def audit_us(self, ttl: int) -> int:
        """Return the time between two audits of a log; 0: no audits."""
        return int(min(self.audit, ttl / _NEXT_READ) * 1e6)

    @property
    def window_us(self) -> int:
        """The minimum length of a window once the pipe has caught up."""
        return int((self.window or max(self.confidence / 10, LEAST_WINDOW_S)) * 1e6)
