"""Runs tasks on remote executors. Headrace errors come back as report rows; task logs stream to the driver.

Spark retries a failed task. That is right for a task whose executor was lost, and wrong for a Headrace error: the task has already retried
transient errors, and definite errors stay. So Spark never sees a Headrace error.

Log lines go to the executor's standard error, where Spark keeps them, and over a separate connection to the driver, which shows what a task
waits for. If a firewall blocks that connection, the driver gets no log lines; nothing else depends on it.
"""

from __future__ import annotations

import functools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.runtime.error_transport import SerializedError
from headrace.runtime.reports import TaskFailed, encode_reports
from headrace.runtime.tasks import TaskFunction
from headrace.spark.runtime.executors import is_local_session
from headrace.spark.runtime.worker_logs import format_marked_line, log_marked_line, mark_log_lines

log = logging.getLogger("headrace")

_CONNECT_S: Final = 2.0
_KEY_S: Final = 10.0
_LONGEST_LINE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class LogLine:
    """Where tasks send their log lines. Picklable."""

    host: str
    port: int
    key: str
    """The driver ignores connections that do not send it."""


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A task as remote executors run it. Picklable."""

    job: TaskFunction
    line: LogLine

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _send_log(self.line)
        try:
            yield from self.job(batches)
        except SerializedError as error:
            yield encode_reports([TaskFailed(str(error))])


def wrap_for_executors(session: SparkSession, job: TaskFunction) -> TaskFunction:
    """Return the task as the session's executors must run it."""
    if is_local_session(session):
        return job
    conf = session.sparkContext.getConf()
    bound = str(conf.get("spark.driver.bindAddress", "127.0.0.1"))
    # The bind address may mean nothing to other machines (0.0.0.0).
    return RemoteTask(job, _listening(bound, str(conf.get("spark.driver.host", bound))))


class _Sender(logging.Handler):
    """Sends marked lines to the driver until a send fails."""

    def __init__(self, line: LogLine) -> None:
        super().__init__()
        self.line = line
        self._socket: socket.socket | None = None
        self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        if self._failed:
            return
        try:
            if self._socket is None:
                self._socket = socket.create_connection((self.line.host, self.line.port), _CONNECT_S)
                self._socket.sendall(f"{self.line.key}\n".encode())
            self._socket.sendall(f"{format_marked_line(record)}\n".encode())
        except OSError:
            self._failed = True
            self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        super().close()


def _send_log(line: LogLine) -> None:
    """Send the log of this worker to the driver; once per connection."""
    mark_log_lines()
    senders = [handler for handler in log.handlers if isinstance(handler, _Sender)]
    if any(handler.line == line for handler in senders):
        return
    for handler in senders:
        log.removeHandler(handler)
        handler.close()
    log.addHandler(_Sender(line))


@functools.cache
def _listening(bound: str, host: str) -> LogLine:
    """Receive the log lines of tasks until this process ends: listen at `bound`, which other machines know as `host`."""
    server = socket.create_server((bound, 0))
    line = LogLine(host, server.getsockname()[1], secrets.token_hex(16))
    threading.Thread(target=_accept, args=(server, line.key), name="headrace-far-log", daemon=True).start()
    return line


def _accept(server: socket.socket, key: str) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError as error:
            # No more descriptors, or a client that disconnected at once: tasks go on without a log.
            log.debug("a task's log cannot be heard: %s", error)
            time.sleep(_CONNECT_S)
            continue
        threading.Thread(target=_hear, args=(connection, key), name="headrace-far-log", daemon=True).start()


def _hear(connection: socket.socket, key: str) -> None:
    try:
        # Do not wait for a client that sends no key. Keep-alive detects machines that have failed.
        connection.settimeout(_KEY_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with connection, connection.makefile("r", errors="replace") as lines:
            if not secrets.compare_digest(lines.readline(_LONGEST_LINE).strip().encode(), key.encode()):
                return
            connection.settimeout(None)
            while line := lines.readline(_LONGEST_LINE):
                log_marked_line(line)
    except OSError:
        # The executor has exited.
        return
