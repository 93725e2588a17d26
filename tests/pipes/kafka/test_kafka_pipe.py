"""A pipe into a real broker, without Spark: after interruptions, repeated writes and alterations readers end with the source's rows.

One reader drops messages that are not newer than its row, another takes all in order; the source's SELECT is the reference.
"""

from __future__ import annotations

import functools
import json
import random
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.mysql.binlog_files_pipe import BinlogFilesPipe
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.pipes.mysql.snapshot_runner import SnapshotRunner
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import request_resync
from headrace.pipes.state.stored_progress import FileProgressStore
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.schema_policy import SchemaPolicy
from headrace.sinks.kafka.delivery import KafkaWriter
from headrace.sinks.kafka.options import Incompatible, KafkaOptions, MessageFormat, Truncates
from headrace.sinks.kafka.sink import KafkaSink
from headrace.sources.debezium.reader import DebeziumReader
from headrace.sources.mysql.rows import row_decoder
from headrace.sources.mysql.segments import segment_reader
from headrace.sources.mysql.snapshot import lock_free_snapshot
from headrace.sources.mysql.snapshot.table_scan import scan_table
from testkit.generators.workload import TABLES, Workload, run_transaction
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.both_ends import source_rows
from testkit.oracles.topic_rows import Sent, as_rows, assert_ordered, fold, read_sent, repeats
from testkit.oracles.topics import read_topic
from testkit.pipelines.local_pipeline import Killed, without_spark
from testkit.recordings.debezium_recordings import KafkaRecord, as_batches, load_records
from testkit.recordings.debezium_replay import Replay
from testkit.servers.broker import PrivateBroker
from testkit.servers.replication import await_executed, executed, promote, start_replica
from testkit.servers.servers import execute


class Runs:
    """One pipe into Kafka, run again and again."""

    def __init__(self, book: Logbook, broker: PrivateBroker, state: Path) -> None:
        self.book, self.broker, self.state = book, broker, state
        self.sink = KafkaSink.from_url(broker.url(), KafkaOptions(partitions=3))
        self._random = random.Random(7)

    def __call__(self, *, slots: int = 2, flush_rows: int = 0, policy: tuple[str, ...] = (), start_at: str = "", exclude: str = "") -> None:
        """Replicate up to now."""
        settings = PipeSettings(
            Selection((f"{self.book.database}.*",), (exclude,) if exclude else ()),
            self.state,
            once=True,
            start_at=start_at,
            snapshot=SnapshotMode.NONE if start_at else SnapshotMode.LOCK_FREE,
            flush_rows=flush_rows,
            flush_seconds=0.0,
            master=f"local[{slots}]",
            schema_changes=SchemaPolicy.from_dict(dict(pair.split("=") for pair in policy)),
        )
        MySQLPipe(self.book.address, self.sink, "sink", settings, LogView()).run()

    def sent(self, table: str) -> list[Sent]:
        return read_sent(self.broker, f"{self.book.database}_{table}_generic")

    def transactions(self, count: int) -> None:
        with self.book.server.root_connection(self.book.database, autocommit=False) as connection:
            for _ in range(count):
                run_transaction(connection, self._random)

    def check(self, *tables: str, absent: dict[str, Any] | None = None, also: dict[str, list[Sent]] | None = None) -> None:
        """Check that readers of the topics have the source's rows. `also`: earlier messages in a topic with another name."""
        for table in tables:
            messages = [*(also or {}).get(table, ()), *self.sent(table)]
            names = columns_of(self.book, table)
            expected = source_rows(self.book.server, self.book.database, table)
            for by_position in (True, False):
                folded = fold(messages, by_position=by_position)
                assert as_rows(folded.values(), names, plain, absent) == expected, (table, by_position)


def columns_of(book: Logbook, table: str) -> list[str]:
    where = f"table_schema = '{book.database}' AND table_name = '{table}'"
    return [name for (name,) in book.fetch(f"SELECT column_name FROM information_schema.columns WHERE {where} ORDER BY ordinal_position")]


def plain(name: str, value: Any) -> Any:
    """A message's value in the form of PyMySQL."""
    if value is None:
        return None
    convert = {"balance": Decimal, "changed": datetime.fromisoformat, "amount": float, "body": bytes.decode}.get(name)
    return convert(value) if convert is not None else value


