"""Ending in order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.errors import HeadraceError


def stop_on_signals(stop: Callable[[], None]) -> None:
    """The first signal ends in order, after the batch; a second one ends at once, which the state survives like any crash."""
    asked = False

    def on_signal(*_: object) -> None:
        nonlocal asked
        if asked:
            os._exit(130)
        asked = True
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


@contextmanager
def readers_may_leave() -> Iterator[None]:
    """Whoever reads our output may have seen enough: then nothing is left to write at exit."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def readers_may_be_gone() -> Iterator[None]:
    """The same for a pipe that prints: what it ends with when its reader has left is no error."""
    try:
        yield
    except HeadraceError:
        output = sys.modules.get("headrace.sinks.stdout.output")
        if output is None or not output.STDOUT.left:
            raise
