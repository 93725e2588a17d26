"""The runtime interface on Spark (see `headrace.runtime.interface`): a session for each pipe, or one Java process for all pipes.

Invariant of shared sessions: no pipe sees what another registers or sets, each pipe has its own scheduler pool, and the end of a pipe does
not affect the others. When the Java process dies, every pipe gets a transient error, and the first pipe that retries starts a new process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.errors import DefiniteError, TransientError
from headrace.retry import current_wait
from headrace.runtime.interface import BatchStream, OnBatch, OnRecordBatch, OnSplitDone
from headrace.runtime.reports import Report
from headrace.runtime.tasks import SplitGroup, Task, TaskFunction
from headrace.sources.base import Source, Split
from headrace.spark.runtime import java_process
from headrace.spark.runtime.cluster import (
    SPARK_SUBMIT_VARIABLE,
    HeadraceSparkSettings,
    count_task_slots,
    effective_master,
    is_local,
    is_local_session,
    is_stopped,
    submitted_settings,
)
from headrace.spark.runtime.fork_server import RUNNER, ForkServer
from headrace.spark.runtime.java_process import GONE_ERRORS, lost_process_error
from headrace.spark.runtime.micro_batch import SplitStream, run_groups, translate_spark_error
from headrace.spark.session.session import java_pid, start_session, warm_workers
from headrace.stage_report import report_stages

if TYPE_CHECKING:
    from headrace.sources.debezium.offset_range_reader import Subscription

log = logging.getLogger("headrace")

_TURN_S = 0.2
_FAIR = {"spark.scheduler.mode": "FAIR"}
"""Schedules the tasks of a large batch fairly with those of other pipes."""


class SharedSessionProvider:
    """Shares one Java process among all pipes of this process, and starts it for the first pipe. Thread-safe."""

    def __init__(
        self, master: str, directory: Path, *, spark_log: bool = False, preload: Sequence[str] = (), more: Mapping[str, str] | None = None
    ) -> None:
        """`preload` and `more` are for all pipes: the imports of workers and the jars are fixed when the Java process starts."""
        self._master, self._directory, self._spark_log = master, directory, spark_log
        self._preload, self._more = tuple(dict.fromkeys(preload)), {**_FAIR, **(more or {})}
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._sessions: dict[str, SparkSession] = {}
        self._forks: ForkServer | None = None
        self._has_started = False

    def session(self, preload: Sequence[str]) -> SparkSession:
        """Return the session of the current pipe. No other pipe sees what is registered or set in it."""
        with self._turn():
            return self._session_of(current_wait().pipe, self._running(preload))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock. Do not wait for it when the pipe is stopping: another pipe may take minutes to start Spark on a cluster."""
        while not self._lock.acquire(timeout=_TURN_S):
            if current_wait().ending:
                raise TransientError("asked to end while Spark was being started")
        try:
            yield
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the Java process. No pipe may use it any more."""
        with self._lock:
            if self._session is not None:
                with suppress(*GONE_ERRORS, OSError):
                    self._session.stop()
                self._forget()
            if self._forks is not None:
                self._forks.close()

    @property
    def pid(self) -> int:
        """The id of the Java process; 0 if none runs."""
        if self._session is None:
            return 0
        if SPARK_SUBMIT_VARIABLE in os.environ:
            return os.getppid()
        process = getattr(SparkContext._gateway, "proc", None)
        return process.pid if process is not None and process.poll() is None else 0

    def _session_of(self, pipe: str, shared: SparkSession) -> SparkSession:
        """Return the session of a pipe. The next run of the pipe uses it again, because Java never frees a session completely."""
        if pipe not in self._sessions:
            try:
                self._sessions[pipe] = shared.newSession()
            except GONE_ERRORS as error:
                raise lost_process_error() from error
        return self._sessions[pipe]

    @report_stages("starting Spark")
    def _running(self, preload: Sequence[str]) -> SparkSession:
        if self._session is not None and (not self.pid or is_stopped(self._session)):
            log.warning("Spark has ended; it is started again")
            self._forget()
        wanted = tuple(dict.fromkeys((*self._preload, *preload)))
        if is_local(effective_master(self._master, {**submitted_settings(), **self._more})) and (
            self._forks is None or not self._forks.is_alive
        ):
            self._forks = ForkServer(self._directory / "spark", (RUNNER, "headrace.spark.runtime.split_source", *wanted))
            self._forks.start()
        if self._session is None:
            self._session = self._started(wanted)
            # It would print a traceback when the Java process exits.
            self._session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
            warm_workers(self._session)
        return self._session

    def _started(self, preload: Sequence[str]) -> SparkSession:
        try:
            session = start_session(self._master, self._directory, spark_log=self._spark_log, preload=preload, more=self._more)
        except GONE_ERRORS as error:
            # It exited while it started. Every later start would use what is left of it.
            if SPARK_SUBMIT_VARIABLE not in os.environ:
                self._forget()
            raise translate_spark_error(error) from error
        except DefiniteError as error:
            if not self._has_started:
                raise
            # It has started before with the same settings, so the cause is transient.
            raise lost_process_error(f"Spark's Java process has ended, and does not start again: {error.message}") from error
        self._has_started = True
        return session

    def _forget(self) -> None:
        """Reset pyspark, which would otherwise keep using the Java process."""
        session, self._session = self._session, None
        self._sessions.clear()
        if session is not None and SPARK_SUBMIT_VARIABLE in os.environ:
            # The Java process belongs to spark-submit and keeps running: it can start another session.
            with suppress(*GONE_ERRORS, OSError):
                session.stop()
            return
        java_process.reset_gateway()


class SparkRuntime:
    """Runs pipes on Spark: in a session for each pipe, or in sessions that share one Java process."""

    def __init__(self, sessions: SharedSessionProvider | None = None) -> None:
        self._sessions = sessions

    @property
    def is_shared(self) -> bool:
        return self._sessions is not None

    @contextmanager
    def session(
        self, master: str, directory: Path, *, spark_log: bool, preload: Sequence[str], more: Mapping[str, str] | None
    ) -> Iterator[SparkRuntimeSession]:
        if self._sessions is not None:
            yield SparkRuntimeSession(self._sessions.session(preload))
            return
        session = start_session(master, directory, spark_log=spark_log, preload=preload, more=more)
        try:
            warm_workers(session)
            yield SparkRuntimeSession(session)
        finally:
            session.stop()


class SparkRuntimeSession:
    """Runs tasks as Spark jobs, and streams as Spark streaming queries."""

    plan_wait_s: float = 5.0
    """An idle stream plans seldom: a change ends the wait at once, and so does stopping the stream."""

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
        return HeadraceSparkSettings.parse(dict(self._session.sparkContext.getConf().getAll())).fetch

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
        return SplitStream(self._session, source, checkpoint, lambda run, _: on_batch(run(task())))

    def stream_records(self, subscription: Subscription, checkpoint: Path, run: OnRecordBatch) -> BatchStream:
        # Only pipes from topics load the Kafka client.
        from headrace.spark.runtime.record_stream import RecordStream

        return RecordStream(self._session, subscription, checkpoint, run)
