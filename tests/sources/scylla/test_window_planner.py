"""Batches over the logs of many tables: due windows only, each stream in one task, generations drained, expired rows skipped or refused."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.base import Offset
from headrace.sources.scylla.generations import Groups, LogStart, expired, floor_us, grouped, oldest, shares, start_at
from headrace.sources.scylla.position import LogPosition, StreamPosition, start_us
from headrace.sources.scylla.snapshot.options import OnExpired, ScyllaOptions
from headrace.sources.scylla.window_planner import WindowPlanner, WindowSplit, read_feedback, write_feedback

S, DAY = 1_000_000, 86_400
ORDERS, ITEMS = TableName("shop", "orders"), TableName("shop", "items")
CHOICES = ScyllaOptions(confidence=30, window=3, again=0, batch_rows=1000)


@dataclass
class Cluster:
    """A fake cluster with a clock that the test sets."""

    time: int
    known: dict[TableName, list[int]]
    groups: Groups = ((b"a", b"b", b"c"), (b"d",), (b"e", b"f"))
    asked: list[tuple[TableName, int]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)

    def now(self) -> int:
        return self.time

    def generations(self, table: TableName) -> list[int]:
        return self.known[table]

    def streams(self, table: TableName, generation: int) -> Groups:
        self.asked.append((table, generation))
        assert generation in self.known[table]
        if generation in self.lost:
            raise DefiniteError(f"lost {generation}")
        return self.groups

    def close(self) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        self.time += int(seconds * S)


def planner(
    cluster: Cluster, starts: dict[TableName, LogStart] | None = None, choices: ScyllaOptions = CHOICES, pace: Path | None = None
) -> WindowPlanner:
    if starts is None:
        starts = {name: LogStart(oldest(known), 0, 0) for name, known in cluster.known.items()}
    return WindowPlanner(cluster, starts, choices, 2, pace, cluster.sleep)


def times(offset: Offset) -> dict[TableName, tuple[int, int]]:
    return {name: (place.since, place.time) for name, place in LogPosition.from_json(offset).places.items()}


def test_a_batch_holds_a_window_of_each_table_that_is_due() -> None:
    cluster = Cluster(1000 * S, {ORDERS: [900_000], ITEMS: [100_000]})
    plan = planner(cluster)
    first = plan.plan(plan.initial())
    assert times(first) == {ORDERS: (900 * S - 1, 960 * S - 1), ITEMS: (100 * S - 1, 160 * S - 1)}
    second = plan.plan(first)
    assert times(second)[ORDERS] == (960 * S - 1, 970 * S), "not beyond the confidence time"
    cluster.time += S
    third = plan.plan(second)
    assert times(third)[ORDERS] == (960 * S - 1, 970 * S), "a window of three seconds is not full yet"
    assert times(third)[ITEMS] == (220 * S - 1, 280 * S - 1)
    [one, other] = plan.splits(second, third)
    assert one.windows == other.windows == (("shop", "items", 100_000, 220 * S - 1, 280 * S - 1, 0),)
    assert [(split.share, split.of) for split in (one, other)] == [(0, 2), (1, 2)]
    # A restarted planner plans the same batch from its two ends.
    assert planner(cluster).splits(second, third) == [one, other]


def test_the_position_stays_while_no_window_is_due() -> None:
    cluster = Cluster(1000 * S, {ORDERS: [960_000]})
    plan = planner(cluster)
    reached = plan.plan(plan.initial())
    assert times(reached) == {ORDERS: (960 * S - 1, 970 * S)}
    assert plan.plan(reached) == reached
    assert plan.splits(reached, reached) == [WindowSplit((), 0, 1)]


def test_a_generation_is_drained_before_the_next_one() -> None:
    cluster = Cluster(1000 * S, {ORDERS: [900_000]})
    plan = planner(cluster)
    reached = plan.plan(plan.plan(plan.initial()))
    assert times(reached)[ORDERS][1] == 970 * S
    # A generation is announced before it operates; the end of the old one is read after the confidence time.
    cluster.known[ORDERS] = [900_000, 1_010_000]
    cluster.time = 1020 * S
    reached = plan.plan(reached)
    assert times(reached)[ORDERS] == (970 * S, 990 * S)
    cluster.time = 1041 * S
    places = []
    for _ in range(2):
        reached = plan.plan(reached)
        places.append(LogPosition.from_json(reached).places[ORDERS])
    assert places[0] == StreamPosition(900_000, 1010 * S - 1, 990 * S)
    cluster.time = 1060 * S
    assert LogPosition.from_json(plan.plan(reached)).places[ORDERS] == StreamPosition(1_010_000, 1030 * S, 1010 * S - 1)
    assert cluster.asked == [(ORDERS, 900_000), (ORDERS, 1_010_000)], "a generation's streams are queried once"


def test_a_cold_start_over_an_old_generation_needs_few_queries(tmp_path: Path) -> None:
    year = 365 * DAY
    groups = tuple(tuple(bytes([vnode, shard]) for shard in range(8)) for vnode in range(200))
    cluster = Cluster(year * S, {ORDERS: [1000]}, groups)
    plan = planner(cluster, pace=tmp_path / "pace.json")
    reached, queries, batches = plan.initial(), 0, 0
    while (end := plan.plan(reached)) != reached and times(end)[ORDERS][1] < (year - 40) * S:
        splits = plan.splits(reached, end)
        queries += sum(len(shares(groups, split.share, split.of, CHOICES.streams_per_query)) for split in splits)
        batches, reached = batches + 1, end
        write_feedback(tmp_path / "pace.json", LogPosition.from_json(end), {str(ORDERS): 0})
    assert batches <= 13
    assert queries == batches * 200 < 3000, "windows of 30 s would have taken 1600 streams times a million windows"


def test_windows_follow_what_they_hold(tmp_path: Path) -> None:
    pace = tmp_path / "pace.json"
    cluster = Cluster(100_000 * S, {ORDERS: [1000]})
    plan = planner(cluster, pace=pace)
    lengths, reached = [], plan.initial()
    for rows in (0, 500, 4000, 1000):
        reached = plan.plan(reached)
        since, until = times(reached)[ORDERS]
        lengths.append((until - since) // S)
        write_feedback(pace, LogPosition.from_json(reached), {str(ORDERS): rows})
    reached = plan.plan(reached)
    lengths.append((times(reached)[ORDERS][1] - times(reached)[ORDERS][0]) // S)
    assert lengths == [60, 240, 480, 120, 120]
    pace.write_text("{")
    assert read_feedback(pace) == {}
    assert plan.plan(reached) != reached, "a damaged file changes nothing"


def test_many_streams_make_windows_longer() -> None:
    groups = tuple((vnode.to_bytes(2, "big"),) for vnode in range(5000))
    cluster = Cluster(1000 * S, {ORDERS: [960_000]}, groups)
    plan = planner(cluster, choices=replace(CHOICES, queries_per_second=400))
    assert plan.plan(plan.initial()) == plan.initial(), "5000 queries at 400 a second take 12.5 s"
    cluster.time = 1003 * S
    assert times(plan.plan(plan.initial()))[ORDERS] == (960 * S - 1, 973 * S)


def test_reading_from_the_beginning_reads_what_is_older_than_the_ttl(caplog: pytest.LogCaptureFixture) -> None:
    """A row that is written with a timestamp in the past is in the log for as long as any other."""
    generations = [start * 1000 for start in (10 * DAY, 17 * DAY, 19 * DAY)]
    now = 20 * DAY * S
    assert oldest(generations) == StreamPosition(10 * DAY * 1000, 10 * DAY * S - 1)
    assert [line.split(":")[0] for line in expired(generations, 0, floor_us(DAY, now))] == [
        "generation 1970-01-11 00",
        "generation 1970-01-18 00",
        "generation 1970-01-20 00",
    ]
    # Begun long ago, and never read: expired rows are skipped, existing ones are read.
    cluster = Cluster(now, {ORDERS: generations})
    start = LogStart(start_at(generations, 12 * DAY * S), DAY, now)
    plan = planner(cluster, {ORDERS: start})
    with caplog.at_level(logging.WARNING):
        reached = plan.plan(plan.initial())
    assert times(reached)[ORDERS] == (12 * DAY * S, (12 * DAY + 60) * S)
    assert not caplog.records
    # Generations with unknown streams cannot be read; a warning names each once.
    cluster.lost = set(generations[:2])
    with caplog.at_level(logging.WARNING):
        reached = planner(cluster, {ORDERS: start}).plan(plan.initial())
    assert times(reached)[ORDERS] == (19 * DAY * S - 1, (19 * DAY + 60) * S - 1)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [f"lost {one}" for one in generations[:2]]


def test_a_pipe_that_was_stopped_for_too_long_halts_unless_configured_otherwise() -> None:
    cluster = Cluster(20 * DAY * S, {ORDERS: [1000]})
    start = LogStart(StreamPosition(1000, 3 * DAY * S), DAY, 3 * DAY * S)
    reached = LogPosition({ORDERS: StreamPosition(1000, 18 * DAY * S, 17 * DAY * S)}).to_json()
    with pytest.raises(DefiniteError, match=r"read up to 1970-01-19 00:00:00.000Z.*keeps its rows for 86400 s") as raised:
        planner(cluster, {ORDERS: start}).plan(reached)
    assert "scylla.expired=skip" in raised.value.hint
    going = planner(cluster, {ORDERS: start}, replace(CHOICES, expired=OnExpired.SKIP)).plan(reached)
    assert times(going)[ORDERS][0] == 18 * DAY * S, "rows that were written later with timestamps of that time are read"


def test_tables_come_and_go_between_runs() -> None:
    cluster = Cluster(1000 * S, {ORDERS: [900_000], ITEMS: [900_000]})
    both = planner(cluster)
    only = planner(cluster, {ORDERS: both.starts[ORDERS]})
    reached = only.plan(only.initial())
    added = both.plan(reached)
    assert times(added)[ITEMS] == (900 * S - 1, 960 * S - 1)
    assert set(times(only.plan(added))) == {ORDERS}
    # A batch that failed before a table was excluded continues with the others.
    assert {window[1] for split in both.splits(reached, added) for window in split.windows} == {"orders", "items"}
    assert {window[1] for split in only.splits(reached, added) for window in split.windows} == {"orders"}


def test_every_stream_is_in_one_share() -> None:
    streams = [bytes([number]) for number in range(23)]
    groups = grouped(streams, 4)
    for of in (1, 2, 3, 7):
        found = [stream for share in range(of) for query in shares(groups, share, of, 3) for stream in query]
        assert sorted(found) == streams
        assert all(len(query) <= 3 for share in range(of) for query in shares(groups, share, of, 3))
    assert start_at([1000, 5000], 0) == StreamPosition(1000, start_us(1000) - 1)


def test_the_log_is_read_again_for_late_rows(tmp_path: Path) -> None:
    cluster = Cluster(10_000 * S, {ORDERS: [1000, 9_500_000]})
    choices = replace(CHOICES, again=300, look_back=300, audit=0)
    plan = planner(cluster, {ORDERS: LogStart(start_at([1000, 9_500_000], 9000 * S), DAY, 0)}, choices, tmp_path / "pace.json")
    reached, first, second = plan.initial(), [], []
    while not first or first[-1][2] < 11_000 * S:
        end = plan.plan(reached)
        for name, generation, after, until, again in (window[1:] for window in plan.splits(reached, end)[0].windows):
            assert name == "orders"
            (second if again else first).append((generation, after, until))
            assert until <= cluster.time - (330 if again else 30) * S
            assert not again or until <= first[-1][2]
        reached = end
    # Both reads cover everything, generation by generation. The second begins before the first, for late rows, and is less
    # frequent.
    for windows, begin in ((first, 9000 * S), (second, 8700 * S)):
        assert windows[0][1] == begin
        assert all(one[2] == other[1] for one, other in pairwise(windows))
    assert {generation for generation, _, _ in first} == {1000, 9_500_000}
    assert second[-1][2] > 10_600 * S
    assert len(second) < len(first) / 3
    assert LogPosition.from_json(LogPosition.from_json(reached).to_json()) == LogPosition.from_json(reached)
    assert not LogPosition.from_json(planner(cluster).plan(reached)).rereads, "switched off, its position is dropped"


def reads(
    plan: WindowPlanner, cluster: Cluster, until: int, reached: Offset | None = None
) -> tuple[Offset, dict[int, list[tuple[int, int, int]]]]:
    """Plan up to a time; return the end, and for each read the time and the range of its windows."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    position = reached or plan.initial()
    while cluster.time < until:
        end = plan.plan(position)
        for window in plan.splits(position, end)[0].windows:
            found.setdefault(window[-1], []).append((cluster.time, window[3], window[4]))
        position = end
    return position, found


