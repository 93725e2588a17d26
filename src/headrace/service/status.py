"""The status of a process and its pipes: one document for the control API, the dashboard, `/metrics` and `headrace status`.

Times are seconds since 1970; sizes are bytes. Addresses come without passwords.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self

from headrace.model.json_record import JsonRecord

if TYPE_CHECKING:
    from headrace.alerts.status import AlertsStatus
    from headrace.telemetry.event import PipeEvent
    from headrace.telemetry.log_reader import LogPage, LogQuery
    from headrace.telemetry.metrics import Series
    from headrace.telemetry.table_rates import TableSeries


class PipeStage(StrEnum):
    """What a pipe is doing."""

    DISABLED = "disabled"
    """The file says `enabled = false`."""
    STARTING = "starting"
    SNAPSHOT = "snapshot"
    """The initial rows are copied; the log may be read at the same time."""
    STREAMING = "streaming"
    WAITING = "waiting"
    """A peer is away; the running pipe retries."""
    RETRYING = "retrying"
    """A transient error ended it; it restarts at `next_try`."""
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    """An error that needs a person ended it: `error`."""


@dataclass(frozen=True, slots=True)
class StatusRecord(JsonRecord):
    """A part of the status. Keys that other versions add are ignored."""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        known = {one.name for one in fields(cls)}
        return super(StatusRecord, cls).from_json({name: value for name, value in raw.items() if name in known})


@dataclass(frozen=True, slots=True)
class ErrorStatus(StatusRecord):
    """An error with its place and remedy."""

    message: str
    place: str = ""
    remedy: str = ""
    transient: bool = False
    at: float = 0.0
    skippable: str = ""
    """If the error is about one event: its place, as `skip` takes it. Empty: it cannot be skipped."""


@dataclass(frozen=True, slots=True)
class VerifyResult(StatusRecord):
    """The last comparison of a table with its source."""

    at: float
    verdict: str
    """`equal`, `different` or `undecided`; `running` while it lasts."""
    rows: int = 0
    differences: int = 0
    """Missing rows, extra rows and differing values."""
    excluded: int = 0
    """Source rows that the table's filter excludes; they are not among `rows`."""
    different: int = 0
    """Rows that are on both sides and differ."""
    missing: int = 0
    """Rows that the sink does not have."""
    extra: int = 0
    """Rows that only the sink has."""
    undecided: int = 0
    """Rows that may only be behind, that changed at every read, or that were not looked at."""
    repaired: int = 0
    """Rows that differed and were repaired; they are not among the others."""
    position: str = ""
    """The pipe's position when the sink's rows were compared; empty if unknown."""
    pipe_stopped: bool | None = None
    """Whether the pipe was stopped then; None if unknown."""
    partial: str = ""
    """The part that was compared, such as `sample 1%`; empty: all rows and columns of the pipe."""


@dataclass(frozen=True, slots=True)
class TableStatus(StatusRecord):
    """One table of a pipe."""

    name: str
    """The name in the source."""
    target: str = ""
    changes: int = 0
    """Since the process began."""
    last_change: float = 0.0
    """When its newest change was committed at the source; 0 if none came yet."""
    rows: int | None = None
    """Rows in the target, counted now and then; None: not counted yet, or the sink cannot count."""
    copied: int | None = None
    """Rows that the snapshot has copied so far; None: no snapshot in this process."""
    estimate: int | None = None
    """Rows that the snapshot will copy, by the source's estimate."""
    complete: bool = True
    rate: float = 0.0
    """Changes per second over the last few seconds."""
    snapshot_rate: float = 0.0
    """Rows per second that the snapshot copied over the last few seconds."""
    skipped: int = 0
    """Events that were ever skipped with `skip`."""
    dead_letters: int = 0
    """Rows that wait in `headrace.errors`."""
    filtered: int = 0
    """Changes and snapshot rows that the table's filter excluded, since the process began."""
    late_rows: int = 0
    """Rows of the source's log that arrived too late to be read."""
    verify: VerifyResult | None = None


@dataclass(frozen=True, slots=True)
class SchemaChangeStatus(StatusRecord):
    """A schema change of the source and its outcome."""

    at: float
    table: str
    statement: str
    outcome: str
    """What was done, or why not."""


