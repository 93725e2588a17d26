"""Cells in the real engine: log rows, and the rows of the view, for any order of arrival."""

from __future__ import annotations

import itertools
import random
import re
import time
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from cassandra.util import Date, Duration, Time

from headrace.cql import timeuuid
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.cells.storage import CellStorage
from headrace.sinks.clickhouse.cells.view import view_sql
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from testkit.generators.cql_blocks import as_clickhouse, as_read, log_block, read_view, row_block, write
from testkit.generators.cql_values import oracle_value, serialised

NOW = int(time.time())
T = NOW * 1_000_000


@pytest.fixture
def sink(target: ClickHouseTarget) -> CellSink:
    return CellSink(ClickHouseSink(target))


def table_of(script: str, name: str = "t") -> CqlTable:
    found = CqlCatalog("ks").apply_all(script)
    return next(table for table in found.tables.values() if table.name.table == name)


def shown(sink: CellSink, table: CqlTable, *names: str) -> list[tuple[Any, ...]]:
    """The view's rows, or some of their columns, sorted."""
    chosen = [table.column(name) for name in names] or list(table.columns)
    listed = ", ".join(f"`{column.name}`" for column in chosen)
    query = f"SELECT {listed} FROM {sink.locations(table).view} ORDER BY ALL"
    return read_view(connect(sink.sink.target).client, query, [column.type for column in chosen])


SCALARS = """CREATE TABLE t (pk int PRIMARY KEY, a bigint, b text, c boolean, d double, e float, f date, g time, h timestamp, i uuid,
 j timeuuid, k inet, l tinyint, m smallint, n blob, o ascii, p varint, q decimal, r duration, s frozen<list<int>>, t frozen<map<text, int>>,
 u tuple<int, text>, v vector<float, 2>)"""


def test_every_type_is_shown_and_null_where_it_is_deleted(sink: CellSink) -> None:
    table = table_of(SCALARS)
    sink.prepare([table])
    moment = UUID("db3214f0-2fe9-11eb-af55-000000000001")
    values = {
        "a": -5, "b": "text ✓", "c": True, "d": -0.5, "e": 1.5, "f": Date(-1), "g": Time(3_723_000_000_001), "h": 1_600_000_000_123,
        "i": UUID(int=2**127 + 5), "j": moment, "k": "::1", "l": -1, "m": -300, "n": b"\0\xff", "o": "ascii", "p": 2**200,
        "q": Decimal("-1.50"), "r": Duration(1, 0, 5), "s": [1, -2], "t": [("x", 1)], "u": (1, None), "v": [1.0, -2.5],
    }  # fmt: skip
    gone = {f"cdc$deleted_{name}": True for name in values}
    inserted = [{"op": 2, "at": T, "pk": 1, **values}, {"op": 2, "at": T + 5, "pk": 2}, {"op": 2, "at": T, "pk": 2, **values}]
    write(sink, log_block(table, inserted), log_block(table, [{"op": 1, "at": T + 3, "pk": 2, **gone}]))
    first, second = shown(sink, table)
    nulls = [as_clickhouse(column.type, None) for column in table.columns[1:]]
    expected = [as_clickhouse(c.type, oracle_value(c.type, serialised(c.type, values[c.name]))) for c in table.columns[1:]]
    assert first == (1, *expected)
    assert second == (2, *nulls)


