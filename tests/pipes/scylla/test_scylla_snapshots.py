"""Pipes that begin with a snapshot: rows from before the log, concurrent writes, interruptions, SIGKILL.

The snapshot runs while the log is read. At the end the view equals the server's SELECT, wherever the pipe was interrupted.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.cql.blocks import LogBlock, RowBlock
from headrace.cql.options import CdcOptions
from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.scylla.pipe import ScyllaPipe
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.pipes.scylla.snapshot_runner import FILE, SnapshotProgress
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import request_resync
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.clickhouse.cells.reader import CellReader
from headrace.sinks.clickhouse.cells.sink import CellSink, CellWriter
from headrace.sinks.clickhouse.postimages import PostimageSink, PostimageWriter
from headrace.sinks.clickhouse.server.client import connect as sink_connect
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.capture.captured_session import CapturedSession, capture
from headrace.sources.scylla.snapshot.options import ScyllaOptions, StoredForm
from headrace.sources.scylla.snapshot.reader import ChunkResult
from headrace.sources.scylla.snapshot.row_recheck import LogStartTimes
from headrace.sources.scylla.snapshot.token_ranges import GREATEST, LEAST, WHOLE, TokenRange
from headrace.verify.row_compare import Difference, compare
from headrace.verify.scylla.verifier import LoggedRows, canonical_schema
from testkit.generators.cql_changes import Changes
from testkit.oracles.cell_views import selected, shown
from testkit.pipelines.local_pipeline import without_spark
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.cassandra import PrivateCassandra
from testkit.servers.scylla_tables import add_generation, create_tables, make_generation

T = TableName("ks", "t")


def test_snapshots_resume_at_their_progress(tmp_path: Path) -> None:
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


COLUMNS = "p int, c int, s text static, v text, m map<int, text>, l list<int>, PRIMARY KEY (p, c)"
PATIENCE_S = 400.0
CHOICES = ScyllaOptions(confidence=0.5, window=0.2, streams_per_query=2, page_rows=50)


@dataclass
class Pair:
    """A table with rows from before its log, and the pipe from it."""

    session: CqlSession
    keyspace: str
    sink: CellSink
    state: Path
    choices: ScyllaOptions = field(init=False)
    kept: LogSink = field(init=False)

    def __post_init__(self) -> None:
        self.kept = self.sink
        self.choices = replace(CHOICES, generations=self.keyspace, tablets=self.keyspace)
        create_tables(self.session, self.keyspace)
        add_generation(self.session, self.keyspace, make_generation(time.time_ns() // 1_000_000, 2, 2))

    def pipe(self, snapshot_mode: SnapshotMode = SnapshotMode.LOCK_FREE, exclude: str = "cdc_*") -> ScyllaPipe:
        chosen = Selection((f"{self.keyspace}.*",), (f"{self.keyspace}.cdc_*", f"{self.keyspace}.{exclude}"))
        settings = PipeSettings(chosen, self.state, once=True, snapshot=snapshot_mode, patience=30, chunk_rows=60)
        settings = replace(settings, choices={"scylla": {"kept": self.choices.kept.value}})
        target = LogTarget(self.kept, "clickhouse://there/", self.sink.sink.progress_store())
        return ScyllaPipe(self.session.address, self.choices, target, settings, LogView())

    def assert_equal(self, name: str = "t") -> int:
        table = describe(self.session, TableName(self.keyspace, name))
        there, here = selected(self.session, table), shown(self.sink, table)
        assert here == there
        return len(there)

    def image_differences(self) -> tuple[int, tuple[Difference, ...]]:
        """Return the number of rows, and the differences of the table of images."""
        table = describe(self.session, TableName(self.keyspace, "t"))
        sides, schema = LoggedRows(self.session, CellReader(self.sink.sink.scope), table), canonical_schema(table)
        nothing = schema.arrow_schema.empty_table()
        found = compare(schema, pa.concat_tables([nothing, *sides.source(WHOLE)]), pa.concat_tables([nothing, *sides.sink()]))
        return found.rows, found.differences


@pytest.fixture
def pair(cql: CqlSession, keyspace: str, target: ClickHouseTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    without_spark(monkeypatch)
    return Pair(cql, keyspace, CellSink(ClickHouseSink(target)), tmp_path / "state")


def fill(cql: CqlSession, keyspace: str, partitions: int, rows: int) -> None:
    """Insert rows before the pipe starts, some of them not in a log: with and without markers, with lists, and static values.

    (The capture must have seen the lists whose elements are named later.)
    """
    cql.execute(f"CREATE TABLE {keyspace}.t ({COLUMNS})")
    captured = capture(cql, [f"{keyspace}.t"], keyspace)
    for p in range(-3, partitions):
        statements = []
        for c in range(rows):
            values = f"({p}, {c}, 'v{c}', {{100: 'a', {c}: 'b'}}, [{c}, {p}, {c}])"
            statements.append(
                f"INSERT INTO {keyspace}.t (p, c, v, m, l) VALUES {values};"
                if c % 2
                else f"UPDATE {keyspace}.t SET v = 'u', l = [1, 2, 3] WHERE p = {p} AND c = {c};"
            )
        static = f"UPDATE {keyspace}.t SET s = 's{p}' WHERE p = {p + p % 2 * 1000};"
        (captured if p >= 0 else cql).execute(f"BEGIN UNLOGGED BATCH {' '.join(statements)} {static} APPLY BATCH")


class DifficultOnes(Changes):
    """Statements that are difficult for a snapshot: old elements of lists, last cells, deletions."""

    def __init__(self, session: CqlSession, keyspace: str, partitions: int, rows: int, pause_s: float = 0.01) -> None:
        super().__init__(session, keyspace, pause_s)
        self._size, self._draw = (partitions, rows), random.Random(5)

    def statement(self) -> str:
        draw, t = self._draw, f"{self._keyspace}.t"
        p, c, x = draw.randrange(self._size[0]), draw.randrange(self._size[1]), draw.randrange(1000)
        row = f"p = {p} AND c = {c}"
        return draw.choice(
            (
                f"UPDATE {t} SET l = l - [{c}, 2] WHERE {row}",
                f"UPDATE {t} SET l = l + [{x}] WHERE {row}",
                f"UPDATE {t} SET l = [{x}] + l WHERE {row}",
                f"UPDATE {t} SET v = null, m = null, l = null WHERE {row}",
                f"DELETE v, m, l FROM {t} WHERE {row}",
                f"UPDATE {t} SET m[1] = null, m[{x % 9}] = 'x{x}' WHERE {row}",
                f"UPDATE {t} SET s = 'new{x}' WHERE p = {p}",
                f"INSERT INTO {t} (p, c, v) VALUES ({p}, {c}, 'i{x}')",
                f"DELETE FROM {t} WHERE {row}",
                f"DELETE FROM {t} WHERE p = {p} AND c > {c}" if x < 200 else f"UPDATE {t} SET v = 'w{x}' WHERE {row}",
            )
        )


def test_an_interrupted_snapshot_continues(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    cql, ks = pair.session, pair.keyspace
    fill(cql, ks, 30, 10)
    changes = DifficultOnes(cql, ks, 30, 10)
    pipe = pair.pipe()
    finish = SnapshotProgress.finish

    def stopping(progress: SnapshotProgress, table: TableName, chunk: ChunkResult) -> None:
        finish(progress, table, chunk)
        pipe.stop()

    with changes.going_on():
        time.sleep(0.5)
        with monkeypatch.context() as patch:
            # Other token ranges are read and written at that moment.
            patch.setattr(SnapshotProgress, "finish", stopping)
            pipe.run()
        copy = SnapshotProgress(StateDirectory(pair.state)).tables[TableName(ks, "t")]
        assert not copy.is_complete
        assert 0 < copy.share < 1
        pair.pipe().run()
    assert SnapshotProgress(StateDirectory(pair.state)).tables[TableName(ks, "t")].is_complete
    # After the snapshot, ambiguous log rows cause a re-read of their keys.
    with changes.going_on():
        time.sleep(1)
    pair.pipe().run()
    assert pair.assert_equal() > 100
    assert changes.done > 20

    # A new table gets a snapshot, too; a repeated snapshot begins with an empty target.
    cql.execute(f"CREATE TABLE {ks}.later (k int PRIMARY KEY, l list<text>)")
    for k in range(5):
        cql.execute(f"INSERT INTO {ks}.later (k, l) VALUES ({k}, ['a', 'b'])")
    capture(cql, [f"{ks}.later"], ks)
    table = describe(cql, TableName(ks, "t"))
    sink_connect(pair.sink.sink.target).client.command(
        f"INSERT INTO {pair.sink.locations(table).cells} (`key:p`, `key:c`) VALUES (999, 999)"
    )
    request_resync(StateDirectory(pair.state), (f"{ks}.t",))
    pair.pipe().run()
    assert pair.assert_equal("later") == 5
    assert pair.assert_equal() > 100
    [[left]] = (
        sink_connect(pair.sink.sink.target)
        .client.query(f"SELECT count() FROM {pair.sink.locations(table).cells} WHERE `key:p` = 999")
        .result_rows
    )
    assert left == 0


def test_without_a_copy_only_the_log_is_read(pair: Pair) -> None:
    fill(pair.session, pair.keyspace, 3, 2)
    captured = capture(pair.session, [f"{pair.keyspace}.t"], pair.keyspace)
    captured.execute(f"INSERT INTO {pair.keyspace}.t (p, c, v) VALUES (77, 1, 'logged')")
    pair.pipe(SnapshotMode.NONE).run()
    table = describe(pair.session, TableName(pair.keyspace, "t"))
    # Rows without a log are missing.
    there = {row["p"] for row in shown(pair.sink, table)}
    assert 77 in there
    assert not there & {-3, -2, -1}
    assert SnapshotProgress(StateDirectory(pair.state)).tables == {}


def test_a_pipe_of_images_copies_first_and_keeps_what_it_began_with(pair: Pair) -> None:
    cql, ks = pair.session, pair.keyspace
    cql.execute(f"CREATE TABLE {ks}.t (p int, c int, v text, l list<int>, PRIMARY KEY (p, c))")
    captured = capture(cql, [f"{ks}.t"], ks, CdcOptions(enabled=True, postimage=True))
    for p, c in itertools.product(range(6), range(5)):
        captured.execute(f"INSERT INTO {ks}.t (p, c, v, l) VALUES ({p}, {c}, 'v', [{p}, {c}])")
    pair.choices, pair.kept = replace(pair.choices, kept=StoredForm.IMAGES), PostimageSink(pair.sink.sink)
    pair.pipe().run()
    assert pair.image_differences() == (30, ())
    captured.execute(f"UPDATE {ks}.t SET v = null, l = l - [1] WHERE p = 1 AND c = 1")
    captured.execute(f"UPDATE {ks}.t SET l = [7] + l WHERE p = 1 AND c = 2")
    captured.execute(f"DELETE FROM {ks}.t WHERE p = 2 AND c > 0 AND c <= 3")
    captured.execute(f"DELETE FROM {ks}.t WHERE p = 3")
    captured.execute(f"DELETE FROM {ks}.t WHERE p = 4 AND c = 4")
    captured.execute(f"INSERT INTO {ks}.t (p, c, v) VALUES (3, 3, 'again')")
    pair.pipe().run()
    assert pair.image_differences() == (22, ())
    request_resync(StateDirectory(pair.state), (f"{ks}.*",))
    pair.pipe().run()
    assert pair.image_differences() == (22, ())
    pair.choices = replace(pair.choices, kept=StoredForm.CELLS)
    with pytest.raises(DefiniteError, match="begun with kept = images"):
        pair.pipe().run()


def test_a_table_that_comes_while_others_are_copied_waits_for_its_turn(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    cql, ks = pair.session, pair.keyspace
    fill(cql, ks, 5, 4)
    write = CellWriter.write
    came = threading.Event()

    def slow(writer: CellWriter, block: LogBlock | RowBlock) -> None:
        if isinstance(block, RowBlock) and not block.again and not came.is_set():
            came.set()
            cql.execute(f"CREATE TABLE {ks}.later (k int PRIMARY KEY, v int)")
            cql.execute(f"INSERT INTO {ks}.later (k, v) VALUES (1, 1)")
            capture(cql, [f"{ks}.later"], ks)
            deadline = time.monotonic() + 30
            while TableName(ks, "later") not in SnapshotProgress(StateDirectory(pair.state)).tables and time.monotonic() < deadline:
                time.sleep(0.1)
        write(writer, block)

    monkeypatch.setattr(CellWriter, "write", slow)
    pair.pipe().run()
    assert pair.assert_equal() > 10
    assert pair.assert_equal("later") == 1


def test_a_reselected_table_starts_empty_in_the_sink(pair: Pair) -> None:
    cql, ks = pair.session, pair.keyspace
    for name in ("t", "other"):
        cql.execute(f"CREATE TABLE {ks}.{name} (p int, c int, v int, PRIMARY KEY (p, c))")
    captured = capture(cql, [f"{ks}.t", f"{ks}.other"], ks)
    for p in range(3):
        captured.execute(f"INSERT INTO {ks}.t (p, c, v) VALUES ({p}, 1, 1)")
    pair.pipe().run()
    assert pair.assert_equal() == 3
    pair.pipe(exclude="t").run()
    captured.execute(f"DELETE FROM {ks}.t WHERE p = 1")
    time.sleep(1)
    pair.pipe(exclude="t").run()
    pair.pipe().run()
    assert pair.assert_equal() == 2


def images(pair: Pair) -> CapturedSession:
    """A table whose images are kept, with 30 rows."""
    cql, ks = pair.session, pair.keyspace
    cql.execute(f"CREATE TABLE {ks}.t (p int, c int, v text, w int, PRIMARY KEY (p, c))")
    captured = capture(cql, [f"{ks}.t"], ks, CdcOptions(enabled=True, postimage=True))
    for p, c in itertools.product(range(6), range(5)):
        captured.execute(f"INSERT INTO {ks}.t (p, c, v, w) VALUES ({p}, {c}, 'v', 1)")
    pair.choices, pair.kept = replace(pair.choices, kept=StoredForm.IMAGES), PostimageSink(pair.sink.sink)
    return captured


def at_first_copied_row(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[None]:
    """Act between the read and the write of the first snapshot rows; return whether it happened."""
    write, done, lock = PostimageWriter.write, [], threading.Lock()

    def acting(writer: PostimageWriter, block: LogBlock | RowBlock) -> None:
        if isinstance(block, RowBlock):
            with lock:
                if not done:
                    done.append(None)
                    act()
        write(writer, block)

    monkeypatch.setattr(PostimageWriter, "write", acting)
    return done


def test_the_log_of_a_pipe_of_images_waits_while_a_table_is_copied_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ks, captured = pair.keyspace, images(pair)
    pair.pipe().run()
    assert pair.image_differences() == (30, ())

    def delete() -> None:
        for p in range(6):
            captured.execute(f"DELETE FROM {ks}.t WHERE p = {p} AND c > 1")
        time.sleep(3)

    done = at_first_copied_row(monkeypatch, delete)
    request_resync(StateDirectory(pair.state), (f"{ks}.t",))
    pair.pipe().run()
    assert done
    pair.pipe().run()
    assert pair.image_differences() == (12, ())


def test_a_table_that_is_altered_while_a_pipe_of_images_copies_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = images(pair)
    done = at_first_copied_row(monkeypatch, lambda: captured.execute(f"ALTER TABLE {pair.keyspace}.t DROP w"))
    pair.pipe().run()
    assert done
    assert pair.image_differences() == (30, ())


@pytest.mark.slow(because="test_an_interrupted_snapshot_continues; test_one_kill[ScyllaToCql] kills a pipe from such a log")
@pytest.mark.timeout(900)
def test_killed_during_the_copy(cassandra: PrivateCassandra, cql: CqlSession, keyspace: str, tmp_path: Path) -> None:
    create_tables(cql, keyspace)
    add_generation(cql, keyspace, make_generation(time.time_ns() // 1_000_000, 3, 2))
    fill(cql, keyspace, 60, 40)
    names = ("confidence=2", "window=0.2", f"generations={keyspace}", f"tablets={keyspace}")
    settings = ("--chunk-rows", "400", *(word for name in names for word in ("--set", f"scylla.{name}")))
    sink_dir, state = tmp_path / "sink", tmp_path / "state"
    pipeline = Pipeline(cassandra.url(keyspace), f"chdb:{sink_dir}", state, settings, tables=("t",))
    changes = DifficultOnes(cql, keyspace, 60, 40, 0.05)

    def chunks() -> int:
        path = state / FILE
        return sum('"done"' in line for line in path.read_text().splitlines()) if path.exists() else 0

    landed = []
    with changes.going_on():
        time.sleep(0.5)
        for _ in range(2):
            before = chunks()
            with pipeline.running() as run:
                run.until(lambda before=before: chunks() > before, timeout_s=PATIENCE_S, poll_s=0.002)
                run.signal_all(signal.SIGSTOP)
                run.kill()
            landed.append("complete" if '"last": 1' in (state / FILE).read_text() else chunks())
        done = pipeline.once(timeout_s=PATIENCE_S)
        assert done.code == 0, done.output
    done = pipeline.once(timeout_s=PATIENCE_S)
    assert done.code == 0, done.output
    assert landed[0] != "complete"
    verified = pipeline.verify()
    assert (verified.code, verified.output.splitlines()[-1].rpartition(", ")[2]) == (0, "0 differences"), verified.output
    table = describe(cql, TableName(keyspace, "t"))
    there = selected(cql, table)
    with pipeline.sink_served(sink_dir) as url:
        here = shown(CellSink.from_url(url.replace("http://", "clickhouse://")), table)
    assert here == there
    assert len(there) > 500
    entries = [json.loads(line) for line in (state / FILE).read_text().splitlines()]
    assert sum("begun" in entry for entry in entries) == 1
    print(f"{changes.done} statements, {len(there)} rows, killed after chunks: {landed}")
