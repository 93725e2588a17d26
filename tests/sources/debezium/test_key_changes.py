"""The example of the ClickHouse sink connector's documentation: Debezium's records of an update, and of a changed primary key.

The records are those of the documentation, in Connect's JSON, with schemas and without. In all partitions and batches the first is one
update, and the three are one deletion of the old key and one insertion of the new.
"""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableName, TableSchema
from headrace.model.version import pack_version
from headrace.sources.debezium.events.event_versions import TableVersioning, VersionRule
from headrace.sources.debezium.events.records import KnownTable, Records
from headrace.sources.debezium.reader import DebeziumReader

TOPIC = "SERVER5432.sbtest.sbtest1"
NAME = TableName("sbtest", "sbtest1")
C = "20488251985-66135155553-00362235007-72249840112-70784105787-84584360668-65106023418-49140058226-99031281108-48426083028"
C2 = "20488251985-66135155553-00362235007-72249840112-70784105787-84584360668-65106023418-49140058226-99031281108-48426083029"
PAD = "18846546959-44726413785-66695616247-63594911107-83062207348"


def row(k: int, c: str = C) -> dict[str, Any]:
    return {"id": 2317, "k": k, "c": c, "pad": PAD}


def source(ts_ms: int, pos: int, thread: int) -> dict[str, Any]:
    return {
        "version": "1.9.2.Final",
        "connector": "mysql",
        "name": "SERVER5432",
        "ts_ms": ts_ms,
        "snapshot": "false",
        "db": "sbtest",
        "table": "sbtest1",
        "server_id": 842,
        "file": "mysql-bin.000003",
        "pos": pos,
        "row": 0,
        "thread": thread,
    }


def transaction(pos: int, order: int) -> dict[str, Any]:
    return {"id": f"file=mysql-bin.000003,pos={pos}", "total_order": order, "data_collection_order": order}


UPDATE = {
    "before": row(3739),
    "after": row(3739, C2),
    "source": source(1657658606000, 16210729, 22),
    "op": "u",
    "ts_ms": 1657658606611,
    "transaction": transaction(16210580, 1),
}
MOVED = source(1657655632000, 16209369, 172)
DELETE = {"before": row(3737), "source": MOVED, "op": "d", "ts_ms": 1657655632066, "transaction": transaction(16209220, 1)}
CREATE = {"after": row(3738), "source": MOVED, "op": "c", "ts_ms": 1657655632066, "transaction": transaction(16209220, 2)}
NEW_KEY, OLD_KEY = ("__debezium.newkey", b'{"id":2317,"k":3738}'), ("__debezium.oldkey", b'{"id":2317,"k":3737}')

Event = tuple[int, dict[str, Any], dict[str, Any] | None, tuple[str, bytes] | None]
"""Offset, key, value and header."""
EVENTS: list[Event] = [
    (62978, {"id": 2317, "k": 3737}, DELETE, NEW_KEY),
    (62979, {"id": 2317, "k": 3737}, None, NEW_KEY),
    (62980, {"id": 2317, "k": 3738}, CREATE, OLD_KEY),
    (62984, {"id": 2317, "k": 3739}, UPDATE, None),
]


def field(name: str, kind: str) -> dict[str, Any]:
    return {"type": kind, "optional": False, "field": name}


COLUMNS = [field("id", "int32"), field("k", "int32"), field("c", "string"), field("pad", "string")]
KEY_SCHEMA = {"type": "struct", "fields": COLUMNS[:2], "optional": False, "name": f"{TOPIC}.Key"}
ENVELOPE = {
    "type": "struct",
    "name": f"{TOPIC}.Envelope",
    "optional": False,
    "fields": [
        {"type": "struct", "fields": COLUMNS, "optional": True, "name": f"{TOPIC}.Value", "field": "before"},
        {"type": "struct", "fields": COLUMNS, "optional": True, "name": f"{TOPIC}.Value", "field": "after"},
        {"type": "struct", "fields": [], "optional": False, "name": "io.debezium.connector.mysql.Source", "field": "source"},
        field("op", "string"),
    ],
}


def encoded(document: Any, schema: Any) -> bytes | None:
    if document is None:
        return None
    return json.dumps(document if schema is None else {"schema": schema, "payload": document}, separators=(",", ":")).encode()


def records(events: list[Event], *, described: bool, partition: int = 0) -> Records:
    headers = [[{"key": name, "value": value}] if header else [] for *_, header in events for name, value in [header or ("", b"")]]
    return Records(
        TOPIC,
        partition,
        pa.array([offset for offset, *_ in events], pa.int64()),
        pa.array([encoded(key, KEY_SCHEMA if described else None) for _, key, *_ in events], pa.binary()),
        pa.array([encoded(value, ENVELOPE if described else None) for *_, value, _ in events], pa.binary()),
        pa.array([1657655632487000] * len(events), pa.int64()),
        pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    )


@pytest.fixture(scope="module")
def schema() -> TableSchema:
    """The table before the first batch."""
    decoded = DebeziumReader().read(records(EVENTS, described=True))
    assert decoded.blocks == ()
    assert decoded.refused == ()
    (found,) = decoded.found
    assert (found.topic, found.partition, found.offset) == (TOPIC, 0, 62978)
    return found.schema


def lines_of(blocks: tuple[ChangeBlock, ...]) -> list[tuple[int, int, int, str]]:
    return [
        (op, version, image["k"], image["c"])
        for block in blocks
        for op, version, image in zip(block.op.to_pylist(), block.version.to_pylist(), block.images.to_pylist(), strict=True)
    ]


AT = pack_version(0, 3, 16209369)
EXPECTED = [
    (Op.DELETE, AT + 1, 3737, C),
    (Op.INSERT, AT + 2, 3738, C),
    (Op.UPDATE, pack_version(0, 3, 16210729) + 2, 3739, C2),
]


@pytest.mark.parametrize("described", [True, False])
def test_the_seeds_records_are_one_deletion_one_insertion_and_one_update(schema: TableSchema, described: bool) -> None:
    assert schema.name == NAME
    assert schema.primary_key == ("id", "k")
    decoded = DebeziumReader(tables={NAME: KnownTable(schema, ("id", "k"))}).read(records(EVENTS, described=described))
    assert lines_of(decoded.blocks) == EXPECTED
    assert decoded.ignored == {"tombstone": 1}
    assert (decoded.refused, decoded.found, decoded.truncations) == ((), (), ())
    assert decoded.orders == {NAME: TableVersioning(VersionRule.BINLOG)}
    (block,) = decoded.blocks
    assert block.schema == schema
    assert block.images.schema == schema.arrow_schema
    assert block.commit_ts.to_pylist() == [1657655632000000, 1657655632000000, 1657658606000000]


def test_versions_do_not_depend_on_partitions_or_batches(schema: TableSchema) -> None:
    reader = DebeziumReader(tables={NAME: KnownTable(schema, ("id", "k"), TableVersioning(VersionRule.BINLOG))})
    for order in permutations(EVENTS):
        alone = [reader.read(records([event], described=False, partition=n)) for n, event in enumerate(order)]
        assert sorted(line for decoded in alone for line in lines_of(decoded.blocks)) == sorted(EXPECTED)
        assert sum(decoded.ignored.get("tombstone", 0) for decoded in alone) == 1
