"""Rows that are merged when cells are written: at any time they equal the rows that the cells give.

`test_cells_converge.py` and `test_cells.py` compare the same view with Cassandra and with expected rows.
"""

from __future__ import annotations

import random
import threading
import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError, TransientError
from headrace.sinks.clickhouse.cells import sink as cell_sink
from headrace.sinks.clickhouse.cells.merged_rows import merger
from headrace.sinks.clickhouse.cells.merged_rows.merger import RowMerger
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.cells.tables import stores_rows, tables_with_rows
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from testkit.generators.cql_blocks import log_block, write

NOW = int(time.time())
T = NOW * 1_000_000
MIXED = """CREATE TABLE t (pk int, ck text, s int static, n set<int> static, v int, w text, m map<int, text>, z set<int>,
 PRIMARY KEY (pk, ck))"""
INEXACT = "CREATE TABLE t (pk double, ck decimal, s int static, v int, PRIMARY KEY (pk, ck))"
PLAIN = "CREATE TABLE t (pk int PRIMARY KEY, a int, b int)"


@pytest.fixture
def sink(target: ClickHouseTarget) -> CellSink:
    return CellSink(ClickHouseSink(target))


def table_of(script: str) -> CqlTable:
    return next(iter(CqlCatalog("ks").apply_all(script).tables.values()))


def command(sink: CellSink, statement: str) -> None:
    connect(sink.sink.target).client.command(statement)


def rows_in(sink: CellSink, name: str) -> list[Any]:
    return list(connect(sink.sink.target).client.query(f"SELECT * FROM {name} ORDER BY ALL").result_rows)


def shown(sink: CellSink, table: CqlTable) -> list[Any]:
    return rows_in(sink, sink.locations(table).view)


def live(sink: CellSink, table: CqlTable) -> list[Any]:
    return rows_in(sink, sink.locations(table).live)


def random_changes(chance: random.Random, count: int) -> list[list[dict[str, Any]]]:
    """Changes of a few rows with colliding times; each is one block's rows."""
    made: list[list[dict[str, Any]]] = []
    for number in range(count):
        row: dict[str, Any] = {"at": T + chance.randint(0, 40), "pk": chance.randint(1, 3), "batch": number}
        ttl = chance.choice([None, None, 5000, 1])
        kind = chance.choice(["write", "write", "write", "static", "row", "range", "partition", "element"])
        own = {**row, "ck": chance.choice("abcd"), "ttl": ttl}
        match kind:
            case "write":
                values = {"v": chance.randint(0, 9), "w": chance.choice(["x", ""]), "m": [(chance.randint(0, 2), "y")], "z": [number % 5]}
                some = {name: values[name] for name in chance.sample(list(values), 2)}
                made.append([{**own, "op": chance.choice([1, 2]), **some, "cdc$deleted_m": "m" in some and chance.random() < 0.3}])
            case "element":
                made.append(
                    [{**own, "ttl": None, "op": 1, "cdc$deleted_v": True, "cdc$deleted_elements_m": [1], "cdc$deleted_elements_z": [2]}]
                )
            case "static":
                change = chance.choice([{"s": number}, {"n": [number]}, {"cdc$deleted_s": True}, {"cdc$deleted_n": True}])
                made.append([{**row, "op": 1, "ttl": ttl if "s" in change or "n" in change else None, **change}])
            case "row":
                made.append([{**own, "ttl": None, "op": 3}])
            case "range":
                first, last = sorted(chance.sample("abcd", 2))
                made.append([{**row, "op": chance.choice([5, 6]), "ck": first}, {**row, "op": chance.choice([7, 8]), "ck": last}])
            case _:
                made.append([{**row, "op": 4}])
    return made


@pytest.mark.parametrize("seed", range(2))
def test_rows_equal_their_cells_after_each_block_of_any_delivery(sink: CellSink, seed: int) -> None:
    """Late and repeated blocks too: the changes come in any order, some of them twice."""
    chance = random.Random(seed)
    table = table_of(MIXED)
    sink.prepare([table])
    changes = random_changes(chance, 60)
    changes += chance.choices(changes, k=20)
    chance.shuffle(changes)
    while changes:
        counts = [chance.randint(1, 8) for _ in range(chance.randint(1, 3))]
        blocks = [changes[sum(counts[:place]) : sum(counts[: place + 1])] for place in range(len(counts))]
        write(sink, *(log_block(table, [row for change in block for row in change], NOW) for block in blocks if block))
        changes = changes[sum(counts) :]
        sink.expire([table], 0)
        assert shown(sink, table) == live(sink, table)
    assert shown(sink, table)


