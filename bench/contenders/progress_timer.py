"""A progress view of a pipe that only measures time. The window opens with the first batch and closes with the batch of the last change."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from bench.contenders.base import Stopwatch, Window
from headrace.errors import DefiniteError
from headrace.pipes.lifecycle.progress_view import ProgressView

WATCH_PAUSE_S = 0.005


class ProgressTimer(ProgressView):
    """A progress view that only measures time."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._total = self._before = 0
        self._cold: Stopwatch | None = None
        self._watch: Stopwatch | None = None
        self._window: Window | None = None

    def window(self) -> Window:
        if self._window is None:
            raise DefiniteError(
                f"Headrace wrote {self._total} changes of {self._expected} in too few batches to measure a rate, and ended",
                place=str(Path.cwd()),
                hint="choose more changes with --changes",
            )
        return self._window

    def note(self, message: str) -> None: ...

    def waiting(self, wait: tuple[str, float] | None) -> None: ...

    def snapshot_begins(self, estimates: Mapping[str, int], done: Mapping[str, int]) -> None: ...

    def snapshot_rows(self, table: str, rows: int, finished: bool) -> None: ...

    def snapshot_ends(self, rows: int, seconds: float) -> None: ...

    def batch(self, changes: int, lag_s: float | None, position: str) -> None: ...

    def close(self) -> None: ...

    def _end(self) -> None:
        assert self._watch is not None
        cold = self._cold.read() if self._cold is not None else (0.0, 0.0)
        self._window = Window(self._total - self._before, *self._watch.read(), self._total, *cold)


class StreamTimer(ProgressTimer):
    """Measures the time of the batches."""

    def open_at(self, directory: Path) -> None:
        """Start the stopwatch that includes the workers' start as soon as `directory` contains a file."""
        while not (directory.is_dir() and any(directory.iterdir())):
            time.sleep(WATCH_PAUSE_S)
        self._cold = Stopwatch(whole_tree=True)

    def batch(self, changes: int, lag_s: float | None, position: str) -> None:  # noqa: ARG002
        self._total += changes
        if self._watch is None:
            self._watch, self._before = Stopwatch(whole_tree=True), changes
        elif self._total >= self._expected and self._window is None:
            self._end()
