"""What is known of a running pipe: one plain document, the same for the control API, the dashboard, `/metrics` and `headrace status`.

Times are seconds since 1970; sizes are bytes. Nothing here holds a secret: addresses come without passwords.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class PipeStage(StrEnum):
    """What a pipe is doing."""

    DISABLED = "disabled"
    """The file says `enabled = false`."""
    STARTING = "starting"
    SNAPSHOT = "snapshot"
    """Rows that were there at the start come over. (The log may be followed beside it.)"""
    STREAMING = "streaming"
    WAITING = "waiting"
    """A peer is away; it is tried again by itself, within the run."""
    RETRYING = "retrying"
    """It ended by a passing error and is started again at `next_try`."""
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    """It ended by an error that a person has to see to: `error`."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error, as people see it."""

    message: str
    place: str = ""
    remedy: str = ""
    transient: bool = False
    at: float = 0.0
    skippable: str = ""
    """Of an error about one event: its place, in the words that `skip` takes. Empty: it cannot be skipped."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The last comparison of a table with its source."""

    at: float
    verdict: str
    """`equal`, `different` or `undecided`; `running` while it lasts."""
    rows: int = 0
    differences: int = 0


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table of a pipe."""

    name: str
    """As the source calls it."""
    target: str = ""
    changes: int = 0
    """Since the process began."""
    last_change: float = 0.0
    """When its newest change was committed at the source; 0 if none came yet."""
    rows: int | None = None
    """Rows in the target, asked now and then; None: not asked yet, or the sink cannot say."""
    copied: int | None = None
    """Rows that the snapshot brought so far; None: it has none, or is done since before this process."""
    estimate: int | None = None
    """Rows that the snapshot will bring, as the source guesses."""
    complete: bool = True
    verify: VerifyResult | None = None


@dataclass(frozen=True, slots=True)
class SchemaChangeSeen:
    """A schema change of the source, and what became of it."""

    at: float
    table: str
    statement: str
    outcome: str
    """What was done, or why not."""


@dataclass(frozen=True, slots=True)
class PipeStatus:
    """One pipe: one source, one sink. A pipe of several sources is several of these, called `NAME/SOURCE`, with the same `group`."""

    name: str
    group: str
    """The pipe in the file."""
    source: str
    sink: str
    stage: PipeStage
    since: float
    """Since when it is in this stage."""
    lag_s: float | None = None
    """Seconds between a change's commit and its visibility; grows while nothing arrives though there is something; None: not known yet."""
    lag_bytes: int | None = None
    """What lies between the pipe's place and the end of the source's log, where that is a number of bytes (of topics: records)."""
    position: str = ""
    rate: float = 0.0
    """Changes per second over the last few seconds."""
    changes: int = 0
    """Since the process began; so for all counts."""
    bytes: int = 0
    batches: int = 0
    errors: int = 0
    retries: int = 0
    skipped: int = 0
    """Events that were left out by `skip`, ever."""
    dead_letters: int = 0
    """Rows that wait in `headrace.errors`."""
    relay_bytes: int = 0
    waiting: str = ""
    waiting_s: float = 0.0
    next_try: float = 0.0
    error: Trouble | None = None
    """What the pipe halted by; while it is retried, what it halted by last."""
    recent_errors: tuple[Trouble, ...] = ()
    eta_s: float | None = None
    """Of a snapshot: how long it will still take, by its pace so far."""
    tables: tuple[TableStatus, ...] = ()
    schema_changes: tuple[SchemaChangeSeen, ...] = ()
    """The last few, newest first."""
    late_rows: int = 0
    """Rows of the source's log that arrived too late to be read."""
    late_place: str = ""
    """Where the first of them is."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sample:
    """One point of a pipe's charts."""

    at: float
    rate: float
    lag_s: float | None
    lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The process."""

    version: str
    pid: int
    started: float
    file: str
    memory_bytes: int = 0
    """Of all its processes together."""
    cpu_s: float = 0.0
    pipes: tuple[PipeStatus, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
