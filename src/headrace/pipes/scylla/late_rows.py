"""Tracks log rows that arrive later than their timestamps suggest, batch by batch, on the driver.

Before a batch is read, its late reads are saved (`look_times`). Before it counts, the positions of rows that no further read may deliver
again are saved, and those of rows that an audit found to have arrived too late for every read. The latter are in `headrace.errors` of a
ClickHouse sink and in the status, until the table is read again, its rows are repaired, or they expire. All of this may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.cql.blocks import BatchPosition
from headrace.model.schema import TableName
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.scylla.pipe_notes import LateNote, ScyllaPipeNotes, TableNote
from headrace.pipes.state.resync_requests import resync_command
from headrace.retry import retrying
from headrace.sinks.cdc_log_sink import LateBatch, LateRowStore
from headrace.sources.scylla.generations import ServerCatalog
from headrace.sources.scylla.position import AUDIT, LogPosition
from headrace.sources.scylla.read_times import ReadTimes, places_of, read_ages
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.window_reader import LateRows, WindowsRead

log = logging.getLogger("headrace")

MOST_PLACES = 1000
"""The maximum number of positions of late rows per table; rows at other positions are only counted."""


@dataclass(frozen=True, slots=True)
class LateRowWatch:
    """Maintains the late rows in a pipe's notes. Belongs to the driver."""

    notes: ScyllaPipeNotes
    choices: ScyllaOptions
    catalog: ServerCatalog
    view: ProgressView
    pipe: str
    errors: LateRowStore | None
    """Where the sink records late rows (`headrace.errors`); None if it records none."""

    def begin(self) -> None:
        """Report what earlier runs found; warn of logs in which late rows cannot be recognized."""
        for name, note in self.notes.tables.items():
            if not note.start.ttl and self.choices.again and self.choices.look_back:
                log.warning(
                    "the log of %s has no TTL, so late rows cannot be distinguished from others: rows that arrive later than "
                    "scylla.confidence (%g s) are not seen; give it one: ALTER TABLE %s WITH cdc = {'enabled': true, 'ttl': 259200}",
                    name,
                    self.choices.confidence,
                    name,
                )
        self._tell()

    def known(self, note: TableNote) -> ReadTimes:
        """Return what a task must know of earlier reads of a table's log."""
        return note.read_times.to_read_times(read_ages(self.choices, note.start.ttl), note.start.place.time)

    def read(self, before: LogPosition, after: LogPosition) -> None:
        """Save that a batch is about to be read between two positions."""
        now, changed = self.catalog.now(), False
        for name, note in self.notes.tables.items():
            ages = read_ages(self.choices, note.start.ttl)
            if note.read_times.record_reads(ages, *places_of(name, note.start, self.choices, before, after), now):
                note.read_times.drop_expired(note.start.ttl, now)
                changed = True
            audit = after.rereads.get((name, AUDIT))
            if audit is not None and audit.since >= 0 and before.rereads.get((name, AUDIT), audit).since < 0:
                # A new audit starts and counts all of them again.
                note.late.more = 0
                changed = True
        if changed:
            self.notes.save()

    def done(self, before: LogPosition, after: LogPosition, results: Iterable[WindowsRead]) -> None:
        """Save what the tasks of a batch between two positions found, before the batch counts."""
        changed = audited = False
        for result in results:
            for (name, read_number), places in result.borderline.items():
                if places:
                    note = self.notes.tables[name]
                    note.read_times.remember(read_number, places, *places_of(name, note.start, self.choices, before, after))
                    note.read_times.drop_expired(note.start.ttl, self.catalog.now())
                    changed = True
            for name, found in result.late.items():
                audited = True
                changed |= self._found(name, found)
        if audited:
            changed |= self._drop_settled()
        if changed:
            self.notes.save()
            self._tell()

    def renew(self, name: TableName) -> None:
        """Reset a table that is about to be read again: all that was written up to now will be in the sink."""
        note = self.notes.tables[name]
        known = {place.id: written for text, (_, written) in note.late.places.items() if (place := BatchPosition.parse(text)) is not None}
        note.read_times.reset(self.catalog.now(), known)
        note.late = LateNote()
        self.notes.save()
        if (errors := self.errors) is not None:
            retrying(lambda: errors.resolve(self.pipe, str(name), copied=True))
        self._tell()

    def _found(self, name: TableName, found: LateRows) -> bool:
        """Record what an audit found; return whether there are new rows."""
        late = self.notes.tables[name].late
        fresh = {place: one for place, one in found.places.items() if place not in late.places}
        kept = dict(list(fresh.items())[: max(MOST_PLACES - len(late.places), 0)])
        more = found.more + sum(rows for place, (rows, _) in fresh.items() if place not in kept)
        if not kept and not more:
            return False
        late.places |= kept
        late.more += more
        first = min(fresh, key=_micros, default="")
        log.warning(
            "the log of %s: %d rows arrived later than scylla.look_back (%g s) allows and were not read, the first at %s; "
            "remedy: headrace verify SOURCE SINK --repair writes the rows that differ again; %s copies the table again",
            name,
            sum(rows for rows, _ in kept.values()) + more,
            self.choices.look_back,
            first,
            resync_command([name], str(self.notes.directory.path)),
        )
        if (errors := self.errors) is not None:
            batches = [LateBatch(str(name), place, rows, _micros(place), written * 1_000_000) for place, (rows, written) in kept.items()]
            retrying(lambda: errors.store(self.pipe, batches))
        return True

    def _drop_settled(self) -> bool:
        """Drop rows that have expired or were repaired; return whether there were any."""
        errors, now = self.errors, self.catalog.now()
        repaired = retrying(lambda: errors.repaired_positions(self.pipe)) if errors is not None else set()
        changed = False
        for note in self.notes.tables.values():
            alive = {place: one for place, one in note.late.places.items() if (one[1] + note.start.ttl) * 1_000_000 > now}
            fixed = {place: (0, written) if place in repaired else (rows, written) for place, (rows, written) in alive.items()}
            changed |= fixed != note.late.places
            note.late.places = fixed
        return changed

    def _tell(self) -> None:
        waiting = [place for note in self.notes.tables.values() for place, (rows, _) in note.late.places.items() if rows]
        self.view.late_rows({str(name): note.late.rows for name, note in self.notes.tables.items()}, min(waiting, key=_micros, default=""))


def _micros(place: str) -> int:
    found = BatchPosition.parse(place)
    return found.micros if found is not None else 0
