"""Replay on a real server: the log, written again in any order, gives the same data with the same write times."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.cli import main
from headrace.cql import timeuuid
from headrace.cql.blocks import LogBlock
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.cql.types import quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sinks.cql import cassandra_lists, execution
from headrace.sinks.cql.options import Dropped, Missing, ReplayOptions
from headrace.sources.scylla.snapshot.base_rows import RowQuery
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.reader import TokenChunk, read_chunk
from headrace.sources.scylla.snapshot.token_ranges import WHOLE
from testkit.generators.cql_blocks import all_write_times, log_block
from testkit.generators.cql_histories import literal, random_history
from testkit.pipelines.local_pipeline import without_spark
from testkit.pipelines.log_replay import LogReplay, shuffled
from testkit.servers.cassandra import GivenCluster, PrivateCassandra
from testkit.servers.logged_cluster import LoggedCluster

T = 1_700_000_000_000_000
Server = PrivateCassandra | GivenCluster


@pytest.fixture
def log_replay(cassandra: Server, cql: CqlSession, keyspace: str) -> LogReplay:
    """Two keyspaces, which are not dropped: dropping many tables takes longer than the test."""
    return LogReplay(cql, cassandra.url(scheme="cql"), f"{keyspace}_from", f"{keyspace}_to")


def table_of(log_replay: LogReplay, definition: str) -> CqlTable:
    (table,) = CqlCatalog(log_replay.source).apply_all(definition).tables.values()
    return table


def write(log_replay: LogReplay, table: CqlTable, *entries: dict[str, Any], written: int | None = None) -> None:
    log_replay.replay(table, [log_block(table, entries, written)])


def rows(log_replay: LogReplay, query: str) -> list[Any]:
    return [tuple(row) for row in log_replay.session.execute(query.format(log_replay.target))]


def test_replayed_histories_are_the_same(log_replay: LogReplay) -> None:
    """Random tables and statements, out of order, some twice, give the same rows, write times, TTLs, tombstones and markers."""
    for seed in range(8):
        log_replay.check(seed, 40)


def test_rows_of_a_snapshot_and_the_log_meet(log_replay: LogReplay) -> None:
    """Snapshot rows with their write times, before, between and after their log rows."""
    for seed in (1, 2, 5, 14):
        history = random_history(seed, 30, keyspace=log_replay.source)
        logged = log_replay.run(history)
        query = RowQuery(history.table, all_write_times(history.table))
        copied = list(read_chunk(log_replay.session, query, TokenChunk(history.table.name, WHOLE), ScyllaOptions(confidence=0)))
        log_replay.replay(history.table, copied)
        log_replay.compare(history.table, list_times=False)
        blocks = [*shuffled(logged, Random(seed)), *copied]
        Random(seed).shuffle(blocks)
        log_replay.replay(history.table, blocks)
        log_replay.compare(history.table, list_times=False)


@pytest.mark.slow(because="test_replayed_histories_are_the_same, test_rows_of_a_snapshot_and_the_log_meet, test_one_kill[ScyllaToCql]")
def test_replicate_through_the_log_of_a_cluster(
    cql: CqlSession, keyspace: str, cassandra: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements, their log, and the command give the same data in another keyspace, also after a stop and an ALTER."""
    histories = [random_history(seed, 25, keyspace=keyspace, start=_now()) for seed in (1, 3, 22)]
    log_replay = LogReplay(cql, cassandra.url(scheme="cql"), None, f"{keyspace}_to", start=_now())
    cluster = LoggedCluster(cql, keyspace, "\n".join(line for history in histories for line in history.definitions))
    without_spark(monkeypatch)
    sink = cassandra.url(log_replay.target, scheme="cql")
    command = ["replicate", cassandra.url(keyspace), sink, "--state", str(tmp_path / "state"), "--once", *cluster.settings]
    for history in histories:
        for statement in history.statements:
            cluster.execute(statement.text)
    assert main([*command, "--start-at", "oldest"]) == 0
    for history in histories:
        log_replay.compare(history.table)
    table = histories[0].table
    cluster.execute(f"ALTER TABLE {table.name} ADD later set<text>")
    key = {column.name: literal(Random(1), column.type) for column in (*table.partition_key, *table.clustering)}
    where = " AND ".join(f"{quoted(name)} = {value}" for name, value in key.items())
    cluster.execute(f"UPDATE {table.name} SET later = later + {{'x'}} WHERE {where}")
    cluster.execute(f"DELETE FROM {histories[1].table.name} WHERE {_partition(histories[1].table)}")
    assert main(command) == 0
    log_replay.compare(describe(cql, table.name))
    for history in histories[1:]:
        log_replay.provoke(history.table, Random(7), 25)

    # Another pipe: it copies the existing rows, then follows the log.
    copy = LogReplay(cql, cassandra.url(scheme="cql"), None, f"{keyspace}_copy", start=_now())
    cql.execute(f"INSERT INTO {table_name(table.name)} ({', '.join(map(quoted, key))}) VALUES ({', '.join(key.values())})")
    command[2], command[4] = cassandra.url(copy.target, scheme="cql"), str(tmp_path / "other")
    assert main(command) == 0
    for history in histories:
        copy.compare(describe(cql, history.table.name), list_times=False)


