"""Which pipe a line of the log is about: `record.pipe`, by the context of the thread that logs."""

from __future__ import annotations

import logging
import os

from headrace.retry import current_wait
from headrace.service.logging.formatters import TextLines


class NamesPipe(logging.Filter):
    """Gives every record its pipe (`pipe`; empty: the process) and the same as a prefix of text lines (`of_pipe`)."""

    def filter(self, record: logging.LogRecord) -> bool:
        pipe = current_wait().pipe
        record.__dict__.update(pipe=pipe, of_pipe=f"{pipe}: " if pipe else "")
        return True


class _NotPy4J(logging.Filter):
    """Leaves out what the bridge to Java says of a process that is gone: the pipes say it, once each."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname


def name_pipes(formatter: logging.Formatter | None = None) -> None:
    """From now on lines of the log say which pipe they are about.

    They go to where standard error was when this was called: while Spark starts, its own goes elsewhere for a moment.
    """
    stream = os.fdopen(os.dup(2), "w", buffering=1)
    lines = formatter or TextLines("%(asctime)s %(levelname)s %(of_pipe)s%(message)s")
    for handler in logging.getLogger("headrace").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(stream)
        handler.addFilter(NamesPipe())
        handler.setFormatter(lines)
    # What libraries say has the same form, and no secrets either.
    root = logging.StreamHandler(stream)
    root.addFilter(_NotPy4J())
    root.addFilter(NamesPipe())
    root.setFormatter(lines)
    logging.getLogger().addHandler(root)
