"""The runtime interface on Spark (see `headrace.runtime.interface`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from headrace.runtime.interface import BatchStream, OnBatch, OnRecordBatch, OnSplitDone
from headrace.runtime.reports import Report
from headrace.runtime.tasks import SplitGroup, Task, TaskFunction
from headrace.sources.base import Source, Split
from headrace.spark.runtime.executors import always_fetches_segments, count_task_slots, is_local_session
from headrace.spark.runtime.micro_batch import ChangeStream, SplitStream, run_groups
from headrace.spark.session.session import java_pid
from headrace.spark.session.session_provider import DedicatedSessionProvider, SessionProvider

if TYPE_CHECKING:
    from headrace.sources.debezium.offset_range_reader import Subscription

_PLAN_WAIT_S: Final = 5.0
"""An idle stream plans seldom: a change ends the wait at once, and so does stopping the stream."""


class SparkRuntime:
    """Runs pipes on Spark sessions, by default a session for each pipe."""

    def __init__(self, sessions: SessionProvider | None = None) -> None:
        self._sessions: SessionProvider = DedicatedSessionProvider() if sessions is None else sessions

    @property
    def is_shared(self) -> bool:
        return self._sessions.is_shared

    @contextmanager
    def session(
        self, master: str, directory: Path, *, spark_log: bool, preload: Sequence[str], more: Mapping[str, str] | None
    ) -> Iterator[SparkRuntimeSession]:
        with self._sessions.session(master, directory, spark_log=spark_log, preload=preload, more=more) as session:
            yield SparkRuntimeSession(session)


class SparkRuntimeSession:
    """Runs tasks as Spark jobs, and streams as Spark streaming queries."""

    plan_wait_s: float = _PLAN_WAIT_S

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def task_slots(self) -> int:
        return count_task_slots(self._session)

    @property
    def is_local(self) -> bool:
        return is_local_session(self._session)

    @property
    def always_fetches_segments(self) -> bool:
        return always_fetches_segments(self._session)

    @property
    def helper_pid(self) -> int | None:
        return java_pid(self._session)

    def run_groups(
        self, groups: Sequence[SplitGroup], parallelism: int, on_done: OnSplitDone, on_idle: Callable[[], None] = lambda: None
    ) -> None:
        run_groups(self._session, groups, parallelism, on_done, on_idle)

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
        return SplitStream(self._session, source, checkpoint, run)

    def stream_changes(
        self, source: Source, checkpoint: Path, task: Callable[[], Task], on_batch: Callable[[list[Report]], None]
    ) -> BatchStream:
        return ChangeStream(self._session, source, checkpoint, task, on_batch)

    def stream_records(self, subscription: Subscription, checkpoint: Path, run: OnRecordBatch) -> BatchStream:
        # Only pipes from topics load the Kafka client.
        from headrace.spark.kafka.record_stream import RecordStream

        return RecordStream(self._session, subscription, checkpoint, run)
