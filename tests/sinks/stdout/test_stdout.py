"""Changes on the standard output: the folded lines equal the source's SELECT."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.sources.mysql.rows import row_decoder
from testkit.generators.workload import TABLES, Workload, run_transaction
from testkit.machine.wait_condition import wait_until
from testkit.oracles.binlogs import open_logbook
from testkit.oracles.both_ends import source_rows
from testkit.pipelines.local_pipeline import without_spark
from testkit.pipelines.pipeline import PATIENCE_S, Pipeline, Run

Line = dict[str, Any]


def fold(lines: Iterable[Line], table: str) -> list[tuple[Any, ...]]:
    """Fold the lines in their order; return the rows."""
    rows: dict[str, Line] = {}
    for line in lines:
        if line["table"] != table or line["op"] == "schema":
            continue
        if line["before"] is not None:
            key = json.dumps({name: line["before"][name] for name in line["key"]})
            if line["op"] != "snapshot":
                assert rows.pop(key) == line["before"]
        if line["after"] is not None:
            rows[json.dumps(line["key"])] = line["after"]
    return sorted((tuple(plain(name, value) for name, value in row.items()) for row in rows.values()), key=repr)


def plain(name: str, value: Any) -> Any:
    """A value in the form of PyMySQL."""
    convert: Callable[[Any], Any] | None = {"balance": Decimal, "changed": datetime.fromisoformat}.get(name)
    return convert(value) if convert is not None and value is not None else value


def test_snapshot_changes_and_statements(
    server: PrivateServer,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    without_spark(monkeypatch)
    # Small blocks, so that a batch has many.
    monkeypatch.setattr(row_decoder, "MAX_BLOCK_ROWS", 24)
    Workload(server, database, 7).prepare()
    chance, printed = random.Random(7), []
    command = ["replicate", server.url(database, server.user, server.password), "stdout:", "--state", str(tmp_path / "state"), "--once"]

    def run() -> list[Line]:
        assert cli.main(command) == 0
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        found = [json.loads(line) for line in out.splitlines()]
        printed.extend(found)
        return found

    with open_logbook(server, database) as book, server.root_connection(database, autocommit=False) as connection:
        first = run()
        assert {line["op"] for line in first} == {"snapshot"}
        for _ in range(30):
            run_transaction(connection, chance)
        second = run()
        for _ in range(5):
            run_transaction(connection, chance)
        book.run("ALTER TABLE notes ADD COLUMN more INT DEFAULT 7", "INSERT INTO notes (title, more) VALUES ('one more', 8)")
        third = run()
        book.run("TRUNCATE TABLE parts")
        fourth = run()
    for found in (second, third):
        versions = [line["version"] for line in found if line["op"] not in ("schema", "snapshot")]
        # In the order of the log, over all tables, and none twice.
        assert versions == sorted(set(versions))
        assert {line["table"] for line in found} == set(TABLES)
    [altered] = [line for line in third if line["op"] == "schema"]
    assert (altered["table"], altered["kind"], altered["outcome"]) == ("notes", "add_column", "applied")
    assert "ADD COLUMN more" in altered["statement"]
    after = [line for line in third if line["table"] == "notes" and line["version"] > altered["version"] and line["after"]]
    assert [line["after"]["more"] for line in after] == [8]
    assert [(line["op"], line["table"]) for line in fourth] == [("schema", "parts")]
    assert fold(printed, "accounts") == source_rows(server, database, "accounts")
    assert {line["transaction"] for line in second} != {None}


@pytest.mark.slow(
    because=(
        "test_one_kill_of_a_printing_pipe with Spark, test_snapshot_changes_and_statements without; "
        "test_a_reader_that_does_not_read_holds_nothing_up"
    ),
)
@pytest.mark.timeout(900)
def test_through_spark_into_a_reader_that_leaves(mariadb_server: PrivateServer, tmp_path: Path) -> None:
    """Lines appear while the pipe runs; a reader that closes the pipe ends it in order; the next run prints the rest."""
    with mariadb_server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE printed")
        cursor.execute("CREATE TABLE printed.t (id INT PRIMARY KEY, v VARCHAR(200), d DECIMAL(30,10))")
        cursor.execute("CREATE TABLE printed.u (id BIGINT UNSIGNED PRIMARY KEY)")
        cursor.execute("INSERT INTO printed.t VALUES (1, 'first', 1.5), (2, 'sec\nond', -0.0000000001)")
        url = f"mysql://{mariadb_server.user}:{mariadb_server.password}@127.0.0.1:{mariadb_server.port}/printed"
        command = [sys.executable, "-m", "headrace", "replicate", url, "stdout:", "--state", str(tmp_path / "state")]
        with (tmp_path / "log").open("wb") as errors:
            run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "NO_COLOR": "1"})
        assert run.stdout is not None
        lines = [json.loads(run.stdout.readline()) for _ in range(2)]
        assert [line["after"]["v"] for line in lines] == ["first", "sec\nond"]
        # The other table is read before it changes, so that the next line is a change.
        wait_until(lambda: "snapshot: complete" in (tmp_path / "log").read_text(), PATIENCE_S)
        cursor.execute("UPDATE printed.t SET v = 'third' WHERE id = 1")
        cursor.execute("INSERT INTO printed.u VALUES (18446744073709551615)")
        lines += [json.loads(run.stdout.readline()) for _ in range(2)]
        assert [(line["op"], line["table"]) for line in lines[2:]] == [("update", "t"), ("insert", "u")]
        assert lines[3]["after"] == {"id": 18446744073709551615}
        # As `| head -4`.
        run.stdout.close()
        cursor.execute("DELETE FROM printed.t WHERE id = 2")
        assert run.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
        log = (tmp_path / "log").read_text()
        assert "Traceback" not in log
        again = subprocess.run([*command, "--once"], check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        assert again.returncode == 0, again.stderr
        rest = [json.loads(line) for line in again.stdout.splitlines()]
        assert [(line["op"], line["before"]) for line in rest] == [
            ("delete", {"id": 2, "v": "sec\nond", "d": "-0.0000000001"}),
        ]
        cursor.execute("DROP DATABASE printed")


@pytest.mark.timeout(600)
def test_one_kill_of_a_printing_pipe(mariadb_server: PrivateServer, tmp_path: Path) -> None:
    """Every process is killed while a batch is printed: the next run prints what is missing, and perhaps lines of before again."""
    with mariadb_server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE printed_killed")
        workload = Workload(mariadb_server, "printed_killed", 9, pause_s=0.05)
        workload.prepare()
        pipeline = Pipeline(mariadb_server.url("printed_killed"), "stdout:", tmp_path / "state")
        command = ["replicate", pipeline.source, pipeline.sink, "--state", str(pipeline.state)]
        with workload, Run(command, tmp_path / "log", lines=tmp_path / "killed").killed() as run:
            run.until(lambda: pipeline.last_committed_batch() >= 0)
            run.until(pipeline.batch_is_open, poll_s=0.002)
        done = Run([*command, "--once"], tmp_path / "log", lines=tmp_path / "rest").wait()
        assert done.code == 0, done.output
        # The last line of the killed run may be half a line.
        printed = (tmp_path / "killed").read_text().split("\n")[:-1] + (tmp_path / "rest").read_text().splitlines()
        lines = [json.loads(line) for line in printed]
        for table in TABLES:
            assert newest_rows(lines, table) == source_rows(mariadb_server, "printed_killed", table), table
        cursor.execute("DROP DATABASE printed_killed")


def newest_rows(lines: Iterable[Line], table: str) -> list[tuple[Any, ...]]:
    """Return the rows at the end: those with the highest version of each key."""
    newest: dict[str, tuple[int, Line | None]] = {}
    for line in lines:
        if line["table"] != table or line["op"] == "schema":
            continue
        if line["before"] is not None:
            former = json.dumps({name: line["before"][name] for name in line["key"]})
            if line["version"] >= newest.get(former, (0, None))[0]:
                newest[former] = line["version"], None
        if line["after"] is not None and line["version"] >= newest.get(key := json.dumps(line["key"]), (0, None))[0]:
            newest[key] = line["version"], line["after"]
    rows = [row for _, row in newest.values() if row is not None]
    return sorted((tuple(plain(name, value) for name, value in row.items()) for row in rows), key=repr)
