"""A target table or topic has one owner: a second pipe ends with an error before it writes, unless several pipes are allowed there.

The command starts the pipes, without Spark where possible, on the real engine, a real broker and a real cluster. The sink's rows show that
the refused pipe has changed nothing.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace import cli
from headrace.cql.session import CqlSession
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.pipes.factory import open_pipe
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.spec import PipeSpec
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.bookkeeping.target_claims import ClickHouseTargetClaims
from headrace.sinks.target_claims import Claim
from testkit.oracles.topics import read_topic
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.local_pipeline import without_spark
from testkit.pipelines.pipeline import Pipeline, run_command
from testkit.pipelines.remedies import commands_of
from testkit.servers.broker import PrivateBroker
from testkit.servers.cassandra import PrivateCassandra
from testkit.servers.logged_cluster import LoggedCluster
from testkit.servers.servers import execute, execute_in


@pytest.fixture(scope="module")
def source(mariadb_server: PrivateServer) -> PrivateServer:
    """The tests do not depend on the kind of server."""
    return mariadb_server


class Shop:
    """A database with a table `t`, and pipes from it into the database `w` of the sink."""

    def __init__(self, source: PrivateServer, name: str, sink: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.source, self.name, self.sink, self.directory, self._capsys = source, name, sink, directory, capsys
        execute(source, f"CREATE DATABASE `{name}`")
        self.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 10), (2, 20)")

    def run(self, *statements: str) -> None:
        execute_in(self.source, self.name, *statements)

    def replicate(self, state: str, *options: str) -> tuple[int, str]:
        """The exit code and the error of one run."""
        self._capsys.readouterr()
        words = ["replicate", self.source.url(self.name), self.sink, "--state", str(self.directory / state), "--once", *options]
        code = cli.main(words)
        return code, self._capsys.readouterr().err

    def works(self, state: str, *options: str) -> None:
        code, error = self.replicate(state, *options)
        assert code == cli.OK, error

    def refused(self, state: str, owner: str, *targets: str, options: Sequence[str] = ()) -> str:
        """Return the remedy of the error that another pipe owns the targets."""
        code, error = self.replicate(state, *options)
        assert code == cli.FAILED, error
        assert f"another pipe writes to the target {', '.join(targets)}: pipe {owner} from " in error
        assert f"state directory {self.directory / owner} on " in error
        assert re.search(r"last seen \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|since \d{4}-", error)
        return error.partition("remedy: ")[2]


@pytest.fixture
def shops(
    source: PrivateServer, clickhouse: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    """Makes shops; each goes to its own database unless another is named."""
    without_spark(monkeypatch)
    made: list[str] = []

    def make(name: str, target: str) -> Shop:
        made.append(name)
        return Shop(source, name, f"clickhouse://default@127.0.0.1:{clickhouse.port}/{target}", tmp_path, capsys)

    yield make
    execute(source, *(f"DROP DATABASE `{name}`" for name in made))


def rows(client: Client, table: str) -> list[Any]:
    return sorted(client.query(f"SELECT id, v FROM {table} FINAL").result_rows)


def release(remedy: str) -> None:
    """Execute the one command of the remedy."""
    (command,) = commands_of(remedy)
    assert command[0] == "release"
    assert cli.main(command) == cli.OK


def test_a_second_pipe_is_refused_until_the_claim_of_the_first_is_given_up(shops: Any, client: Client) -> None:
    one, two = shops("own_one", "w1"), shops("own_two", "w1")
    two.run("UPDATE t SET v = 77", "CREATE TABLE other (id INT PRIMARY KEY, v INT)")
    one.works("a")
    before = client.query("SELECT name, total_rows FROM system.tables WHERE database = 'w1'").result_rows
    remedy = two.refused("b", "a", "w1.t")
    # Neither a row nor another table was written, and no claim.
    assert client.query("SELECT name, total_rows FROM system.tables WHERE database = 'w1'").result_rows == before
    assert rows(client, "w1.t") == [(1, 10), (2, 20)]
    assert not (two.directory / "b" / "pipe.json").exists()
    # The owner is not disturbed, and the second pipe is refused again.
    one.run("INSERT INTO t VALUES (3, 30)")
    one.works("a")
    two.refused("b", "a", "w1.t")
    assert rows(client, "w1.t") == [(1, 10), (2, 20), (3, 30)]
    # A pipe of the same source with another state is a second pipe, too.
    one.refused("c", "a", "w1.t")

    release(remedy)
    client.command("TRUNCATE TABLE w1.t")
    two.works("b")
    assert rows(client, "w1.t") == [(1, 77), (2, 77)]
    # Now the former owner is the second pipe.
    one.refused("a", "b", "w1.t")
    assert rows(client, "w1.t") == [(1, 77), (2, 77)]


def test_several_pipes_write_to_one_table_where_that_is_allowed(shops: Any, client: Client) -> None:
    one, two = shops("own_three", "w2"), shops("own_four", "w2")
    two.run("DELETE FROM t", "INSERT INTO t VALUES (11, 110)")
    one.works("a")
    two.works("b", "--shared-target", "--snapshot", "none")
    two.run("INSERT INTO t VALUES (12, 120)")
    two.works("b", "--shared-target")
    assert rows(client, "w2.t") == [(1, 10), (2, 20), (12, 120)]
    # The owner restarts, and a third pipe is refused.
    one.works("a")
    two.refused("b", "a", "w2.t")
    # An owner that starts to share gives its claim up.
    one.works("a", "--shared-target")
    two.works("b")
    one.refused("a", "b", "w2.t")


def test_a_state_keeps_its_tables_when_it_moves_or_is_restored_or_starts_over(shops: Any, client: Client) -> None:
    one = shops("own_five", "w3")
    one.works("a")
    shutil.copytree(one.directory / "a", one.directory / "backup")
    one.run("INSERT INTO t VALUES (3, 30)")
    shutil.move(one.directory / "a", one.directory / "moved")
    one.works("moved")
    shutil.rmtree(one.directory / "moved")
    shutil.move(one.directory / "backup", one.directory / "restored")
    one.run("INSERT INTO t VALUES (4, 40)")
    one.works("restored", "--name", "renamed")
    assert rows(client, "w3.t") == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert claims(client) == {("w3.t", "renamed", str(one.directory / "restored"))}
    # A directory that was removed to start over: a new state, the same pipe.
    shutil.rmtree(one.directory / "restored")
    one.run("INSERT INTO t VALUES (5, 50)")
    one.works("restored", "--name", "renamed")
    assert len(rows(client, "w3.t")) == 5
    assert len(claims(client)) == 1
    # Tables that were dropped to start over belong to no pipe.
    client.command("DROP TABLE w3.t")
    one.works("elsewhere")
    assert len(rows(client, "w3.t")) == 5
    assert claims(client) == {("w3.t", "elsewhere", str(one.directory / "elsewhere"))}
    # The claim of a deselected table is released.
    one.run("CREATE TABLE u (id INT PRIMARY KEY, v INT)")
    one.works("elsewhere", "--exclude", "own_five.t")
    assert {target for target, *_ in claims(client)} == {"w3.u"}


def claims(client: Client) -> set[tuple[str, str, str]]:
    sql = "SELECT target, pipe, directory FROM headrace.targets FINAL WHERE NOT removed AND target LIKE 'w3.%'"
    return {(target, pipe, directory) for target, pipe, directory in client.query(sql).result_rows}


@pytest.mark.parametrize("statement", ["CREATE TABLE t LIKE u", "RENAME TABLE u TO t"])
def test_a_table_that_appears_later_is_refused(shops: Any, client: Client, statement: str) -> None:
    kind = statement.split(maxsplit=1)[0].lower()
    one, two = shops(f"own_six_{kind}", f"w4_{kind}"), shops(f"own_seven_{kind}", f"w4_{kind}")
    target = f"w4_{kind}.t"
    two.run("RENAME TABLE t TO u")
    one.works("a")
    two.works("b")
    two.run(statement, "INSERT INTO t VALUES (7, 70)")
    two.refused("b", "a", target)
    assert rows(client, target) == [(1, 10), (2, 20)]
    one.works("a")
    # A pipe without the table continues.
    two.works("b", "--exclude", f"{two.name}.t")
    assert rows(client, target) == [(1, 10), (2, 20)]


def test_a_table_that_resync_adds_is_refused(shops: Any, client: Client) -> None:
    one, two = shops("own_eight", "w5"), shops("own_nine", "w5")
    two.run("CREATE TABLE u (id INT PRIMARY KEY, v INT)")
    one.works("a")
    two.works("b", "--tables", "own_nine.u")
    assert cli.main(["resync", "own_nine.t", "--state", str(two.directory / "b")]) == cli.OK
    two.refused("b", "a", "w5.t", options=("--tables", "own_nine.u"))
    assert rows(client, "w5.t") == [(1, 10), (2, 20)]


def test_of_pipes_that_start_at_the_same_moment_one_wins(shops: Any, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [shops("own_ten", "w6"), shops("own_eleven", "w6")]
    both, real = threading.Barrier(2, timeout=60), ClickHouseTargetClaims.read
    started = threading.local()

    def read_together(store: ClickHouseTargetClaims) -> list[Claim]:
        """Both pipes read before one of them writes."""
        found = real(store)
        if not getattr(started, "is_past", False):
            started.is_past = True
            both.wait()
        return found

    monkeypatch.setattr(ClickHouseTargetClaims, "read", read_together)
    outcomes: dict[str, DefiniteError | None] = {}

    def run(shop: Shop) -> None:
        settings = PipeSettings(Selection((f"{shop.name}.*",)), shop.directory / shop.name, once=True)
        try:
            with open_pipe(PipeSpec(shop.source.url(shop.name), shop.sink, settings), LogView()) as ready:
                ready.pipe.run()
            outcomes[shop.name] = None
        except DefiniteError as error:
            outcomes[shop.name] = error

    threads = [threading.Thread(target=run, args=(shop,)) for shop in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [name for name, error in outcomes.items() if error is None]
    (error,) = [error for error in outcomes.values() if error is not None]
    assert error.message.startswith(f"another pipe writes to the target w6.t: pipe {winner} ")
    found = client.query("SELECT pipe FROM headrace.targets FINAL WHERE NOT removed AND target = 'w6.t'").result_rows
    assert [pipe for (pipe,) in found] == [winner]


@pytest.mark.slow(
    because=(
        "test_a_second_pipe_is_refused_until_the_claim_of_the_first_is_given_up, test_of_pipes_that_start_at_the_same_moment_one_wins"
    ),
)
def test_a_pipe_that_runs_keeps_its_tables(source: PrivateServer, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    with source.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE own_live")
        cursor.execute("CREATE TABLE own_live.t (id INT PRIMARY KEY, v INT)")
        cursor.execute("INSERT INTO own_live.t VALUES (1, 10)")
        address = url_of(clickhouse)
        first, second = (Pipeline(source.url("own_live"), address, tmp_path / name) for name in ("first", "second"))
        with first.running() as live:
            live.until(lambda: client.query("EXISTS own_live.t").result_rows == [(1,)] and rows(client, "own_live.t") == [(1, 10)])
            ended = second.once()
            assert ended.code == cli.FAILED, ended.output
            assert "another pipe writes to the target own_live.t: pipe first from" in ended.output
            remedy = " ".join(ended.output.partition("remedy: ")[2].split())
            (command,) = commands_of(remedy)
            rejected = run_command(*command)
            assert rejected.code == cli.FAILED, rejected.output
            assert "pipe first still runs" in rejected.output
            live.kill()
        cursor.execute("INSERT INTO own_live.t VALUES (2, 20)")
        ended = first.once()
        assert ended.code == cli.OK, ended.output
        assert rows(client, "own_live.t") == [(1, 10), (2, 20)]
        assert run_command(*command).code == cli.OK
        cursor.execute("DROP DATABASE own_live")


def test_topics_have_one_owner(shops: Any, broker: PrivateBroker) -> None:
    one, two = shops("own_twelve", "w"), shops("own_thirteen", "w")
    one.sink = two.sink = f"kafka://{broker.servers}/own_${{table}}"
    one.works("a")
    assert len(read_topic(broker, "own_t")) == 2
    remedy = two.refused("b", "a", "own_t")
    assert len(read_topic(broker, "own_t")) == 2
    two.works("b", "--shared-target")
    assert len(read_topic(broker, "own_t")) == 4
    one.works("a")
    two.refused("c", "a", "own_t")
    release(remedy)
    two.works("c")
    one.refused("a", "c", "own_t")
    # A table that appears later.
    one.works("d", "--exclude", "own_twelve.t", "--tables", "own_twelve.*")
    for shop in (one, two):
        shop.run("CREATE TABLE later LIKE t")
    two.works("c")
    one.refused("d", "c", "own_later", options=("--exclude", "own_twelve.t", "--tables", "own_twelve.*"))


def test_tables_of_a_cluster_have_one_owner(
    cql: CqlSession,
    keyspace: str,
    cassandra: PrivateCassandra,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_spark(monkeypatch)
    cluster = LoggedCluster(cql, keyspace, f"CREATE TABLE {keyspace}.t (p int PRIMARY KEY, v int)")
    copy = f"{keyspace}_copy"
    cql.execute(f"CREATE KEYSPACE {copy} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    cluster.execute(f"INSERT INTO {keyspace}.t (p, v) VALUES (1, 10)")

    def replicate(state: str, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        ends = [cassandra.url(keyspace), cassandra.url(copy, scheme="cql")]
        code = cli.main(["replicate", *ends, "--state", str(tmp_path / state), "--once", *cluster.settings, *options])
        return code, capsys.readouterr().err

    try:
        assert replicate("a")[0] == cli.OK
        assert [tuple(row) for row in cql.execute(f"SELECT p, v FROM {copy}.t")] == [(1, 10)]
        code, error = replicate("b")
        assert code == cli.FAILED, error
        assert f"another pipe writes to the target {copy}.t: pipe a from " in error
        assert replicate("b", "--shared-target")[0] == cli.OK
        assert replicate("a")[0] == cli.OK
        release(error.partition("remedy: ")[2])
        assert replicate("c")[0] == cli.OK
        assert replicate("a")[0] == cli.FAILED
    finally:
        cql.execute(f"DROP KEYSPACE {copy}")
