"""The micro-batch loop: plan (Spark's source), decode and write (tasks), then what the driver does with the reports, then the checkpoint.

A batch counts only when Spark has checkpointed it, and that happens after `on_batch` returned. So a crash or an error at any moment
before leads to the same batch again, never to a gap.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.retry import in_context, waits
from headrace.sources.base import Source, Work
from headrace.spark.checkpoint import is_committed
from headrace.spark.faults import decode
from headrace.spark.source import FORMAT, address_format
from headrace.spark.tasks import REPORT_SCHEMA, Job, Report, Task

Over = Callable[[Job], list[Report]]
"""Runs a task over the works of a batch."""
STOP_PATIENCE_S = 30.0
COMMIT_PATIENCE_S = 10.0
_LATE = "Python worker failed to connect back"
"""What Spark says of it."""


class WorkersLate(TransientError):
    """Spark gives a Python process ten seconds to start; on a machine that is very busy that is too little. Nothing is lost by it."""


class _StopRequested(Exception):
    """Raised at the start of a batch when we are asked to end: the batch is not begun, so it is not lost."""


class BatchStream:
    """One running Spark streaming query: batches of a frame, each handed to `run`, which raises if the batch shall not count."""

    def __init__(self, session: SparkSession, frame: DataFrame, checkpoint: Path, run: Callable[[DataFrame, int], None]) -> None:
        self._run = run
        self._working = threading.RLock()
        self._stopping = self._cancelled = False
        self._checkpoint, self._done = checkpoint, -1
        self._context = session.sparkContext
        self._failure: HeadraceError | None = None
        self._query: StreamingQuery = (
            frame.writeStream.foreachBatch(in_context(self._batch))
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the stream; True if it has ended. Raises what ended it."""
        try:
            ended = bool(self._query.awaitTermination(cast(int, timeout_s)))
        except StreamingQueryException as error:
            if self._stopping:
                return True
            raise self._failure or self._translated(error) from error
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def stop(self) -> None:
        """End after the batch under way, or without it if that waits for something; raises what made it fail, if it did."""
        self._stopping = True
        begun = time.monotonic()
        while not self._working.acquire(timeout=0.2):
            if waits().current() is not None or time.monotonic() - begun > STOP_PATIENCE_S:
                # A batch that is not done is done again, by the same bytes, at the next start.
                self._cancelled = True
                self._context.cancelJobGroup(str(self._query.runId))
        self._working.release()
        try:
            self._await_commit()
            self._query.stop()
            self._query.awaitTermination(30)
        except (PySparkException, Py4JError):
            # The query may have ended by the refused batch; either way it has ended.
            pass
        if self._failure is not None:
            # The batch under way failed: asking to stop does not make that well.
            raise self._failure

    def _await_commit(self) -> None:
        """Give Spark the moment that it needs to checkpoint the last batch: what is done need not be done again."""
        deadline = time.monotonic() + COMMIT_PATIENCE_S
        while self._done >= 0 and not is_committed(self._checkpoint, self._done) and time.monotonic() < deadline:
            if self._query.awaitTermination(cast(int, 0.02)):
                return

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No batch runs meanwhile."""
        with self._working:
            yield

    def _translated(self, error: Exception) -> HeadraceError:
        """What ended the query, as an error of ours."""
        return spark_failure(error)

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        with self._working:
            if self._stopping:
                raise _StopRequested
            try:
                self._run(frame, batch_id)
                self._done = batch_id
            except HeadraceError as error:
                if self._cancelled or (self._stopping and isinstance(error, TransientError)):
                    raise _StopRequested from error
                self._failure = error
                raise


class AddressStream(BatchStream):
    """A running replication of a source that plans its own batches: Spark carries addresses, tasks read what is there.

    `run` gets what runs a task over a batch, and the batch's number; it may run several tasks, as long as any of them may be run again.
    """

    def __init__(self, session: SparkSession, source: Source, checkpoint: Path, run: Callable[[Over, int], None]) -> None:
        session.dataSource.register(address_format(source))
        addresses = session.readStream.format(FORMAT).load()
        super().__init__(session, addresses, checkpoint, lambda batch, number: run(lambda task: run_task(batch, task), number))


class ChangeStream(AddressStream):
    """The same where every batch is one task, and the driver acts on its reports."""

    def __init__(
        self, session: SparkSession, source: Source, checkpoint: Path, task: Callable[[], Task], on_batch: Callable[[list[Report]], None]
    ) -> None:
        super().__init__(session, source, checkpoint, lambda over, _: on_batch(over(task())))


def run_works(
    session: SparkSession,
    task: Job,
    works: Sequence[Work],
    parallelism: int,
    on_done: Callable[[Work, list[Report]], None],
    on_idle: Callable[[], None] = lambda: None,
) -> None:
    """Run pieces of work as Spark jobs, `parallelism` at a time; `on_done` hears of each as it ends, in this thread.

    Meanwhile `on_idle` is called now and then; what it raises ends the works.
    """
    group = f"headrace-{secrets.token_hex(4)}"

    def run(work: Work) -> list[Report]:
        session.sparkContext.setJobGroup(group, "headrace works")
        # One row made by Spark itself: a DataFrame from Python's data would start a Python worker of another kind.
        return run_task(session.range(0, 1, 1, 1).select(lit(json.dumps(work)).alias("work")), task)

    run_in_context = in_context(run)
    with ThreadPoolExecutor(max_workers=parallelism, thread_name_prefix="headrace-works") as pool:
        waiting = {pool.submit(run_in_context, work): work for work in works}
        try:
            left: set[Future[list[Report]]] = set(waiting)
            while left:
                done, left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    on_done(waiting[future], future.result())
                on_idle()
        except BaseException:
            for future in waiting:
                future.cancel()
            # Not all jobs: a stream may run beside us.
            session.sparkContext.cancelJobGroup(group)
            raise


def run_task(frame: DataFrame, task: Job) -> list[Report]:
    """Run a task over the rows of a batch; what went wrong in it is an error of ours."""
    try:
        rows = frame.mapInArrow(task, REPORT_SCHEMA).collect()
    except (PySparkException, Py4JError) as error:
        raise spark_failure(error) from error
    return [Report(*row) for row in rows]


def spark_failure(error: Exception) -> HeadraceError:
    """The error of ours that Spark carried, or one that says what Spark says."""
    carried = decode(str(error))
    if carried is None and _LATE in str(error):
        return WorkersLate("Spark's Python processes did not start in time", hint="the machine is very busy: run again when it is less so")
    return carried or DefiniteError(f"Spark failed: {error}", hint="run again with --spark-log to see what Spark says; please report it")
