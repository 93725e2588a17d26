"""Tables that Headrace creates: the exact statements for keys, partitions, engines and clusters; and exact row hashes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Index, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.maintenance.table_store import delete_stale_sql
from headrace.sinks.clickhouse.maintenance.tombstone_store import allow_cleanup_sql
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import create_sql, create_statements, materialize_key, plan_table
from headrace.sinks.clickhouse.tables.target_table import TargetTable
from headrace.sinks.clickhouse.tables.views import create_view_sql, row_policy_sql
from headrace.sinks.clickhouse.types.row_hash import content_hash

COLUMNS = (
    Column("id", Kind.INT32, False, auto_increment=True),
    Column("shop", Kind.INT16, False),
    Column("word", Kind.STRING),
    Column("day", Kind.DATE, False),
    Column("n", Kind.INT64, False),
)
TABLE = TableSchema(TableName("d", "t"), COLUMNS, ("id", "shop"))


def planned(schema: TableSchema = TABLE, *, cluster: str = "", replica_path: str = "", **chosen: Any) -> TargetTable:
    return plan_table(schema, ClickHouseTarget("h"), ClickHouseOptions(tuple(chosen.items()), cluster=cluster, replica_path=replica_path))


@pytest.mark.parametrize(
    ("primary", "indexes", "expected"),
    [
        (("id",), (), ("id",)),
        (("id", "shop"), (), ("shop", "id")),
        (("id",), (Index("k", ("word", "day"), False), Index("u", ("n",), True)), ("word", "day", "n", "id")),
        (("shop", "id"), (Index("u", ("n", "id"), True), Index("k", ("word", "id"), False)), ("shop", "word", "n", "id")),
        (("shop",), (Index("u", ("id",), True), Index("k", ("shop", "n"), False)), ("shop", "n", "id")),
        (("shop",), (Index("u", ("day", "id"), True), Index("k", ("id", "n"), False)), ("shop", "n", "day", "id")),
    ],
)
def test_the_sort_key_of_materialize_mysql(primary: tuple[str, ...], indexes: tuple[Index, ...], expected: tuple[str, ...]) -> None:
    schema = replace(TABLE, primary_key=primary, indexes=indexes)
    assert materialize_key(schema) == expected
    layout = planned(schema, sort_key="materialize")
    assert layout.storage.sort_key == tuple(f"`{name}`" for name in expected)
    assert set(layout.key_dependencies) == {*primary, *expected}
    assert (("allow_nullable_key", "1") in layout.storage.settings) == ("word" in expected)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ((Column("k", Kind.INT32, False),), "intDiv(`k`, 4294967)"),
        ((Column("k", Kind.UINT32, False),), "intDiv(`k`, 4294967)"),
        ((Column("k", Kind.UINT64, False),), "intDiv(`k`, 18446744073709551)"),
        ((Column("k", Kind.INT16, False),), "intDiv(`k`, 65)"),
        ((Column("k", Kind.UINT8, False),), "`k`"),
        ((Column("k", Kind.INT64, False), Column("m", Kind.INT16, False)), "intDiv(`m`, 65)"),
        ((Column("k", Kind.INT64, False), Column("m", Kind.DATE, False)), "toYYYYMM(`m`)"),
        ((Column("k", Kind.DATETIME, False, 3), Column("m", Kind.INT8, False)), "toYYYYMM(`k`)"),
        ((Column("k", Kind.STRING, False), Column("m", Kind.INT32, False)), "intDiv(`m`, 4294967)"),
        ((Column("k", Kind.STRING, False),), ""),
    ],
)
def test_the_partitions_of_materialize_mysql(key: tuple[Column, ...], expected: str) -> None:
    schema = TableSchema(TableName("d", "t"), key, tuple(column.name for column in key))
    layout = planned(schema, partition_by="primary")
    assert layout.storage.partition_by == expected
    assert (" PARTITION BY " in create_sql(layout)) == bool(expected)


def test_engines_by_choice() -> None:
    def tail(**chosen: Any) -> str:
        return create_sql(planned(**chosen)).partition("`n` Int64, ")[2]

    made = "COMMENT 'Headrace: place in the source\\'s log'"
    idle = "SETTINGS min_age_to_force_merge_seconds = 20, min_age_to_force_merge_on_partition_only = 1"
    assert tail(delete_column="is_deleted") == (
        f"`is_deleted` UInt8, `_version` UInt64 {made}) ENGINE = ReplacingMergeTree(`_version`, `is_deleted`) ORDER BY (`id`, `shop`)"
        f" {idle}"
    )
    assert tail(delete_column="sign", delete_type="int8") == (
        f"`sign` Int8, `_version` UInt64 {made}, `_deleted` UInt8 MATERIALIZED `sign` = -1)"
        f" ENGINE = ReplacingMergeTree(`_version`, `_deleted`) ORDER BY (`id`, `shop`) {idle}"
    )
    assert tail(hidden_columns=True) == (
        f"`_sign` Int8 MATERIALIZED 1, `_version` UInt64 MATERIALIZED 0 {made}, `_deleted` UInt8 MATERIALIZED `_sign` = -1)"
        f" ENGINE = ReplacingMergeTree(`_version`, `_deleted`) ORDER BY (`id`, `shop`) {idle}"
    )
    assert tail(hidden_columns=True, delete_column="is_deleted").startswith(
        f"`is_deleted` UInt8 MATERIALIZED 0, `_version` UInt64 MATERIALIZED 0 {made}) ENGINE = ReplacingMergeTree(`_version`, `is_deleted`)"
    )
    keyless = replace(TABLE, primary_key=())
    assert create_sql(planned(keyless, hidden_columns=True)) == create_sql(planned(keyless)), "its readers need the columns"
    for engine in ("collapsing", "versioned", "history"):
        assert tail(engine=engine, hidden_columns=True) == tail(engine=engine)
    assert tail(engine="collapsing", partition_by="toYYYYMM(day)") == (
        f"`_sign` Int8, `_version` UInt64 {made}) ENGINE = CollapsingMergeTree(`_sign`) PARTITION BY toYYYYMM(day)"
        " ORDER BY (`id`, `shop`, `day`) SETTINGS non_replicated_deduplication_window = 10000"
    )
    assert tail(engine="versioned").startswith(
        f"`_sign` Int8, `_version` UInt64 {made}, `_content` UInt64 MATERIALIZED cityHash64(tuple(`id`, `shop`, `word`, `day`, `n`)))"
        " ENGINE = VersionedCollapsingMergeTree(`_sign`, `_content`) ORDER BY (`id`, `shop`) SETTINGS"
    )
    assert tail(engine="history", settings=(("index_granularity", "1024"), ("storage_policy", "co'ld"))) == (
        f"`_operation` LowCardinality(String), `_version` UInt64 {made}, `_commit_time` DateTime64(6, 'UTC')) ENGINE = MergeTree"
        " ORDER BY (`id`, `shop`, `_version`) SETTINGS non_replicated_deduplication_window = 10000, index_granularity = 1024,"
        " storage_policy = 'co\\'ld'"
    )


@pytest.mark.parametrize("chosen", [{"delete_column": "_deleted", "delete_type": "int8"}, {"sign_column": "_deleted"}])
def test_columns_of_headrace_with_one_name_are_refused(chosen: dict[str, str]) -> None:
    with pytest.raises(DefiniteError, match="would both have the name _deleted") as caught:
        create_sql(planned(**chosen))
    assert caught.value.place == "table d.t, column _deleted"
    assert 'tombstone_column = "_hidden"' in caught.value.hint
    sql = create_sql(planned(**chosen, tombstone_column="_hidden"))
    assert "`_deleted` Int8, " in sql
    assert "`_hidden` UInt8 MATERIALIZED `_deleted` = -1) ENGINE = ReplacingMergeTree(`_version`, `_hidden`)" in sql
    # A UInt8 needs no computed column.
    assert create_sql(planned(delete_column="_deleted")).count("`_deleted` ") == 1


def test_columns_by_choice() -> None:
    sql = create_sql(planned(rename=(("word", "w"),), codecs=(("w*", "ZSTD(3)"), ("id", "Delta, LZ4")), low_cardinality=("word",)))
    assert "`id` Int32 CODEC(Delta, LZ4), " in sql
    assert "`w` LowCardinality(Nullable(String)) CODEC(ZSTD(3)), " in sql


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"sort_key": ("shop",)}, "does not hold the key's column id"),
        ({"sort_key": ("id % 10", "shop")}, "does not hold the key's column id"),
        ({"sort_key": "alphabetical"}, "'alphabetical' is no sort key"),
        ({"sort_key": ("id", "shop", "rand()")}, r"sort key rand\(\) is not decided by the row"),
        ({"partition_by": "toYYYYMM(now())"}, r"partition key toYYYYMM\(now\(\)\) is not decided by the row"),
        ({"partition_by": "x'"}, "a quote is not closed"),
        ({"shard_by": "rand()"}, r"shard key rand\(\) is not decided by the row"),
        ({"rename": (("word", "n"),)}, "columns word and n would both be kept in column n"),
        ({"rename": (("word", "_sign"),)}, "column _sign has a name that Headrace uses"),
        ({"sign_column": "n"}, "column n has a name that Headrace uses"),
    ],
)
def test_unsupported_table_options_are_rejected(chosen: dict[str, Any], why: str) -> None:
    with pytest.raises(DefiniteError, match=why) as caught:
        planned(cluster="c", **chosen)
    assert caught.value.hint
    assert "d.t" in caught.value.place


def test_a_key_may_be_given_in_any_words() -> None:
    layout = planned(sort_key=("toStartOfMonth(day)", "shop", "`id`"), partition_by="n % 8")
    assert layout.storage.sort_key == ("toStartOfMonth(day)", "`shop`", "`id`")
    assert set(layout.key_dependencies) == {"id", "shop", "day", "n"}


def test_tables_of_a_cluster() -> None:
    layout = planned(cluster="my c", engine="replacing")
    local, over = create_statements(layout)
    assert local.startswith("CREATE TABLE IF NOT EXISTS `d`.`t_local` ON CLUSTER `my c` (")
    assert "ENGINE = ReplicatedReplacingMergeTree(`_version`, `_deleted`) ORDER BY (`id`, `shop`)" in local
    assert over == (
        "CREATE TABLE IF NOT EXISTS `d`.`t` ON CLUSTER `my c` AS `d`.`t_local`"
        " ENGINE = Distributed('my c', 'd', 't_local', cityHash64(`id`, `shop`))"
    )
    assert (layout.local_table, layout.insert_settings["distributed_foreground_insert"]) == (("d", "t_local"), "1")
    assert allow_cleanup_sql(layout).startswith("ALTER TABLE `d`.`t_local` ON CLUSTER `my c` MODIFY SETTING ")
    assert create_view_sql(layout).startswith("CREATE VIEW IF NOT EXISTS `d`.`t_current` ON CLUSTER `my c` AS SELECT `id`, ")
    assert row_policy_sql(layout) == (
        "CREATE ROW POLICY IF NOT EXISTS `headrace_live` ON CLUSTER `my c` ON `d`.`t_local` USING `_sign` != -1 TO ALL"
    )
    counting = planned(cluster="c", replica_path="/tables/{shard}/t", engine="collapsing", shard_by="n")
    assert "ReplicatedCollapsingMergeTree('/tables/{shard}/t', '{replica}', `_sign`)" in create_sql(counting)
    assert "replicated_deduplication_window_seconds = 2592000" in create_sql(counting)
    assert set(counting.key_dependencies) == {"id", "shop", "n"}
    assert delete_stale_sql(counting, 7) == "DELETE FROM `d`.`t_local` ON CLUSTER `c` WHERE `_version` < 7"
    keyless = planned(replace(TABLE, primary_key=()), cluster="c")
    assert keyless.storage.shard_by == "cityHash64(tuple(`id`, `shop`, `word`, `day`, `n`))"


GOLDEN = [16809404274848732521, 5325376820118386284, 261898370425971026]


def test_the_hash_of_a_row_never_changes() -> None:
    """Stored rows have this hash: with another one, deletions would not match them."""
    images = pa.record_batch(
        {
            "i": pa.array([1, None, -1], pa.int64()),
            "s": pa.array(["", "word", "漢字 and more than eight bytes"]),
            "b": pa.array([b"\x00", b"\x00\x00", None], pa.binary()),
            "d": pa.array([1, 2, 3]).cast(pa.decimal128(20, 0)),
            "e": pa.array(["x", None, "x"]).dictionary_encode(),
            "v": pa.array([[1.5, -0.0], [], None], pa.list_(pa.float32())),
            "f": pa.array([b"0123", b"4567", b"89ab"], pa.binary(4)),
        }
    )
    hashes = content_hash(images)
    assert hashes.tolist() == GOLDEN
    assert np.concatenate([content_hash(images.slice(n, 1)) for n in range(3)]).tolist() == GOLDEN
    reordered = images.select(["f", "v", "i", "s", "b", "d", "e"])
    assert content_hash(reordered).tolist() == GOLDEN
    nothing = pa.record_batch([*images.columns, pa.array([None, None, None], pa.int8())], names=[*images.schema.names, "added"])
    assert content_hash(nothing).tolist() == GOLDEN
    assert len(content_hash(images.slice(0, 0))) == 0


def test_rows_that_differ_have_other_hashes() -> None:
    texts = ["", "\0", "\0\0", "a", "a\0", "aaaaaaaa", "aaaaaaaa\0", "aaaaaaaaa", "b" * 64, "b" * 65]
    images = pa.record_batch({"s": pa.array([*texts, None]), "t": pa.array(["q"] * (len(texts) + 1))})
    swapped = images.rename_columns(["t", "s"])
    assert len({*content_hash(images).tolist(), *content_hash(swapped).tolist()}) == 2 * (len(texts) + 1)
