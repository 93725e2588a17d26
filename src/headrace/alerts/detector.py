"""Decides which alerts a rule sends, from one observation after the other. No I/O.

Invariant: a condition (a failed pipe, a lag, differences, a full disk) is reported once when it begins, and its end once. What was
reported is in `RuleState`, which survives a restart of the process; so a pipe that fails again after a restart is no second alert. A
schema change is reported once: it is known by its time, or, if an earlier process saw it, by table, statement and about the same time,
because the ledger of the sink has a time of its own. In doubt an alert is sent rather than lost. A changed rule reports the conditions that
last and that it did not report before, and no schema changes of the past.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from headrace.alerts.alert import Alert, AlertKind, DeliveryOutcome, OpenAlert, new_id
from headrace.alerts.observation import DiskObservation, Health, Observation, PipeObservation, SchemaChange
from headrace.alerts.rules import AlertRule
from headrace.model.json_record import JsonRecord

RECOVERY_S: Final = 10.0
"""A condition has ended when it was absent for this long: a pipe that fails at once after a restart has not recovered."""
_LOST_RESULT_S: Final = 60.0
"""Differences end silently when the comparison has not counted for this long: the table was read again or dropped."""
_DISK_MARGIN: Final = 1.1
"""A disk has recovered when this factor of the threshold is free."""
_SAME_CHANGE_S: Final = 300.0
_MAX_KNOWN_CHANGES: Final = 60
_MAX_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class KnownChange(JsonRecord):
    """A schema change that was reported."""

    at: float
    digest: str
    """Of table and statement."""


@dataclass(frozen=True, slots=True)
class QueuedAlert(JsonRecord):
    """An alert that is to be sent."""

    alert: Alert
    attempts: int = 0
    error: str = ""
    """Of the last attempt."""


@dataclass(slots=True)
class RuleState:
    """What is stored of one rule."""

    since: float
    """When the rule was seen first: earlier schema changes are not reported."""
    open: dict[str, OpenAlert] = field(default_factory=dict)
    changes: dict[str, list[KnownChange]] = field(default_factory=dict)
    """The reported schema changes of each pipe, oldest first."""
    queue: list[QueuedAlert] = field(default_factory=list)
    deliveries: list[DeliveryOutcome] = field(default_factory=list)
    """The last few, newest first."""


@dataclass(frozen=True, slots=True)
class _Condition:
    key: str
    active: bool | None
    """None: not known now."""
    hold_s: float
    """How long it must last before it is reported."""
    alert: Alert


class Detector:
    """Detects the alerts of one rule. It changes `state`; the caller stores it."""

    def __init__(self, rule: AlertRule, state: RuleState, process_began: float) -> None:
        self.rule, self._state, self._began = rule, state, process_began
        self._active_since: dict[str, float] = {}
        self._absent_since: dict[str, float] = {}

    def set_rule(self, rule: AlertRule) -> None:
        """Observe by a changed rule from now on. What it no longer covers is no longer open."""
        if (rule.pipes, rule.lag_s) != (self.rule.pipes, self.rule.lag_s):
            # How long a condition has lasted is not known for other pipes or for another threshold.
            self._active_since.clear()
            self._absent_since.clear()
        self.rule, opened = rule, self._state.open
        for key in [key for key, one in opened.items() if not any(rule.covers(group) for group in _groups(one))]:
            del opened[key]

    def observe(self, seen: Observation) -> list[Alert]:
        """Return the new alerts. Schema changes that the rule does not name or cover are detected, too: a changed rule must not report
        those of the past.
        """
        found: list[Alert] = []
        for pipe in seen.pipes:
            changes = self._schema_changes(pipe, seen)
            if not self.rule.covers(pipe.group):
                continue
            found += self._follow(_failed(pipe, seen, self.rule), seen)
            found += self._follow(_lag(pipe, seen, self.rule, self._active_since.get(f"lag:{pipe.name}")), seen)
            found += self._differences(pipe, seen)
            found += changes if AlertKind.SCHEMA_CHANGE in self.rule.events else []
        for disk in seen.disks:
            groups = [group for group in disk.groups if self.rule.covers(group)]
            if groups:
                found += self._follow(_low_disk(disk, groups, seen, self.rule), seen)
        return found

    def _follow(self, condition: _Condition, seen: Observation) -> list[Alert]:
        """Return the alert if the condition is to be reported now, or its end."""
        key, state = condition.key, self._state
        if condition.active is not True:
            self._active_since.pop(key, None)
        if condition.active is not False:
            self._absent_since.pop(key, None)
        if condition.active is True:
            first = self._active_since.setdefault(key, seen.clock)
            if key in state.open or condition.alert.kind not in self.rule.events or seen.clock - first < condition.hold_s:
                return []
            alert = condition.alert
            state.open[key] = OpenAlert(alert.id, alert.kind, alert.pipe, alert.summary, alert.since)
            return [alert]
        if condition.active is None or key not in state.open:
            return []
        if seen.clock - self._absent_since.setdefault(key, seen.clock) < RECOVERY_S:
            return []
        self._absent_since.pop(key)
        return self._recovered(state.open.pop(key), condition.alert.link, seen)

    def _recovered(self, ended: OpenAlert, link: str, seen: Observation) -> list[Alert]:
        if not {ended.kind, AlertKind.RECOVERED} <= self.rule.events:
            return []
        lasted = duration_text(max(seen.at - ended.since, 0.0))
        summary = {
            AlertKind.FAILED: f"{ended.pipe}: runs again, after {lasted}",
            AlertKind.LAG: f"{ended.pipe}: has caught up, after {lasted}",
            AlertKind.DIFFERENCES: f"{ended.pipe}: no differences any more, after {lasted}",
        }.get(ended.kind, f"{ended.pipe}: there is enough disk space again, after {lasted}")
        alert = Alert(new_id(), AlertKind.RECOVERED, ended.pipe, summary, ended.since, seen.at, (f"it was: {ended.summary}",))
        return [_completed(alert, link=link, recovers=ended.id, remedy="nothing is to be done")]

    def _differences(self, pipe: PipeObservation, seen: Observation) -> list[Alert]:
        """Return one alert for all tables of a comparison, when it has ended."""
        if any(one.verdict == "running" for one in pipe.comparisons):
            return []
        state, prefix, fresh, ended = self._state, f"differences:{pipe.name}:", [], []
        for one in pipe.comparisons:
            key = prefix + one.table
            if one.verdict == "different" and key not in state.open and AlertKind.DIFFERENCES in self.rule.events:
                fresh.append(one)
            elif one.verdict == "equal" and key in state.open:
                ended.append(state.open.pop(key))
            if one.verdict or key not in state.open or pipe.health is not Health.RUNS:
                self._absent_since.pop(key, None)
            elif seen.clock - self._absent_since.setdefault(key, seen.clock) >= _LOST_RESULT_S:
                del self._absent_since[key], state.open[key]
        for key in [key for key in state.open if key.startswith(prefix)]:
            if pipe.health is Health.RUNS and pipe.comparisons and key.removeprefix(prefix) not in {one.table for one in pipe.comparisons}:
                # The table is no longer one of the pipe's.
                del state.open[key]
        found: list[Alert] = []
        if ended and not any(key.startswith(prefix) for key in state.open) and not fresh:
            found += self._recovered(min(ended, key=lambda one: one.since), dashboard_link(seen.dashboard, pipe.name), seen)
        if fresh:
            names = ", ".join(one.table for one in fresh[:3]) + (f" and {len(fresh) - 3} more" if len(fresh) > 3 else "")
            alert = Alert(
                new_id(),
                AlertKind.DIFFERENCES,
                pipe.name,
                f"{pipe.name}: verification found differences in {names}",
                min(one.at for one in fresh),
                seen.at,
                _listed([f"{one.table}: {one.rows:,} rows differ" for one in fresh]),
                remedy=f"headrace verify SOURCE SINK --repair repairs rows; headrace resync --pipe {pipe.group} TABLE reads a table again",
                link=dashboard_link(seen.dashboard, pipe.name),
            )
            for one in fresh:
                state.open[prefix + one.table] = OpenAlert(alert.id, alert.kind, alert.pipe, alert.summary, alert.since)
            found.append(alert)
        return found

    def _schema_changes(self, pipe: PipeObservation, seen: Observation) -> list[Alert]:
        known = self._state.changes.setdefault(pipe.name, [])
        fresh = [
            one for one in reversed(pipe.schema_changes) if one.at > self._state.since and not is_known_change(known, one, self._began)
        ]
        if not fresh:
            return []
        known += [KnownChange(one.at, change_digest(one)) for one in fresh]
        del known[:-_MAX_KNOWN_CHANGES]
        what = f"a schema change of {fresh[0].table}" if len(fresh) == 1 else f"{len(fresh)} schema changes"
        return [
            Alert(
                new_id(),
                AlertKind.SCHEMA_CHANGE,
                pipe.name,
                f"{pipe.name}: {what}: {fresh[0].outcome}" if len(fresh) == 1 else f"{pipe.name}: {what}",
                fresh[0].at,
                seen.at,
                _listed([f"{one.table}: {one.statement} ({one.outcome})" for one in fresh]),
                remedy="check that queries of the target bear it; [pipes.NAME.schema_changes] sets a policy for each kind of change",
                link=dashboard_link(seen.dashboard, pipe.name),
            )
        ]


def _failed(pipe: PipeObservation, seen: Observation, rule: AlertRule) -> _Condition:
    halted = pipe.health is Health.FAILED
    active = {Health.RUNS: False, Health.IDLE: None}.get(pipe.health, True)
    summary = f"{pipe.name}: {'failed' if halted else 'does not run'}: {pipe.message or 'it has not started yet'}"
    alert = Alert(
        new_id(),
        AlertKind.FAILED,
        pipe.name,
        summary,
        pipe.since,
        seen.at,
        () if halted else ("it is retried by itself",),
        pipe.place,
        pipe.remedy or "see its status and the log",
        dashboard_link(seen.dashboard, pipe.name),
    )
    return _Condition(f"failed:{pipe.name}", active, 0.0 if halted else rule.away_s, alert)


def _lag(pipe: PipeObservation, seen: Observation, rule: AlertRule, active_since: float | None) -> _Condition:
    known = pipe.lag_s is not None and pipe.health in (Health.RUNS, Health.AWAY)
    lag_s = pipe.lag_s or 0.0
    began = seen.at - (0.0 if active_since is None else seen.clock - active_since)
    summary = f"{pipe.name}: {duration_text(lag_s)} behind its source, for {duration_text(rule.lag_for_s)} more than {rule.lag_s:g} s"
    remedy = pipe.remedy or "see what the dashboard shows: a server that is away, a snapshot, a burst of changes (docs/troubleshooting.md)"
    link = dashboard_link(seen.dashboard, pipe.name)
    alert = Alert(new_id(), AlertKind.LAG, pipe.name, summary, began, seen.at, (), pipe.place, remedy, link)
    return _Condition(f"lag:{pipe.name}", lag_s > rule.lag_s if known else None, rule.lag_for_s, alert)


def _low_disk(disk: DiskObservation, groups: Sequence[str], seen: Observation, rule: AlertRule) -> _Condition:
    enough = True if disk.free >= rule.low_disk * _DISK_MARGIN else None
    pipes = ", ".join(groups)
    alert = Alert(
        new_id(),
        AlertKind.LOW_DISK,
        pipes,
        f"{pipes}: {size_text(disk.free)} of disk space left at {disk.directory}",
        seen.at,
        seen.at,
        (f"the threshold is {size_text(rule.low_disk)}",),
        disk.directory,
        "free space there (df -h shows how much is left), or enlarge the file system; a pipe without space waits and loses nothing",
        dashboard_link(seen.dashboard, ""),
    )
    return _Condition(f"low_disk:{disk.directory}", True if disk.free < rule.low_disk else False if enough else None, 0.0, alert)


def _groups(alert: OpenAlert) -> list[str]:
    """Return the pipes of an alert, by their names in the file."""
    return [name.partition("/")[0] for name in alert.pipe.split(", ")]


def _completed(alert: Alert, *, link: str, recovers: str, remedy: str) -> Alert:
    return Alert(alert.id, alert.kind, alert.pipe, alert.summary, alert.since, alert.at, alert.details, alert.place, remedy, link, recovers)


def _listed(lines: Sequence[str]) -> tuple[str, ...]:
    more = (f"and {len(lines) - _MAX_LISTED} more",) if len(lines) > _MAX_LISTED else ()
    return (*lines[:_MAX_LISTED], *more)


def is_known_change(known: Sequence[KnownChange], change: SchemaChange, process_began: float) -> bool:
    """Whether a schema change was reported before, by this process or by an earlier one."""
    digest = change_digest(change)
    return any(
        one.digest == digest and (one.at == change.at or (one.at <= process_began and abs(one.at - change.at) < _SAME_CHANGE_S))
        for one in known
    )


def change_digest(change: SchemaChange) -> str:
    """Return what identifies a schema change, without its time."""
    return hashlib.sha256(f"{change.table}\0{change.statement}".encode(errors="replace")).hexdigest()[:16]


def dashboard_link(address: str, pipe: str) -> str:
    """Return the address of a pipe on the dashboard; empty if there is no dashboard."""
    if not address:
        return ""
    base = address.rstrip("/")
    return f"{base}/#/pipes/{quote(pipe, safe='')}" if pipe else f"{base}/"


def duration_text(seconds: float) -> str:
    """Return a duration as people read it: 42 s, 3 min 10 s, 2 h 5 min, 3 d 4 h."""
    whole = round(seconds)
    return " ".join(_units(whole)) or "0 s"


def _units(whole: int) -> Iterator[str]:
    """Yield the two largest units."""
    sizes = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    largest = next((place for place, (size, _) in enumerate(sizes) if whole >= size), None)
    for size, unit in sizes[largest : largest + 2] if largest is not None else ():
        if whole // size:
            yield f"{whole // size} {unit}"
        whole %= size


def size_text(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
