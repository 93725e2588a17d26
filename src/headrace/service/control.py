"""The control interface of a running process, between its clients (HTTP, tests) and the supervisor that runs the pipes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.service.status import MetricSample, PipeStatus, ServiceStatus


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
