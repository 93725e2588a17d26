"""The server's description of its tables against the statements that created them; the copies of ScyllaDB's tables of generations."""

from __future__ import annotations

import struct
import time

import pytest

from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.language.ddl_printer import create_log_table
from headrace.cql.options import CdcOptions
from headrace.cql.schema_reader import (
    describe,
    describe_all,
    describe_options,
    describe_types,
    list_keyspaces,
    list_tables,
    read_extension,
    schema_version,
)
from headrace.cql.session import CqlSession
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.generations import ServerCatalog
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from testkit.servers.scylla_tables import (
    add_generation,
    add_tablet_generation,
    close_generation,
    create_tables,
    forget_generation,
    make_generation,
    token_of,
)


def test_definitions_are_those_of_the_statements(cql: CqlSession, keyspace: str) -> None:
    statements = f"""
        CREATE TYPE {keyspace}.zip (code text, "Plus" int);
        CREATE TYPE {keyspace}."Address" (street text, zip frozen<zip>, tags frozen<set<text>>);
        CREATE TYPE {keyspace}.a_person (name text, home frozen<"Address">);
        CREATE TABLE {keyspace}.t (
            b int, a text, d int, "C" timeuuid, s set<text> static, m map<int, frozen<list<int>>>, l list<frozen<a_person>>,
            u "Address", f frozen<"Address">, v vector<float, 3>, tup tuple<int, frozen<zip>>,
            fm frozen<map<text, int>>, x varint, y varchar,
            PRIMARY KEY ((b, a), d, "C")
        ) WITH CLUSTERING ORDER BY (d DESC, "C" ASC);
        CREATE TABLE {keyspace}.plain (k int PRIMARY KEY, n duration);
    """
    known = CqlCatalog()
    for statement in filter(None, (part.strip() for part in statements.split(";"))):
        known = known.apply(statement)
        cql.execute(statement.replace("<zip>", f"<{keyspace}.zip>"))
    before = schema_version(cql)
    t, plain = TableName(keyspace, "t"), TableName(keyspace, "plain")
    assert describe(cql, t) == known.tables[t]
    cql.execute(create_log_table(known.tables[t], cassandra=True))
    described = describe_all(cql, [t, plain])
    assert [one.table for one in described.values()] == [known.tables[t], known.tables[plain]]
    assert describe_types(cql, keyspace)["Address"].fields == ("street", "zip", "tags")
    assert list_tables(cql, keyspace) == ["plain", "t", "t_scylla_cdc_log"]
    assert describe_options(cql, t) is None
    assert keyspace in list_keyspaces(cql)

    # Every change is noticed; a table that was created again is another one.
    assert schema_version(cql) != before
    cql.execute(f'ALTER TYPE {keyspace}."Address" ADD floor int')
    assert describe(cql, t).column("u").type.fields == ("street", "zip", "tags", "floor")
    cql.execute(f"DROP TABLE {keyspace}.plain")
    cql.execute(f"CREATE TABLE {keyspace}.plain (k int PRIMARY KEY, n duration)")
    again = describe_all(cql, [plain])[plain]
    assert again.table == described[plain].table
    assert again.id != described[plain].id
    with pytest.raises(DefiniteError, match=f"no table {keyspace}.gone"):
        describe(cql, TableName(keyspace, "gone"))
    with pytest.raises(DefiniteError, match="no keyspace 'nowhere'"):
        describe(cql, TableName("nowhere", "t"))


def test_options_in_scyllas_own_form() -> None:
    words = {"enabled": "true", "preimage": "full", "ttl": "3600"}
    blob = struct.pack("<I", len(words)) + b"".join(struct.pack("<I", len(text)) + text.encode() for pair in words.items() for text in pair)
    assert CdcOptions.from_words(read_extension(blob)) == CdcOptions(enabled=True, preimage="full", ttl=3600)
    for damaged in (blob[:-1], blob + b"x", b"", blob[:4]):
        with pytest.raises(DefiniteError, match="cannot be read"):
            read_extension(damaged)


def test_generations_of_vnodes_and_of_tablets(cql: CqlSession, keyspace: str) -> None:
    create_tables(cql, keyspace)
    now = int(time.time() * 1000)
    first = add_generation(cql, keyspace, make_generation(now - 5000, ranges=3, streams=2))
    second = add_generation(cql, keyspace, make_generation(now, ranges=4))
    close_generation(cql, keyspace, first, now)
    table, other = TableName(keyspace, "t"), TableName(keyspace, "u")
    old = add_tablet_generation(cql, keyspace, other, make_generation(now - 100, ranges=2))
    new = add_tablet_generation(cql, keyspace, other, make_generation(now, ranges=4), before=old)
    catalog = ServerCatalog(cql, ScyllaOptions(generations=keyspace, tablets=keyspace, confidence=0))
    assert catalog.generations(table) == [first.time, second.time]
    assert catalog.streams(table, first.time) == tuple(streams for _, streams in first.ranges)
    assert catalog.generations(other) == [old.time, new.time]
    assert sorted(stream for group in catalog.streams(other, new.time) for stream in group) == sorted(new.streams)
    forget_generation(cql, keyspace, first)
    assert catalog.generations(table) == [second.time]


def test_keys_have_the_servers_tokens_and_streams_lie_in_their_ranges(cql: CqlSession, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.t (a int, b text, c int, PRIMARY KEY ((a, b), c))")
    cql.execute(f"CREATE TABLE {keyspace}.u (a int PRIMARY KEY)")
    generation = make_generation(0, ranges=5, streams=3)
    for number in range(20):
        cql.execute(f"INSERT INTO {keyspace}.t (a, b, c) VALUES (%s, %s, 0)", (number, str(number)))
        cql.execute(f"INSERT INTO {keyspace}.u (a) VALUES (%s)", (number,))
    for row in cql.execute(f"SELECT a, b, token(a, b) AS at FROM {keyspace}.t"):
        assert token_of([row.a.to_bytes(4, "big"), row.b.encode()]) == row.at
        last = next(end for end, _ in generation.ranges if row.at <= end)
        assert generation.stream_of(row.at) in dict(generation.ranges)[last]
    for row in cql.execute(f"SELECT a, token(a) AS at FROM {keyspace}.u"):
        assert token_of([row.a.to_bytes(4, "big")]) == row.at
    assert len(set(generation.streams)) == 15
    assert {stream[-1] & 15 for stream in generation.streams} == {1}
