"""One pipe with tables with and without keys that are created, dropped, truncated, swapped and read again while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from testkit.oracles.both_ends import log_end, sink_client, sink_rows, source_rows
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Pipeline, Run, run_command
from testkit.servers.accounts import create_locking_account
from testkit.servers.servers import execute_in

KEYLESS = "CREATE TABLE keyless (a INT, b VARCHAR(20), c ENUM('x', 'y'))"
TABLES = (
    "CREATE TABLE keyed (id INT PRIMARY KEY, v VARCHAR(20))",
    "CREATE TABLE uniquely (v VARCHAR(20), code CHAR(4) NOT NULL, loose INT, UNIQUE KEY by_loose (loose), UNIQUE KEY by_code (code))",
    KEYLESS,
    "CREATE TABLE skipped_one (id INT PRIMARY KEY)",
    "CREATE TABLE private (id INT PRIMARY KEY, shown INT, hidden VARCHAR(20))",
    "INSERT INTO private VALUES (1, 10, 'secret')",
    "INSERT INTO keyed VALUES (1, 'one'), (2, 'two'), (3, 'three')",
    "INSERT INTO uniquely VALUES ('a', 'AAAA', 1), ('b', 'BBBB', NULL), ('c', 'CCCC', NULL)",
    "INSERT INTO keyless VALUES (1, 'same', 'x'), (1, 'same', 'x'), (NULL, NULL, NULL), (NULL, NULL, NULL), (2, 'other', 'y')",
    "INSERT INTO skipped_one VALUES (7)",
)
CHANGES = (
    "INSERT INTO private VALUES (2, 20, 'secret')",
    "UPDATE private SET hidden = 'other' WHERE id = 1",
    "INSERT INTO keyless VALUES (1, 'same', 'x'), (3, 'new', 'y')",
    "DELETE FROM keyless WHERE a IS NULL LIMIT 1",
    "UPDATE keyless SET b = 'moved' WHERE a = 1 LIMIT 2",
    "UPDATE keyless SET b = b",
    "UPDATE uniquely SET code = 'DDDD', v = 'moved' WHERE code = 'AAAA'",
    "DELETE FROM uniquely WHERE code = 'BBBB'",
    "CREATE TABLE later (id INT PRIMARY KEY, v DECIMAL(9,2))",
    "INSERT INTO later VALUES (1, 1.5), (2, 2.5)",
    "TRUNCATE TABLE later",
    "INSERT INTO later VALUES (2, 3.5)",
    "CREATE TABLE derived (PRIMARY KEY (id)) SELECT id, v FROM later",
    "INSERT INTO derived VALUES (7, 8.5)",
    "CREATE TABLE fleeting (id INT PRIMARY KEY)",
    "INSERT INTO fleeting VALUES (1)",
    "DROP TABLE fleeting",
)
# The steps of gh-ost on `keyed`: a copy with another definition, filled, then swapped.
SWAP = (
    "CREATE TABLE _keyed_gho LIKE keyed",
    "ALTER TABLE _keyed_gho ADD COLUMN extra BIGINT NOT NULL DEFAULT 9, MODIFY v VARCHAR(50) NOT NULL",
    "INSERT IGNORE INTO _keyed_gho (id, v) SELECT id, v FROM keyed LOCK IN SHARE MODE",
    "RENAME TABLE keyed TO _keyed_del, _keyed_gho TO keyed",
    "DROP TABLE _keyed_del",
    "INSERT INTO keyed VALUES (10, 'after the swap', 1)",
)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "ch") as running:
        yield running


@pytest.fixture
def client(sink: EmbeddedServer) -> Iterator[Client]:
    with sink_client(sink.url) as found:
        yield found


def caught_up(pipeline: Pipeline, server: PrivateServer, stream: Run) -> None:
    end = log_end(server)
    stream.until(lambda: (pipeline.committed_position() or (0, 0)) >= end)


def multiset(client: Client, database: str, table: str) -> Counter[Any]:
    return Counter(tuple(row) for row in client.query(f"SELECT a, b, c FROM `{database}`.`{table}_current`").result_rows)


def compare(client: Client, server: PrivateServer, database: str, *tables: str) -> None:
    for table in tables:
        assert sink_rows(client, server, database, table) == source_rows(server, database, table), table
    assert multiset(client, database, "keyless") == Counter(source_rows(server, database, "keyless"))


@pytest.mark.slow(because="test_whole_tables, test_statements_while_tables_are_read, test_tables_come_and_go_and_come, without Spark")
@pytest.mark.soak("mysql", because="test_schema_changes and test_kept_tables are on both, without Spark")
@pytest.mark.timeout(900)
def test_a_pipe_s_tables(server: PrivateServer, database: str, sink: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    target = url_of(sink)
    hidden = ("--exclude-columns", "*.private.hidden")
    mode = "consistent" if server.flavour == "mariadb" else "lock-free"
    options = ("--exclude", "skipped*", "--exclude", "_*", "--snapshot", mode, *hidden)
    account = create_locking_account(server)
    pipeline = Pipeline(account.url(database), target, tmp_path / "state", options)
    execute_in(server, database, *TABLES)
    with pipeline.running() as stream:
        stream.until(lambda: "snapshot: complete" in stream.output)
        assert ("they were locked for" in stream.output) == (mode == "consistent")
        execute_in(server, database, *CHANGES)
        caught_up(pipeline, server, stream)
        stream.until(lambda: stream.output.count("snapshot: complete") == 2)
        compare(client, server, database, "keyed", "uniquely", "later", "derived")
        assert client.query(f"SELECT * EXCEPT _version FROM `{database}`.private FINAL ORDER BY id").result_rows == [(1, 10, 1), (2, 20, 1)]
        assert {"skipped_one", "fleeting"}.isdisjoint(row[0] for row in client.query(f"SHOW TABLES FROM `{database}`").result_rows)

        # A row that the source never had and a missing one: reading the table again repairs both.
        client.command(
            f"INSERT INTO `{database}`.keyed (id, v, _sign, _version) VALUES (99, 'stray', 1, 5), (2, 'two', -1, 6917529027641081856)"
        )
        client.command(f"INSERT INTO `{database}`.keyless (a, b, _sign, _version, _occurrence) VALUES (9, 'stray', 1, 5, 5)")
        client.command(f"ALTER TABLE `{database}`.keyed DELETE WHERE id = 2 SETTINGS mutations_sync = 2")
        asked = run_command("resync", f"{database}.keyed", f"{database}.keyless", f"{database}.skipped_one", "--state", str(pipeline.state))
        assert "the running pipe" in asked.output, asked.output
        stream.until(lambda: stream.output.count("snapshot: complete") == 3)
        execute_in(
            server, database, "INSERT INTO keyless VALUES (1, 'same', 'x')", "DELETE FROM keyless WHERE a = 3", "DELETE FROM skipped_one"
        )
        execute_in(server, database, "INSERT INTO skipped_one VALUES (8)", "INSERT INTO uniquely VALUES ('z', 'ZZZZ', 26)")
        caught_up(pipeline, server, stream)
        compare(client, server, database, "keyed", "uniquely", "later", "skipped_one")

        execute_in(server, database, *SWAP)
        stream.until(lambda: stream.output.count("snapshot: complete") == 4)
        execute_in(server, database, "UPDATE keyed SET extra = id WHERE id < 3")
        caught_up(pipeline, server, stream)
        compare(client, server, database, "keyed", "uniquely", "later", "skipped_one")
        assert not [name for (name,) in client.query(f"SHOW TABLES FROM `{database}`").result_rows if "gho" in name]
        execute_in(server, database, "DROP TABLE later")
        caught_up(pipeline, server, stream)
        assert "later" not in {row[0] for row in client.query(f"SHOW TABLES FROM `{database}`").result_rows}
        assert stream.terminate().code == 143

    # A name that is used again while the pipe is stopped is another table, whose rows are read.
    execute_in(
        server, database, "CREATE TABLE later (id INT PRIMARY KEY, w VARCHAR(9))", "INSERT INTO later VALUES (1, 'again'), (5, 'new')"
    )
    # An alteration that the policy does not apply halts the pipe, and its remedies work.
    execute_in(server, database, "ALTER TABLE uniquely DROP COLUMN loose, ADD COLUMN added INT DEFAULT 4")
    halted = pipeline.once("--schema-changes", "drop_column=halt")
    assert halted.code == 2, halted.output
    assert f"headrace resync {database}.uniquely" in halted.output
    if server.flavour == "mariadb":
        asked = run_command("resync", f"{database}.uniquely", "--state", str(pipeline.state))
        assert "no pipe runs now" in asked.output
    done = pipeline.once("--schema-changes", "drop_column=apply")
    assert done.code == 0, done.output
    compare(client, server, database, "keyed", "uniquely", "later")
    verified = run_command("verify", account.url(database), target, *hidden)
    assert verified.output.splitlines()[-1].endswith("0 differences"), verified.output
    assert account.password not in (tmp_path / "state" / "pipe.json").read_text()
