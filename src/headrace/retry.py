"""Trying again, with limits.

Invariant: only a `TransientError` is tried again, and only calls that are safe to repeat may be given here (every write to a sink is: the
merge drops what arrived twice). After the deadline the last error leaves unchanged; a definite one leaves at once.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from headrace.errors import TransientError

log = logging.getLogger("headrace")

T = TypeVar("T")
DEADLINE_S = 600.0


def log_wait(error: TransientError, attempt: int, wait_s: float) -> None:
    """Tell the log what is being waited for."""
    log.warning("%s; try %d, waiting %.1f s", error.message, attempt, wait_s)


def retrying(
    call: Callable[[], T],
    *,
    deadline_s: float = DEADLINE_S,
    attempts: int | None = None,
    first_wait_s: float = 0.1,
    most_wait_s: float = 10.0,
    on_wait: Callable[[TransientError, int, float], None] = log_wait,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    jitter: Callable[[], float] = random.random,
) -> T:
    """Call until it succeeds, waiting ever longer; `on_wait(error, attempt, wait_s)` hears of every failure that will be tried again."""
    start = clock()
    attempt = 0
    while True:
        attempt += 1
        try:
            return call()
        except TransientError as error:
            # Half of the wait is random, so that tasks that failed together do not come back together.
            wait_s = min(most_wait_s, first_wait_s * 2 ** min(attempt - 1, 30)) * (0.5 + jitter() / 2)
            if (attempts is not None and attempt >= attempts) or clock() - start + wait_s > deadline_s:
                raise
            on_wait(error, attempt, wait_s)
            sleep(wait_s)