def test_interruption_at_any_write_and_replay(log_replay: LogReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists on Cassandra are written in several steps, with a crash after each."""
    history = random_history(2, 40, keyspace=log_replay.source)
    blocks = log_replay.run(history)
    joined = LogBlock(
        history.table,
        pa.Table.from_batches([block.rows for block in blocks]).combine_chunks().to_batches()[0],
        pa.concat_arrays([block.written for block in blocks]),
    )
    real, calls = execution.run_together, iter(range(1000))

    def interrupted(session: CqlSession, batches: Any, *more: Any) -> None:
        done = list(batches)
        crash = next(calls) in {0, 2, 4}
        real(session, done[: len(done) // 2] if crash else done, *more)
        if crash:
            raise KeyboardInterrupt

    for module in (execution, cassandra_lists):
        monkeypatch.setattr(module, "run_together", interrupted)
    for _ in range(5):
        with contextlib.suppress(KeyboardInterrupt):
            log_replay.replay(history.table, [joined])
    log_replay.compare(history.table)


def test_what_has_expired_hides_what_is_older(log_replay: LogReplay) -> None:
    table = table_of(log_replay, "CREATE TABLE t (pk int PRIMARY KEY, a int, m map<int, int>)")
    now = int(time.time())
    old = {"op": 2, "at": T, "pk": 1, "a": 1, "m": [(1, 1)], "cdc$deleted_m": True}
    write(log_replay, table, {"op": 1, "at": T + 5, "pk": 1, "a": 2, "m": [(1, 2)], "ttl": 60}, written=now - 100)
    write(log_replay, table, {"op": 1, "at": T + 5, "pk": 2, "a": 2, "ttl": 1000}, written=now - 100)
    write(log_replay, table, old, {**old, "pk": 2})
    time.sleep(1.5)
    assert rows(log_replay, "SELECT a, m FROM {}.t WHERE pk = 1") == [(None, None)]
    [(value, left, written)] = rows(log_replay, "SELECT a, TTL(a), WRITETIME(a) FROM {}.t WHERE pk = 2")
    assert (value, written) == (2, T + 5)
    assert 880 <= left <= 900


def test_a_tables_default_ttl_is_not_taken(log_replay: LogReplay) -> None:
    table = table_of(log_replay, "CREATE TABLE t (pk int PRIMARY KEY, a int)")
    log_replay.session.execute(f"CREATE TABLE {log_replay.target}.t (pk int PRIMARY KEY, a int, own text) WITH default_time_to_live = 500")
    write(log_replay, table, {"op": 2, "at": T, "pk": 1, "a": 1}, {"op": 1, "at": T, "pk": 2, "a": 1})
    assert rows(log_replay, "SELECT TTL(a) FROM {}.t") == [(None,), (None,)]


def test_what_cannot_be_replayed_is_named_and_nothing_is_written(log_replay: LogReplay) -> None:
    table = table_of(log_replay, "CREATE TYPE u (a int); CREATE TABLE t (pk int, ck int, v int, w u, PRIMARY KEY (pk, ck))")
    fine = {"op": 2, "at": T, "pk": 1, "ck": 1, "v": 1}
    for entry, message in (
        ({"op": 42, "at": T, "pk": 7, "ck": 1}, "operation 42 is not known"),
        ({"op": 5, "at": T, "pk": 7, "ck": 1}, "one end only"),
        ({"op": 3, "at": T, "pk": 7}, "column ck of the key is null"),
        ({"op": 1, "at": T, "pk": 7, "ck": 1, "cdc$deleted_elements_w": [4]}, "field 4 of w was deleted, and its type has 1"),
    ):
        with pytest.raises(DefiniteError, match=message) as found:
            write(log_replay, table, fine, entry)
        assert f"table {log_replay.source}.t" in found.value.place
        assert "pk = 7" in found.value.place
    assert rows(log_replay, "SELECT * FROM {}.t") == []


def test_targets_are_made_checked_and_follow(log_replay: LogReplay) -> None:
    session, sink = log_replay.session, log_replay.sink
    inner, outer = "CREATE TYPE u (a int); CREATE TYPE w (b frozen<u>);", "PRIMARY KEY (pk, ck)) WITH CLUSTERING ORDER BY (ck DESC)"
    old = table_of(log_replay, f"{inner} CREATE TABLE t (pk int, ck int, s w static, l list<int>, gone int, {outer}")
    sink.prepare([old])
    write(log_replay, old, {"op": 2, "at": T, "pk": 1, "ck": 1, "gone": 5, "l": [(_key(1), 4)], "cdc$deleted_l": True})
    there = describe(session, TableName(log_replay.target, "t"))
    assert [(c.name, str(c.type), c.descending) for c in there.columns] == [(c.name, str(c.type), c.descending) for c in old.columns]
    more = inner.replace("(a int)", "(a int, more text)").replace("frozen<u>", "frozen<u>, c set<int>")
    new = table_of(
        log_replay, f"{more} CREATE TABLE t (pk int, key int, s w static, l list<int>, k list<text>, {outer.replace('ck', 'key')}"
    )
    for _ in range(2):
        sink.alter(old, new)
        sink.prepare([new])
    there = describe(session, TableName(log_replay.target, "t"))
    assert [(c.name, str(c.type)) for c in there.columns] == [(c.name, str(c.type)) for c in new.columns]
    write(log_replay, new, {"op": 1, "at": T + 1, "pk": 1, "key": 1, "l": [(_key(2), 5)], "k": [(_key(2), "x")]})
    assert rows(log_replay, "SELECT pk, key, l, k FROM {}.t") == [(1, 1, [4, 5], ["x"])]

    for definition, message in (
        (f"{more} CREATE TABLE t (pk int, key int, l list<text>, {outer.replace('ck', 'key')}", "target's column is l list<int>"),
        ("CREATE TABLE t (pk int, key int, l list<int>, PRIMARY KEY (pk, key))", "target table's key is"),
        ("CREATE TYPE u (other int); CREATE TABLE t (pk int PRIMARY KEY, v u)", "type .*u has a int where the source's has other int"),
    ):
        with pytest.raises(DefiniteError, match=message):
            sink.prepare([table_of(log_replay, definition)])


def test_nothing_is_made_or_dropped_by_choice(log_replay: LogReplay) -> None:
    table = table_of(log_replay, "CREATE TABLE t (pk int PRIMARY KEY, v int)")
    careful = replace(log_replay.sink, choices=ReplayOptions(missing=Missing.HALT, dropped=Dropped.KEEP))
    with pytest.raises(DefiniteError, match=r"there is no table .*t .*\n.*replay.missing"):
        careful.prepare([table])
    log_replay.sink.prepare([table])
    careful.prepare([table])
    careful.alter(table, table_of(log_replay, "CREATE TABLE t (pk int PRIMARY KEY)"))
    assert [column.name for column in describe(log_replay.session, TableName(log_replay.target, "t")).columns] == ["pk", "v"]
    with pytest.raises(DefiniteError, match="has no column w"):
        careful.alter(table, table_of(log_replay, "CREATE TABLE t (pk int PRIMARY KEY, v int, w int)"))


def test_the_error_of_a_missing_keyspace_shows_how_to_create_it(log_replay: LogReplay) -> None:
    log_replay.session.execute(f"DROP KEYSPACE {log_replay.target}")
    with pytest.raises(DefiniteError, match="there is no keyspace") as found:
        log_replay.sink.prepare([table_of(log_replay, "CREATE TABLE t (pk int PRIMARY KEY)")])
    assert "'datacenter1': 3" in found.value.hint


def _now() -> int:
    return time.time_ns() // 1000


def _partition(table: CqlTable) -> str:
    return " AND ".join(f"{quoted(column.name)} = {literal(Random(2), column.type)}" for column in table.partition_key)


def _key(number: int) -> UUID:
    return timeuuid.make(T + number, 0x8000000000000001)


def test_two_tasks_that_write_one_list_at_the_same_time_write_it_once(log_replay: LogReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the read and the write of a list another task (the snapshot) does the same."""
    table = table_of(log_replay, "CREATE TABLE t (pk int PRIMARY KEY, v list<int>)")
    entry = {"op": 1, "at": T, "pk": 1, "v": [(timeuuid.make(T + n, 1), n) for n in range(3)]}
    once, others = cassandra_lists.run_together, iter([True])

    def meanwhile(*arguments: Any) -> None:
        if next(others, False):
            write(log_replay, table, entry)
        once(*arguments)

    monkeypatch.setattr(cassandra_lists, "run_together", meanwhile)
    write(log_replay, table, entry)
    assert rows(log_replay, "SELECT v FROM {}.t") == [([0, 1, 2],)]
