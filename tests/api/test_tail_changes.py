"""`headrace tail mysql://…` and `binlog:…` print changes in the order of the log; they are compared with the source."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from headrace.demo.private_server import PrivateServer
from testkit.generators.workload import TABLES, Workload, run_transaction
from testkit.oracles.binlogs import open_logbook
from testkit.servers.accounts import Account


def printed(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> list[dict[str, Any]]:
    assert cli.main(["tail", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]


def test_servers_and_files(
    server: PrivateServer, database: str, replica_account: Account, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    chance, url = random.Random(7), replica_account.url(database)
    with open_logbook(server, database) as book:
        book.run("FLUSH BINARY LOGS")
        start = book.place()
        Workload(server, database, 7).prepare()
        with server.root_connection(database, autocommit=False) as connection:
            for _ in range(20):
                run_transaction(connection, chance)
        book.run("ALTER TABLE notes ADD COLUMN more INT", "INSERT INTO notes (title, more) VALUES ('added', 5)", "TRUNCATE TABLE parts")
        book.run("FLUSH BINARY LOGS")
    files = tmp_path / "files"
    files.mkdir()
    shutil.copy(server.binlog_dir / start.file, files)
    found = printed(capfdbinary, f"binlog:{files}", "--once", "--tables", f"{database}.*")
    changes = [line for line in found if line["op"] != "schema"]
    versions = [line["version"] for line in changes]
    assert versions == sorted(set(versions))
    assert {line["table"] for line in changes} == set(TABLES)
    [added] = [line for line in changes if line["after"] and line["after"].get("title") == "added"]
    assert added["after"]["more"] == 5
    assert any("ADD COLUMN more" in line["statement"] for line in found if line["op"] == "schema")
    with open_logbook(server, database) as book:
        counts = {table: int(book.fetch(f"SELECT COUNT(*) FROM {table}")[0][0]) for table in ("accounts", "notes")}
    for table, count in counts.items():
        net = sum((line["op"] == "insert") - (line["op"] == "delete") for line in changes if line["table"] == table)
        assert net == count, table

    # The same changes from the server, from a position.
    place = f"{start.file}:{start.offset}"
    again = printed(capfdbinary, url, "--once", "--start-at", place, "--tables", "accounts")
    mine = [line for line in changes if line["table"] == "accounts"]
    assert [line for line in again if line["op"] != "schema"] == mine
    few = printed(capfdbinary, url, "--once", "--start-at", place, "--tables", "accounts", "--limit", "3")
    assert few == again[:3]
    assert cli.main(["tail", url, "--once", "--tables", "nothing_*"]) == 2
    assert b"no table matches" in capfdbinary.readouterr().err


def test_live_within_seconds_and_ends_with_its_reader(mariadb_server: PrivateServer) -> None:
    """Print changes from now on, in colour if requested; `| head -1` ends the command."""
    with mariadb_server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE tailed")
        cursor.execute("CREATE TABLE tailed.t (id INT PRIMARY KEY, v VARCHAR(20))")
        cursor.execute("INSERT INTO tailed.t VALUES (1, 'before')")
        command = [sys.executable, "-m", "headrace", "tail", mariadb_server.url("tailed"), "--colour", "always"]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert run.stdout is not None
            assert run.stderr is not None
            assert "following" in run.stderr.readline()
            cursor.execute("INSERT INTO tailed.t VALUES (2, 'new \x1b[2J')")
            begun = time.monotonic()
            line = run.stdout.readline()
            assert time.monotonic() - begun < 10
            assert '\x1b[32m+ INSERT\x1b[0m \x1b[1mtailed.t\x1b[0m id=2 v="new \\u001B[2J"' in line
            # A statement is printed at once, even if no other follows.
            cursor.execute("ALTER TABLE tailed.t ADD COLUMN more INT")
            assert "ADD COLUMN more" in run.stdout.readline()
            run.stdout.close()
            cursor.execute("DELETE FROM tailed.t")
            assert run.wait(30) == 0, run.stderr.read()
        finally:
            run.kill()
            run.wait()
            run.stderr.close()
        cursor.execute("DROP DATABASE tailed")
