"""Jobs on a cluster: an error of ours comes back as a report, and what a task logs is heard by the driver while it runs.

Spark runs a failed task again, which is right for a task whose executor was lost, and wrong for an error of ours: that was tried again
already where it passes, and stays where it does not. So Spark never sees one.

Log lines go to the executor's standard error, where Spark keeps them, and over a connection of their own to the driver: who waits for a
sink that is away shall be seen to wait. A driver that cannot be reached so (a firewall) is not told; nothing else depends on it.
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
from pyspark.sql import Row, SparkSession

from headrace.errors import TransientError
from headrace.runtime.error_transport import SerializedError, decode_error
from headrace.runtime.tasks import Report, TaskFunction, report_batch
from headrace.spark.runtime.executors import is_local_session
from headrace.spark.runtime.worker_logs import format_marked_line, log_marked_line, mark_log_lines

log = logging.getLogger("headrace")

_FAULT: Final = "fault"
_CONNECT_S: Final = 2.0
_KEY_S: Final = 10.0
_LONGEST_LINE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class LogLine:
    """Where tasks send their log lines. Picklable."""

    host: str
    port: int
    key: str
    """Whoever does not know it is not heard."""


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A job as executors of a cluster run it. Picklable."""

    job: TaskFunction
    line: LogLine

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _send_log(self.line)
        try:
            yield from self.job(batches)
        except SerializedError as error:
            yield report_batch([Report(_FAULT, socket.gethostname(), 0, 0, 0, str(error))])


def wrap_for_executors(session: SparkSession, job: TaskFunction) -> TaskFunction:
    """The job as it runs where the session's tasks run."""
    if is_local_session(session):
        return job
    told = session.sparkContext.getConf()
    bound = str(told.get("spark.driver.bindAddress", "127.0.0.1"))
    # Where this machine listens need not be an address that others understand (0.0.0.0).
    return RemoteTask(job, _listening(bound, str(told.get("spark.driver.host", bound))))


def read_reports(rows: Iterable[Row]) -> list[Report]:
    """What tasks report; raises the error of ours that one of them came to, the lasting ones first."""
    reports = [Report(*row) for row in rows]
    faults = [found for report in reports if report.kind == _FAULT and (found := decode_error(report.detail)) is not None]
    for fault in sorted(faults, key=lambda one: isinstance(one, TransientError)):
        raise fault
    return reports


class _Sender(logging.Handler):
    """Sends marked lines to the driver, until that fails."""

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
    """Have this process, an executor's worker, send its log; once for a line."""
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
    """Hear what tasks log, from now until the process ends: at an address of this machine's, by which others know it as `host`."""
    server = socket.create_server((bound, 0))
    line = LogLine(host, server.getsockname()[1], secrets.token_hex(16))
    threading.Thread(target=_accept, args=(server, line.key), name="headrace-far-log", daemon=True).start()
    return line


def _accept(server: socket.socket, key: str) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError as error:
            # No more descriptors, or a client that went at once: tasks go on, and are heard again later.
            log.debug("a task's log cannot be heard: %s", error)
            time.sleep(_CONNECT_S)
            continue
        threading.Thread(target=_hear, args=(connection, key), name="headrace-far-log", daemon=True).start()


def _hear(connection: socket.socket, key: str) -> None:
    try:
        # Who does not say the key is not waited for; a machine that went without a word is found out by the system.
        connection.settimeout(_KEY_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with connection, connection.makefile("r", errors="replace") as lines:
            if not secrets.compare_digest(lines.readline(_LONGEST_LINE).strip().encode(), key.encode()):
                return
            connection.settimeout(None)
            while line := lines.readline(_LONGEST_LINE):
                log_marked_line(line)
    except OSError:
        # An executor that is gone has nothing more to say.
        return
