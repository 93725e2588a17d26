"""Ending in order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import HeadraceError


@contextmanager
def exit_on_closed_stdout() -> Iterator[None]:
    """Whoever reads our output may have seen enough: then nothing is left to write at exit."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def ignore_closed_stdout() -> Iterator[None]:
    """The same for a pipe that prints: what it ends with when its reader has left is no error."""
    try:
        yield
    except HeadraceError:
        output = sys.modules.get("headrace.sinks.stdout.output")
        if output is None or not output.STDOUT.left:
            raise
