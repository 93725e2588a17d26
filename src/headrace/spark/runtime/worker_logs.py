"""Brings Headrace's log lines from Spark's processes to the driver's log.

Workers and the source's process write to the standard error of Spark's JVM, which the driver reads. Marked lines are Headrace's and go to
the log. The others are Spark's, and are shown only with --spark-log. Several pipes may share the JVM, so a marked line names its pipe.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from typing import Final
from urllib.parse import quote, unquote

from headrace.log_text import record_text
from headrace.retry import GOING_ON, WAITING, bind_context, current_wait, use_wait_state, wait_state_of
from headrace.terminal_text import escape_text

_MARK: Final = "headrace-log "
_LAST_LINES: Final = 100
_LAST_WORDS_S: Final = 2.0

log = logging.getLogger("headrace")


class _MarkedLineHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes marked lines to standard error."""

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
    """Reads the output of Spark's processes."""

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
    level, pipe, message = line.removeprefix(_MARK).rstrip("\n").split(" ", 2)
    with use_wait_state(wait_state_of(unquote(pipe.removesuffix("/")))):
        if message.startswith(WAITING):
            current_wait().note(message.removeprefix(WAITING))
        elif message.startswith(GOING_ON):
            current_wait().clear()
        log.log(logging.getLevelNamesMapping().get(level, logging.WARNING), message)
    return True


def format_marked_line(record: logging.LogRecord) -> str:
    """Return a record as a marked line."""
    return next((handler.format(record) for handler in log.handlers if isinstance(handler, _MarkedLineHandler)), "")
