"""State files with one flipped byte or a cut end: reading gives a definite error, or exactly the written content."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from headrace.pipes.state.event_skips import EventSkips, halted_at, note_halt, request_skip
from headrace.pipes.state.pipe_state import PipeState, SnapshotLog, StateDirectory, TableState
from headrace.pipes.state.resync_requests import pending_requests, request_resync
from headrace.pipes.state.stored_progress import FileProgressStore
from headrace.runtime.checkpoint import committed_offset, initial_offset
from headrace.sinks.base import Progress
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.schema.schema_history import SchemaHistory
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.pipelines.checkpoint_files import make_checkpoint, write_batch_file

pytestmark = pytest.mark.scaled

SOAK = os.environ.get("HEADRACE_SOAK") == "1"
SAMPLES = 25
_NO_PROCESS = 1 << 30
NAME = TableName("shop", "orders")
SCHEMA = TableSchema(NAME, (Column("id", Kind.INT32, False), Column("é", Kind.ENUM, members=("a", "b'"))), ("id",))
START, LATER = BinlogPosition("binlog.000003", 157, "0-1-7"), BinlogPosition("binlog.000003", 900, "0-1-9")
FILES = (
    "pipe.json",
    "seal.json",
    "schemas.jsonl",
    "snapshot.jsonl",
    "copies.jsonl",
    "scylla.json",
    "debezium.json",
    "progress.json",
    "skips.jsonl",
    "halted.json",
    "helper.json",
    "requests/one.json",
    "checkpoint/metadata",
    "checkpoint/offsets/0",
    "checkpoint/commits/0",
    "checkpoint/sources/0/0",
)


def write_state(path: Path) -> None:
    """A state directory with every file that any kind of pipe writes."""
    state = PipeState("mysql://u@h:1/shop", "id", "chdb:x", {"include": ["shop.*"]}, START.to_json(), 0, {"zero_dates": "halt"})
    state.tables[NAME] = TableState(SCHEMA, START.to_json())
    directory = StateDirectory(path).acquire()
    directory.begin(state)
    history = SchemaHistory(lambda _: True, Dialect.of("9.7.0"), directory.history)
    history.begin(SchemaCatalog({NAME: SCHEMA}, {"shop": "utf8mb4"}), START)
    directory.save(state)
    history.follow(Query("shop", "ALTER TABLE orders ADD COLUMN more INT"), LATER)
    snapshots = SnapshotLog(directory)
    snapshots.plan(NAME, 0, [{"number": 0, "where": "`é` > 'a'"}, {"number": 1}], START.to_json())
    snapshots.finish(NAME, 0, 10)
    for number in range(3):
        directory.journal("copies.jsonl").append({"table": "ks.t", "begun": None, "n": number})
    directory.replace("scylla.json", {"tables": []})
    directory.replace("debezium.json", {"topics": {"a.b": "id"}, "batch": 3})
    FileProgressStore(path).report(Progress("shop", "mysql://h/", str(LATER), LATER.version, 1, 2, 3, 4, 5, "0-1-9", ("a",), state.id))
    checkpoint = directory.checkpoint
    make_checkpoint(checkpoint)
    write_batch_file(checkpoint / "offsets" / "0", f'v1\n{{"batchWatermarkMs":0}}\n{LATER.to_json()}'.replace("'", '"'))
    write_batch_file(checkpoint / "commits" / "0", 'v1\n{"nextBatchWatermarkMs":0}')
    (checkpoint / "sources" / "0").mkdir(parents=True)
    write_batch_file(checkpoint / "sources" / "0" / "0", '0v1\n{"shop.orders":{"0":17}}')
    note_halt(path, DefiniteError("a zero date", place="é", event="binlog.000003:800"))
    request_skip(path, who="tester")
    note_halt(path, DefiniteError("another", place="there", event="binlog.000003:850"))
    request_resync(directory, ("shop.orders",))
    next((path / "requests").iterdir()).rename(path / "requests" / "one.json")
    directory.note_helper(_NO_PROCESS)
    directory.close()


def read_state(path: Path) -> list[Any]:
    """All that a pipe and its commands read from a state directory."""
    directory = StateDirectory(path)
    (path / "helper.json").read_bytes()
    directory.acquire(wait_s=0.0)
    try:
        state = directory.load()
        assert state is not None
        history = SchemaHistory(lambda _: True, Dialect.of("9.7.0"), directory.history)
        skips = EventSkips(path)
        return [
            state,
            history.as_of(START),
            history.as_of(LATER),
            SnapshotLog(directory).tables,
            directory.journal("copies.jsonl").read(),
            directory.read("scylla.json"),
            directory.read("debezium.json"),
            FileProgressStore(path).progress("shop"),
            [(place, skips.why(place)) for place in sorted(skips.pending)],
            halted_at(path),
            [request.tables for request in pending_requests(directory)],
            committed_offset(directory.checkpoint),
            initial_offset(directory.checkpoint),
        ]
    finally:
        directory.release()


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_found(tmp_path: Path, name: str) -> None:
    write_state(tmp_path)
    written, file, draw = read_state(tmp_path), tmp_path / name, random.Random(name)
    whole, errors = file.read_bytes(), 0
    places = range(len(whole)) if SOAK else draw.sample(range(len(whole)), min(SAMPLES, len(whole)))
    for at in places:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ draw.randrange(1, 256)]) + whole[at + 1 :])
        try:
            assert read_state(tmp_path) == written, f"byte {at} of {name}: {file.read_bytes()!r}"
        except DefiniteError as error:
            errors += bool(error.place and error.hint)
    assert errors > len(places) // 2
    file.write_bytes(whole)
    assert read_state(tmp_path) == written


@pytest.mark.parametrize("name", FILES)
def test_a_cut_off_end_is_found(tmp_path: Path, name: str) -> None:
    write_state(tmp_path)
    written, file, draw = read_state(tmp_path), tmp_path / name, random.Random(name)
    whole = file.read_bytes()
    for length in range(len(whole)) if SOAK else sorted({0, len(whole) - 1, *draw.sample(range(len(whole)), min(SAMPLES, len(whole)))}):
        file.write_bytes(whole[:length])
        try:
            found = read_state(tmp_path)
        except DefiniteError as error:
            assert error.place and error.hint, error  # noqa: PT017, PT018
            continue
        if name != "skips.jsonl":
            assert found == written, f"{length} bytes of {name}"
    file.write_bytes(whole)
    assert read_state(tmp_path) == written


def test_files_of_other_states_are_found(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write_state(one)
    write_state(other)
    for name in (*FILES[:7], "skips.jsonl", "checkpoint/metadata"):
        whole = (one / name).read_bytes()
        (one / name).write_bytes((other / name).read_bytes())
        with pytest.raises(DefiniteError, match=r"another|different|not the file that Spark wrote"):
            read_state(one)
        (one / name).write_bytes(whole)