def deliver(sink: CellSink, table: CqlTable, history: list[dict[str, Any]], seed: int) -> None:
    """Shuffle a history, repeat some of it, and cut it into blocks; the two rows of a range stay together."""
    chance = random.Random(seed)
    pieces = [list(rows) for _, rows in itertools.groupby(history, key=lambda row: (row["at"], row.get("batch", row["op"])))]
    pieces += chance.choices(pieces, k=len(pieces) // 2)
    chance.shuffle(pieces)
    while pieces:
        count = chance.randint(1, len(pieces))
        write(sink, log_block(table, [row for piece in pieces[:count] for row in piece]))
        pieces = pieces[count:]


MIXED = """CREATE TYPE u (a int, b text);
CREATE TABLE t (pk int, ck text, s int static, v int, m map<int, text>, z set<int>, l list<int>, w u, PRIMARY KEY (pk, ck))"""


def key(number: int) -> UUID:
    return timeuuid.make(T + number, 0xAF55000000000001)


HISTORY: list[dict[str, Any]] = [
    {"op": 2, "at": T + 10, "pk": 1, "ck": "a", "v": 5, "m": [(1, "x"), (-2, "y")], "cdc$deleted_m": True},
    {"op": 1, "at": T + 11, "pk": 1, "ck": "a", "m": [(3, "z")], "cdc$deleted_elements_m": [1], "z": [3, -1], "w": (7, None)},
    {"op": 1, "at": T + 12, "pk": 1, "ck": "a", "l": [(key(3), 30), (key(1), 10), (key(2), 20)], "cdc$deleted_l": True},
    {"op": 1, "at": T + 13, "pk": 1, "ck": "a", "cdc$deleted_elements_l": [key(2)], "w": (None, "w"), "cdc$deleted_elements_w": [0]},
    {"op": 1, "at": T + 9, "pk": 1, "ck": "a", "m": [(9, "before the overwriting")], "l": [(key(0), 0)]},
    {"op": 1, "at": T + 10, "pk": 1, "s": 4},
    # A row made by updates only disappears with its last cell.
    {"op": 1, "at": T + 10, "pk": 1, "ck": "b", "v": 1},
    {"op": 1, "at": T + 11, "pk": 1, "ck": "b", "cdc$deleted_v": True},
    # An inserted row stays.
    {"op": 2, "at": T + 10, "pk": 1, "ck": "c", "v": 1},
    {"op": 1, "at": T + 11, "pk": 1, "ck": "c", "cdc$deleted_v": True},
    # Deleted, and written again at the same time (not visible) and later (visible).
    {"op": 2, "at": T + 20, "pk": 1, "ck": "d", "v": 1},
    {"op": 3, "at": T + 20, "pk": 1, "ck": "d", "batch": 1},
    {"op": 1, "at": T + 21, "pk": 1, "ck": "d", "v": 2},
    # A range from e (exclusive) to g (inclusive).
    *({"op": 2, "at": T + 30, "pk": 1, "ck": ck, "v": 1} for ck in ("e", "ea", "f", "g", "ga")),
    {"op": 6, "at": T + 31, "pk": 1, "ck": "e", "batch": 2},
    {"op": 7, "at": T + 31, "pk": 1, "ck": "g", "batch": 2},
    {"op": 1, "at": T + 32, "pk": 1, "ck": "f", "z": [1]},
    # A deleted partition; one with only static cells; one whose static cells are deleted too.
    {"op": 2, "at": T + 40, "pk": 2, "ck": "a", "v": 1},
    {"op": 1, "at": T + 40, "pk": 2, "s": 1},
    {"op": 4, "at": T + 41, "pk": 2},
    {"op": 1, "at": T + 40, "pk": 3, "s": 3},
    {"op": 2, "at": T + 40, "pk": 3, "ck": "a"},
    {"op": -3, "at": T + 41, "pk": 3, "ck": "a"},
    # Cells with TTL: one expired, one not.
    {"op": 1, "at": T - 100_000_000, "pk": 4, "ck": "a", "v": 1, "ttl": 60},
    {"op": 1, "at": T - 100_000_000, "pk": 4, "ck": "b", "v": 1, "z": [5], "ttl": 6000},
    # Ties: a deletion wins, then a cell with TTL, then the greater bytes (-1 has greater bytes than 1).
    {"op": 1, "at": T + 50, "pk": 5, "ck": "a", "v": 1, "batch": 3},
    {"op": 1, "at": T + 50, "pk": 5, "ck": "a", "v": -1, "batch": 4},
    {"op": 1, "at": T + 50, "pk": 5, "ck": "b", "v": 9, "batch": 5},
    {"op": 1, "at": T + 50, "pk": 5, "ck": "b", "v": 2, "ttl": 6000, "batch": 6},
    {"op": 1, "at": T + 50, "pk": 5, "ck": "c", "v": 9, "batch": 7},
    {"op": 1, "at": T + 50, "pk": 5, "ck": "c", "cdc$deleted_v": True, "batch": 8},
    # Images are ignored.
    {"op": 0, "at": T + 60, "pk": 6, "ck": "a", "v": 1},
    {"op": 9, "at": T + 60, "pk": 6, "ck": "a", "v": 1},
]  # fmt: skip
NOTHING = {"a": None, "b": None}
EXPECTED = [
    (1, "a", 4, [10, 30], [(-2, "y"), (3, "z")], 5, {"a": None, "b": "w"}, [-1, 3]),
    (1, "c", 4, [], [], None, NOTHING, []),
    (1, "d", 4, [], [], 2, NOTHING, []),
    (1, "e", 4, [], [], 1, NOTHING, []),
    (1, "f", 4, [], [], None, NOTHING, [1]),
    (1, "ga", 4, [], [], 1, NOTHING, []),
    (3, None, 3, [], [], None, NOTHING, []),
    (4, "b", None, [], [], 1, NOTHING, [5]),
    (5, "a", None, [], [], -1, NOTHING, []),
    (5, "b", None, [], [], 2, NOTHING, []),
]


@pytest.mark.parametrize("seed", range(3))
def test_any_order_any_number_of_times_shows_the_same(sink: CellSink, seed: int) -> None:
    table = table_of(MIXED)
    sink.prepare([table])
    deliver(sink, table, HISTORY, seed)
    assert shown(sink, table, "pk", "ck", "s", "l", "m", "v", "w", "z") == EXPECTED
    connect(sink.sink.target).client.command(f"OPTIMIZE TABLE {sink.locations(table).cells} FINAL")
    assert shown(sink, table, "pk", "ck", "s", "l", "m", "v", "w", "z") == EXPECTED


def test_an_operation_that_is_not_known_halts_before_anything_is_written(sink: CellSink) -> None:
    table = table_of(MIXED)
    sink.prepare([table])
    with pytest.raises(DefiniteError, match=r"operation 77 is not known") as raised:
        write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, "ck": "a"}, {"op": 77, "at": T, "pk": 1, "ck": "a"}]))
    assert "stream 0x0101" in raised.value.place
    assert raised.value.hint
    for half in ({"op": 6, "at": T, "pk": 1, "ck": "a"}, {"op": 7, "at": T, "pk": 1, "ck": "a"}):
        with pytest.raises(DefiniteError, match="a range that does not"):
            write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, "ck": "a"}, half]))
    assert shown(sink, table) == []


