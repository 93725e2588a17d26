"""Halts during streaming: earlier changes arrive, the message names the statement or the position, and the exit code is 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from testkit.oracles.both_ends import log_end, sink_client, sink_rows, source_rows
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Finished, Pipeline, run_command
from testkit.servers.accounts import Account
from testkit.servers.servers import execute_in


def pipeline_to(clickhouse: EmbeddedServer, source: str, state: Path, *options: str) -> Pipeline:
    return Pipeline(source, url_of(clickhouse), state, options)


def check_halt(done: Finished, *parts: str) -> None:
    assert done.code == 2, done.output
    message = done.output[done.output.rindex("headrace: ") :]
    assert "remedy: " in message
    assert "Traceback" not in done.output
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.soak("mysql", because="what differs between the servers is in test_schema_changes")
def test_a_halting_statement(
    server: PrivateServer, database: str, replica_account: Account, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """New tables are added, alterations without effect are ignored, and a halting statement halts at its position."""
    pipeline = pipeline_to(clickhouse, replica_account.url(database), tmp_path / "state")
    pipeline.options += ("--schema-changes", "drop_column=halt", "--schema-changes", "modify_column=halt")
    execute_in(server, database, "CREATE TABLE first (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO first VALUES (1, 'a')")
    last = "ALTER TABLE first DROP COLUMN v" if server.flavour == "mariadb" else "ALTER TABLE first MODIFY v VARCHAR(20) NOT NULL"
    with pipeline.running() as stream:
        stream.until(lambda: "snapshot: complete" in stream.output)
        execute_in(server, database, "CREATE TABLE second (id INT PRIMARY KEY, w INT)", "INSERT INTO second VALUES (1, 10), (2, 20)")
        execute_in(
            server, database, "CREATE TABLE third LIKE second", "INSERT INTO third SELECT * FROM second", "DELETE FROM second WHERE id = 1"
        )
        execute_in(server, database, "ALTER TABLE first ADD INDEX by_v (v), COMMENT 'same columns'", "ANALYZE TABLE first")
        execute_in(server, database, "CREATE TEMPORARY TABLE first (x INT)", "CREATE OR REPLACE VIEW seen AS SELECT 1 AS one")
        execute_in(server, database, "INSERT INTO first VALUES (2, 'b')", "UPDATE first SET v = 'c' WHERE id = 1")
        end = log_end(server)
        stream.until(lambda: (pipeline.committed_position() or (0, 0)) >= end)
        wanted = {table: source_rows(server, database, table) for table in ("first", "second", "third")}
        execute_in(server, database, last, "INSERT INTO second VALUES (3, 30)")
        done = stream.wait()
    check_halt(done, f"{database}.first", last, "binlog.", f"headrace resync {database}.first", "--schema-changes")
    found = {table: sorted(client.query(f"SELECT * FROM `{database}`.`{table}` FINAL").result_rows, key=repr) for table in wanted}
    assert {table: [tuple(row[:2]) for row in rows] for table, rows in found.items()} == wanted


@pytest.mark.slow(because="test_whole_tables, test_statements_while_tables_are_read, without Spark")
@pytest.mark.soak("mysql", because="what differs between the servers is in test_schema_changes")
def test_a_truncation_before_the_tables_are_first_read_is_applied(
    server: PrivateServer, database: str, replica_account: Account, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """The tables are read after the start position: a TRUNCATE in between must not be ignored."""
    execute_in(server, database, "CREATE TABLE emptied (id INT PRIMARY KEY)")
    number, offset = log_end(server)
    execute_in(server, database, "INSERT INTO emptied VALUES (1), (2)", "TRUNCATE TABLE emptied", "INSERT INTO emptied VALUES (3)")
    done = pipeline_to(clickhouse, replica_account.url(database), tmp_path / "state").once("--start-at", f"binlog.{number:06}:{offset}")
    assert done.code == 0, done.output
    assert sink_rows(client, server, database, "emptied") == source_rows(server, database, "emptied") == [(3,)]


@pytest.mark.slow(
    because=("test_a_pipe_halted_at_a_zero_date_resumes without Spark; test_a_halting_statement halts with Spark"),
)
def test_dates_that_do_not_exist(
    server: PrivateServer, database: str, replica_account: Account, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    execute_in(server, database, "CREATE TABLE days (id INT PRIMARY KEY, d DATE NOT NULL, t DATETIME)")
    execute_in(server, database, "SET SESSION sql_mode = ''", "INSERT INTO days VALUES (1, '2024-02-29', NULL)")
    pipeline = pipeline_to(clickhouse, replica_account.url(database), tmp_path / "halting")
    if server.flavour == "mariadb":
        insert_zero_date(server, database)
        done = pipeline.once()
    else:
        with pipeline.running() as stream:
            stream.until(lambda: "snapshot: complete" in stream.output)
            insert_zero_date(server, database)
            done = stream.wait()
    check_halt(done, "column d", f"{database}.days", "--zero-dates null")

    client.command(f"DROP DATABASE `{database}`")
    lenient = pipeline_to(clickhouse, replica_account.url(database), tmp_path / "lenient", "--zero-dates", "null")
    assert lenient.once().code == 0
    assert client.query(f"SELECT id, d FROM `{database}`.days FINAL ORDER BY id").result_rows[1] == (2, None)
    other = pipeline_to(clickhouse, replica_account.url(database), tmp_path / "lenient")
    check_halt(other.once(), "another --zero-dates")


def insert_zero_date(server: PrivateServer, database: str) -> None:
    execute_in(server, database, "SET SESSION sql_mode = ''", "INSERT INTO days VALUES (2, '0000-00-00', '2024-01-01')")


@pytest.mark.slow(
    because=(
        "test_a_damaged_event_of_log_files, test_files_that_are_purged_or_renamed, without Spark; test_a_halting_statement halts with Spark"
    ),
)
@pytest.mark.soak("mysql", because="the damage of both logs is in tests/damage")
def test_a_log_that_is_damaged_then_purged(
    fresh_server: Callable[..., PrivateServer], clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    server = fresh_server()
    database = f"damaged_{server.flavour}"
    execute_in(server, "mysql", f"CREATE DATABASE {database}")
    execute_in(server, database, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40))", "INSERT INTO t VALUES (0, 'snapshot')")
    pipeline = pipeline_to(clickhouse, server.url(database), tmp_path / "state")
    assert pipeline.once().code == 0
    execute_in(server, database, "INSERT INTO t VALUES (1, 'whole')", "INSERT INTO t VALUES (2, 'this one is damaged')")
    execute_in(server, database, "INSERT INTO t VALUES (3, 'beyond')")
    flip_byte(server, b"this one is damaged")
    done = pipeline.once()
    check_halt(done, "checksum", "binlog.", "snapshot")
    assert client.query(f"SELECT id, v FROM {database}.t FINAL ORDER BY id").result_rows == [(0, "snapshot"), (1, "whole")]

    execute_in(server, database, "FLUSH BINARY LOGS")
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        newest = cursor.fetchall()[-1][0]
        cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
    check_halt(pipeline.once(), "no longer has binary log", "binlog_expire_logs_seconds")
    assert server.password not in done.output


def flip_byte(server: PrivateServer, text: bytes) -> None:
    """Damage the event that holds `text`, on the server's disk."""
    [file] = [path for path in server.binlog_dir.glob("binlog.0*") if text in path.read_bytes()]
    at = file.read_bytes().index(text) + 5
    with file.open("r+b") as log:
        log.seek(at)
        byte = log.read(1)[0]
        log.seek(at)
        log.write(bytes([byte ^ 1]))


