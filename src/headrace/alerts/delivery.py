"""Sends the queued alerts, in a thread for each receiver: a receiver that is slow or down delays neither a pipe nor another receiver.

Alerts of a receiver are sent in order. An attempt that fails is repeated with growing waits, or when the receiver says (`Retry-After`).
An alert that the receiver rejects for good, or that could not be sent for a day, is given up, with an error in the log. A reload changes
receivers between two attempts, and waits for none.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Final, Self

from headrace.alerts.alert import Alert
from headrace.alerts.receivers import DeliveryError, send
from headrace.alerts.rules import AlertRule
from headrace.alerts.store import AlertStore
from headrace.errors import DefiniteError, HeadraceError

log = logging.getLogger("headrace")

FIRST_WAIT_S: Final = 1.0
MAX_WAIT_S: Final = 300.0
_MAX_RETRY_AFTER_S: Final = 3600.0
MAX_AGE_S: Final = 86_400.0
_JOIN_S: Final = 1.0


class AlertDelivery:
    """The threads of all receivers. A context manager."""

    def __init__(self, store: AlertStore, *, first_wait_s: float = FIRST_WAIT_S, max_age_s: float = MAX_AGE_S) -> None:
        self._store, self._first_wait_s, self._max_age_s = store, first_wait_s, max_age_s
        self._receivers: dict[str, _ReceiverThread] = {}

    def __enter__(self) -> Self:
        self.follow_rules()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow_rules(self) -> None:
        """Send by the rules that the store has now. A new receiver gets a thread, that of a removed one ends after its attempt."""
        with self._store.changed:
            rules = {rule.name: rule for rule in self._store.rules}
            for name in self._receivers.keys() - rules.keys():
                self._receivers.pop(name).ended.set()
            for name, rule in rules.items():
                if name in self._receivers:
                    self._receivers[name].rule = rule
                else:
                    self._receivers[name] = _ReceiverThread(rule, self._store, self._first_wait_s, self._max_age_s)
                    self._receivers[name].start()
            self._store.changed.notify_all()

    def close(self) -> None:
        """End the threads. What is not sent stays in the file for the next start; an attempt under way is not waited for."""
        with self._store.changed:
            for receiver in self._receivers.values():
                receiver.ended.set()
            self._store.changed.notify_all()
        until = time.monotonic() + _JOIN_S
        for receiver in self._receivers.values():
            receiver.join(max(until - time.monotonic(), 0.0))


class _ReceiverThread(threading.Thread):
    """Sends the alerts of one rule. `rule` may be replaced at any time: it counts from the next attempt on."""

    def __init__(self, rule: AlertRule, store: AlertStore, first_wait_s: float, max_age_s: float) -> None:
        super().__init__(name=f"headrace-alerts-{rule.name}", daemon=True)
        self.rule, self.ended = rule, threading.Event()
        self._store, self._first_wait_s, self._max_age_s = store, first_wait_s, max_age_s

    def run(self) -> None:
        while (queued := self._store.wait(self.rule.name, self.ended)) is not None:
            rule = self.rule
            try:
                wait_s = self._send(rule, queued.alert)
            # Last resort: an unexpected error must not end the alerts of this receiver.
            except Exception as error:
                log.exception("alerts: %s: unexpected error", rule.name)
                wait_s = self._retry_wait_s(rule, queued.alert, DeliveryError(f"{type(error).__name__}: {error}"))
            self._pause(rule, wait_s)

    def _pause(self, tried: AlertRule, wait_s: float) -> None:
        """Wait before the next attempt; not longer if it goes to another receiver, or with other settings."""
        with self._store.changed:
            self._store.changed.wait_for(lambda: self.ended.is_set() or self.rule.target != tried.target, wait_s)

    def _send(self, rule: AlertRule, alert: Alert) -> float:
        """Make one attempt; return the seconds until the next one."""
        try:
            answer = send(rule, alert)
        except DeliveryError as error:
            if time.time() - alert.at < self._max_age_s:
                return self._retry_wait_s(rule, alert, error)
            self._give_up(rule, alert, error)
        except DefiniteError as error:
            self._give_up(rule, alert, error)
        else:
            log.debug("alerts: %s: sent (%s): %s", rule.name, answer, alert.summary)
            self._store.finish(rule.name, alert, f"sent: {answer}")
        return 0.0

    def _give_up(self, rule: AlertRule, alert: Alert, error: HeadraceError) -> None:
        log.error("alerts: %s: given up: %s: %s", rule.name, alert.summary, error)
        self._store.finish(rule.name, alert, f"given up: {error.message}")

    def _retry_wait_s(self, rule: AlertRule, alert: Alert, error: DeliveryError) -> float:
        attempts = self._store.set_failure(rule.name, alert, error.message)
        if not attempts:
            return 0.0
        wait_s = min(self._first_wait_s * math.pow(2, min(attempts - 1, 30)), MAX_WAIT_S)
        wait_s = max(wait_s, min(error.retry_after_s, _MAX_RETRY_AFTER_S))
        level = logging.WARNING if attempts == 1 else logging.DEBUG
        log.log(level, "alerts: %s: not sent, tried again in %.0f s: %s: %s", rule.name, wait_s, alert.summary, error)
        return wait_s
