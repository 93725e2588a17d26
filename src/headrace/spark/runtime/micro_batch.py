"""The micro-batch loop: Spark's source plans, tasks read and write, the driver processes their reports, and Spark checkpoints the batch.

Spark checkpoints a batch after `run` has returned. So a crash or an error at any earlier moment repeats the same batch, and never leaves a
gap.

Spark retries a failed task. That is right for a task whose executor was lost, and wrong for a Headrace error: the task has already retried
transient errors, and definite errors stay. So Spark on a cluster never sees a Headrace error: it comes back as a report row.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.retry import bind_context, current_wait
from headrace.runtime.checkpoint import is_committed, offset_of, remove_temporary_files
from headrace.runtime.interface import STOP_TIMEOUT_S, OnBatch, OnSplitDone, WorkerStartTimeout
from headrace.runtime.reports import Report, SerializedError, TaskFailed, checked_reports, decode_error
from headrace.runtime.tasks import TASK_ATTEMPT, SplitGroup, TaskFunction, separate_driver_splits
from headrace.shortage import shortage_in
from headrace.shutdown import finishing, is_requested
from headrace.sources.base import Source
from headrace.sources.splits import encode_split
from headrace.spark.runtime.cluster import is_local_session
from headrace.spark.runtime.java_process import GONE_ERRORS, lost_process_error
from headrace.spark.runtime.split_source import FORMAT, make_split_format, read_planned_splits
from headrace.spark.runtime.worker_logs import WorkerLogAddress, mark_log_lines, receive_log_lines, send_log_lines

COMMIT_TIMEOUT_S = 10.0
_LOOK_S = 2.0
"""How often to check whether a query still runs. (An error in a batch is known at once.)"""
_KILLED_WITHIN_S = 3.0
"""Spark ends the Python process of a task that was cancelled after two seconds."""
_SAID = 160
"""How much of Spark's message an error shows."""
_MOST_SAID = 2000
_POOL = "spark.scheduler.pool"
_WORKER_LATE_MESSAGE = "Python worker failed to connect back"
"""Spark's message when a worker does not start in time."""
_LOST_PROCESS_MESSAGES = (
    "Python worker exited unexpectedly",
    "Python worker process terminated",
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "Cannot call methods on a stopped SparkContext",
    "ExecutorLostFailure",
    "java.io.EOFException",
    "java.io.IOException",
    "java.net.SocketException",
    "Broken pipe",
    "Connection reset",
)
"""Spark's messages when one of its processes has exited."""

_WorkerFunction = Callable[[Iterable[str]], Iterator[Report | TaskFailed]]
"""What a worker runs."""

log = logging.getLogger("headrace")


class _StopRequested(Exception):
    """Raised at the start of a batch when the stream is stopping: the batch has not begun, so it is not lost."""


