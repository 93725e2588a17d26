"""The definitions of target tables, and tables that are refused before anything is created."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Index, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import create_sql, plan_tables
from headrace.sinks.clickhouse.tables.views import create_view_sql
from headrace.sinks.clickhouse.types.type_mapping import storage_type

ANYWHERE = ClickHouseTarget("h")
ONE_DATABASE = ClickHouseTarget("h", database="mart")
KEY = Column("id", Kind.INT64, nullable=False)
ORDERS = TableSchema(TableName("shop", "orders"), (KEY, Column("note", Kind.STRING)), ("id",))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (Column("c", Kind.INT8, False), "Int8"),
        (Column("c", Kind.UINT64), "Nullable(UInt64)"),
        (Column("c", Kind.FLOAT32), "Nullable(Float32)"),
        (Column("c", Kind.DECIMAL, False, 65, 30), "Decimal(65, 30)"),
        (Column("c", Kind.DECIMAL, True, 1, 0), "Nullable(Decimal(1, 0))"),
        (Column("c", Kind.BYTES, False), "String"),
        (Column("c", Kind.DATE), "Nullable(Date32)"),
        (Column("c", Kind.DATETIME, False, 0), "DateTime64(0, 'UTC')"),
        (Column("c", Kind.TIMESTAMP, True, 6), "Nullable(DateTime64(6, 'UTC'))"),
        (Column("c", Kind.TIME, False, 3), "Time64(3)"),
        (Column("c", Kind.YEAR, False), "UInt16"),
        (Column("c", Kind.ENUM, False), "LowCardinality(String)"),
        (Column("c", Kind.SET), "LowCardinality(Nullable(String))"),
        (Column("c", Kind.BIT, False, 64), "UInt64"),
        (Column("c", Kind.JSON), "Nullable(String)"),
    ],
)
def test_storage_types(column: Column, expected: str) -> None:
    assert storage_type(replace(ORDERS, columns=(KEY, column)), column) == expected


def test_every_kind_has_a_storage_type() -> None:
    for kind in Kind:
        column = Column("c", kind, False, precision=6)
        assert storage_type(replace(ORDERS, columns=(KEY, column)), column)


def test_a_key_column_is_never_nullable() -> None:
    column = Column("id", Kind.ENUM, nullable=True)
    assert storage_type(replace(ORDERS, columns=(column,)), column) == "LowCardinality(String)"


@pytest.mark.parametrize("column", [Column("c", Kind.DECIMAL, True, 77, 0), Column("c", Kind.TIME, True, 7)])
def test_parameters_outside_what_clickhouse_holds_are_refused(column: Column) -> None:
    with pytest.raises(DefiniteError, match="column c cannot be stored"):
        plan_tables([replace(ORDERS, columns=(KEY, column))], ANYWHERE, ClickHouseOptions())


def test_create_statement_is_that_of_design_decision_3() -> None:
    [plan] = plan_tables([ORDERS], ANYWHERE, ClickHouseOptions())
    assert create_sql(plan) == (
        "CREATE TABLE IF NOT EXISTS `shop`.`orders` (`id` Int64, `note` Nullable(String), `_sign` Int8, "
        "`_version` UInt64 COMMENT 'Headrace: place in the source\\'s log', `_deleted` UInt8 MATERIALIZED `_sign` = -1) "
        "ENGINE = ReplacingMergeTree(`_version`, `_deleted`) ORDER BY (`id`) "
        "SETTINGS min_age_to_force_merge_seconds = 20, min_age_to_force_merge_on_partition_only = 1"
    )


def test_the_url_s_database_holds_all_tables() -> None:
    assert [(p.database, p.table) for p in plan_tables([ORDERS], ONE_DATABASE, ClickHouseOptions())] == [("mart", "orders")]


def test_two_tables_of_one_name_do_not_share_a_target() -> None:
    twin = replace(ORDERS, name=TableName("archive", "orders"))
    assert len(plan_tables([ORDERS, twin], ANYWHERE, ClickHouseOptions())) == 2
    with pytest.raises(DefiniteError, match=r"shop.orders and archive.orders would both be written to mart.orders"):
        plan_tables([ORDERS, twin], ONE_DATABASE, ClickHouseOptions())


def test_without_a_primary_key_the_first_unique_index_without_nulls_identifies_rows() -> None:
    loose = Index("by_note", ("note",), unique=True)
    tight = Index("by_id", (KEY.name,), unique=True)
    schema = replace(ORDERS, primary_key=(), indexes=(loose, replace(tight, unique=False), tight))
    [plan] = plan_tables([schema], ANYWHERE, ClickHouseOptions())
    assert plan.storage.sort_key == ("`id`",)
    assert plan.storage.arguments == ("_version", "_deleted")


def test_a_table_without_any_key_keeps_every_image_and_has_a_view() -> None:
    prefix = Index("by_id", (KEY.name,), unique=True, whole=False)
    [plan] = plan_tables([replace(ORDERS, primary_key=(), indexes=(prefix,))], ANYWHERE, ClickHouseOptions())
    assert plan.storage.sort_key == ("`_row`", "`_occurrence`")
    assert plan.storage.arguments == ("_version",)
    assert "sum(if(`_sign` != -1, 1, -1))" in create_view_sql(plan)


@pytest.mark.parametrize("name", ["_sign", "_version", "_deleted", "_row_exists", "_block_number", "_block_offset"])
def test_a_column_with_a_name_in_use_is_refused(name: str) -> None:
    with pytest.raises(DefiniteError, match=f"column {name} has a name"):
        plan_tables([replace(ORDERS, columns=(KEY, Column(name, Kind.INT8)))], ANYWHERE, ClickHouseOptions())


def test_a_name_too_long_for_a_file_is_refused() -> None:
    assert plan_tables([replace(ORDERS, name=TableName("d" * 64, "t" * 64))], ANYWHERE, ClickHouseOptions())
    with pytest.raises(DefiniteError, match="too long for ClickHouse"):
        plan_tables([replace(ORDERS, name=TableName("shop", "漢" * 64))], ANYWHERE, ClickHouseOptions())