def test_a_snapshot_merges_with_the_log_in_any_order(sink: CellSink) -> None:
    """Separate write times; whole lists, with later elements of the log before and after them; markers that are known later."""
    table = table_of(MIXED)
    first, again = T, T + 1000
    soon, over = NOW + 5000, NOW - 5
    early = timeuuid.make(1_000_000, 1)
    snapshot = row_block(
        table,
        first,
        [
            {"pk": 1, "ck": "a", "v": (5, first - 2, None), "l": ([1, 2, 3], [first - 9, first - 8, first - 7], None),
             "m": ([(1, "x"), (2, "y")], [first - 9, first - 8], [soon, over]), "w": ((1, "b"), [first - 5, first - 4], [None, over])},
            {"pk": 1, "s": (7, None, None)},
            {"pk": 1, "ck": "b"},
            {"pk": 1, "ck": "c", "v": (1, first - 50, soon)},
            {"pk": 1, "ck": "d", "v": (1, first - 50, over)},
            {"pk": 1, "ck": "e", "v": (1, first - 50, None)},
            {"pk": 1, "ck": "f", "z": ([4], [first - 3], None)},
        ],
    )  # fmt: skip
    log = log_block(
        table,
        [
            # All of these are in the snapshot.
            {"op": 1, "at": first - 9, "pk": 1, "ck": "a", "l": [(key(-9), 1)], "v": 4},
            {"op": 1, "at": first - 8, "pk": 1, "ck": "a", "l": [(key(-8), 2)]},
            # Later changes: a prepend, an append, and a deleted element.
            {"op": 1, "at": first + 1, "pk": 1, "ck": "a", "l": [(early, 0)]},
            {"op": 1, "at": first + 2, "pk": 1, "ck": "a", "l": [(key(2), 9), (key(3), 8)]},
            {"op": 1, "at": first + 3, "pk": 1, "ck": "a", "cdc$deleted_elements_l": [key(3)], "m": [(3, "z")]},
            # The last cells of two rows: one of them had been inserted, which only a re-read shows.
            {"op": 1, "at": first + 4, "pk": 1, "ck": "e", "cdc$deleted_v": True},
            {"op": 1, "at": first + 4, "pk": 1, "ck": "f", "cdc$deleted_elements_z": [4]},
            # Deleted after the snapshot.
            {"op": 3, "at": first + 5, "pk": 1, "ck": "b"},
        ],
    )  # fmt: skip
    later = row_block(table, again, [{"pk": 1, "ck": "e"}], gone=[{"pk": 1, "ck": "f"}])
    last = log_block(table, [{"op": 1, "at": again + 1, "pk": 1, "ck": "f", "v": 1}])
    for number, order in enumerate(itertools.permutations([snapshot, log, later, last])):
        if number % 5 == 0:
            own = CellSink(replace(sink.sink, target=replace(sink.sink.target, database=f"{sink.sink.target.database}_{number}")))
            own.prepare([table])
            write(own, *order, *order[:2])
            assert shown(own, table, "pk", "ck", "s", "v", "l", "m", "w") == [
                (1, "a", 7, 5, [0, 1, 2, 3, 9], [(1, "x"), (3, "z")], {"a": 1, "b": None}),
                (1, "c", 7, 1, [], [], NOTHING),
                (1, "e", 7, None, [], [], NOTHING),
                (1, "f", 7, 1, [], [], NOTHING),
            ]
    # Overwritten later: no element of the snapshot's list is left. After a re-read, the new values count.
    overwritten = log_block(table, [{"op": 1, "at": again, "pk": 1, "ck": "a", "cdc$deleted_l": True, "l": [(key(1000), 6)]}])
    write(own, overwritten)
    assert shown(own, table, "l")[-1:] == [([6],)]
    write(own, row_block(table, again + 9, [{"pk": 1, "ck": "a", "l": ([7, 6], [again + 5, again], None)}]))
    assert shown(own, table, "l")[-1:] == [([7, 6],)]


