"""Snapshots that are stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from headrace.model.schema import TableName
from headrace.pipes.lifecycle.context import SnapshotInterrupted
from headrace.pipes.mysql.snapshot_runner import SnapshotRunner
from headrace.retry import WaitState, use_wait_state
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk
from headrace.sources.mysql.split_reader import ChunkSplit


def runner(task: Any = None, **context: Any) -> SnapshotRunner:
    unused: Any = None
    return SnapshotRunner(unused, cast(Any, SimpleNamespace(**context)), unused, task, unused)


def test_a_stopping_snapshot_waits_for_its_chunks_up_to_a_limit() -> None:
    """A chunk may wait for a Spark slot that another pipe's task holds while its server is away: this pipe must still stop."""
    asked, pipe = [False], WaitState()
    stop = runner(is_stopping=lambda: asked[0])._stopper()
    with use_wait_state(pipe), mock.patch("headrace.pipes.mysql.snapshot_runner.time.monotonic") as clock:
        clock.return_value = 100.0
        stop()
        asked[0] = True
        for now in (200.0, 229.0):
            clock.return_value = now
            stop()
        clock.return_value = 231.0
        with pytest.raises(SnapshotInterrupted):
            stop()


def test_a_snapshot_of_an_unavailable_server_ends_immediately() -> None:
    stop, pipe = runner(is_stopping=lambda: True)._stopper(), WaitState()
    with use_wait_state(pipe):
        stop()
        pipe.note("the source does not answer")
        with pytest.raises(SnapshotInterrupted):
            stop()


class TestGroups:
    """Chunks of one snapshot as Spark jobs."""

    def groups(self, chunks: list[Chunk], exact: str = "") -> list[list[int]]:
        asked: list[set[TableName]] = []
        snapshots = runner(asked.append, settings=SimpleNamespace(chunk_rows=1000))
        with mock.patch.object(SnapshotRunner, "_is_exact", lambda _, chunk: chunk.table == exact):
            groups = snapshots._groups(chunks, 2)
        found = [[split for split in group.splits if isinstance(split, ChunkSplit)] for group in groups]
        # Each job contains the definitions of its tables only.
        assert asked == [{TableName("d", split.chunk.table) for split in splits} for splits in found]
        assert [split.once for splits in found for split in splits] == [chunk.table == exact for chunk in chunks]
        return [[split.chunk.number for split in splits] for splits in found]

    def test_a_few_chunks_are_separate_jobs(self) -> None:
        assert self.groups([Chunk("d", "t", n, "", 1) for n in range(16)]) == [[n] for n in range(16)]

    def test_small_chunks_of_many_tables_share_a_job(self) -> None:
        groups = self.groups([Chunk("d", f"t{n}", n, "", 2) for n in range(3000)])
        assert [number for group in groups for number in group] == list(range(3000))
        assert {len(group) for group in groups[:-1]} == {64}

    def test_a_job_has_no_more_rows_than_a_chunk(self) -> None:
        groups = self.groups([Chunk("d", f"t{n}", n, "", 300 + 700 * (n % 2)) for n in range(320)])
        assert groups == [[n] for n in range(320)]
        assert self.groups([Chunk("d", f"t{n}", n, "", 400) for n in range(320)])[0] == [0, 1]

    def test_tables_that_may_be_read_once_do_not_share_a_job_with_others(self) -> None:
        chunks = [Chunk("d", "exact" if n % 20 in (5, 6) else f"t{n}", n, "", 1) for n in range(640)]
        assert self.groups(chunks, "exact")[:3] == [[0, 1, 2, 3, 4], [5, 6], list(range(7, 25))]
