"""Transforms before append-only sinks: the folded messages equal the source's SELECT with the same expressions.

A row that leaves the filter is a deletion there, one that enters it an insertion; the key is the hash.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from headrace import cli
from headrace.demo.private_server import PrivateServer
from testkit.documents.documents import DOCS
from testkit.generators.workload import Workload, run_transaction
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.topic_rows import fold, read_sent
from testkit.pipelines.local_pipeline import without_spark
from testkit.servers.broker import PrivateBroker

pytestmark = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_debezium_s_events[mysql]")

SETTINGS = """
[transforms."DB.accounts"]
filter = "floor(balance) % 2 = 0"
hash = { id = "sha256" }
drop = ["changed"]
computed = { whole = "CAST(floor(balance) AS INT)" }
"""
COLUMNS = ("id", "owner", "balance", "whole")
SOURCE_QUERY = "SELECT LOWER(SHA2(id, 256)), owner, balance, FLOOR(balance) FROM accounts WHERE FLOOR(balance) % 2 = 0 ORDER BY 1"
Rows = list[tuple[str, ...]]


@pytest.fixture
def book(server: PrivateServer, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Logbook]:
    without_spark(monkeypatch)
    Workload(server, database, 3).prepare()
    with open_logbook(server, database) as found:
        yield found


def replicate(book: Logbook, sink: str, directory: Path, *more: str, then: Callable[[], None] = lambda: None) -> None:
    """Run a snapshot, then changes, each in a separate run; `then` after each."""
    settings, chance = directory / "settings.toml", random.Random(7)
    settings.write_text(SETTINGS.replace("DB", book.database))
    command = ["replicate", book.server.url(book.database), sink, "--state", str(directory / "state"), "--settings", str(settings)]
    for _ in range(4):
        assert cli.main([*command, "--once", "--flush-rows", "50", *more]) == 0
        then()
        with book.server.root_connection(book.database, autocommit=False) as connection:
            for _ in range(60):
                run_transaction(connection, chance)
    assert cli.main([*command, "--once", *more]) == 0
    then()


def texts(rows: Any) -> Rows:
    """Return rows in one form, with exactly the remaining columns."""
    found = list(rows)
    assert all(row.keys() == set(COLUMNS) for row in found)
    return sorted(tuple(str(row[name]) for name in COLUMNS) for row in found)


def expected(book: Logbook) -> Rows:
    rows = [tuple(map(str, row)) for row in book.fetch(SOURCE_QUERY)]
    assert len(rows) > 100
    return rows


def test_in_kafka(book: Logbook, broker: PrivateBroker, tmp_path: Path) -> None:
    replicate(book, broker.url(), tmp_path, "--set", "kafka.partitions=3")
    messages = read_sent(broker, f"{book.database}_accounts_generic")
    assert {message.kind for message in messages} == {"insert", "update", "delete"}
    for by_position in (True, False):
        assert texts(fold(messages, by_position=by_position).values()) == expected(book)


def test_on_the_standard_output(book: Logbook, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printed: list[dict[str, Any]] = []
    replicate(book, "stdout:", tmp_path, then=lambda: printed.extend(map(json.loads, capfd.readouterr().out.splitlines())))
    account_lines = [line for line in printed if line["table"] == "accounts"]
    assert {line["op"] for line in account_lines} == {"snapshot", "insert", "update", "delete"}
    rows: dict[str, dict[str, Any]] = {}
    for line in account_lines:
        if line["before"] is not None:
            assert rows.pop(line["before"]["id"]) == line["before"]
        if line["after"] is not None:
            rows[line["after"]["id"]] = line["after"]
    assert texts(rows.values()) == expected(book)


def test_in_files_of_a_producer(book: Logbook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent / "examples")
    replicate(book, f"class:parquet_files:ParquetFiles?path={tmp_path / 'lake'}", tmp_path)
    changes = ds.dataset(tmp_path / "lake" / f"{book.database}.accounts", partitioning="hive").to_table().to_pylist()
    rows: dict[str, dict[str, Any]] = {}
    for row in sorted(changes, key=lambda row: row["_version"]):
        if row["_op"] in ("delete", "before"):
            del rows[row["id"]]
        else:
            rows[row["id"]] = {name: value for name, value in row.items() if name[0] != "_" and name != "day"}
    assert texts(rows.values()) == expected(book)
