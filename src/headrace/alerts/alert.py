"""One alert, and its JSON document, which generic webhooks receive.

Invariant: an alert keeps its id over retries and restarts, so a receiver can drop a repetition. Texts are one line each and hold no
secret: they come from the status, which masks them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Self

from headrace.model.json_record import JsonRecord

DOCUMENT_VERSION: Final = 1


class AlertKind(StrEnum):
    """What happened."""

    FAILED = "failed"
    """A pipe halts at a definite error, or has been away for `away_seconds`."""
    RECOVERED = "recovered"
    """What an earlier alert reported has ended."""
    LAG = "lag"
    """The lag was above `lag_seconds` for `lag_for_seconds`."""
    SCHEMA_CHANGE = "schema_change"
    """A schema change of the source was applied, or left out by policy."""
    DIFFERENCES = "differences"
    """A verification found rows that differ."""
    LOW_DISK = "low_disk"
    """A directory that the process writes to has less than `low_disk` free."""
    TEST = "test"
    """`headrace alerts test`, or a test alert of the dashboard."""


CONDITIONS: Final = (AlertKind.FAILED, AlertKind.LAG, AlertKind.DIFFERENCES, AlertKind.LOW_DISK)
"""Kinds that last until a `recovered`."""
EVENTS: Final = tuple(kind for kind in AlertKind if kind is not AlertKind.TEST)
"""Kinds that a rule can name."""


def new_id() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Alert(JsonRecord):
    """One alert to one receiver."""

    id: str
    kind: AlertKind
    pipe: str
    """The pipe, or the pipes of a directory; empty: the process."""
    summary: str
    """What happened, in one line that names the pipe."""
    since: float
    """When it began."""
    at: float
    """When it was detected."""
    details: tuple[str, ...] = ()
    """Further lines, such as the tables that differ."""
    place: str = ""
    remedy: str = ""
    link: str = ""
    """The pipe on the dashboard, without a token."""
    recovers: str = ""
    """Of a `recovered`: the id of the alert that it ends."""

    def document(self, receiver: str, host: str) -> dict[str, Any]:
        """Return the JSON document. Its keys are a stable format."""
        return {
            "version": DOCUMENT_VERSION,
            "id": self.id,
            "kind": str(self.kind),
            "pipe": self.pipe,
            "summary": self.summary,
            "details": list(self.details),
            "place": self.place,
            "remedy": self.remedy,
            "link": self.link,
            "since": iso_time(self.since),
            "at": iso_time(self.at),
            "recovers": self.recovers,
            "receiver": receiver,
            "host": host,
        }


def iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class OpenAlert(JsonRecord):
    """A condition that was reported and has not ended."""

    id: str
    kind: AlertKind
    pipe: str
    summary: str
    since: float


@dataclass(frozen=True, slots=True)
class DeliveryOutcome(JsonRecord):
    """The outcome of one alert."""

    at: float
    receiver: str
    kind: AlertKind
    pipe: str
    summary: str
    outcome: str
    """`sent`, `dropped`, or why it was given up."""
    attempts: int

    @classmethod
    def of(cls, alert: Alert, receiver: str, at: float, outcome: str, attempts: int) -> Self:
        return cls(at, receiver, alert.kind, alert.pipe, alert.summary, outcome, attempts)
