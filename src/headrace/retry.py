"""Trying again, with limits.

Invariant: only a `TransientError` is tried again, and only calls that are safe to repeat may be given here (every write to a sink is: the
merge drops what arrived twice). After the deadline the last error leaves unchanged; a definite one leaves at once. A pipe that is asked
to end waits for nothing any more: the error leaves, and what was not done is done at the next start.

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
"""How long a server is waited for that a pipe has never reached: its address may be wrong."""
WAITING = "waiting: "
"""How the log lines begin that tell of a wait."""
GOING_ON = "going on: "
"""How those begin that tell of its end."""
_MOST_WAIT_S, _SLICE_S = 10.0, 0.1
# A try may take as long as a connection's timeout; a wait that nothing was heard of for longer is over.
_HEARD_S = _MOST_WAIT_S + 15.0


@dataclass(slots=True)
class WaitState:
    """What a pipe, or a process that works for one, waits for; and whether it may."""

    ending: bool = False
    """Whether the pipe was asked to end. A plain flag: it is set in signal handlers, where no lock may be taken."""
    pipe: str = ""
    """What the pipe is called, where a process runs several."""
    first_contact: bool = False
    """Whether the pipe has not reached its source and its sink yet, in this run or an earlier one."""
    _reason: str = ""
    _since: float = 0.0
    _heard: float = -_HEARD_S
    _last: float = -math.inf

    def note(self, reason: str) -> None:
        """Something failed and will be tried again."""
        now = time.monotonic()
        if now - self._heard >= _HEARD_S:
            self._since = now
        self._reason, self._heard, self._last = reason, now, now

    def quiet_s(self) -> float:
        """For how many seconds nothing has failed."""
        return time.monotonic() - self._last

    def clear(self) -> None:
        """Something was done: nothing is waited for."""
        self._heard = -_HEARD_S

    def current(self) -> tuple[str, float] | None:
        """What is waited for, and for how many seconds so far."""
        now = time.monotonic()
        return (self._reason, now - self._since) if now - self._heard < _HEARD_S else None


_current: ContextVar[WaitState] = ContextVar("headrace-waits", default=WaitState())  # noqa: B039  (one for whoever has none of their own)


_by_pipe: dict[str, WaitState] = {}


def current_wait() -> WaitState:
    """Those of the pipe that this thread works for."""
    return _current.get()


def wait_state_of(pipe: str) -> WaitState:
    """Those of a pipe that runs in this process; of one that does not, this thread's."""
    return _by_pipe.get(pipe) or current_wait()


@contextmanager
def use_wait_state(mine: WaitState, *, of_run: bool = False) -> Iterator[None]:
    """Inside, and in threads started from there with `bind_context`, these count.

    `of_run`: they are those of the pipe's run, which from now on hears what other processes wait for on the pipe's behalf.
    """
    token = _current.set(mine)
    if of_run and mine.pipe:
        _by_pipe[mine.pipe] = mine
    try:
        yield
    finally:
        _current.reset(token)


def bind_context(call: Callable[P, T]) -> Callable[P, T]:
    """The same call, in whichever thread, as part of the work of this thread's pipe."""
    context = copy_context()
    # A context cannot be entered twice at a time: each call gets a copy.
    return lambda *arguments, **named: context.copy().run(call, *arguments, **named)


def log_wait(error: TransientError, attempt: int, wait_s: float) -> None:
    """Tell the log what is being waited for, and where."""
    where = f" ({error.place})" if error.place else ""
    if error.elsewhere:
        log.warning("%s%s; going on at the next host", error.message, where)
        return
    current_wait().note(error.message)
    log.warning("%s%s%s; try %d, again in %.1f s", WAITING, error.message, where, attempt, wait_s)


def pause(seconds: float) -> None:
    """Wait, but not beyond the moment at which the pipe is asked to end."""
    until = time.monotonic() + seconds
    while not current_wait().ending and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _SLICE_S))


def limited(deadline_s: float) -> float:
    """The deadline, or a short one if the pipe has never reached the server that it waits for."""
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
    """Call until it succeeds, waiting ever longer; `on_wait(error, attempt, wait_s)` hears of every failure that will be tried again."""
    start, deadline_s = clock(), limited(deadline_s)
    attempt = rounds = 0
    while True:
        attempt += 1
        try:
            return call()
        except TransientError as error:
            if error.elsewhere:
                wait_s = 0.0
            else:
                # Half of the wait is random, so that tasks that failed together do not come back together.
                wait_s = min(most_wait_s, first_wait_s * 2 ** min(rounds, 30)) * (0.5 + jitter() / 2)
                rounds += 1
            if current_wait().ending or (attempts is not None and attempt >= attempts) or clock() - start + wait_s > deadline_s:
                raise
            on_wait(error, attempt, wait_s)
            sleep(wait_s)
