"""SummingMergeTree and AggregatingMergeTree as targets: refused with a remedy before a row is written, in every phase of a pipe.

Such an engine cannot represent a deletion or the row before an update. The remedy keeps it: a materialized view over a CollapsingMergeTree
target fills it; the source's GROUP BY is the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, TargetEngine
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.both_ends import sink_client
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of

COLUMNS = "id Int32, part Nullable(String), n Nullable(Int32), _sign Int8, _version UInt64"
REFUSED = {
    "SummingMergeTree": f"({COLUMNS}) ENGINE = SummingMergeTree ORDER BY id",
    "SummingMergeTree of columns": f"({COLUMNS}) ENGINE = SummingMergeTree((n, _sign)) ORDER BY (id, part) SETTINGS allow_nullable_key = 1",
    "AggregatingMergeTree": f"({COLUMNS}) ENGINE = AggregatingMergeTree ORDER BY id",
    "AggregatingMergeTree of states": "(id Int32, part SimpleAggregateFunction(anyLast, Nullable(String)),"
    " n AggregateFunction(sum, Nullable(Int32)), _sign SimpleAggregateFunction(anyLast, Int8),"
    " _version SimpleAggregateFunction(max, UInt64)) ENGINE = AggregatingMergeTree ORDER BY id",
}
SUMS = {
    "SummingMergeTree": (
        "(part String, total Int64, items Int64) ENGINE = SummingMergeTree ORDER BY part",
        "SELECT assumeNotNull(part) AS part, sum(n * _sign) AS total, sum(_sign) AS items FROM DB.t GROUP BY part",
        "SELECT part, sum(total), sum(items) FROM DB.sums GROUP BY part HAVING sum(items) != 0 ORDER BY part",
    ),
    "AggregatingMergeTree": (
        "(part String, total AggregateFunction(sum, Int64), items AggregateFunction(sum, Int64))"
        " ENGINE = AggregatingMergeTree ORDER BY part",
        "SELECT assumeNotNull(part) AS part, sumState(assumeNotNull(toInt64(n * _sign))) AS total, sumState(toInt64(_sign)) AS items"
        " FROM DB.t GROUP BY part",
        "SELECT part, sumMerge(total), sumMerge(items) FROM DB.sums GROUP BY part HAVING sumMerge(items) != 0 ORDER BY part",
    ),
}
WINDOW = "SETTINGS non_replicated_deduplication_window = 10000"
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, part VARCHAR(20), n INT)"
ROWS = "INSERT INTO t VALUES (1, 'a', 10), (2, 'a', 20), (3, 'b', 30), (4, 'c', 40)"
CHANGES = (
    "UPDATE t SET n = n + 1",
    "UPDATE t SET part = 'b' WHERE id = 2",
    "DELETE FROM t WHERE id = 4",
    "INSERT INTO t VALUES (5, 'd', 50)",
    "UPDATE t SET id = 6 WHERE id = 5",
)


# One server: only the logs differ, which does not affect the engine.
pytestmark = pytest.mark.parametrize("flavour", ["mariadb"], indirect=True)


class Scene:
    """One source database, and pipes from it into one sink."""

    def __init__(self, book: Logbook, clickhouse: EmbeddedServer, client: Client, state: Path) -> None:
        self.book, self.client, self._url, self._state = book, client, url_of(clickhouse), state

    def in_sink(self, *statements: str) -> None:
        for statement in statements:
            self.client.command(statement.replace("DB.", f"`{self.book.database}`."))

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.client.query(sql.replace("DB.", f"`{self.book.database}`.")).result_rows]

    def create_target(self, made: str) -> None:
        self.in_sink(f"CREATE DATABASE IF NOT EXISTS `{self.book.database}`", f"CREATE TABLE DB.t {made}")

    def pipe(self, **settings: Any) -> DrivenPipe:
        return DrivenPipe(self.book, self._url, self._state, **settings)

    def check_refused(self, engine: str, pipe: DrivenPipe | None = None) -> None:
        """A run ends with an error that names table, engine and remedy, and writes nothing to the table."""
        with pytest.raises(DefiniteError, match=rf"\.t is there, .* its engine is {engine.partition(' ')[0]}, which") as caught:
            (self.pipe().open() if pipe is None else pipe).catch_up()
        assert caught.value.place == f"table {self.book.database}.t"
        assert "ReplacingMergeTree" in caught.value.hint
        assert "materialized view" in caught.value.hint
        assert self.fetch("SELECT count() FROM DB.t") == [(0,)]


@pytest.fixture
def scene(server: PrivateServer, database: str, clickhouse: EmbeddedServer, tmp_path: Path) -> Iterator[Scene]:
    with open_logbook(server, database) as book, sink_client(clickhouse.url) as client:
        yield Scene(book, clickhouse, client, tmp_path / "state")


@pytest.mark.parametrize("engine", REFUSED)
def test_refused_at_the_first_start(scene: Scene, engine: str) -> None:
    scene.book.run(TABLE, ROWS)
    scene.create_target(REFUSED[engine])
    scene.check_refused(engine)
    scene.in_sink("RENAME TABLE DB.t TO DB.sums")
    scene.pipe().open().catch_up()
    scene.book.run(*CHANGES)
    scene.pipe().open().catch_up()
    assert_same(scene.client, scene.book, ["t"])


@pytest.mark.parametrize("engine", ["SummingMergeTree", "AggregatingMergeTree of states"])
def test_refused_when_the_source_creates_the_table(scene: Scene, engine: str) -> None:
    scene.book.run("CREATE TABLE other (id INT PRIMARY KEY)")
    pipe = scene.pipe().open()
    scene.create_target(REFUSED[engine])
    scene.book.run(TABLE, ROWS)
    scene.check_refused(engine, pipe)
    scene.check_refused(engine)
    scene.in_sink("RENAME TABLE DB.t TO DB.sums")
    scene.pipe().open().catch_up()
    assert_same(scene.client, scene.book, ["t", "other"])


@pytest.mark.parametrize("engine", ["SummingMergeTree", "AggregatingMergeTree of states"])
def test_a_replaced_target_is_rejected(scene: Scene, engine: str) -> None:
    scene.book.run(TABLE, ROWS)
    scene.pipe().open().catch_up()
    scene.in_sink("RENAME TABLE DB.t TO DB.before")
    scene.create_target(REFUSED[engine])
    scene.book.run(*CHANGES)
    scene.check_refused(engine)
    scene.in_sink("DROP TABLE DB.t", "RENAME TABLE DB.before TO DB.t")
    scene.pipe().open().catch_up()
    assert_same(scene.client, scene.book, ["t"])


@pytest.mark.parametrize("engine", SUMS)
def test_sums_by_a_materialized_view(scene: Scene, engine: str) -> None:
    """The remedy works: updates and deletions subtract the old row. A replay adds nothing."""
    table, view, query = SUMS[engine]
    choices = ClickHouseOptions(all_tables=(("engine", TargetEngine.COLLAPSING),))
    scene.book.run(TABLE)
    pipe = scene.pipe(choices=choices).open()
    scene.in_sink(f"CREATE TABLE DB.sums {table} {WINDOW}", f"CREATE MATERIALIZED VIEW DB.summing TO DB.sums AS {view}")
    scene.book.run(ROWS, *CHANGES)
    pipe.catch_up()
    scene.pipe(choices=choices).open().catch_up()
    expected = [tuple(row) for row in scene.book.fetch("SELECT part, SUM(n), COUNT(*) FROM t GROUP BY part ORDER BY part")]
    assert scene.fetch(query) == [(part, int(total), int(count)) for part, total, count in expected]
    assert len(expected) == 3
