"""What may be chosen about reading ScyllaDB's CDC log. Picklable; every choice is a setting of the same name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.errors import DefiniteError

LEAST_WINDOW_S: Final = 0.5
_NEXT_READ: Final = 4
"""Each further read of the look-back window comes at this multiple of the age of the one before."""
FIXED: Final = frozenset({"kept"})
"""What cannot be another one at a restart."""


class OnExpired(StrEnum):
    """What becomes of a pipe that was away for longer than log rows live: some may be gone that it never read."""

    HALT = "halt"
    SKIP = "skip"
    """Goes on with what is there, and says in the log what may be missing."""


class StoredForm(StrEnum):
    """What of rows is kept in ClickHouse."""

    CELLS = "cells"
    """Every cell, merged as ScyllaDB does: exact whatever happens, shown by a view."""
    IMAGES = "images"
    """Rows as their postimages show them, in ordinary tables: simple, and as exact as postimages are (see "Images")."""


@dataclass(frozen=True, slots=True)
class ScyllaOptions:
    """How log tables are read."""

    confidence: float = 30.0
    """Seconds for which a moment must be over before the log is read up to it: what comes later than that is not seen. Covers the clocks of
    servers and of clients that set timestamps, and writes that are slow to arrive."""
    window: float = 0.0
    """Seconds of the log that a batch covers at the least, once the pipe has caught up; 0: a tenth of `confidence`."""
    again: float = 300.0
    """Seconds after which the log is read for the second time, for rows that arrived later than `confidence` allows: from clients that set
    timestamps or whose clocks are slow, or written at a consistency so low that only a replica that was away had them. The log is read
    again at four times that age, and so on, up to `look_back`. Only where log rows have a TTL. 0: never."""
    look_back: float = 3600.0
    """Seconds by which a row may arrive later than its timestamp says and still be read. Each further read takes only the late rows, and
    costs one query of three small columns for the same streams. Rows that arrive even later are reported (see `audit`). 0: never."""
    audit: float = 21600.0
    """Seconds between two audits of the whole log, which count and locate the rows that arrived later than `look_back` allows (at most a
    quarter of the log's TTL). An audit reads three small columns of every row in the log. 0: never."""
    batch_rows: int = 200_000
    """About how many log rows a window of a table is to have while the pipe catches up: windows grow while they hold less, and shrink."""
    queries_per_second: float = 1000.0
    """With many streams, windows are at least so long that not more queries are sent than this."""
    streams_per_query: int = 8
    """Streams that one query asks for; those of one token range are asked for together."""
    concurrency: int = 16
    """Queries that each task has under way at once."""
    page_rows: int = 5000
    """Rows that a server sends at once."""
    kept: StoredForm = StoredForm.CELLS
    """What of rows is kept in ClickHouse; `images` needs `cdc = {'enabled': true, 'postimage': true}`, and cannot be changed later."""
    expired: OnExpired = OnExpired.HALT
    log_ttl: int = 0
    """Seconds for which log rows live, where the server does not tell (`cdc = {'ttl': …}` of the table); 0: as the server tells."""
    generations: str = "system_distributed"
    """The keyspace of cdc_generation_timestamps and cdc_streams_descriptions_v2 (keyspaces with vnodes)."""
    tablets: str = "system"
    """The keyspace of cdc_timestamps and cdc_streams (keyspaces with tablets)."""

    def check(self) -> None:
        """Raise `DefiniteError` for numbers that make no sense."""
        for name in ("batch_rows", "streams_per_query", "concurrency", "page_rows", "queries_per_second"):
            if not getattr(self, name):
                raise DefiniteError(f"{name} must be at least 1", place=f"[scylla] {name}", hint="leave it out to have the default")

    @property
    def confidence_us(self) -> int:
        return int(self.confidence * 1e6)

    def reread_ages_us(self, ttl: int) -> tuple[int, ...]:
        """How long after the first read of a moment the log is read again, each time; never where late rows cannot be told from others."""
        if not (ttl and self.again and self.look_back):
            return ()
        found, age = [], min(self.again, self.look_back)
        while age < self.look_back:
            found.append(int(age * 1e6))
            age *= _NEXT_READ
        return (*found, int(self.look_back * 1e6))

    def audit_us(self, ttl: int) -> int:
        """How much time lies between two audits of a log; 0: there is none."""
        return int(min(self.audit, ttl / _NEXT_READ) * 1e6)

    @property
    def window_us(self) -> int:
        """The least length of a window once the pipe has caught up."""
        return int((self.window or max(self.confidence / 10, LEAST_WINDOW_S)) * 1e6)