@pytest.fixture
def runs(book: Logbook, broker: PrivateBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    without_spark(monkeypatch)
    # Small blocks, so that a small workload has many.
    monkeypatch.setattr(row_decoder, "MAX_BLOCK_ROWS", 24)
    monkeypatch.setattr(segment_reader, "_WINDOW_EVENTS", 16)
    monkeypatch.setattr(lock_free_snapshot, "scan_table", functools.partial(scan_table, block_rows=120))
    return Runs(book, broker, tmp_path / "state")


class Cutter:
    """Counts the blocks that are written, and ends the process at a chosen one: before it is sent, or after it is acknowledged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self._at, self._answered = 0, -1, False
        real = KafkaWriter.write

        def write(writer: KafkaWriter, block: Any) -> None:
            doomed, self.count = self.count == self._at, self.count + 1
            if doomed and not self._answered:
                raise Killed
            real(writer, block)
            if doomed:
                raise Killed

        monkeypatch.setattr(KafkaWriter, "write", write)

    def survive(self, runs: Runs, block: int, *, answered: bool, **settings: Any) -> bool:
        """Run until the chosen block ends the pipe; return whether it did."""
        self.count, self._at, self._answered = 0, block, answered
        try:
            runs(**settings)
        except Killed:
            return True
        finally:
            self._at = -1
        return False


ALTERATIONS = (
    "ALTER TABLE accounts ADD COLUMN note VARCHAR(20) DEFAULT 'none', ADD COLUMN big BIGINT",
    "ALTER TABLE notes DROP COLUMN stars",
    "ALTER TABLE accounts MODIFY owner VARCHAR(80) NOT NULL, ADD INDEX (owner)",
    "RENAME TABLE parts TO pieces",
)
ABSENT = {"note": "none", "big": None}


def change(book: Logbook, parts: str, step: int) -> None:
    """Make all kinds of changes; columns may have been added."""
    book.run(f"INSERT INTO accounts (id, owner) VALUES ({9000 + step}, 'new')", "UPDATE accounts SET balance = 1.5 WHERE id % 50 = 1")
    book.run(f"UPDATE accounts SET id = id + 20000 WHERE id = {9000 + step}", f"DELETE FROM accounts WHERE id % 97 = {step}")
    book.run("BEGIN", f"UPDATE notes SET body = '{step}' LIMIT 3", f"UPDATE {parts} SET account = 'moved' WHERE line = {10 + step}")
    book.run(f"DELETE FROM {parts} WHERE line % 41 = {step}", f"UPDATE {parts} SET amount = 0.5 WHERE line % 60 = {step}", "COMMIT")


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_debezium_s_events[mysql], test_one_kill[MySqlToDebeziumJson]")
def test_killed_at_any_block(runs: Runs, server: PrivateServer, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Workload(server, database, 1).prepare()
    cutter = Cutter(monkeypatch)
    runs.transactions(10)
    runs()
    for table in TABLES:
        messages = runs.sent(table)
        # A snapshot at one position, before all changes, with each row once; older changes are not repeated.
        assert all(one.is_snapshot and one.kind == "insert" for one in messages)
        assert len({one.position[0] for one in messages}) == 1
        assert len({one.position for one in messages}) == len(messages)
        assert repeats(messages) == 0
    runs.check(*TABLES)
    killed = 0
    for step, block in enumerate((0, 1, 3, 6, 10, 15)):
        runs.transactions(12)
        killed += cutter.survive(runs, block, answered=step % 2 == 0, slots=1 + step % 3, flush_rows=(0, 60)[step % 2])
    assert killed >= 4
    # Statements, with a kill in the batches around them.
    for step, statement in enumerate(ALTERATIONS):
        change(runs.book, "parts", step)
        runs.book.run(statement)
        change(runs.book, "pieces" if step == 3 else "parts", step + 10)
        cutter.survive(runs, step * 2, answered=step % 2 == 1)
    runs()
    before = {"pieces": runs.sent("parts")}
    runs.check("accounts", "notes", "pieces", absent=ABSENT, also=before)
    again = 0
    for table in ("accounts", "notes", "parts", "pieces"):
        messages = runs.sent(table)
        assert_ordered(messages)
        again += repeats(messages)
        changes = [one for one in messages if not one.is_snapshot]
        assert all(one.transaction is not None for one in changes)
    assert again > 0
    assert len({one.partition for one in runs.sent("accounts")}) == 3
    assert {one.kind for one in runs.sent("accounts")} == {"insert", "update", "delete"}
    stored = json.loads((runs.state / "progress.json").read_text())
    assert stored["position"]
    assert stored["incomplete"] == []


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_debezium_s_events[mysql], test_one_kill[MySqlToDebeziumJson]")
def test_rows_of_an_interrupted_snapshot_are_deleted(
    runs: Runs, server: PrivateServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of an interrupted snapshot stay in the topic: rows deleted since then need a deletion, though the next attempt does not see
    them."""
    Workload(server, database, 2).prepare()
    cutter = Cutter(monkeypatch)
    assert cutter.survive(runs, 5, answered=True, slots=1)
    runs.book.run(
        "DELETE FROM accounts WHERE id % 3 = 0", "UPDATE accounts SET id = id + 5000 WHERE id % 10 = 1", "UPDATE notes SET body = NULL"
    )
    assert cutter.survive(runs, 7, answered=False, slots=2)
    runs.transactions(10)
    runs()
    runs.check(*TABLES)
    # The table that was read at one position has only changes after its rows.
    positions = {table: Counter(one.position[0] for one in runs.sent(table) if one.is_snapshot) for table in TABLES}
    assert max(len(found) for found in positions.values()) >= 2
    runs.transactions(10)
    runs()
    runs.check(*TABLES)


@pytest.mark.soak("mysql", because="what differs between the servers is in test_schema_changes")
@pytest.mark.parametrize("statement", ["RENAME TABLE early TO late", "ALTER TABLE early RENAME TO late, ADD COLUMN w INT DEFAULT 4"])
def test_a_table_gets_another_name_before_its_rows_are_read(runs: Runs, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    book = runs.book
    book.run("CREATE TABLE early (id INT PRIMARY KEY, v INT)", "INSERT INTO early VALUES (1, 1), (2, 2), (3, 3)")
    book.run("CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    statements = [statement, "INSERT INTO late (id, v) VALUES (4, 4)", "DELETE FROM late WHERE id = 2"]
    real = SnapshotRunner.run

    def run(copier: SnapshotRunner, *arguments: Any) -> None:
        while statements:
            book.run(statements.pop(0))
        real(copier, *arguments)

    monkeypatch.setattr(SnapshotRunner, "run", run)
    owed = _owed(monkeypatch, runs.state)
    runs()
    runs.check("other", "late", absent={"w": 4})
    # The rows must be read under another name: until then progress.json does not report completeness.
    assert any(asked for asked, _ in owed)
    assert all(incomplete for asked, incomplete in owed if asked)
    assert owed[-1] == (0, ())


def _owed(monkeypatch: pytest.MonkeyPatch, state: Path) -> list[tuple[int, tuple[str, ...]]]:
    """Return the number of pending resync requests, and the incomplete tables, for each progress report."""
    found: list[tuple[int, tuple[str, ...]]] = []
    real = FileProgressStore.report

    def report(progress_store: FileProgressStore, progress: Any) -> None:
        found.append((len(list((state / "requests").glob("*.json"))), progress.incomplete))
        real(progress_store, progress)

    monkeypatch.setattr(FileProgressStore, "report", report)
    return found


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_debezium_s_events[mysql], test_one_kill[MySqlToDebeziumJson]")
def test_columns_that_are_left_out_stay_so_under_another_name(runs: Runs, database: str) -> None:
    """Also if the table must be read again when it is renamed."""
    book, policy = runs.book, ("add_column=ignore",)
    book.run("CREATE TABLE early (id INT PRIMARY KEY, v INT)", "INSERT INTO early VALUES (1, 1), (2, 2)")
    runs(policy=policy)
    book.run("ALTER TABLE early ADD COLUMN secret INT DEFAULT 4", "INSERT INTO early VALUES (3, 3, 3)")
    runs(policy=policy)
    request_resync(StateDirectory(runs.state), (f"{database}.early",))
    book.run("RENAME TABLE early TO late", "INSERT INTO late VALUES (4, 4, 4)", "DELETE FROM late WHERE id = 2")
    runs(policy=policy)
    book.run("INSERT INTO late VALUES (5, 5, 5)")
    runs(policy=policy)
    late = runs.sent("late")
    assert sum(one.is_snapshot for one in late) == 3
    assert {frozenset(one.row()) for one in [*runs.sent("early"), *late]} == {frozenset(("id", "v"))}
    assert {one.row()["id"] for one in late if one.kind == "insert"} == {1, 3, 4, 5}


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_debezium_s_events[mysql], test_one_kill[MySqlToDebeziumJson]")
def test_a_table_gets_another_name_after_a_kill_in_its_snapshot(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    book = runs.book
    book.run("CREATE TABLE early (id INT PRIMARY KEY, v INT)", "INSERT INTO early VALUES (1, 1), (2, 2), (3, 3)")
    assert Cutter(monkeypatch).survive(runs, 0, answered=False)
    book.run("RENAME TABLE early TO late", "INSERT INTO late VALUES (4, 4)", "DELETE FROM late WHERE id = 2")
    runs()
    runs.check("late")


@pytest.mark.slow("mariadb", because="test_debezium_s_events, test_a_table_gets_another_name_before_its_rows_are_read, test_whole_tables")
@pytest.mark.soak("mysql", because="what differs between the servers is in test_schema_changes")
def test_tables_that_come_go_and_are_read_again(runs: Runs, server: PrivateServer, database: str) -> None:
    book = runs.book
    Workload(server, database, 3).prepare()
    book.run("CREATE TABLE keyless (a INT, b VARCHAR(9))", "INSERT INTO keyless VALUES (1, 'x'), (1, 'x'), (NULL, NULL)")
    runs(exclude="*._*")
    book.run("CREATE TABLE later (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO later VALUES (1, 'a'), (2, 'b')")
    book.run("CREATE TABLE derived (PRIMARY KEY (id)) SELECT id, v FROM later", "INSERT INTO derived VALUES (7, 'c')")
    book.run("DELETE FROM derived WHERE id = 1", "DELETE FROM keyless WHERE a IS NULL", "UPDATE keyless SET b = 'y' LIMIT 1")
    runs(exclude="*._*")
    runs.check("later", "derived")
    keyless = runs.sent("keyless")
    assert {one.key for one in keyless} == {None}
    assert Counter(one.kind for one in keyless) == {"insert": 3, "delete": 1, "update": 1}

    # The stream lags behind deletions and an alteration when a table is requested again: none of them is missing.
    runs.transactions(5)
    book.run("DELETE FROM notes WHERE stars = 2", "ALTER TABLE notes ADD COLUMN extra INT DEFAULT 4", "DELETE FROM notes WHERE stars = 3")
    request_resync(StateDirectory(runs.state), (f"{database}.notes", f"{database}.later"))
    book.run("DELETE FROM later WHERE id = 1", "INSERT INTO later VALUES (3, 'z')")
    before = {table: sum(one.is_snapshot for one in runs.sent(table)) for table in ("notes", "later")}
    runs(exclude="*._*")
    runs.check("notes", "later", absent={"extra": 4})
    for table, count in before.items():
        rows = len(source_rows(server, database, table))
        assert sum(one.is_snapshot for one in runs.sent(table)) == count + rows

    # The steps of gh-ost; a truncated table, a dropped one, and one that takes its name.
    book.run("CREATE TABLE _later_gho LIKE later", "ALTER TABLE _later_gho ADD COLUMN extra INT NOT NULL DEFAULT 9")
    book.run(
        "INSERT INTO _later_gho (id, v) SELECT id, v FROM later", "DELETE FROM later WHERE id = 2", "DELETE FROM _later_gho WHERE id = 2"
    )
    book.run("RENAME TABLE later TO _later_del, _later_gho TO later", "DROP TABLE _later_del", "INSERT INTO later VALUES (4, 'after', 1)")
    book.run("DROP TABLE derived", "CREATE TABLE derived (id INT PRIMARY KEY, w INT)", "INSERT INTO derived VALUES (70, 1)")
    book.run("TRUNCATE TABLE accounts", "INSERT INTO accounts VALUES (1, 'first', 1.5, NULL)")
    runs(exclude="*._*")
    runs.check("later", absent={"extra": 9})
    [last] = [one for one in runs.sent("derived") if not one.is_snapshot][-1:]
    assert (last.kind, last.row()) == ("insert", {"id": 70, "w": 1})
    [last] = [one for one in runs.sent("accounts") if one.row("new_" if one.kind == "update" else "").get("owner") == "first"]
    assert last.kind == "insert"

    # For some statements the pipe sends all rows, in the new definition.
    before = {"later": len(runs.sent("later"))}
    book.run("ALTER TABLE later MODIFY extra BIGINT NOT NULL DEFAULT 9")
    runs(policy=("modify_column=resync",), exclude="*._*")
    runs.check("later", absent={"extra": 9})
    assert len(runs.sent("later")) == before["later"] + len(source_rows(server, database, "later"))
    book.run("ALTER TABLE notes DROP COLUMN extra")
    with pytest.raises(DefiniteError, match="drop_column is set to halt"):
        runs(policy=("drop_column=halt",), exclude="*._*")
    runs(exclude="*._*")


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_debezium_s_events[mysql], test_one_kill[MySqlToDebeziumJson]")
def test_readers_of_a_table_s_own_schema_are_not_left_behind(runs: Runs, database: str, tmp_path: Path) -> None:
    """An alteration that is incompatible for readers of the former schema halts the pipe before it is applied."""
    book = runs.book
    specific = KafkaOptions(format=MessageFormat.SPECIFIC, registry=str(tmp_path / "schemas"), partitions=1)
    runs.sink = KafkaSink.from_url(runs.broker.url(), specific)
    book.run("CREATE TABLE s (id INT PRIMARY KEY, v INT)", "INSERT INTO s VALUES (1, 1)")
    runs()
    book.run("ALTER TABLE s ADD COLUMN w VARCHAR(9)", "INSERT INTO s VALUES (2, 2, 'two')")
    runs()
    book.run("ALTER TABLE s MODIFY v VARCHAR(20)", "INSERT INTO s VALUES (3, 'three', NULL)")
    for _ in range(2):
        with pytest.raises(DefiniteError, match=r"(?i)schema") as caught:
            runs()
    assert "incompatible" in caught.value.hint
    topic = f"{database}_s_specific"
    assert len(read_sent(runs.broker, topic)) == 2
    runs.sink = KafkaSink.from_url(runs.broker.url(), replace(specific, incompatible=Incompatible.NEW))
    runs()
    assert len(read_sent(runs.broker, topic)) == 3


@pytest.mark.usefixtures("flavour")
@pytest.mark.soak("mysql", because="test_failover_stream fails over on both")
def test_another_server_takes_over(
    broker: PrivateBroker, fresh_server: Callable[..., PrivateServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica's log has the same changes at higher positions: readers end with its rows."""
    without_spark(monkeypatch)
    monkeypatch.setattr(row_decoder, "MAX_BLOCK_ROWS", 24)
    cutter, name = Cutter(monkeypatch), f"shop_{secrets.token_hex(4)}"
    primary = fresh_server()
    replica = start_replica(primary, fresh_server)
    execute(primary, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    Workload(primary, name, 4).prepare()
    with open_logbook(primary, name) as book:
        before = Runs(book, broker, tmp_path / "state")
        before()
        before.transactions(10)
        assert cutter.survive(before, 3, answered=True)
        await_executed(replica, executed(primary))
    primary.stop()
    promote(replica)
    with open_logbook(replica, name) as book:
        after = Runs(book, broker, tmp_path / "state")
        after.transactions(5)
        assert cutter.survive(after, 2, answered=False)
        after.transactions(5)
        after()
        after.check(*TABLES)


def test_debezium_s_events(runs: Runs, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pipe in Debezium's format: snapshot, changes and a changed key, across an alteration and a kill."""
    book, cutter = runs.book, Cutter(monkeypatch)
    runs.sink = KafkaSink.from_url(runs.broker.url(), KafkaOptions(format=MessageFormat.DEBEZIUM, partitions=2))
    book.run("CREATE TABLE d (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO d VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    runs()
    book.run("UPDATE d SET v = 'x' WHERE id = 1", "DELETE FROM d WHERE id = 2", "UPDATE d SET id = 30 WHERE id = 3")
    assert cutter.survive(runs, 0, answered=True)
    book.run("ALTER TABLE d ADD COLUMN w INT", "INSERT INTO d VALUES (4, 'd', 5)")
    runs()
    rows: dict[bytes, Any] = {}
    kinds = Counter()
    for one in read_sent(runs.broker, f"headrace.{database}.d"):
        assert one.key is not None
        event = json.loads(one.value) if one.value is not None else {"op": "tombstone", "after": None}
        kinds[event["op"]] += 1
        rows[one.key] = event["after"]
    left = sorted((row["id"], row["v"], row.get("w")) for row in rows.values() if row is not None)
    assert left == [(1, "x", None), (4, "d", 5), (30, "c", None)]
    # The pipe sent messages from before the kill again.
    assert kinds == {"r": 3, "c": 3, "u": 2, "d": 4, "tombstone": 4}


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_debezium_s_events[mysql], test_one_kill[MySqlToDebeziumJson]")
def test_debezium_s_word_for_an_emptied_table_is_sent_by_choice(runs: Runs, server: PrivateServer, database: str) -> None:
    """As the real connector sends it; readers with Headrace, or by versions, end with the rows after it."""
    book = runs.book
    choices = KafkaOptions(format=MessageFormat.DEBEZIUM, partitions=2, schemas=True, truncates=Truncates.SEND)
    book.run("CREATE TABLE e (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO e VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    for truncates in Truncates:
        runs.sink = KafkaSink.from_url(runs.broker.url(), replace(choices, truncates=truncates))
        runs()
        book.run("UPDATE e SET v = 'x'", "TRUNCATE TABLE e", f"INSERT INTO e VALUES (2, '{truncates}'), (9, 'z')")
        runs()
    topic = f"headrace.{database}.e"
    kept = read_topic(runs.broker, topic)
    ours = [one for one in kept if one.value is not None and json.loads(one.value)["payload"]["op"] == "t"]
    assert [one.key for one in ours] == [None]
    connector = next(one for one in load_records(f"{server.flavour}-schema") if one.value is not None and b'"op":"t"' in one.value)
    stored, theirs = json.loads(ours[0].value or b""), json.loads(connector.value or b"")
    assert stored["payload"].keys() == theirs["payload"].keys()
    assert stored["payload"]["source"].keys() == theirs["payload"]["source"].keys()
    assert (stored["payload"]["before"], stored["payload"]["after"]) == (None, None)
    records = [KafkaRecord(topic, one.partition, one.offset, 1, one.key, one.value, tuple(one.headers.items())) for one in kept]
    replay = Replay(DebeziumReader())
    replay.feed_all(as_batches(records), random.Random(3))
    left = sorted(replay.rows(TableName(database, "e")), key=lambda row: row["id"])
    assert left == [{"id": 2, "v": "send"}, {"id": 9, "v": "z"}]


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_debezium_s_events[mysql], test_one_kill[MySqlToDebeziumJson]")
def test_from_the_log_alone(runs: Runs, broker: PrivateBroker, server: PrivateServer, database: str, tmp_path: Path) -> None:
    """Without a snapshot, from a position in the log; and from log files, without a server."""
    book = runs.book
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (0, 'before')")
    place = book.place()
    book.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET id = 5 WHERE id = 2", "DELETE FROM t WHERE id = 1")
    runs(start_at=f"{place.file}:{place.offset}")
    first = runs.sent("t")
    assert not any(one.is_snapshot for one in first)
    assert [row["id"] for row in fold(first, by_position=True).values()] == [5]

    sink = KafkaSink.from_url(broker.url(f"offline_{database}_${{table}}"), KafkaOptions(partitions=3))
    settings = PipeSettings(
        Selection((f"{database}.*",)),
        tmp_path / "offline",
        once=True,
        start_at=f"{place.file}:{place.offset}",
        flush_seconds=0.0,
    )
    BinlogFilesPipe(server.binlog_dir, sink, "sink", settings, LogView()).run()
    second = read_sent(broker, f"offline_{database}_t")
    # The same changes have the same keys, bodies and headers from both sources.
    assert [(one.key, one.value, one.headers) for one in second] == [(one.key, one.value, one.headers) for one in first]


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "mysql://h/db", "kafka://127.0.0.1:1"],
        ["retry", "kafka://127.0.0.1:1"],
        ["sql", "kafka://127.0.0.1:1", "SELECT 1"],
        ["replicate", "mysql://h/db", "kafka://127.0.0.1:1", "--engine", "history"],
        ["replicate", "mysql://h/db", "chdb:x", "--set", "kafka.format=specific"],
    ],
)
def test_what_is_about_tables_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    extra = ["--state", str(tmp_path / "state")] if arguments[0] == "replicate" else []
    assert cli.main([*arguments, *extra]) == 2
    said = capsys.readouterr().err
    assert "Kafka" in said
    assert not (tmp_path / "state").exists()
