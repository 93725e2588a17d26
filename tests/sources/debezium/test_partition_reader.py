"""Unusual envelopes, sources whose logs restart, and the mapping of topics to tables."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.version import pack_version
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning, VersionRule
from headrace.sources.debezium.events.options import DebeziumOptions, TableNaming, TopicMap, TopicPattern
from headrace.sources.debezium.events.records import DecodedRecords, KnownTable, Records
from headrace.sources.debezium.reader import DebeziumReader

NAME = TableName("shop", "goods")
SCHEMA = TableSchema(
    NAME,
    (
        Column("id", Kind.INT32, nullable=False),
        Column("name", Kind.STRING),
        Column("price", Kind.DECIMAL, precision=10, scale=2),
        Column("weight", Kind.FLOAT64),
        Column("stock", Kind.INT16, nullable=False),
    ),
    ("id",),
)
ROW = {"id": 1, "name": "a", "price": "ENc=", "weight": 1.5, "stock": 7}
TOPIC = "srv.shop.goods"


def event(op: str = "c", after: Any = ROW, before: Any = None, **source: Any) -> dict[str, Any]:
    said = {"connector": "mysql", "db": "shop", "table": "goods", "snapshot": "false", "server_id": 1, "file": "bin.000007", "pos": 100}
    return {"before": before, "after": after, "source": {**said, "row": 0, **source}, "op": op, "ts_ms": 1}


def lsn(op: str, at: int | None, row: dict[str, Any], snapshot: str = "false") -> dict[str, Any]:
    source = {"connector": "postgresql", "db": "shop", "schema": "shop", "table": "goods", "lsn": at, "snapshot": snapshot}
    return {"before": None, "after": row, "source": source, "op": op}


def records(values: list[Any], *, topic: str = TOPIC, first: int = 0, keys: list[Any] | None = None) -> Records:
    def encoded(value: Any) -> bytes | None:
        return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()

    return Records(
        topic,
        0,
        pa.array(range(first, first + len(values)), pa.int64()),
        pa.array([encoded(key) for key in keys or [{"id": 1}] * len(values)], pa.binary()),
        pa.array([encoded(value) for value in values], pa.binary()),
        pa.array([5] * len(values), pa.int64()),
    )


def reader(rule: VersionRule = VersionRule.BINLOG, **changed: Any) -> DebeziumReader:
    order = TableVersioning(rule, TOPIC if rule is VersionRule.OFFSET else "")
    return replace(DebeziumReader(tables={NAME: KnownTable(SCHEMA, ("id",), order)}), **changed)


def images(decoded: DecodedRecords) -> list[dict[str, Any]]:
    return [row for block in decoded.blocks for row in block.images.to_pylist()]


def versions(decoded: DecodedRecords) -> list[int]:
    return [version for block in decoded.blocks for version in block.version.to_pylist()]


def with_row(**changed: Any) -> dict[str, Any]:
    return event(after={**ROW, **changed})


def one_event(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of one event of the log."""
    return [event(after={**ROW, **changed}, row=place) for place, changed in enumerate(rows)]


WRONG = [
    (b"", "ends too early"),
    (b"not json", "not a JSON object"),
    (b"[1]", "not a JSON object"),
    (b'{"op":"c"', "ends too early"),
    (b'{"op":"c"}}', "follows its JSON"),
    (b'{"op":"c",}', "not JSON"),
    (b"\xff\xfe{}", "not a JSON object"),
    (json.dumps(event()).encode().replace(b'"a"', b'"\xff"'), "not UTF-8"),
    (json.dumps(event()).encode().replace(b'"a"', b'"\\ud800"'), "surrogate"),
    (json.dumps(event()).encode().replace(b'"a"', b'"\n"'), "control character"),
    (json.dumps(event()).encode().replace(b"1.5", b"NaN"), "not JSON"),
    (json.dumps(event()).encode().replace(b"1.5", b"01.5"), "not JSON"),
    (json.dumps(event()).encode().replace(b'"weight"', b'"id"'), "holds a field twice"),
    (json.dumps(event()).encode().replace(b'"op"', b'"op": "c", "op"'), "holds a field twice"),
    (b'{"x":' * 600 + b"1" + b"}" * 600, "too deeply"),
    ({**event(), "op": "x"}, "none of c, u, d, r, t and m"),
    ({**event(), "op": 1}, "its 'op' is not a string"),
    ({"after": ROW, "source": event()["source"]}, "it has no 'op'"),
    (event(after=None), "holds no row in 'after'"),
    (event("d", before=None), "holds no row in 'before'"),
    (event(after="row"), "'after' is not an object"),
    (with_row(id="1"), "holds a text, where a whole number is expected"),
    (with_row(id=1.5), "holds a number with a fraction"),
    (with_row(id=1 << 31), "does not fit int32"),
    (with_row(id=1 << 64), "64 bits"),
    (with_row(id=None), "does not allow NULL"),
    (with_row(name=5), "holds a number, where a text is expected"),
    (with_row(name=["a"]), "holds an array, where a text is expected"),
    (with_row(weight="heavy"), "holds a text, where a number is expected"),
    (with_row(price="!"), "price"),
    (with_row(stock=1 << 15), "does not fit int16"),
    (event(pos="here"), "source.pos holds a text"),
]


