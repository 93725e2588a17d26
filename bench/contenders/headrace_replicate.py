"""Headrace end to end, as `headrace replicate ... chdb:PATH --once` runs it: streaming the log, and the snapshot of the tables.

All processes are counted: this process (Spark's driver), the Java machine, the source's process, the workers and the embedded server.

Streaming: as for Debezium, the window opens when the first batch has arrived, here in the sink. It closes when the batch with the last
change has arrived; a written block is visible. The relay reads ahead during the first batch, which favours Headrace. The cold window
therefore opens when the relay creates its directory, before it requests the first byte, and includes the start of the workers.

Snapshot: the window opens when the reader of the first chunk connects to the source. The cold window opens when Spark receives the chunks;
its session then runs, but its workers do not. Both close when the last chunk is in the sink.

Afterwards, outside the measurement, the target's rows with FINAL are compared with the source's by count and checksum.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.checksums import compare_tables
from bench.contenders.base import Command, Stopwatch, Window, python_command, read_window
from bench.contenders.progress_timer import WATCH_PAUSE_S, ProgressTimer, StreamTimer
from bench.process_accounting import Usage
from bench.target import Target
from headrace.errors import DefiniteError
from headrace.model.setting_values import CascadeMode
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.settings.pipe_settings import PipeSettings
from headrace.sources.mysql.server.connection import MySQLAddress, connect, query

SINK_DIRECTORY = "clickhouse"
BATCHES = 6
"""Batches of a log with cascades: a few, because the first one is not measured."""


class HeadraceReplicate:
    """The pipe from the workload's first byte until the last change is visible."""

    title = "Headrace, end to end"
    note = "into embedded ClickHouse, all processes; first batch outside the window, as for Debezium; result compared with the source"
    repeats = 1
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("headrace", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        return checked_window(target, scratch, target.changes)

    def read(self, target: Target) -> Window:
        return stream(target)


class AppliedCascades(HeadraceReplicate):
    """The same with foreign-key cascades in the log."""

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("cascades-apply", target, scratch)

    def read(self, target: Target) -> Window:
        return stream(target, flush_bytes=target.log_bytes // BATCHES, cascades=CascadeMode.APPLY)


class IgnoredCascades(HeadraceReplicate):
    """The same without applying the cascades: the child rows stay, so the tables differ from the source."""

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("cascades-ignore", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        return complete_window(scratch, target.changes)

    def read(self, target: Target) -> Window:
        return stream(target, flush_bytes=target.log_bytes // BATCHES, cascades=CascadeMode.IGNORE)


class HeadraceSnapshot:
    """The pipe's snapshot of the tables."""

    title = "Headrace, snapshot"
    note = "parallel chunks without locks, through Spark into the same embedded engine; result compared with the source"
    repeats = 1
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("headrace-snapshot", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        return checked_window(target, scratch, target.rows)

    def read(self, target: Target) -> Window:
        timer = _SnapshotTimer(target.rows, target)
        run_pipe(target, PipeSettings(Selection((f"{target.database}.*",)), Path.cwd() / "state", once=True), timer)
        return timer.window()


def address_of(target: Target) -> MySQLAddress:
    return MySQLAddress(target.host, target.port, target.user, target.password, target.database)


def stream(target: Target, **settings: Any) -> Window:
    state = Path.cwd() / "state"
    timer = StreamTimer(target.changes)
    threading.Thread(target=timer.open_at, args=(state / "relay",), daemon=True).start()
    start = f"{target.start_file}:{target.start_position}"
    run_pipe(target, PipeSettings(Selection((f"{target.database}.*",)), state, once=True, start_at=start, **settings), timer)
    return timer.window()


def run_pipe(target: Target, settings: PipeSettings, timer: ProgressTimer) -> None:
    with open_clickhouse_sink(f"chdb:{SINK_DIRECTORY}", creates=True) as named:
        MySQLPipe(address_of(target), named.sink, named.name, settings, timer).run()


def checked_window(target: Target, scratch: Path, expected: int) -> Window:
    window = complete_window(scratch, expected)
    with open_clickhouse_sink(f"chdb:{scratch / SINK_DIRECTORY}") as named:
        compare_tables(target, named.sink.reader())
    return window


def complete_window(scratch: Path, expected: int) -> Window:
    window = read_window(scratch)
    if window.total_changes != expected:
        raise DefiniteError(f"Headrace wrote {window.total_changes} changes of {expected}", place=str(scratch))
    return window


class _SnapshotTimer(ProgressTimer):
    """Measures the time of the snapshot."""

    def __init__(self, expected: int, target: Target) -> None:
        super().__init__(expected)
        self._target = target

    def snapshot_begins(self, estimates: Mapping[str, int], done: Mapping[str, int]) -> None:  # noqa: ARG002
        self._cold = Stopwatch(whole_tree=True)
        threading.Thread(target=self._await_reader, daemon=True).start()

    def snapshot_ends(self, rows: int, seconds: float) -> None:  # noqa: ARG002
        self._total += rows
        self._end()

    def _await_reader(self) -> None:
        """Start the stopwatch when a new connection of the benchmark's user appears on the source. An older connection may remain from a
        killed relay."""
        address = address_of(self._target)
        newest = "SELECT MAX(id) FROM information_schema.processlist WHERE user = %s"
        with connect(address) as connection:
            mine: int = connection.thread_id()  # type: ignore[no-untyped-call]
            while query(connection, address, newest, (address.user,))[0][0] <= mine:
                time.sleep(WATCH_PAUSE_S)
        self._watch = Stopwatch(whole_tree=True)
