"""A pipe without tables runs and waits for them: an empty database, tables that were all dropped, a pattern that matches nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.pipes.state.stored_settings import check_unmatched
from testkit.oracles.binlogs import open_logbook
from testkit.oracles.both_ends import sink_rows, source_rows
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.accounts import Account
from testkit.servers.broker import PrivateBroker
from testkit.servers.servers import execute_in

LATER = "a table that is created later will be replicated"


def test_tables_come_and_go_and_come(
    server: PrivateServer, database: str, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_logbook(server, database) as book:
        pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open()
        assert LATER in caplog.text
        pipe.catch_up()
        # Restarts find no tables.
        pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open()
        book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
        pipe.catch_up()
        assert_same(client, book, ["t"])
        book.run("DROP TABLE t")
        pipe.catch_up()
        caplog.clear()
        pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open()
        assert LATER in caplog.text
        # Dropped while the pipe is stopped, and created again with other columns.
        book.run("CREATE TABLE t (id INT PRIMARY KEY, w VARCHAR(9))", "INSERT INTO t VALUES (3, 'c')")
        pipe.catch_up()
        book.run("DROP TABLE t")
        pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open()
        pipe.catch_up()
        book.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (7)")
        DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open().catch_up()
        assert_same(client, book, ["t"])


@pytest.mark.slow(because="test_tables_come_and_go_and_come without Spark")
@pytest.mark.soak("mysql", because="the other tests are on both")
def test_a_live_pipe_waits_for_the_first_table(
    server: PrivateServer, database: str, replica_account: Account, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    pipeline = Pipeline(replica_account.url(database), url_of(clickhouse), tmp_path / "state")
    done = pipeline.once()
    assert done.code == 0, done.output
    assert f"matches {database}.*; {LATER}" in done.output
    with pipeline.running() as stream:
        stream.until(lambda: "replicating 0 tables" in stream.output)
        execute_in(server, database, "CREATE TABLE first (id INT PRIMARY KEY, v INT)", "INSERT INTO first VALUES (1, 10), (2, 20)")
        count = f"SELECT count() FROM system.tables WHERE database = '{database}' AND name = 'first'"
        stream.until(lambda: client.query(count).result_rows[0][0] and len(sink_rows(client, server, database, "first")) == 2)
        assert sink_rows(client, server, database, "first") == source_rows(server, database, "first")
        assert stream.terminate().code == 143


def test_a_table_that_is_named_must_exist_when_a_pipe_is_new(
    server: PrivateServer, database: str, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = Selection((f"{database}.orders", f"{database}.x*"))
    with pytest.raises(DefiniteError, match=f"the source has no table {database}.orders") as caught:
        check_unmatched(chosen, (), "here", is_new=True)
    # The printed pattern waits for the table.
    pattern = caught.value.hint.rpartition("--tables ")[2].strip("'")
    with open_logbook(server, database) as book:
        pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", selection=Selection((pattern,))).open()
        book.run("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1)", "CREATE TABLE other (id INT PRIMARY KEY)")
        pipe.catch_up()
        assert_same(client, book, ["orders"])
        assert [str(name) for name in pipe.state.tables] == [f"{database}.orders"]
    # Later the table may have been dropped.
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        check_unmatched(chosen, (), "here", is_new=False)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        f"no table of here matches {database}.orders",
        f"no table of here matches {database}.x*",
    ]


def test_checks_warn_of_patterns_and_fail_for_names(
    server: PrivateServer, database: str, replica_account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(*options: str) -> tuple[int, dict[str, str]]:
        code = cli.main(["check", replica_account.url(database), "--json", *options])
        return code, {finding["name"]: finding["level"] for finding in json.loads(capsys.readouterr().out)["findings"]}

    code, found = check()
    assert (code, found["tables"], found[f"tables {database}.*"]) == (0, "ok", "warning")
    execute_in(server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    code, found = check("--tables", "t", "--tables", "x*")
    assert (code, found[f"tables {database}.x*"]) == (0, "warning")
    assert f"tables {database}.t" not in found
    code, found = check("--tables", "t", "--tables", "nosuch")
    assert (code, found[f"table {database}.nosuch"]) == (2, "error")


def test_a_file_of_pipes_without_tables_and_topics_is_sound(
    database: str,
    replica_account: Account,
    broker: PrivateBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(f"""
[sources.empty]
url = "{replica_account.url(database)}"
[sources.topics]
url = "{broker.url()}"
topics = ["nobody.writes.*"]
[sinks.here]
url = "chdb:{tmp_path / "warehouse"}"
[pipes.a]
source = "empty"
sink = "here"
[pipes.b]
source = "topics"
sink = "here"
""")
    code = cli.main(["config", "check", "--connect", str(file)])
    said = "".join(capsys.readouterr())
    assert code == 0, said
    assert f"no table matches {database}.*" in said
    assert "no topic matches nobody" in said
