"""Every runtime runs splits and streams the same way: threads of this process, and Spark."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import testkit
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.runtime.checkpoint import committed_offset, planned_offset
from headrace.runtime.interface import BatchStream, Runtime, RuntimeSession
from headrace.runtime.reports import Report, SplitDone, TableWrites, written_tables
from headrace.runtime.tasks import SplitGroup, Task
from headrace.sources.base import Split
from headrace.spark.spark_runtime import SparkRuntime
from testkit.pipelines.local_runtime import LocalRuntime
from testkit.pipelines.runtime_cases import LineSink, NumberReader, NumberSource, NumberSplit, retry_twice

WITHIN_S = 120.0
RUNTIMES: dict[str, Callable[[], Runtime]] = {"local": LocalRuntime, "spark": SparkRuntime}


@pytest.fixture(scope="module", params=sorted(RUNTIMES))
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeSession]:
    with pytest.MonkeyPatch.context() as patch:
        # Workers import the tasks of this test.
        root = str(Path(testkit.__file__).parents[1])
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))
        runtime = RUNTIMES[request.param]()
        directory = tmp_path_factory.mktemp(request.param)
        with runtime.session("local[2]", directory, spark_log=False, preload=(), more=None) as made:
            yield made


@pytest.fixture
def sink(tmp_path: Path) -> LineSink:
    return LineSink(tmp_path / "lines")


def rows(*numbers: int) -> list[NumberSplit]:
    return [NumberSplit(number) for number in numbers]


def number_of(split: Split) -> int:
    assert isinstance(split, NumberSplit)
    return split.number


def run_splits(session: RuntimeSession, task: Task, splits: Sequence[Split], parallelism: int = 2) -> dict[int, SplitDone]:
    done: dict[int, SplitDone] = {}
    session.run_splits(task, splits, parallelism, lambda split, report: done.update({number_of(split): report}))
    return done


def test_a_session_reports_where_its_tasks_run(session: RuntimeSession) -> None:
    assert session.task_slots == 2
    assert session.is_local
    assert not session.always_fetches_segments
    assert session.plan_wait_s > 0


def test_each_split_has_its_own_report(session: RuntimeSession, sink: LineSink) -> None:
    done = run_splits(session, Task(NumberReader(), sink, retry_twice), rows(1, 2, 3))
    assert sorted(sink.numbers) == [1, 2, 3]
    assert sink.closed == 3
    assert sorted(done) == [1, 2, 3]
    for number, report in done.items():
        assert report == SplitDone({"number": number}, (TableWrites(f"table{number % 2}", 1, 8, 0),))


def test_a_group_runs_its_splits_in_order_in_one_task(session: RuntimeSession, sink: LineSink) -> None:
    done: list[int] = []
    group = SplitGroup(Task(NumberReader(), sink, retry_twice), rows(5, 3, 4))
    session.run_groups([group], 2, lambda split, report: done.append(number_of(split)) if len(report.written) == 1 else None)
    assert sink.numbers == [5, 3, 4] == done


def test_results_are_reported_in_the_calling_thread(session: RuntimeSession, sink: LineSink) -> None:
    threads = set()
    session.run_splits(
        Task(NumberReader(), sink, retry_twice), rows(1, 2), 2, lambda *_: threads.add(threading.current_thread()), lambda: None
    )
    assert threads == {threading.current_thread()}


def test_a_definite_error_comes_back_whole(session: RuntimeSession, sink: LineSink) -> None:
    with pytest.raises(DefiniteError) as caught:
        run_splits(session, Task(NumberReader({2: "definite"}), sink, retry_twice), rows(2))
    error = caught.value
    assert (error.message, error.place, error.hint, error.event) == ("number 2 is bad", "split 2", "leave it out", "event 2")
    assert sink.numbers == []
    assert sink.closed == 1


def test_a_transient_error_comes_back_as_one(session: RuntimeSession, sink: LineSink) -> None:
    with pytest.raises(TransientError, match="number 1 is away"):
        run_splits(session, Task(NumberReader({1: "transient"}), sink, retry_twice), rows(1))


def test_a_failed_split_leaves_the_session_usable(session: RuntimeSession, sink: LineSink) -> None:
    with pytest.raises(HeadraceError):
        run_splits(session, Task(NumberReader({1: "definite"}), sink, retry_twice), rows(1, 2), 1)
    assert sorted(run_splits(session, Task(NumberReader(), sink, retry_twice), rows(7))) == [7]


def test_a_write_is_retried_while_the_sink_is_away(session: RuntimeSession, tmp_path: Path) -> None:
    sink = LineSink(tmp_path / "lines", failures=2)
    done = run_splits(session, Task(NumberReader(), sink, retry_twice), rows(1), 1)
    assert sink.numbers == [1]
    assert [one.changes for one in done[1].written] == [1]


def test_a_write_that_fails_too_often_fails_the_split(session: RuntimeSession, tmp_path: Path) -> None:
    sink = LineSink(tmp_path / "lines", failures=3)
    with pytest.raises(TransientError, match="the sink is away"):
        run_splits(session, Task(NumberReader(), sink, retry_twice), rows(1), 1)
    assert sink.numbers == []


def test_what_is_raised_meanwhile_ends_the_splits(session: RuntimeSession, sink: LineSink) -> None:
    class Ended(Exception):
        pass

    def end() -> None:
        raise Ended

    with pytest.raises(Ended):
        session.run_splits(Task(NumberReader(), sink, retry_twice), rows(*range(40)), 1, lambda *_: None, end)
    assert len(sink.numbers) < 40


@dataclass(frozen=True, slots=True)
class OtherSplit(NumberSplit):
    """A split that the reader does not know."""

    split_kind: ClassVar[str] = "other"


def test_a_split_of_an_unknown_kind_is_an_error(session: RuntimeSession, sink: LineSink) -> None:
    with pytest.raises(DefiniteError, match="cannot run a split of kind 'other'"):
        session.run_splits(Task(NumberReader(), sink, retry_twice), [OtherSplit(1)], 1, lambda *_: None)
    assert sink.numbers == []


def await_end(stream: BatchStream, ended: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not ended() and not stream.wait(0.1):
        assert time.monotonic() < deadline


def test_batches_come_in_order_and_count_after_they_were_processed(session: RuntimeSession, sink: LineSink, tmp_path: Path) -> None:
    source, checkpoint = NumberSource(5, tmp_path / "calls"), tmp_path / "checkpoint"
    batches: list[tuple[int, list[int]]] = []
    committed: list[object] = []

    def run(run_task: Callable[[Task], list[Report]], number: int) -> None:
        committed.append(committed_offset(checkpoint))
        before = len(sink.numbers)
        run_task(Task(NumberReader(), sink, retry_twice))
        batches.append((number, sorted(sink.numbers[before:])))

    stream = session.stream_splits(source, checkpoint, run)
    try:
        await_end(stream, lambda: committed_offset(checkpoint) == {"at": 5})
    finally:
        stream.stop()
    assert batches == [(0, [0, 1]), (1, [2, 3]), (2, [4])]
    assert committed == [None, {"at": 2}, {"at": 4}]


def test_a_stream_of_changes_hands_each_batchs_reports_on(session: RuntimeSession, sink: LineSink, tmp_path: Path) -> None:
    source, checkpoint = NumberSource(4, tmp_path / "calls"), tmp_path / "checkpoint"
    changes: list[int] = []

    def on_batch(reports: list[Report]) -> None:
        changes.append(sum(one.changes for one in written_tables(reports)))

    stream = session.stream_changes(source, checkpoint, lambda: Task(NumberReader(), sink, retry_twice), on_batch)
    try:
        await_end(stream, lambda: committed_offset(checkpoint) == {"at": 4})
    finally:
        stream.stop()
    assert changes == [2, 2]


def test_a_failed_batch_is_planned_again_at_the_next_start(session: RuntimeSession, sink: LineSink, tmp_path: Path) -> None:
    source, checkpoint = NumberSource(4, tmp_path / "calls"), tmp_path / "checkpoint"

    def stream_with(fails: dict[int, str]) -> BatchStream:
        return session.stream_changes(source, checkpoint, lambda: Task(NumberReader(fails), sink, retry_twice), lambda _: None)

    stream = stream_with({3: "definite"})
    with pytest.raises(DefiniteError, match="number 3 is bad") as caught:
        await_end(stream, lambda: False)
    assert caught.value.event == "event 3"
    # A stop may raise the error of the last batch again.
    with suppress(DefiniteError):
        stream.stop()
    assert (committed_offset(checkpoint), planned_offset(checkpoint)) == ({"at": 2}, {"at": 4})
    again = stream_with({})
    try:
        await_end(again, lambda: committed_offset(checkpoint) == {"at": 4})
    finally:
        again.stop()
    assert set(sink.numbers) == {0, 1, 2, 3}
    assert source.calls("splits").count(2) >= 2


def test_a_stopped_stream_resumes_at_its_position(session: RuntimeSession, sink: LineSink, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    for last in (2, 6):
        source = NumberSource(last, tmp_path / "calls")
        stream = session.stream_changes(source, checkpoint, lambda: Task(NumberReader(), sink, retry_twice), lambda _: None)
        try:
            await_end(stream, lambda last=last: committed_offset(checkpoint) == {"at": last})  # type: ignore[misc]
        finally:
            stream.stop()
        time.sleep(0.3)
        assert sorted(sink.numbers) == list(range(last))


def test_a_stream_starts_over_files_that_an_interrupted_start_left(session: RuntimeSession, sink: LineSink, tmp_path: Path) -> None:
    source, checkpoint = NumberSource(2, tmp_path / "calls"), tmp_path / "checkpoint"
    left = [checkpoint / ".metadata.1.tmp", *(checkpoint / folder / ".0.8a5c.tmp" for folder in ("offsets", "commits", "sources/0"))]
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("v1\n")
    stream = session.stream_changes(source, checkpoint, lambda: Task(NumberReader(), sink, retry_twice), lambda _: None)
    try:
        await_end(stream, lambda: committed_offset(checkpoint) == {"at": 2})
    finally:
        stream.stop()
    assert sorted(sink.numbers) == [0, 1]


def test_no_batch_runs_while_a_stream_is_paused(session: RuntimeSession, sink: LineSink, tmp_path: Path) -> None:
    source, checkpoint = NumberSource(2000, tmp_path / "calls"), tmp_path / "checkpoint"
    running = threading.Event()

    def on_batch(_: list[Report]) -> None:
        running.set()

    stream = session.stream_changes(source, checkpoint, lambda: Task(NumberReader(), sink, retry_twice), on_batch)
    try:
        await_end(stream, running.is_set)
        with stream.paused():
            before = sink.numbers
            time.sleep(0.5)
            assert sink.numbers == before
    finally:
        stream.stop()
