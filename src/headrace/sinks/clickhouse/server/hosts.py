"""Which of a target's hosts this process talks to.

Invariant: a host is left only after it failed in a way that trying again may mend, and then the next one is tried at once; only when all
have failed in turn does anybody wait. The one that answered last is kept: coming back to another is what the next failure is for. Whatever
was written or not by then is the same to every host, because their tables are (`replicas`), so a write is simply made again elsewhere.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from headrace.sinks.clickhouse.server.url import ClickHouseTarget


@dataclass(slots=True)
class _HostState:
    """What one thread knows of a target's hosts."""

    index: int = 0
    """The one it was given last."""
    failed: set[int] = field(default_factory=set)
    """Those that failed since one answered."""


_current: dict[tuple[int, ClickHouseTarget], int] = {}
_lock = threading.Lock()
_visits = threading.local()


def choose_host(target: ClickHouseTarget) -> ClickHouseTarget:
    """The host to talk to now, as a target of its own; what this thread does next is taken to be done there."""
    if not target.others:
        return target
    visit = _host_state(target)
    with _lock:
        # A forked worker finds out for itself.
        visit.index = _current.setdefault((os.getpid(), target), 0)
    return target.at(visit.index)


def current_host(target: ClickHouseTarget) -> ClickHouseTarget:
    """The host that this thread talks to."""
    return target.at(_host_state(target).index) if target.others else target


def record_failure(target: ClickHouseTarget) -> bool:
    """This thread's host failed: another one is current. Whether it has yet to be tried; else all have failed, and it is time to wait."""
    if not target.others:
        return False
    visit, count = _host_state(target), len(target.hosts)
    visit.failed.add(visit.index)
    with _lock:
        current = _current.get((os.getpid(), target), 0)
        # Another thread may have moved on already; then its choice comes first.
        order = [current, *((visit.index + step) % count for step in range(1, count))]
        untried = next((one for one in order if one not in visit.failed), None)
        _current[os.getpid(), target] = (visit.index + 1) % count if untried is None else untried
    if untried is None:
        visit.failed.clear()
    return untried is not None


def record_success(target: ClickHouseTarget) -> None:
    """This thread's host answered."""
    if target.others:
        _host_state(target).failed.clear()


def _host_state(target: ClickHouseTarget) -> _HostState:
    known: dict[ClickHouseTarget, _HostState] | None = getattr(_visits, "known", None)
    if known is None:
        known = _visits.known = {}
    return known.setdefault(target, _HostState())
