"""What the detector sees: the states that the service has already, in the terms of alerts.

The service builds one `Observation` every second or two. This package knows neither pipes nor their status.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """How a pipe is."""

    RUNS = "runs"
    AWAY = "away"
    """It starts, waits for a peer, or waits for a retry."""
    FAILED = "failed"
    """It halts at a definite error."""
    IDLE = "idle"
    """A person paused, stopped or disabled it."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    at: float
    table: str
    statement: str
    outcome: str


@dataclass(frozen=True, slots=True)
class LastComparison:
    """The last comparison of a table."""

    table: str
    verdict: str
    """`equal`, `different`, `undecided`, `running`; empty: none."""
    at: float = 0.0
    rows: int = 0
    """Rows that differ."""


@dataclass(frozen=True, slots=True)
class PipeObservation:
    name: str
    group: str
    """The pipe's name in the file."""
    health: Health
    since: float
    """When it entered its stage."""
    message: str = ""
    """Its error, or what it waits for."""
    place: str = ""
    remedy: str = ""
    lag_s: float | None = None
    schema_changes: tuple[SchemaChange, ...] = ()
    """The last few, newest first."""
    comparisons: tuple[LastComparison, ...] = ()


@dataclass(frozen=True, slots=True)
class DiskObservation:
    directory: str
    """The first of the directories on this file system."""
    free: int
    groups: tuple[str, ...]
    """The pipes that write there."""


@dataclass(frozen=True, slots=True)
class Observation:
    at: float
    clock: float
    """By the monotonic clock, for durations: the system clock may be set."""
    pipes: tuple[PipeObservation, ...]
    disks: tuple[DiskObservation, ...]
    """Empty: not measured this time."""
    dashboard: str = ""
    """The address of the dashboard, for links."""