@pytest.mark.parametrize(("wrong", "why"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_what_cannot_be_read_is_refused_with_its_place_and_hides_no_other(wrong: Any, why: str) -> None:
    batch = records([event(pos=1), wrong, event(pos=2)], first=40)
    decoded = reader().read(batch)
    (refused,) = decoded.refused
    assert why in refused.reason
    assert (refused.topic, refused.partition, refused.offset, refused.value) == (TOPIC, 0, 41, batch.value[1].as_py())
    assert images(decoded) == [{**ROW, "price": Decimal("43.11")}] * 2
    assert decoded.found == ()


def test_values_that_look_strange_and_are_right() -> None:
    far = 1.7976931348623157e308
    rows = [
        {"weight": "NaN"},
        {"weight": "-Infinity"},
        {"weight": far},
        {"weight": 5},
        {"name": 'x"\\/\n🙂\0'},
        {"name": "y" * 2_000_000},
        {},
    ]
    decoded = reader().read(records(one_event(*rows)))
    assert decoded.refused == ()
    assert str(images(decoded)[0]["weight"]) == "nan"
    assert [row["weight"] for row in images(decoded)[1:4]] == [float("-inf"), far, 5.0]
    assert images(decoded)[4]["name"] == 'x"\\/\n🙂\0'
    assert len(images(decoded)[5]["name"]) == 2_000_000


def test_decimals_may_be_written_as_numbers() -> None:
    """decimal.format=NUMERIC of Connect's converter."""
    decoded = reader().read(records(one_event({"price": 12.34}, {"price": -5}, {"price": None})))
    assert [row["price"] for row in images(decoded)] == [Decimal("12.34"), Decimal("-5.00"), None]


def test_a_deletion_that_knows_only_the_key_names_the_row() -> None:
    bare = {"id": 4, "name": None, "price": None, "weight": None, "stock": None}
    decoded = reader().read(records([event("d", None, bare)]))
    assert images(decoded) == [{**bare, "stock": 0}]
    assert decoded.blocks[0].op.to_pylist() == [Op.DELETE]
    assert decoded.blocks[0].images.schema == SCHEMA.arrow_schema


def test_a_new_column_is_reported_and_its_records_wait() -> None:
    decoded = reader().read(records(one_event({}, {"colour": "red", "silent": None})))
    (found,) = decoded.found
    assert [column.name for column in found.schema.columns] == ["id", "name", "price", "weight", "stock", "colour"]
    assert found.schema.columns[:5] == SCHEMA.columns
    assert decoded.blocks == ()
    grown = replace(SCHEMA, columns=found.schema.columns)
    again = replace(reader(), tables={NAME: KnownTable(grown, ("id",), TableVersioning(VersionRule.BINLOG))}).read(
        records(one_event({}, {"colour": "red"}))
    )
    assert [row["colour"] for row in images(again)] == [None, "red"]


def test_a_required_column_that_is_gone_holds_its_types_zero() -> None:
    """The value with which the source fills rows of an added column."""
    without = {name: value for name, value in ROW.items() if name != "stock"}
    decoded = reader().read(records([event(pos=1), event(after=without, pos=2)]))
    assert [row["stock"] for row in images(decoded)] == [7, 0]
    assert (decoded.refused, decoded.found) == ((), ())


def test_a_column_with_a_default_that_a_row_lacks_holds_the_default() -> None:
    """It was added later. Null is null."""
    schema = replace(SCHEMA, columns=(*SCHEMA.columns, Column("rank", Kind.INT32, default="5")))
    mine = reader(tables={NAME: KnownTable(schema, ("id",), TableVersioning(VersionRule.BINLOG))})
    decoded = mine.read(records([event(), event(after={**ROW, "rank": None}, pos=200), event(after={**ROW, "rank": 6}, pos=300)]))
    assert [row["rank"] for row in images(decoded)] == [5, None, 6]
    assert not decoded.found


def test_another_key_is_reported() -> None:
    (found,) = reader().read(records([event()], keys=[{"id": 1, "name": "a"}])).found
    assert found.schema.primary_key == ("id", "name")


def test_two_changes_of_one_millisecond_keep_their_order() -> None:
    batch = [event("u", {**ROW, "stock": stock}, ROW, pos=100, row=stock, ts_ms=9) for stock in range(5)]
    found = versions(reader().read(records(batch)))
    assert found == sorted(set(found))
    assert found == [pack_version(0, 7, 100) + 2 * row + 2 for row in range(5)]


COMPRESSED = [
    # Debezium 3.6 sends a compressed transaction of MySQL 9.7 with the transaction's position for every event.
    [event("c", row=0), event("c", row=1), event("u", {**ROW, "name": "b"}, ROW, row=1), event("d", None, ROW, row=0)],
    [event("u", {**ROW, "stock": 1}, ROW), event("u", {**ROW, "stock": 2}, ROW)],
    # Compressed events of MariaDB may hold more rows than bytes.
    [event("c", pos=100, row=400), event("u", before=ROW, pos=300, row=0)],
]


@pytest.mark.parametrize("batch", COMPRESSED)
def test_a_compressed_log_halts_where_places_do_not_order_events(batch: list[dict[str, Any]]) -> None:
    with pytest.raises(DefiniteError, match="compresses its log") as halted:
        reader().read(records(batch))
    assert "binlog_transaction_compression" in halted.value.hint
    by_offset = reader(VersionRule.OFFSET).read(records(batch))
    assert versions(by_offset) == sorted(set(versions(by_offset)))


def test_events_that_are_sent_again_are_no_sign_of_compression() -> None:
    rows = [event("u", {**ROW, "stock": stock}, ROW, row=stock) for stock in range(4)]
    found = versions(reader().read(records([*rows, *rows[2:], event(pos=300), *rows, event(pos=300)])))
    assert len(found) == 12


@pytest.mark.parametrize(
    "rows",
    [
        # The connector stopped after row 5 and repeats the event from row 2 on. Rows 0 to 3 were in the batch before.
        [4, 5, 2, 3, 4, 5],
        # Other partitions have the other rows.
        [5, 3, 5, 7],
    ],
)
def test_an_event_is_sent_again_although_a_batch_begins_inside_it(rows: list[int]) -> None:
    event_rows = [event("u", {**ROW, "stock": stock}, ROW, row=stock) for stock in range(8)]
    assert len(versions(reader().read(records([event_rows[row] for row in rows])))) == len(rows)


@pytest.mark.parametrize("rows", [[4, 5, 2, 3, 4, 5], [5, 3, 5], [5, 3]])
def test_other_changes_of_the_same_rows_are_a_sign_of_compression(rows: list[int]) -> None:
    batch = [event("u", {**ROW, "stock": number}, ROW, row=row) for number, row in enumerate(rows)]
    with pytest.raises(DefiniteError, match="compresses its log"):
        reader().read(records(batch))


def test_a_fall_after_which_another_event_follows_is_a_sign_of_compression() -> None:
    batch = [event(pos=50), event("u", before=ROW, row=5), event("u", before=ROW, row=3), event("u", before=ROW, pos=200)]
    with pytest.raises(DefiniteError, match="compresses its log"):
        reader().read(records(batch))


def test_a_changed_key_without_its_headers_is_still_a_deletion_and_an_insertion() -> None:
    old, new = {**ROW, "id": 1}, {**ROW, "id": 2}
    decoded = reader().read(
        records([event("u", ROW, ROW, row=0), event("d", None, old, row=1), event("c", new, row=1), event("u", ROW, ROW, row=2)])
    )
    assert decoded.blocks[0].op.to_pylist() == [Op.UPDATE, Op.DELETE, Op.INSERT, Op.UPDATE]


def test_a_long_event_that_was_cut_in_two_is_no_sign_of_compression() -> None:
    """The positions of Headrace's Kafka sink for a block that begins inside an event."""
    cut = [*(event(pos=100, row=row) for row in range(4)), *(event(pos=104, row=row) for row in range(4))]
    assert versions(reader().read(records(cut))) == [pack_version(0, 7, 101) + row for row in range(8)]


def test_a_snapshot_is_below_what_follows_it_at_the_same_place() -> None:
    decoded = reader().read(records([event("r", snapshot="first"), event("u", before=ROW)]))
    assert versions(decoded) == [pack_version(0, 7, 100), pack_version(0, 7, 102)]


def test_rows_of_a_snapshot_of_postgresql_are_below_all_changes() -> None:
    """A transaction that was open when the snapshot was taken wrote below the snapshot's LSN."""
    decoded = reader(VersionRule.LSN).read(records([lsn("r", 900, ROW, "first"), lsn("u", 800, ROW), lsn("r", 950, ROW, "incremental")]))
    first, change, gradual = versions(decoded)
    assert first < gradual < change


def test_a_second_snapshot_of_postgresql_halts_until_the_epoch_is_raised() -> None:
    batch = records([lsn("u", 800, ROW), lsn("r", 900, ROW, "true"), lsn("u", 910, ROW)])
    tails = {(TOPIC, 0): LogTail(snapshot=500)}
    with pytest.raises(DefiniteError, match="second snapshot") as halted:
        reader(VersionRule.LSN, tails=tails).read(batch)
    assert (halted.value.place, "epoch" in halted.value.hint) == ("srv.shop.goods[0]@1", True)
    decoded = reader(VersionRule.LSN, tails=tails, options=DebeziumOptions(epoch=1)).read(batch)
    assert [version >> 58 for version in versions(decoded)] == [0, 1, 1]
    assert versions(decoded) == sorted(versions(decoded))
    assert decoded.tail == LogTail(snapshot=900, epoch=1, lsn=910)


RESTARTED_SNAPSHOTS = [
    (event(file="other.000008"), "now called 'other'"),
    (event(file="bin.000006", server_id=2), "with another server"),
    (event(file="bin.000001"), "went back from file 30 to file 1"),
]


@pytest.mark.parametrize(("strange", "why"), RESTARTED_SNAPSHOTS)
def test_a_log_that_restarts_halts_until_the_epoch_is_raised(strange: dict[str, Any], why: str) -> None:
    batch = records([event(file="bin.000030", pos=9), strange, strange], first=5)
    with pytest.raises(DefiniteError, match=why) as halted:
        reader().read(batch)
    assert halted.value.place == "srv.shop.goods[0]@6"
    assert "epoch" in halted.value.hint
    tails = {(TOPIC, 0): LogTail("bin", 30, 1)}
    with pytest.raises(DefiniteError, match=why):
        reader(tails=tails).read(records([strange]))
    decoded = reader(tails=tails, options=DebeziumOptions(epoch=1)).read(batch)
    assert [version >> 58 for version in versions(decoded)] == [0, 1, 1]
    assert decoded.tail is not None
    # The next batch is all of the new log; the epoch does not change again.
    later = reader(tails={(TOPIC, 0): decoded.tail}, options=DebeziumOptions(epoch=1)).read(records([strange], first=9))
    assert [version >> 58 for version in versions(later)] == [1]
    with pytest.raises(DefiniteError, match="can only be raised"):
        reader(tails={(TOPIC, 0): decoded.tail}).read(records([strange], first=9))


def test_a_connector_that_starts_again_may_go_back() -> None:
    decoded = reader(tails={(TOPIC, 0): LogTail("bin", 9, 1)}).read(records([event(file="bin.000008"), event(file="bin.000009")]))
    assert decoded.tail == LogTail("bin", 9, 1, position=100)
    assert len(versions(decoded)) == 2


def test_a_new_partition_continues_with_the_epoch_of_the_others() -> None:
    mine = reader(options=DebeziumOptions(epoch=3), tails={(TOPIC, 1): LogTail("bin", 3, 1, epoch=2)}, begun=1)
    assert [version >> 58 for version in versions(mine.read(records([event()])))] == [2]
    other = replace(mine, tails={})
    assert [version >> 58 for version in versions(other.read(records([event()])))] == [1]


def test_a_reader_continues_after_its_last_piece() -> None:
    """Spark delivers a partition in pieces."""
    mine = reader(options=DebeziumOptions(epoch=1), tails={(TOPIC, 0): LogTail("bin", 30, 1)})
    pieces = [records([event(file="new.000001")], first=3), records([event(file="new.000002")], first=4)]
    assert [version >> 58 for piece in pieces for version in versions(mine.read(piece))] == [1, 1]
    with pytest.raises(DefiniteError, match="now called 'bin'"):
        mine.read(records([event()], first=5))


def test_a_truncated_table_ignores_older_records() -> None:
    decoded = reader().read(records([event(pos=100), event("t", None, pos=200), event(pos=300)]))
    (truncation,) = decoded.truncations
    assert (truncation.table, truncation.version) == (NAME, pack_version(0, 7, 200) + 1)
    late = reader(emptied={NAME: truncation.version}).read(records([event(pos=150), event(pos=250)]))
    assert versions(late) == [pack_version(0, 7, 250) + 1]
    assert sum(late.ignored.values()) == 1


def test_a_lone_tombstone_deletes_by_its_key() -> None:
    flat = reader(
        VersionRule.OFFSET, tables={NAME: KnownTable(SCHEMA, ("id",), TableVersioning(VersionRule.OFFSET, TOPIC, tombstones=True))}
    )
    batch = records([ROW, None, b"null", None], keys=[{"id": 1}, {"id": 1}, {"id": 2}, {"nobody": 3}], first=10)
    decoded = flat.read(batch)
    assert [(row["id"], row["stock"]) for row in images(decoded)] == [(1, 7), (1, 0), (2, 0)]
    assert decoded.blocks[0].op.to_pylist() == [Op.UPDATE, Op.DELETE, Op.DELETE]
    assert versions(decoded) == [21, 22, 24]
    (refused,) = decoded.refused
    assert (refused.offset, "it names other fields than the table's key" in refused.reason) == (13, True)


def test_readers_travel_to_tasks() -> None:
    mine = pickle.loads(pickle.dumps(reader(tails={(TOPIC, 0): LogTail("bin", 7, 1)})))
    assert versions(mine.read(records([event()]))) == versions(reader().read(records([event()])))


@pytest.mark.parametrize(
    ("topics", "topic", "table"),
    [
        (TopicMap(), "srv.shop.goods", "shop.goods"),
        (TopicMap(), "a.prefix.with.dots.shop.goods", "shop.goods"),
        (TopicMap(database="lake"), "pg.public.goods", "lake.goods"),
        (TopicMap({"t": TableName("d", "x")}), "t", "d.x"),
        (TopicMap(patterns=(TopicPattern(r"eu-(\w+)\.(?P<t>\w+)", r"\1.\g<t>_all"),)), "eu-shop.goods", "shop.goods_all"),
        (TopicMap(patterns=(TopicPattern(r"shard\d+\.shop\.(.*)", r"shop.\1"),)), "shard12.shop.goods", "shop.goods"),
        (TopicMap({"srv.shop.goods": TableName("a", "b")}, (TopicPattern(".*", "c.d"),), TableNaming.SOURCE), "srv.shop.goods", "a.b"),
    ],
)
def test_topics_lead_to_tables(topics: TopicMap, topic: str, table: str) -> None:
    assert str(topics.table_of(topic)) == table


def test_a_topic_that_names_no_table_is_an_error_only_if_it_holds_rows() -> None:
    with pytest.raises(DefiniteError, match="does not say which table") as halted:
        DebeziumReader().read(records([event()], topic="plain"))
    assert "map it" in halted.value.hint
    beat = records([{"ts_ms": 1}], topic="plain", keys=[{"serverName": "srv"}])
    assert DebeziumReader().read(beat).ignored == {"heartbeat": 1}
    with pytest.raises(DefiniteError, match="cannot be read"):
        TopicMap(patterns=(TopicPattern("(", "a.b"),))
    with pytest.raises(DefiniteError, match="not a table's full name"):
        TopicMap(patterns=(TopicPattern("x", r"\1"),))


def test_rows_are_not_taken_for_other_records() -> None:
    """Tables with columns that mark other records."""
    for row in ({"id": 1, "status": "BEGIN"}, {"ts_ms": 1, "id": 1}, {"source": "x", "ddl": "y", "databaseName": "z", "id": 1}):
        decoded = DebeziumReader().read(records([row]))
        assert decoded.ignored == {}
        assert {column.name for column in decoded.found[0].schema.columns} == row.keys()


def test_empty_input_gives_empty_output() -> None:
    assert reader().read(records([])) == DecodedRecords()


def test_several_topics_may_lead_to_one_table() -> None:
    """Shards: each has its own log, whose files may have other names."""
    topics = TopicMap(patterns=(TopicPattern(r"shard\d+\.shop\.(\w+)", r"shop.\1"),))
    mine = reader(topics=topics, tails={("shard1.shop.goods", 0): LogTail("bin", 7, 1), ("shard2.shop.goods", 0): LogTail("log", 2, 5)})
    found = [
        mine.read(records([event(after={**ROW, "id": place}, file=file, server_id=server)], topic=f"shard{place}.shop.goods"))
        for place, file, server in ((1, "bin.000008", 1), (2, "log.000002", 5))
    ]
    assert [row["id"] for one in found for row in images(one)] == [1, 2]
    assert [one.blocks[0].schema.name for one in found] == [NAME, NAME]
    assert [one.tail for one in found] == [LogTail("bin", 8, 1, position=100), LogTail("log", 2, 5, position=100)]
