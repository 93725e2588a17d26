"""Where a pipe gets its Spark session from: one of its own, or a share of one that several pipes of a process use.

Invariant of the shared one: what a pipe registers or sets in its session is seen by no other pipe, its jobs have a pool of their own, and
its end stops nothing of the others. When the Java process dies, every pipe has a passing error, and the first that comes again starts a
new one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.errors import DefiniteError, TransientError
from headrace.retry import current_wait
from headrace.spark.runtime import java_process
from headrace.spark.runtime.cluster import SPARK_SUBMIT_VARIABLE, effective_master, is_local, submitted_settings
from headrace.spark.runtime.executors import is_stopped
from headrace.spark.runtime.fork_server import RUNNER, ForkServer
from headrace.spark.runtime.java_process import GONE_ERRORS, lost_process_error
from headrace.spark.runtime.micro_batch import translate_spark_error
from headrace.spark.session.session import start_session, warm_workers

log = logging.getLogger("headrace")

_TURN_S = 0.2
_FAIR = {"spark.scheduler.mode": "FAIR"}
"""Tasks of a pipe's large batch take turns with those of others, instead of going first."""


class SessionProvider(Protocol):
    """Lends sessions."""

    @property
    def is_shared(self) -> bool:
        """Whether Spark's Java process goes on when a pipe has ended."""

    def session(
        self, master: str, directory: Path, *, spark_log: bool, preload: Sequence[str], more: Mapping[str, str] | None
    ) -> AbstractContextManager[SparkSession]:
        """A session for the time of the block, as `start_session` makes it; what is registered or set in it is seen by nobody else."""


class DedicatedSessionProvider:
    """A session for one pipe, which ends with it."""

    is_shared = False

    @contextmanager
    def session(
        self, master: str, directory: Path, *, spark_log: bool, preload: Sequence[str], more: Mapping[str, str] | None
    ) -> Iterator[SparkSession]:
        session = start_session(master, directory, spark_log=spark_log, preload=preload, more=more)
        try:
            warm_workers(session)
            yield session
        finally:
            session.stop()


class SharedSessionProvider:
    """One Java process for all pipes of this process, started with the first need. Safe for threads."""

    is_shared = True

    def __init__(
        self, master: str, directory: Path, *, spark_log: bool = False, preload: Sequence[str] = (), more: Mapping[str, str] | None = None
    ) -> None:
        """`preload` and `more` are for all pipes that may come: what workers import, and jars, are fixed when the process starts."""
        self._master, self._directory, self._spark_log = master, directory, spark_log
        self._preload, self._more = tuple(dict.fromkeys(preload)), {**_FAIR, **(more or {})}
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._sessions: dict[str, SparkSession] = {}
        self._forks: ForkServer | None = None
        self._has_started = False

    @contextmanager
    def session(
        self, master: str, directory: Path, *, spark_log: bool, preload: Sequence[str], more: Mapping[str, str] | None
    ) -> Iterator[SparkSession]:
        del master, directory, spark_log, more
        with self._turn():
            session = self._session_of(current_wait().pipe, self._running(preload))
        yield session

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Another pipe may be starting Spark, for minutes where a cluster gives no executor: who is asked to end does not wait for it."""
        while not self._lock.acquire(timeout=_TURN_S):
            if current_wait().ending:
                raise TransientError("asked to end while Spark was being started")
        try:
            yield
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the Java process; no pipe uses it any more."""
        with self._lock:
            if self._session is not None:
                with suppress(*GONE_ERRORS, OSError):
                    self._session.stop()
                self._forget()
            if self._forks is not None:
                self._forks.close()

    @property
    def pid(self) -> int:
        """The Java process; 0 if none runs."""
        if self._session is None:
            return 0
        if SPARK_SUBMIT_VARIABLE in os.environ:
            return os.getppid()
        process = getattr(SparkContext._gateway, "proc", None)
        return process.pid if process is not None and process.poll() is None else 0

    def _session_of(self, pipe: str, shared: SparkSession) -> SparkSession:
        """A pipe's session. It is kept for the pipe's next run: Java never quite forgets one."""
        if pipe not in self._sessions:
            try:
                self._sessions[pipe] = shared.newSession()
            except GONE_ERRORS as error:
                raise lost_process_error() from error
        return self._sessions[pipe]

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
            # It would print where it was when the Java process went.
            self._session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
            warm_workers(self._session)
        return self._session

    def _started(self, preload: Sequence[str]) -> SparkSession:
        try:
            session = start_session(self._master, self._directory, spark_log=self._spark_log, preload=preload, more=self._more)
        except GONE_ERRORS as error:
            # It went while it started, or cannot. What is left of it would be taken for it at every later start.
            if SPARK_SUBMIT_VARIABLE not in os.environ:
                self._forget()
            raise translate_spark_error(error) from error
        except DefiniteError as error:
            if not self._has_started:
                raise
            # There is a Java, and it takes our settings: what keeps it from starting now passes.
            raise lost_process_error(f"Spark's Java process has ended, and does not start again: {error.message}") from error
        self._has_started = True
        return session

    def _forget(self) -> None:
        """Have pyspark forget a Java process, which it would otherwise go on talking to."""
        session, self._session = self._session, None
        self._sessions.clear()
        if session is not None and SPARK_SUBMIT_VARIABLE in os.environ:
            # The Java process is spark-submit's, and goes on: another session can be had of it.
            with suppress(*GONE_ERRORS, OSError):
                session.stop()
            return
        java_process.reset_gateway()