@dataclass(frozen=True, slots=True)
class PipeStatus(StatusRecord):
    """One source and one sink. A pipe of several sources has one status per source, named `NAME/SOURCE`, with the same `group`."""

    name: str
    group: str
    """The pipe's name in the file."""
    source: str
    sink: str
    stage: PipeStage
    since: float
    """When it entered this stage."""
    lag_s: float | None = None
    """Seconds between a change's commit and its visibility; grows while pending changes do not arrive; None: not known yet."""
    lag_bytes: int | None = None
    """Bytes (for topics: records) between the pipe's position and the end of the source's log."""
    position: str = ""
    rate: float = 0.0
    """Changes per second over the last few seconds."""
    changes: int = 0
    """Since the process began, like all counters."""
    bytes: int = 0
    batches: int = 0
    errors: int = 0
    retries: int = 0
    skipped: int = 0
    """Events that were ever skipped with `skip`."""
    dead_letters: int = 0
    """Rows that wait in `headrace.errors`."""
    relay_bytes: int = 0
    waiting: str = ""
    waiting_s: float = 0.0
    next_try: float = 0.0
    error: ErrorStatus | None = None
    """The error that the pipe halted with; while it is retried, the last one."""
    recent_errors: tuple[ErrorStatus, ...] = ()
    eta_s: float | None = None
    """The remaining time of a snapshot, by its rate so far."""
    tables: tuple[TableStatus, ...] = ()
    schema_changes: tuple[SchemaChangeStatus, ...] = ()
    """The last few, newest first."""
    late_rows: int = 0
    """Rows of the source's log that arrived too late to be read."""
    late_place: str = ""
    """The position of the first of them."""
    unreadable: int = 0
    """Records that could not be read and are in `headrace.errors` or in the dead-letter topic, in total."""
    filtered: int = 0
    """Changes and snapshot rows that filters excluded, since the process began."""
    snapshot_rate: float = 0.0
    """Rows per second that snapshots copied over the last few seconds."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One point of a pipe's charts."""

    at: float
    rate: float
    lag_s: float | None
    lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class ServiceStatus(StatusRecord):
    """The process."""

    version: str
    pid: int
    started: float
    file: str
    memory_bytes: int = 0
    """Memory of all processes of the service."""
    cpu_s: float = 0.0
    pipes: tuple[PipeStatus, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class ReloadResult(StatusRecord):
    """What a reload of the pipe file changed: names of pipes (`NAME/SOURCE` where a pipe has several sources)."""

    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    """Settings that have changed in the file, and that only a restart of the process applies, such as `[headrace] master`."""
    applied: tuple[str, ...] = ()
    """Settings outside of pipes that the reload has applied, such as `[headrace] address` and `[alerts.chat]`."""

    def lines(self) -> tuple[str, ...]:
        """Return the result for people, one line for each kind of change."""
        named = {
            "started": self.started,
            "stopped, their state stays": self.stopped,
            "restarted with the new settings": self.restarted,
            "applied": self.applied,
            "need a restart of headrace run": self.needs_restart,
        }
        found = tuple(f"{what}: {', '.join(names)}" for what, names in named.items() if names)
        return found or ("nothing has changed",)


class Control(Protocol):
    """Thread-safe. An operation that is not possible, or an unknown pipe, raises `DefiniteError` with a remedy."""

    def status(self) -> ServiceStatus: ...

    def pipe(self, name: str) -> PipeStatus:
        """Return the status of a pipe, or of one of its sources (`NAME/SOURCE`)."""

    def history(self, name: str) -> Sequence[MetricSample]:
        """Return the samples of the last hour, oldest first."""

    def pause(self, name: str) -> None:
        """Stop after the current batch until `resume`, also across restarts of the process."""

    def resume(self, name: str) -> None:
        """Start a paused, stopped or failed pipe now; a pipe that waits for a retry does not wait longer."""

    def stop(self, name: str) -> None:
        """Stop after the current batch until `resume` or the next start of the process."""

    def resync(self, name: str, tables: Sequence[str]) -> None:
        """Request a new snapshot of tables."""

    def skip(self, name: str, place: str) -> str:
        """Skip and record the event at the error's `place`, and resume the pipe; return what was recorded."""

    def verify(self, name: str, tables: Sequence[str] = ()) -> None:
        """Start to compare tables with their source; results appear in the status, table by table."""

    def query(self, name: str, sql: str) -> tuple[list[str], list[list[Any]]]:
        """Run a read-only query on the pipe's sink, limited in time and rows; return column names and rows."""

    def reload(self) -> ReloadResult:
        """Read the pipe file again and apply it. An invalid file changes nothing: the error names each mistake."""

    def alerts(self) -> AlertsStatus:
        """Return the rules, what was reported and lasts, and the last deliveries."""

    def events(self, name: str, limit: int) -> Sequence[PipeEvent]:
        """Return the newest events of a pipe, or of all pipes if the name is empty, newest first."""

    def metrics(self, name: str, span: str) -> Series:
        """Return the stored measurements of a pipe over a range of `telemetry.metrics.RANGES`."""

    def log(self, name: str, query: LogQuery) -> LogPage:
        """Return stored log lines of a pipe, or of one of its sources; a pipe of several sources has one log for each."""

    def table_rates(self, name: str) -> TableSeries:
        """Return the changes/s of the busiest tables of a pipe over the last hour of this process."""