def versions_of(sink: CellSink, table: CqlTable) -> dict[str, int]:
    """The newest version of each row, by its clustering key."""
    return dict(
        connect(sink.sink.target)
        .client.query(f"SELECT `key:ck`, max(`row:version`) FROM {sink.locations(table).rows} WHERE isNotNull(`key:ck`) GROUP BY ALL")
        .result_rows
    )


@pytest.mark.parametrize("most_ranges", [8, 1])
def test_a_deleted_range_merges_the_rows_inside_it(sink: CellSink, monkeypatch: pytest.MonkeyPatch, most_ranges: int) -> None:
    """Unless the partition has many deleted ranges: then all of its rows are merged."""
    monkeypatch.setattr(merger, "_MOST_RANGES", most_ranges)
    table = table_of(MIXED)
    sink.prepare([table])
    write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, "ck": ck, "v": 1} for ck in "abcdefg"]))
    before = versions_of(sink, table)
    ranges = [({"op": 5, "ck": "b"}, {"op": 7, "ck": "c"}), ({"op": 6, "ck": "c"}, {"op": 8, "ck": "e"})]
    changes = [{"at": T + 1 + number, "pk": 1, **bound} for number, pair in enumerate(ranges) for bound in pair]
    write(sink, log_block(table, [*changes, {"op": 2, "at": T, "pk": 1, "ck": "f", "v": 2}]))
    assert shown(sink, table) == live(sink, table)
    assert [row[1] for row in shown(sink, table)] == ["a", "e", "f", "g"]
    after = versions_of(sink, table)
    merged = {ck for ck in before if after[ck] > before[ck]}
    assert merged == (set("bcdf") if most_ranges == 8 else set("abcdefg"))


def test_a_deleted_range_that_leaves_only_static_columns(sink: CellSink) -> None:
    table = table_of(MIXED)
    sink.prepare([table])
    write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, "ck": ck, "v": 1} for ck in "ab"]))
    write(sink, log_block(table, [{"op": 1, "at": T, "pk": 1, "s": 5}], NOW))
    write(sink, log_block(table, [{"op": 5, "at": T + 1, "pk": 1, "ck": "a"}, {"op": 8, "at": T + 1, "pk": 1, "ck": "c"}], NOW))
    assert shown(sink, table) == live(sink, table)
    assert [row[:2] for row in shown(sink, table)] == [(1, None)]


def test_a_deleted_range_of_a_prefix_in_descending_order(sink: CellSink) -> None:
    script = "CREATE TABLE t (pk int, a text, b int, v int, PRIMARY KEY (pk, a, b)) WITH CLUSTERING ORDER BY (a DESC, b ASC)"
    table = table_of(script)
    sink.prepare([table])
    rows = [{"op": 2, "at": T, "pk": pk, "a": a, "b": b, "v": 1} for pk in (1, 2) for a in ("x", "xy", "z") for b in (-1, 0, 1)]
    write(sink, log_block(table, rows))
    bounds = [{"op": 5, "at": T + 1, "pk": 1, "a": "xy"}, {"op": 7, "at": T + 1, "pk": 1, "a": "xy"}]
    more = [{"op": 6, "at": T + 2, "pk": 2, "a": "x", "b": -1}, {"op": 7, "at": T + 2, "pk": 2, "a": "x"}]
    write(sink, log_block(table, [*bounds, *more]))
    assert shown(sink, table) == live(sink, table)
    assert len(shown(sink, table)) == 18 - 3 - 2


def test_keys_that_clickhouse_compares_in_another_way(sink: CellSink) -> None:
    """Zeros of both signs, and decimals of another scale: two rows each; a partition with static cells alone."""
    table = table_of(INEXACT)
    sink.prepare([table])
    changes = [
        {"op": 2, "at": T, "pk": 0.0, "ck": Decimal("1.0"), "v": 1},
        {"op": 2, "at": T, "pk": -0.0, "ck": Decimal("1.0"), "v": 2},
        {"op": 1, "at": T, "pk": 7.5, "s": 3},
    ]
    write(sink, log_block(table, changes))
    assert len(shown(sink, table)) == 3
    assert shown(sink, table) == live(sink, table)
    write(
        sink, log_block(table, [{"op": 2, "at": T, "pk": 7.5, "ck": Decimal(2)}, {"op": 3, "at": T + 1, "pk": -0.0, "ck": Decimal("1.0")}])
    )
    assert len(shown(sink, table)) == 2
    assert shown(sink, table) == live(sink, table)