def test_conditions_on_the_key_reach_the_primary_key(sink: CellSink) -> None:
    plain = table_of("CREATE TABLE p (pk int, ck text, v int, l list<int>, PRIMARY KEY (pk, ck))", "p")
    static, flat = table_of(MIXED), table_of("CREATE TABLE f (pk int PRIMARY KEY, v int)", "f")
    sink.prepare([plain, static, flat])
    rows = 20_000
    for table in (plain, static, flat):
        inserts = [{"op": 2, "at": T, "pk": n, "v": n, **({"ck": "a"} if table.clustering else {})} for n in range(rows)]
        covered = [{"op": 4, "at": T - 1, "pk": n} for n in range(rows)] if table.clustering else []
        write(sink, log_block(table, inserts + covered))
    client = connect(sink.sink.target).client
    for table, condition in ((plain, "pk = 7"), (plain, "pk = 7 AND ck = 'a'"), (static, "pk = 7"), (flat, "pk IN (7, 8)")):
        plan = client.query(f"EXPLAIN indexes = 1 SELECT * FROM {sink.locations(table).view} WHERE {condition}").result_rows
        text = "\n".join(line for (line,) in plan)
        granules = re.findall(r"Granules: (\d+)/(\d+)", text)
        assert granules
        assert all(int(some) == 1 < int(of) for some, of in granules), (table.name, condition, granules)


HOSTILE = [
    "wi`th",
    "back\\slash",
    "quote'",
    'dou"ble',
    "spa ce",
    "漢字",
    "a.b",
    "%2F",
    "{x:Int8}",
    "-- x",
    "cell:v",
    "Ä",
    "cdc$x",
    "\\",
    "c",
    "k",
]


