"""Recordings of Debezium, read as a pipe reads them: random batches, partitions in any order, some batches twice.

At the end the tables equal the servers'. `test_debezium_values` compares values of every type; this suite compares the rows, and all
formats of an event.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableName
from headrace.model.version import pack_version
from headrace.sources.debezium.events.event_versions import VersionRule
from headrace.sources.debezium.events.options import DebeziumOptions, EventShape, TableNaming, TopicMap, VersionSource
from headrace.sources.debezium.events.records import KnownTable, Records
from headrace.sources.debezium.reader import DebeziumReader
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, plan_tables
from testkit.oracles.chain import Chain
from testkit.recordings.debezium_recordings import as_batches, load_log, load_records, load_truth, recording_names
from testkit.recordings.debezium_replay import Replay

CONNECTORS = ("mysql", "mariadb", "postgres")
SIMPLE = {"sbtest1", "emptied", "whole", "uniques", "nokey"}
"""Tables of numbers and texts, with the server's text form, whose columns are not renamed."""
JSON = [name for name in recording_names() if not name.endswith("avro")]
NO_TRUNCATIONS = "flat"
"""The format without envelope has no truncations."""


@functools.cache
def _batches(name: str) -> list[Records]:
    return as_batches(load_records(name))


def _topics(name: str) -> list[str]:
    return list(dict.fromkeys(records.topic for records in _batches(name)))


def _replayed(name: str, seed: int, reader: DebeziumReader | None = None, topic: str = "") -> Replay:
    replay = Replay(reader or DebeziumReader())
    replay.feed_all([records for records in _batches(name) if records.topic.endswith(topic)], random.Random(seed))
    return replay


def _texts(rows: list[Any]) -> list[tuple[str, ...]]:
    return sorted(tuple("None" if value is None else str(value) for value in row) for row in rows)


@pytest.mark.parametrize("name", JSON)
def test_records_lead_to_what_the_server_showed(name: str) -> None:
    truth = load_truth(name.split("-", maxsplit=1)[0])
    for topic in _topics(name):
        table = topic.rpartition(".")[2]
        flat = NO_TRUNCATIONS in name
        # See below for the unknown ones.
        if (table == "nokey" and (flat or "postgres" in name)) or (flat and table == "emptied") or name == "mysql-flatdrop":
            continue
        replay = _replayed(name, len(name), topic=topic)
        assert replay.refused == [], topic
        if table not in truth:
            continue
        (known,) = replay.reader.tables
        assert known.table == table
        names = [column for column, _ in truth[table].columns]
        # Without a schema, a column that never had a value is unknown.
        rows = [[row.get(column) for column in names] for row in replay.rows(known)]
        if table in SIMPLE:
            assert _texts(rows) == _texts(list(truth[table].rows)), topic
        assert len(rows) == len(truth[table].rows), topic


@pytest.mark.parametrize("connector", CONNECTORS)
def test_without_a_schema_events_say_the_same_as_with_one(connector: str) -> None:
    """Two connectors of one log give the same images with the same versions, and a known table needs no schema."""
    described = _replayed(f"{connector}-schema", 3, topic=".sbtest1")
    reader = DebeziumReader(tables=dict(described.reader.tables))
    plain = _replayed(f"{connector}-plain", 4, reader, topic=".sbtest1")
    assert plain.images == described.images
    (order,) = {table.order.rule for table in plain.reader.tables.values() if table.order is not None}
    assert order is (VersionRule.LSN if connector == "postgres" else VersionRule.BINLOG)


@pytest.mark.parametrize("connector", ["mysql", "postgres"])
def test_flat_rows_that_say_their_place_have_the_versions_of_envelopes(connector: str) -> None:
    known = _replayed(f"{connector}-schema", 5, topic=".sbtest1")
    flat = _replayed(f"{connector}-flatplaces", 6, DebeziumReader(tables=dict(known.reader.tables)), topic=".sbtest1")
    assert flat.images == known.images


