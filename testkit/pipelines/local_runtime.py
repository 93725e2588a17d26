"""The runtime interface with threads of this process: the real driver, planners, readers and writers, without Spark.

For tests of order and interruption. A run takes a fraction of a second, and a test can end it at any write. Tasks get a copy of their
description, and splits and reports are encoded, as for tasks in another process.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.pipes.debezium.kafka_cluster import query_topics
from headrace.retry import bind_context
from headrace.runtime.checkpoint import committed_offset, planned_offset
from headrace.runtime.interface import BatchStream, OnBatch, OnRecordBatch, OnSplitDone
from headrace.runtime.reports import Report, SerializedError, checked_reports, decode_error
from headrace.runtime.tasks import SplitGroup, Task, TaskFunction, separate_driver_splits
from headrace.sources.base import Offset, Planner, Source, Split
from headrace.sources.debezium.offset_range_reader import OffsetRange, Subscription
from headrace.sources.splits import encode_split
from testkit.pipelines.checkpoint_files import make_checkpoint, next_batch, write_batch_file

_IDLE_S = 0.05


class LocalRuntime:
    """Runs pipes in threads of this process."""

    is_shared = False

    @contextmanager
    def session(
        self, master: str, directory: Path, *, spark_log: bool, preload: Sequence[str], more: Mapping[str, str] | None
    ) -> Iterator[LocalSession]:
        del directory, spark_log, preload, more
        inside = master.partition("[")[2].rstrip("]")
        yield LocalSession(int(inside) if inside.isdigit() else 2)


class LocalSession:
    """Runs tasks in threads, and batches of a stream in the thread that waits for the stream."""

    is_local = True
    always_fetches_segments = False
    helper_pid: int | None = None
    plan_wait_s = 0.05
    """The planner waits in the pipe's own loop."""

    def __init__(self, task_slots: int = 2) -> None:
        self.task_slots = task_slots

    def run_groups(
        self, groups: Sequence[SplitGroup], parallelism: int, on_done: OnSplitDone, on_idle: Callable[[], None] = lambda: None
    ) -> None:
        run = bind_context(lambda group: run_task(group.job, group.splits))
        with ThreadPoolExecutor(max_workers=max(parallelism, 1), thread_name_prefix="local-task") as pool:
            running = {pool.submit(run, group): group for group in groups}
            left: set[Future[list[Report]]] = set(running)
            try:
                while left:
                    done, left = wait(left, timeout=_IDLE_S, return_when=FIRST_COMPLETED)
                    for future in done:
                        for split, report in running[future].pair_reports(future.result()):
                            on_done(split, report)
                    on_idle()
            except BaseException:
                for future in running:
                    future.cancel()
                raise

    def run_splits(
        self,
        task: TaskFunction,
        splits: Sequence[Split],
        parallelism: int,
        on_done: OnSplitDone,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self.run_groups([SplitGroup(task, (split,)) for split in splits], parallelism, on_done, on_idle)

    def stream_splits(self, source: Source, checkpoint: Path, run: OnBatch) -> BatchStream:
        return LocalStream(source.planner(), checkpoint, lambda splits, number: run(lambda task: run_each(task, splits), number))

    def stream_changes(
        self, source: Source, checkpoint: Path, task: Callable[[], Task], on_batch: Callable[[list[Report]], None]
    ) -> BatchStream:
        return self.stream_splits(source, checkpoint, lambda run_over, _: on_batch(run_over(task())))

    def stream_records(self, subscription: Subscription, checkpoint: Path, run: OnRecordBatch) -> BatchStream:
        return LocalStream(TopicPlanner(subscription), checkpoint, lambda ranges, number: run(run_each, ranges, number))


class SequentialSession(LocalSession):
    """Runs one split after the other in the calling thread, and reports each before the next one starts."""

    def __init__(self, before_split: Callable[[], object] = lambda: None) -> None:
        super().__init__(1)
        self._before_split = before_split

    def run_groups(
        self, groups: Sequence[SplitGroup], parallelism: int, on_done: OnSplitDone, on_idle: Callable[[], None] = lambda: None
    ) -> None:
        del parallelism, on_idle
        for group in groups:
            for split in group.splits:
                self._before_split()
                for _, report in SplitGroup(group.job, [split]).pair_reports(run_task(group.job, [split])):
                    on_done(split, report)


class LocalStream:
    """A stream with a checkpoint in the format of Spark's, batch by batch in the thread that calls `wait`."""

    def __init__(self, planner: Planner, checkpoint: Path, run: Callable[[Sequence[Any], int], None]) -> None:
        self._planner, self._checkpoint, self._run = planner, checkpoint, run
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
        planned_end = planned_offset(self._checkpoint)
        assert planned_end is not None
        self._run(self._planner.splits(start, planned_end), number)
        write_batch_file(self._checkpoint / "commits" / str(number), "v1\n{}")
        self._planner.commit(planned_end)


class TopicPlanner:
    """Plans all records that the topics of a subscription hold, from their beginning."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def initial(self) -> Offset:
        return {}

    def plan(self, start: Offset) -> Offset:
        del start
        found = query_topics(self._subscription.address, self._subscription.pattern)
        return found.high.to_json()

    def splits(self, start: Offset, end: Offset) -> list[OffsetRange]:
        ranges = [
            OffsetRange(topic, int(partition), start.get(topic, {}).get(partition, 0), offset)
            for topic, ends in end.items()
            for partition, offset in ends.items()
        ]
        return [one for one in ranges if one.end > one.start]

    def commit(self, end: Offset) -> None:
        del end

    def stop(self) -> None:
        pass


def run_each(task: TaskFunction, splits: Sequence[Split]) -> list[Report]:
    """Run a copy of a task for each split, one at a time."""
    for_tasks, reports = separate_driver_splits(map(encode_split, splits))
    return [*(report for split in for_tasks for report in run_encoded(task, [split])), *reports]


def run_task(task: TaskFunction, splits: Sequence[Split]) -> list[Report]:
    """Run a copy of a task over splits in this thread."""
    return run_encoded(task, list(map(encode_split, splits)))


def run_encoded(task: TaskFunction, splits: Sequence[str]) -> list[Report]:
    copy: TaskFunction = pickle.loads(pickle.dumps(task))
    try:
        return checked_reports(pickle.loads(pickle.dumps(report)) for report in copy(splits))
    except SerializedError as error:
        found = decode_error(str(error))
        assert found is not None
        raise found from error
