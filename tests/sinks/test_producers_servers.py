"""The documented example of a custom producer, through Spark: every change is in exactly one file, after any interruption.

The references are pyarrow's Parquet reader and the source's SELECT.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.sinks.producer import ProducerSink
from headrace.sources.mysql.rows import row_decoder
from testkit.documents.documents import DOCS
from testkit.generators.workload import TABLES, Workload, run_transaction
from testkit.oracles.both_ends import source_rows
from testkit.pipelines.local_pipeline import Killed, without_spark
from testkit.pipelines.pipeline import Run

EXAMPLES = DOCS.parent / "examples"
KEYS = {"accounts": ("id",), "parts": ("account", "line"), "notes": ("title",)}


def folded(lake: Path, database: str, table: str) -> list[tuple[Any, ...]]:
    """Return the rows of the files: changes in the order of their versions, each once."""
    rows = ds.dataset(lake / f"{database}.{table}", partitioning="hive").to_table().to_pylist()
    images = [row for row in rows if row["_op"] != "snapshot"]
    assert max(Counter(row["_version"] for row in images).values(), default=1) == 1
    current: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["_version"]):
        key = tuple(row[name] for name in KEYS[table])
        if row["_op"] in ("delete", "before"):
            del current[key]
        else:
            assert row["_op"] != "insert" or key not in current
            current[key] = row
    shown = [{name: value for name, value in row.items() if name[0] != "_" and name != "day"} for row in current.values()]
    return sorted((tuple(row.values()) for row in shown), key=repr)


def test_a_replay_writes_the_same_files(server: PrivateServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after its files are written and before the commit, then run again: no extra file."""
    without_spark(monkeypatch)
    monkeypatch.setattr(row_decoder, "MAX_BLOCK_ROWS", 24)
    monkeypatch.chdir(EXAMPLES)
    Workload(server, database, 7).prepare()
    sink = f"class:parquet_files:ParquetFiles?path={tmp_path / 'lake'}"
    command = ["replicate", server.url(database), sink, "--state", str(tmp_path / "state"), "--once"]
    settle, chance = ProducerSink.commit_batch, random.Random(7)
    assert cli.main(command) == 0
    with server.root_connection(database, autocommit=False) as connection:
        for _ in range(3):
            for _ in range(20):
                run_transaction(connection, chance)

            def killed(*_: object) -> None:
                raise Killed

            monkeypatch.setattr(ProducerSink, "commit_batch", killed)
            with pytest.raises(Killed):
                cli.main(command)
            files = {path for path in (tmp_path / "lake").rglob("*") if path.is_file()}
            monkeypatch.setattr(ProducerSink, "commit_batch", settle)
            assert cli.main(command) == 0
            assert files <= {path for path in (tmp_path / "lake").rglob("*") if path.is_file()}
    for table in TABLES:
        assert folded(tmp_path / "lake", database, table) == source_rows(server, database, table)
    assert not list((tmp_path / "lake").rglob("*.unfinished"))


@pytest.mark.timeout(900)
def test_the_example_through_spark(mariadb_server: PrivateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started in the folder where the module is; settings from a file."""
    shutil.copy(EXAMPLES / "parquet_files.py", tmp_path)
    (tmp_path / "settings.toml").write_text('[producer]\npath = "lake"\ncompression = "snappy"\n')
    monkeypatch.chdir(tmp_path)
    with mariadb_server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE lake")
        cursor.execute("CREATE TABLE lake.accounts (id INT PRIMARY KEY, v VARCHAR(20), d DECIMAL(30,10))")
        cursor.execute("INSERT INTO lake.accounts VALUES (1, 'one', 1.5), (2, 'two', NULL)")
        command = ["replicate", mariadb_server.url("lake"), "class:parquet_files:ParquetFiles", "--state", "state"]
        run = Run([*command, "--settings", "settings.toml"], tmp_path / "log")
        try:
            run.until(lambda: list((tmp_path / "lake").rglob("rows-*.parquet")))
            cursor.execute("BEGIN")
            cursor.execute("UPDATE lake.accounts SET d = 7 WHERE id = 2")
            cursor.execute("UPDATE lake.accounts SET id = 3 WHERE id = 1")
            cursor.execute("COMMIT")
            run.until(lambda: list((tmp_path / "lake").rglob("changes-*.parquet")))
            assert run.terminate().code == 143, run.output
        finally:
            run.kill()
        assert folded(tmp_path / "lake", "lake", "accounts") == source_rows(mariadb_server, "lake", "accounts")
        cursor.execute("DROP DATABASE lake")
