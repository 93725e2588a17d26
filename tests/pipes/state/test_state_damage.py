"""Every file of a state directory, deleted, emptied, truncated, damaged, replaced by an old copy or by another pipe's: an error, or no
difference to the source's own SELECT.

Each case damages one file, changes the source, and runs the pipe. After an error the remedy is executed: the whole directory is restored
from one backup, and the pipe runs again (once for each file). Either way the sink must hold the source's rows.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.mysql.binlog_files_pipe import BinlogFilesPipe
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.pipes.scylla.pipe import ScyllaPipe
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import request_resync
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.capture.captured_session import capture
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from testkit.oracles.binlogs import Logbook
from testkit.oracles.both_ends import sink_client, sink_rows, source_rows
from testkit.oracles.cell_views import selected, shown
from testkit.pipelines.embedded_access import target_of
from testkit.pipelines.local_pipeline import without_spark
from testkit.pipelines.topic_pipe import LocalTopicPipe
from testkit.recordings.debezium_recordings import KafkaRecord
from testkit.servers.scylla_tables import add_generation, create_tables, make_generation

SCRATCH = ("relay", "spark", "lock", "helper.json")
"""Files that every start creates: `lock` is empty, and `helper.json` describes a process that has ended."""
KINDS = ("empty", "truncate", "flip", "old copy", "other pipe", "delete")
_NUMBER = re.compile(r"[0-9]+")


def roles_of(state: Path) -> dict[str, Path]:
    """Return the files of a state directory by role: of batches, the newest two files of each kind."""
    found: dict[str, Path] = {}
    for file in sorted(path for path in state.rglob("*") if path.is_file() and path.relative_to(state).parts[0] not in SCRATCH):
        inside = str(file.relative_to(state))
        if "checkpoint" not in inside or not _NUMBER.search(file.name):
            found[inside] = file
            continue
        number = int(_NUMBER.findall(file.name)[0])
        batches = sorted(int(path.name) for path in file.parent.iterdir() if path.name.isdigit())
        age = len(batches) - 1 - batches.index(number) if number in batches else len(batches)
        if age < 2:
            found[_NUMBER.sub("NEWEST" if age == 0 else "BEFORE", inside)] = file
    return found


def damage(file: Path, kind: str, draw: random.Random, old: Path | None, other: Path | None) -> bool:
    """Damage a file; return False if its content stays the same."""
    before = file.read_bytes()
    if kind == "delete":
        file.unlink()
        return True
    if kind in ("old copy", "other pipe"):
        copy = old if kind == "old copy" else other
        if copy is None or not copy.exists():
            return False
        shutil.copy(copy, file)
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "truncate":
        file.write_bytes(before[: draw.randrange(1, max(len(before), 2))])
    else:
        at = draw.randrange(len(before)) if before else 0
        file.write_bytes(before[:at] + bytes([before[at] ^ (1 << draw.randrange(8))]) + before[at + 1 :] if before else b"x")
    return file.read_bytes() != before


@dataclass
class DamageTrial:
    """One stopped pipe whose files are damaged, one at a time."""

    state: Path
    run: Callable[[], None]
    """Run the pipe until it has caught up."""
    change: Callable[[], None]
    """Change rows of the source."""
    check: Callable[[], None]
    """Raise if the sink does not hold the source's rows."""
    old: Path
    """An older copy of the state directory."""
    other: Path
    """The state directory of another pipe of the same kind."""
    outcomes: dict[str, str] = field(default_factory=dict)
    _remedied: set[str] = field(default_factory=set)
    """Files for which the remedy was executed."""

    def cases(self) -> Iterator[tuple[str, str]]:
        for role in roles_of(self.state):
            yield from ((role, kind) for kind in KINDS)

    def try_case(self, role: str, kind: str, seed: int) -> None:
        """Damage one file, change the source, run; then execute the remedy, if there was an error."""
        file = roles_of(self.state).get(role)
        if file is None:
            # An earlier case deleted it, and the pipe does not need it.
            return
        copies = [roles_of(directory).get(role) for directory in (self.old, self.other)]
        self.try_damage(f"{kind} {role}", lambda: damage(file, kind, random.Random(f"{seed} {role} {kind}"), *copies))

    def try_damage(self, name: str, injure: Callable[[], bool]) -> None:
        backup = self.state.with_name("backup")
        shutil.rmtree(backup, ignore_errors=True)
        shutil.copytree(self.state, backup, ignore=shutil.ignore_patterns("relay", "spark"))
        if not injure():
            return
        self.change()
        try:
            self.run()
            self.outcomes[name] = "no difference"
        except DefiniteError as error:
            if not error.place or not error.hint:
                raise AssertionError(f"{name}: the error names no place or no remedy") from error
            self.outcomes[name] = error.message
            shutil.rmtree(self.state)
            shutil.copytree(backup, self.state)
            if name.split(maxsplit=1)[-1] in self._remedied:
                # The next case that runs to its end compares the sink.
                return
            self._remedied.add(name.split(maxsplit=1)[-1])
            self.run()
        try:
            self.check()
        except AssertionError as error:
            raise AssertionError(f"after {name} ({self.outcomes[name]}) the sink differs from the source") from error


