"""Retries with a deadline.

Invariant: only a `TransientError` is retried, and every call passed here must be safe to repeat. Every write to a sink is (see "Crashes" in
`docs/architecture.md`). After the deadline the last error is raised unchanged. A definite error is raised at once. A pipe that is stopping
no longer retries: the error is raised, and the next start does the remaining work.

Several pipes may run in one process. Each has its own `WaitState`, found by the context of the calling thread. Start every thread that
works for a pipe with `bind_context`, so that it waits and ends with its pipe.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from headrace.errors import TransientError

log = logging.getLogger("headrace")

P = ParamSpec("P")
T = TypeVar("T")
DEADLINE_S = 600.0
FIRST_CONTACT_S = 5.0
"""The retry deadline for a server that the pipe has never reached: its address may be wrong."""
WAITING = "waiting: "
"""The prefix of log lines that report a wait."""
GOING_ON = "going on: "
"""The prefix of log lines that report the end of a wait."""
_MOST_WAIT_S, _SLICE_S = 10.0, 0.1
# One attempt may take as long as a connection timeout. A wait without a report for longer than this has ended.
_HEARD_S = _MOST_WAIT_S + 15.0


@dataclass(slots=True)
class WaitState:
    """What a pipe, or a process that works for one, waits for, and whether it may wait."""

    ending: bool = False
    """Whether the pipe was asked to end. A plain flag, because signal handlers set it and must not take a lock."""
    pipe: str = ""
    """The name of the pipe, if the process runs several."""
    first_contact: bool = False
    """Whether the pipe has never reached its source and its sink, in this run or an earlier one."""
    _reason: str = ""
    _since: float = 0.0
    _heard: float = -_HEARD_S
    _last: float = -math.inf

    def note(self, reason: str) -> None:
        """Record a failure that will be retried."""
        now = time.monotonic()
        if now - self._heard >= _HEARD_S:
            self._since = now
        self._reason, self._heard, self._last = reason, now, now

    def seconds_since_failure(self) -> float:
        return time.monotonic() - self._last

    def clear(self) -> None:
        """Clear the wait: a call has succeeded."""
        self._heard = -_HEARD_S

    def current(self) -> tuple[str, float] | None:
        """Return the reason for the wait and its duration in seconds; None if the pipe does not wait."""
        now = time.monotonic()
        return (self._reason, now - self._since) if now - self._heard < _HEARD_S else None


_current: ContextVar[WaitState] = ContextVar("headrace-waits", default=WaitState())  # noqa: B039  (shared by threads without their own state)


_by_pipe: dict[str, WaitState] = {}


def current_wait() -> WaitState:
    return _current.get()


def wait_state_of(pipe: str) -> WaitState:
    """Return the wait state of a pipe in this process; of this thread if the pipe does not run here."""
    return _by_pipe.get(pipe) or current_wait()


@contextmanager
def use_wait_state(mine: WaitState, *, of_run: bool = False) -> Iterator[None]:
    """Use this wait state inside the block, and in threads started from it with `bind_context`.

    `of_run`: the state belongs to the pipe's run. `wait_state_of` returns it from now on, so other processes can report their waits to it.
    """
    token = _current.set(mine)
    if of_run and mine.pipe:
        _by_pipe[mine.pipe] = mine
    try:
        yield
    finally:
        _current.reset(token)


def bind_context(call: Callable[P, T]) -> Callable[P, T]:
    """Return the call bound to the context of this thread's pipe, for use in another thread."""
    context = copy_context()
    # A context cannot be entered twice at the same time, so each call gets a copy.
    return lambda *arguments, **named: context.copy().run(call, *arguments, **named)


def log_wait(error: TransientError, attempt: int, wait_s: float) -> None:
    """Log what the pipe waits for, and where."""
    where = f" ({error.place})" if error.place else ""
    if error.elsewhere:
        log.warning("%s%s; going on at the next host", error.message, where)
        return
    current_wait().note(error.message)
    log.warning("%s%s%s; try %d, again in %.1f s", WAITING, error.message, where, attempt, wait_s)


def pause(seconds: float) -> None:
    """Sleep, but wake when the pipe is asked to end."""
    until = time.monotonic() + seconds
    while not current_wait().ending and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _SLICE_S))


def effective_deadline(deadline_s: float) -> float:
    """Return the deadline; a short one if the pipe has never reached the server."""
    return min(deadline_s, FIRST_CONTACT_S) if current_wait().first_contact else deadline_s


def retrying(
    call: Callable[[], T],
    *,
    deadline_s: float = DEADLINE_S,
    attempts: int | None = None,
    first_wait_s: float = 0.1,
    most_wait_s: float = _MOST_WAIT_S,
    on_wait: Callable[[TransientError, int, float], None] = log_wait,
    sleep: Callable[[float], None] = pause,
    clock: Callable[[], float] = time.monotonic,
    jitter: Callable[[], float] = random.random,
) -> T:
    """Call until it succeeds, with exponential backoff. `on_wait(error, attempt, wait_s)` is called before each retry."""
    start, deadline_s = clock(), effective_deadline(deadline_s)
    attempt = rounds = 0
    while True:
        attempt += 1
        try:
            return call()
        except TransientError as error:
            if error.elsewhere:
                wait_s = 0.0
            else:
                # Half of the delay is random, so that tasks that failed together do not retry together.
                wait_s = min(most_wait_s, first_wait_s * 2 ** min(rounds, 30)) * (0.5 + jitter() / 2)
                rounds += 1
            if current_wait().ending or (attempts is not None and attempt >= attempts) or clock() - start + wait_s > deadline_s:
                raise
            on_wait(error, attempt, wait_s)
            sleep(wait_s)
