"""Which log rows require a re-read of a snapshot row: those with old list elements, and those that may delete the last cell."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.log import Operation
from headrace.cql.tables import CqlTable
from headrace.cql.timeuuid import make
from headrace.sources.scylla.snapshot.row_recheck import LogStartTimes, keys_to_reread, needs_reread
from testkit.generators.cql_blocks import all_write_times, atomic_write_times, log_block

S = 1_000_000
NOW = 1_790_000_000 * S
BEGUN = LogStartTimes(NOW, NOW + 100 * S)
MIRROR = 2 * 1_262_304_000 * S
LATER = NOW + 1000 * S


def _table() -> CqlTable:
    columns = "p int, c int, s list<int> static, v int, w int, m map<int, int>, l list<int>, u ut"
    known = CqlCatalog().apply_all(f"CREATE TYPE ks.ut (a int, b int); CREATE TABLE ks.t ({columns}, PRIMARY KEY (p, c));")
    return known.named("ks.t")


TABLE = _table()
UPDATE, INSERT = Operation.UPDATE, Operation.INSERT


def _key(micros: int) -> Any:
    return make(micros, 0x8000000000000001)


@pytest.mark.parametrize(
    ("row", "needed"),
    [
        # Elements of lists, by the times of their keys.
        ({"l": [(_key(LATER), 1)]}, False),
        ({"l": [(_key(NOW - S), 1)]}, True),
        ({"l": [(_key(MIRROR - LATER), 1)]}, False),
        ({"l": [(_key(MIRROR - NOW + S), 1)]}, True),
        ({"l": [(_key(1000), 1)]}, True),
        ({"l": [(_key(LATER + 30 * 86400 * S), 1)]}, True),
        ({"v": 1, "cdc$deleted_elements_l": {_key(NOW - S)}}, True),
        ({"v": 1, "cdc$deleted_elements_l": {_key(LATER - S)}}, False),
        ({"v": 1, "cdc$deleted_elements_l": {_key(LATER - S), _key(NOW)}}, True),
        ({"c": None, "s": [(_key(NOW), 1)]}, True),
        ({"c": None, "s": [(_key(LATER), 1)]}, False),
        # Rows that may have lost their last cell.
        ({"v": 1}, False),
        ({"cdc$deleted_v": True}, True),
        ({"cdc$deleted_v": True, "op": INSERT}, False),
        ({"cdc$deleted_v": True, "w": 1}, False),
        ({"cdc$deleted_m": True}, True),
        ({"cdc$deleted_m": True, "m": [(1, 1)]}, False),
        ({"cdc$deleted_elements_m": {1}}, True),
        ({"cdc$deleted_u": True, "u": (None, None)}, True),
        ({"cdc$deleted_elements_u": {0}, "u": (None, 1)}, False),
        ({"c": None, "cdc$deleted_s": True}, False),
        # Log rows that are unambiguous, or older than the snapshot.
        ({"op": Operation.ROW_DELETE}, False),
        ({"op": Operation.POSTIMAGE, "l": [(_key(NOW), 1)]}, False),
        ({"op": Operation.PREIMAGE, "cdc$deleted_v": True}, False),
        ({"cdc$deleted_v": True, "at": NOW}, False),
        ({"l": [(_key(NOW - S), 1)], "at": NOW}, False),
    ],
)
def test_a_log_row_is_in_doubt(row: dict[str, Any], needed: bool) -> None:
    block = log_block(TABLE, [{"op": UPDATE, "at": LATER, "p": 1, "c": 1, **row}])
    assert needs_reread(block, BEGUN, all_write_times(TABLE)).tolist() == [needed]


def test_every_changed_list_is_read_again_while_chunks_are_read_or_without_write_times() -> None:
    block = log_block(TABLE, [{"op": UPDATE, "at": LATER, "p": 1, "c": 1, "l": [(_key(LATER), 1)]}])
    assert needs_reread(block, LogStartTimes(NOW), all_write_times(TABLE)).all()
    assert needs_reread(block, BEGUN, atomic_write_times(TABLE)).all()
    assert keys_to_reread(block, BEGUN, all_write_times(TABLE)) is None


def test_keys_come_once_and_static_columns_have_none_of_their_own() -> None:
    old = [(_key(NOW), 1)]
    rows: list[dict[str, Any]] = [
        {"l": old},
        {"c": 2, "l": old},
        {"cdc$deleted_v": True},
        {"c": None, "s": old},
        {"p": 2, "l": old},
        {"v": 3},
    ]
    block = log_block(TABLE, [{"op": UPDATE, "at": LATER + i, "p": 1, "c": 1, **row} for i, row in enumerate(rows)])
    keys = keys_to_reread(block, BEGUN, all_write_times(TABLE))
    assert keys is not None
    found = {tuple(None if raw is None else int.from_bytes(raw, "big") for raw in row.values()) for row in keys.to_pylist()}
    assert found == {(1, 1), (1, 2), (1, None), (2, 1)}
    assert keys.num_rows == 4
    assert keys.schema.names == ["p", "c"]
