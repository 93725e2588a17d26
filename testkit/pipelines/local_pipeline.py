"""A pipe without Spark: the real driver, planner, readers and writers in this process, with batches and checkpoints as Spark keeps them.

For what depends on order and interruption, not on Spark: a run takes a fraction of a second, and can be cut off at any write.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.model.change_block import ChangeBlock
from headrace.pipes.lifecycle.base import Pipe
from headrace.pipes.mysql import binlog_files_pipe, snapshot_runner, stream_runner
from headrace.pipes.mysql import pipe as pipe_module
from headrace.pipes.scylla import pipe as log_pipe
from headrace.pipes.scylla import snapshot_runner as log_copying
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from headrace.sources.base import Source, Split
from headrace.spark.runtime.checkpoint import committed_offset, planned_offset
from headrace.spark.runtime.micro_batch import RunTask
from headrace.spark.runtime.tasks import Report, SplitGroup, Task, TaskFunction
from testkit.pipelines.checkpoint_files import make_checkpoint, next_batch, write_batch_file


class Killed(BaseException):
    """The process ends here: nobody may catch it and go on."""


class LocalAddressStream:
    """What `SplitStream` is, batch by batch in the caller's thread."""

    def __init__(self, session: object, source: Source, checkpoint: Path, run: Callable[[RunTask, int], None]) -> None:
        del session
        self._checkpoint, self._run = checkpoint, run
        self._planner = source.planner()
        self._working = threading.RLock()
        make_checkpoint(checkpoint)

    def wait(self, timeout_s: float) -> bool:
        """Run the next batch, if there is one."""
        del timeout_s
        with self._working:
            self._batch()
        return False

    def stop(self) -> None:
        self._planner.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._working:
            yield

    def _batch(self) -> None:
        start = committed_offset(self._checkpoint) or self._planner.initial()
        number = next_batch(self._checkpoint)
        planned = self._checkpoint / "offsets" / str(number)
        if not planned.exists():
            end = self._planner.plan(start)
            if end == start:
                return
            write_batch_file(planned, "\n".join(("v1", "{}", json.dumps(end))))
        end = planned_offset(self._checkpoint)
        assert end is not None
        splits = self._planner.splits(start, end)
        self._run(lambda task: [report for split in splits for report in run_split(task, split)], number)
        write_batch_file(self._checkpoint / "commits" / str(number), "v1\n{}")
        self._planner.commit(end)


class LocalStream(LocalAddressStream):
    """What `ChangeStream` is."""

    def __init__(
        self, session: object, source: Source, checkpoint: Path, task: Callable[[], Task], on_batch: Callable[[list[Report]], None]
    ) -> None:
        super().__init__(session, source, checkpoint, lambda over, _: on_batch(over(task())))


def run_split(task: TaskFunction, split: Split) -> list[Report]:
    """One piece of work, carried to its task as Spark carries it."""
    carried = pickle.loads(pickle.dumps(task))
    assert isinstance(carried, Task)
    return carried._run(json.loads(json.dumps(split)))


def run_splits(
    session: object,
    task: Task,
    splits: Sequence[Split],
    parallelism: int,
    on_done: Callable[[Split, list[Report]], None],
    on_idle: Callable[[], None] = lambda: None,
) -> None:
    """What `headrace.spark.runtime.micro_batch.run_splits` does, in threads."""
    run_groups(session, [SplitGroup(task, (split,)) for split in splits], parallelism, on_done, on_idle)


def run_groups(
    session: object,
    groups: Sequence[SplitGroup],
    parallelism: int,
    on_done: Callable[[Split, list[Report]], None],
    on_idle: Callable[[], None] = lambda: None,
) -> None:
    """What `headrace.spark.runtime.micro_batch.run_groups` does, in threads."""
    del session, on_idle
    with ThreadPoolExecutor(max_workers=max(parallelism, 1)) as pool:
        running = [(group, pool.submit(_run_group, group)) for group in groups]
        for group, future in running:
            for split, reports in group.pair_reports(future.result()):
                on_done(split, reports)


def _run_group(group: SplitGroup) -> list[Report]:
    return [report for split in group.splits for report in run_split(group.job, split)]


class NoSession:
    """What stands for a session: how many tasks run at once, here."""

    def __init__(self, master: str) -> None:
        inside = master.partition("[")[2].rstrip("]")
        self.slots = int(inside) if inside.isdigit() else 2


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on pipes run in this process."""

    @contextmanager
    def no_session(pipe: Pipe, *_: object) -> Iterator[Any]:
        yield NoSession(pipe._settings.master)

    monkeypatch.setattr(stream_runner, "ChangeStream", LocalStream)
    monkeypatch.setattr(log_pipe, "SplitStream", LocalAddressStream)
    monkeypatch.setattr(snapshot_runner, "run_groups", run_groups)
    monkeypatch.setattr(log_copying, "run_splits", run_splits)
    monkeypatch.setattr(Pipe, "_spark", no_session)
    for module in (pipe_module, binlog_files_pipe, log_pipe):
        monkeypatch.setattr(module, "count_task_slots", lambda session: session.slots)
    monkeypatch.setattr(pipe_module, "is_local_session", lambda _: True)
    # The pipe's own loop waits while the local stream waits for changes.
    monkeypatch.setattr(pipe_module, "_POLL_S", 0.05)


class Cutter:
    """Counts what is sent to the sink, and kills the process at a chosen block: before it is sent, or before its answer is heard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[ChangeBlock] = []
        self._at: int | None = None
        self._answered = False
        real = ClickHouseWriter._send

        def send(writer: ClickHouseWriter, connection: Any, route: Any, block: ChangeBlock, settings: dict[str, str]) -> None:
            doomed = self._at is not None and len(self.sent) >= self._at
            if doomed and not self._answered:
                raise Killed
            real(writer, connection, route, block, settings)
            self.sent.append(block)
            if doomed:
                raise Killed

        monkeypatch.setattr(ClickHouseWriter, "_send", send)

    def arm(self, block: int, *, answered: bool) -> None:
        """Kill at this block from now on; `answered`: after it is stored."""
        self.sent.clear()
        self._at, self._answered = block, answered

    def disarm(self) -> None:
        self.sent.clear()
        self._at = None
