"""Rows from postimages in a ReplacingMergeTree equal SELECT, after writes and deletions of every kind, in any order of blocks except for
ranges; unsupported tables are refused."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.options import CdcOptions
from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.cql.types import CqlType
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sinks.clickhouse.cells.reader import CellReader
from headrace.sinks.clickhouse.postimages import PostimageSink
from headrace.sinks.clickhouse.server.client import connect, disconnect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.capture.log_rows import LogRow
from headrace.sources.scylla.capture.statement_capture import Capture, log_block
from headrace.sources.scylla.snapshot.base_rows import RowQuery
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.reader import TokenChunk, read_chunk
from headrace.sources.scylla.snapshot.table_probe import probe_write_times
from headrace.sources.scylla.snapshot.token_ranges import WHOLE
from headrace.verify.row_compare import compare
from headrace.verify.scylla.verifier import LoggedRows, canonical_schema
from testkit.pipelines.embedded_access import target_of


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[PostimageSink]:
    with EmbeddedServer(tmp_path / "clickhouse") as server:
        target = target_of(server, database=f"d_{secrets.token_hex(4)}")
        yield PostimageSink(ClickHouseSink(target))
        disconnect(target)


def _differences(cql: CqlSession, sink: PostimageSink, table: CqlTable) -> tuple[int, tuple[object, ...]]:
    sides = LoggedRows(cql, CellReader(sink.sink.scope), table)
    nothing = canonical_schema(table).arrow_schema.empty_table()
    found = compare(canonical_schema(table), pa.concat_tables([nothing, *sides.source(WHOLE)]), pa.concat_tables([nothing, *sides.sink()]))
    return found.rows, found.differences


def test_images_and_deletions_show_what_select_gives(cql: CqlSession, keyspace: str, sink: PostimageSink) -> None:
    t = f"{keyspace}.t"
    cql.execute(f"CREATE TYPE {keyspace}.ut (a int, b text)")
    columns = (
        "p int, q text, c int, d timeuuid, v text, n varint, m map<text, int>, s set<int>, l list<text>, u ut, fu frozen<ut>, ts timestamp"
    )
    cql.execute(f"CREATE TABLE {t} ({columns}, PRIMARY KEY ((p, q), c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC)")
    table = describe(cql, TableName(keyspace, "t"))
    capture = Capture([table], options=CdcOptions(enabled=True, postimage=True))
    sink.prepare([table])
    d = ["50554d6e-29bb-11e5-b345-feff819cdc9f", "8ac6d1e0-29bb-11e5-b345-feff819cdc9f"]

    def insert(p: int, c: int, number: int) -> str:
        values = f"'v{c}', {10**20 + c}, {{'x': {c}}}, {{{c}, 2}}, ['a', 'b{c}'], {{a: {c}}}, {{b: 'y'}}, '2026-01-01 00:00:00.123+0000'"
        return f"INSERT INTO {t} (p, q, c, d, v, n, m, s, l, u, fu, ts) VALUES ({p}, 'q', {c}, {d[number]}, {values})"

    where = f"p = 1 AND q = 'q' AND c = 1 AND d = {d[0]}"
    before = [insert(p, c, number) for p in range(4) for c in range(4) for number in range(2)]
    changes = [
        f"UPDATE {t} SET v = null, m['z'] = 5, s = s - {{2}}, l = ['first'] + l, u.b = 'set' WHERE {where}",
        f"UPDATE {t} SET l = l + ['last'], u.a = null, n = -1 WHERE {where}",
        f"UPDATE {t} SET m = {{}} WHERE p = 1 AND q = 'q' AND c = 2 AND d = {d[0]}",
        f"DELETE FROM {t} WHERE p = 1 AND q = 'q' AND c = 3 AND d = {d[1]}",
        f"DELETE FROM {t} WHERE p = 2 AND q = 'q' AND c >= 1 AND c < 3",
        insert(2, 2, 1),
        f"DELETE FROM {t} WHERE p = 3 AND q = 'q' AND c = 1 AND d > {d[0]}",
        f"DELETE FROM {t} WHERE p = 0 AND q = 'q'",
        insert(0, 9, 0),
    ]

    def run(statement: str) -> list[LogRow]:
        stamp = time.time_ns() // 1000
        word = {"UPDATE": " SET ", "DELETE": " WHERE "}.get(statement[:6])
        place = len(statement) if word is None else statement.index(word)
        stamped = f"{statement[:place]} USING TIMESTAMP {stamp}{statement[place:]}"
        cql.execute(stamped)
        return capture.log(stamped)

    logged = [run(statement) for statement in before]
    writer = sink.writer()
    # The first half comes from a snapshot, and again from the log, out of order.
    for block in read_chunk(
        cql, RowQuery(table, probe_write_times(cql, table)), TokenChunk(table.name, WHOLE), ScyllaOptions(confidence=0)
    ):
        writer.write(block)
    assert _differences(cql, sink, table) == (32, ())
    for rows in reversed(logged):
        writer.write(log_block(table, rows))
    assert _differences(cql, sink, table) == (32, ())
    blocks = [log_block(table, run(statement)) for statement in changes]
    for _ in range(2):
        for block in blocks:
            writer.write(block)
        rows, different = _differences(cql, sink, table)
        assert (rows, different) == (20, ())
    # An added column, and an empty table again.
    cql.execute(f"ALTER TABLE {t} ADD w set<text>")
    wider = describe(cql, table.name)
    sink.alter(table, wider)
    sink.alter(table, wider)
    capture.define(wider)
    writer.write(log_block(wider, run(f"UPDATE {t} SET w = {{'new'}} WHERE {where}")))
    assert _differences(cql, sink, wider) == (20, ())
    sink.clear(wider)
    assert _differences(cql, sink, wider)[1][0].kind == "missing"  # type: ignore[attr-defined]


def test_what_images_cannot_show_is_refused(sink: PostimageSink) -> None:
    made = CqlCatalog("ks").apply_all(
        "CREATE TABLE t (p int PRIMARY KEY, v int); CREATE TABLE s (p int, c int, s int static, PRIMARY KEY (p, c))"
    )
    plain, static = made.named("ks.t"), made.named("ks.s")
    with pytest.raises(DefiniteError, match="is static"):
        sink.prepare([plain, static])
    keyed = replace(plain, columns=(replace(plain.columns[0], type=CqlType("double")), *plain.columns[1:]))
    with pytest.raises(DefiniteError, match="do not agree"):
        sink.prepare([keyed])
    sink.prepare([plain])
    # Without postimages a change could not be written.
    rows = Capture([plain]).log("INSERT INTO ks.t (p, v) VALUES (1, 2)")
    with pytest.raises(DefiniteError, match="no postimage"):
        sink.writer().write(log_block(plain, rows))
    connection = connect(sink.sink.target)
    connection.client.command(f"CREATE TABLE {sink.sink.target.database}.foreign (p Int32) ENGINE = Memory")
    with pytest.raises(DefiniteError, match="not made for images"):
        sink.prepare([replace(plain, name=TableName("ks", "foreign"))])
