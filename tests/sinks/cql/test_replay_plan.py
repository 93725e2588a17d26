"""The exact statements for log rows, on ScyllaDB."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from cassandra.query import UNSET_VALUE

from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.tables import CqlTable
from headrace.sinks.cql.log_row_writes import LogRows, plan
from testkit.generators.cql_blocks import log_block

T = 1_606_390_225_588_947
STAMP = struct.pack(">q", T)
ONE, TWO = UUID("276b8860-2fef-11eb-af55-000000000001"), UUID("276b8861-2fef-11eb-af55-000000000001")


def table_of(columns: str, types: str = "") -> CqlTable:
    found = CqlCatalog("ks").apply_all(f"{types} CREATE TABLE t (pk int, ck int, {columns}, PRIMARY KEY (pk, ck))").tables
    return next(iter(found.values()))


def written(table: CqlTable, *entries: dict[str, Any], now: int = 0, when: int | None = None) -> list[tuple[str, tuple[Any, ...]]]:
    rows = LogRows(log_block(table, [{"at": T, "pk": 0, "ck": 0, **entry} for entry in entries], when), table, now)
    return [(write.text, write.values) for write in plan(rows, table, keyed_lists=True).writes]


def int_(number: int) -> bytes:
    return struct.pack(">i", number)


WHERE = "WHERE pk = ? AND ck = ?"
USING = "USING TIMESTAMP ? AND TTL ?"
NO_TTL, KEY = int_(0), (int_(0), int_(0))


def test_lists_by_their_keys() -> None:
    table = table_of("v list<int>")
    entry = {"op": 1, "v": [(ONE, 1), (TWO, 2)], "cdc$deleted_v": True}
    element = f"UPDATE ks.t {USING} SET v[SCYLLA_TIMEUUID_LIST_INDEX(?)] = ? {WHERE}"
    assert written(table, entry) == [
        (f"UPDATE ks.t {USING} SET v = ? {WHERE}", (STAMP, NO_TTL, None, *KEY)),
        (element, (STAMP, NO_TTL, ONE.bytes, int_(1), *KEY)),
        (element, (STAMP, NO_TTL, TWO.bytes, int_(2), *KEY)),
    ]
    assert written(table, {"op": 1, "cdc$deleted_elements_v": [ONE]}) == [(element, (STAMP, NO_TTL, ONE.bytes, None, *KEY))]


def test_user_types_by_their_fields() -> None:
    table = table_of("v ut", "CREATE TYPE ut (a int, b int, c int);")
    fields = f"UPDATE ks.t {USING} SET v.a = ?, v.b = ?, v.c = ? {WHERE}"
    # A null field of a value is not a deleted field.
    assert written(table, {"op": 1, "v": (42, None, None), "cdc$deleted_elements_v": [2]}) == [
        (fields, (STAMP, NO_TTL, int_(42), UNSET_VALUE, None, *KEY))
    ]
    [(text, values)] = written(table, {"op": 1, "v": (1, 2, None), "cdc$deleted_v": True})
    assert text == f"UPDATE ks.t {USING} SET v = ? {WHERE}"
    assert values[2] == int_(4) + int_(1) + int_(4) + int_(2) + int_(-1)


def test_markers_only_where_the_log_inserts() -> None:
    table = table_of("a int, m map<int, text>")
    insert = f"INSERT INTO ks.t (pk, ck, a, m) VALUES (?, ?, ?, ?) {USING}"
    assert written(table, {"op": 2}) == [(insert, (*KEY, UNSET_VALUE, UNSET_VALUE, STAMP, NO_TTL))]
    assert written(table, {"op": 2, "cdc$deleted_a": True, "cdc$deleted_m": True}) == [(insert, (*KEY, None, None, STAMP, NO_TTL))]
    assert written(table, {"op": 1, "a": 1}) == [
        (f"UPDATE ks.t {USING} SET a = ?, m = ? {WHERE}", (STAMP, NO_TTL, int_(1), UNSET_VALUE, *KEY))
    ]
    one, added = int_(1) + int_(4) + int_(7) + int_(1) + b"x", int_(1) + int_(4) + int_(8)
    assert written(table, {"op": 1, "m": [(7, "x")], "cdc$deleted_elements_m": [8]}) == [
        (f"UPDATE ks.t {USING} SET m = m + ?, m = m - ? {WHERE}", (STAMP, NO_TTL, one, added, *KEY))
    ]


def test_a_table_of_keys_alone() -> None:
    table = next(iter(CqlCatalog("ks").apply_all("CREATE TABLE t (pk int, ck int, PRIMARY KEY (pk, ck))").tables.values()))
    assert written(table, {"op": 2}) == [(f"INSERT INTO ks.t (pk, ck) VALUES (?, ?) {USING}", (*KEY, STAMP, NO_TTL))]


def test_images_write_nothing_and_service_deletes_delete() -> None:
    table = table_of("a int")
    assert written(table, {"op": 0, "a": 1}, {"op": 9, "a": 1}) == []
    row, partition = f"DELETE FROM ks.t USING TIMESTAMP ? {WHERE}", "DELETE FROM ks.t USING TIMESTAMP ? WHERE pk = ?"
    assert written(table, {"op": 3}, {"op": -3}) == [(row, (STAMP, *KEY))] * 2
    assert written(table, {"op": 4, "ck": None}, {"op": -4, "ck": None}) == [(partition, (STAMP, int_(0)))] * 2
    both = written(table, {"op": 6, "ck": 1}, {"op": 7, "ck": 5})
    assert both == [(f"{partition} AND ck > ? AND ck <= ?", (STAMP, int_(0), int_(1), int_(5)))]


def test_what_is_left_of_a_ttl() -> None:
    table, second = table_of("a int"), T // 1_000_000
    for now, when, left in ((second, None, 100), (second + 40, None, 60), (second + 40, second + 30, 90), (second + 500, None, 1)):
        [(_, values)] = written(table, {"op": 1, "a": 1, "ttl": 100}, now=now, when=when)
        assert values[1] == int_(left)


def test_a_row_whose_columns_were_dropped_since_is_passed_over_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of("v int, w int")
    assert written(table, {"op": 1}, {"op": 1, "v": 3}, {"op": 2}) == [
        (f"INSERT INTO ks.t (pk, ck, v, w) VALUES (?, ?, ?, ?) {USING}", (*KEY, UNSET_VALUE, UNSET_VALUE, STAMP, NO_TTL)),
        (f"UPDATE ks.t {USING} SET v = ?, w = ? {WHERE}", (STAMP, NO_TTL, int_(3), UNSET_VALUE, *KEY)),
    ]
    (warning,) = caplog.messages
    assert warning.startswith("1 log rows show that a change happened, but not its values")
    assert "table ks.t, cdc$time" in warning


def test_what_is_left_of_a_ttl_is_never_more_than_it_was() -> None:
    table, longest = table_of("v int"), 20 * 365 * 86400
    for left, now in ((longest, -5), (longest, 0), (longest - 7, 7), (1, 2 * longest)):
        [(_, values)] = written(table, {"op": 1, "v": 1, "ttl": longest}, now=now, when=0)
        assert values[:2] == (STAMP, int_(left))