@pytest.mark.parametrize("variant", ["flat", "flattombstone"])
def test_flat_rows_without_a_place_are_ordered_by_offset(variant: str) -> None:
    replay = _replayed(f"mysql-{variant}", 7, topic=".sbtest1")
    (table,) = replay.reader.tables.values()
    assert table.order is not None
    assert (table.order.rule, table.order.topic) == (VersionRule.OFFSET, f"{variant}.shop.sbtest1")
    assert table.order.tombstones == (variant == "flattombstone")
    assert _texts([row.values() for row in replay.rows(table.schema.name)]) == _texts(list(load_truth("mysql")["sbtest1"].rows))


def test_of_flat_rows_whose_deletions_are_dropped_only_what_was_put_there_is_known() -> None:
    replay = _replayed("mysql-flatdrop", 8, topic=".sbtest1")
    assert replay.ignored == {}
    assert {row["id"] for row in replay.rows(TableName("shop", "sbtest1"))} > {
        int(str(row[0])) for row in load_truth("mysql")["sbtest1"].rows
    }


@pytest.mark.parametrize(("name", "why"), [("mysql-flat", "has no before image"), ("postgres-schema", "has no key")])
def test_a_table_without_a_key_needs_whole_rows_and_places(name: str, why: str) -> None:
    with pytest.raises(DefiniteError, match=why) as halted:
        _replayed(name, 9, topic=".nokey")
    assert halted.value.hint


@pytest.mark.parametrize("connector", CONNECTORS)
def test_other_records_are_recognised_and_counted(connector: str) -> None:
    replay = Replay(DebeziumReader())
    for name in (f"{connector}-plain", f"{connector}-schema"):
        tables = {topic for topic in _topics(name) if topic.count(".") >= 2}
        for records in _batches(name):
            if records.topic not in tables:
                replay.feed(records)
    assert replay.reader.tables == {}
    assert replay.refused == []
    expected = {"mysql": {"heartbeat", "transaction", "schema change"}, "postgres": {"heartbeat", "transaction", "message"}}
    assert replay.ignored.keys() == expected.get(connector, {"heartbeat"})


def test_events_may_name_their_tables_themselves() -> None:
    """All tables through one topic, as a router may send them."""
    replay = Replay(DebeziumReader(DebeziumOptions(), TopicMap(naming=TableNaming.SOURCE)))
    named = Replay(DebeziumReader())
    for records in _batches("mysql-plain"):
        if records.topic.rpartition(".")[2] in ("sbtest1", "pairs", "uniques"):
            named.feed(records)
            replay.feed(replace(records, topic="all"))
    assert replay.images == named.images
    assert {str(table) for table in replay.reader.tables} == {"shop.sbtest1", "shop.pairs", "shop.uniques"}


def test_a_sort_key_that_is_not_the_primary_key_moves_rows() -> None:
    """`pad` in the sort key: an update deletes the old row and inserts the new one."""
    name = TableName("shop", "sbtest1")
    replay = Replay(DebeziumReader(), {name: ("pad", "id", "k")})
    replay.feed_all([records for records in _batches("mysql-plain") if records.topic.endswith(".sbtest1")], random.Random(10))
    assert _texts([row.values() for row in replay.rows(name)]) == _texts(list(load_truth("mysql")["sbtest1"].rows))
    decoded = [replay.reader.read(records) for records in _batches("mysql-plain") if records.topic.endswith(".sbtest1")]
    ops = [op for one in decoded for block in one.blocks for op in block.op.to_pylist()]
    assert Op.BEFORE in ops
    assert all(ops[place + 1] == Op.UPDATE for place, op in enumerate(ops) if op == Op.BEFORE)


def test_a_sort_key_that_deletions_do_not_say_halts() -> None:
    """PostgreSQL logs only the key of a deleted row."""
    name = TableName("public", "sbtest1")
    replay = Replay(DebeziumReader(), {name: ("pad", "id", "k")})
    with pytest.raises(DefiniteError, match="has no before image") as halted:
        replay.feed_all([records for records in _batches("postgres-plain") if records.topic.endswith(".sbtest1")], random.Random(11))
    assert "REPLICA IDENTITY FULL" in halted.value.hint