def test_values_expire_without_a_change(sink: CellSink) -> None:
    """Of a cell, an element, a static column, a whole row, and a partition that has only static cells."""
    table = table_of(MIXED)
    sink.prepare([table])
    soon = int(time.time()) + 3
    times = {"at": soon * 1_000_000 - 10_000_000, "ttl": 10}
    changes = [
        {"op": 2, "at": T - 60_000_000, "pk": 1, "ck": "stays", "w": "x"},
        {"op": 1, **times, "pk": 1, "ck": "stays", "v": 1, "m": [(1, "x")]},
        {"op": 2, **times, "pk": 1, "ck": "goes", "v": 1},
        {"op": 1, **times, "pk": 1, "s": 5},
        {"op": 1, **times, "pk": 2, "s": 6},
        {"op": 1, "at": T - 60_000_000, "pk": 3, "s": 7},
        {"op": 2, **times, "pk": 3, "ck": "goes"},
    ]
    write(sink, log_block(table, changes))
    if time.time() < soon - 1:
        assert [(row[0], row[1]) for row in shown(sink, table)] == [(1, "goes"), (1, "stays"), (2, None), (3, "goes")]
    while time.time() < soon + 1:
        time.sleep(0.2)
    before = sink.expire([table], 0)
    expected = live(sink, table)
    assert [(row[0], row[1]) for row in expected] == [(1, "stays"), (3, None)]
    assert shown(sink, table) == expected
    versions = rows_in(sink, sink.locations(table).rows)
    assert sink.expire([table], before - 600) >= before >= soon
    assert rows_in(sink, sink.locations(table).rows) == versions, "rows that were merged are not merged again"


def test_a_crash_between_cells_and_rows_is_completed_by_the_replay(sink: CellSink, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(MIXED)
    sink.prepare([table])
    write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, "ck": "a", "v": 1}]))
    block = log_block(table, [{"op": 2, "at": T + 1, "pk": 1, "ck": "a", "v": 2}, {"op": 1, "at": T + 1, "pk": 1, "s": 2}])

    def crash(*_: object) -> None:
        raise TransientError("the process was killed")

    with monkeypatch.context() as patched:
        patched.setattr(RowMerger, "merge", crash)
        with pytest.raises(TransientError):
            write(sink, block)
    assert shown(sink, table) != live(sink, table)
    write(sink, block)
    assert shown(sink, table) == live(sink, table)
    assert [row[:2] for row in shown(sink, table)] == [(1, "a")]


def test_a_task_that_dies_before_it_has_merged_merges_at_its_replay(sink: CellSink) -> None:
    """Also rows that an earlier block of the task touched, and the rows of a partition whose static column it changed."""
    table = table_of(MIXED)
    sink.prepare([table])
    write(sink, log_block(table, [{"op": 2, "at": T, "pk": pk, "ck": "a", "v": 1} for pk in (1, 2)]))
    blocks = [
        log_block(table, [{"op": 1, "at": T + 1, "pk": 1, "s": 2}]),
        log_block(table, [{"op": 3, "at": T + 1, "pk": 2, "ck": "a"}, {"op": 2, "at": T + 1, "pk": 2, "ck": "b"}]),
    ]
    died = sink.writer()
    for block in blocks:
        died.write(block)
    died.close()
    assert [(row[0], row[1], row[3]) for row in shown(sink, table)] == [(1, "a", None), (2, "a", None)]
    write(sink, *blocks)
    assert shown(sink, table) == live(sink, table)
    assert [(row[0], row[1], row[3]) for row in shown(sink, table)] == [(1, "a", 2), (2, "b", None)]


def test_rows_that_several_blocks_of_a_task_touch_are_merged_once(sink: CellSink) -> None:
    table = table_of(PLAIN)
    sink.prepare([table])
    write(sink, *(log_block(table, [{"op": 1, "at": T + number, "pk": 1, "a": number}]) for number in range(4)))
    assert shown(sink, table) == live(sink, table) == [(1, 3, None)]
    assert len(rows_in(sink, sink.locations(table).rows)) == 1


def test_a_task_with_many_keys_merges_before_its_end(sink: CellSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merger, "_KEY_BYTES", 40)
    table = table_of(MIXED)
    sink.prepare([table])
    changes = [{"op": 2, "at": T, "pk": pk, "ck": ck, "v": pk} for pk in range(3) for ck in "abc"]
    writer = sink.writer()
    writer.write(log_block(table, [*changes, {"op": 1, "at": T, "pk": 1, "s": 7}]))
    assert len(shown(sink, table)) == 9
    assert shown(sink, table) == live(sink, table)
    writer.complete()
    writer.close()
    assert shown(sink, table) == live(sink, table)


