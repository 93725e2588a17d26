"""When a log row counts as unseen: by the time of its write and the time of the read, also across restarts and catch-up."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from headrace.cql import timeuuid
from headrace.cql.log import STREAM, TIME
from headrace.sources.scylla.position import StreamPosition
from headrace.sources.scylla.read_times import ReadTimeRecord, ReadTimes, batch_ids

S = 1_000_000
AGES = (30 * S, 330 * S, 3630 * S)
DAY = 86_400


def rows_at(times: list[int]) -> pa.RecordBatch:
    ids = [timeuuid.make(at, 1 << 63 | number).bytes for number, at in enumerate(times)]
    return pa.RecordBatch.from_pydict(
        {STREAM: [bytes(16)] * len(times), TIME: ids}, schema=pa.schema({STREAM: pa.binary(), TIME: pa.binary()})
    )


def unseen(read_times: ReadTimes, read_number: int, times: list[int], written: list[int | None]) -> list[bool]:
    found = read_times.unseen(read_number, rows_at(times), np.array(times, np.int64), pa.array(written, pa.int64()))
    return [bool(one) for one in found]


def test_a_row_is_unseen_if_it_was_written_after_the_read_of_its_moment() -> None:
    read_times = ReadTimes(AGES)
    at = 10_000
    written = [at + 1, at + 27, at + 29, at + 100, None]
    assert unseen(read_times, 0, [at * S] * 5, written) == [False, False, True, True, False]
    assert unseen(read_times, 1, [at * S] * 3, [at + 100, at + 327, at + 329]) == [False, False, True]


def test_what_was_written_before_the_beginning_is_known_without_the_log() -> None:
    read_times = ReadTimes(AGES, 20_000 * S)
    # The first read has not covered times before the start: later rows with such times are unseen.
    assert unseen(read_times, 0, [19_990 * S] * 3, [19_995, 20_003, 30_000]) == [False, True, True]
    # Further reads begin one look-back window earlier; no read covers older times.
    assert unseen(read_times, 2, [17_000 * S] * 3, [20_000, 20_500, 20_700]) == [False, False, True]
    assert unseen(read_times, 2, [16_000 * S] * 3, [19_997, 20_003, 20_700]) == [False, True, True]


def test_reads_that_are_late_after_a_restart_have_seen_what_was_written_meanwhile() -> None:
    record = ReadTimeRecord()
    begin, stopped = StreamPosition(1, 1000 * S), StreamPosition(1, 9970 * S, 9960 * S)
    further = [StreamPosition(1, 9670 * S, 9600 * S), StreamPosition(1, 6370 * S, 6300 * S)]
    assert not record.record_reads(AGES, [begin] * 3, [begin] * 3, 10_000 * S)
    # Stopped for 5000 s; then the first read continues, and the others follow.
    assert record.record_reads(AGES, [stopped, *further], [StreamPosition(1, 14_970 * S, 9970 * S), *further], 15_000 * S) is False, (
        "it is punctual at its end"
    )
    assert record.record_reads(AGES, [stopped, *further], [StreamPosition(1, 12_000 * S, 9970 * S), *further], 15_000 * S)
    read_times = record.to_read_times(AGES, begin.time)
    assert unseen(read_times, 0, [11_000 * S] * 2, [14_900, 15_010]) == [False, True]
    assert unseen(read_times, 0, [9_970 * S] * 2, [9_990, 14_900]) == [False, True], "read before the pipe stopped"
    # A further read that jumps with the first one is recorded even if it is on time.
    assert record.record_reads(
        AGES, [stopped, *further], [StreamPosition(1, 14_668 * S, 9970 * S), StreamPosition(1, 14_668 * S), further[1]], 15_000 * S
    )
    assert unseen(record.to_read_times(AGES, begin.time), 1, [11_000 * S] * 2, [14_900, 15_010]) == [False, True]
    assert ReadTimeRecord.from_json(record.to_json()) == record


def test_rows_that_a_read_has_delivered_are_not_delivered_by_the_next_one() -> None:
    record = ReadTimeRecord()
    record.to_read_times(AGES, 0)
    times = [10_000 * S, 10_000 * S]
    place, _ = batch_ids(rows_at(times))
    read = [StreamPosition(1, 10_000 * S, 9000 * S), StreamPosition(1, 8000 * S, 7000 * S), StreamPosition(1, 8000 * S)]
    record.remember(0, {place.hex(): 10_030}, read, read)
    assert unseen(record.to_read_times(AGES, 0), 0, times, [10_030, 10_030]) == [False, True]
    assert unseen(record.to_read_times(AGES, 0), 1, times, [10_400, 10_400]) == [True, True]
    assert ReadTimeRecord.from_json(record.to_json()) == record
    record.drop_expired(DAY, (10_031 + DAY) * S)
    assert unseen(record.to_read_times(AGES, 0), 0, times, [10_030, 10_030]) == [True, True]


@pytest.mark.parametrize("jumped", [0, 1, 2])
def test_reads_that_jump_along_with_another_have_seen_its_rows(jumped: int) -> None:
    """Rows with old timestamps are read a second after they were written: the first read delivers them, later reads jump to its end."""
    record, now, times = ReadTimeRecord(), 200_000, [1000 * S]
    before = [StreamPosition(1, 500 * S)] * 3
    after = [StreamPosition(1, 2000 * S, 500 * S), *[StreamPosition(1, 2000 * S)] * jumped, *[StreamPosition(1, 500 * S)] * (2 - jumped)]
    record.record_reads(AGES, before, after, now * S)
    read_times = record.to_read_times(AGES, -1)
    borderline = read_times.borderline(0, rows_at(times), np.array(times, np.int64), pa.array([now - 1], pa.int64()))
    assert list(borderline.values()) == [now - 1]
    record.remember(0, borderline, before, after)
    found = [unseen(record.to_read_times(AGES, -1), read_number, times, [now - 1]) for read_number in range(3)]
    assert found == [[False]] * (1 + jumped) + [[True]] * (2 - jumped), "the other reads have not seen them yet"


def test_a_repeated_snapshot_holds_all_earlier_changes() -> None:
    record = ReadTimeRecord()
    record.to_read_times(AGES, 0)
    times = [5000 * S, 20_000 * S]
    found, _ = batch_ids(rows_at(times))
    record.reset(50_000 * S, {found: 49_999})
    for read_number in range(3):
        # Both may have been written after the snapshot began: an audit found one of them before.
        assert unseen(record.to_read_times(AGES, 10_000 * S), read_number, times, [49_999, 49_999]) == [False, True]
    record.reset(50_000 * S, {})
    for read_number in range(3):
        assert unseen(
            record.to_read_times(AGES, 10_000 * S), read_number, [5000 * S, 20_000 * S] * 2, [49_000, 49_000, 50_001, 50_001]
        ) == [
            False,
            False,
            True,
            True,
        ]


def test_another_number_of_reads_is_chosen_at_a_restart() -> None:
    record = ReadTimeRecord()
    record.record_reads(AGES[:2], [StreamPosition(1, 0)] * 2, [StreamPosition(1, 10 * S, 0)] * 2, 90_000 * S)
    assert unseen(record.to_read_times(AGES, -1), 2, [5 * S] * 2, [89_000, 90_001]) == [False, True]
    assert record.to_read_times(AGES[:1], -1).last == 0


@pytest.mark.parametrize("seed", range(8))
def test_no_row_is_lost_or_repeated_by_any_action_of_a_pipe(seed: int) -> None:
    """A pipe runs, stops and catches up at random, and rows arrive at random: each is delivered once, or counted by an audit."""
    draw = random.Random(seed)
    ages = (5 * S, 35 * S, 125 * S)
    rows = sorted(
        (at + draw.choice((0, 0, 3, 5, 6, 20, 36, 60, 130, 500)) * S + draw.randrange(S), at)
        for at in (draw.randrange(1, 2000) * S for _ in range(600))
    )
    record, reached, delivered = ReadTimeRecord(), [StreamPosition(1, 0)] * 3, []
    now = 0
    while now < 2600 * S:
        now += draw.choice((2, 2, 2, 2, 3, 40 if draw.random() < 0.3 else 2, 300 if draw.random() < 0.05 else 2)) * S
        places = list(reached)
        for read_number, age in enumerate(ages):
            limit = now - age if not read_number else min(now - age, reached[read_number - 1].time)
            if read_number and reached[read_number].time >= reached[read_number - 1].time and places[read_number - 1].time <= now - age:
                places[read_number] = StreamPosition(1, places[read_number - 1].time)
            elif limit - reached[read_number].time > (2 if not read_number else 10) * S:
                places[read_number] = StreamPosition(
                    1, min(limit, reached[read_number].time + draw.choice((60, 240)) * S), reached[read_number].time
                )
        record.record_reads(ages, reached, places, now)
        read_times = record.to_read_times(ages, -1)
        for read_number, (old, new) in enumerate(zip(reached, places, strict=True)):
            here = [(w, at) for w, at in rows if old.time < at <= new.time and w <= now] if new.since >= 0 and new != old else []
            times, written = [at for _, at in here], [w // S + draw.choice((-1, 0, 1)) for w, _ in here]
            taken = [True] * len(here) if not read_number else unseen_rows(read_times, read_number - 1, here, written)
            delivered += [one for one, is_taken in zip(here, taken, strict=True) if is_taken]
            borderline = read_times.borderline(read_number, batch_of(here), np.array(times, np.int64), pa.array(written, pa.int64()))
            record.remember(read_number, borderline, reached, places)
        reached = places
    assert len(delivered) == len(set(delivered)), "none comes twice"
    read_times = record.to_read_times(ages, -1)
    missing = [one for one in rows if one not in set(delivered) and one[1] <= reached[2].time]
    counted = unseen_rows(read_times, 2, rows, [w // S for w, _ in rows])
    reported = [one for one, is_counted in zip(rows, counted, strict=True) if is_counted and one[1] <= reached[2].time]
    assert sorted(missing) == sorted(reported), "exactly the undelivered rows are counted"


def identity(row: tuple[int, int]) -> bytes:
    return bytes(16) + timeuuid.make(row[1], 1 << 63 | row[0] % (1 << 40)).bytes


def batch_of(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    ids = [identity(row)[16:] for row in rows]
    return pa.RecordBatch.from_pydict(
        {STREAM: [bytes(16)] * len(rows), TIME: ids}, schema=pa.schema({STREAM: pa.binary(), TIME: pa.binary()})
    )


def unseen_rows(read_times: ReadTimes, read_number: int, rows: list[tuple[int, int]], written: list[int]) -> list[bool]:
    found = read_times.unseen(read_number, batch_of(rows), np.array([at for _, at in rows], np.int64), pa.array(written, pa.int64()))
    return [bool(one) for one in found]
