"""Determines where a pipe starts in the log of a new table."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.errors import DefiniteError
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import PipeSettings
from headrace.sources.scylla.generations import START_FORMS, LogStart, ServerCatalog, floor_us, oldest, past_lost_streams, start_at
from headrace.sources.scylla.log_tables import LoggedTable
from headrace.sources.scylla.position import moment
from headrace.sources.scylla.snapshot.options import ScyllaOptions

log = logging.getLogger("headrace")

NOW, OLDEST = "now", "oldest"


@dataclass(frozen=True, slots=True)
class StartPosition:
    """`now`: what is written from now on (and a little before); `oldest`: all available rows; or a time."""

    catalog: ServerCatalog
    choices: ScyllaOptions
    where: str
    joins: bool = False
    """Whether the table joins tables that started earlier: if rows of the start time have expired, start at the oldest."""

    def of(self, found: LoggedTable) -> LogStart:
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
        if time < floor:
            message = f"the log of {name} keeps its rows for {found.ttl} s: those that were written before {moment(floor)} have expired"
            hint = "use --start-at oldest to start with the rows that the log still has, or omit it to copy the table first"
            raise DefiniteError(message, place="--start-at", hint=hint)
        return LogStart(start_at(generations, time), found.ttl, time)


def check_start(settings: PipeSettings) -> None:
    """Raise `DefiniteError` if a pipe cannot start as the settings say."""
    if settings.snapshot is SnapshotMode.CONSISTENT:
        message = "a cluster has no moment at which all tables could be read"
        raise DefiniteError(message, place="snapshot", hint='leave it out, or choose none (--snapshot none, snapshot = "none")')
    parse_start(settings.start_at)


def parse_start(text: str) -> int:
    """Return the microseconds of a time; 0 for keywords."""
    if text in ("", NOW, OLDEST):
        return 0
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise DefiniteError(f"{text!r} is no place in a log of ScyllaDB", place="--start-at", hint=START_FORMS) from None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1_000_000)
