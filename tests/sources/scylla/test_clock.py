"""The servers' clock is set forward and back by an hour: every row of the log is read after it was written.

Times in the log are the servers'. After a clock is set back, rows arrive with times that the first read has passed: the look-back window
covers an hour.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headrace.model.schema import TableName
from headrace.sources.scylla.generations import Groups, LogStart, start_at
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.window_planner import WindowPlanner

S, DAY, HOUR_S = 1_000_000, 86_400, 3600
ORDERS = TableName("shop", "orders")
GENERATION_MS = 1000


@dataclass
class SetCluster:
    """A cluster whose clock is ahead of the true time by `ahead_s`. A row is written after each wait."""

    true_s: float
    ahead_s: int = 0

    def __post_init__(self) -> None:
        self.rows: list[tuple[float, int]] = []
        """When each row was written, truly and by the servers' clock (microseconds)."""

    def now(self) -> int:
        return int((self.true_s + self.ahead_s) * S)

    def generations(self, table: TableName) -> list[int]:
        assert table == ORDERS
        return [GENERATION_MS]

    def streams(self, table: TableName, generation: int) -> Groups:
        assert (table, generation) == (ORDERS, GENERATION_MS)
        return ((b"a",),)

    def close(self) -> None:
        pass

    def wait(self, seconds: float) -> None:
        self.true_s += seconds
        self.rows.append((self.true_s, self.now()))


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_every_row_is_read_after_it_was_written(ahead_s: int) -> None:
    begin_s = 100_000
    cluster = SetCluster(begin_s)
    place = start_at([GENERATION_MS], begin_s * S)
    planner = WindowPlanner(cluster, {ORDERS: LogStart(place, DAY, 0)}, ScyllaOptions(), 1, None, cluster.wait)
    position, windows = planner.initial(), []
    for until_s, ahead in ((1000, 0), (2000, ahead_s), (3000, 0), (3000 + 5400, 0)):
        cluster.ahead_s = ahead
        while cluster.true_s < begin_s + until_s:
            planned_s = cluster.true_s
            end = planner.plan(position)
            windows += [(cluster.true_s, one.after, one.until) for one in planner.splits(position, end)[0].windows]
            # Time also passes between batches without a pause.
            if cluster.true_s < planned_s + 5:
                cluster.wait(5)
            position = end
    rows = [row for row in cluster.rows if row[0] < begin_s + 3000]
    unread = [row for row in rows if not any(at >= row[0] and after < row[1] <= until for at, after, until in windows)]
    assert len(rows) > 500
    assert unread == []