def test_the_look_back_window_is_read_again_at_growing_ages() -> None:
    cluster = Cluster(100_000 * S, {ORDERS: [1000]})
    choices = replace(CHOICES, again=60, look_back=600, audit=0)
    assert [age // S for age in choices.reread_ages_us(DAY)] == [60, 240, 600]
    assert [age // S for age in replace(choices, look_back=30).reread_ages_us(DAY)] == [30]
    assert (
        choices.reread_ages_us(0)
        == replace(choices, again=0).reread_ages_us(DAY)
        == replace(choices, look_back=0).reread_ages_us(DAY)
        == ()
    )
    start = LogStart(start_at([1000], 99_970 * S), DAY, 0)
    reached, found = reads(planner(cluster, {ORDERS: start}, choices), cluster, 102_000 * S)
    assert sorted(found) == [0, 1, 2, 3]
    for read_number, age in enumerate((0, 60, 240, 600)):
        assert all(one[2] == other[1] for one, other in pairwise(found[read_number])), "no gap"
        assert all(at - until >= (30 + age) * S for at, _, until in found[read_number])
        assert found[read_number][-1][2] > (102_000 - 30 - age - 40) * S
        assert not read_number or len(found[read_number]) < len(found[0]) / 3, "further reads query less often"
    assert found[0][0][1] == 99_970 * S
    assert found[1][0][1] == 99_370 * S, "rows may arrive with timestamps from before the beginning"
    # Offsets of release 0.9 hold only the first read.
    assert LogPosition.from_json({"shop.orders again": [1, 2, 3]}).rereads == {(ORDERS, 1): StreamPosition(1, 2, 3)}
    assert LogPosition.from_json(reached).to_json() == reached


def test_audits_cover_the_whole_log_at_intervals(tmp_path: Path) -> None:
    cluster = Cluster(1000 * S, {ORDERS: [100_000, 900_000]})
    choices = replace(CHOICES, again=60, look_back=60, audit=1000)
    start = LogStart(oldest([100_000, 900_000]), DAY, 0)
    plan = planner(cluster, {ORDERS: start}, choices, tmp_path / "pace.json")
    reached, found = reads(plan, cluster, 2000 * S)
    assert -1 not in found, "all of it was just read"
    reached, found = reads(planner(cluster, {ORDERS: start}, choices), cluster, 2500 * S, reached)
    audit = found[-1]
    assert audit[0][0] < 2020 * S, "a restart does not delay it"
    assert audit[0][1] == 100 * S - 1
    assert all(one[2] == other[1] for one, other in pairwise(audit))
    assert audit[-1][2] > audit[-1][0] - (90 + 60) * S, "up to what is still to be read again"
    assert audit[-1][0] < 2400 * S
    reached, found = reads(planner(cluster, {ORDERS: start}, choices), cluster, 2900 * S, reached)
    assert -1 not in found
    _, found = reads(planner(cluster, {ORDERS: start}, choices), cluster, 3600 * S, reached)
    assert found[-1][0][1] == 100 * S - 1, "the next one begins at the beginning"


def test_an_audit_ends_also_where_batches_take_longer_than_its_windows() -> None:
    cluster = Cluster(1000 * S, {ORDERS: [100_000]})
    choices = replace(CHOICES, again=60, look_back=60, audit=100)
    plan = planner(cluster, {ORDERS: LogStart(oldest([100_000]), DAY, 0)}, choices)
    reached, begun = plan.initial(), []
    while cluster.time < 4000 * S:
        end = plan.plan(reached)
        begun += [window[3] for window in plan.splits(reached, end)[0].windows if window[-1] == -1 and window[3] < 100 * S]
        reached = end
        cluster.time += 40 * S
    assert len(begun) > 3, "audits follow one another"
