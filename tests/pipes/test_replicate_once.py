"""`replicate --once`: stop and continue, several databases, no new changes, and a transaction larger than all buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.segments.row_counter import groups_within
from testkit.oracles.binlogs import open_logbook, scan_log
from testkit.oracles.both_ends import assert_equal, log_end, sink_client
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Pipeline, Run, command_lines, resident_bytes
from testkit.servers.accounts import Account

WORKER_BYTES = 700 << 20
ROWS = 300_000

# Tables that were created while the pipe was stopped, with rows that only the log has.
WHILE_AWAY = (
    "CREATE TABLE emptied (id INT PRIMARY KEY)",
    "INSERT INTO emptied VALUES (1), (2), (3)",
    "TRUNCATE TABLE emptied",
    "INSERT INTO emptied VALUES (3), (4)",
    "CREATE TABLE remade (id INT PRIMARY KEY, old VARCHAR(9))",
    "INSERT INTO remade VALUES (1, 'old')",
    "DROP TABLE remade",
    "CREATE TABLE remade (new_one DECIMAL(9,2), id BIGINT PRIMARY KEY)",
    "INSERT INTO remade VALUES (1.5, 2)",
    "CREATE TABLE fleeting (id INT PRIMARY KEY)",
    "INSERT INTO fleeting VALUES (1)",
    "DROP TABLE fleeting",
)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "ch") as running:
        yield running


@pytest.fixture
def databases(server: PrivateServer, database: str) -> Iterator[tuple[str, str]]:
    """Two databases with 2,000 rows each."""
    second = f"{database}_b"
    with closing(server.root_connection()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {second}")
        for name in (database, second):
            numbers = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
            cursor.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v VARCHAR(60), d DECIMAL(9,3))")
            cursor.execute(f"INSERT INTO {name}.t {numbers} SELECT i, CONCAT('value ', i), i / 8 FROM n")
            cursor.execute(f"INSERT INTO {name}.t SELECT id + 1000, v, -d FROM {name}.t")
            cursor.execute(f"CREATE TABLE {name}.`odd ``name` (k VARCHAR(9) PRIMARY KEY)")
            cursor.execute(f"ANALYZE TABLE {name}.t")
        yield database, second
        cursor.execute(f"DROP DATABASE {second}")


@pytest.mark.slow("mysql", because="test_resume_after_ctrl_c[mariadb]; test_one_kill[MySqlToDebeziumJson] runs such a pipe")
@pytest.mark.timeout(900)
def test_resume_after_ctrl_c(
    server: PrivateServer, databases: tuple[str, str], replica_account: Account, sink: EmbeddedServer, tmp_path: Path
) -> None:
    target = url_of(sink)
    globs = tuple(f"{name}.*" for name in databases)
    pipeline = Pipeline(replica_account.url(), target, tmp_path / "state", ("--chunk-rows", "100"), tables=globs)

    # Ctrl-C during the snapshot: completed chunks are kept.
    with pipeline.running() as interrupted:
        interrupted.until(lambda: pipeline.chunks_done() >= 3)
        stopped = interrupted.interrupt_group()
    assert stopped.code == 130, stopped.output
    assert "Traceback" not in stopped.output
    before = pipeline.chunks_done()
    assert 3 <= before < pipeline.chunks_planned()

    assert pipeline.once().code == 0
    assert pipeline.chunks_done() == pipeline.chunks_planned()
    assert (tmp_path / "state" / "snapshot.jsonl").read_text().count('"chunks"') == 4
    check(pipeline, server, databases, target)
    # The mode of the directory protects Spark's own files, which hold only positions.
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    kept = [file for file in (tmp_path / "state").rglob("*") if "checkpoint" not in file.parts]
    assert kept
    assert [str(file) for file in kept if file.stat().st_mode & 0o077] == []


@pytest.mark.slow(
    because=(
        "test_resume_after_ctrl_c; test_a_transaction_larger_than_the_limit_comes_through, "
        "test_a_single_group_beyond_every_limit_is_a_batch, "
        "test_a_batch_has_no_more_rows_than_it_may_unless_one_transaction_has, without Spark"
    )
)
@pytest.mark.timeout(900)
def test_nothing_new_and_a_large_backlog(
    server: PrivateServer, databases: tuple[str, str], replica_account: Account, sink: EmbeddedServer, tmp_path: Path
) -> None:
    target = f"clickhouse://default@127.0.0.1:{sink.port}"
    globs = tuple(f"{name}.*" for name in databases)
    pipeline = Pipeline(replica_account.url(), target, tmp_path / "state", tables=globs)
    assert pipeline.once().code == 0
    again = pipeline.once()
    assert again.code == 0, again.output
    assert "nothing new since" in again.output
    batches = pipeline.last_committed_batch()

    # A backlog far larger than the relay may hold, with one transaction larger than any batch.
    first = databases[0]
    with closing(server.root_connection(first)) as connection, connection.cursor() as cursor:
        limit = "cte_max_recursion_depth" if server.flavour == "mysql" else "max_recursive_iterations"
        cursor.execute(f"SET SESSION {limit} = 1000000")
        numbers = f"WITH RECURSIVE n AS (SELECT 10001 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {10_000 + ROWS})"
        cursor.execute(f"INSERT INTO t {numbers} SELECT i, CONCAT('large transaction ', i), i / 8 FROM n")
        for n in range(30):
            cursor.execute(f"UPDATE t SET d = {n} WHERE id <= 100")
        cursor.execute("DELETE FROM t WHERE id % 10 = 0")
        for statement in WHILE_AWAY:
            cursor.execute(statement)
    end = log_end(server)
    run = pipeline.start("--once", "--flush-bytes", "512K", "--relay-bytes", "1M", "--flush-rows", "500")
    peaks = watch_memory(run)
    done = run.wait()
    assert done.code == 0, done.output
    assert (pipeline.committed_position() or (0, 0)) >= end
    # The transaction is one batch; 30 updates of 100 rows make at least 6 of at most 500; the deletion is one.
    assert pipeline.last_committed_batch() - batches >= 8
    workers = {name: peak for name, peak in peaks.items() if "java" not in name}
    print(f"{server.flavour}: peak memory { ({name: f'{peak >> 20} MiB' for name, peak in peaks.items()}) }")
    assert max(workers.values()) < WORKER_BYTES
    check(pipeline, server, databases, target, ("emptied", "remade"))


def watch_memory(run: Run) -> dict[str, int]:
    """Peak memory by kind of process, until the run ends."""
    peaks: dict[str, int] = {}
    while run.code is None:
        for pid, peak in resident_bytes(run.processes()).items():
            words = [word for word in command_lines([pid]).split() if word != "pyspark.daemon"]
            name = next((word for word in words if word.startswith(("pyspark.", "headrace"))), words[0] if words else "")
            peaks[name] = max(peaks.get(name, 0), peak)
        try:
            run.until(lambda: False, 0.2)
        except AssertionError:
            continue
    return peaks


def check(pipeline: Pipeline, server: PrivateServer, databases: tuple[str, str], target: str, tables: tuple[str, ...] = ()) -> None:
    verified = pipeline.verify()
    assert (verified.code, verified.output.splitlines()[-1][-13:]) == (0, "0 differences"), verified.output
    with sink_client(target) as client:
        for name in databases:
            assert assert_equal(client, server, name, ("t",), {"t": "id"}) >= 2000
        if tables:
            assert assert_equal(client, server, databases[0], tables, dict.fromkeys(tables, "id")) == 3


def test_changes_are_counted_exactly(server: PrivateServer, database: str) -> None:
    """The count of the row walk equals the number of changed rows, for every column layout."""
    columns = "id INT PRIMARY KEY, a BIGINT UNSIGNED, b DECIMAL(40,20), c VARCHAR(300), d CHAR(9), e MEDIUMBLOB, f JSON, g ENUM('x','y')"
    columns += ", h SET('p','q'), i BIT(11), j DATETIME(3), k TIMESTAMP(6) NULL, l TIME(1), m YEAR, n DATE, o FLOAT, p DOUBLE, q MEDIUMINT"
    columns += ", r GEOMETRY, s VARBINARY(20), t TINYTEXT"
    with open_logbook(server, database) as book:
        book.run(f"CREATE TABLE wide ({columns})")
        start = book.place()
        expected = []
        for n in range(1, 30):
            values = [f"({n * 100 + i}, {i})" if i % 3 else f"({n * 100 + i}, NULL)" for i in range(n)]
            book.run("BEGIN", f"INSERT INTO wide (id, a) VALUES {', '.join(values)}")
            rest = "c = REPEAT('c', id % 299), d = 'd', e = REPEAT('e', id), f = '[1, 2]', g = 'y', h = 'p,q', i = 5, j = NOW(3)"
            rest += ", k = NOW(6), l = '-12:13:14.5', m = 2024, n = '2024-01-01', o = 1.5"
            rest += ", p = 2.5, q = -3, r = POINT(1, 2), s = 'bin', t = 'text'"
            book.run(f"UPDATE wide SET b = id / 7, {rest} WHERE id >= {n * 100}", f"DELETE FROM wide WHERE id = {n * 100}", "COMMIT")
            expected.append(n + n + 1)
        segment = book.segment(start)
        status, groups, _, _ = scan_log(book.bytes_of(segment), segment.start, checksum=segment.checksum)
    assert status == scan.OK
    ends = np.ascontiguousarray(groups[:, scan.END])
    assert len(ends) == len(expected)
    total = 0
    for count, changes in enumerate(expected, 1):
        total += changes
        assert groups_within(segment.pieces(), ends, total, segment.file) == (count, total)
        assert groups_within(segment.pieces(), ends, total - 1, segment.file)[0] == count - 1
