"""An address that a pipe has never reached fails fast; for a known one it waits. A mistyped directory is an error."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import headrace
from headrace import cli, retry
from headrace.cli import main
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import TransientError
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.server.url import parse_target
from headrace.sinks.clickhouse.sink import ClickHouseSink
from testkit.oracles.binlogs import open_logbook
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.servers.broker import PrivateBroker
from testkit.servers.cassandra import GivenCluster, PrivateCassandra

AWAY = "127.0.0.1:1"


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_CONTACT_S", 1.0)


def fails_fast(state: Path, *words: str) -> None:
    begun = time.monotonic()
    assert main(["replicate", *words, "--state", str(state)]) == cli.FAILED
    assert time.monotonic() - begun < 20
    assert not (state / "pipe.json").exists()


def test_the_default_is_short() -> None:
    assert retry.FIRST_CONTACT_S <= 10 < retry.DEADLINE_S


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("rows", ["one table", "no table"])
@pytest.mark.parametrize("away", [f"clickhouse://default@{AWAY}", f"kafka://{AWAY}"])
def test_a_sink_of_a_server(
    mariadb_server: PrivateServer, tmp_path: Path, away: str, rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    database = f"contact_{abs(hash((away, rows))):x}"
    with mariadb_server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        if rows == "one table":
            cursor.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    fails_fast(tmp_path / "state", mariadb_server.url(database), away, *(["--once"] if rows == "no table" else []))
    said = capsys.readouterr().err
    assert AWAY in said
    assert "remedy: " in said


@pytest.mark.usefixtures("fast")
def test_a_sink_of_topics(broker: PrivateBroker, tmp_path: Path) -> None:
    topic = broker.create_topic()
    fails_fast(tmp_path / "state", broker.url(), f"clickhouse://default@{AWAY}", "--topics", topic)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("away", [f"clickhouse://default@{AWAY}", f"kafka://{AWAY}", f"cql://{AWAY}/copy"])
def test_a_sink_of_a_cluster(cassandra: PrivateCassandra | GivenCluster, keyspace: str, tmp_path: Path, away: str) -> None:
    host, port = cassandra.address().hosts[0]
    fails_fast(tmp_path / "state", f"scylla://{host}:{port}/{keyspace}", away)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "words",
    [(f"mysql://root@{AWAY}/shop",), (f"kafka://{AWAY}", "--topics", "t"), (f"scylla://{AWAY}/ks",)],
    ids=["mysql", "kafka", "scylla"],
)
def test_a_source(clickhouse: EmbeddedServer, tmp_path: Path, words: tuple[str, ...]) -> None:
    source, *more = words
    fails_fast(tmp_path / "state", source, url_of(clickhouse), *more)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("source", [f"mysql://root@{AWAY}/shop", f"kafka://{AWAY}/t", f"scylla://{AWAY}/ks"])
def test_a_source_of_tail(source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for timeout in (
        "headrace.api.feed._CONNECT_PATIENCE_S",
        "headrace.kafka.consumers.message_source._ASK_S",
        "headrace.pipes.scylla.tail._PATIENCE_S",
    ):
        monkeypatch.setattr(timeout, 300.0)
    begun = time.monotonic()
    assert main(["tail", source]) == cli.FAILED
    assert time.monotonic() - begun < 60
    said = capsys.readouterr().err
    assert AWAY in said
    assert "remedy: " in said


@pytest.mark.parametrize(
    ("start", "waits"),
    [
        *(("now", False), ("oldest", False), ("binlog.000001:4", False)),
        *(({"file": "binlog.000001", "pos": 4}, True), ('{"file": "binlog.000001", "pos": 4}', True)),
    ],
)
def test_a_source_of_changes(
    start: str | dict[str, object], waits: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stored position shows that the server was reached before: the pipe waits for it."""
    monkeypatch.setattr(retry, "FIRST_CONTACT_S", 0.0)
    monkeypatch.setattr("headrace.api.feed._CONNECT_PATIENCE_S", 0.5)
    for read in (headrace.changes, headrace.transactions):
        caplog.clear()
        with pytest.raises(TransientError, match="does not answer"):
            read(f"mysql://root@{AWAY}/shop", start=start)
        assert ("; try 1, again in" in caplog.text) is waits


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_one_kill[MySqlToDebeziumJson]")
@pytest.mark.parametrize("which", ["source", "sink"])
def test_a_pipe_that_has_run_before_waits(
    server: PrivateServer, database: str, clickhouse: EmbeddedServer, tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_CONTACT_S", 0.1)
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY)")
        DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open().catch_up()
        target = parse_target(f"clickhouse://default@{AWAY}" if which == "sink" else url_of(clickhouse))
        address = book.address if which == "sink" else type(book.address)("127.0.0.1", 1, "root", "")
        settings = PipeSettings(Selection((f"{database}.*",)), tmp_path / "state", name=database)
        pipe = MySQLPipe(address, ClickHouseSink(target), "sink", settings, LogView())
        failures: list[BaseException] = []

        def run() -> None:
            try:
                pipe.run()
            except BaseException as error:  # noqa: BLE001 (it is looked at below)
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(2.5)
        assert thread.is_alive()
        assert pipe.waits.current() is not None
        pipe.stop()
        thread.join(20)
        assert not thread.is_alive()


SOURCE = "mysql://root@127.0.0.1:1/shop"


@pytest.mark.parametrize("place", ["missing", "other"])
@pytest.mark.parametrize(
    "words",
    [
        ("sql", "SINK", "SELECT 1"),
        ("sql", "SINK", "SHOW CREATE DATABASE shop"),
        ("sql", "SINK", "DROP DATABASE shop"),
        ("verify", SOURCE, "SINK"),
        ("verify", "scylla://127.0.0.1:1/ks", "SINK"),
        ("retry", "SINK"),
        ("retry", "SINK", "--list"),
        (
            "ddl",
            "ALTER TABLE t ADD COLUMN x INT",
            "--schema",
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "--database",
            "shop",
            "--sink",
            "SINK",
        ),
    ],
    ids=lambda words: " ".join(words[:1] + words[2:3]),
)
def test_a_mistyped_directory_is_an_error(words: tuple[str, ...], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typo = tmp_path / "typo"
    if place == "other":
        typo.mkdir()
        (typo / "notes.txt").write_text("no database")
    before = sorted(tmp_path.rglob("*"))
    assert main([f"chdb:{typo}" if word == "SINK" else word for word in words]) == cli.FAILED
    said = capsys.readouterr().err
    assert f"chdb:{typo}" in said
    assert "check the path" in said
    assert sorted(tmp_path.rglob("*")) == before


def test_the_printed_remedy_makes_a_directory(clickhouse: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`headrace sql` opens a directory of `headrace serve`, also when no server runs."""
    with EmbeddedServer(tmp_path / "made"):
        pass
    assert main(["sql", f"chdb:{tmp_path / 'made'}", "SELECT 6 * 7 AS answer"]) == cli.OK
    assert "42" in capsys.readouterr().out
    assert main(["sql", url_of(clickhouse), "SELECT 6 * 7 AS answer"]) == cli.OK