def test_columns_of_any_name_are_shown_under_their_names(sink: CellSink) -> None:
    quoted = ['"' + name.replace('"', '""') + '"' for name in HOSTILE]
    kinds = ["int", "map<int, int>", "list<int>", "set<int>", "frozen<list<int>>", '"Ty pe`"', "text"]
    columns = ", ".join(f"{name} {kinds[place % len(kinds)]}" for place, name in enumerate(quoted))
    script = f"""CREATE TYPE "Ty pe`" ("fi`eld\\" int, "ü.x" text); CREATE TABLE "T'a`b" ("p`k" int, "c\\k'" text, {columns},
      PRIMARY KEY ("p`k", "c\\k'"))"""
    table = table_of(script, "T'a`b")
    sink.prepare([table])
    values: dict[str, Any] = {}
    examples: list[Any] = [1, [(1, 2)], [(key(1), 3)], [4], [5], (6, "x"), "y"]
    for place, name in enumerate(HOSTILE):
        values[name] = examples[place % len(examples)]
    write(sink, log_block(table, [{"op": 2, "at": T, "p`k": 1, "c\\k'": "a", **values}]))
    client = connect(sink.sink.target).client
    found = client.query(f"SELECT * FROM {sink.locations(table).view}")
    shown_values: list[Any] = [1, {1: 2}, [3], [4], [5], {"fi`eld\\": 6, "ü.x": "x"}, "y"]
    row = dict(zip(found.column_names, found.result_rows[0], strict=True))
    assert row == {"p`k": 1, "c\\k'": "a", **{name: shown_values[place % len(shown_values)] for place, name in enumerate(HOSTILE)}}


def test_tables_follow_alterations(sink: CellSink) -> None:
    """Columns added, dropped and added again, fields of user types added and renamed; at once, or after a restart of the pipe."""
    known = CqlCatalog("ks").apply_all(
        "CREATE TYPE u (a int, b text); CREATE TABLE t (pk int, ck int, s int static, v int, w u, f frozen<u>, "
        "m map<int, frozen<u>>, PRIMARY KEY (pk, ck))"
    )
    (name,) = known.tables
    table = known.tables[name]
    sink.prepare([table])
    row: dict[str, Any] = {"pk": 1, "ck": 1, "v": 5, "w": (1, "x"), "f": (2, "y"), "m": [(1, (3, "z"))]}
    write(sink, log_block(table, [{"op": 2, "at": T, **row}, {"op": 1, "at": T, "pk": 1, "s": 1}]))
    steps = [
        ("ALTER TABLE t ADD x int", (1, 1, 1, {"a": 2, "b": "y"}, [(1, {"a": 3, "b": "z"})], 5, {"a": 1, "b": "x"}, None)),
        ("ALTER TABLE t DROP v", (1, 1, 1, {"a": 2, "b": "y"}, [(1, {"a": 3, "b": "z"})], {"a": 1, "b": "x"}, None)),
        ("ALTER TABLE t ADD v int", (1, 1, 1, {"a": 2, "b": "y"}, [(1, {"a": 3, "b": "z"})], None, {"a": 1, "b": "x"}, None)),
        ("ALTER TYPE u ADD c int", (1, 1, 1, {"a": 2, "b": "y", "c": None}, [(1, {"a": 3, "b": "z", "c": None})], None,
                                    {"a": 1, "b": "x", "c": None}, None)),
        ("ALTER TYPE u RENAME a TO aa", (1, 1, 1, {"aa": 2, "b": "y", "c": None}, [(1, {"aa": 3, "b": "z", "c": None})], None,
                                         {"aa": 1, "b": "x", "c": None}, None)),
        ("ALTER TABLE t DROP s", (1, 1, {"aa": 2, "b": "y", "c": None}, [(1, {"aa": 3, "b": "z", "c": None})], None,
                                  {"aa": 1, "b": "x", "c": None}, None)),
    ]  # fmt: skip
    for place, (statement, expected) in enumerate(steps):
        known = known.apply(statement)
        old, table = table, known.tables[name]
        if place % 2:
            sink.prepare([table])
        else:
            sink.alter(old, table)
            sink.alter(old, table)
        assert shown(sink, table) == [expected], statement
    write(sink, log_block(table, [{"op": 1, "at": T + 1, "pk": 1, "ck": 1, "w": (None, None, 7), "f": (8, None, 9), "v": 1}]))
    assert shown(sink, table, "f", "v", "w") == [({"aa": 8, "b": None, "c": 9}, 1, {"aa": 1, "b": "x", "c": 7})]
    with pytest.raises(DefiniteError, match=r"the primary key of ks\.t is another one"):
        sink.prepare([table_of("CREATE TABLE t (pk int, ck bigint, PRIMARY KEY (pk, ck))")])