class SparkBatchStream:
    """A running Spark streaming query. `run` processes each batch, and raises if the batch must not count."""

    def __init__(self, session: SparkSession, frame: DataFrame, checkpoint: Path, run: Callable[[DataFrame, int], None]) -> None:
        self._run = run
        self._working = threading.RLock()
        self._stop_requested, self._cancelled = threading.Event(), False
        self._checkpoint, self._done = checkpoint, -1
        self._context = session.sparkContext
        self._failure: HeadraceError | None = None
        self._failed, self._next_look = threading.Event(), 0.0
        use_scheduler_pool(self._context)
        remove_temporary_files(checkpoint)
        try:
            self._query: StreamingQuery = (
                frame.writeStream.foreachBatch(bind_context(self._batch))
                # On a cluster, a bare path may refer to a shared file system.
                .option("checkpointLocation", f"file://{checkpoint.resolve()}")
                .trigger(processingTime="0 seconds")
                .start()
            )
        except (PySparkException, *GONE_ERRORS) as error:
            raise self._translated(error) from error

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the stream; True if it has ended. Raises the error that ended it."""
        if not self._failed.wait(timeout_s) and time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + _LOOK_S
        try:
            ended = bool(self._query.awaitTermination(cast(int, timeout_s if self._failed.is_set() else 0.001)))
        except StreamingQueryException as error:
            if self._stop_requested.is_set():
                return True
            raise self._failure or self._translated(error) from error
        except GONE_ERRORS as error:
            raise self._failure or translate_spark_error(error) from error
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def stop(self) -> None:
        """End after the current batch, or cancel that batch if it waits for a server; raise the error of the stream, if any."""
        self._stop_requested.set()
        begun = time.monotonic()
        while not self._working.acquire(timeout=0.2):
            if current_wait().current() is not None or time.monotonic() - begun > STOP_TIMEOUT_S:
                # The next start repeats an unfinished batch with the same bytes.
                self._cancel()
        self._working.release()
        if self._cancelled and not is_requested():
            # The cancelled tasks must not write while the next run of the pipe writes. (If this process exits, its tasks end.)
            time.sleep(_KILLED_WITHIN_S)
        try:
            with finishing():
                self._await_commit()
            self._query.stop()
            self._query.awaitTermination(30)
        except (PySparkException, *GONE_ERRORS):
            # The refused batch may have ended the query already.
            pass
        if self._failure is not None:
            # The current batch failed. A stop must not hide that.
            raise self._failure

    def _cancel(self) -> None:
        self._cancelled = True
        try:
            self._context.cancelJobGroup(str(self._query.runId))
        except GONE_ERRORS as error:
            # Then no task runs any more.
            log.debug("the batch cannot be cancelled: %s", error)

    def _await_commit(self) -> None:
        """Wait until Spark has checkpointed the last batch, so that the next start does not repeat it."""
        deadline = time.monotonic() + COMMIT_TIMEOUT_S
        while self._done >= 0 and not is_committed(self._checkpoint, self._done) and time.monotonic() < deadline:
            if self._query.awaitTermination(cast(int, 0.02)):
                return

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run no batch inside the block."""
        with self._working:
            yield

    def _translated(self, error: Exception) -> HeadraceError:
        """Return the Headrace error for the exception that ended the query."""
        return translate_spark_error(error)

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        with self._working, finishing():
            if self._stop_requested.is_set():
                raise _StopRequested
            try:
                self._run(frame, batch_id)
                self._done = batch_id
            except HeadraceError as error:
                if self._cancelled or (self._stop_requested.is_set() and isinstance(error, TransientError)):
                    raise _StopRequested from error
                self._failure = error
                self._failed.set()
                raise


class SplitStream(SparkBatchStream):
    """A stream of a source that plans its own batches. Spark checkpoints their offsets; tasks get the splits and read their rows.

    `run` gets the function that runs a task over a batch, and the number of the batch. It may run several tasks.
    """

    def __init__(self, session: SparkSession, source: Source, checkpoint: Path, run: OnBatch) -> None:
        # A planner that a former run could not end may still write.
        planned = checkpoint.parent / "spark" / f"splits-{secrets.token_hex(4)}.json"
        planned.parent.mkdir(parents=True, exist_ok=True)
        try:
            session.dataSource.register(make_split_format(source, planned, current_wait().pipe))
            addresses = session.readStream.format(FORMAT).load()
        except (PySparkException, *GONE_ERRORS) as error:
            raise translate_spark_error(error) from error

        def batch(_: DataFrame, number: int) -> None:
            splits, reports = separate_driver_splits(read_planned_splits(planned, offset_of(checkpoint, number)))
            run(lambda task: [*run_task(session, splits, task), *reports], number)

        super().__init__(session, addresses, checkpoint, batch)


def run_groups(
    session: SparkSession, groups: Sequence[SplitGroup], parallelism: int, on_done: OnSplitDone, on_idle: Callable[[], None] = lambda: None
) -> None:
    """Run groups of splits as Spark jobs, `parallelism` at a time. When a job ends, call `on_done` for each of its splits in this thread.

    `on_idle` is called at intervals. An error that it raises cancels the jobs.
    """
    group_id = f"headrace-{secrets.token_hex(4)}"

    def run(group: SplitGroup) -> list[Report]:
        try:
            session.sparkContext.setJobGroup(group_id, "headrace splits")
            use_scheduler_pool(session.sparkContext)
        except (PySparkException, *GONE_ERRORS) as error:
            raise translate_spark_error(error) from error
        return run_task(session, [encode_split(split) for split in group.splits], group.job, tasks=1)

    run_in_context = bind_context(run)
    with ThreadPoolExecutor(max_workers=parallelism, thread_name_prefix="headrace-splits") as pool:
        waiting = {pool.submit(run_in_context, group): group for group in groups}
        try:
            left: set[Future[list[Report]]] = set(waiting)
            while left:
                done, left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    for split, report in waiting[future].pair_reports(future.result()):
                        on_done(split, report)
                on_idle()
        except BaseException:
            for future in waiting:
                future.cancel()
            try:
                # Only these jobs: a stream may run at the same time.
                session.sparkContext.cancelJobGroup(group_id)
            except GONE_ERRORS as error:
                # Then no task runs any more.
                log.debug("the splits cannot be cancelled: %s", error)
            raise


