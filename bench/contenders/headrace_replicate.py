"""Headrace whole, as `headrace replicate ... chdb:PATH --once` runs it: following the log, and copying the tables.

Everything is in the account: this process (Spark's driver), the Java machine, the source's process, the workers, the embedded server.
Following: the window opens when the relay makes its directory, which is before it has asked the server for a byte, and closes when the
batch with the last change has been written; a written block is visible. Copying: the window opens when the chunks are handed to Spark (its
session runs, its workers do not yet) and closes when the last chunk is in the sink.
Afterwards, outside of every account, the target's rows under FINAL are compared with the source's by count and by checksum.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from bench.checksums import compare_tables
from bench.contenders.base import Command, Stopwatch, Window, python_command, read_window
from bench.supervise import Usage
from bench.target import Target
from headrace.errors import DefiniteError
from headrace.pipes.endpoints import open_sink
from headrace.pipes.pipe import Pipe, PipeSettings
from headrace.sources.mysql.connection import MySQLAddress

SINK_DIRECTORY = "clickhouse"
WATCH_PAUSE_S = 0.005


class HeadraceReplicate:
    """The pipe from the workload's first byte to the last change visible."""

    title = "Headrace, end to end"
    note = "from the log's first byte to the last change visible in embedded ClickHouse; all processes; result compared with the source"
    repeats = 1
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("headrace", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        return checked_window(target, scratch, target.changes)

    def read(self, target: Target) -> Window:
        state = Path.cwd() / "state"
        flow = _Flow(target.changes)
        opener = threading.Thread(target=flow.open_at, args=(state / "relay",), daemon=True)
        opener.start()
        run_pipe(
            target, PipeSettings((f"{target.database}.*",), state, once=True, start_at=f"{target.start_file}:{target.start_position}"), flow
        )
        return flow.window()


class HeadraceSnapshot:
    """The pipe's snapshot of the tables as they stand."""

    title = "Headrace, snapshot"
    note = "parallel chunks without locks, through Spark into the same embedded engine; result compared with the source"
    repeats = 1
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("headrace-snapshot", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        return checked_window(target, scratch, target.rows)

    def read(self, target: Target) -> Window:
        flow = _Flow(target.rows)
        run_pipe(target, PipeSettings((f"{target.database}.*",), Path.cwd() / "state", once=True), flow)
        return flow.window()


def run_pipe(target: Target, settings: PipeSettings, flow: _Flow) -> None:
    address = MySQLAddress(target.host, target.port, target.user, target.password, target.database)
    with open_sink(f"chdb:{SINK_DIRECTORY}") as named:
        Pipe(address, named.sink, named.name, settings, flow).run()


def checked_window(target: Target, scratch: Path, expected: int) -> Window:
    window = read_window(scratch)
    if window.total_changes != expected:
        raise DefiniteError(f"Headrace wrote {window.total_changes} changes of {expected}", place=f"port {target.port}")
    with open_sink(f"chdb:{scratch / SINK_DIRECTORY}") as named:
        compare_tables(target, named.sink.reader())
    return window


class _Flow:
    """A pipe's view that only keeps the time."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._total = 0
        self._watch: Stopwatch | None = None
        self._elapsed = (0.0, 0.0)

    def open_at(self, directory: Path) -> None:
        """Open the window when something appears in `directory`."""
        while not (directory.is_dir() and any(directory.iterdir())):
            time.sleep(WATCH_PAUSE_S)
        self._watch = Stopwatch(whole_tree=True)

    def window(self) -> Window:
        return Window(self._total, *self._elapsed, self._total)

    def note(self, message: str) -> None: ...

    def snapshot_begins(self, estimates: Mapping[str, int], done: Mapping[str, int]) -> None:  # noqa: ARG002
        self._watch = Stopwatch(whole_tree=True)

    def snapshot_rows(self, table: str, rows: int, finished: bool) -> None: ...

    def snapshot_ends(self, rows: int, seconds: float) -> None:  # noqa: ARG002
        self._add(rows)

    def batch(self, changes: int, lag_s: float, position: str) -> None:  # noqa: ARG002
        self._add(changes)

    def close(self) -> None: ...

    def _add(self, changes: int) -> None:
        self._total += changes
        if self._total >= self._expected and not any(self._elapsed):
            assert self._watch is not None
            self._elapsed = self._watch.read()