def test_tables_of_the_user_are_unchanged(sink: CellSink) -> None:
    table, client = table_of("CREATE TABLE t (pk int PRIMARY KEY, v int)"), connect(sink.sink.target).client
    sink.prepare([table])
    sink.prepare([table])
    places = sink.locations(table)
    client.command(f"DROP VIEW {places.view}")
    client.command(f"CREATE TABLE {places.view} (x Int32) ENGINE = MergeTree ORDER BY x")
    with pytest.raises(DefiniteError, match=r"exists \(.*\) and was not created for") as raised:
        sink.prepare([table])
    assert raised.value.hint
    client.command(f"DROP TABLE {places.view}")
    with pytest.raises(DefiniteError, match=r"was not created for other\.t"):
        sink.prepare([replace(table, name=replace(table.name, database="other"))])
    with pytest.raises(DefiniteError, match="would both be written"):
        sink.prepare([table, replace(table, name=replace(table.name, database="other"))])


def test_moments_that_clickhouse_does_not_hold_halt(sink: CellSink) -> None:
    table = table_of("CREATE TABLE t (pk int PRIMARY KEY, d date, m timestamp, l list<timestamp>, f frozen<map<int, tuple<date, int>>>)")
    sink.prepare([table])
    days, millis = -(1 << 31), 1 << 60
    fine = {"d": Date(-700_000), "m": -60_000_000_000_000, "l": [(key(1), 0)], "f": [(1, (Date(5), 1))]}
    write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, **fine}]))
    for wrong in ({"d": Date(days)}, {"m": millis}, {"l": [(key(1), -millis)]}, {"f": [(1, (Date(days), 1))]}):
        (name,) = wrong
        with pytest.raises(DefiniteError, match=f"of column {name}, .* is not one that ClickHouse holds"):
            write(sink, log_block(table, [{"op": 2, "at": T, "pk": 2, **wrong}]))
    assert shown(sink, table) == [(1, -700_000, [(1, {"1": 5, "2": 1})], [0], -60_000_000_000_000)]


def test_a_type_grows_in_columns_with_colons_in_their_names(sink: CellSink) -> None:
    known = CqlCatalog("ks").apply_all(
        'CREATE TYPE u (a int); CREATE TABLE t (pk int PRIMARY KEY, "a:b" frozen<u>, "x:y" map<int, frozen<u>>, "z:" u)'
    )
    (name,) = known.tables
    table = known.tables[name]
    sink.prepare([table])
    write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, "a:b": (1,), "x:y": [(1, (2,))], "z:": (3,)}]))
    grown = known.apply("ALTER TYPE u ADD b int").tables[name]
    sink.alter(table, grown)
    assert shown(sink, grown) == [(1, {"a": 1, "b": None}, [(1, {"a": 2, "b": None})], {"a": 3, "b": None})]


NOTHING_BEHIND = [
    ("set<int>", [b""], "v"),
    ("set<timeuuid>", [b""], "v"),
    ("set<inet>", [b""], "v"),
    ("set<varint>", [b""], "v"),
    ("map<int, int>", [bytes(4), b""], "v"),
    ("map<int, boolean>", [bytes(4), b""], "v"),
    ("map<int, varint>", [bytes(4), b""], "v"),
    ("map<timeuuid, int>", [b"", bytes(4)], "v"),
    ("map<double, int>", [b""], "cdc$deleted_elements_v"),
    ("list<int>", [key(1).bytes, b""], "v"),
]


