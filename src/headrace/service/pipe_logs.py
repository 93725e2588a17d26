"""Stores the log lines of pipes for the dashboard: a handler of the process's log that gives each pipe its own lines.

Invariant: a stored line has the masked texts of the JSON log format, of limited length. The handler does nothing in a forked process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import orjson

from headrace.retry import current_wait
from headrace.service.log_formats import JsonFormatter
from headrace.telemetry.log_reader import LogPage, LogQuery, read_page
from headrace.telemetry.log_writer import LogFileWriter, log_directory, prune_logs

_MAX_TEXT: Final = 1000
_LIMITS: Final = {"message": 2000, "exception": 4000}
"""Characters of the fields of a line. A line has less than `MAX_LINE` bytes, also if it has only characters of several bytes."""


class PipeLogs:
    """The stored logs of the pipes of a process."""

    def __init__(self, state: Path, pipes: Sequence[str], now: float) -> None:
        prune_logs(state, now)
        self._state, self._writer = state, LogFileWriter(state, pipes)
        self._handler = _PipeLogHandler(self._writer)

    def start(self) -> None:
        self._writer.start()
        for logger in _loggers():
            logger.addHandler(self._handler)

    def add_pipes(self, pipes: Iterable[str]) -> None:
        """Store the lines of these pipes, too."""
        self._writer.add_pipes(pipes)

    def close(self) -> None:
        """Write the last lines, and end."""
        for logger in _loggers():
            logger.removeHandler(self._handler)
        self._writer.close()

    def page(self, pipe: str, query: LogQuery) -> LogPage:
        return read_page(log_directory(self._state, pipe), query)


def _loggers() -> list[logging.Logger]:
    """Return the loggers that see every record once: Headrace's own, and the root for libraries."""
    own, root = logging.getLogger("headrace"), logging.getLogger()
    return [root] if own.propagate else [own, root]


class _PipeLogHandler(logging.Handler):
    def __init__(self, writer: LogFileWriter) -> None:
        super().__init__()
        self._writer, self._process, self._format = writer, os.getpid(), JsonFormatter()

    def emit(self, record: logging.LogRecord) -> None:
        pipe = current_wait().pipe
        # A forked process must not wait for a lock that was held at the fork.
        if not pipe or os.getpid() != self._process or "py4j" in record.pathname:
            return
        try:
            line = self._line(record)
        # A record that cannot be formatted must not end the pipe; the log's own handler reports it.
        except (TypeError, ValueError):
            return
        self._writer.add(pipe, line)

    def _line(self, record: logging.LogRecord) -> bytes:
        fields = {name: _shortened(text, _LIMITS.get(name, _MAX_TEXT)) for name, text in self._format.fields(record).items()}
        return orjson.dumps(fields)


def _shortened(text: str, most: int) -> str:
    """Shorten a long text; of a traceback the end says most."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-(most // 2) :]}"
