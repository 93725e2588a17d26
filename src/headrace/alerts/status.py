"""The alerts of a process for the control API and the dashboard, without secrets."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.alerts.alert import AlertKind, DeliveryOutcome, OpenAlert
from headrace.model.json_record import JsonRecord


@dataclass(frozen=True, slots=True)
class RuleStatus(JsonRecord):
    """One rule, without secrets."""

    name: str
    receiver: str
    """`json`, `slack`, `teams` or `e-mail`."""
    address: str
    events: tuple[AlertKind, ...]
    pipes: tuple[str, ...]
    lag_seconds: float
    lag_for_seconds: float
    away_seconds: float
    low_disk: int
    queued: int = 0
    """Alerts that are not sent yet."""
    error: str = ""
    """Why the first of them could not be sent."""


@dataclass(frozen=True, slots=True)
class AlertsStatus(JsonRecord):
    """The alerts of a process: `GET /api/alerts`."""

    rules: tuple[RuleStatus, ...] = ()
    open: tuple[OpenAlert, ...] = ()
    """What was reported and has not ended."""
    deliveries: tuple[DeliveryOutcome, ...] = ()
    """The last few, newest first."""
