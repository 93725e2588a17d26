"""The sink's position, and waiting for it.

After every batch a pipe stores in the sink the position up to which its tables are complete (`headrace.positions`). What was read from the
source lies before the end of its log afterwards; once the pipe has reached that end, the sink has all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from headrace.model.version import unpack_version
from headrace.retry import current_wait
from headrace.sinks.base import Progress
from headrace.sources.mysql.server.position import BinlogPosition

_POLL_S: Final = 0.1
SILENT_S: Final = 30.0
"""A pipe without a heartbeat for this long counts as stopped."""


class Place(Protocol):
    """A position in a source's log."""

    def __ge__(self, other: Any, /) -> bool: ...


P = TypeVar("P", bound=Place)


@dataclass(frozen=True, slots=True)
class PipePosition(Generic[P]):
    position: P
    is_running: bool
    incomplete: frozenset[str] = frozenset()
    """Tables whose snapshots are not complete."""


def pipe_position_of(progress: Progress) -> PipePosition[BinlogPosition]:
    file, _, offset = progress.position.rpartition(":")
    epoch, _, address = unpack_version(progress.version)
    position = BinlogPosition(file, int(offset), progress.gtid, epoch, shift=max(address - int(offset), 0))
    silent_s = time.time() - progress.seen_us / 1e6
    return PipePosition(position, silent_s < SILENT_S, frozenset(progress.incomplete))


@dataclass(frozen=True, slots=True)
class Watermark(Generic[P]):
    pipe: str
    ask: Callable[[], PipePosition[P]]
    wait_s: float

    def await_position(self, wanted: P) -> PipePosition[P]:
        """Wait until the pipe has reached a position; give up if it is stopped, or after a while. Return its position then."""
        deadline = time.monotonic() + self.wait_s
        while True:
            found = self.ask()
            if has_reached(found, wanted) or not found.is_running or current_wait().ending or time.monotonic() > deadline:
                return found
            time.sleep(_POLL_S)


def stands_at(pipe_position: PipePosition[Any], position: str) -> str:
    return f"pipe {'is at' if pipe_position.is_running else 'stopped at'} {position}"


def has_reached(pipe_position: PipePosition[P], wanted: P) -> bool:
    return pipe_position.position >= wanted
