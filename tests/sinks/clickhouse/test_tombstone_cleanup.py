"""Cleanup of deletions: they are removed physically, only when no older row can come back."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.version import pack_version
from headrace.pipes.lifecycle import sink_tables
from headrace.pipes.lifecycle.sink_tables import SinkTables, TombstonePurger
from headrace.retry import WaitState
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, OnRefusedRow
from headrace.sinks.clickhouse.sink import ClickHouseSink
from testkit.pipelines.embedded_access import target_of

SCHEMA = TableSchema(TableName("shop", "t"), (Column("id", Kind.INT32, False), Column("v", Kind.STRING)), ("id",))


@dataclass
class Stream:
    """A fake stream that writes, and can be paused."""

    working: threading.RLock = field(default_factory=threading.RLock)
    pauses: int = 0
    longest_s: float = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self.working:
            self.pauses += 1
            begun = time.monotonic()
            yield
            self.longest_s = max(self.longest_s, time.monotonic() - begun)


@dataclass
class Scene:
    sink: ClickHouseSink
    cleaner: TombstonePurger
    stream: Stream = field(default_factory=Stream)
    settled: bool = True

    def write(self, *images: tuple[Op, int], first: int) -> None:
        rows = len(images)
        batch = pa.record_batch([pa.array([i for _, i in images], pa.int32()), pa.array(["x"] * rows)], schema=SCHEMA.arrow_schema)
        versions = pa.array([pack_version(0, 1, first + row) for row in range(rows)], pa.uint64())
        ops, times = pa.array([op for op, _ in images], pa.uint8()), pa.array([0] * rows, pa.int64())
        self.cleaner.targets.sink.writer().write(ChangeBlock(SCHEMA, batch, ops, versions, times))

    def ask(self, sql: str) -> list[list[Any]]:
        return self.sink.reader().query(sql.replace("THIS", f"{self.sink.target.database}.t"))[1]

    def clean(self) -> None:
        self.cleaner.poll(self.stream.paused)
        self.cleaner.wait()

    @property
    def outcomes(self) -> list[list[Any]]:
        target = f"{self.sink.target.database}.t"
        return self.ask(f"SELECT deletions, outcome FROM headrace.cleanups FINAL WHERE target = '{target}'")


@pytest.fixture
def scene(clickhouse: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Scene]:
    monkeypatch.setattr(sink_tables, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(sink_tables, "current_wait", WaitState)
    more = getattr(request, "param", ())
    chosen = ClickHouseOptions(all_tables=(("cleanup_hours", 0.0001), ("on_refused_row", OnRefusedRow.DEAD_LETTER), *more))
    target = target_of(clickhouse, database=f"d_{secrets.token_hex(6)}")
    targets = SinkTables(ClickHouseSink(target, chosen, label="p"))
    targets.prepare([SCHEMA])
    made: list[Scene] = []
    cleaner = TombstonePurger(targets, "p", lambda: [SCHEMA], lambda: made[0].settled)
    made.append(Scene(targets.sink, cleaner))
    yield made[0]
    disconnect(target)


LIFE = [(Op.INSERT, 1), (Op.INSERT, 2), (Op.INSERT, 3), (Op.DELETE, 2), (Op.DELETE, 3)]


@pytest.mark.parametrize("scene", [(), (("partition_by", "id % 2"),), (("delete_column", "gone"),)], indirect=True)
def test_deletions_are_gone_from_disk_and_a_replay_brings_nothing_back(scene: Scene) -> None:
    scene.write(*LIFE, first=100)
    scene.write((Op.INSERT, 4), (Op.DELETE, 1), first=200)
    scene.clean()
    assert scene.ask("SELECT id FROM THIS") == [[4]]
    assert scene.outcomes == [[3, "done"]]
    # The last batch again, as after a crash: its deletions are in it.
    scene.write((Op.INSERT, 4), (Op.DELETE, 1), first=200)
    assert scene.ask("SELECT id FROM THIS FINAL") == [[4]]
    # Later deletions are kept, and no cleanup runs before it is due.
    scene.write((Op.DELETE, 4), first=300)
    began = scene.ask("SELECT began_at FROM headrace.cleanups FINAL WHERE target = 'THIS'")
    scene.cleaner.targets.sink = replace(scene.sink, options=ClickHouseOptions(all_tables=(("cleanup_hours", 1.0),)))
    scene.clean()
    assert scene.ask("SELECT began_at FROM headrace.cleanups FINAL WHERE target = 'THIS'") == began
    assert scene.ask("SELECT id FROM THIS FINAL") == []


def test_a_merge_begins_between_batches_and_does_not_hold_them_up(scene: Scene) -> None:
    scene.ask("INSERT INTO THIS (id, v, _sign, _version) SELECT number, randomPrintableASCII(200), 1, 1 FROM numbers(300000)")
    scene.write((Op.DELETE, 7), (Op.DELETE, 8), first=100)
    with scene.stream.working:
        # During a batch its deletions may be stored before older images of the same rows.
        scene.cleaner.poll(scene.stream.paused)
        scene.write((Op.DELETE, 1000000), first=200)
        time.sleep(0.5)
        assert scene.ask("SELECT count() FROM THIS WHERE _deleted") == [[3]]
        scene.write((Op.INSERT, 1000000), first=150)
    scene.cleaner.wait()
    assert scene.ask("SELECT count(), countIf(_deleted) FROM THIS") == [[299998, 0]]
    assert scene.ask("SELECT count() FROM THIS FINAL WHERE id = 1000000") == [[0]]
    assert scene.stream.pauses == 1
    [[seconds]] = scene.ask("SELECT dateDiff('millisecond', began_at, ended_at) / 1000 FROM headrace.cleanups FINAL WHERE target = 'THIS'")
    assert scene.stream.longest_s < seconds


def test_nothing_is_purged_while_rows_are_read_or_wait_or_the_sink_was_away(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.write(*LIFE, first=100)
    scene.settled = False
    scene.clean()
    assert scene.ask("SELECT count() FROM THIS WHERE _deleted") == [[2]]
    scene.settled = True
    away = WaitState()
    away.note("the sink was away")
    away.clear()
    monkeypatch.setattr(sink_tables, "current_wait", lambda: away)
    scene.clean()
    assert scene.ask("SELECT count() FROM THIS WHERE _deleted") == [[2]]
    monkeypatch.setattr(sink_tables, "current_wait", WaitState)
    # A pending dead letter would come back if the later deletion were removed.
    scene.ask("ALTER TABLE THIS ADD CONSTRAINT c CHECK id != 9")
    scene.write((Op.INSERT, 9), first=200)
    scene.clean()
    assert scene.outcomes == [[0, "not done: 1 rows wait in headrace.errors"]]
    assert scene.ask("SELECT count() FROM THIS WHERE _deleted") == [[2]]


def test_failures_are_reported_and_the_pipe_continues(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.write(*LIFE, first=100)
    scene.ask("SYSTEM STOP MERGES THIS")
    scene.clean()
    assert "deletions were not purged" in caplog.text
    [[_, outcome]] = scene.outcomes
    assert outcome.startswith("failed: ClickHouse error")
    scene.ask("SYSTEM START MERGES THIS")
    time.sleep(0.4)
    scene.clean()
    assert scene.outcomes == [[2, "done"]]
