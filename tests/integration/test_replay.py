"""Replay on a real server: what the log says, written again, is the same data with the same write times; whatever the order."""

from __future__ import annotations

import time
from random import Random
from typing import Any
from uuid import UUID

import pytest

from headrace.cql import timeuuid
from headrace.cql.ddl import Definitions
from headrace.cql.describing import describe
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.base_rows import RowQuery, Telling
from headrace.sources.scylla.choices import ScyllaChoices
from headrace.sources.scylla.snapshot import Chunk, read_chunk
from headrace.sources.scylla.token_ranges import WHOLE
from testkit.cassandra import PrivateCassandra
from testkit.cql_blocks import log_block
from testkit.cql_histories import random_history
from testkit.replaying import Replaying, shuffled

T = 1_700_000_000_000_000


@pytest.fixture
def replaying(cassandra: PrivateCassandra, cql: CqlSession, keyspace: str) -> Replaying:
    """Two keyspaces, which are left behind: dropping many tables takes longer than all else."""
    return Replaying(cql, cassandra.url(scheme="cql"), f"{keyspace}_from", f"{keyspace}_to")


def table_of(replaying: Replaying, definition: str) -> CqlTable:
    (table,) = Definitions(replaying.source).apply_all(definition).tables.values()
    return table


def write(replaying: Replaying, table: CqlTable, *entries: dict[str, Any], written: int | None = None) -> None:
    replaying.replay(table, [log_block(table, entries, written)])


def rows(replaying: Replaying, query: str) -> list[Any]:
    return [tuple(row) for row in replaying.session.execute(query.format(replaying.target))]


def test_replayed_histories_are_the_same(replaying: Replaying) -> None:
    """Random tables and statements: out of order, some twice; the same rows, write times, TTLs, tombstones and markers."""
    for seed in range(8):
        replaying.check(seed, 40)


def test_rows_of_a_snapshot_and_the_log_meet(replaying: Replaying) -> None:
    """Rows read with their times, before, between and after what the log says of them."""
    for seed in (1, 2, 5, 14):
        history = random_history(seed, 30, keyspace=replaying.source)
        logged = replaying.run(history)
        query = RowQuery(history.table, Telling.all_of(history.table))
        copied = list(read_chunk(replaying.session, query, Chunk(history.table.name, WHOLE), ScyllaChoices(confidence=0)))
        replaying.replay(history.table, copied)
        replaying.compare(history.table, list_times=False)
        blocks = [*shuffled(logged, Random(seed)), *copied]
        Random(seed).shuffle(blocks)
        replaying.replay(history.table, blocks)
        replaying.compare(history.table, list_times=False)


def test_what_has_expired_hides_what_is_older(replaying: Replaying) -> None:
    table = table_of(replaying, "CREATE TABLE t (pk int PRIMARY KEY, a int, m map<int, int>)")
    now = int(time.time())
    old = {"op": 2, "at": T, "pk": 1, "a": 1, "m": [(1, 1)], "cdc$deleted_m": True}
    write(replaying, table, {"op": 1, "at": T + 5, "pk": 1, "a": 2, "m": [(1, 2)], "ttl": 60}, written=now - 100)
    write(replaying, table, {"op": 1, "at": T + 5, "pk": 2, "a": 2, "ttl": 1000}, written=now - 100)
    write(replaying, table, old, {**old, "pk": 2})
    time.sleep(1.5)
    assert rows(replaying, "SELECT a, m FROM {}.t WHERE pk = 1") == [(None, None)]
    [(value, left, written)] = rows(replaying, "SELECT a, TTL(a), WRITETIME(a) FROM {}.t WHERE pk = 2")
    assert (value, written) == (2, T + 5)
    assert 880 <= left <= 900


def test_a_tables_default_ttl_is_not_taken(replaying: Replaying) -> None:
    table = table_of(replaying, "CREATE TABLE t (pk int PRIMARY KEY, a int)")
    replaying.session.execute(f"CREATE TABLE {replaying.target}.t (pk int PRIMARY KEY, a int, own text) WITH default_time_to_live = 500")
    write(replaying, table, {"op": 2, "at": T, "pk": 1, "a": 1}, {"op": 1, "at": T, "pk": 2, "a": 1})
    assert rows(replaying, "SELECT TTL(a) FROM {}.t") == [(None,), (None,)]


