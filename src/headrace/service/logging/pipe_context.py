"""Adds the pipe to log records: `record.pipe`, from the context of the logging thread."""

from __future__ import annotations

import logging
import os

from headrace.retry import current_wait
from headrace.service.logging.formatters import TextFormatter


class PipeContextFilter(logging.Filter):
    """Sets `pipe` (empty: the process) and the prefix of text lines, `of_pipe`, on every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        pipe = current_wait().pipe
        record.__dict__.update(pipe=pipe, of_pipe=f"{pipe}: " if pipe else "")
        return True


class _Py4JFilter(logging.Filter):
    """Drops Py4J's messages about a dead Java process; each pipe reports it once."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname


def configure_pipe_logging(formatter: logging.Formatter | None = None) -> None:
    """Add the pipe to all log lines from now on.

    Lines go to the current standard error: Spark redirects it for a moment while it starts.
    """
    stream = os.fdopen(os.dup(2), "w", buffering=1)
    lines = formatter or TextFormatter("%(asctime)s %(levelname)s %(of_pipe)s%(message)s")
    for handler in logging.getLogger("headrace").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(stream)
        handler.addFilter(PipeContextFilter())
        handler.setFormatter(lines)
    # Messages of libraries get the same format and masking.
    root = logging.StreamHandler(stream)
    root.addFilter(_Py4JFilter())
    root.addFilter(PipeContextFilter())
    root.setFormatter(lines)
    logging.getLogger().addHandler(root)