@pytest.mark.slow(because="test_events_rows_and_statements without Spark; test_a_halting_statement halts with Spark")
def test_changes_logged_as_statements(
    server: PrivateServer, database: str, replica_account: Account, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    execute_in(server, database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    pipeline = pipeline_to(clickhouse, replica_account.url(database), tmp_path / "state")
    with pipeline.running() as stream:
        stream.until(lambda: "snapshot: complete" in stream.output)
        execute_in(server, database, "INSERT INTO t VALUES (2, 2)", "SET SESSION binlog_format = 'STATEMENT'", "UPDATE t SET v = v + 1")
        done = stream.wait()
    check_halt(done, "UPDATE t SET v = v + 1", f"{database}.t")
    assert sink_rows(client, server, database, "t") == [(1, 1), (2, 2)]


@pytest.mark.slow(
    "mysql",
    because="test_verify_finds_what_differs[mariadb], test_equal_rows_of_every_type_have_equal_digests_and_no_difference_is_missed[mysql]",
)
def test_verify_finds_what_differs(server: PrivateServer, database: str, replica_account: Account, tmp_path: Path) -> None:
    execute_in(server, database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    columns = "id Int32, v Nullable(Int32), _sign Int8, _version UInt64, _deleted UInt8 MATERIALIZED _sign = -1"
    # In the shared sink, verify would find the pipe of another test and report that it is behind.
    with EmbeddedServer(tmp_path / "ch") as sink, sink_client(sink.url) as client:
        client.command(f"CREATE DATABASE `{database}`")
        client.command(f"CREATE TABLE `{database}`.t ({columns}) ENGINE = ReplacingMergeTree(_version, _deleted) ORDER BY id")
        client.command(f"INSERT INTO `{database}`.t (id, v, _sign, _version) VALUES (1, 1, 1, 1), (2, 7, 1, 1), (4, 4, 1, 1)")
        done = run_command("verify", replica_account.url(database), url_of(sink))
    assert done.code == 1
    assert done.output.splitlines()[-1] == "verify: 1 tables, 3 rows, 3 differences"
    assert replica_account.password not in done.output
