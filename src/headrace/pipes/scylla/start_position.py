"""Determines where a pipe starts in the log of a new table."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.errors import DefiniteError
from headrace.sources.scylla.generations import START_FORMS, LogStart, StreamCatalog, floor_us, oldest, past_lost_streams, start_at
from headrace.sources.scylla.log_tables import LoggedTable
from headrace.sources.scylla.position import moment
from headrace.sources.scylla.snapshot.options import ScyllaOptions

log = logging.getLogger("headrace")

NOW, OLDEST = "now", "oldest"


@dataclass(frozen=True, slots=True)
class StartPosition:
    """`now`: what is written from now on (and a little before); `oldest`: all available rows; or a time."""

    catalog: StreamCatalog
    choices: ScyllaOptions
    where: str
    joins: bool = False
    """Whether the table joins tables that started earlier: if rows of the start time have expired, start at the oldest."""

    def of(self, found: LoggedTable) -> LogStart:
        """Return the start of one table."""
        name, now = found.table.name, self.catalog.now()
        generations, floor = self.catalog.generations(name), floor_us(found.ttl, now)
        time = now - self.choices.confidence_us if self.where == NOW else parse_start(self.where)
        if self.where == OLDEST or (self.joins and time < floor):
            place = past_lost_streams(self.catalog, name, oldest(generations), floor)
            if place.time < floor:
                log.info(
                    "the log of %s keeps its rows for %d s: of changes before %s it holds only those that were written later",
                    name,
                    found.ttl,
                    moment(floor),
                )
            # Rows expire while the oldest are read, so only rows from now on are guaranteed.
            return LogStart(place, found.ttl, now)
        return self.at(found, time)

    def at(self, found: LoggedTable, time: int) -> LogStart:
        """Return the start at a microsecond."""
        name, now = found.table.name, self.catalog.now()
        floor = floor_us(found.ttl, now)
        if time < floor:
            raise DefiniteError(
                f"the log of {name} keeps its rows for {found.ttl} s: those that were written before {moment(floor)} have expired",
                place="--start-at",
                hint="say --start-at oldest to begin with what is there, or leave it out to copy the table first",
            )
        return LogStart(start_at(self.catalog.generations(name), time), found.ttl, time)


def parse_start(text: str) -> int:
    """Return the microseconds of a time; 0 for keywords."""
    if text in ("", NOW, OLDEST):
        return 0
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise DefiniteError(f"{text!r} is no place in a log of ScyllaDB", place="--start-at", hint=START_FORMS) from None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1_000_000)
