"""Chooses the host that this process talks to.

Invariant: a host is left only after a transient failure, and the next host is tried at once; the caller waits only after all hosts failed.
The host that answered last stays current. All hosts share the same tables (see `maintenance.replicas`), so a write is simply repeated on
another host.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from headrace.sinks.clickhouse.server.url import ClickHouseTarget


@dataclass(slots=True)
class _HostState:
    """One thread's view of a target's hosts."""

    index: int = 0
    """The host it used last."""
    failed: set[int] = field(default_factory=set)
    """The hosts that failed since the last success."""


_current: dict[tuple[int, ClickHouseTarget], int] = {}
_lock = threading.Lock()
_visits = threading.local()


def choose_host(target: ClickHouseTarget) -> ClickHouseTarget:
    """Return the current host as a target; this thread's next operations count as done there."""
    if not target.others:
        return target
    visit = _host_state(target)
    with _lock:
        # A forked worker determines its own host.
        visit.index = _current.setdefault((os.getpid(), target), 0)
    return target.at(visit.index)


def current_host(target: ClickHouseTarget) -> ClickHouseTarget:
    """Return the host that this thread uses."""
    return target.at(_host_state(target).index) if target.others else target


def record_failure(target: ClickHouseTarget) -> bool:
    """Make another host current. Return whether one is left to try; else all have failed, and the caller should wait."""
    if not target.others:
        return False
    visit, count = _host_state(target), len(target.hosts)
    visit.failed.add(visit.index)
    with _lock:
        current = _current.get((os.getpid(), target), 0)
        # Another thread may have switched already; its choice comes first.
        order = [current, *((visit.index + step) % count for step in range(1, count))]
        untried = next((one for one in order if one not in visit.failed), None)
        _current[os.getpid(), target] = (visit.index + 1) % count if untried is None else untried
    if untried is None:
        visit.failed.clear()
    return untried is not None


def record_success(target: ClickHouseTarget) -> None:
    """Record that this thread's host answered."""
    if target.others:
        _host_state(target).failed.clear()


def _host_state(target: ClickHouseTarget) -> _HostState:
    known: dict[ClickHouseTarget, _HostState] | None = getattr(_visits, "known", None)
    if known is None:
        known = _visits.known = {}
    return known.setdefault(target, _HostState())
