"""Brings Headrace's log lines from Spark's processes to the driver's log.

Workers and the source's process write to the standard error of Spark's JVM, which the driver reads. Marked lines are Headrace's and go to
the log. The others are Spark's, and are shown only with --spark-log. Several pipes may share the JVM, so a marked line names its pipe.

A remote executor's lines go to its standard error, where Spark keeps them, and over a separate connection to the driver, which shows what a
task waits for. If a firewall blocks that connection, the driver gets no log lines; nothing else depends on it.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from headrace.log_text import record_text
from headrace.retry import GOING_ON, WAITING, bind_context, current_wait, use_wait_state, wait_state_of
from headrace.terminal_text import escape_text

_MARK: Final = "headrace-log "
_LAST_LINES: Final = 100
_LAST_WORDS_S: Final = 2.0
_CONNECT_S: Final = 2.0
_KEY_S: Final = 10.0
_LONGEST_LINE: Final = 1 << 16

log = logging.getLogger("headrace")


class _MarkedLineHandler(logging.StreamHandler):  # type: ignore[type-arg]
    pipe = ""

    def format(self, record: logging.LogRecord) -> str:
        # One line per record: further lines would have no mark.
        message = " ".join(record_text(record).splitlines())
        return f"{_MARK}{record.levelname} {quote(self.pipe)}/ {message}"


def mark_log_lines(pipe: str | None = None) -> None:
    """Mark the log lines of this process, so that the driver recognises them; `pipe` names their pipe (None: as before)."""
    handler = next((handler for handler in log.handlers if isinstance(handler, _MarkedLineHandler)), None)
    if handler is None:
        handler = _MarkedLineHandler(sys.stderr)
        log.handlers[:] = [handler]
        log.propagate = False
    if pipe is not None:
        handler.pipe = pipe


class ProcessOutput:
    def __init__(self, *, show_all: bool) -> None:
        self._show_all = show_all
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        reading, self.writing = os.pipe()
        """The standard output and error of the processes; `close_write_end` closes it here."""
        self._thread = threading.Thread(target=bind_context(self._read_lines), args=(reading,), name="headrace-log", daemon=True)
        self._thread.start()

    def close_write_end(self) -> None:
        """Close this process's copy of the write end, so that the output ends with the processes."""
        os.close(self.writing)

    def last_lines(self) -> list[str]:
        """Return the last lines of a process that has ended."""
        self._thread.join(_LAST_WORDS_S)
        return [line.rstrip("\n") for line in list(self._last)]

    def _read_lines(self, reading: int) -> None:
        with os.fdopen(reading, "r", errors="replace") as lines:
            for line in lines:
                self._last.append(line)
                if not log_marked_line(line) and self._show_all:
                    sys.stderr.write(f"{escape_text(line.rstrip())}\n")


def log_marked_line(line: str) -> bool:
    """Log a line that a process of Spark's wrote, if it is marked; return whether it is."""
    if not line.startswith(_MARK):
        return False
    parts = line.removeprefix(_MARK).rstrip("\n").split(" ", 2)
    if len(parts) < 3:
        # The process ended while it wrote the line.
        return False
    level, pipe, message = parts
    with use_wait_state(wait_state_of(unquote(pipe.removesuffix("/")))):
        if message.startswith(WAITING):
            current_wait().note(message.removeprefix(WAITING))
        elif message.startswith(GOING_ON):
            current_wait().clear()
        log.log(logging.getLevelNamesMapping().get(level, logging.WARNING), message)
    return True


def format_marked_line(record: logging.LogRecord) -> str:
    return next((handler.format(record) for handler in log.handlers if isinstance(handler, _MarkedLineHandler)), "")


@dataclass(frozen=True, slots=True)
class WorkerLogAddress:
    """Where tasks send their log lines. Picklable."""

    host: str
    port: int
    key: str
    """The driver ignores connections that do not send it."""


class _Sender(logging.Handler):
    """Sends marked lines to the driver until a send fails."""

    def __init__(self, line: WorkerLogAddress) -> None:
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


def send_log_lines(line: WorkerLogAddress) -> None:
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
def receive_log_lines(bound: str, host: str) -> WorkerLogAddress:
    """Receive the log lines of tasks until this process ends: listen at `bound`, which other machines know as `host`."""
    server = socket.create_server((bound, 0))
    line = WorkerLogAddress(host, server.getsockname()[1], secrets.token_hex(16))
    threading.Thread(target=_accept, args=(server, line.key), name="headrace-far-log", daemon=True).start()
    return line


def _accept(server: socket.socket, key: str) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError as error:
            # No more descriptors, or a client that disconnected at once: tasks go on without a log.
            log.debug("a task's log cannot be received: %s", error)
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
