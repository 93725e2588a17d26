"""Turns what the service sees of one pipe into events: no I/O, and no second definition of failed, recovered or known.

It uses the observations and the alert rules. Invariant: repeated errors of a pipe that retries are one event, and so is their end; a
schema change or a comparison that an earlier process recorded is not recorded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.alerts.detector import RECOVERY_S, KnownChange, change_digest, duration_text, is_known_change
from headrace.alerts.observation import Health, LastComparison, PipeObservation
from headrace.telemetry.event import EventKind, PipeEvent, draft_event

WAIT_S: Final = 5.0
"""A shorter wait is no event: a server that restarts a connection is not away."""
_MAX_MESSAGES: Final = 5
"""How many different errors of one trouble are recorded."""
_RESTS: Final = {"paused": EventKind.PAUSED, "stopped": EventKind.STOPPED}


class EventDetector:
    """Detects the events of one pipe. `known`: its stored events; `began`: when the process began."""

    def __init__(self, pipe: str, known: Iterable[PipeEvent], began: float) -> None:
        self._pipe, self._began = pipe, began
        stored = sorted(known, key=lambda event: event.at)
        self._changes = [KnownChange(event.at, event.key) for event in stored if event.kind is EventKind.SCHEMA_CHANGE]
        self._verified_at = max((one.at for one in stored if one.kind in (EventKind.VERIFIED, EventKind.DIFFERENCES)), default=0.0)
        self._rest = next((event.kind for event in reversed(stored) if event.kind in (*_RESTS.values(), EventKind.STARTED)), None)
        self._trouble_since: float | None = None
        self._messages: set[str] = set()
        self._waits_since: float | None = None
        self._runs_since: float | None = None
        self._snapshot_began = False

    def observe(self, seen: PipeObservation, stage: str, at: float, drafts: Sequence[PipeEvent] = ()) -> list[PipeEvent]:
        """Return the new events, oldest first. `drafts` are those that the pipe itself reported since the last call."""
        found = [event for draft in drafts for event in self._reported(draft)]
        found += self._rests(stage, at)
        found += self._troubles(seen, stage, at)
        found += self._schema_changes(seen)
        found += self._comparisons(seen)
        return sorted(found, key=lambda event: event.at)

    def _reported(self, draft: PipeEvent) -> list[PipeEvent]:
        if draft.kind is EventKind.STARTED:
            if self._trouble_since is not None and self._rest is EventKind.STARTED:
                # A retry starts the pipe again; its end is the event.
                return []
            self._rest = EventKind.STARTED
        if draft.kind is EventKind.SNAPSHOT_STARTED:
            if self._trouble_since is not None and self._snapshot_began:
                return []
            self._snapshot_began = True
        if draft.kind is EventKind.SNAPSHOT_FINISHED:
            self._snapshot_began = False
        if draft.kind in (EventKind.FAILED, EventKind.ERROR):
            if draft.text in self._messages or len(self._messages) >= _MAX_MESSAGES:
                return []
            self._messages.add(draft.text)
        return [draft]

    def _rests(self, stage: str, at: float) -> list[PipeEvent]:
        kind = _RESTS.get(stage)
        if kind is None or kind is self._rest:
            return []
        self._rest = kind
        self._end_trouble()
        return [draft_event(at, self._pipe, kind, f"is {stage}")]

    def _troubles(self, seen: PipeObservation, stage: str, at: float) -> list[PipeEvent]:
        if seen.health is Health.RUNS:
            self._waits_since = None
            self._runs_since = at if self._runs_since is None else min(self._runs_since, at)
            if at - self._runs_since < RECOVERY_S:
                return []
            began, runs = self._trouble_since, self._runs_since
            self._end_trouble()
            lasted = "" if began is None else duration_text(max(runs - began, 0.0))
            return [] if began is None else [draft_event(runs, self._pipe, EventKind.RECOVERED, f"runs again, after {lasted}")]
        self._runs_since = None
        if seen.health is Health.IDLE:
            return []
        if stage != "waiting":
            self._waits_since = None
            if self._messages and self._trouble_since is None:
                self._trouble_since = seen.since
            return []
        self._waits_since = at if self._waits_since is None else min(self._waits_since, at)
        if at - self._waits_since < WAIT_S or seen.message in self._messages or len(self._messages) >= _MAX_MESSAGES:
            return []
        self._messages.add(seen.message)
        if self._trouble_since is None:
            self._trouble_since = self._waits_since
        return [draft_event(self._waits_since, self._pipe, EventKind.WAITING, seen.message)]

    def _end_trouble(self) -> None:
        self._trouble_since, self._waits_since = None, None
        self._messages.clear()

    def _schema_changes(self, seen: PipeObservation) -> list[PipeEvent]:
        found = []
        for change in reversed(seen.schema_changes):
            if not is_known_change(self._changes, change, self._began):
                key, text = change_digest(change), f"{change.statement} ({change.outcome})"
                self._changes.append(KnownChange(change.at, key))
                found.append(draft_event(change.at, self._pipe, EventKind.SCHEMA_CHANGE, text, change.table, key=key))
        del self._changes[:-1000]
        return found

    def _comparisons(self, seen: PipeObservation) -> list[PipeEvent]:
        """Return one event for all tables of a comparison, when it has ended."""
        if any(one.verdict == "running" for one in seen.comparisons):
            return []
        fresh = [one for one in seen.comparisons if one.verdict and one.at > self._verified_at]
        if not fresh:
            return []
        self._verified_at = max(one.at for one in fresh)
        differ = [one for one in fresh if one.verdict == "different"]
        undecided = [one for one in fresh if one.verdict == "undecided"]
        parts = [_named(differ, f"{sum(one.rows for one in differ):,} rows differ in")] if differ else []
        equal = len(fresh) - len(differ) - len(undecided)
        parts += [f"{equal} {'table is' if equal == 1 else 'tables are'} equal"] if equal else []
        parts += [_named(undecided, "undecided:")] if undecided else []
        kind = EventKind.DIFFERENCES if differ else EventKind.VERIFIED
        return [draft_event(self._verified_at, self._pipe, kind, "; ".join(parts))]


def _named(tables: Sequence[LastComparison], what: str) -> str:
    more = f" and {len(tables) - 3} more" if len(tables) > 3 else ""
    return f"{what} {', '.join(one.table for one in tables[:3])}{more}"
