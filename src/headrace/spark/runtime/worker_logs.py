"""What our code says in Spark's processes, brought to the driver's log.

Workers and the source's process write to the standard error of Spark's JVM. It is a pipe here: marked lines are ours and go to the log
(a relay that waits for its server must be heard); the rest is Spark's own chatter and is shown only if asked for. Several pipes may share
the JVM: a marked line names the pipe that it is about.
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
        # One line for all of it: what stands on others would not be known to be ours.
        message = " ".join(record_text(record).splitlines())
        return f"{_MARK}{record.levelname} {quote(self.pipe)}/ {message}"


def mark_log_lines(pipe: str | None = None) -> None:
    """Make this process, one of Spark's, write our log so that the driver knows it, and from now on for a pipe (None: as before)."""
    handler = next((handler for handler in log.handlers if isinstance(handler, _MarkedLineHandler)), None)
    if handler is None:
        handler = _MarkedLineHandler(sys.stderr)
        log.handlers[:] = [handler]
        log.propagate = False
    if pipe is not None:
        handler.pipe = pipe


class ProcessOutput:
    """Hears what Spark's processes write to the pipe that they are started with."""

    def __init__(self, *, show_all: bool) -> None:
        self._show_all = show_all
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        reading, self.writing = os.pipe()
        """What a process is given as its standard output and error; closed here with `close_write_end`."""
        self._thread = threading.Thread(target=bind_context(self._read_lines), args=(reading,), name="headrace-log", daemon=True)
        self._thread.start()

    def close_write_end(self) -> None:
        """From now on only the processes hold the pipe: it ends when they do."""
        os.close(self.writing)

    def last_lines(self) -> list[str]:
        """The lines that were heard last of a process that has ended."""
        self._thread.join(_LAST_WORDS_S)
        return [line.rstrip("\n") for line in list(self._last)]

    def _read_lines(self, reading: int) -> None:
        with os.fdopen(reading, "r", errors="replace") as lines:
            for line in lines:
                self._last.append(line)
                if not log_marked_line(line) and self._show_all:
                    sys.stderr.write(f"{escape_text(line.rstrip())}\n")


def log_marked_line(line: str) -> bool:
    """Put a line that a process of Spark's wrote into our log, if it is marked."""
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
    """A record as it is written in a process of Spark's."""
    return next((handler.format(record) for handler in log.handlers if isinstance(handler, _MarkedLineHandler)), "")
