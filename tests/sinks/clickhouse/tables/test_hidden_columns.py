"""Hidden columns of Headrace: `SELECT *` returns the source's columns, and the engine still merges by the hidden ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.create_table import create_sql

KEYED = TableSchema(TableName("shop", "t"), (Column("word", Kind.STRING, False), Column("id", Kind.INT64, False)), ("id",))
KEYLESS = replace(KEYED, primary_key=())


def sink_of(target: ClickHouseTarget, **chosen: Any) -> ClickHouseSink:
    return ClickHouseSink(target, ClickHouseOptions(tuple(chosen.items())), pipe="hidden")


def block(schema: TableSchema, *images: tuple[int, Op, int, str]) -> ChangeBlock:
    versions, ops, keys, words = zip(*images, strict=True)
    rows = pa.record_batch([pa.array(words), pa.array(keys, pa.int64())], schema=schema.arrow_schema)
    moments, numbers = pa.array([0] * len(images), pa.int64()), pa.array(range(len(images)), pa.uint64())
    return ChangeBlock(schema, rows, pa.array(ops, pa.uint8()), pa.array(versions, pa.uint64()), moments, order=numbers)


def ask(sink: ClickHouseSink, columns: str, rest: str = "") -> tuple[list[str], list[list[Any]]]:
    """Column names and rows of a SELECT from the target."""
    return sink.reader().query(f"SELECT {columns} FROM {sink.target.database}.t {rest}")


def write(sink: ClickHouseSink, schema: TableSchema) -> None:
    """Two rows, of which one is deleted."""
    writer = sink.writer()
    writer.write(block(schema, (10, Op.INSERT, 1, "a"), (11, Op.INSERT, 2, "b")))
    writer.write(block(schema, (12, Op.UPDATE, 1, "c"), (13, Op.DELETE, 2, "b")))
    writer.close()


@pytest.mark.parametrize(
    ("chosen", "sign"),
    [
        ({}, "_sign = 1"),
        ({"delete_column": "gone"}, "gone = 0"),
        ({"delete_column": "sign", "delete_type": "int8"}, "sign = 1"),
        ({"version_column": "wo/`hin", "sign_column": "si gn"}, "`si gn` = 1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_the_star_returns_the_source_columns(target: ClickHouseTarget, chosen: dict[str, Any], sign: str) -> None:
    sink = sink_of(target, hidden_columns=True, **chosen)
    sink.prepare([KEYED])
    layout = sink.without_cache().target_table(KEYED)
    assert (layout.matches_plan, layout.created_by_headrace) == (True, True)
    # A table that is kept under another name leaves an equal one in its place.
    sink.reader().query(create_sql(replace(layout, table="twin")))
    columns = "SELECT name, type, default_kind, default_expression FROM system.columns WHERE database = '{}' AND table = '{}'"
    twins = [sink.reader().query(columns.format(target.database, table))[1] for table in ("t", "twin")]
    assert twins[0] == twins[1]
    write(sink, KEYED)
    assert ask(sink, "*", "FINAL ORDER BY id") == (["word", "id"], [["c", 1]])
    version = chosen.get("version_column", "_version").replace("`", "\\`")
    assert ask(sink, f"`{version}`, {sign}", "FINAL")[1] == [[12, 1]]
    assert ask(sink, f"count(), countIf({sign})")[1] == [[4, 3]], "every image has its own sign"


def test_rows_without_a_key(target: ClickHouseTarget) -> None:
    """`FINAL` does not hide a deletion of a row without a key: the table shows the columns that tell, or is a view."""
    sink = sink_of(target, hidden_columns=True)
    sink.prepare([KEYLESS])
    write_keyless(sink)
    columns, rows = ask(sink, "*")
    assert columns == ["word", "id", "_sign", "_version", "_occurrence"]
    assert sorted((sign, number) for _, _, sign, _, number in rows) == [(-1, 13), (1, 0), (1, 1), (1, 2)]
    assert sink.reader().query(f"SELECT * FROM {target.database}.t_current")[1] == [["a", 1], ["a", 1]]


def test_the_name_of_a_table_without_a_key_is_a_view(target: ClickHouseTarget) -> None:
    sink = sink_of(target, hidden_columns=True, keyless_views=True)
    sink.prepare([KEYLESS])
    assert sink.without_cache().target_table(KEYLESS).matches_plan
    write_keyless(sink)
    for final in ("", "FINAL", "SETTINGS final = 1"):
        assert ask(sink, "*", final) == (["word", "id"], [["a", 1], ["a", 1]])
        assert ask(sink, "count()", final)[1] == [[2]]
    assert sink.reader().query(f"SELECT count() FROM {target.database}.t__rows")[1] == [[4]]
    # After a resync with another key, nothing is left under the other name.
    for schema, kept in ((KEYED, ["t"]), (KEYLESS, ["t", "t__rows"])):
        sink.table_store().replace(schema)
        sink.prepare([schema])
        assert sink.reader().query(f"SELECT name FROM system.tables WHERE database = '{target.database}' ORDER BY name")[1] == [
            [name] for name in kept
        ]


def test_views_and_tables_of_one_name_are_refused(target: ClickHouseTarget) -> None:
    taken = replace(KEYED, name=TableName("shop", "t__rows"))
    with pytest.raises(DefiniteError, match=r"shop\.t and shop\.t__rows would both be written to .*\.t__rows"):
        sink_of(target, keyless_views=True).check_target_conflicts([KEYLESS, taken])
    moved = ClickHouseOptions((("keyless_views", True),), (("shop.other", (("target", "t"),)),))
    with pytest.raises(DefiniteError, match=r"would both be written to \S*\.t "):
        ClickHouseSink(target, moved).check_target_conflicts([KEYLESS, replace(KEYED, name=TableName("shop", "other"))])


def test_the_view_of_a_versioned_table_counts_many_equal_rows(target: ClickHouseTarget) -> None:
    """`FINAL` of a VersionedCollapsingMergeTree cancels at most about 8,000 equal rows."""
    sink = sink_of(target, engine="versioned")
    sink.prepare([KEYLESS])
    writer = sink.writer()
    for version, op, count in ((10, Op.SNAPSHOT, 30_000), (11, Op.DELETE, 20_000)):
        writer.write(block(KEYLESS, *((version, op, 1, "a") for _ in range(count))))
    writer.close()
    assert sink.reader().query(f"SELECT count() FROM {target.database}.t_current")[1] == [[10_000]]


def write_keyless(sink: ClickHouseSink) -> None:
    """Three rows, two of them equal, of which one is deleted."""
    writer = sink.writer()
    writer.write(block(KEYLESS, (10, Op.SNAPSHOT, 1, "a"), (10, Op.SNAPSHOT, 1, "a"), (10, Op.SNAPSHOT, 2, "b")))
    writer.write(block(KEYLESS, (13, Op.DELETE, 2, "b")))
    writer.close()


@pytest.mark.parametrize(
    ("engine_name", "own"),
    [("history", ["_operation", "_version", "_commit_time"]), ("collapsing", ["_sign", "_version"]), ("versioned", ["_sign", "_version"])],
)
def test_engines_whose_readers_need_the_columns_show_them(target: ClickHouseTarget, engine_name: str, own: list[str]) -> None:
    sink = sink_of(target, hidden_columns=True, engine=engine_name)
    sink.prepare([KEYED])
    write(sink, KEYED)
    assert ask(sink, "*", "LIMIT 1")[0] == ["word", "id", *own]


def test_a_table_of_an_earlier_release_stays_as_it_is(target: ClickHouseTarget) -> None:
    sink_of(target).prepare([KEYED])
    write(sink_of(target), KEYED)
    sink = sink_of(target, hidden_columns=True)
    sink.prepare([KEYED])
    assert sink.target_table(KEYED).matches_plan
    sink.table_store().replace(KEYED)
    sink.writer().write(block(KEYED, (20, Op.SNAPSHOT, 3, "new")))
    sink.table_store().delete_stale(KEYED, 20)
    assert ask(sink, "*", "FINAL") == (["word", "id", "_sign", "_version"], [["new", 3, 1, 20]])


def test_a_stale_row_is_deleted(target: ClickHouseTarget) -> None:
    sink = sink_of(target, hidden_columns=True)
    sink.prepare([KEYED])
    write(sink, KEYED)
    sink.writer().write(block(KEYED, (20, Op.SNAPSHOT, 3, "new")))
    for _ in range(2):
        sink.table_store().delete_stale(KEYED, 20)
        assert ask(sink, "*", "FINAL")[1] == [["new", 3]]


def test_a_replayed_block_with_a_token_adds_no_row(target: ClickHouseTarget) -> None:
    sink = sink_of(target)
    reader = sink.reader()
    reader.query(f"CREATE DATABASE {target.database}")
    reader.query(
        f"CREATE TABLE {target.database}.t (word String, id Int64, _sign Int8 MATERIALIZED 1)"
        " ENGINE = CollapsingMergeTree(_sign) ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
    )
    sink.prepare([KEYED])
    for _ in range(3):
        writer = sink.for_replay().writer()
        writer.write(block(KEYED, (10, Op.INSERT, 1, "a"), (11, Op.INSERT, 2, "b")))
        writer.write(block(KEYED, (12, Op.DELETE, 2, "b")))
        writer.close()
        assert ask(sink, "count(), sum(_sign)")[1] == [[3, 1]]
    assert ask(sink, "*", "FINAL") == (["word", "id"], [["a", 1]])


def test_a_computed_version_is_refused(target: ClickHouseTarget) -> None:
    reader = sink_of(target).reader()
    reader.query(f"CREATE DATABASE {target.database}")
    reader.query(
        f"CREATE TABLE {target.database}.t (word String, id Int64, _sign Int8, _version UInt64 MATERIALIZED toUInt64(id))"
        " ENGINE = ReplacingMergeTree(_version) ORDER BY id"
    )
    with pytest.raises(DefiniteError, match=r"its column _version is computed \(MATERIALIZED\), not stored"):
        sink_of(target).prepare([KEYED])


def test_rows_of_others_count_as_live_and_old(target: ClickHouseTarget) -> None:
    sink = sink_of(target, hidden_columns=True)
    sink.prepare([KEYED])
    sink.reader().query(f"INSERT INTO {target.database}.t VALUES ('theirs', 1), ('theirs', 7)")
    write(sink, KEYED)
    assert ask(sink, "*", "FINAL ORDER BY id")[1] == [["c", 1], ["theirs", 7]]
