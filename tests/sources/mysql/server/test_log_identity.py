"""A reset, restored or replaced log is never mistaken for the former one, and one command repairs the target.

The pipe runs without Spark (`testkit.pipelines.local_pipeline`), on both servers. `test_log_identity_stream` runs it with Spark.
"""

from __future__ import annotations

import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from headrace.cli import main
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError, HeadraceError
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.mysql.binlog_files_pipe import BinlogFilesPipe
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql import failover
from headrace.sources.mysql.binlog import log_comparison, replication_client
from headrace.sources.mysql.server.connection import MySQLAddress
from testkit.oracles.both_ends import sink_client, sink_rows, source_rows
from testkit.pipelines.embedded_access import target_of
from testkit.pipelines.local_pipeline import without_spark
from testkit.recordings.plain_state import make_plain
from testkit.servers.replication import await_executed, executed, start_replica
from testkit.servers.servers import build, execute, execute_in

REPLACED = "the source's binary log is not the one that was read"
RESET = {"mariadb": "RESET MASTER", "mysql": "RESET BINARY LOGS AND GTIDS"}


@pytest.fixture(scope="module")
def source(flavour: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """A server whose log these tests may reset."""
    server = build(flavour, tmp_path_factory.mktemp("reset") / "server")
    try:
        yield server.start()
    finally:
        server.remove()


class Copy:
    """A database, and a pipe that copies it."""

    def __init__(self, server: PrivateServer, clickhouse: EmbeddedServer, state: Path) -> None:
        self.server, self.clickhouse, self.state = server, clickhouse, state
        self.database = f"shop_{secrets.token_hex(4)}"
        execute(server, f"CREATE DATABASE {self.database}")
        self.run("CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(40))", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")

    def run(self, *statements: str) -> None:
        execute_in(self.server, self.database, *statements)

    def write(self, count: int, word: str = "x") -> None:
        """Run `count` transactions that insert, update and delete rows."""
        for n in range(count):
            insert = f"INSERT INTO t VALUES ({secrets.randbelow(1 << 30)}, '{word}')"
            self.run((insert, "UPDATE t SET s = CONCAT(LEFT(s, 9), 'u')", "DELETE FROM t ORDER BY id LIMIT 1")[n % 3])

    def pipe(self, *, once: bool = True, **others: Any) -> MySQLPipe:
        address = MySQLAddress("127.0.0.1", self.server.port, self.server.user, self.server.password, self.database)
        sink = ClickHouseSink(target_of(self.clickhouse))
        return MySQLPipe(
            address, sink, "sink", PipeSettings(Selection((f"{self.database}.*",)), self.state, once=once, **others), LogView()
        )

    def replicate(self) -> None:
        """`headrace replicate --once`."""
        self.pipe().run()

    def refused(self) -> DefiniteError:
        with pytest.raises(DefiniteError) as caught:
            self.replicate()
        return caught.value

    def check(self, *tables: str) -> None:
        """Check that the target holds the rows of the source's SELECT."""
        with sink_client(self.clickhouse.url) as client:
            for table in tables or ("t",):
                assert sink_rows(client, self.server, self.database, table) == source_rows(self.server, self.database, table)

    def remedy(self, error: DefiniteError) -> None:
        """Run the command that an error names, then the pipe."""
        ask_for_new_log(error)
        self.replicate()

    def epoch(self) -> int:
        return int(json.loads((self.state / "pipe.json").read_text())["epoch"])

    def position(self) -> str:
        offsets = sorted((self.state / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        found = json.loads(offsets[-1].read_text().splitlines()[2])
        return str(found["gtid"])

    def forget_identity(self) -> None:
        """Convert the state to the format of version 0.9."""
        make_plain(self.state)
        state = json.loads((self.state / "pipe.json").read_text())
        state["start"].pop("log", None)
        (self.state / "pipe.json").write_text(json.dumps(state))
        for file in (self.state / "checkpoint" / "offsets").glob("[0-9]*"):
            *head, offset = file.read_text().splitlines()
            file.write_text("\n".join((*head, json.dumps({name: value for name, value in json.loads(offset).items() if name != "log"}))))


def ask_for_new_log(error: DefiniteError) -> None:
    """Run the command that an error names."""
    command = error.hint.split("`")[1].split()
    assert command[:3] == ["headrace", "resync", "--new-log"]
    assert main(command[1:]) == 0


@pytest.fixture(autouse=True)
def _local(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)
    monkeypatch.setattr(failover, "PATIENCE_S", 0.3)


@pytest.fixture
def copy(source: PrivateServer, clickhouse: EmbeddedServer, tmp_path: Path) -> Iterator[Copy]:
    made = Copy(source, clickhouse, tmp_path / "state")
    yield made
    execute(source, f"DROP DATABASE {made.database}")
    disconnect(target_of(clickhouse))


COUNTS = (0, 3, 7, 40)
"""Transactions after a reset: none, fewer than before, as many, more."""


@pytest.mark.slow(
    "after the snapshot",
    because="test_a_reset_log_is_refused_and_the_remedy_repairs_the_target[mariadb-after changes] and on MySQL",
)
@pytest.mark.parametrize("snapshot_only", [False, True], ids=["after changes", "after the snapshot"])
def test_a_reset_log_is_refused_and_the_remedy_repairs_the_target(copy: Copy, snapshot_only: bool) -> None:
    execute(copy.server, RESET[copy.server.flavour])
    copy.run("CREATE TABLE old (id INT PRIMARY KEY)", "INSERT INTO old VALUES (1), (2)")
    if snapshot_only:
        copy.write(7)
    copy.replicate()
    if not snapshot_only:
        copy.write(7)
        copy.replicate()
    copy.check("t", "old")
    for count in COUNTS:
        execute(copy.server, RESET[copy.server.flavour])
        copy.write(count, "new")
        error = copy.refused()
        assert REPLACED in error.message, count
        assert str(copy.state) in error.hint
    copy.run("DROP TABLE old", "CREATE TABLE young (id INT PRIMARY KEY)", "INSERT INTO young VALUES (7)")
    copy.remedy(error)
    copy.check("t", "young")
    assert copy.epoch() == 1
    with sink_client(copy.clickhouse.url) as client:
        assert client.query(f"SELECT count() FROM {copy.database}.old FINAL").result_rows == [(0,)]
    copy.write(5, "after")
    copy.replicate()
    copy.check("t", "young")


@pytest.mark.slow(
    "mysql",
    because=("the test itself on MariaDB; test_a_reset_log_is_refused_and_the_remedy_repairs_the_target, test_a_restored_backup[mysql]"),
)
def test_a_state_of_the_former_version(copy: Copy) -> None:
    """It has no log identity: it continues in its own log, and GTIDs still reveal a log with other transactions."""
    execute(copy.server, RESET[copy.server.flavour])
    copy.replicate()
    copy.write(7)
    copy.replicate()
    copy.forget_identity()
    copy.write(4)
    copy.replicate()
    copy.check()
    for count in (3, 60):
        copy.forget_identity()
        execute(copy.server, RESET[copy.server.flavour])
        copy.write(count, "new")
        error = copy.refused()
        assert REPLACED in error.message, count
        copy.remedy(error)
        copy.check()


@pytest.mark.slow("oldest", because="test_a_new_state_does_not_write_below_rows_of_another_log[mariadb-now]")
@pytest.mark.slow(
    "mysql",
    because=("the test itself on MariaDB; test_a_reset_log_is_refused_and_the_remedy_repairs_the_target, test_a_restored_backup[mysql]"),
)
@pytest.mark.parametrize("start", ["now", "oldest", "files"])
def test_a_new_state_does_not_write_below_rows_of_another_log(copy: Copy, tmp_path: Path, start: str) -> None:
    """After a reset, the user removes the state and starts without a snapshot: rows of the former log would hide every change."""

    def run() -> None:
        if start == "files":
            copy_files(copy.server, tmp_path / "files")
            offline(copy, tmp_path / "files").run()
        else:
            copy.pipe(snapshot=SnapshotMode.NONE, start_at="" if start == "now" else start).run()

    copy.run(*["FLUSH BINARY LOGS"] * 3)
    run()
    copy.run("UPDATE t SET s = 'former'")
    run()
    copy.check()
    execute(copy.server, RESET[copy.server.flavour])
    shutil.rmtree(copy.state)
    shutil.rmtree(tmp_path / "files", ignore_errors=True)
    copy.run("UPDATE t SET s = 'first'")
    for _ in range(2):
        with pytest.raises(DefiniteError, match=r"would hide what the source has") as caught:
            run()
    assert "TRUNCATE the target table" in caught.value.hint
    with sink_client(copy.clickhouse.url) as client:
        client.command(f"TRUNCATE TABLE {copy.database}.t")
    run()
    copy.run("UPDATE t SET s = 'second'")
    run()
    copy.check()


@pytest.mark.slow("none", "consistent", because="test_a_new_state_over_rows_of_the_same_log[mariadb-lock-free]")
@pytest.mark.slow(
    "mysql",
    because=("the test itself on MariaDB; test_a_reset_log_is_refused_and_the_remedy_repairs_the_target, test_a_restored_backup[mysql]"),
)
@pytest.mark.parametrize("snapshot", list(SnapshotMode), ids=str)
def test_a_new_state_over_rows_of_the_same_log(copy: Copy, snapshot: SnapshotMode) -> None:
    """The user removes the state while the source is idle: the target's rows have the version of the log's end."""
    copy.replicate()
    for _ in range(2):
        shutil.rmtree(copy.state)
        copy.pipe(snapshot=snapshot).run()
        copy.check()
        copy.run("UPDATE t SET s = CONCAT(LEFT(s, 9), 'n')", "DELETE FROM t ORDER BY id LIMIT 1")
        copy.pipe(snapshot=snapshot).run()
        copy.check()


def test_a_restored_backup(fresh_server: Callable[..., PrivateServer], clickhouse: EmbeddedServer, tmp_path: Path) -> None:
    """Server UUID, file names and GTIDs are the same again; the transactions after the backup differ."""
    server = fresh_server()
    copy = Copy(server, clickhouse, tmp_path / "state")
    copy.write(5)
    copy.replicate()
    server.stop()
    shutil.copytree(server.directory, tmp_path / "backup")
    server.start()
    copy.write(6)
    copy.replicate()
    copy.check()
    server.stop()
    shutil.rmtree(server.directory)
    shutil.copytree(tmp_path / "backup", server.directory)
    server.start()
    for count in (0, 9):
        copy.write(count, "other")
        error = copy.refused()
        assert REPLACED in error.message or "another transaction" in error.message
    copy.remedy(error)
    copy.check()


@pytest.mark.slow(
    "mysql",
    because=("the test itself on MariaDB; test_a_reset_log_is_refused_and_the_remedy_repairs_the_target, test_a_restored_backup[mysql]"),
)
def test_files_that_are_purged_or_renamed(fresh_server: Callable[..., PrivateServer], clickhouse: EmbeddedServer, tmp_path: Path) -> None:
    """The pipe continues by GTID if no needed transaction is missing. MariaDB counts GTIDs from 1 again in a log with another name."""
    server = fresh_server()
    copy = Copy(server, clickhouse, tmp_path / "state")
    copy.replicate()
    copy.write(5)
    copy.replicate()
    purge(server)
    copy.write(5)
    copy.replicate()
    copy.check()
    server.stop()
    server.settings["log_bin"] = str(server.binlog_dir / "renamed")
    server.start()
    copy.write(5)
    if server.flavour == "mariadb":
        copy.remedy(copy.refused())
    else:
        copy.replicate()
    copy.check()
    copy.write(5)
    purge(server)
    error = copy.refused()
    assert "no longer has" in error.message
    copy.remedy(error)
    copy.check()


def purge(server: PrivateServer) -> None:
    """Remove all log files except a new one."""
    execute(server, "FLUSH BINARY LOGS")
    with closing(server.root_connection()) as connection, connection.cursor() as cursor:
        deadline = time.monotonic() + 20
        while cursor.execute("SHOW BINARY LOGS") > 1:
            newest = cursor.fetchall()[-1][0]
            assert time.monotonic() < deadline
            cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_a_restored_backup[mysql]")
def test_a_server_with_the_same_gtids_and_other_content(
    fresh_server: Callable[..., PrivateServer], clickhouse: EmbeddedServer, tmp_path: Path
) -> None:
    """A true replica is accepted; a server that only claims the transactions is refused."""
    primary = fresh_server()
    copy = Copy(primary, clickhouse, tmp_path / "state")
    replica = start_replica(primary, fresh_server)
    copy.replicate()
    copy.run("INSERT INTO t VALUES (8, 'true')")
    copy.replicate()
    await_executed(replica, executed(primary))
    last = copy.position()
    copy.server = impostor = fresh_server()
    claim(impostor, copy.database, last)
    error = copy.refused()
    assert "another transaction" in error.message
    copy.server = replica
    copy.run("INSERT INTO t VALUES (9, 'after')")
    copy.replicate()
    copy.check()
    assert copy.epoch() == 1


def claim(server: PrivateServer, database: str, gtids: str) -> None:
    """Execute other transactions with the GTIDs of another server."""
    with closing(server.root_connection()) as connection, connection.cursor() as cursor:
        create = (f"CREATE DATABASE {database}", f"CREATE TABLE {database}.t (id INT PRIMARY KEY, s VARCHAR(40))")
        if server.flavour == "mariadb":
            domain, number, last = (int(part) for part in gtids.split("-"))
            cursor.execute(f"SET gtid_domain_id = {domain}, server_id = {number}")
            for n, statement in enumerate((*create, *(f"INSERT INTO {database}.t VALUES ({n}, 'false')" for n in range(last - 2))), 1):
                cursor.execute(f"SET gtid_seq_no = {n}")
                cursor.execute(statement)
            return
        name, _, span = gtids.partition(":")
        last = int(span.rpartition("-")[2])
        for n, statement in enumerate((*create, *(f"INSERT INTO {database}.t VALUES ({n}, 'false')" for n in range(last - 2))), 1):
            cursor.execute(f"SET gtid_next = '{name}:{n}'")
            cursor.execute(statement)
        cursor.execute("SET gtid_next = 'AUTOMATIC'")


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_a_restored_backup[mysql]")
@pytest.mark.slow("all counts", because="test_a_running_pipe_notices_a_reset[mariadb-as many]")
@pytest.mark.parametrize("counts", [(7,), COUNTS], ids=["as many", "all counts"])
def test_a_running_pipe_notices_a_reset(copy: Copy, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_comparison, "_LOOK_AT_LOG_END_S", 0.2)
    monkeypatch.setattr(log_comparison, "_CHECK_IDLE_LOG_S", 1.0)
    monkeypatch.setattr(replication_client, "_SILENCE_S", 4)
    execute(copy.server, RESET[copy.server.flavour])
    for count in counts:
        copy.write(7)
        error = run_over_reset(copy, count)
        assert REPLACED in error.message, count
        ask_for_new_log(copy.refused())
    copy.replicate()
    copy.check()


def run_over_reset(copy: Copy, count: int) -> HeadraceError:
    """Return the error of a running pipe after a reset and `count` transactions."""
    ended: list[HeadraceError] = []
    pipe = copy.pipe(once=False)

    def follow() -> None:
        try:
            pipe.run()
        except HeadraceError as error:
            ended.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        wait_until(lambda: holds(copy), thread)
        copy.write(7)
        wait_until(lambda: holds(copy), thread)
        execute(copy.server, RESET[copy.server.flavour])
        copy.write(count, "new")
        thread.join(30)
    finally:
        pipe.stop()
        thread.join(30)
    assert ended, f"the pipe did not notice a reset and {count} transactions"
    return ended[0]


def holds(copy: Copy) -> bool:
    try:
        copy.check()
    except (AssertionError, DatabaseError):
        return False
    return True


def wait_until(condition: Callable[[], bool], thread: threading.Thread) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow(
    "mysql",
    because=("the test itself on MariaDB; test_a_reset_log_is_refused_and_the_remedy_repairs_the_target, test_a_restored_backup[mysql]"),
)
def test_log_files_that_were_replaced(copy: Copy, tmp_path: Path) -> None:
    """Files of another log with the same names: copied after a reset, between two runs and while a pipe reads them."""
    execute(copy.server, RESET[copy.server.flavour])
    copy.run("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(40))", "INSERT INTO t VALUES (1, 'a')")
    copy.write(6)
    files = tmp_path / "files"
    copy_files(copy.server, files)
    offline(copy, files).run()
    copy.check()
    copy.write(4)
    copy_files(copy.server, files)
    offline(copy, files).run()
    copy.check()

    def follow() -> None:
        with pytest.raises(DefiniteError) as caught:
            offline(copy, files, once=False).run()
        errors.append(caught.value)

    errors: list[DefiniteError] = []
    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(1.0)
    execute(copy.server, RESET[copy.server.flavour])
    copy.write(60, "new")
    copy_files(copy.server, files)
    thread.join(30)
    for count in (0, 3):
        copy.write(count)
        copy_files(copy.server, files)
        with pytest.raises(DefiniteError) as caught:
            offline(copy, files).run()
        errors.append(caught.value)
    assert [error.message.split(" is not ")[1].split(" up to ")[0] for error in errors] == ["the one that was read"] * 3
    assert all("new state directory" in error.hint for error in errors)


def copy_files(server: PrivateServer, directory: Path) -> None:
    """Copy a server's log files, each in one step."""
    directory.mkdir(exist_ok=True)
    for file in server.binlog_dir.glob("binlog.0*"):
        shutil.copy(file, directory / "copying")
        (directory / "copying").replace(directory / file.name)


def offline(copy: Copy, files: Path, *, once: bool = True) -> BinlogFilesPipe:
    settings = PipeSettings(Selection((f"{copy.database}.*",)), copy.state, once=once)
    return BinlogFilesPipe(files, ClickHouseSink(target_of(copy.clickhouse)), "sink", settings, LogView())
