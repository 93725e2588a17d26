"""Maintenance of tables of each kind of engine: stale rows, cleanup, views, row policies, rebuilds, and ignored deletions."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.mysql.snapshot_runner import SnapshotRunner
from headrace.pipes.state.pipe_state import TableState
from headrace.sinks.clickhouse.maintenance.tombstone_store import TombstoneCleanup, allow_cleanup_sql
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_table import MetadataRole
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.pipelines.embedded_access import target_of
from testkit.servers.clustered import ClusteredServer

COLUMNS = (Column("id", Kind.INT64, False), Column("word", Kind.STRING, False, comment="it's"))
KEYED = TableSchema(TableName("shop", "t"), COLUMNS, ("id",), comment="a `table`")
KEYLESS = replace(KEYED, primary_key=())
Image = tuple[int, Op, int, str]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with ClusteredServer(tmp_path_factory.mktemp("clickhouse") / "data") as started:
        yield started


@pytest.fixture
def target(engine: EmbeddedServer) -> Iterator[ClickHouseTarget]:
    found = target_of(engine, database=f"u_{secrets.token_hex(4)}")
    yield found
    disconnect(found)


def sink_of(target: ClickHouseTarget, **chosen: Any) -> ClickHouseSink:
    return ClickHouseSink(target, ClickHouseOptions(tuple(chosen.items())), pipe="upkeep")


def block(schema: TableSchema, *images: Image) -> ChangeBlock:
    rows = pa.record_batch([pa.array([i[2] for i in images], pa.int64()), pa.array([i[3] for i in images])], schema=schema.arrow_schema)
    ops, versions = pa.array([i[1] for i in images], pa.uint8()), pa.array([i[0] for i in images], pa.uint64())
    numbers = pa.array(range(len(images)), pa.uint64())
    return ChangeBlock(schema, rows, ops, versions, pa.array([1_700_000_000_123_456] * len(images), pa.int64()), order=numbers)


def shown(sink: ClickHouseSink, schema: TableSchema = KEYED) -> list[tuple[int, str]]:
    table = sink.without_cache().reader().read_range(schema)
    return sorted(zip(table.column("id").to_pylist(), table.column("word").to_pylist(), strict=True))


def ask(sink: ClickHouseSink, sql: str) -> list[list[Any]]:
    return sink.reader().query(sql)[1]


@pytest.mark.slow(
    "replacing gone",
    "collapsing",
    because=(
        "test_rows_that_a_new_snapshot_did_not_read_are_deleted[versioned-keyed], "
        "test_rows_that_a_new_snapshot_did_not_read_are_deleted[history-keyed]"
    ),
)
@pytest.mark.parametrize("schema", [KEYED, KEYLESS], ids=["keyed", "keyless"])
@pytest.mark.parametrize(
    "chosen",
    [{}, {"delete_column": "gone", "version_column": "at`"}, {"engine": "history"}, {"engine": "collapsing"}, {"engine": "versioned"}],
    ids=lambda chosen: chosen.get("engine", "replacing " + chosen.get("delete_column", "")),
)
def test_rows_that_a_new_snapshot_did_not_read_are_deleted(target: ClickHouseTarget, chosen: dict[str, Any], schema: TableSchema) -> None:
    sink = sink_of(target, **chosen)
    if chosen.get("engine") == "collapsing" and schema is KEYLESS:
        with pytest.raises(DefiniteError, match="nothing tells this table's rows apart"):
            sink.prepare([schema])
        return
    sink.prepare([schema])
    writer = sink.writer()
    writer.write(block(schema, (10, Op.INSERT, 1, "gone"), (11, Op.INSERT, 2, "kept"), (12, Op.INSERT, 2, "kept")))
    writer.write(block(schema, (13, Op.BEFORE, 2, "kept"), (14, Op.UPDATE, 2, "kept, too")))
    exact = sink.requirements([schema])[schema.name].emptied
    if exact:
        # Stale rows of such a table are deleted before its rows are read again: they cannot be cancelled later.
        sink.table_store().delete_stale(schema, 20)
    writer.write(block(schema, (20, Op.SNAPSHOT, 2, "kept"), (20, Op.SNAPSHOT, 3, "new")))
    writer.write(block(schema, (30, Op.INSERT, 4, "later")))
    for _ in range(2):
        sink.table_store().delete_stale(schema, 20)
        assert shown(sink, schema) == [(2, "kept"), (3, "new"), (4, "later")]
    writer.write(block(schema, (40, Op.INSERT, 1, "again"), (41, Op.DELETE, 3, "new")))
    assert shown(sink, schema) == [(1, "again"), (2, "kept"), (4, "later")]
    assert sink.table_store().newest_version(schema) == 41


def test_a_history_says_what_happened_and_when(target: ClickHouseTarget) -> None:
    sink = sink_of(target, engine="history", view=True)
    sink.prepare([KEYED])
    images = (
        (1, Op.SNAPSHOT, 1, "a"),
        (2, Op.INSERT, 2, "b"),
        (3, Op.UPDATE, 1, "c"),
        (4, Op.BEFORE, 2, "b"),
        (5, Op.UPDATE, 3, "b"),
        (6, Op.DELETE, 1, "c"),
    )
    sink.writer().write(block(KEYED, *images))
    history = ask(sink, f"SELECT _version, _operation, id, word, toString(_commit_time) FROM {target.database}.t ORDER BY _version")
    assert [row[:4] for row in history] == [[v, op.name.lower(), key, word] for v, op, key, word in images]
    assert {row[4] for row in history} == {"2023-11-14 22:13:20.123456"}
    assert shown(sink) == [(3, "b")]
    assert ask(sink, f"SELECT * FROM {target.database}.t_current") == [[3, "b"]]


def test_comments_are_carried_over_and_names_are_quoted(target: ClickHouseTarget) -> None:
    columns = (Column("i`d\\", Kind.INT64, False, comment="k'ey"), Column("wo rd'", Kind.STRING), Column("_version", Kind.INT8))
    schema = TableSchema(TableName("shop", "it's `a` \\table"), columns, ("i`d\\",), comment="it's\n`here` \\")
    sink = sink_of(target, version_column="ver`'s", sign_column="si gn", tombstone_column="to\\mb", sort_key=("wo rd'", "i`d\\"), view=True)
    sink.prepare([schema])
    sink.prepare([schema])
    layout = sink.target_table(schema)
    assert (layout.matches_plan, set(layout.key_dependencies)) == (True, {"i`d\\", "wo rd'"})
    images = pa.record_batch([pa.array([1, 2]), pa.array(["x", None]), pa.array([1, 1], pa.int8())], schema=schema.arrow_schema)
    sink.writer().write(replace(block(KEYED, (1, Op.INSERT, 1, ""), (2, Op.INSERT, 2, "")), schema=schema, images=images))
    sink.table_store().delete_stale(schema, 2)
    assert sink.reader().read_range(schema).column(1).to_pylist() == [None]
    assert ask(sink, f"SELECT count() FROM {layout.view}") == [[1]]
    assert ask(sink, f"SELECT comment FROM system.tables WHERE database = '{target.database}' AND engine != 'View'") == [
        ["it's\n`here` \\"]
    ]
    [first, *_] = ask(sink, f"SELECT comment FROM system.columns WHERE database = '{target.database}' ORDER BY table, position")
    assert first == ["k'ey"]


def test_cleaning_purges_deletions_and_old_versions(target: ClickHouseTarget) -> None:
    for chosen in ({}, {"delete_column": "is_deleted"}):
        sink = sink_of(replace(target, database=target.database + "".join(chosen)), **chosen)
        sink.prepare([KEYED])
        sink.writer().write(block(KEYED, (1, Op.INSERT, 1, "a"), (2, Op.INSERT, 2, "b"), (3, Op.DELETE, 1, "a"), (4, Op.UPDATE, 2, "c")))
        for is_first in (True, False):
            sink = sink.without_cache()
            assert bool(allow_cleanup_sql(sink.target_table(KEYED))) is is_first
            assert TombstoneCleanup(sink.scope, sink.target_table(KEYED)).run(nullcontext, lambda: True) == int(is_first)
        assert ask(sink, f"SELECT id, word FROM {sink.target.database}.t") == [[2, "c"]]
    for chosen in ({"engine": "history"}, {"engine": "collapsing"}, {"engine": "versioned"}):
        sink = sink_of(replace(target, database=target.database + chosen["engine"]), **chosen)
        sink.prepare([KEYED])
        assert allow_cleanup_sql(sink.target_table(KEYED)) == ""


def test_where_no_row_policy_can_be_the_view_is_there_instead(target: ClickHouseTarget, caplog: pytest.LogCaptureFixture) -> None:
    sink = sink_of(target, row_policy=True)
    with caplog.at_level(logging.WARNING, "headrace.clickhouse"):
        sink.prepare([KEYED])
    assert "t gets no row policy: this server keeps none" in caplog.text
    assert f"read the view `{target.database}`.`t_current`" in caplog.text
    sink.writer().write(block(KEYED, (1, Op.INSERT, 1, "a"), (2, Op.INSERT, 2, "b"), (3, Op.DELETE, 1, "a")))
    assert ask(sink, f"SELECT id FROM {target.database}.t_current") == [[2]]


def test_deletions_left_out(target: ClickHouseTarget) -> None:
    images = ((1, Op.INSERT, 1, "a"), (2, Op.INSERT, 2, "b"), (3, Op.DELETE, 1, "a"), (4, Op.UPDATE, 2, "c"))
    sink = sink_of(target, deletes="ignore")
    sink.prepare([KEYED])
    sink.writer().write(block(KEYED, *images))
    sink.writer().write(block(KEYED, (5, Op.DELETE, 2, "c")))
    assert shown(sink) == [(1, "a"), (2, "c")]
    # An update that moves a row is not a deletion.
    sink.writer().write(block(KEYED, (6, Op.BEFORE, 2, "c"), (7, Op.UPDATE, 3, "c")))
    assert shown(sink) == [(1, "a"), (3, "c")]
    ask(sink, f"CREATE TABLE {target.database}.bare (id Int64, word String, v UInt64) ENGINE = ReplacingMergeTree(v) ORDER BY id")
    bare = replace(KEYED, name=TableName("shop", "bare"))
    sink.prepare([bare])
    sink.writer().write(block(bare, *images))
    assert shown(sink, bare) == [(1, "a"), (2, "c")]
    with pytest.raises(DefiniteError, match="an update moved the row id=2 to another key") as caught:
        sink.writer().write(block(bare, (6, Op.BEFORE, 2, "c"), (7, Op.UPDATE, 3, "c")))
    assert "delete_column" in caught.value.hint
    sink.table_store().delete_stale(bare, 100)
    assert shown(sink, bare) == [(1, "a"), (2, "c")]


def test_coalescing_keeps_the_last_values(target: ClickHouseTarget) -> None:
    sink = sink_of(target, deletes="ignore")
    ask(sink, f"CREATE DATABASE {target.database}")
    ask(sink, f"CREATE TABLE {target.database}.t (id Int64, word Nullable(String)) ENGINE = CoalescingMergeTree ORDER BY id")
    sink.prepare([KEYED])
    for images in (
        ((1, Op.SNAPSHOT, 1, "a"), (1, Op.SNAPSHOT, 2, "b")),
        ((2, Op.UPDATE, 1, "c"), (3, Op.DELETE, 2, "b")),
        ((4, Op.UPDATE, 1, ""),),
    ):
        for _ in range(2):
            sink.writer().write(block(KEYED, *images))
    assert shown(sink) == [(1, ""), (2, "b")]
    ask(sink, f"OPTIMIZE TABLE {target.database}.t FINAL")
    assert shown(sink) == [(1, ""), (2, "b")]


def test_only_tables_of_headrace_are_rebuilt(target: ClickHouseTarget) -> None:
    sink = sink_of(target)
    sink.prepare([KEYED])
    ask(sink, f"ALTER TABLE {target.database}.t ADD COLUMN mine String MATERIALIZED upper(word)")
    sink.writer().write(block(KEYED, (1, Op.INSERT, 1, "a")))
    sink.table_store().replace(KEYED)
    assert ask(sink, f"SELECT mine FROM {target.database}.t") == [["A"]]
    wider = replace(KEYED, columns=(Column("id", Kind.UINT64, False), COLUMNS[1]))
    sink.table_store().replace(wider)
    sink.prepare([wider])
    assert ask(sink, f"SELECT name, type FROM system.columns WHERE database = '{target.database}' AND table = 't' LIMIT 1") == [
        ["id", "UInt64"]
    ]
    theirs = replace(KEYED, name=TableName("shop", "theirs"))
    ask(sink, f"CREATE TABLE {target.database}.theirs (id Int64, v UInt64, d UInt8) ENGINE = ReplacingMergeTree(v, d) ORDER BY id")
    with pytest.raises(DefiniteError, match="it has no column word"):
        sink.table_store().replace(theirs)
    assert ask(sink, f"SELECT count() FROM system.tables WHERE database = '{target.database}' AND name = 'theirs'") == [[1]]


def test_tables_that_cannot_drop_stale_rows_are_reported(target: ClickHouseTarget) -> None:
    sink = sink_of(target)
    ask(sink, f"CREATE DATABASE {target.database}")
    ask(sink, f"CREATE TABLE {target.database}.t (id Int64, word String, s Int8) ENGINE = CollapsingMergeTree(s) ORDER BY id")
    sink.prepare([KEYED])
    assert sink.table_store().newest_version(KEYED) is None
    with pytest.raises(DefiniteError, match="says how old a row is") as caught:
        sink.table_store().delete_stale(KEYED, 5)
    assert "_version UInt64" in caught.value.hint


def test_many_partitions_in_one_block(target: ClickHouseTarget) -> None:
    sink = sink_of(target, partition_by="id")
    sink.prepare([KEYED])
    sink.writer().write(block(KEYED, *((n, Op.INSERT, n, "x") for n in range(1, 301))))
    assert sink.reader().count(KEYED) == 300
    assert sink.target_table(KEYED).metadata_column(MetadataRole.VERSION) is not None


def test_existing_rows_must_be_older_than_the_log(target: ClickHouseTarget) -> None:
    sink = sink_of(target)
    sink.prepare([KEYED])
    notes: list[str] = []
    nothing: Any = None
    copier = SnapshotRunner(
        address=nothing,
        context=cast(
            Any,
            SimpleNamespace(targets=SinkTables(sink), view=SimpleNamespace(note=notes.append), sink_schema=lambda schema: schema),
        ),
        snapshots=nothing,
        task=nothing,
        written=nothing,
    )
    position = BinlogPosition("binlog.000002", 500, "")
    table = TableState(KEYED, position.to_json())
    copier._check_versions(table)
    assert notes == []
    sink.writer().write(block(KEYED, (position.version - 1, Op.INSERT, 1, "a")))
    copier._check_versions(table)
    assert "shop.t holds rows already; those that the source has not stay, until headrace resync" in notes[0]
    sink.writer().write(block(KEYED, (1_700_000_000_000 << 22, Op.INSERT, 1, "by a clock")))
    with pytest.raises(DefiniteError, match="holds rows with versions up to 7130316800000000000") as caught:
        copier._check_versions(table)
    assert "TRUNCATE" in caught.value.hint
    # A later snapshot of the same pipe comes after its own rows.
    copier._check_versions(replace(table, snapshot=1))
