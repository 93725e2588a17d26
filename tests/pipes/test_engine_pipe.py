"""A whole pipe into tables of every kind of engine, created and existing: snapshot, stream, restart, and `verify` at the end."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import clickhouse_connect
import pytest

from headrace.demo.private_server import PrivateServer
from testkit.generators.scenario_steps import STEPS, TABLES
from testkit.oracles.binlogs import open_logbook
from testkit.pipelines.embedded_access import PASSWORD, url_of
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.accounts import create_locking_account
from testkit.servers.clustered import CLUSTER, ClusteredServer

ORDERS = "id Int32, part Int32, note Nullable(String), at DateTime64(3, 'UTC'), stamp UInt64"
FOUND = {
    "deleted": f"({ORDERS}, gone Int8, v UInt64) ENGINE = ReplacingMergeTree(v) PARTITION BY toYYYYMM(at) ORDER BY (part, id)",
    "collapsed": f"({ORDERS}, s Int8) ENGINE = CollapsingMergeTree(s) ORDER BY id",
    "versioned": f"({ORDERS}, s Int8, v UInt64) ENGINE = VersionedCollapsingMergeTree(s, v) ORDER BY (part, id)",
    "spread_local": f"({ORDERS}, ver UInt64, del UInt8) ENGINE = ReplacingMergeTree(ver, del) ORDER BY id",
}
SETTINGS = """
[sink.tables."*.deleted"]
delete_column = "gone"
[sink.tables."*.history"]
engine = "history"
view = true
[sink.tables."*.material"]
sort_key = "materialize"
partition_by = "primary"
"""
NAMES = ("deleted", "collapsed", "versioned", "spread", "history", "material")


def qualified(statements: tuple[str, ...]) -> list[str]:
    """Apply the statements for `orders` to every table."""
    about = [statement for statement in statements if "loose" not in statement]
    alike = [
        [statement.replace(" orders ", f" {name} ") for name in NAMES] if " orders " in statement else [statement] for statement in about
    ]
    return [statement for several in alike for statement in several]


# One flavour: only the logs differ, and the matrix reads both.
@pytest.mark.slow(
    because=("test_the_target_shows_what_the_source_shows without Spark; test_one_kill[MariaDbToServer] with Spark"),
)
@pytest.mark.parametrize("flavour", ["mysql"], indirect=True)
@pytest.mark.timeout(900)
def test_one_pipe_fills_tables_of_every_engine(server: PrivateServer, database: str, tmp_path: Path) -> None:
    steps = [qualified(tuple(statements)) for _, statements in STEPS]
    with ClusteredServer(tmp_path / "ch") as sink, open_logbook(server, database) as book:
        # Tables whose engines sum rows are read at one position, with a short lock.
        account = create_locking_account(server)
        book.run(*qualified(TABLES[:1]))
        for statements in steps[:2]:
            book.run(*statements)
        with closing(clickhouse_connect.get_client(host="127.0.0.1", port=sink.port, password=PASSWORD)) as client:
            client.command(f"CREATE DATABASE {database}")
            for name, made in FOUND.items():
                client.command(f"CREATE TABLE {database}.{name} {made}")
            over = f"Distributed('{CLUSTER}', '{database}', 'spread_local', id)"
            client.command(f"CREATE TABLE {database}.spread AS {database}.spread_local ENGINE = {over}")
            settings = tmp_path / "settings.toml"
            settings.write_text(SETTINGS)
            target = url_of(sink)
            pipeline = Pipeline(account.url(), target, tmp_path / "state", tables=(f"{database}.*",))
            first = pipeline.once("--settings", str(settings))
            assert first.code == 0, first.output
            for statements in steps[2:]:
                book.run(*statements)
            second = pipeline.once()
            assert second.code == 0, second.output
            checked = pipeline.verify()
            assert checked.code == 0, checked.output
            for name in NAMES:
                assert f"{database}.{name}" in checked.output
            current = client.query(f"SELECT id FROM {database}.history_current ORDER BY id").result_rows
            assert [str(row[0]) for row in current] == [row[0] for row in book.fetch("SELECT id FROM history ORDER BY id")]
            signs = client.query(f"SELECT sum(s), count() FROM {database}.collapsed FINAL").result_rows
            assert signs == [(len(current), len(current))]