def test_what_is_chosen_about_versions_and_shape_is_kept_to() -> None:
    flat = [records for records in _batches("mysql-flat") if records.topic.endswith(".sbtest1")]
    with pytest.raises(DefiniteError, match="versions = source"):
        Replay(DebeziumReader(DebeziumOptions(versions=VersionSource.SOURCE))).feed(flat[0])
    replay = Replay(DebeziumReader(DebeziumOptions(shape=EventShape.ENVELOPE)))
    assert {refused.reason for refused in replay.feed(flat[0]).refused} == {"it has no 'op', so it is not a change event"}
    by_offset = _replayed("mysql-schema", 12, DebeziumReader(DebeziumOptions(versions=VersionSource.OFFSET)), topic=".sbtest1")
    assert _texts([row.values() for row in by_offset.rows(TableName("shop", "sbtest1"))]) == _texts(
        list(load_truth("mysql")["sbtest1"].rows)
    )


def test_offsets_of_two_topics_are_not_compared() -> None:
    name = TableName("shop", "sbtest1")
    replay = Replay(DebeziumReader(DebeziumOptions(versions=VersionSource.OFFSET), TopicMap({"other": name})))
    (first, *_) = [records for records in _batches("mysql-schema") if records.topic.endswith(".sbtest1")]
    replay.feed(first)
    with pytest.raises(DefiniteError, match="cannot be compared with them"):
        replay.feed(Records("other", 0, first.offset, first.key, first.value, first.timestamp))


def test_a_record_that_cannot_be_read_hides_no_other() -> None:
    (first, *_) = [records for records in _batches("mysql-plain") if records.topic.endswith(".sbtest1")]
    schema = next(iter(_replayed("mysql-schema", 13, topic=".sbtest1").reader.tables.values()))
    reader = DebeziumReader(tables={schema.schema.name: KnownTable(schema.schema, schema.keys)})
    whole = reader.read(first)
    texts = first.value.to_pylist()
    for row, text in enumerate(texts):
        if text is None:
            continue
        damaged = [*texts[:row], text[:-7], *texts[row + 1 :]]
        decoded = reader.read(Records(first.topic, 0, first.offset, first.key, pa.array(damaged, pa.binary()), first.timestamp))
        (refused,) = decoded.refused
        assert (refused.offset, refused.value) == (first.offset[row].as_py(), text[:-7])
        assert "ends too early" in refused.reason
        assert sum(block.rows for block in decoded.blocks) == sum(block.rows for block in whole.blocks) - 1


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_versions_are_those_of_the_log_that_headrace_reads_itself(flavour: str, tmp_path: Path) -> None:
    """A table may change from Debezium's topic to the server itself, or back."""
    log = load_log(flavour)
    schemas = {schema.name: schema for schema in log.schemas}
    catalog = ReadCatalog(plan_tables(schemas, dict.fromkeys(schemas, ())), schemas.__contains__, ReadOptions(every_before=True))
    direct = Chain(tmp_path, log.file, mariadb=flavour == "mariadb").read(log.data, catalog, checksum=log.checksum)
    reader = DebeziumReader(tables={name: KnownTable(schema, ()) for name, schema in schemas.items()})
    topics = {f"plain.{name}" for name in schemas}
    decoded = [reader.read(records) for records in _batches(f"{flavour}-plain") if records.topic in topics]
    start = pack_version(0, int(log.file.rpartition(".")[2]), log.start)
    ours = _marks([block for one in decoded for block in one.blocks], start)
    assert ours == _marks(direct, start)
    assert len(ours) > 50


def _marks(blocks: Iterable[ChangeBlock], start: int) -> list[tuple[str, int, bool]]:
    """Table and version of each image after a position, and whether it is a deletion."""
    images = [
        (str(block.schema.name), *pair) for block in blocks for pair in zip(block.version.to_pylist(), block.op.to_pylist(), strict=True)
    ]
    return sorted((table, version, op in (Op.BEFORE, Op.DELETE)) for table, version, op in images if version > start and op != Op.SNAPSHOT)