pytestmark = pytest.mark.scaled

SOAK = os.environ.get("HEADRACE_SOAK") == "1"
ROUNDS = 20 if SOAK else 1


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[ClickHouseSink]:
    with EmbeddedServer(tmp_path / "clickhouse") as clickhouse:
        sink = ClickHouseSink(target_of(clickhouse))
        yield sink
        disconnect(sink.target)


def try_everything(trial: DamageTrial, *, whole_checkpoint: bool = SOAK) -> None:
    """`whole_checkpoint`: with the checkpoint's older files, which all kinds of pipes read in the same way."""
    for seed in range(ROUNDS):
        for role, kind in list(trial.cases()):
            if whole_checkpoint or "BEFORE" not in role:
                trial.try_case(role, kind, seed)

    def remove_checkpoint() -> bool:
        shutil.rmtree(trial.state / "checkpoint")
        return True

    trial.try_damage("delete checkpoint", remove_checkpoint)
    for name, outcome in trial.outcomes.items():
        print(f"{name}: {outcome}")


@contextmanager
def compared(book: Logbook, sink: ClickHouseSink) -> Iterator[Callable[[], None]]:
    with sink_client(f"http://127.0.0.1:{sink.target.port}") as client:

        def check() -> None:
            for table in ("t", "u"):
                assert sink_rows(client, book.server, book.database, table) == source_rows(book.server, book.database, table)

        yield check


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", ["mariadb"], indirect=True)
def test_files_of_a_pipe_from_log_files(book: Logbook, sink: ClickHouseSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)
    state, files, numbers = tmp_path / "state", tmp_path / "files", count(1000)
    files.mkdir()
    book.run("FLUSH BINARY LOGS")
    first = book.place().file

    def run(directory: Path = state, tables: str = "[tu]") -> None:
        settings = PipeSettings(Selection((f"{book.database}.{tables}",)), directory, once=True)
        BinlogFilesPipe(files, sink, "sink", settings, LogView()).run()

    def change() -> None:
        number = next(numbers)
        book.run(
            f"INSERT INTO t VALUES ({number}, 1)", f"UPDATE t SET n = {number} WHERE id < 20", f"DELETE FROM t WHERE id = {number - 3}"
        )
        book.run(f"INSERT INTO u VALUES ({number})", "FLUSH BINARY LOGS")
        for path in book.server.binlog_dir.glob("binlog.0*"):
            if first <= path.name < book.place().file and not (files / path.name).exists():
                shutil.copy(path, files)

    book.run("CREATE TABLE t (id INT PRIMARY KEY, n INT)", "CREATE TABLE u (id INT PRIMARY KEY)", "CREATE TABLE v (id INT PRIMARY KEY)")
    change()
    run()
    shutil.copytree(state, tmp_path / "old")
    book.run("ALTER TABLE t MODIFY n BIGINT")
    for _ in range(2):
        change()
        run()
    run(tmp_path / "other", "v")
    with compared(book, sink) as check:
        check()
        trial = DamageTrial(state, run, change, check, tmp_path / "old", tmp_path / "other")
        try_everything(trial)
    assert "missing" in trial.outcomes["delete pipe.json"]
    assert "older" in trial.outcomes["delete checkpoint"]


def event(row: dict[str, int], offset: int, op: str) -> KafkaRecord:
    """A record of a MySQL connector, without a schema; its log position rises with its offset."""
    source = {"connector": "mysql", "db": "shop", "table": "goods", "snapshot": "false", "server_id": 1, "file": "bin.000007", "row": 0}
    value = {
        "before": row if op == "d" else None,
        "after": None if op == "d" else row,
        "source": {**source, "pos": 100 * (offset + 1)},
        "op": op,
    }
    return KafkaRecord("srv.shop.goods", 0, offset, 1, json.dumps({"id": row["id"]}).encode(), json.dumps(value).encode(), ())


def test_files_of_a_pipe_from_topics(sink: ClickHouseSink, tmp_path: Path) -> None:
    state, topic, rows = tmp_path / "state", list[KafkaRecord](), dict[int, int]()

    def run(directory: Path = state) -> None:
        pipe = LocalTopicPipe(directory, sink if directory == state else other, owner=True)
        try:
            reached = pipe.batches.reached.offsets.get("srv.shop.goods", {}).get(0, 0)
            if topic[reached:]:
                pipe.run(topic[reached:])
        finally:
            pipe.close()

    def produce(key: int, n: int, op: str) -> None:
        topic.append(event({"id": key, "n": n}, len(topic), op))
        rows[key] = n
        if op == "d":
            del rows[key]

    def change() -> None:
        at = len(topic)
        produce(at, 1, "c")
        for key in [key for key in rows if key % 4 == 0][:3]:
            produce(key, at, "u")
        if len(rows) > 6:
            produce(list(rows)[2], 0, "d")

    def check() -> None:
        with sink_client(f"http://127.0.0.1:{sink.target.port}") as client:
            found = client.query("SELECT id, n FROM shop.goods FINAL").result_rows
        assert sorted(found) == sorted(rows.items())

    other = ClickHouseSink(replace(sink.target, database="other"))
    for number in range(4):
        change()
        run()
        if number == 1:
            shutil.copytree(state, tmp_path / "old")
    run(tmp_path / "other")
    check()
    trial = DamageTrial(state, run, change, check, tmp_path / "old", tmp_path / "other")
    try_everything(trial)
    assert "missing" in trial.outcomes["delete pipe.json"]
    assert "older" in trial.outcomes["old copy debezium.json"]
    assert "older" in trial.outcomes["delete checkpoint"]
    disconnect(other.target)