@dataclass(frozen=True, slots=True)
class _TaskOfPipe:
    """A task whose log lines name its pipe. Picklable."""

    job: _WorkerFunction
    pipe: str

    def __call__(self, splits: Iterable[str]) -> Iterator[Report | TaskFailed]:
        mark_log_lines(self.pipe)
        context = TaskContext.get()
        TASK_ATTEMPT.set(0 if context is None else context.attemptNumber())
        return self.job(splits)


def use_scheduler_pool(context: SparkContext) -> None:
    """Schedule the jobs of this thread, and of a stream that it starts, fairly with those of other pipes."""
    pipe = current_wait().pipe
    if pipe:
        try:
            context.setLocalProperty(_POOL, pipe)
        except GONE_ERRORS as error:
            raise translate_spark_error(error) from error


def run_task(session: SparkSession, splits: Sequence[str], task: TaskFunction, tasks: int = 0) -> list[Report]:
    """Run a task for each split, or so many tasks for all splits; raise Headrace errors.

    The job is an RDD: the plan of a DataFrame takes Spark longer than a small batch, and loads thousands of classes at the start.
    """
    if not splits:
        return []
    try:
        job = _wrap_for_executors(session, _TaskOfPipe(task, current_wait().pipe))
        found = session.sparkContext.parallelize(splits, tasks or len(splits)).mapPartitions(job).collect()
    except (PySparkException, *GONE_ERRORS) as error:
        raise translate_spark_error(error) from error
    return checked_reports(found)


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A task as remote executors run it. Picklable."""

    job: _WorkerFunction
    line: WorkerLogAddress

    def __call__(self, splits: Iterable[str]) -> Iterator[Report | TaskFailed]:
        send_log_lines(self.line)
        try:
            yield from self.job(splits)
        except SerializedError as error:
            yield TaskFailed(str(error))


def _wrap_for_executors(session: SparkSession, job: _WorkerFunction) -> _WorkerFunction:
    """Return the task as the session's executors must run it."""
    if is_local_session(session):
        return job
    conf = session.sparkContext.getConf()
    bound = str(conf.get("spark.driver.bindAddress", "127.0.0.1"))
    # The bind address may mean nothing to other machines (0.0.0.0).
    return RemoteTask(job, receive_log_lines(bound, str(conf.get("spark.driver.host", bound))))


def is_java_process_gone(error: BaseException) -> bool:
    """Whether an error, or one of its causes, says that Spark's Java process does not answer.

    (pyspark may report such an error as a type that it cannot parse.)
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, GONE_ERRORS) and not isinstance(found, Py4JJavaError):
            return True
        found = found.__cause__ or found.__context__
    return False


def translate_spark_error(error: Exception) -> HeadraceError:
    """Return the Headrace error that an exception of Spark's carries, or a new one with Spark's message."""
    if is_java_process_gone(error):
        return lost_process_error()
    text = str(error)
    carried = decode_error(text)
    if carried is None and _WORKER_LATE_MESSAGE in text:
        return WorkerStartTimeout(
            "Spark's Python processes did not start in time", hint="the machine is very busy: run again when it is less so"
        )
    # Only the Java stack trace tells that a source's process has exited.
    whole = f"{text}\n{getattr(error, '_stackTrace', '')}"
    if carried is None and (short := shortage_in(whole)) is not None:
        return short
    lost = next((line.strip() for line in whole.splitlines() if any(words in line for words in _LOST_PROCESS_MESSAGES)), "")
    if carried is None and lost:
        return lost_process_error(f"a process of Spark's that worked for the pipe has ended ({lost[-_SAID:]})")
    # The Java stack trace does not help the user. Spark's log has it.
    shown = "\n".join(line for line in text.splitlines() if not line.startswith("\tat "))[:_MOST_SAID]
    return carried or DefiniteError(f"Spark failed: {shown}", hint="run again with --spark-log to see what Spark says; please report it")
