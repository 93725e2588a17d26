"""The queries of docs/clickhouse/how-to-query.md: exact ways agree with the source's rows, and the others are wrong as the page says."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.server.client import disconnect, run_statements
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink
from testkit.pipelines.embedded_access import target_of

ORDERS = TableSchema(
    TableName("shop", "orders"),
    (Column("id", Kind.INT64, False), Column("status", Kind.STRING, False), Column("note", Kind.STRING), Column("total", Kind.INT32)),
    ("id",),
)
OPTIONS = {"view": True, "settings": (("index_granularity", "1"),), "indexes": (("by_status", "status TYPE set(10) GRANULARITY 1"),)}

Ask = Callable[[str], list[list[Any]]]


@pytest.fixture(scope="module")
def ask(clickhouse: EmbeddedServer) -> Iterator[Ask]:
    """Order 1 was paid and lost its note, order 2 was deleted, order 3 is as it was inserted. Nothing is merged."""
    target = target_of(clickhouse, database=f"q_{secrets.token_hex(4)}")
    sink = ClickHouseSink(target, ClickHouseOptions(tuple(OPTIONS.items())))
    sink.prepare([ORDERS])
    name, columns = f"{target.database}.orders", "(id, status, note, total, _sign, _version)"
    run_statements(
        target,
        "testing",
        f"SYSTEM STOP MERGES {name}",
        f"INSERT INTO {name} {columns} VALUES (1, 'new', 'ring', 10, 1, 1), (2, 'new', 'x', 20, 1, 2), (3, 'new', 'y', 30, 1, 3)",
        f"INSERT INTO {name} {columns} VALUES (1, 'paid', NULL, 11, 1, 4), (2, 'new', 'x', 20, -1, 5)",
    )
    yield lambda sql: sink.reader().query(sql.replace("ORDERS", name))[1]
    disconnect(target)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM ORDERS FINAL WHERE status = 'new'",
        "SELECT id FROM ORDERS WHERE status = 'new' SETTINGS final = 1",
        "SELECT id FROM ORDERS_current WHERE status = 'new'",
        "SELECT id FROM ORDERS FINAL WHERE id IN (SELECT id FROM ORDERS WHERE status = 'new') AND status = 'new'",
        "SELECT id FROM ORDERS GROUP BY id HAVING argMax(_sign, _version) = 1 AND argMax(status, _version) = 'new'",
        "SELECT id FROM ORDERS FINAL PREWHERE id > 1",
    ],
)
def test_exact_ways(sql: str, ask: Ask) -> None:
    assert ask(sql) == [[3]]


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SELECT id FROM ORDERS WHERE status = 'new' ORDER BY id", [1, 2, 2, 3]),
        ("SELECT id FROM ORDERS WHERE status = 'new' AND _sign = 1 ORDER BY id", [1, 2, 3]),
        ("SELECT id FROM ORDERS FINAL PREWHERE status = 'new' ORDER BY id", [1, 3]),
        ("SELECT id FROM ORDERS FINAL WHERE status = 'new' ORDER BY id SETTINGS use_skip_indexes_if_final_exact_mode = 0", [1, 3]),
    ],
)
def test_queries_that_return_wrong_rows(sql: str, shown: list[int], ask: Ask) -> None:
    assert ask(sql) == [[number] for number in shown]


def test_sums_and_nulls(ask: Ask) -> None:
    inner = "SELECT argMax(total, _version) AS total FROM ORDERS GROUP BY id HAVING argMax(_sign, _version) = 1"
    assert ask(f"SELECT sum(total) FROM ({inner})") == ask("SELECT sum(total) FROM ORDERS FINAL") == [[41]]
    assert ask("SELECT sum(total * _sign) FROM ORDERS") == [[51]]
    assert ask("SELECT argMax(note, _version), argMax(tuple(note), _version).1 FROM ORDERS WHERE id = 1") == [["ring", None]]
    assert ask("SELECT id, _sign, _version FROM ORDERS FINAL WHERE _version > 3") == [[1, 1, 4]]