def test_what_cannot_be_replayed_is_named_and_nothing_is_written(replaying: Replaying) -> None:
    table = table_of(replaying, "CREATE TYPE u (a int); CREATE TABLE t (pk int, ck int, v int, w u, PRIMARY KEY (pk, ck))")
    fine = {"op": 2, "at": T, "pk": 1, "ck": 1, "v": 1}
    for entry, message in (
        ({"op": 1, "at": T, "pk": 7, "ck": 1}, "not what"),
        ({"op": 42, "at": T, "pk": 7, "ck": 1}, "operation 42 is not known"),
        ({"op": 5, "at": T, "pk": 7, "ck": 1}, "one end only"),
        ({"op": 3, "at": T, "pk": 7}, "column ck of the key is null"),
        ({"op": 1, "at": T, "pk": 7, "ck": 1, "cdc$deleted_elements_w": [4]}, "field 4 of w was deleted, and its type has 1"),
    ):
        with pytest.raises(DefiniteError, match=message) as found:
            write(replaying, table, fine, entry)
        assert f"table {replaying.source}.t" in found.value.place
        assert "pk = 7" in found.value.place
    assert rows(replaying, "SELECT * FROM {}.t") == []


def test_targets_are_made_checked_and_follow(replaying: Replaying) -> None:
    session, sink = replaying.session, replaying.sink
    inner, outer = "CREATE TYPE u (a int); CREATE TYPE w (b frozen<u>);", "PRIMARY KEY (pk, ck)) WITH CLUSTERING ORDER BY (ck DESC)"
    old = table_of(replaying, f"{inner} CREATE TABLE t (pk int, ck int, s w static, l list<int>, gone int, {outer}")
    sink.prepare([old])
    write(replaying, old, {"op": 2, "at": T, "pk": 1, "ck": 1, "gone": 5, "l": [(_key(1), 4)], "cdc$deleted_l": True})
    there = describe(session, TableName(replaying.target, "t"))
    assert [(c.name, str(c.type), c.descending) for c in there.columns] == [(c.name, str(c.type), c.descending) for c in old.columns]
    more = inner.replace("(a int)", "(a int, more text)").replace("frozen<u>", "frozen<u>, c set<int>")
    new = table_of(
        replaying, f"{more} CREATE TABLE t (pk int, key int, s w static, l list<int>, k list<text>, {outer.replace('ck', 'key')}"
    )
    for _ in range(2):
        sink.alter(old, new)
        sink.prepare([new])
    there = describe(session, TableName(replaying.target, "t"))
    assert [(c.name, str(c.type)) for c in there.columns] == [(c.name, str(c.type)) for c in new.columns]
    write(replaying, new, {"op": 1, "at": T + 1, "pk": 1, "key": 1, "l": [(_key(2), 5)], "k": [(_key(2), "x")]})
    assert rows(replaying, "SELECT pk, key, l, k FROM {}.t") == [(1, 1, [4, 5], ["x"])]

    for definition, message in (
        (f"{more} CREATE TABLE t (pk int, key int, l list<text>, {outer.replace('ck', 'key')}", "target's column is l list<int>"),
        ("CREATE TABLE t (pk int, key int, l list<int>, PRIMARY KEY (pk, key))", "target table's key is"),
        ("CREATE TYPE u (other int); CREATE TABLE t (pk int PRIMARY KEY, v u)", "type .*u has a int where the source's has other int"),
    ):
        with pytest.raises(DefiniteError, match=message):
            sink.prepare([table_of(replaying, definition)])


def test_a_missing_keyspace_is_told_how_to_make(replaying: Replaying) -> None:
    replaying.session.execute(f"DROP KEYSPACE {replaying.target}")
    with pytest.raises(DefiniteError, match="there is no keyspace") as found:
        replaying.sink.prepare([table_of(replaying, "CREATE TABLE t (pk int PRIMARY KEY)")])
    assert "'datacenter1': 3" in found.value.hint


def _key(number: int) -> UUID:
    return timeuuid.make(T + number, 0x8000000000000001)
