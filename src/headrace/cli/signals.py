"""Exit without an error when the reader of standard output has closed it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import HeadraceError


@contextmanager
def exit_on_closed_stdout() -> Iterator[None]:
    """Exit quietly when the reader of stdout has closed it (`| head`)."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def ignore_closed_stdout() -> Iterator[None]:
    """Ignore the error of a pipe that prints if the reader of stdout has closed it."""
    try:
        yield
    except HeadraceError:
        output = sys.modules.get("headrace.sinks.stdout.output")
        if output is None or not output.STDOUT.left:
            raise
