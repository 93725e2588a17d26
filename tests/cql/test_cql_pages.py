"""Pages as columns of serialised values, compared with the driver's decoder."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid1

import pyarrow as pa
import pytest
from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.util import Duration

from headrace.cql.bounded_connection import RawPage
from headrace.cql.decode import pages
from headrace.cql.decode.pages import as_batch, read_many, read_pages, read_rows
from headrace.cql.session import CqlSession
from headrace.errors import DefiniteError, TransientError
from testkit.servers.cassandra import GivenCluster, PrivateCassandra

VALUES: dict[str, list[Any]] = {
    "ascii": ["plain", ""],
    "bigint": [-(1 << 63), 0],
    "blob": [b"\0\xff", b"", b"x" * (1 << 20)],
    "boolean": [True, False],
    "date": [dt.date(1969, 12, 31)],
    "decimal": [Decimal("-1.50"), Decimal(10**40)],
    "double": [1.5, float("-inf")],
    "duration": [Duration(1, -0, 3), Duration(-1, -2, -3)],
    "float": [0.25],
    "inet": ["127.0.0.1", "::1"],
    "int": [-1, 7],
    "smallint": [-2],
    "text": ["ä€𝄞", ""],
    "time": [dt.time(23, 59, 59, 999999)],
    "timestamp": [dt.datetime(2026, 1, 2, 3, 4, 5, 6000)],
    "timeuuid": [uuid1()],
    "tinyint": [-128],
    "uuid": [UUID(int=5)],
    "varint": [-(1 << 200), 127],
    "frozen<list<int>>": [[1, 2], []],
    "list<text>": [["a", "b", ""]],
    "set<int>": [{3, 1, 2}],
    "map<text, frozen<set<int>>>": [{"a": {1}, "b": set()}],
    "tuple<int, text>": [(1, None)],
    "vector<float, 3>": [[1.0, 2.0, 3.0]],
    "frozen<ut>": [(1, None)],
    "ut": [(None, "b")],
}


@pytest.fixture
def plain(cassandra: PrivateCassandra | GivenCluster) -> Iterator[Any]:
    """A plain session of the driver."""
    [(host, port), *_] = cassandra.address().hosts
    cluster = Cluster([host], port=port, protocol_version=4)
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


def test_every_type_as_the_driver_reads_it(cql: CqlSession, keyspace: str, plain: Any) -> None:
    cql.execute(f"CREATE TYPE {keyspace}.ut (a int, b text)")
    columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(VALUES))
    cql.execute(
        f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, {columns})".replace("<ut>", f"<{keyspace}.ut>").replace(" ut", f" {keyspace}.ut")
    )
    key = 0
    for at, values in enumerate(VALUES.values()):
        insert = cql.prepare(f"INSERT INTO {keyspace}.t (k, c{at}) VALUES (?, ?)")
        for value in values:
            cql.driver.execute(insert, (key, value))
            key += 1
    cql.execute(f"INSERT INTO {keyspace}.t (k, c2, c6) VALUES (%s, %s, null)", (key, b""))

    query = f"SELECT * FROM {keyspace}.t"
    expected = plain.execute(query)
    kinds = dict(zip(expected.column_names, expected.column_types, strict=True))
    from_driver = [dict(zip(expected.column_names, row, strict=True)) for row in expected]
    found = pa.Table.from_batches(list(read_rows(cql, query, fetch_size=3)))
    assert found.column_names == list(kinds)
    assert {field.type for field in found.schema} == {pa.binary()}
    decoded = [{name: kinds[name].from_binary(row[name], 4) for name in kinds} for row in found.to_pylist()]
    assert repr(decoded) == repr(from_driver)
    assert len(from_driver) == key + 1
    found.validate(full=True)
    # The bytes themselves, by the server's own function.
    text = {row.k: row.raw for row in plain.execute(f"SELECT k, textAsBlob(c12) AS raw FROM {keyspace}.t")}
    assert {row["k"]: row["c12"] for row in found.to_pylist()} == {key.to_bytes(4, "big"): raw for key, raw in text.items()}


def test_many_queries_at_once_each_in_its_order(cql: CqlSession, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.t (k int, c int, v text, PRIMARY KEY (k, c))")
    insert = cql.prepare(f"INSERT INTO {keyspace}.t (k, c, v) VALUES (?, ?, ?)")
    rows = [(k, c, None if c % 7 == 0 else f"{k}-{c}" * (c % 3)) for k in range(40) for c in range(k * 2)]
    execute_concurrent_with_args(cql.driver, insert, rows, concurrency=64)
    query = f"SELECT k, c, v FROM {keyspace}.t WHERE k = ?"
    requests = [(query, (k,)) for k in range(40)]

    batches = list(read_many(cql, requests, concurrency=7, fetch_size=10))
    assert len(batches) == 1
    found = [(int.from_bytes(r["k"], "big"), int.from_bytes(r["c"], "big"), r["v"]) for r in batches[0].to_pylist()]
    assert sorted(found) == [(k, c, None if v is None else v.encode()) for k, c, v in rows]
    for key in range(40):
        assert [c for k, c, _ in found if k == key] == list(range(key * 2))

    ended = [page.request for page in read_pages(cql, requests, concurrency=5, fetch_size=10) if page.last]
    assert sorted(ended) == list(range(40))
    assert list(read_many(cql, [])) == []
    assert list(read_rows(cql, query, (99,))) == []
    # The next page is prefetched; closing early leaves no request.
    assert next(read_rows(cql, query, (39,), fetch_size=5)).num_rows == 5


def test_batches_are_cut_by_rows_and_by_bytes(cql: CqlSession, keyspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v blob)")
    for key in range(20):
        cql.execute(f"INSERT INTO {keyspace}.t (k, v) VALUES (%s, %s)", (key, b"x" * 100_000))
    monkeypatch.setattr(pages, "BATCH_BYTES", 500_000)
    sizes = [batch.num_rows for batch in read_many(cql, [(f"SELECT * FROM {keyspace}.t", ())], fetch_size=1)]
    assert sizes == [5, 5, 5, 5]
    monkeypatch.setattr(pages, "BATCH_ROWS", 3)
    assert [batch.num_rows for batch in read_many(cql, [(f"SELECT * FROM {keyspace}.t", ())], fetch_size=1)] == [3] * 6 + [2]


def _page(body: bytes, count: int, names: tuple[str, ...] = ("a", "b")) -> RawPage:
    return RawPage(names, body, 2, count, ())


def test_damaged_pages_are_refused_with_their_row() -> None:
    whole = b"??" + b"".join(len(value).to_bytes(4, "big") + value for value in (b"x", b"", b"yy", b"z" * 40)) + b"\xff" * 4 + b"\0\0\0\1!"
    assert as_batch([_page(whole, 3)]).to_pydict() == {"a": [b"x", b"yy", None], "b": [b"", b"z" * 40, b"!"]}
    two = as_batch([_page(whole, 3), _page(b"??", 0), _page(whole, 3)])
    assert two.column("b").to_pylist() == [b"", b"z" * 40, b"!"] * 2
    for cut in range(2, len(whole)):
        with pytest.raises(DefiniteError, match="cannot be read"):
            as_batch([_page(whole[:cut], 3)])
    with pytest.raises(DefiniteError, match="row 2 of an answer of 3 rows"):
        as_batch([_page(whole[:-9] + b"\xff\xff\xff\xfe" + b"\0\0\0\1!", 3)], "somewhere")
    for count in (2, 4, -1):
        with pytest.raises(DefiniteError, match="cannot be read"):
            as_batch([_page(whole, count)])
    with pytest.raises(TransientError, match="different columns"):
        as_batch([_page(whole, 3), _page(whole, 3, ("a", "c"))])
