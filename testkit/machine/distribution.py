"""How a test run is spread over processes (pytest-xdist): `make test` uses several, because most tests wait more than they compute.

What shares a server shares a process: the tests of one file on one flavour stay together and in order, so fixtures of a module are made
as often as without spreading. Every process has session servers of its own. Nothing is shared between processes but the cache directory,
which is locked.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from testkit.servers.servers import FLAVOURS

ENOUGH_PENDING = 2
"""A process begins a test only when it knows the next one."""


class Spreading(LoadScopeScheduling):
    """Hands out the groups in the order in which they were collected, each when a process has nothing else to go on with."""

    def schedule(self) -> None:
        # Its own order would be by the number of tests, and leave the long ones for the end.
        self.config.option.loadscopereorder = False
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < ENOUGH_PENDING:
            super()._reschedule(node)


def group_of(nodeid: str) -> str:
    """The tests of a file that run on one flavour, or on none."""
    return " ".join(word for word in (nodeid.partition("::")[0], flavour_of(nodeid)) if word)


def flavour_of(nodeid: str) -> str:
    """The flavour that a test runs on; empty if it runs on none."""
    words = nodeid.partition("::")[2].partition("[")[2].rstrip("]").split("-")
    return next((word for word in words if word in FLAVOURS), "")


def longest_first(items: list[pytest.Item]) -> None:
    """Put the files first whose tests are given more time than others, so that no process is left alone with one at the end."""
    allowed: dict[str, float] = {}
    for item in items:
        group = group_of(item.nodeid)
        allowed[group] = max(allowed.get(group, 0.0), _allowed_s(item))
    items.sort(key=lambda item: -allowed[group_of(item.nodeid)])


def _allowed_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0] if mark is not None else item.config.getini("timeout"))