def test_a_task_that_touches_many_rows_merges_them_in_several_statements(sink: CellSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition counts as many rows: one statement must not take so long that the connection's timeout ends it."""
    monkeypatch.setattr(merger, "_ROWS_AT_ONCE", 250)
    merged: list[int] = []
    merge_keys = RowMerger._merge_keys

    def record(self: RowMerger, keys: pa.Table) -> None:
        merged.append(keys.num_rows)
        merge_keys(self, keys)

    monkeypatch.setattr(RowMerger, "_merge_keys", record)
    table = table_of(MIXED)
    sink.prepare([table])
    changes = [{"op": 2, "at": T, "pk": pk, "ck": ck, "v": pk} for pk in range(8) for ck in "abc"]
    statics = [{"op": 1, "at": T, "pk": pk, "s": pk} for pk in range(5)]
    ranges = [{"op": op, "at": T + 1, "pk": 6, "ck": ck} for op, ck in ((5, "a"), (7, "b"))]
    write(sink, log_block(table, [*changes, *statics, *ranges]))
    assert shown(sink, table) == live(sink, table)
    assert len(shown(sink, table)) == 22
    assert len(merged) == 3
    assert sum(merged) == 5 + 9 + 1


def test_many_blocks_of_the_same_rows_are_merged_once(sink: CellSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys exceed the limit, their distinct keys do not."""
    monkeypatch.setattr(merger, "_KEY_BYTES", 100)
    table = table_of(PLAIN)
    sink.prepare([table])
    write(sink, *(log_block(table, [{"op": 1, "at": T + number, "pk": 1, "a": number}]) for number in range(20)))
    assert shown(sink, table) == live(sink, table) == [(1, 19, None)]
    assert len(rows_in(sink, sink.locations(table).rows)) == 1


def test_a_merge_that_failed_is_repeated_with_all_keys(sink: CellSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that is away while a task ends: the task repeats only the end."""
    table = table_of(PLAIN)
    sink.prepare([table])
    writer = sink.writer()
    for number in (1, 2):
        writer.write(log_block(table, [{"op": 2, "at": T, "pk": number, "a": number}]))

    def fail(*_: object) -> None:
        raise TransientError("the server is away")

    with monkeypatch.context() as patched:
        patched.setattr(RowMerger, "_merge_touched", fail)
        with pytest.raises(TransientError):
            writer.complete()
    assert not shown(sink, table)
    writer.complete()
    writer.close()
    assert shown(sink, table) == live(sink, table) == [(1, 1, None), (2, 2, None)]


def test_concurrent_writers_of_one_row_lose_nothing(sink: CellSink) -> None:
    table = table_of(MIXED)
    sink.prepare([table])

    def one(number: int) -> None:
        changes = [{"op": 1, "at": T + number, "pk": 1, "ck": "a", "z": [number * 100 + place]} for place in range(3)]
        write(sink, *(log_block(table, [change]) for change in changes))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shown(sink, table) == live(sink, table)
    assert len(shown(sink, table)[0][-1]) == 9


def test_a_clock_that_was_set_back(sink: CellSink) -> None:
    """A later merge replaces a row whose version lies in the future."""
    table = table_of(PLAIN)
    sink.prepare([table])
    write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, "a": 1}]))
    rows = sink.locations(table).rows
    command(sink, f"INSERT INTO {rows} SELECT * REPLACE (`row:version` + 1000000000000000 AS `row:version`) FROM {rows}")
    write(sink, log_block(table, [{"op": 1, "at": T + 1, "pk": 1, "a": 2}]))
    assert shown(sink, table) == live(sink, table) == [(1, 2, None)]


def test_rows_of_a_table_that_was_merged_at_each_query(sink: CellSink) -> None:
    """Merged rows are filled from existing cells, and dropped again when they are not wanted any more."""
    table = table_of(MIXED)
    at_query = CellSink(sink.sink, merges=False)
    at_query.prepare([table])
    write(at_query, log_block(table, [{"op": 2, "at": T, "pk": 1, "ck": "a", "v": 1}, {"op": 1, "at": T, "pk": 2, "s": 1}]))
    expected = shown(sink, table)
    assert len(expected) == 2
    sink.prepare([table])
    assert not tables_with_rows(sink.sink.scope, [table]), "an existing table stays as it is"
    sink.expire([table], 0)
    CellSink(sink.sink, merges=True).prepare([table])
    assert tables_with_rows(sink.sink.scope, [table]) == [table]
    sink.prepare([table])
    assert shown(sink, table) == live(sink, table) == expected
    assert len(rows_in(sink, f"{sink.locations(table).rows} FINAL")) == 2
    at_query.prepare([table])
    write(at_query, log_block(table, [{"op": 3, "at": T + 1, "pk": 1, "ck": "a"}]))
    assert [row[0] for row in shown(sink, table)] == [2]
    [[count]] = (
        connect(sink.sink.target)
        .client.query(
            f"SELECT count() FROM system.tables WHERE database = '{sink.locations(table).database}' AND name IN ('t__rows', 't__live')"
        )
        .result_rows
    )
    assert count == 0


