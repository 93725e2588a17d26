"""The sink against the real engine: names, existing tables, errors, and a server that stops."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError, TransientError
from headrace.materialize_mysql.pipe_plan import plan_pipe
from headrace.materialize_mysql.statement_parser import CreateMaterializedDatabase, parse_statement
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.lifecycle.sink_tables import SinkTables, targets_of
from headrace.retry import retrying
from headrace.settings.settings_file import parse_set_flag
from headrace.sinks.clickhouse.connector import open_clickhouse
from headrace.sinks.clickhouse.server.client import connect, disconnect
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables import target_cache
from headrace.sinks.clickhouse.tables.target_table import TargetTable
from headrace.sinks.schema_changes import Step
from testkit.pipelines.embedded_access import target_of, url_of

COLUMNS = (Column("id", Kind.STRING, nullable=False), Column("n", Kind.INT32))
HOSTILE = [
    "wi`th",
    "back\\slash",
    "quote'",
    'dou"ble',
    "spa ce",
    "漢字",
    "a.b",
    "`whole`",
    "%2F",
    "tab\tnew\nline",
    "{x:Int8}",
    "-- x",
    "end;",
    "\\",
    "%s",
]


def schema_of(name: str = "t", database: str = "shop") -> TableSchema:
    return TableSchema(TableName(database, name), COLUMNS, ("id",))


def block_of(schema: TableSchema, *ids: str, version: int = 1) -> ChangeBlock:
    images = pa.record_batch([pa.array(ids, pa.string()), pa.array(range(len(ids)), pa.int32())], schema=schema.arrow_schema)
    rows = len(ids)
    versions = pa.array([version] * rows, pa.uint64())
    return ChangeBlock(schema, images, pa.array([Op.INSERT] * rows, pa.uint8()), versions, pa.array([0] * rows, pa.int64()))


def tables_of(sink: ClickHouseSink) -> list[str]:
    _, rows = sink.reader().query(f"SELECT name FROM system.tables WHERE database = '{sink.target.database}' ORDER BY name")
    return [row[0] for row in rows]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_databases_tables_and_columns(clickhouse: EmbeddedServer, name: str) -> None:
    columns = (
        Column(name, Kind.INT32, False),
        Column(f"{name}2", Kind.TIME, True, 6),
        Column(f"x{name}", Kind.ENUM, True, members=(name,)),
    )
    schema = TableSchema(TableName(f"h_{name}", name), columns, (name,))
    sink = ClickHouseSink(target_of(clickhouse))
    sink.prepare([schema])
    sink.prepare([schema])
    images = pa.record_batch(
        [pa.array([1, 2], pa.int32()), pa.array([-5, None], pa.int64()).view(pa.time64("us")), pa.array([name, None]).dictionary_encode()],
        schema=schema.arrow_schema,
    )
    sink.writer().write(replace(block_of(schema_of(), "1", "2"), schema=schema, images=images))
    read = sink.reader().read_range(schema, (1,), None)
    assert read.column(name).to_pylist() == [2]
    assert sink.reader().read_range(schema, None, (1,)).column(f"x{name}").to_pylist() == [name]
    assert sink.reader().count(schema) == 2


def test_nothing_is_created_when_one_table_cannot_be_held(sink: ClickHouseSink) -> None:
    with pytest.raises(DefiniteError, match="column _sign has a name that Headrace uses"):
        sink.prepare([schema_of("good"), replace(schema_of("bad"), columns=(*COLUMNS, Column("_sign", Kind.INT8)))])
    assert tables_of(sink) == []
    sink.prepare([schema_of("kept")])
    sink.reader().query(f"CREATE TABLE {sink.target.database}.other (id String) ENGINE = TinyLog")
    with pytest.raises(DefiniteError, match=r"other is there, but is not what Headrace needs: its engine is TinyLog, which can neither"):
        sink.prepare([schema_of("aaa"), schema_of("other")])
    assert tables_of(sink) == ["kept", "other"]


def test_a_task_queries_all_its_tables_at_once(sink: ClickHouseSink, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = [schema_of(name) for name in ("a", "b", "c")]
    sink.prepare(schemas)
    asked: list[list[str]] = []
    read_target_tables = target_cache.read_target_tables

    def noted(scope: target_cache.TargetScope, wanted: list[TableSchema]) -> list[TargetTable]:
        asked.append(sorted(schema.name.table for schema in wanted))
        return read_target_tables(scope, wanted)

    monkeypatch.setattr(target_cache, "read_target_tables", noted)
    for carried, expected in (
        (sink.without_cache().with_tables(schemas[:2]), [["a", "b"], ["c"]]),
        (sink.without_cache().without_cache(), [["a"], ["b"], ["c"]]),
    ):
        writer = carried.writer()
        for schema in schemas:
            writer.write(block_of(schema, "x"))
            writer.write(block_of(schema, "y"))
        assert asked == expected
        asked.clear()
    assert [sink.reader().count(schema) for schema in schemas] == [2, 2, 2]


def test_a_table_without_a_key_shows_each_row_as_often_as_the_source_has_it(sink: ClickHouseSink) -> None:
    schema = replace(schema_of(), primary_key=())
    sink.prepare([schema])
    sink.prepare([schema])
    writer = sink.writer()
    read = block_of(schema, "a", "b", "a", version=10)
    snapshot = replace(read, op=pa.array([Op.SNAPSHOT] * 3, pa.uint8()), images=_ones(read.images))
    with pytest.raises(DefiniteError, match="does not number its rows"):
        writer.write(snapshot)
    numbered = replace(snapshot, order=pa.array([0, 1, 2], pa.uint64()))
    inserted = _versioned(block_of(schema, "a", "c"), 20, Op.INSERT, Op.INSERT)
    updated = _versioned(block_of(schema, "a", "d"), 30, Op.BEFORE, Op.UPDATE)
    deleted = _versioned(block_of(schema, "b", "a"), 40, Op.DELETE, Op.DELETE)
    for block in (deleted, numbered, updated, inserted, numbered, deleted, updated):
        writer.write(block)
    shown = sink.reader().read_range(schema)
    assert sorted(shown.column("id").to_pylist()) == ["a", "c", "d"]
    assert sink.reader().count(schema) == 3


def test_rows_that_a_new_snapshot_did_not_read_are_deleted(sink: ClickHouseSink) -> None:
    keyed, keyless = schema_of("keyed"), replace(schema_of("keyless"), primary_key=())
    sink.prepare([keyed, keyless])
    for schema in (keyed, keyless):
        writer = sink.writer()
        writer.write(_versioned(block_of(schema, "gone", "kept", "later"), 10, *[Op.INSERT] * 3))
        again = replace(block_of(schema, "kept", version=20), op=pa.array([Op.SNAPSHOT], pa.uint8()), order=pa.array([0], pa.uint64()))
        writer.write(again)
        writer.write(_versioned(block_of(schema, "later"), 30, Op.INSERT))
        for _ in range(2):
            sink.table_store().delete_stale(schema, 20)
            assert sorted(sink.reader().read_range(schema).column("id").to_pylist()) == ["kept", "later"]
        # Later rows of the source are written after stale rows are deleted.
        writer.write(_versioned(block_of(schema, "gone"), 40, Op.INSERT))
        assert sink.reader().count(schema) == 3


def _versioned(block: ChangeBlock, first: int, *ops: Op) -> ChangeBlock:
    """A block with rising versions and the given operations; only the ids of the rows differ."""
    versions = pa.array(range(first, first + block.rows), pa.uint64())
    return replace(block, images=_ones(block.images), op=pa.array(list(ops), pa.uint8()), version=versions)


def _ones(images: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([images.column(0), pa.array([1] * images.num_rows, pa.int32())], schema=images.schema)


def test_a_table_made_for_another_schema_is_refused(sink: ClickHouseSink) -> None:
    schema = schema_of()
    sink.prepare([schema])
    for columns, key, difference in (
        ((COLUMNS[0], Column("n", Kind.DATE)), ("id",), r"column n is Nullable\(Int32\), not Nullable\(Date32\): date does not fit"),
        ((COLUMNS[0], Column("n", Kind.INT64)), ("id",), None),
        ((*COLUMNS, Column("more", Kind.INT8)), ("id",), "it has no column more"),
        (COLUMNS[:1], ("id",), None),
        (COLUMNS, ("n",), r"its sort key is \(.?id.?\), which does not hold the key's column n"),
    ):
        with pytest.raises(DefiniteError, match=difference) if difference else contextlib.nullcontext():
            sink.prepare([replace(schema, columns=columns, primary_key=key)])
    sink.prepare([schema])


def test_a_view_in_the_table_s_place_is_refused(sink: ClickHouseSink) -> None:
    sink.prepare([schema_of("real")])
    sink.reader().query(f"CREATE VIEW {sink.target.database}.t AS SELECT 1 AS id")
    with pytest.raises(DefiniteError, match="its engine is View, which is a query"):
        sink.prepare([schema_of("t")])


def test_every_kind_of_column_is_recognised_when_prepared_again(sink: ClickHouseSink) -> None:
    columns = [
        Column(f"c_{kind}_{nullable}_{precision}", kind, nullable, precision or 1, 0)
        for kind in Kind
        for nullable in (True, False)
        for precision in ((1, 6, 38, 65) if kind is Kind.DECIMAL else (1, 6))
    ]
    schema = TableSchema(TableName("shop", "wide"), (*COLUMNS, *columns), ("id", "c_time_False_6", "c_enum_False_1", "c_decimal_False_65"))
    sink.prepare([schema])
    sink.prepare([schema])


def test_every_write_is_one_part(sink: ClickHouseSink) -> None:
    """Parts and blocks are written completely or not at all."""
    schema = schema_of()
    sink.prepare([schema])
    sink.reader().query(f"SYSTEM STOP MERGES {sink.target.database}.t")
    for version in (1, 2):
        sink.writer().write(block_of(schema, *(f"{i:09d}" for i in range(65_536)), version=version))
        _, rows = sink.reader().query(f"SELECT sum(rows), count() FROM system.parts WHERE database = '{sink.target.database}' AND active")
        assert rows == [[65_536 * version, version]]
    assert sink.reader().count(schema) == 65_536


def test_a_missing_table_is_definite_and_says_what_to_do(sink: ClickHouseSink) -> None:
    sink.prepare([schema_of("other")])
    with pytest.raises(DefiniteError, match="ClickHouse error 60") as caught:
        sink.writer().write(block_of(schema_of(), "a"))
    assert "writing 1 rows to table shop.t" in caught.value.place
    assert "was the pipe run" in caught.value.hint
    with pytest.raises(DefiniteError, match="ClickHouse error 60"):
        sink.reader().count(schema_of())


def test_merges_keep_deletions_for_what_comes_late(sink: ClickHouseSink) -> None:
    schema = schema_of()
    sink.prepare([schema])
    table = f"{sink.target.database}.t"
    gone = replace(block_of(schema, "a", "b", version=9), op=pa.array([Op.DELETE, Op.UPDATE], pa.uint8()))
    for block in (block_of(schema, "a", "b", version=3), gone, block_of(schema, "a", "b", version=5)):
        sink.writer().write(block)
        sink.reader().query(f"OPTIMIZE TABLE {table} FINAL")
    assert sink.reader().read_range(schema).column("id").to_pylist() == ["b"]
    assert sink.reader().query(f"SELECT id, _sign, _version, _deleted FROM {table} ORDER BY id")[1] == [["a", -1, 9, 1], ["b", 1, 9, 0]]


def test_a_query_for_people(sink: ClickHouseSink) -> None:
    reader = sink.reader()
    names, rows = reader.query(
        "SELECT 1 AS a, 'x\u2028\n' AS b, NULL AS c, toDecimal64('1.50', 2) AS d, 18446744073709551615 AS e, unhex('ff') AS f"
    )
    assert names == ["a", "b", "c", "d", "e", "f"]
    assert rows == [[1, "x\u2028\n", None, "1.5", 2**64 - 1, "\\xff"]]
    assert reader.query("SELECT 1 AS a WHERE 0") == (["a"], [])
    assert reader.query(f"CREATE DATABASE IF NOT EXISTS {sink.target.database}") == ([], [])
    with pytest.raises(DefiniteError, match="ClickHouse error 62"):
        reader.query("SELEC 1")


def test_a_proxy_in_the_environment_is_not_used_for_loopback(sink: ClickHouseSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert sink.reader().query("SELECT 1")[1] == [[1]]


def test_a_wrong_password_is_definite(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data", user="writer", password="hunter2") as server:
        good = ClickHouseTarget("127.0.0.1", server.port, "writer", "hunter2")
        assert ClickHouseSink(good).reader().query("SELECT 1")[1] == [[1]]
        disconnect(good)
        for bad in (replace(good, password="hunter3"), replace(good, user="nobody"), replace(good, password="")):
            with pytest.raises(DefiniteError) as caught:
                connect(bad)
            assert "HEADRACE_SINK_PASSWORD" in caught.value.hint
            assert "hunter" not in str(caught.value)


def test_a_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    schema = schema_of()
    with EmbeddedServer(tmp_path / "data") as first:
        port = first.port
        sink = ClickHouseSink(target_of(first, database="away"))
        sink.prepare([schema])
        writer = sink.writer()
        writer.write(block_of(schema, "before"))
    with pytest.raises(TransientError, match="cannot be reached"):
        writer.write(block_of(schema, "after"))
    heard: list[str] = []
    servers: list[EmbeddedServer] = []

    def on_wait(error: TransientError, attempt: int, _: float) -> None:
        heard.append(f"{attempt}: {error.message}")
        if attempt == 2:
            servers.append(EmbeddedServer(tmp_path / "data", port=port).start())

    try:
        retrying(lambda: writer.write(block_of(schema, "after")), deadline_s=30, on_wait=on_wait)
        assert len(heard) >= 2
        assert sorted(sink.reader().read_range(schema).column("id").to_pylist()) == ["after", "before"]
    finally:
        disconnect(sink.target)
        for server in servers:
            server.stop()


def test_a_server_killed_while_blocks_arrive_loses_none_that_was_acknowledged(tmp_path: Path) -> None:
    schema = schema_of()
    first = EmbeddedServer(tmp_path / "data").start()
    sink = ClickHouseSink(target_of(first, database="killed"))
    sink.prepare([schema])
    writer, acknowledged = sink.writer(), 0
    killer = threading.Timer(0.4, os.kill, (first.pid, signal.SIGKILL))
    killer.start()
    try:
        for number in itertools.count():
            with contextlib.suppress(TransientError):
                writer.write(block_of(schema, *(f"{number}-{i}" for i in range(2000))))
                acknowledged = number + 1
            if acknowledged <= number:
                break
    finally:
        killer.cancel()
        first.stop()
    with EmbeddedServer(tmp_path / "data", port=first.port):
        shown = sink.reader().read_range(schema).column("id").to_pylist()
        blocks = Counter(int(key.split("-")[0]) for key in shown)
        # The interrupted block is complete or missing.
        assert blocks in (Counter(dict.fromkeys(range(n), 2000)) for n in (acknowledged, acknowledged + 1))
        assert acknowledged > 0
        disconnect(sink.target)


def test_what_a_statement_adds_to_a_table(clickhouse: EmbeddedServer) -> None:
    """TABLE OVERRIDE as in MaterializeMySQL: columns, codecs, indexes, keys and TTL, on the real engine."""
    override = """ TABLE OVERRIDE t (
        COLUMNS (
            n CODEC(Delta, ZSTD(3)) TTL toDate('2000-01-01') + toIntervalDay(length(id)),
            twice Nullable(Int64) ALIAS n * 2,
            `the hash` UInt64 MATERIALIZED cityHash64(id) CODEC(NONE),
            INDEX by_n n TYPE minmax GRANULARITY 4
        )
        ORDER BY (cityHash64(id), id) PRIMARY KEY cityHash64(id) PARTITION BY substring(id, 1, 1) SAMPLE BY cityHash64(id)
        TTL toDate('2000-01-01') + toIntervalDay(length(id)) DELETE WHERE id = 'gone'
    )"""
    name = f"o_{secrets.token_hex(6)}"
    statement = parse_statement(f"CREATE DATABASE {name} ENGINE = MaterializeMySQL('h', 'shop', 'u', 'p') {override}")
    assert isinstance(statement, CreateMaterializedDatabase)
    sink = ClickHouseSink(target_of(clickhouse), plan_pipe(statement).chosen.sink)
    schema = schema_of()
    sink.prepare([schema])
    sink = sink.without_cache()
    # The created table is accepted as an existing one.
    sink.prepare([schema])
    with contextlib.closing(sink.writer()) as writer:
        writer.write(block_of(schema, "a", "gone", "b"))
    reader = sink.reader()
    reader.query(f"OPTIMIZE TABLE {name}.t FINAL")
    shown = reader.query(f"SELECT id, n, twice, `the hash` = cityHash64(id) FROM {name}.t FINAL ORDER BY id")[1]
    assert shown == [["a", None, None, 1], ["b", None, None, 1]]
    [[query]] = reader.query(f"SELECT create_table_query FROM system.tables WHERE database = '{name}' AND name = 't'")[1]
    for part in (
        "`n` Nullable(Int32) CODEC(Delta(4), ZSTD(3)) TTL toDate('2000-01-01') + toIntervalDay(length(id))",
        "INDEX by_n n TYPE minmax GRANULARITY 4",
        "PARTITION BY substring(id, 1, 1) PRIMARY KEY cityHash64(id) ORDER BY (cityHash64(id), id) SAMPLE BY cityHash64(id)",
    ):
        assert part in query


def test_an_extra_column_must_not_hide_one_of_the_source(sink: ClickHouseSink) -> None:
    choices = parse_set_flag("extra_columns.n=Int64 ALIAS 1").sink
    with pytest.raises(DefiniteError) as caught:
        replace(sink, options=choices).prepare([schema_of()])
    assert "the extra column n has the name of a column of the source" in caught.value.message


def test_the_driver_queries_only_altered_tables(sink: ClickHouseSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema change of one table must not cost a request about thousands of others."""
    schemas = [schema_of(f"t{number}") for number in range(20)]
    names = {str(schema.name): f"{sink.target.database}.{schema.name.table}" for schema in schemas}
    targets = SinkTables(sink)
    asked: list[list[str]] = []
    read_target_tables = target_cache.read_target_tables

    def noted(scope: target_cache.TargetScope, wanted: Iterable[TableSchema]) -> list[TargetTable]:
        asked.append([schema.name.table for schema in wanted])
        return read_target_tables(scope, wanted)

    monkeypatch.setattr(target_cache, "read_target_tables", noted)
    targets.prepare(schemas)
    assert targets_of(targets, schemas) == names
    assert asked == [[f"t{number}" for number in range(20)]]
    asked.clear()
    before = targets.sink
    targets.run_step(Step((f"ALTER TABLE {sink.target.database}.t3 MODIFY SETTING max_parts_to_merge_at_once = 7",)), [schemas[3].name])
    assert targets_of(targets, schemas) == names
    assert asked == [["t3"]]
    assert isinstance(targets.sink, ClickHouseSink)
    settings = [dict(table.storage.settings) for table in targets.sink.target_tables(schemas[2:5]).values()]
    assert settings[1] == {**settings[0], "max_parts_to_merge_at_once": "7"}
    assert settings[2] == settings[0]
    # Tasks that have started before the change continue with what they know.
    assert targets_of(SinkTables(before), schemas) == names
    assert asked == [["t3"]]
    asked.clear()
    targets.sink = targets.sink.without_cache()
    assert targets_of(targets, schemas) == names
    assert [len(one) for one in asked] == [20]


