"""What may be asked of a running process: the port between whoever asks (HTTP, tests) and the supervisor that runs the pipes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.service.status import PipeStatus, Sample, ServiceStatus


class Control(Protocol):
    """Safe for threads. What cannot be done is a `DefiniteError` with its remedy; an unknown pipe is one, too."""

    def status(self) -> ServiceStatus: ...

    def pipe(self, name: str) -> PipeStatus:
        """A pipe, or one source's part of it (`NAME/SOURCE`)."""

    def history(self, name: str) -> Sequence[Sample]:
        """The last hour or so, oldest first."""

    def pause(self, name: str) -> None:
        """End after the batch under way, and stay so, over restarts of the process too, until `resume`."""

    def resume(self, name: str) -> None:
        """Go on: a paused pipe, a stopped one, or one that failed (at once, whenever it would be tried again)."""

    def stop(self, name: str) -> None:
        """End after the batch under way, until `resume` or the next start of the process."""

    def resync(self, name: str, tables: Sequence[str]) -> None:
        """Have tables read again."""

    def skip(self, name: str, place: str) -> str:
        """Leave out the one event that the pipe halts at, record it, and go on; what was recorded. `place` must be the error's own."""

    def verify(self, name: str, tables: Sequence[str] = ()) -> None:
        """Begin to compare tables with their source; results come in the status, table by table."""

    def query(self, name: str, sql: str) -> tuple[list[str], list[list[Any]]]:
        """A read-only query of the pipe's sink: column names and rows, bounded in time and number."""