def test_rows_are_filled_again_after_a_crash_and_after_an_older_release(sink: CellSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older release replaces the view, and writes cells without merging them."""
    table = table_of(PLAIN)
    sink.prepare([table])
    places = sink.locations(table)
    with monkeypatch.context() as patched:
        patched.setattr(cell_sink, "stores_rows", lambda *_: False)
        write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, "a": 1}]))
        command(sink, f"ALTER TABLE {places.rows} MODIFY COMMENT 'Headrace, rows of ks.t'")
        sink.prepare([table])
        assert shown(sink, table) == [(1, 1, None)], "a crash before the end of filling"
        write(sink, log_block(table, [{"op": 2, "at": T, "pk": 2, "a": 2}]))
        assert shown(sink, table) == [(1, 1, None)]
    command(sink, f"CREATE OR REPLACE VIEW {places.view} AS SELECT * FROM {places.live} COMMENT 'Headrace, made of cells of ks.t'")
    sink.prepare([table])
    assert shown(sink, table) == live(sink, table) == [(1, 1, None), (2, 2, None)]


def test_altered_tables(sink: CellSink) -> None:
    """A row that has cells of the dropped column only goes with it; a new column is empty at first."""
    table = table_of(PLAIN)
    sink.prepare([table])
    write(sink, log_block(table, [{"op": 1, "at": T, "pk": 1, "a": 1}, {"op": 1, "at": T, "pk": 2, "b": 2}]))
    fewer = table_of("CREATE TABLE t (pk int PRIMARY KEY, a int)")
    sink.alter(table, fewer)
    assert shown(sink, fewer) == live(sink, fewer) == [(1, 1)]
    more = table_of("CREATE TABLE t (pk int PRIMARY KEY, a int, c set<int>)")
    sink.alter(fewer, more)
    sink.alter(fewer, more)
    write(sink, log_block(more, [{"op": 1, "at": T + 1, "pk": 3, "c": [7]}]))
    assert shown(sink, more) == live(sink, more) == [(1, 1, []), (3, None, [7])]


def test_a_table_that_is_emptied(sink: CellSink) -> None:
    table = table_of(PLAIN)
    sink.prepare([table])
    write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, "a": 1}]))
    sink.clear(table)
    assert shown(sink, table) == live(sink, table) == []


def test_a_writer_with_an_old_definition_does_not_merge(sink: CellSink) -> None:
    """A snapshot or a repair that began before an ALTER would clear the new column of the rows that it writes."""
    old, new = table_of(PLAIN), table_of("CREATE TABLE t (pk int PRIMARY KEY, a int, b int, c int)")
    sink.prepare([old])
    begun = sink.writer()
    begun.write(log_block(old, [{"at": T, "pk": 1, "op": 2, "a": 1}], NOW))
    begun.complete()
    sink.alter(old, new)
    write(sink, log_block(new, [{"at": T + 1, "pk": 1, "op": 1, "c": 3}], NOW))
    begun.write(log_block(old, [{"at": T, "pk": 1, "op": 1, "b": 2}], NOW))
    with pytest.raises(DefiniteError, match="the table was altered since its rows were read"):
        begun.complete()
    begun.close()
    write(sink, log_block(new, [{"at": T, "pk": 1, "op": 1, "b": 2}], NOW))
    assert shown(sink, new) == live(sink, new) == [(1, 1, 2, 3)]


def test_a_table_of_the_user_is_not_emptied(sink: CellSink) -> None:
    table = table_of(PLAIN)
    place = sink.locations(table)
    command(sink, f"CREATE DATABASE IF NOT EXISTS `{place.database}`")
    command(sink, f"CREATE TABLE {place.rows} (n Int32) ENGINE = MergeTree ORDER BY n")
    command(sink, f"INSERT INTO {place.rows} VALUES (1)")
    assert not stores_rows(sink.sink.scope, place)