def test_a_new_run_reads_the_tables_again(target: ClickHouseTarget, clickhouse: EmbeddedServer) -> None:
    """A worker outlives the runs of a pipe; a user may alter a table between two of them."""
    schema = schema_of("paused")
    address = f"{url_of(clickhouse)}/{target.database}"

    def settings(sink: ClickHouseSink) -> dict[str, str]:
        return dict(sink.target_tables([schema])[schema.name].storage.settings)

    with open_clickhouse(address) as first:
        tables = SinkTables(first.sink)
        for _ in range(5):
            tables.prepare([schema])
        assert isinstance(tables.sink, ClickHouseSink)
        before = settings(tables.sink)
        connect(target).client.command(f"ALTER TABLE {target.database}.paused MODIFY SETTING max_parts_to_merge_at_once = 7")
        assert settings(tables.sink) == before, "cached during a run"
    with open_clickhouse(address) as second:
        assert settings(second.sink) == {**before, "max_parts_to_merge_at_once": "7"}


def test_more_altered_tables_than_tasks_carry_invalidate_all(sink: ClickHouseSink) -> None:
    validity = sink.validity
    for number in range(101):
        validity = validity.after_change([TableName("db", f"t{number}")])
    assert (validity.generation, validity.all_altered, validity.altered) == (101, 101, ())


def test_the_server_wakes_one_thread_for_few_rows(clickhouse: EmbeddedServer) -> None:
    sink = ClickHouseSink(target_of(clickhouse, database=f"d_{secrets.token_hex(4)}"))
    schema = schema_of()
    sink.prepare([schema])
    client, database = connect(sink.target).client, sink.target.database
    # The view stores what the insert's own threads may be.
    client.command(f"CREATE TABLE {database}.seen (rows UInt64, threads String) ENGINE = MergeTree ORDER BY rows")
    threads = "toString(getSetting('max_threads'))"
    client.command(
        f"CREATE MATERIALIZED VIEW {database}.v TO {database}.seen AS SELECT count() AS rows, {threads} AS threads FROM {database}.t"
    )
    writer = sink.writer()
    writer.write(block_of(schema, *(str(n) for n in range(10))))
    writer.write(block_of(schema, *(str(n).zfill(100) for n in range(20_000))))
    seen = dict(sink.reader().query(f"SELECT sum(rows), threads FROM {database}.seen GROUP BY threads")[1])
    assert seen.pop(10) == "1"
    assert seen
    assert "1" not in seen.values()
