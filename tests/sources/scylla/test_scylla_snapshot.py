"""Rows of base tables by token ranges: each once, with the server's write times, and rows that are read again."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa

from headrace.cql.blocks import RowBlock
from headrace.cql.decode.arrow_arrays import to_arrow
from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.cql.types import quoted
from headrace.model.schema import TableName
from headrace.sources.scylla.snapshot.base_rows import RowQuery
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.reader import ChunkResult, TokenChunk, read_chunk, server_time
from headrace.sources.scylla.snapshot.row_recheck import RowRechecker
from headrace.sources.scylla.snapshot.table_probe import probe_write_times, read_ring
from headrace.sources.scylla.snapshot.token_ranges import WHOLE, Ring, TokenRange, cut, left_over
from testkit.generators.cql_blocks import all_write_times, atomic_write_times

CHOICES = ScyllaOptions(confidence=0.0, page_rows=100)


def _table(cql: CqlSession, keyspace: str, columns: str, key: str) -> CqlTable:
    cql.execute(f"CREATE TYPE IF NOT EXISTS {keyspace}.ut (a int, b text, c int)")
    cql.execute(f"CREATE TABLE {keyspace}.t ({columns}, PRIMARY KEY {key})")
    return describe(cql, TableName(keyspace, "t"))


def _read(cql: CqlSession, query: RowQuery, chunk: TokenChunk, choices: ScyllaOptions = CHOICES) -> tuple[list[RowBlock], ChunkResult]:
    blocks, chunks = [], read_chunk(cql, query, chunk, choices)
    while True:
        try:
            blocks.append(next(chunks))
        except StopIteration as end:
            return blocks, end.value


def _decoded(block: RowBlock) -> list[dict[str, Any]]:
    columns = {c.name: to_arrow(c.type, block.rows.column(c.name), c.name).to_pylist() for c in block.table.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _present(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    return {name: batch.column(name)[row].as_py() for name in batch.schema.names}


def test_every_row_comes_once_from_chunks_of_any_size(cql: CqlSession, keyspace: str) -> None:
    table = _table(cql, keyspace, "p int, c int, v text", "(p, c)")
    for p in range(1, 40):
        inserts = "".join(f"INSERT INTO {keyspace}.t (p, c, v) VALUES ({p}, {c}, '{p}.{c}');" for c in range(p))
        cql.execute(f"BEGIN UNLOGGED BATCH {inserts} APPLY BATCH")
    query = RowQuery(table, probe_write_times(cql, table))
    ring = read_ring(cql, table.name)
    assert len(ring.tokens) == 4
    found: list[tuple[int, int, str]] = []
    done: list[TokenRange] = []
    parts = cut([WHOLE], ring, 6)
    rounds = 0
    while parts:
        rounds += 1
        for part in parts:
            blocks, end = _read(cql, query, TokenChunk(table.name, part, 50), replace(CHOICES, page_rows=7))
            found += [tuple(row.values()) for block in blocks for row in _decoded(block)]
            assert end.rows == sum(block.changes for block in blocks)
            assert end.read.start == part.start
            done.append(end.read)
        parts = left_over(done)
    # Chunks that were too large ended early, and the rest was read after them.
    assert rounds > 2
    assert sorted(set(found)) == sorted((p, c, f"{p}.{c}") for p in range(40) for c in range(p))


def test_cells_have_the_times_and_expiries_of_the_server(cql: CqlSession, keyspace: str) -> None:
    columns = (
        "p int, c int, s int static, sl list<int> static, v int, m map<int, text>, st set<text>, l list<text>, u ut, f frozen<list<int>>"
    )
    table = _table(cql, keyspace, columns, "(p, c)")
    t = f"{keyspace}.t"
    now = server_time(cql)
    base = now - 50_000_000
    cql.execute(
        f"INSERT INTO {t} (p, c, v, m, st, l, u, f) VALUES (1, 1, 5, {{1: 'a', 2: 'b'}}, {{'x', 'y'}}, ['i', 'j'], {{a: 1, c: 3}}, [1, 2]) "
        f"USING TIMESTAMP {base}"
    )
    cql.execute(
        f"UPDATE {t} USING TIMESTAMP {base + 10} AND TTL 5000 SET v = 6, m[3] = 'c', l = l + ['k'], u.b = 'q' WHERE p = 1 AND c = 1"
    )
    cql.execute(f"INSERT INTO {t} (p, c) VALUES (1, 2) USING TIMESTAMP {base}")
    cql.execute(f"UPDATE {t} USING TIMESTAMP {base} SET s = 9, sl = [7, 8] WHERE p = 1")
    cql.execute(f"UPDATE {t} USING TIMESTAMP {base} SET s = 1 WHERE p = 2")
    readable = probe_write_times(cql, table)
    assert readable == all_write_times(table)
    [block], _ = _read(cql, RowQuery(table, readable), TokenChunk(table.name, WHOLE))
    rows = {(row["p"], row["c"]): (place, row) for place, row in enumerate(_decoded(block))}
    assert set(rows) == {(1, 1), (1, 2), (1, None), (2, None)}
    place, row = rows[1, 1]
    assert row["l"] == ["i", "j", "k"]
    assert row["s"] is None
    times, expiries = _present(block.times, place), _present(block.expiries, place)
    assert times == {
        "s": None,
        "sl": None,
        "v": [base + 10],
        "m": [base, base, base + 10],
        "st": [base, base],
        "l": [base, base, base + 10],
        "u": [base, base + 10, base],
        "f": [base],
    }
    expiry = expiries["v"][0]
    assert abs(expiry - now // 1_000_000 - 5000) <= 3
    assert expiries["m"] == [None, None, expiry]
    assert expiries["l"] == [None, None, expiry]
    assert expiries["u"] == [None, expiry, None]
    assert expiries["f"] in ([None], None)
    place, row = rows[1, None]
    assert (row["s"], row["sl"], row["v"]) == (9, [7, 8], None)
    assert _present(block.times, place) | {"sl": 0} == dict.fromkeys(times) | {"s": [base], "sl": 0}
    assert rows[2, None][1]["s"] == 1
    place, row = rows[1, 2]
    assert all(row[name] is None for name in ("v", "m", "l", "u", "s"))


def test_lists_hold_what_was_written_up_to_the_moment_that_counts(cql: CqlSession, keyspace: str) -> None:
    table = _table(cql, keyspace, "p int, l list<text>, v int", "(p)")
    t, now = f"{keyspace}.t", server_time(cql)
    early, late = now - 3600_000_000, now + 3600_000_000
    for key in (1, 2):
        cql.execute(f"UPDATE {t} USING TIMESTAMP {early} SET l = ['a', 'bb', ''] WHERE p = {key}")
    cql.execute(f"UPDATE {t} USING TIMESTAMP {late} SET l = ['first'] + l WHERE p = 1")
    cql.execute(f"UPDATE {t} USING TIMESTAMP {late} SET l = l + ['last', 'x'] WHERE p = 1")
    cql.execute(f"UPDATE {t} USING TIMESTAMP {late} SET l = l + ['later'] WHERE p = 3")
    cql.execute(f"UPDATE {t} USING TIMESTAMP {late} SET l = l + ['later'], v = 1 WHERE p = 4")
    cql.execute(f"INSERT INTO {t} (p) VALUES (5) USING TIMESTAMP {early}")
    [block], _ = _read(cql, RowQuery(table, probe_write_times(cql, table)), TokenChunk(table.name, WHOLE))
    rows = {row["p"]: (row["l"], _present(block.times, place)["l"]) for place, row in enumerate(_decoded(block))}
    # A row with only later elements may have no marker.
    assert rows == {
        1: (["a", "bb", ""], [early] * 3),
        2: (["a", "bb", ""], [early] * 3),
        4: (None, None),
        5: (None, None),
    }
    # A server without write times of elements refuses the query.
    unknown = replace(table, columns=(*table.columns, replace(table.column("l"), name="other")))
    assert probe_write_times(cql, unknown) == all_write_times(table)
    # The same from a server without write times of elements: all elements get the time of the read.
    [block], _ = _read(cql, RowQuery(table, atomic_write_times(table)), TokenChunk(table.name, WHOLE))
    rows = {row["p"]: (row["l"], _present(block.times, place)["l"]) for place, row in enumerate(_decoded(block))}
    assert rows[1] == (["first", "a", "bb", "", "last", "x"], None)
    assert rows[3] == (["later"], None)


def test_rows_are_read_again_by_their_keys(cql: CqlSession, keyspace: str) -> None:
    table = _table(cql, keyspace, "p text, q int, c timeuuid, s list<int> static, v int, l list<int>", "((p, q), c)")
    t = f"{keyspace}.t"
    keys = []
    for number in range(4):
        [(made,)] = cql.execute("SELECT now() FROM system.local")
        keys.append({"p": b"k", "q": number.to_bytes(4, "big"), "c": made.bytes})
    cql.driver.execute(f"INSERT INTO {t} (p, q, c, v, l) VALUES ('k', 0, %s, 1, [1, 2])", (_uuid(keys[0]),))
    cql.driver.execute(f"INSERT INTO {t} (p, q, c) VALUES ('k', 1, %s)", (_uuid(keys[1]),))
    cql.driver.execute(f"UPDATE {t} SET s = [5] WHERE p = 'k' AND q = 1")
    statics = [{**keys[1], "c": None}, {**keys[3], "c": None}]
    asked = pa.RecordBatch.from_pylist([*keys, *statics], schema=pa.schema([(name, pa.binary()) for name in ("p", "q", "c")]))
    time.sleep(0.01)
    rows, static = list(RowRechecker(cql, CHOICES).read(table, probe_write_times(cql, table), asked))
    assert rows.again
    found = {(row["q"], row["c"] is None): row for row in _decoded(rows)}
    assert set(found) == {(0, False), (1, False), (1, True)}
    assert (found[0, False]["v"], found[0, False]["l"]) == (1, [1, 2])
    assert rows.gone is not None
    assert rows.gone.to_pylist() == [keys[2], keys[3]]
    # Missing static columns are null, not deleted.
    assert static.gone is None
    assert [(row["q"], row["c"], row["s"]) for row in _decoded(static)] == [(1, None, [5]), (3, None, None)]


def test_names_are_quoted_and_every_kind_of_key_is_read(cql: CqlSession, keyspace: str) -> None:
    cql.execute(
        f'CREATE TABLE {keyspace}."OddName" ("Pk" inet, "select" varint, "a$" decimal, v int, PRIMARY KEY (("Pk", "select"), "a$"))'
    )
    table = describe(cql, TableName(keyspace, "OddName"))
    cql.execute(
        f'INSERT INTO {keyspace}.{quoted(table.name.table)} ("Pk", "select", "a$", v) VALUES (\'::1\', -12345678901234567890123, 1.50, 7)'
    )
    query = RowQuery(table, probe_write_times(cql, table))
    [block], _ = _read(cql, query, TokenChunk(table.name, WHOLE))
    assert _decoded(block) == [{"Pk": "::1", "select": "-12345678901234567890123", "a$": "1.50", "v": 7}]
    [again] = RowRechecker(cql, CHOICES).read(table, probe_write_times(cql, table), block.rows.select(["Pk", "select", "a$"]))
    assert _decoded(again) == _decoded(block)


def test_the_size_of_a_table_is_what_nodes_estimate(cql: CqlSession) -> None:
    ring = read_ring(cql, TableName("system", "local"))
    assert ring == Ring(ring.tokens)
    assert read_ring(cql, TableName("no", "table")).bytes == 0


def _uuid(key: dict[str, Any]) -> UUID:
    return UUID(bytes=key["c"])
