"""How a test run is spread over processes (pytest-xdist): `make test` uses several, because most tests wait more than they compute.

The tests of one file on one flavour run in one process and in order, so fixtures of a module are made as often as in a single process.
Every process has its own session servers. Processes share only the cache directory, which is locked.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from testkit.machine.durations import DURATIONS
from testkit.servers.servers import FLAVOURS

EXPECTED: Final = Path(__file__).with_name("expected_seconds.json")
"""The seconds of the longest groups, by a former run; `python -m testkit.machine.distribution` writes it from the last one."""
LONG_S: Final = 15.0
ENOUGH_PENDING = 2
"""A process begins a test only when it knows the next one."""


class Spreading(LoadScopeScheduling):
    """Assigns the groups in the order of collection, each to a process that has no pending test."""

    def schedule(self) -> None:
        # The scheduler's own order is by the number of tests, and would leave the long ones for the end.
        self.config.option.loadscopereorder = False
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < ENOUGH_PENDING:
            super()._reschedule(node)


def group_of(nodeid: str) -> str:
    """Return the group of a test: its file and its flavour."""
    return " ".join(word for word in (nodeid.partition("::")[0], flavour_of(nodeid)) if word)


def flavour_of(nodeid: str) -> str:
    """Return the flavour that a test runs on; empty if it runs on none."""
    words = nodeid.partition("::")[2].partition("[")[2].rstrip("]").split("-")
    return next((word for word in words if word in FLAVOURS), "")


def longest_first(items: list[pytest.Item], expected: Mapping[str, float]) -> None:
    """Put the longest groups first, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: -expected.get(group_of(item.nodeid), 0.0))


def expected_seconds() -> dict[str, float]:
    """Return the seconds of the longest groups."""
    found: dict[str, float] = json.loads(EXPECTED.read_text())
    return found


def long_groups(durations: Mapping[str, float]) -> dict[str, float]:
    """Return the groups that take long, the longest first, from the seconds of tests."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for nodeid, duration in durations.items():
        seconds[group_of(nodeid)] += duration
    ordered = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return {group: round(duration) for group, duration in ordered if duration >= LONG_S}


if __name__ == "__main__":
    EXPECTED.write_text(json.dumps(long_groups(json.loads(DURATIONS.read_text())), indent=0) + "\n")
