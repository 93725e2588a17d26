"""The state of all rules: `alerts.json` in the state directory of the process.

Invariant: an alert is in the file before it is sent, and leaves it when it was sent. So a `kill -9` loses none; one that is sent again
after it has the same id. The file is replaced atomically. Pipes never read it: if it is damaged, it is written again, and an alert may
come twice. Memory and file are bounded: the oldest alerts of a queue that is full are dropped, with a line in the log and among the
deliveries. A rule that changes keeps its state, so its alerts are sent once; a rule that vanishes loses it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from headrace.alerts.alert import Alert, AlertKind, DeliveryOutcome, OpenAlert
from headrace.alerts.detector import Detector, KnownChange, QueuedAlert, RuleState
from headrace.alerts.observation import Observation
from headrace.alerts.rules import AlertRule
from headrace.alerts.status import AlertsStatus, RuleStatus
from headrace.errors import HeadraceError
from headrace.jsonl import MISSHAPEN
from headrace.pipes.state.json_file import read_json, replace_json

log = logging.getLogger("headrace")

FILE: Final = "alerts.json"
MAX_QUEUED: Final = 100
_MAX_DELIVERIES: Final = 20
_VERSION: Final = 1
_DROPPED: Final = "dropped: too many alerts wait for this receiver"


class AlertStore:
    """The states of the configured rules. Thread-safe."""

    def __init__(self, directory: Path, rules: Sequence[AlertRule], began: float, *, since: float | None = None) -> None:
        """`began`: the process; `since`: the rules, if that was later."""
        self.path, self._began = directory / FILE, began
        self.changed = threading.Condition()
        self._is_writable = True
        self._states, self._detectors = self._load(), dict[str, Detector]()
        self.set_rules(rules, began if since is None else since)

    def set_rules(self, rules: Sequence[AlertRule], at: float) -> None:
        """Replace the rules. The state of a rule is kept by its name; alerts that wait for a removed receiver are dropped."""
        with self.changed:
            self.rules = tuple(rules)
            known = self._states
            self._states = {rule.name: known.get(rule.name, RuleState(at)) for rule in rules}
            for name, left in known.items():
                if name not in self._states and left.queue:
                    log.warning("alerts: there is no [alerts.%s] any more: %d alerts that waited for it are dropped", name, len(left.queue))
            self._detectors = {rule.name: self._detector(rule) for rule in rules}
            self._store()
            self.changed.notify_all()

    def _detector(self, rule: AlertRule) -> Detector:
        known, state = self._detectors.get(rule.name), self._states[rule.name]
        if known is None:
            return Detector(rule, state, self._began)
        if rule.target != known.rule.target and state.queue:
            # The attempts at the former receiver say nothing about this one.
            state.queue[0] = QueuedAlert(state.queue[0].alert)
        known.set_rule(rule)
        return known

    # -- detection

    def observe(self, seen: Observation) -> None:
        """Queue the alerts of an observation; they are stored before anything is sent."""
        with self.changed:
            before = [(list(state.open), len(state.queue)) for state in self._states.values()]
            fresh = {name: detector.observe(seen) for name, detector in self._detectors.items()}
            for name, alerts in fresh.items():
                for alert in alerts:
                    log.info("alert to %s: %s", name, alert.summary)
                    self._states[name].queue.append(QueuedAlert(alert))
                self._drop_oldest(name, seen.at)
            if any(fresh.values()) or before != [(list(state.open), len(state.queue)) for state in self._states.values()]:
                self._store()
                self.changed.notify_all()

    def _drop_oldest(self, name: str, at: float) -> None:
        state = self._states[name]
        while len(state.queue) > MAX_QUEUED:
            # The first one may be being sent.
            dropped = state.queue.pop(1)
            log.warning("alerts: %s: %s: %s", name, _DROPPED, dropped.alert.summary)
            self._add_delivery(name, dropped, at, _DROPPED)

    # -- delivery

    def first(self, name: str) -> QueuedAlert | None:
        """Return the next alert of a rule."""
        with self.changed:
            state = self._states.get(name)
            return state.queue[0] if state is not None and state.queue else None

    def wait(self, name: str, ended: threading.Event) -> QueuedAlert | None:
        """Wait for an alert of a rule; return None if the rule was removed or the process ends: `ended` is set."""
        with self.changed:
            while not ended.is_set():
                queued = self.first(name)
                if queued is not None:
                    return queued
                self.changed.wait()
            return None

    def set_failure(self, name: str, alert: Alert, error: str) -> int:
        """Record a failed attempt; return how many there were; 0: the alert was dropped with its rule."""
        with self.changed:
            queue = self._queue_from(name, alert)
            if not queue:
                return 0
            queue[0] = replace(queue[0], attempts=queue[0].attempts + 1, error=error)
            self.changed.notify_all()
            return queue[0].attempts

    def finish(self, name: str, alert: Alert, outcome: str) -> None:
        """Remove an alert that was sent or given up, unless it was dropped with its rule."""
        with self.changed:
            queue = self._queue_from(name, alert)
            if queue:
                done = queue.pop(0)
                self._add_delivery(name, replace(done, attempts=done.attempts + 1), time.time(), outcome)
                self._store()
                self.changed.notify_all()

    def _queue_from(self, name: str, alert: Alert) -> list[QueuedAlert]:
        """Return the queue that begins with this alert; empty if its rule was removed, even if there is one of that name again."""
        queue = self._states[name].queue if name in self._states else []
        return queue if queue and queue[0].alert.id == alert.id else []

    def flush(self, timeout_s: float) -> bool:
        """Wait until each alert was sent or its receiver has failed once; return whether that is so."""
        with self.changed:
            return self.changed.wait_for(
                lambda: not any(state.queue and not state.queue[0].attempts for state in self._states.values()), timeout_s
            )

    def _add_delivery(self, name: str, done: QueuedAlert, at: float, outcome: str) -> None:
        deliveries = self._states[name].deliveries
        deliveries.insert(0, DeliveryOutcome.of(done.alert, name, at, outcome, done.attempts))
        del deliveries[_MAX_DELIVERIES:]

    # -- status

    def status(self) -> AlertsStatus:
        with self.changed:
            rules = tuple(_status_of(rule, self._states[rule.name]) for rule in self.rules)
            # Several rules report the same condition.
            opened = {key: one for state in self._states.values() for key, one in state.open.items()}
            deliveries = sorted((one for state in self._states.values() for one in state.deliveries), key=lambda one: one.at, reverse=True)
        return AlertsStatus(rules, tuple(sorted(opened.values(), key=lambda one: one.since)), tuple(deliveries[:_MAX_DELIVERIES]))

    # -- the file

    def _load(self) -> dict[str, RuleState]:
        if not self.path.exists():
            return {}
        try:
            raw = read_json(self.path)
            if raw["version"] != _VERSION:
                raise ValueError(f"it has version {raw['version']!r}")
            return {name: _decoded(one) for name, one in raw["rules"].items()}
        except (HeadraceError, OSError, AttributeError, *MISSHAPEN) as error:
            log.warning("alerts: %s cannot be read, and is written again; an alert may come twice: %s", self.path, error)
            return {}

    def _store(self) -> None:
        content = {"version": _VERSION, "rules": {name: _encoded(state) for name, state in self._states.items()}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_json(self.path, content)
        except OSError as error:
            # A full disk must not stop the alert about it.
            if self._is_writable:
                log.warning("alerts: %s cannot be written, so an alert may come twice after a restart: %s", self.path, error)
            self._is_writable = False
            with suppress(OSError):
                self.path.with_suffix(".new").unlink(missing_ok=True)
        else:
            self._is_writable = True


def _status_of(rule: AlertRule, state: RuleState) -> RuleStatus:
    return RuleStatus(
        rule.name,
        rule.kind,
        rule.shown,
        tuple(kind for kind in AlertKind if kind in rule.events),
        rule.pipes,
        rule.lag_s,
        rule.lag_for_s,
        rule.away_s,
        rule.low_disk,
        len(state.queue),
        state.queue[0].error if state.queue else "",
    )


def _encoded(state: RuleState) -> dict[str, Any]:
    return {
        "since": state.since,
        "open": {key: one.to_json() for key, one in state.open.items()},
        "changes": {pipe: [one.to_json() for one in known] for pipe, known in state.changes.items() if known},
        "queue": [one.to_json() for one in state.queue],
        "deliveries": [one.to_json() for one in state.deliveries],
    }


def _decoded(raw: dict[str, Any]) -> RuleState:
    return RuleState(
        float(raw["since"]),
        {key: OpenAlert.from_json(one) for key, one in raw["open"].items()},
        {pipe: [KnownChange.from_json(one) for one in known] for pipe, known in raw["changes"].items()},
        [QueuedAlert.from_json({**one, "attempts": 0}) for one in raw["queue"]],
        [DeliveryOutcome.from_json(one) for one in raw["deliveries"]],
    )
