"""Inserts over HTTP: by every method, all rows or none."""

from __future__ import annotations

import io
import json
import socket
import time
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from headrace.embedded.process import EmbeddedServer
from testkit.pipelines.embedded_access import PASSWORD
from testkit.pipelines.httpclient import Client


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("INSERT INTO {} (a, b) FORMAT CSV", "1,one\n2,two\n"),
        ("INSERT INTO {} (a, b) FORMAT CSV 1,one", "2,two\n"),
        ("INSERT INTO {} (a, b) VALUES", "(1, 'one'), (2, 'two');"),
        ("", "INSERT INTO {} (a, b) VALUES (1, 'one'), (2, 'two')"),
        ("", 'INSERT INTO {} FORMAT JSONEachRow {{"a": 1, "b": "one"}} {{"a": 2, "b": "two"}}'),
        ("", "INSERT INTO {} SELECT number + 1, ['one', 'two'][number + 1] FROM numbers(2)"),
        ("INSERT INTO {} (a, b) SELECT x + 1, y FROM input('x Int32, y String') FORMAT TSV", "0\tone\n1\ttwo\n"),
        ("INSERT INTO {} (* EXCEPT(a), a) FORMAT TSV", "one\t1\ntwo\t2\n"),
        ("INSERT INTO {} (a, b) SETTINGS format_csv_delimiter = ';' FORMAT CSV", "1;one\n2;two\n"),
    ],
)
def test_rows_come_in_by_every_way(client: Client, table: str, query: str, body: str) -> None:
    client.run(query.format(table), body.format(table).encode())
    assert client.run(f"SELECT a, b, m FROM {table} ORDER BY a") == b"1\tone\t2\n2\ttwo\t4\n"


def test_a_column_list_leaves_the_others_to_their_defaults(client: Client, table: str) -> None:
    client.run(f"INSERT INTO {table} (a) FORMAT TSV", b"7\n")
    assert client.run(f"SELECT a, b, m FROM {table}") == b"7\tx7\t14\n"


@pytest.mark.parametrize(
    "name", ["Native", "Arrow", "ArrowStream", "Parquet", "ORC", "Avro", "RowBinary", "JSONEachRow", "TSV", "JSONColumns"]
)
def test_each_format_reads_its_own_output(client: Client, table: str, name: str) -> None:
    client.run(f"INSERT INTO {table} SELECT number, toString(number * 3) FROM numbers(1000)")
    data = client.run(f"SELECT a, b FROM {table} ORDER BY a FORMAT {name}")
    client.run(f"CREATE TABLE {table}_copy AS {table}")
    answer = client.ask(f"INSERT INTO {table}_copy (a, b) FORMAT {name}", data)
    assert json.loads(answer.headers["X-ClickHouse-Summary"])["written_rows"] == "1000"
    count = f"SELECT count(), sum(cityHash64(a, b, m)) FROM {table}"
    assert client.run(f"{count}_copy") == client.run(count)


def test_a_large_chunked_insert_of_binary_rows_is_whole(client: Client, table: str) -> None:
    batch = pa.record_batch({"a": pa.array(range(400_000), pa.int32()), "b": [f";'`\x00{n}" for n in range(400_000)]})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    data = out.getvalue()
    pieces = (data[at : at + 77_777] for at in range(0, len(data), 77_777))
    client.run(f"INSERT INTO {table} FORMAT ArrowStream", pieces)
    assert client.run(f"SELECT count(), sum(a), sum(length(b)) FROM {table}").split()[:2] == [b"400000", b"79999800000"]


@pytest.mark.parametrize(
    ("query", "body", "code"),
    [
        ("INSERT INTO {} (a) FORMAT CSV", b"1\nnonsense\n", 117),
        ("INSERT INTO {} (a) FORMAT ArrowStream", b"", 117),
        ("INSERT INTO {} (zz) FORMAT CSV", b"1\n", 16),
        ("INSERT INTO {} (a) FORMAT NoFormat", b"1\n", 73),
        ("INSERT INTO {} FROM INFILE '/etc/hostname' FORMAT CSV", b"", 69),
    ],
)
def test_a_bad_insert_fails_and_leaves_nothing(client: Client, table: str, query: str, body: bytes, code: int) -> None:
    assert client.ask(query.format(table), body).code == code
    assert client.run(f"SELECT count() FROM {table}") == b"0\n"


def test_an_insert_broken_off_by_the_client_leaves_nothing(server: EmbeddedServer, client: Client, table: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        target = f"/?{urlencode({'query': f'INSERT INTO {table} (a) FORMAT TSV', 'password': PASSWORD})}"
        sock.sendall(f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n1\n2\n3\n".encode())
    time.sleep(0.3)
    assert client.run(f"SELECT count() FROM {table}") == b"0\n"


def test_what_a_table_refuses_while_it_is_written_is_an_error(client: Client) -> None:
    """The engine's own streaming insert loses such rows silently."""
    client.run("CREATE TABLE refusing (id Int32, CONSTRAINT small CHECK id < 3) ENGINE = MergeTree ORDER BY id PARTITION BY id")
    assert client.ask("INSERT INTO refusing FORMAT CSV", body="1\n5\n").code == 469
    assert client.ask("INSERT INTO refusing VALUES (1), (7)").code == 469
    assert client.ask("INSERT INTO refusing FORMAT CSV", body="\n".join(map(str, range(-200, 0)))).code == 252
    client.run("CREATE TABLE crowded (id Int32) ENGINE = MergeTree ORDER BY id SETTINGS parts_to_throw_insert = 1")
    client.run("SYSTEM STOP MERGES crowded")
    client.run("INSERT INTO crowded SETTINGS max_threads = 1 VALUES (1)")
    assert client.ask("INSERT INTO crowded VALUES (2)").code == 252
    client.run("CREATE TABLE looked_at (id Int32) ENGINE = MergeTree ORDER BY id")
    client.run("CREATE MATERIALIZED VIEW looking ENGINE = MergeTree ORDER BY id AS SELECT id + throwIf(id > 1, 'no') AS id FROM looked_at")
    assert client.ask("INSERT INTO looked_at FORMAT JSONEachRow", body='{"id": 2}').code == 395
    counts = client.run("SELECT (SELECT count() FROM refusing), (SELECT count() FROM crowded), (SELECT count() FROM looking)")
    assert counts == b"0\t1\t0\n"


def test_rows_beyond_the_memory_for_them_go_through_a_file(client: Client) -> None:
    client.run("CREATE TABLE long_ones (id UInt32, text String) ENGINE = MergeTree ORDER BY id")
    row = "x" * (1 << 20)
    client.run("INSERT INTO long_ones FORMAT CSV", body="".join(f"{number},{row}\n" for number in range(80)).encode())
    assert client.run("SELECT count(), sum(length(text)) FROM long_ones") == b"80\t%d\n" % (80 << 20)
