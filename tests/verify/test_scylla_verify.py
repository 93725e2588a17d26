"""`headrace verify` for pipes from ScyllaDB: rows and values of every kind are compared with the view; differences are named by key."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.cql.address import parse_cql_url
from headrace.cql.language.ddl_printer import create_log_table
from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.sinks.base import Progress
from headrace.sinks.clickhouse.cells.merged_rows.merger import RowMerger
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.position import LogPosition, StreamPosition
from headrace.sources.scylla.snapshot.base_rows import RowQuery
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.reader import TokenChunk, read_chunk, server_time
from headrace.sources.scylla.snapshot.table_probe import probe_write_times
from headrace.sources.scylla.snapshot.token_ranges import WHOLE
from headrace.transforms.options import Transforms
from headrace.verify.result import TableResult, Verdict
from headrace.verify.scylla.command import address_for_repairs
from headrace.verify.scylla.verifier import pipe_position_of, verify_logged
from headrace.verify.watermark import PipePosition, Watermark
from testkit.generators.cql_blocks import write

COLUMNS = """p int, q text, c varint, d timeuuid, s text static, b blob, dc decimal, du duration, i inet, ts timestamp, t time, dt date,
 f float, u uuid, bo boolean, m map<text, int>, st set<uuid>, l list<double>, ut ut, fm frozen<map<int, frozen<list<text>>>>,
 tu tuple<int, text>"""


@pytest.fixture
def sink(target: ClickHouseTarget) -> CellSink:
    return CellSink(ClickHouseSink(target))


@pytest.fixture
def table(cql: CqlSession, keyspace: str) -> CqlTable:
    cql.execute(f"CREATE TYPE {keyspace}.ut (a int, b text)")
    cql.execute(f"CREATE TABLE {keyspace}.t ({COLUMNS}, PRIMARY KEY ((p, q), c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC)")
    found = describe(cql, TableName(keyspace, "t"))
    cql.execute(create_log_table(found, cassandra=True).rstrip(";"))
    return found


def _fill(cql: CqlSession, keyspace: str) -> None:
    d = "50554d6e-29bb-11e5-b345-feff819cdc9f"
    values = (
        "0x00ff, -1.50, 1mo2d3ns, '::1', '2026-01-02 03:04:05.678+0000', '23:59:59.999999999', '1969-12-31', -0.0, "
        "123e4567-e89b-12d3-a456-426614174000, true, {'x': 1, 'a': 2}, {ffffffff-ffff-4fff-bfff-ffffffffffff, "
        "00000000-0000-4000-8000-000000000000}, [1.5, -2.5, 1.5], {a: 1}, {1: ['x', ''], -1: []}, (1, null)"
    )
    names = "b, dc, du, i, ts, t, dt, f, u, bo, m, st, l, ut, fm, tu"
    for p in range(6):
        for c in range(10):
            cql.execute(f"INSERT INTO {keyspace}.t (p, q, c, d, {names}) VALUES ({p}, 'q''{p}', {c - 5}, {d}, {values})")
        cql.execute(f"INSERT INTO {keyspace}.t (p, q, c, d) VALUES ({p}, 'bare', 123456789012345678901234567890, {d})")
        cql.execute(f"UPDATE {keyspace}.t SET s = 'static {p}' WHERE p = {p} AND q = 'only static'")
        cql.execute(f"UPDATE {keyspace}.t SET s = 'static {p}' WHERE p = {p} AND q = 'bare'")


def _copy(cql: CqlSession, sink: CellSink, table: CqlTable) -> None:
    sink.prepare([table])
    query = RowQuery(table, probe_write_times(cql, table))
    write(sink, *read_chunk(cql, query, TokenChunk(table.name, WHOLE), ScyllaOptions(confidence=0)))


def _verify(cql: CqlSession, sink: CellSink, keyspace: str, watermark: Watermark[int] | None = None, **options: Any) -> TableResult:
    [found] = verify_logged(cql, sink, Selection((f"{keyspace}.*",)), watermark, **options)
    return found


def test_every_type_is_equal_and_what_differs_is_named(cql: CqlSession, keyspace: str, sink: CellSink, table: CqlTable) -> None:
    missing = _verify(cql, sink, keyspace)
    assert missing.verdict is Verdict.DIFFERENT
    assert missing.notes == ("there is no view of it in the sink",)
    _fill(cql, keyspace)
    _copy(cql, sink, table)
    for bucket_rows in (10, 200_000):
        found = _verify(cql, sink, keyspace, bucket_rows=bucket_rows)
        assert (found.verdict, found.comparison.rows, found.comparison.differences) == (Verdict.EQUAL, 72, ())
    # Changes without a log: an added row, a deleted one, and values of several kinds.
    d, t = "50554d6e-29bb-11e5-b345-feff819cdc9f", f"{keyspace}.t"
    cql.execute(f"DELETE FROM {t} WHERE p = 1 AND q = 'q''1' AND c = -5 AND d = {d}")
    cql.execute(f"INSERT INTO {t} (p, q, c, d) VALUES (77, 'new', 5, {d})")
    cql.execute(f"UPDATE {t} SET m['z'] = 9, l[1] = 7.0 WHERE p = 2 AND q = 'q''2' AND c = 0 AND d = {d}")
    cql.execute(f"UPDATE {t} SET s = 'other' WHERE p = 3 AND q = 'only static'")
    found = _verify(cql, sink, keyspace, bucket_rows=10)
    assert found.verdict is Verdict.DIFFERENT
    listed = {(one.kind, one.key[0], one.key[1], one.key[2], one.column) for one in found.comparison.differences}
    assert listed == {
        ("extra", 1, "q'1", -5, ""),
        ("missing", 77, "new", 5, ""),
        ("different", 2, "q'2", 0, "m"),
        ("different", 2, "q'2", 0, "l"),
        ("different", 3, "only static", None, "s"),
    }
    values = {one.column: (one.source, one.target) for one in found.comparison.differences if one.column}
    assert values["m"] == ({"a": 2, "x": 1, "z": 9}, {"a": 2, "x": 1})
    assert values["l"] == ([1.5, 7.0, 1.5], [1.5, -2.5, 1.5])
    assert values["s"] == ("other", "static 3")


def test_rows_of_a_pipe_that_is_behind_are_not_called_different(cql: CqlSession, keyspace: str, sink: CellSink) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.t (p int PRIMARY KEY, v int)")
    table = describe(cql, TableName(keyspace, "t"))
    cql.execute(create_log_table(table, cassandra=True).rstrip(";"))
    for p in range(5):
        cql.execute(f"INSERT INTO {keyspace}.t (p, v) VALUES ({p}, {p})")
    _copy(cql, sink, table)
    cql.execute(f"UPDATE {keyspace}.t SET v = 77 WHERE p = 3")
    stands = server_time(cql) - 3600 * 1_000_000
    behind = Watermark("pipe", lambda: PipePosition(stands, is_running=False), 1.0)
    found = _verify(cql, sink, keyspace, behind)
    assert (found.verdict, found.behind, found.comparison.total) == (Verdict.BEHIND, 1, 0)
    # A pipe with a later position: differences are confirmed by a second read.
    ahead = Watermark("pipe", lambda: PipePosition(stands + 7200 * 1_000_000, is_running=True), 5.0)
    found = _verify(cql, sink, keyspace, ahead)
    assert (found.verdict, found.comparison.total) == (Verdict.DIFFERENT, 1)
    incomplete = Watermark("pipe", lambda: PipePosition(0, is_running=True, incomplete=frozenset({str(table.name)})), 5.0)
    assert _verify(cql, sink, keyspace, incomplete).verdict is Verdict.BEHIND


def test_merged_rows_and_their_cells_are_both_compared(
    cql: CqlSession, keyspace: str, sink: CellSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.t (p int PRIMARY KEY, v int)")
    table = describe(cql, TableName(keyspace, "t"))
    cql.execute(create_log_table(table, cassandra=True).rstrip(";"))
    cql.execute(f"INSERT INTO {keyspace}.t (p, v) VALUES (1, 1)")
    _copy(cql, sink, table)
    cql.execute(f"INSERT INTO {keyspace}.t (p, v) VALUES (1, 2)")
    client, rows = connect(sink.sink.target).client, sink.locations(table).rows
    with monkeypatch.context() as patched:
        patched.setattr(RowMerger, "merge", lambda *_: None)
        _copy(cql, sink, table)
    found = _verify(cql, sink, keyspace)
    assert (found.verdict, found.comparison.total) == (Verdict.DIFFERENT, 1)
    assert found.notes == ("its cells are equal to the source: only the rows that were merged from them differ",)
    repaired = _verify(cql, sink, keyspace, repair=ScyllaOptions(confidence=0))
    assert (repaired.verdict, repaired.repaired, repaired.notes) == (Verdict.EQUAL, 1, ())
    cql.execute(f"UPDATE {keyspace}.t SET v = 3 WHERE p = 1")
    changed = "3 AS `value:v`, `row:version` + 1 AS `row:version`"
    client.command(f"INSERT INTO {rows} SELECT * REPLACE ({changed}) FROM {rows} FINAL")
    found = _verify(cql, sink, keyspace)
    assert (found.verdict, found.comparison.total) == (Verdict.DIFFERENT, 1)
    assert found.notes == ("its rows are equal to the source: only the cells that they were merged from differ",)


def test_transformed_rows_are_compared_by_their_transforms(cql: CqlSession, keyspace: str, target: ClickHouseTarget) -> None:
    """Renamed, masked and excluded columns; cells are compared as the source has them."""
    cql.execute(f"CREATE TABLE {keyspace}.t (p int, c text, s text static, email text, n int, z set<int>, PRIMARY KEY (p, c))")
    table = describe(cql, TableName(keyspace, "t"))
    cql.execute(create_log_table(table, cassandra=True).rstrip(";"))
    for p in range(3):
        cql.execute(f"INSERT INTO {keyspace}.t (p, c, email, n, z) VALUES ({p}, 'c', 'anna{p}@example.com', {p}, {{1, 2}})")
    for p, text in ((0, "s0"), (1, "s1"), (9, "alone")):
        cql.execute(f"INSERT INTO {keyspace}.t (p, s) VALUES ({p}, '{text}')")
    own = {
        "rename": (("c", "email"), ("email", "c"), ("p", "key")),
        "mask": (("email", "email"), ("s", "last 1"), ("n", "null")),
        "drop": ("z",),
    }
    sink = CellSink(ClickHouseSink(target), transforms=Transforms(((f"{keyspace}.t", tuple(own.items())),)))
    _copy(cql, sink, table)
    reader = CellSink(ClickHouseSink(target))
    found = _verify(cql, reader, keyspace, bucket_rows=2)
    assert (found.verdict, found.comparison.rows, found.notes) == (Verdict.EQUAL, 4, ())
    # A change that the masks hide changes the cells; others change both.
    cql.execute(f"UPDATE {keyspace}.t SET n = 7 WHERE p = 0 AND c = 'c'")
    found = _verify(cql, reader, keyspace)
    assert (found.verdict, found.notes) == (
        Verdict.DIFFERENT,
        ("its rows are equal to the source: only the cells that they were merged from differ",),
    )
    cql.execute(f"UPDATE {keyspace}.t SET email = 'bob@example.org', z = z + {{3}} WHERE p = 1 AND c = 'c'")
    found = _verify(cql, reader, keyspace)
    listed = [(one.kind, one.key, one.column, one.source, one.target) for one in found.comparison.differences]
    assert listed == [("different", (1, "c"), "email", "b***@example.org", "a***@example.com")]
    repaired = _verify(cql, reader, keyspace, repair=ScyllaOptions(confidence=0))
    assert (repaired.verdict, repaired.repaired, repaired.notes) == (Verdict.EQUAL, 2, ())
    shown = connect(target).client.query(f"SELECT key, email, c, s, n FROM {sink.locations(table).view} ORDER BY key").result_rows
    assert list(shown) == [
        (0, "c", "a***@example.com", "*0", None),
        (1, "c", "b***@example.org", "*1", None),
        (2, "c", "a***@example.com", None, None),
        (9, None, None, "****e", None),
    ]
    cql.execute(f"DELETE FROM {keyspace}.t WHERE p = 2 AND c = 'c'")
    found = _verify(cql, reader, keyspace)
    assert [(one.kind, one.key) for one in found.comparison.differences] == [("extra", (2, "c"))]


def test_the_position_of_a_pipe_is_its_reported_time() -> None:
    position = LogPosition({TableName("ks", "t"): StreamPosition(0, 1_790_000_000_123_456)})
    progress = Progress("pipe", "scylla://h", str(position), 0, 0, 0, 0, 0, 0, incomplete=("ks.t",))
    assert pipe_position_of(progress) == PipePosition(1_790_000_000_123_000, is_running=False, incomplete=frozenset({"ks.t"}))
    assert pipe_position_of(Progress("pipe", "scylla://h", str(LogPosition()), 0, 0, 0, 0, 0, 0)).position == 0


@pytest.mark.parametrize(
    ("written", "read"), [("one", "local_quorum"), ("local_one", "local_quorum"), ("quorum", "quorum"), ("all", "all")]
)
def test_a_repair_reads_with_a_quorum(written: str, read: str) -> None:
    """It deletes what it does not find: one replica may not have it yet."""
    assert address_for_repairs(parse_cql_url(f"scylla://db/shop?consistency={written}")).consistency == read
