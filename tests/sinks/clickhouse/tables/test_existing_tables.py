"""Existing tables: which are used as they are, and which are refused, with the reason and a hint."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.maintenance.table_store import delete_stale_sql
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, DeleteAs
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import extend_dedup_window_sql, plan_table
from headrace.sinks.clickhouse.tables.existing_table import (
    ColumnAdditions,
    find_missing_columns,
    is_created_by_headrace,
    plan_existing_table,
)
from headrace.sinks.clickhouse.tables.system_tables import ExistingColumn, ExistingTable
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataColumn, MetadataRole, TargetTable

ORDERS = TableSchema(
    TableName("shop", "orders"), (Column("id", Kind.INT64, False), Column("note", Kind.STRING), Column("n", Kind.INT32, False)), ("id",)
)
KEYLESS = replace(ORDERS, primary_key=())
OWN = (ExistingColumn("id", "Int64", in_sort_key=True), ExistingColumn("note", "Nullable(String)"), ExistingColumn("n", "Int32"))
SIGN, VERSION = ExistingColumn("_sign", "Int8"), ExistingColumn("_version", "UInt64")
TOMBSTONE = ExistingColumn("_deleted", "UInt8", "MATERIALIZED", "_sign = -1")
MADE = ExistingTable(
    "ReplacingMergeTree(_version, _deleted) ORDER BY id SETTINGS index_granularity = 8192", "id", (*OWN, SIGN, VERSION, TOMBSTONE)
)


def there(engine: str, *more: ExistingColumn, key: str = "id", partition: str = "", kind: str = "") -> ExistingTable:
    return ExistingTable(engine, key, (*OWN, *more), partition, kind or engine.partition("(")[0].partition(" ")[0])


def adapted(
    found: ExistingTable, schema: TableSchema = ORDERS, local_table: ExistingTable | None = None, cluster: str = "", **chosen: Any
) -> TargetTable:
    choices = ClickHouseOptions(tuple(chosen.items()), cluster=cluster)
    return plan_existing_table(plan_table(schema, ClickHouseTarget("h"), choices), found, choices.of(schema.name), local_table)


def marks(layout: TargetTable) -> list[tuple[str, MetadataRole]]:
    return [(mark.name, mark.role) for mark in layout.metadata_columns]


def test_a_planned_table_counts_as_created_by_headrace() -> None:
    layout = adapted(MADE)
    assert (layout.family, layout.matches_plan, layout.created_by_headrace, layout.final_hides_deleted, layout.key_dependencies) == (
        EngineFamily.REPLACING,
        True,
        True,
        True,
        ("id",),
    )
    assert marks(layout) == [("_sign", MetadataRole.SIGN), ("_version", MetadataRole.VERSION)]
    assert adapted(replace(MADE, sort_key="(`id`)")).matches_plan


@pytest.mark.parametrize(
    "engine",
    [
        "ReplicatedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', _version, _deleted) ORDER BY id",
        "SharedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', _version, _deleted) ORDER BY id",
        "ReplicatedReplacingMergeTree(_version, _deleted) ORDER BY id",
    ],
)
def test_replicated_and_shared_engines_match_plain_ones(engine: str) -> None:
    assert adapted(replace(MADE, engine=engine)).matches_plan
    shared = engine.replace("ReplacingMergeTree", "CollapsingMergeTree").replace("_version, _deleted", "_sign")
    layout = adapted(there(shared, SIGN, VERSION))
    assert (layout.family, layout.storage.engine, marks(layout)) == (
        EngineFamily.COLLAPSING,
        "CollapsingMergeTree",
        [("_sign", MetadataRole.SIGN), ("_version", MetadataRole.VERSION)],
    )


@pytest.mark.parametrize(
    ("found", "chosen", "expected"),
    [
        (
            there("ReplacingMergeTree(v, d) ORDER BY id", ExistingColumn("v", "UInt64"), ExistingColumn("d", "UInt8")),
            {},
            ("d", MetadataRole.DELETED),
        ),
        (there("ReplacingMergeTree(v) ORDER BY id", ExistingColumn("v", "Int64"), SIGN), {}, ("_sign", MetadataRole.SIGN)),
        (
            there("ReplacingMergeTree(v) ORDER BY id", ExistingColumn("v", "UInt64"), ExistingColumn("d", "Int8")),
            {"delete_column": "d"},
            ("d", MetadataRole.SIGN),
        ),
        (
            there("ReplacingMergeTree(v) ORDER BY id", ExistingColumn("v", "UInt64"), ExistingColumn("d", "Bool"), SIGN),
            {"delete_column": "d"},
            ("d", MetadataRole.DELETED),
        ),
        (
            there(
                "ReplacingMergeTree(v, d) ORDER BY id",
                ExistingColumn("v", "UInt64"),
                ExistingColumn("d", "UInt8", "MATERIALIZED", "s = -1"),
                ExistingColumn("s", "Int8"),
            ),
            {},
            ("s", MetadataRole.SIGN),
        ),
    ],
)
def test_where_deletions_are_marked(found: ExistingTable, chosen: dict[str, Any], expected: tuple[str, MetadataRole]) -> None:
    assert marks(adapted(found, **chosen))[0] == expected


def test_deletions_may_be_left_out_where_nothing_marks_them() -> None:
    layout = adapted(there("ReplacingMergeTree(v) ORDER BY id", ExistingColumn("v", "UInt64")), deletes="ignore")
    assert (marks(layout), layout.ignores_deletes) == ([("v", MetadataRole.VERSION)], True)


def test_operation_and_time_are_written_to_their_columns() -> None:
    more = (
        ExistingColumn("_operation", "Enum8('snapshot' = 0, 'insert' = 1, 'update' = 2, 'delete' = 3, 'before' = 4)"),
        ExistingColumn("_commit_time", "DateTime"),
    )
    layout = adapted(replace(MADE, columns=(*MADE.columns, *more)))
    assert MetadataColumn("_commit_time", MetadataRole.COMMIT_TIME, "DateTime") in layout.metadata_columns
    assert layout.metadata_column(MetadataRole.OPERATION) is not None
    # A column of that name with another type is the user's.
    other = replace(MADE, columns=(*MADE.columns, ExistingColumn("_operation", "Nullable(Int8)")))
    assert adapted(other).metadata_column(MetadataRole.OPERATION) is None


def test_the_columns_that_keys_depend_on_move_rows() -> None:
    day = ExistingColumn("bucket", "UInt8", "MATERIALIZED", "n % 4", in_sort_key=True)
    found = there(
        "ReplacingMergeTree(v, d) ORDER BY (bucket, id)", day, ExistingColumn("v", "UInt64"), ExistingColumn("d", "UInt8"), key="bucket, id"
    )
    assert adapted(found).key_dependencies == ("id", "n")
    noted = replace(found, columns=tuple(replace(c, in_partition_key=c.name == "note") for c in found.columns))
    layout = adapted(noted)
    assert (set(layout.key_dependencies), layout.spans_partitions) == ({"id", "n", "note"}, True)
    renamed = there(
        "ReplacingMergeTree(v, d) ORDER BY (k, id)",
        ExistingColumn("v", "UInt64"),
        ExistingColumn("d", "UInt8"),
        ExistingColumn("k", "Int32", in_sort_key=True),
        key="k, id",
    )
    renamed = replace(renamed, columns=tuple(c for c in renamed.columns if c.name != "n"))
    assert adapted(renamed, rename=(("n", "k"),)).key_dependencies == ("id", "n")


def test_versions_of_rows_that_cancel_each_other() -> None:
    plain = there("VersionedCollapsingMergeTree(_sign, v) ORDER BY id", SIGN, ExistingColumn("v", "UInt64", in_sort_key=True), key="id, v")
    assert marks(adapted(plain)) == [("_sign", MetadataRole.SIGN), ("v", MetadataRole.CONTENT)]
    assert (adapted(plain).cancels_by_content_hash, adapted(plain).storage.sort_key) == (True, ("id",))
    hashed = ExistingColumn("v", "UInt64", "MATERIALIZED", "cityHash64((id, note, n))", in_sort_key=True)
    computed = there("VersionedCollapsingMergeTree(_sign, v) ORDER BY id", SIGN, hashed, key="id, v")
    assert marks(adapted(computed)) == [("_sign", MetadataRole.SIGN)]
    of_source = there("VersionedCollapsingMergeTree(_sign, n) ORDER BY id", SIGN, key="id, n")
    assert (marks(adapted(of_source)), adapted(of_source).cancels_by_content_hash) == ([("_sign", MetadataRole.SIGN)], False)
    keyless = adapted(plain, KEYLESS)
    assert (keyless.needs_before_images, keyless.needs_consistent_snapshot, keyless.key_dependencies) == (True, True, ())


def test_coalescing_where_it_fits() -> None:
    schema = replace(ORDERS, columns=tuple(replace(column, nullable=False) for column in ORDERS.columns))
    found = there("CoalescingMergeTree ORDER BY id")
    layout = adapted(found, schema, deletes="ignore")
    assert (layout.family, layout.needs_ordered_writes, layout.needs_consistent_snapshot, layout.counts_duplicates) == (
        EngineFamily.COALESCING,
        True,
        True,
        False,
    )
    listed = there("CoalescingMergeTree((n, note)) ORDER BY id")
    assert adapted(listed, schema, deletes="ignore").family is EngineFamily.COALESCING
    for bad, of, chosen, why in (
        (found, schema, {}, "it cannot take away a row"),
        (found, ORDERS, {"deletes": "ignore"}, "a NULL in note would not cover the value before it"),
        (there("CoalescingMergeTree((n)) ORDER BY id"), schema, {"deletes": "ignore"}, "of its column note it keeps any value"),
        (found, replace(schema, primary_key=()), {"deletes": "ignore"}, "nothing tells the source's rows apart"),
    ):
        with pytest.raises(DefiniteError, match=why):
            adapted(bad, of, **chosen)


V, D = ExistingColumn("v", "UInt64"), ExistingColumn("d", "UInt8")
REFUSED: list[tuple[ExistingTable, dict[str, Any], str, str]] = [
    (there("SummingMergeTree((n)) ORDER BY id"), {}, "SummingMergeTree, which adds up the rows", "ReplacingMergeTree"),
    (there("AggregatingMergeTree ORDER BY id"), {}, "AggregatingMergeTree, which aggregates", "ReplacingMergeTree"),
    (there("ReplicatedGraphiteMergeTree('/x', 'r', 'rollup') ORDER BY id"), {}, "GraphiteMergeTree, which thins out rows", ""),
    *((there(engine), {}, f"its engine is {engine}, which", "") for engine in ("Log", "TinyLog", "StripeLog", "Memory")),
    (there("`Null`"), {}, "its engine is Null, which keeps nothing", ""),
    (there("Join(ANY, LEFT, id)"), {}, "its engine is Join", ""),
    (there("Buffer('d', 't', 1, 1, 1, 1, 1, 1, 1)"), {}, "its engine is Buffer, which holds rows back", ""),
    (there("SomethingNew(1)"), {}, "its engine is SomethingNew, which Headrace does not know", ""),
    (there("", kind="View"), {}, "its engine is View, which is a query", ""),
    (there("", kind="MaterializedView"), {}, "its engine is MaterializedView, which is the result of a query", ""),
    (there("", kind="Dictionary"), {}, "its engine is Dictionary", ""),
    (there("ReplacingMergeTree(`v"), {}, "its engine is unknown", ""),
    (there("ReplacingMergeTree ORDER BY id", V), {}, "ReplacingMergeTree without a version column", "version, is_deleted"),
    (
        there("ReplacingMergeTree(v) ORDER BY id", V),
        {},
        "nothing in it can say that a row was deleted",
        "delete_column.*missing_columns.*deletes",
    ),
    (there("ReplacingMergeTree(v) ORDER BY id", V, SIGN), {"delete_column": "gone"}, "no column gone, in which deletions", "UInt8"),
    (
        there("ReplacingMergeTree(v) ORDER BY id", V),
        {"delete_column": "gone", "delete_type": "int8"},
        "no column gone, in which deletions",
        "`gone` Int8 DEFAULT 1",
    ),
    (
        there("ReplacingMergeTree(v, d) ORDER BY id", ExistingColumn("v", "DateTime"), D),
        {},
        "its column v is DateTime and cannot hold",
        "UInt64",
    ),
    (there("ReplacingMergeTree(v) ORDER BY id", V, ExistingColumn("_sign", "Int32")), {}, "its column _sign is Int32", ""),
    (there("ReplacingMergeTree(n, d) ORDER BY id", D), {}, "its column n, which its engine needs, is a column of the source", "rename"),
    (
        there("ReplacingMergeTree(v, d) ORDER BY id", V, ExistingColumn("d", "UInt8", "MATERIALIZED", "n > 3")),
        {},
        "its column d is n > 3, not",
        "",
    ),
    (there("MergeTree(day, (id), 8192)", V), {}, "arguments in the old way", ""),
    (there("MergeTree ORDER BY id"), {}, "it has no column _version", "missing_columns"),
    (there("MergeTree ORDER BY id", VERSION), {}, "no column _operation that says what happened", "LowCardinality"),
    (there("CollapsingMergeTree(_sign) ORDER BY id", SIGN), {"deletes": "ignore"}, "deletions cannot be left out", "apply"),
    (
        there("CollapsingMergeTree(_sign) ORDER BY n", SIGN, key="n"),
        {},
        r"its sort key is \(n\), which does not hold the key's column id",
        "`id`",
    ),
    (there("ReplacingMergeTree(v, d) ORDER BY intDiv(id, 2)", V, D, key="intDiv(id, 2)"), {}, "does not hold the key's column id", ""),
    (
        there("ReplacingMergeTree(v, d) ORDER BY (id, d)", V, replace(D, in_sort_key=True), key="id, d"),
        {},
        "its sort or partition key holds d",
        "",
    ),
    (
        there(
            "ReplacingMergeTree(v, d) ORDER BY (at, id)",
            V,
            D,
            ExistingColumn("at", "DateTime", "DEFAULT", "now()", in_sort_key=True),
            key="at, id",
        ),
        {},
        r"its key depends on column at = now\(\), which is not decided by the row",
        "",
    ),
    (
        there("VersionedCollapsingMergeTree(_sign, v) ORDER BY id", SIGN, ExistingColumn("v", "DateTime")),
        {},
        "its column v is DateTime and cannot hold",
        "UInt64",
    ),
    (
        there(
            "VersionedCollapsingMergeTree(_sign, v) ORDER BY id", SIGN, ExistingColumn("v", "UInt64", "DEFAULT", "toUnixTimestamp(now())")
        ),
        {},
        "no hash of the whole row",
        "cityHash64",
    ),
    (
        there(
            "VersionedCollapsingMergeTree(_sign, v) ORDER BY id", SIGN, ExistingColumn("v", "UInt64", "MATERIALIZED", "cityHash64(id, n)")
        ),
        {},
        "without note",
        "",
    ),
    (replace(MADE, columns=MADE.columns[1:]), {}, "it has no column id", "ADD COLUMN `id` Int64.*missing_columns.*rename"),
    (
        replace(MADE, columns=(*OWN[:1], ExistingColumn("note", "Nullable(Date)"), *MADE.columns[2:])),
        {},
        r"its column note is Nullable\(Date\)",
        "",
    ),
    (replace(MADE, columns=(*OWN[:2], ExistingColumn("n", "Int32", "ALIAS", "1"), *MADE.columns[3:])), {}, "its column n is computed", ""),
    (replace(MADE, columns=(*MADE.columns, ExistingColumn("more", "Int8"))), {}, "a column more Int8 that the source has not", "DEFAULT"),
]


@pytest.mark.parametrize(("found", "chosen", "difference", "remedy"), REFUSED, ids=[case[2][:40] for case in REFUSED])
def test_what_cannot_hold_the_source_s_rows_is_refused(found: ExistingTable, chosen: dict[str, Any], difference: str, remedy: str) -> None:
    with pytest.raises(DefiniteError, match=difference) as caught:
        adapted(found, **chosen)
    assert "the table shop.orders is there, but is not what Headrace needs" in caught.value.message
    assert caught.value.place == "table shop.orders"
    assert caught.value.hint
    if remedy:
        assert re.search(remedy, caught.value.hint)


def test_a_replicated_table_that_counts_remembers_blocks_for_long() -> None:
    engine = "ReplicatedMergeTree('/x', 'r') ORDER BY id SETTINGS index_granularity = 8192"
    found = there(engine, VERSION, ExistingColumn("_operation", "String"))
    expected = "ALTER TABLE `shop`.`orders` MODIFY SETTING replicated_deduplication_window_seconds = 2592000"
    assert extend_dedup_window_sql(adapted(found)) == expected
    assert extend_dedup_window_sql(adapted(replace(found, engine=f"{engine}, replicated_deduplication_window_seconds = 3600"))) == expected
    assert extend_dedup_window_sql(adapted(replace(found, engine=f"{engine}, replicated_deduplication_window_seconds = 604800"))) == ""
    assert extend_dedup_window_sql(adapted(replace(found, engine="MergeTree ORDER BY id"))) == ""
    assert extend_dedup_window_sql(adapted(replace(MADE, engine="Replicated" + MADE.engine))) == ""


def test_identical_rows() -> None:
    for found, why in (
        (there("ReplacingMergeTree(v, d) ORDER BY id", V, D), "nothing tells the source's rows apart"),
        (there("CollapsingMergeTree(_sign) ORDER BY id", SIGN), "nothing tells the source's rows apart"),
    ):
        with pytest.raises(DefiniteError, match=why):
            adapted(found, KEYLESS)


OF_THE_USER = (
    ExistingColumn("x", "Int8", "DEFAULT", "1"),
    ExistingColumn("x", "Nullable(Int8)"),
    ExistingColumn("x", "Int8", "ALIAS", "n"),
    ExistingColumn("x", "LowCardinality(Nullable(String))"),
    ExistingColumn("x", "Int8", "EPHEMERAL", "1"),
)


@pytest.mark.parametrize("column", OF_THE_USER)
def test_columns_of_the_user_s_own_are_left_to_the_table(column: ExistingColumn) -> None:
    layout = adapted(replace(MADE, columns=(*MADE.columns, column)))
    assert all(stored.name != "x" for stored in layout.columns)


def test_a_distributed_table_has_the_layout_of_its_local_table() -> None:
    hidden = ExistingColumn("_sign", "Int8", "MATERIALIZED", "1"), ExistingColumn("_version", "UInt64", "MATERIALIZED", "0")
    over = ExistingTable("Distributed('c', 'shop', 'orders_local', cityHash64(n))", "", MADE.columns, kind="Distributed")
    layout = adapted(over, local_table=MADE)
    assert (layout.local_table, layout.family, set(layout.key_dependencies)) == (
        ("shop", "orders_local"),
        EngineFamily.REPLACING,
        {"id", "n"},
    )
    assert layout.insert_settings["distributed_foreground_insert"] == "1"
    wide = adapted(replace(over, has_remote_shards=True), local_table=MADE, cluster="c")
    assert delete_stale_sql(replace(wide, family=EngineFamily.COLLAPSING), 5).startswith("DELETE FROM `shop`.`orders_local` ON CLUSTER `c`")
    assert adapted(replace(over, engine="Distributed('c', 'shop', 'orders_local')"), local_table=MADE).key_dependencies == ("id",)
    for found, local_table, why in (
        (over, None, "over shop.orders_local, which is not on this server"),
        (over, replace(over), "which distributes them again"),
        (replace(over, has_remote_shards=True), MADE, "over the servers of cluster c, and Headrace is not configured"),
        (over, there("Log"), "its engine is Log"),
        (
            replace(over, columns=(*OWN, *hidden, ExistingColumn("_deleted", "UInt8"))),
            replace(MADE, columns=(*OWN, *hidden, TOMBSTONE)),
            "its column _deleted is not computed as in the table that holds the rows",
        ),
        (replace(over, engine="Distributed('c', 'shop', 'orders_local', rand())"), MADE, r"rand\(\) gives another each time"),
        (replace(over, engine="Distributed('c', currentDatabase(), 'orders_local')"), MADE, "in a way that is not understood"),
        (replace(over, columns=(*over.columns[:-1], replace(TOMBSTONE, type="UInt16"))), MADE, "it has column UInt16 _deleted"),
        (replace(over, columns=over.columns[1:]), MADE, "it has no column id, the table that holds the rows has"),
    ):
        with pytest.raises(DefiniteError, match=why):
            adapted(found, local_table=local_table)


def test_what_is_missing_is_added_by_choice_only() -> None:
    bare = ExistingTable("ReplacingMergeTree(v) ORDER BY id", "id", (OWN[0], V), kind="ReplacingMergeTree")
    choices = ClickHouseOptions((("missing_columns", "add"),))
    plan = plan_table(ORDERS, ClickHouseTarget("h"), choices)
    missing = find_missing_columns(plan, bare, choices.of(ORDERS.name))
    assert [(column.name, column.type) for column in missing.columns] == [("note", "Nullable(String)"), ("n", "Int32"), ("_sign", "Int8")]
    assert marks(plan_existing_table(plan, missing.apply_to(bare), choices.of(ORDERS.name))) == [
        ("_sign", MetadataRole.SIGN),
        ("v", MetadataRole.VERSION),
    ]
    assert find_missing_columns(plan, bare, ClickHouseOptions().of(ORDERS.name)) == ColumnAdditions()
    signed = ClickHouseOptions((("missing_columns", "add"), ("delete_column", "gone"), ("delete_type", DeleteAs.INT8)))
    mark = find_missing_columns(plan_table(ORDERS, ClickHouseTarget("h"), signed), bare, signed.of(ORDERS.name)).columns[-1]
    assert mark == ExistingColumn("gone", "Int8", "DEFAULT", "1")
    history = there("MergeTree ORDER BY id")
    added = find_missing_columns(plan, history, choices.of(ORDERS.name))
    assert [column.name for column in added.columns] == ["_operation", "_version", "_commit_time"]


def test_tables_that_headrace_made_are_known_again() -> None:
    assert is_created_by_headrace(MADE)
    assert is_created_by_headrace(
        there("MergeTree ORDER BY id", ExistingColumn("v", "UInt64", comment="Headrace: place in the source's log"))
    )
    assert not is_created_by_headrace(there("ReplacingMergeTree(v, d) ORDER BY id", V, D))