@pytest.mark.timeout(600)
def test_files_of_a_pipe_from_scylladb(
    cql: CqlSession, keyspace: str, sink: ClickHouseSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    state, cells, numbers = tmp_path / "state", CellSink(sink), count(1000)
    choices = ScyllaOptions(confidence=0.1, window=0.2, streams_per_query=2, generations=keyspace, tablets=keyspace)
    create_tables(cql, keyspace)
    add_generation(cql, keyspace, make_generation(time.time_ns() // 1_000_000, 2, 2))
    cql.execute(f"CREATE TABLE {keyspace}.t (p int PRIMARY KEY, v int)")
    cql.execute(f"CREATE TABLE {keyspace}.u (p int PRIMARY KEY, v int)")
    captured = capture(cql, [f"{keyspace}.t", f"{keyspace}.u"], keyspace)

    def run(directory: Path = state, table: str = "t") -> None:
        settings = PipeSettings(Selection((f"{keyspace}.{table}",)), directory, once=True, patience=30)
        target = LogTarget(cells, "clickhouse://there/", sink.progress_store())
        ScyllaPipe(cql.address, choices, target, settings, LogView()).run()

    def change() -> None:
        number = next(numbers)
        captured.execute(f"INSERT INTO {keyspace}.t (p, v) VALUES ({number}, 1)")
        captured.execute(f"UPDATE {keyspace}.t SET v = {number} WHERE p = {number - 1}")
        captured.execute(f"DELETE FROM {keyspace}.t WHERE p = {number - 3}")

    def check() -> None:
        table = describe(cql, TableName(keyspace, "t"))
        assert shown(cells, table) == selected(cql, table)

    change()
    run()
    shutil.copytree(state, tmp_path / "old")
    captured.execute(f"ALTER TABLE {keyspace}.t ADD w int")
    change()
    run()
    run(tmp_path / "other", "u")
    check()
    trial = DamageTrial(state, run, change, check, tmp_path / "old", tmp_path / "other")
    try_everything(trial)
    assert "missing" in trial.outcomes["delete pipe.json"]
    assert "missing" in trial.outcomes["delete copies.jsonl"]
    assert "older" in trial.outcomes["old copy scylla.json"]
    assert "older" in trial.outcomes["delete checkpoint"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", ["mariadb"], indirect=True)
def test_files_of_a_pipe_from_a_server(book: Logbook, sink: ClickHouseSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)
    state, numbers = tmp_path / "state", count(1000)

    def run(directory: Path = state, tables: str = "[tu]") -> None:
        settings = PipeSettings(Selection((f"{book.database}.{tables}",)), directory, once=True)
        MySQLPipe(book.address, sink, "sink", settings, LogView()).run()

    def change() -> None:
        number = next(numbers)
        book.run(f"INSERT INTO t VALUES ({number}, 1), ({-number}, 2)", f"UPDATE t SET n = {number} WHERE id < 20")
        book.run(
            f"DELETE FROM t WHERE id = {-number + 3}",
            f"INSERT INTO u VALUES ({number}, 'x')",
            f"UPDATE u SET id = -id WHERE id = {number - 2}",
        )

    book.run("CREATE TABLE t (id INT PRIMARY KEY, n INT)", "CREATE TABLE u (id INT PRIMARY KEY)", "CREATE TABLE v (id INT PRIMARY KEY)")
    book.insert("t", [(i, 0) for i in range(50)])
    run()
    shutil.copytree(state, tmp_path / "old")
    book.run("ALTER TABLE u ADD COLUMN s VARCHAR(9)", "UPDATE t SET n = 1 WHERE id < 20")
    request_resync(StateDirectory(state), (f"{book.database}.t",))
    run()
    with compared(book, sink) as check:
        run(tmp_path / "other", "v")
        for _ in range(2):
            change()
            run()
        check()
        trial = DamageTrial(state, run, change, check, tmp_path / "old", tmp_path / "other")
        try_everything(trial, whole_checkpoint=True)
    assert "missing" in trial.outcomes["delete pipe.json"]
    assert "older" in trial.outcomes["old copy snapshot.jsonl"]
    assert "older" in trial.outcomes["delete checkpoint"]
