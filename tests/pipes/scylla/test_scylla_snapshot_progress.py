"""The progress file of snapshots survives a crash, up to the last complete line."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.pipes.scylla.snapshot_progress import FILE, SnapshotProgress
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.sources.scylla.snapshot.reader import ChunkResult
from headrace.sources.scylla.snapshot.row_recheck import LogStartTimes
from headrace.sources.scylla.snapshot.token_ranges import GREATEST, LEAST, TokenRange

T = TableName("ks", "t")


def test_copies_go_on_where_they_were(tmp_path: Path) -> None:
    progress = SnapshotProgress(StateDirectory(tmp_path))
    progress.begin(T, LogStartTimes(100))
    progress.begin(TableName("ks", "other"), LogStartTimes(200))
    progress.finish(T, ChunkResult(TokenRange(LEAST, 0), 10, 150))
    progress.forget(TableName("ks", "other"))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"table": "ks.t", "la')
    again = SnapshotProgress(StateDirectory(tmp_path))
    assert again.begun() == {T: LogStartTimes(100)}
    found = again.tables[T]
    assert (found.rows, found.share, found.left, found.is_complete) == (10, 0.5, [TokenRange(0, GREATEST)], False)
    again.finish(T, ChunkResult(TokenRange(0, GREATEST), 5, 160))
    assert again.tables[T].left == []
    again.complete(T, 300)
    last = SnapshotProgress(StateDirectory(tmp_path))
    assert last.tables[T].is_complete
    assert last.begun() == {T: LogStartTimes(100, 300)}
    assert last.rows == 15
    # After a new start the old progress does not count.
    last.begin(T, LogStartTimes(400))
    assert SnapshotProgress(StateDirectory(tmp_path)).tables[T].left == [TokenRange(LEAST, GREATEST)]


def test_a_damaged_note_is_reported(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"table": "ks.t", "done": {}}\n')
    with pytest.raises(DefiniteError, match="damaged"):
        SnapshotProgress(StateDirectory(tmp_path))
