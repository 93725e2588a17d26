"""Log rows as JSON documents, for each statement of ScyllaDB's documentation page."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from headrace.cql import timeuuid
from headrace.cql.blocks import LogBlock, RowBlock
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.log import OPERATION
from headrace.cql.options import CdcOptions
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sinks.kafka.scylla.log_documents import log_documents, row_documents
from headrace.sources.scylla.capture.statement_capture import Capture, log_block

T = 1_600_000_000_000_000


def _table(columns: str, *types: str) -> CqlTable:
    known = CqlCatalog()
    for statement in (*types, f"CREATE TABLE ks.t ({columns})"):
        known = known.apply(statement)
    return known.tables[TableName("ks", "t")]


def _documents(table: CqlTable, *statements: str, options: CdcOptions | None = None) -> list[dict[str, Any]]:
    clock = iter(range(T, T + 10_000_000, 1000))
    capture = Capture([table], lambda: next(clock), options or CdcOptions(enabled=True), keyspace="ks", seed=1)
    rows = [row for statement in statements for row in capture.log(statement)]
    made = log_documents(log_block(table, rows))
    assert len(made.key) == len(made.value) == len(made.position) == len(made.micros)
    return [json.loads(text) for text in made.value.to_pylist()]


def _said(document: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in document.items() if name not in ("table", "timestamp", "time", "sequence", "stream", "end_of_batch")
    }


MAP = "pk int, ck int, v map<int, text>, PRIMARY KEY (pk, ck)"


def test_atomic_columns_are_set_or_deleted() -> None:
    table = _table('pk int, ck int, v int, "W w" text, f frozen<map<int, text>>, PRIMARY KEY (pk, ck)')
    first, second, third, fourth = _documents(
        table,
        'UPDATE ks.t USING TTL 60 SET v = 0, "W w" = \'a"b\' WHERE pk = 0 AND ck = 1',
        "UPDATE ks.t SET v = null, \"W w\" = 'x' WHERE pk = 0 AND ck = 1",
        "INSERT INTO ks.t (pk, ck, f) VALUES (0, 2, {1: 'a'})",
        "INSERT INTO ks.t (pk, ck) VALUES (0, 3)",
    )
    assert _said(first) == {"operation": "update", "ttl": 60, "key": {"pk": 0, "ck": 1}, "set": {"v": 0, "W w": 'a"b'}}
    assert _said(second) == {"operation": "update", "key": {"pk": 0, "ck": 1}, "set": {"W w": "x"}, "deleted": ["v"]}
    assert _said(third) == {"operation": "insert", "key": {"pk": 0, "ck": 2}, "set": {"f": {"1": "a"}}}
    assert _said(fourth) == {"operation": "insert", "key": {"pk": 0, "ck": 3}}
    assert first["table"] == "ks.t"
    assert (first["timestamp"], first["sequence"], first["end_of_batch"]) == (timeuuid.micros(UUID(first["time"])), 0, True)
    assert first["stream"].startswith("0x")


def test_maps_sets_and_their_elements() -> None:
    table = _table("pk int, ck int, v map<int, text>, s set<text>, PRIMARY KEY (pk, ck)")
    where = "WHERE pk = 0 AND ck = 0"
    found = _documents(
        table,
        f"UPDATE ks.t SET v = v + {{1: 'v1', 2: 'v2'}}, s = s + {{'a'}} {where}",
        f"UPDATE ks.t SET v = v - {{1, 2, 3}}, s = s - {{'b'}} {where}",
        f"UPDATE ks.t SET v = null {where}",
        f"UPDATE ks.t SET v = {{1: 'v1'}} {where}",
        f"UPDATE ks.t SET v[7] = null, v[8] = 'x' {where}",
    )
    assert [document["elements"] for document in found] == [
        {"s": {"added": ["a"]}, "v": {"added": {"1": "v1", "2": "v2"}}},
        {"s": {"removed": ["b"]}, "v": {"removed": [1, 2, 3]}},
        {"v": {"cleared": True}},
        {"v": {"cleared": True, "added": {"1": "v1"}}},
        {"v": {"added": {"8": "x"}, "removed": [7]}},
    ]
    assert all("set" not in document for document in found)


def test_lists_and_user_types() -> None:
    table = _table("pk int PRIMARY KEY, l list<int>, u ut", "CREATE TYPE ks.ut (a int, b text, c int)")
    added, removed, cleared, fields, gone, whole = _documents(
        table,
        "UPDATE ks.t SET l = [1, 2] WHERE pk = 0",
        "UPDATE ks.t SET l = l - [1] WHERE pk = 0",
        "UPDATE ks.t SET l = null WHERE pk = 0",
        "UPDATE ks.t SET u.a = 42, u.c = null WHERE pk = 0",
        "UPDATE ks.t SET u = null WHERE pk = 0",
        "UPDATE ks.t SET u = {a: 1, b: 'x'} WHERE pk = 0",
    )
    keys = list(added["elements"]["l"]["added"])
    assert list(added["elements"]["l"]["added"].values()) == [1, 2]
    assert added["elements"]["l"]["cleared"] is True
    assert removed["elements"] == {"l": {"removed": [keys[0]]}}
    assert cleared["elements"] == {"l": {"cleared": True}}
    assert fields["elements"] == {"u": {"added": {"a": 42}, "removed": ["c"]}}
    assert gone["elements"] == {"u": {"cleared": True}}
    assert whole["elements"] == {"u": {"cleared": True, "added": {"a": 1, "b": "x"}}}


def test_deletions_of_rows_ranges_and_partitions_and_static_columns() -> None:
    table = _table("pk int, c1 int, c2 text, s int static, v int, PRIMARY KEY (pk, c1, c2)")
    found = _documents(
        table,
        "DELETE FROM ks.t WHERE pk = 0 AND c1 = 1 AND c2 = 'a'",
        "DELETE FROM ks.t WHERE pk = 0 AND c1 = 1 AND c2 > 'a' AND c2 <= 'f'",
        "DELETE FROM ks.t WHERE pk = 0 AND c1 < 5",
        "DELETE FROM ks.t WHERE pk = 0",
        "UPDATE ks.t SET s = 1 WHERE pk = 0",
        "BEGIN BATCH DELETE FROM ks.t WHERE pk = 1 AND c1 = 3; UPDATE ks.t SET v = 1 WHERE pk = 1 AND c1 = 4 AND c2 = 'x'; APPLY BATCH",
    )
    assert [_said(document) for document in found] == [
        {"operation": "row_delete", "key": {"pk": 0, "c1": 1, "c2": "a"}},
        {
            "operation": "range_delete",
            "key": {"pk": 0},
            "from": {"bound": {"c1": 1, "c2": "a"}, "inclusive": False},
            "to": {"bound": {"c1": 1, "c2": "f"}, "inclusive": True},
        },
        {"operation": "range_delete", "key": {"pk": 0}, "to": {"bound": {"c1": 5}, "inclusive": False}},
        {"operation": "partition_delete", "key": {"pk": 0}},
        {"operation": "update", "key": {"pk": 0}, "set": {"s": 1}},
        {"operation": "update", "key": {"pk": 1, "c1": 4, "c2": "x"}, "set": {"v": 1}},
        {
            "operation": "range_delete",
            "key": {"pk": 1},
            "from": {"bound": {"c1": 3}, "inclusive": True},
            "to": {"bound": {"c1": 3}, "inclusive": True},
        },
    ]
    assert [document.get("end_of_batch", False) for document in found] == [True, True, True, True, True, False, True]


def test_images_are_rows() -> None:
    table = _table("pk int PRIMARY KEY, v int, w int, l list<int>, m map<int, int>")
    options = CdcOptions(enabled=True, preimage="full", postimage=True)
    _, before, change, after = _documents(
        table,
        "INSERT INTO ks.t (pk, v, l) VALUES (0, 1, [5, 6])",
        "UPDATE ks.t SET w = 2, v = null, m = m + {1: 2} WHERE pk = 0",
        options=options,
    )[-4:]
    assert (before["operation"], before["row"]) == ("preimage", {"l": [5, 6], "m": None, "v": 1, "w": None})
    assert (change["operation"], change["set"], change["deleted"]) == ("update", {"w": 2}, ["v"])
    assert change["elements"] == {"m": {"added": {"1": 2}}}
    assert (after["operation"], after["row"]) == ("postimage", {"l": [5, 6], "m": {"1": 2}, "w": 2})
    assert not {"set", "deleted", "elements"} & (before.keys() | after.keys())


def test_positions_order_documents_as_the_log_does() -> None:
    table = _table(MAP)
    clock = iter(range(T, T + 10_000_000, 1000))
    capture = Capture([table], lambda: next(clock), CdcOptions(enabled=True, postimage=True), keyspace="ks", seed=1)
    rows = [row for number in range(20) for row in capture.log(f"UPDATE ks.t SET v[1] = 'x' WHERE pk = {number % 3} AND ck = 0")]
    made, shuffled = log_documents(log_block(table, rows)), log_documents(log_block(table, rows[20:] + rows[:20]))
    assert made.position.to_pylist() == sorted(made.position.to_pylist())
    assert len(set(made.position.to_pylist())) == 40
    again = shuffled.in_order()
    assert (again.value.to_pylist(), again.position.to_pylist()) == (made.value.to_pylist(), made.position.to_pylist())
    assert [json.loads(key) for key in made.key.to_pylist()[:6:2]] == [{"pk": 0}, {"pk": 1}, {"pk": 2}]


def test_values_that_no_server_writes_are_rejected() -> None:
    table = _table("pk int, ck int, u ut, PRIMARY KEY (pk, ck)", "CREATE TYPE ks.ut (a int, b int)")
    capture = Capture([table], lambda: T, keyspace="ks", seed=1)
    whole = log_block(table, capture.log("DELETE FROM ks.t WHERE pk = 0 AND ck > 1"))
    with pytest.raises(DefiniteError, match="without an end"):
        log_documents(LogBlock(table, whole.rows.slice(0, 1), whole.written.slice(0, 1)))
    # A type that got another field after it was read.
    older = _table("pk int, ck int, u ut, PRIMARY KEY (pk, ck)", "CREATE TYPE ks.ut (a int)")
    removed = log_block(table, capture.log("UPDATE ks.t SET u.b = null WHERE pk = 0 AND ck = 0"))
    place = removed.rows.schema.names.index("u")
    rows = removed.rows.set_column(place, "u", pa.nulls(1, pa.binary()))
    with pytest.raises(DefiniteError, match=r"(?s)field.*ut.*altered"):
        log_documents(LogBlock(older, rows, removed.written))
    empty = whole.rows.slice(0, 0)
    assert len(log_documents(LogBlock(table, empty, whole.written.slice(0, 0))).value) == 0


@pytest.mark.parametrize(("code", "word"), [(-3, "service_row_delete"), (-4, "service_partition_delete")])
def test_servers_own_deletions(code: int, word: str) -> None:
    table = _table(MAP)
    capture = Capture([table], lambda: T, keyspace="ks", seed=1)
    block = log_block(table, capture.log("DELETE FROM ks.t WHERE pk = 0 AND ck = 1"))
    place = block.rows.schema.names.index(OPERATION)
    raw = code.to_bytes(1, "big", signed=True)
    rows = block.rows.set_column(place, OPERATION, pa.array([raw], pa.binary()))
    assert json.loads(log_documents(LogBlock(table, rows, block.written)).value[0].as_py())["operation"] == word


def test_rows_of_the_base_table() -> None:
    table = _table("pk int, ck int, v int, m map<int, int>, PRIMARY KEY (pk, ck)")
    four = [number.to_bytes(4, "big") for number in range(10)]
    pair = b"\0\0\0\1" + b"\0\0\0\4" + four[1] + b"\0\0\0\4" + four[2]
    rows = pa.RecordBatch.from_pydict(
        {"pk": [four[0], four[1]], "ck": [four[5], four[6]], "m": [pair, None], "v": [four[7], None]},
        schema=pa.schema([(name, pa.binary()) for name in ("pk", "ck", "m", "v")]),
    )
    numbers = pa.schema([("m", pa.list_(pa.int64())), ("v", pa.list_(pa.int64()))])
    times = pa.RecordBatch.from_pydict({"m": [[11], None], "v": [[12], None]}, schema=numbers)
    expiries = pa.RecordBatch.from_pydict({"m": [[None], None], "v": [[99], None]}, schema=numbers)
    gone = pa.RecordBatch.from_pydict({"pk": [four[8]], "ck": [four[9]]}, schema=rows.schema.remove(3).remove(2))
    made = row_documents(RowBlock(table, rows, times, expiries, 77, again=True, gone=gone))
    assert [json.loads(text) for text in made.value.to_pylist()] == [
        {
            "table": "ks.t",
            "operation": "read",
            "as_of": 77,
            "key": {"pk": 0, "ck": 5},
            "row": {"m": {"1": 2}, "v": 7},
            "written": {"m": [11], "v": 12},
            "expires": {"v": 99},
        },
        {"table": "ks.t", "operation": "read", "as_of": 77, "key": {"pk": 1, "ck": 6}, "row": {}},
        {"table": "ks.t", "operation": "absent", "as_of": 77, "key": {"pk": 8, "ck": 9}},
    ]
    assert made.position is None
    assert made.key.to_pylist() == ['{"pk":0}', '{"pk":1}', '{"pk":8}']
    assert (made.micros == np.full(3, 77)).all()


@pytest.mark.parametrize("operation", [-1, 42])
def test_an_operation_that_is_not_known_halts(operation: int) -> None:
    table = _table("pk int PRIMARY KEY, v int")
    block = log_block(table, Capture([table], lambda: T, seed=1).log("DELETE FROM ks.t WHERE pk = 1"))
    place = block.rows.schema.get_field_index(OPERATION)
    rows = block.rows.set_column(place, OPERATION, pa.array([operation.to_bytes(1, "big", signed=True)], pa.binary()))
    with pytest.raises(DefiniteError, match=f"the operation {operation}, which is not known") as raised:
        log_documents(LogBlock(table, rows, block.written))
    assert "cdc$time" in raised.value.place
