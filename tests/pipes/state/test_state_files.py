"""State files after a crash at any byte: their content is valid, at worst a little old."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.entry_stamp import Stamp
from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.state import json_file
from headrace.pipes.state.pipe_state import JOURNALS, NOTES, PipeState, SnapshotLog, StateDirectory, TableState
from headrace.pipes.state.seal import StateSeal
from headrace.sources.mysql.server.position import BinlogPosition

ORDERS = TableName("shop", "orders")
SCHEMA = TableSchema(ORDERS, (Column("id", Kind.INT32, False), Column("é", Kind.ENUM, members=("a", "b'"))), ("id",))
START = BinlogPosition("binlog.000003", 157, "0-1-7")


def new_state() -> PipeState:
    options = {"zero_dates": "halt"}
    late = TableState(replace(SCHEMA, name=TableName("shop", "late")), START.to_json(), START.to_json())
    tables = {ORDERS: TableState(SCHEMA, START.to_json()), late.schema.name: late}
    gone = {TableName("shop", "a.b"), TableName("shop.a", "b")}
    return PipeState("mysql://u@h:1/shop", "id", "chdb:x", {"include": ["shop.*"]}, START.to_json(), 0, options, tables, gone, id="a")


def test_a_saved_state_is_read_back(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "s")
    assert directory.load() is None
    directory.save(new_state())
    assert StateDirectory(tmp_path / "s").load() == new_state()
    assert (tmp_path / "s" / "pipe.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700


def test_a_crash_while_saving_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = StateDirectory(tmp_path)
    directory.save(new_state())

    class Crash(Exception):
        pass

    def crash(_: int) -> None:
        raise Crash

    changed = new_state()
    changed.epoch = 1
    monkeypatch.setattr(json_file.os, "fsync", crash)
    with pytest.raises(Crash):
        directory.save(changed)
    monkeypatch.undo()
    assert directory.load() == new_state()
    # Files that the crash left do no harm.
    directory.save(changed)
    assert directory.load() == changed


@pytest.mark.parametrize("content", ["", "{", '{"format": 1, "source"', "\0\0\0"])
def test_a_damaged_state_is_an_error_with_its_place(tmp_path: Path, content: str) -> None:
    (tmp_path / "pipe.json").write_text(content)
    with pytest.raises(DefiniteError, match="damaged") as caught:
        StateDirectory(tmp_path).load()
    assert "pipe.json" in caught.value.place
    assert "start over" in caught.value.hint


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pipe.json").write_text('{"format": 99}')
    with pytest.raises(DefiniteError, match="another version"):
        StateDirectory(tmp_path).load()


def test_a_log_cut_at_any_byte_forgets_at_most_its_last_line(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    log = SnapshotLog(directory)
    log.plan(ORDERS, 0, [{"number": n, "where": f"`é` > {n}"} for n in range(3)], START.to_json())
    log.finish(ORDERS, 0, 10)
    log.finish(ORDERS, 2, 7)
    log.finish(ORDERS, 1, 7)
    log.mark_stale_deleted(ORDERS)
    file = tmp_path / "snapshot.jsonl"
    whole = file.read_bytes()
    for cut in range(len(whole) + 1):
        file.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        again = SnapshotLog(directory)
        assert list(again.tables) == (["shop.orders"] if complete else [])
        if complete:
            assert again.tables["shop.orders"].done == set([0, 2, 1][: complete - 1])
            assert again.tables["shop.orders"].complete == (complete == 5)
        # The next line starts clean.
        again.plan(TableName("shop", "next"), 0, [{"number": 0}])
        assert SnapshotLog(directory).tables == again.tables


def test_pending_is_what_is_planned_and_not_done(tmp_path: Path) -> None:
    log = SnapshotLog(StateDirectory(tmp_path))
    log.plan(ORDERS, 0, [{"number": 0}, {"number": 1}])
    log.plan(TableName("shop", "empty"), 0, [])
    log.finish(ORDERS, 1, 5)
    assert log.tables["shop.orders"].pending == [{"number": 0}]
    assert log.is_planned(ORDERS, 0)
    assert not log.is_planned(ORDERS, 1)


def test_a_new_snapshot_of_a_table_forgets_the_old_one(tmp_path: Path) -> None:
    log = SnapshotLog(StateDirectory(tmp_path))
    log.plan(ORDERS, 0, [{"number": 0}])
    log.finish(ORDERS, 0, 5)
    log.plan(ORDERS, 1, [{"number": 0}], START.to_json())
    log.set_stale_before(ORDERS, {"file": "binlog.000009", "pos": 4})
    again = SnapshotLog(StateDirectory(tmp_path))
    assert again.tables["shop.orders"].pending == [{"number": 0}]
    assert again.tables["shop.orders"].stale_before == {"file": "binlog.000009", "pos": 4}


def test_a_new_attempt_is_not_abandoned(tmp_path: Path) -> None:
    log = SnapshotLog(StateDirectory(tmp_path))
    log.plan(ORDERS, 0, [{"number": 0}], START.to_json())
    log.restart(ORDERS, [{"number": 0}], 5)
    log.abandon(ORDERS)
    again = SnapshotLog(StateDirectory(tmp_path)).tables["shop.orders"]
    assert (again.is_abandoned, again.attempted_from, again.stale_before) == (True, 5, START.to_json())
    log.restart(ORDERS, [{"number": 0}], 5)
    again = SnapshotLog(StateDirectory(tmp_path)).tables["shop.orders"]
    assert (again.is_abandoned, again.attempted_from, again.restarts) == (False, 5, 2)


def test_a_damaged_line_in_the_middle_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "snapshot.jsonl").write_text(
        '{"table": "a.b", "snapshot": 0, "chunks": [], "sweep": null}\n{oops\n{"table": "a.b", "done": 0}\n'
    )
    with pytest.raises(DefiniteError, match="damaged") as caught:
        SnapshotLog(StateDirectory(tmp_path))
    assert "line 2" in caught.value.place


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    owner = StateDirectory(tmp_path).acquire()
    with pytest.raises(DefiniteError, match="another headrace process"):
        StateDirectory(tmp_path).acquire(wait_s=0.2)
    owner.release()
    StateDirectory(tmp_path).acquire(wait_s=0.2).release()


def test_the_next_owner_waits_for_a_dying_helper(tmp_path: Path) -> None:
    first = StateDirectory(tmp_path).acquire()
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.6)"])
    first.note_helper(helper.pid)
    first.release()
    with pytest.raises(DefiniteError, match=f"process {helper.pid}"):
        StateDirectory(tmp_path).acquire(wait_s=0.1)
    started = time.monotonic()
    StateDirectory(tmp_path).acquire(wait_s=20).release()
    assert time.monotonic() - started < 15
    helper.wait()


def test_another_process_with_the_helper_s_number_is_not_the_helper(tmp_path: Path) -> None:
    (tmp_path / "helper.json").write_text(json.dumps({"pid": os.getpid(), "started": "1"}))
    StateDirectory(tmp_path).acquire(wait_s=0.1).release()


def test_scratch_of_a_killed_run_goes_and_state_stays(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    directory.save(new_state())
    for left in ("relay/123/binlog.000001", "spark/blockmgr/x"):
        (tmp_path / left).parent.mkdir(parents=True)
        (tmp_path / left).write_bytes(b"old")
    directory.clear_scratch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe.json", "seal.json"]
    assert directory.load() == new_state()


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DefiniteError, match="cannot be made"):
        StateDirectory(tmp_path / "file" / "state")


@pytest.mark.parametrize("kind", ["log-files", "server", "topics", "scylla"])
def test_a_state_of_version_0_9_is_upgraded_in_place(tmp_path: Path, kind: str) -> None:
    """Also interrupted after any file: the next run continues the upgrade."""
    recorded = Path(__file__).parents[2] / "golden" / "state-0.9" / kind
    plain = StateDirectory(recorded, make=False)
    lines = {name: plain.journal(name).read() for name in JOURNALS}
    notes = {name: plain.read(name) for name in NOTES}
    assert any(lines.values()) or any(notes.values())
    written_files = [file.name for file in recorded.iterdir() if file.is_file()]
    written: list[str] = []

    class Crash(Exception):
        pass

    for crash_after in (*range(1, 9), 99):
        path = tmp_path / str(crash_after)
        shutil.copytree(recorded, path)
        written.clear()

        def note(seal: StateSeal, file: Path, stamp: Stamp, most: int = crash_after, real: Any = StateSeal.note) -> None:
            written.append(file.name)
            if len(written) >= most:
                raise Crash
            real(seal, file, stamp)

        directory = StateDirectory(path).acquire()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StateSeal, "note", note)
            with contextlib.suppress(Crash):
                directory.load()
        directory.release()
        for _ in range(2):
            directory = StateDirectory(path).acquire()
            assert directory.load() == plain.load()
            assert {name: directory.journal(name).read() for name in JOURNALS} == lines
            assert {name: directory.read(name) for name in NOTES} == notes
            directory.close()
        assert all('"stamp"' in (path / name).read_text() for name in written_files)


def test_two_threads_append_to_the_snapshot_log(tmp_path: Path) -> None:
    """A resync finishes chunks while the stream plans the tables of a statement."""
    directory = StateDirectory(tmp_path).acquire()
    directory.save(new_state())
    snapshots, tables = SnapshotLog(directory), [TableName("shop", f"t{number}") for number in range(4)]

    def work(table: TableName) -> None:
        snapshots.plan(table, 0, [{"number": chunk} for chunk in range(20)])
        for chunk in range(20):
            snapshots.finish(table, chunk, 1)

    with ThreadPoolExecutor(len(tables)) as pool:
        list(pool.map(work, tables))
    directory.release()
    reopened = StateDirectory(tmp_path).acquire()
    reopened.load()
    found = SnapshotLog(reopened)
    reopened.release()
    assert (found.rows, {table: one.done for table, one in found.tables.items()}) == (80, {str(name): set(range(20)) for name in tables})
