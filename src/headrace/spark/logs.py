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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote, unquote

from headrace.retry import GOING_ON, WAITING, in_context, own_waits, waits, waits_of

_MARK: Final = "headrace-log "

log = logging.getLogger("headrace")


class _Marked(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes marked lines to standard error."""

    pipe = ""

    def format(self, record: logging.LogRecord) -> str:
        # One line for all of it: what stands on others would not be known to be ours.
        message = " ".join(record.getMessage().splitlines())
        return f"{_MARK}{record.levelname} {quote(self.pipe)}/ {message}"


def mark_log(pipe: str | None = None) -> None:
    """Make this process, one of Spark's, write our log so that the driver knows it, and from now on for a pipe (None: as before)."""
    handler = next((handler for handler in log.handlers if isinstance(handler, _Marked)), None)
    if handler is None:
        handler = _Marked(sys.stderr)
        log.handlers[:] = [handler]
        log.propagate = False
    if pipe is not None:
        handler.pipe = pipe


@contextmanager
def forwarded_errors(show_all: bool) -> Iterator[None]:
    """Processes started inside have the pipe as their standard error, for as long as they live."""
    reading, writing = os.pipe()
    saved = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        threading.Thread(target=in_context(_forward), args=(reading, show_all), name="headrace-log", daemon=True).start()


def _forward(reading: int, show_all: bool) -> None:
    with os.fdopen(reading, "r", errors="replace") as lines:
        for line in lines:
            if not take_line(line) and show_all:
                sys.stderr.write(line)


def take_line(line: str) -> bool:
    """Put a line that a process of Spark's wrote into our log, if it is marked."""
    if not line.startswith(_MARK):
        return False
    level, pipe, message = line.removeprefix(_MARK).rstrip("\n").split(" ", 2)
    with own_waits(waits_of(unquote(pipe.removesuffix("/")))):
        if message.startswith(WAITING):
            waits().note(message.removeprefix(WAITING))
        elif message.startswith(GOING_ON):
            waits().over()
        log.log(logging.getLevelNamesMapping().get(level, logging.WARNING), message)
    return True


def marked_line(record: logging.LogRecord) -> str:
    """A record as it is written in a process of Spark's."""
    return next((handler.format(record) for handler in log.handlers if isinstance(handler, _Marked)), "")
