"""Tombstones of compacted topics, whose deletion events are gone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.model.change_block import Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.version import pack_version
from headrace.sources.debezium import offset_range_reader
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning, VersionRule
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.records import DecodedRecords, KnownTable, Records
from headrace.sources.debezium.offset_range_reader import cut_windows
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


def versions(decoded: DecodedRecords) -> list[int]:
    return [version for block in decoded.blocks for version in block.version.to_pylist()]


def with_gaps(offsets: list[int], values: list[Any], keys: list[int], start: int) -> Records:
    """Records of a compacted topic."""
    made = records(values, keys=[{"id": key} for key in keys])
    return replace(made, offset=pa.array(offsets, pa.int64()), start=start)


@pytest.mark.parametrize("rule", VersionRule)
def test_a_tombstone_whose_deletion_event_was_compacted_away_deletes_by_its_key(rule: VersionRule) -> None:
    """Its version is between those of the row's changes before it and after it, wherever a batch begins or ends."""

    def change(op: str, at: int, key: int) -> dict[str, Any]:
        row = {**ROW, "id": key}
        return lsn(op, at, row) if rule is VersionRule.LSN else event(op, row, pos=at)

    first, after = records([change("c", 100, 1), change("c", 200, 2)], keys=[{"id": 1}, {"id": 2}]), [change("c", 500, 1)]
    for gap, later in ((0, after), (0, []), (1, after), (1, [])):
        mine = reader(rule)
        held = versions(mine.read(first))
        other = [change("u", 300, 3)] * gap
        piece = with_gaps([*[3] * gap, 8, 9][: gap + 1 + len(later)], [*other, None, *later], [*[3] * gap, 1, *[1] * len(later)], 2)
        decoded = mine.read(piece)
        if not later:
            later_versions = versions(mine.read(records(after, first=9)))
        found = [
            (row["id"], op, version)
            for block in decoded.blocks
            for row, op, version in zip(block.images.to_pylist(), block.op.to_pylist(), block.version.to_pylist(), strict=True)
        ]
        (gone,) = [version for key, op, version in found if op == Op.DELETE and key == 1]
        following = [version for key, op, version in found if op != Op.DELETE and key == 1] if later else later_versions
        assert max(held) < gone < min(following), (rule, gap, bool(later))
        assert decoded.ignored == {}


@pytest.mark.parametrize("rule", VersionRule)
def test_a_tombstone_after_its_deletion_event_is_ignored(rule: VersionRule) -> None:
    """Also if its deletion event was the last record of the range before, or a marker of a transaction is between them."""
    gone = lsn("d", 100, ROW) if rule is VersionRule.LSN else event("d", None, ROW, pos=100)
    gone = {**gone, "before": ROW, "after": None}
    for offsets, values, start in (([4, 5], [gone, None], 4), ([4, 6], [gone, None], 2), ([5], [None], 5)):
        decoded = reader(rule).read(with_gaps(offsets, values, [1] * len(values), start))
        assert (dict(decoded.ignored), decoded.refused) == ({"tombstone": 1}, ())
        assert [block.changes for block in decoded.blocks] == [1] * (len(values) - 1)


def test_lone_tombstones_of_several_rows() -> None:
    """They have one position, which is no sign of a compressed log, and no sign of a log that went back."""
    values = [event(pos=100), None, None, event(pos=100, row=1), None]
    decoded = reader(tails={(TOPIC, 0): LogTail("bin", 7, 1, epoch=1)}, options=DebeziumOptions(epoch=2)).read(
        with_gaps([1, 5, 7, 8, 11], values, [1, 2, 3, 4, 5], 1)
    )
    assert [version - pack_version(1, 7, 0) for version in versions(decoded)] == [101, 100, 100, 102, 105]
    assert decoded.tail == LogTail("bin", 7, 1, epoch=1, position=100, row=1)


def test_a_lone_tombstone_of_a_new_partition_loses_against_every_row() -> None:
    decoded = reader().read(with_gaps([9], [None], [1], 0))
    assert versions(decoded) == [pack_version(0, 0, 0) + 3]


def test_windows_know_where_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that begins at a tombstone whose deletion event ends the one before it."""
    monkeypatch.setattr(offset_range_reader, "WINDOW_ROWS", 2)
    pieces = [with_gaps([3, 5], [None] * 2, [1, 2], 2), with_gaps([6, 9, 12], [None] * 3, [3, 4, 5], 6)]
    assert [window.start for window in cut_windows(pieces)] == [2, 6, 10]