@pytest.mark.parametrize(("kind", "parts", "column"), NOTHING_BEHIND)
def test_an_empty_element_halts_and_is_never_a_zero(sink: CellSink, kind: str, parts: list[bytes], column: str) -> None:
    table = table_of(f"CREATE TABLE t (pk int PRIMARY KEY, v {kind})")
    sink.prepare([table])
    block = log_block(table, [{"op": 2, "at": T, "pk": 1}, {"op": 2, "at": T + 1, "pk": 2}])
    count = len(parts) // (1 if kind.startswith("set") or column != "v" else 2)
    raw = b"".join(number.to_bytes(4, "big") for number in [count]) + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    place = block.rows.schema.get_field_index(column)
    rows = block.rows.set_column(place, column, pa.array([None, raw], pa.binary()))
    with pytest.raises(DefiniteError, match="an empty value, for which ClickHouse has none") as raised:
        write(sink, replace(block, rows=as_read(rows)))
    assert f"cdc$time {timeuuid.make(T + 1, 0x8000000000000000)}" in raised.value.place
    assert shown(sink, table, "pk") == []


def test_an_empty_element_of_a_list_that_a_snapshot_saw_halts(sink: CellSink) -> None:
    table = table_of("CREATE TABLE t (pk int PRIMARY KEY, v list<int>)")
    sink.prepare([table])
    block = row_block(table, T, [{"pk": 7, "v": ([1], [T - 1], None)}])
    raw = pa.array([(1).to_bytes(4, "big") + bytes(4)], pa.binary())
    with pytest.raises(DefiniteError, match="an empty value, for which ClickHouse has none") as raised:
        write(sink, replace(block, rows=block.rows.set_column(block.rows.schema.get_field_index("v"), "v", raw)))
    assert raised.value.place == "table ks.t, pk = 0x00000007"


def test_a_view_does_not_depend_on_the_settings_of_the_session(sink: CellSink) -> None:
    table = table_of("CREATE TABLE t (pk int, ck text, s int static, v int, o time, PRIMARY KEY (pk, ck))")
    sink.prepare([table])
    write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, "ck": "a", "v": 5}, {"op": 1, "at": T, "pk": 2, "s": 9}]))
    client, query = connect(sink.sink.target).client, f"SELECT * FROM {sink.locations(table).view} ORDER BY pk"
    expected = client.query(query).result_rows
    assert [row[0] for row in expected] == [1, 2]
    for settings in (
        {"join_use_nulls": "1", "least_greatest_legacy_null_behavior": "1"},
        {"enable_time_time64_type": "0", "join_algorithm": "partial_merge"},
        {"prefer_column_name_to_alias": "1", "cast_keep_nullable": "1", "transform_null_in": "1", "group_by_use_nulls": "1"},
        {"readonly": "1"},
    ):
        assert client.query(query, settings=settings).result_rows == expected, settings


def test_a_view_may_be_longer_than_servers_take_by_themselves(sink: CellSink) -> None:
    names = [f"c{place}_{'x' * 1500}" for place in range(24)]
    table = table_of(f"CREATE TABLE t (pk int PRIMARY KEY, {', '.join(f'{name} int' for name in names)})")
    assert len(view_sql(CellStorage(table), "c", "p")) > 262_144
    sink.prepare([table])
    write(sink, log_block(table, [{"op": 2, "at": T, "pk": 1, names[5]: 7}]))
    assert shown(sink, table, "pk", names[5]) == [(1, 7)]


def test_a_field_that_its_type_has_not_is_not_passed_over(sink: CellSink) -> None:
    table = table_of("CREATE TYPE u (a int, b int); CREATE TABLE t (pk int PRIMARY KEY, w u)")
    sink.prepare([table])
    entries = [{"op": 2, "at": T, "pk": 1, "w": (1, 2)}, {"op": 1, "at": T + 1, "pk": 1, "cdc$deleted_elements_w": [0, 2]}]
    with pytest.raises(DefiniteError, match="its field 2 was deleted, and its type has 2") as raised:
        write(sink, log_block(table, entries))
    assert f"cdc$time {timeuuid.make(T + 1, 0x8000000000000000)}" in raised.value.place
    write(sink, log_block(table, [entries[0], {**entries[1], "cdc$deleted_elements_w": [0]}]))
    assert shown(sink, table) == [(1, {"a": None, "b": 2})]
