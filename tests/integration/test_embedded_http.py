"""The embedded server's HTTP interface, byte by byte: what any HTTP client sees."""

from __future__ import annotations

import base64
import bz2
import concurrent.futures
import contextlib
import gzip
import http.client
import io
import json
import lzma
import shutil
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from headrace.embedded.frames import FrameReader, FrameWriter
from headrace.embedded.process import EmbeddedServer


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> int:
        return int(self.headers.get("X-ClickHouse-Exception-Code", "0"))


class Client:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(
        self, query: str = "", body: object = None, method: str = "", headers: Mapping[str, str] | None = None, **fields: str
    ) -> Answer:
        params = {**({"query": query} if query else {}), **fields}
        self.connection.request(method or "POST", f"/?{urlencode(params)}", body=body, headers=dict(headers or {}))  # type: ignore[arg-type]
        response = self.connection.getresponse()
        return Answer(response.status, dict(response.headers), response.read())

    def run(self, query: str, body: object = None, **fields: str) -> bytes:
        answer = self.ask(query, body, **fields)
        assert answer.status == 200, answer.body
        return answer.body


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("embedded") / "db") as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    made = Client(server.port)
    with contextlib.closing(made.connection):
        yield made


@pytest.fixture
def table(client: Client, request: pytest.FixtureRequest) -> str:
    name = f"t_{abs(hash(request.node.name))}"
    client.run(
        f"CREATE TABLE {name} (a Int32, b String DEFAULT concat('x', toString(a)), m Int32 MATERIALIZED a * 2) "
        "ENGINE = MergeTree ORDER BY a"
    )
    return name


# --- health and routes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/ping", "/replicas_status"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_health_checks_answer_ok(client: Client, path: str, method: str) -> None:
    client.connection.request(method, path)
    response = client.connection.getresponse()
    assert (response.status, response.read()) == (200, b"Ok.\n" if method == "GET" else b"")
    assert response.headers["Content-Length"] == "4"


def test_an_unknown_path_is_not_found(client: Client) -> None:
    client.connection.request("GET", "/nothing?query=SELECT+1")
    response = client.connection.getresponse()
    assert response.status == 404
    assert b"/nothing" in response.read()


# --- queries -------------------------------------------------------------------------------------------------------------------


def test_the_query_is_the_parameter_followed_by_the_body(client: Client) -> None:
    assert client.ask("SELECT 1", method="GET").body == b"1\n"
    assert client.ask(body="SELECT 2").body == b"2\n"
    assert client.ask("SELECT", body="3 + 4").body == b"7\n"


def test_a_result_carries_clickhouse_headers(client: Client) -> None:
    answer = client.ask("SELECT number FROM numbers(3)", query_id="my-id", default_format="JSONEachRow")
    assert answer.headers["X-ClickHouse-Query-Id"] == "my-id"
    assert answer.headers["X-ClickHouse-Format"] == "JSONEachRow"
    assert answer.headers["X-ClickHouse-Timezone"]
    assert answer.headers["X-ClickHouse-Server-Display-Name"]
    assert answer.headers["Content-Type"] == "application/json; charset=UTF-8"
    assert json.loads(answer.headers["X-ClickHouse-Summary"])["read_rows"] == "3"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT 1 AS x FORMAT JSONCompactEachRow", b"[1]\n"),
        ("SELECT 1 AS x FORMAT CSVWithNames SETTINGS max_threads = 1", b'"x"\n1\n'),
        ("SELECT 1 SETTINGS max_threads = 1", b"1\n"),
        ("WITH 5 AS x SELECT x", b"5\n"),
        ("(SELECT 1) UNION ALL (SELECT 1)", b"1\n1\n"),
        ("SELECT 1 -- comment", b"1\n"),
        ("EXISTS TABLE nothing_here", b"0\n"),
        ("DESCRIBE TABLE system.one", b"dummy\tUInt8\t\t\t\t\t\n"),
        ("EXPLAIN SYNTAX SELECT 1", b"SELECT 1\\nFROM system.one\n"),
        ("SELECT ';' ;", b";\n"),
        ("SELECT 'ü', '\\\\'", "ü\t\\\\\n".encode()),
    ],
)
def test_every_kind_of_reading_statement_answers(client: Client, query: str, expected: bytes) -> None:
    assert client.run(query) == expected


def test_parameters_are_substituted_as_clickhouse_does(client: Client) -> None:
    query = "SELECT {i:Int32} + 1, {s:String}, {l:Array(UInt8)}, {n:Nullable(String)}"
    fields = {"param_i": "41", "param_s": "it's\\t\\\\", "param_l": "[1,2]", "param_n": "\\N"}
    assert client.ask(query, method="GET", **fields).body == b"42\tit\\'s\\t\\\\\t[1,2]\t\\N\n"
    assert client.ask("SELECT {missing:Int32}").code == 456


def test_settings_are_parameters_and_last_one_request(client: Client) -> None:
    assert client.run("SELECT getSetting('max_block_size')", max_block_size="123") == b"123\n"
    assert client.run("SELECT getSetting('max_block_size')") != b"123\n"
    unknown = client.ask("SELECT 1", no_such_setting="1")
    assert (unknown.status, unknown.code) == (404, 115)
    injected = client.ask("SELECT 1", **{"max_threads = 1, readonly": "1"})
    assert (injected.status, injected.code) == (400, 36)


def test_the_database_parameter_and_header_choose_the_database(client: Client) -> None:
    client.run("CREATE DATABASE IF NOT EXISTS `od'd`")
    assert client.run("SELECT currentDatabase()", database="od'd") == b"od\\'d\n"
    assert client.ask("SELECT currentDatabase()", headers={"X-ClickHouse-Database": "system"}).body == b"system\n"
    assert client.run("SELECT currentDatabase()") == b"default\n"
    missing = client.ask("SELECT 1", database="nowhere")
    assert (missing.status, missing.code) == (404, 81)


def test_the_answer_to_a_statement_without_result_is_empty(client: Client, table: str) -> None:
    answer = client.ask(f"ALTER TABLE {table} ADD COLUMN c Int8")
    assert (answer.status, answer.body) == (200, b"")
    assert "X-ClickHouse-Format" not in answer.headers


# --- errors --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("SELEC 1", 400, 62),
        ("SELECT 'open", 400, 62),
        ("", 400, 62),
        ("SELECT 1; SELECT 2", 400, 62),
        ("SELECT * FROM no_table", 404, 60),
        ("INSERT INTO no_table VALUES (1)", 404, 60),
        ("SELECT no_column", 404, 47),
        ("SELECT noFunction()", 404, 46),
        ("SELECT 1 FORMAT NoFormat", 404, 73),
        ("SELECT throwIf(1)", 500, 395),
        ("SELECT toDate('x')", 400, 38),
        ("SELECT 1 INTO OUTFILE '/tmp/never' FORMAT CSV", 500, 358),
        ("DROP TABLE no_table", 404, 60),
    ],
)
def test_an_error_has_clickhouse_status_code_and_text(client: Client, query: str, status: int, code: int) -> None:
    answer = client.ask(query, body=b"")
    assert (answer.status, answer.code) == (status, code), answer.body
    assert answer.body.startswith(f"Code: {code}. DB::Exception: ".encode())
    assert b"(version 2" in answer.body


def test_get_reads_only(client: Client, table: str) -> None:
    for query in (f"DROP TABLE {table}", f"INSERT INTO {table} VALUES (1)", f"TRUNCATE TABLE {table}", f"OPTIMIZE TABLE {table}"):
        answer = client.ask(query, method="GET")
        assert (answer.status, answer.code) == (500, 164)
    assert client.run(f"SELECT count() FROM {table}") == b"0\n"


def test_an_early_failure_in_a_json_result_is_still_an_error_status(client: Client) -> None:
    answer = client.ask("SELECT throwIf(number = 5) FROM numbers(10) FORMAT JSON")
    assert (answer.status, answer.code) == (500, 395)


def test_a_late_failure_cuts_the_result_and_says_why(client: Client) -> None:
    client.connection.request("GET", f"/?{urlencode({'query': 'SELECT number, throwIf(number = 3000000) FROM numbers(10000000)'})}")
    response = client.connection.getresponse()
    tag = response.headers["X-ClickHouse-Exception-Tag"]
    assert response.status == 200
    with pytest.raises(http.client.IncompleteRead) as caught:
        response.read()
    received = caught.value.partial
    assert f"__exception__\r\n{tag}\r\nCode: 395.".encode() in received[-5000:]
    assert received.endswith(f" {tag}\r\n__exception__\r\n".encode())


def test_wait_end_of_query_turns_a_late_failure_into_a_status(client: Client) -> None:
    answer = client.ask("SELECT number, throwIf(number = 3000000) FROM numbers(10000000)", wait_end_of_query="1")
    assert (answer.status, answer.code) == (500, 395)


# --- inserts -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("INSERT INTO {} (a, b) FORMAT CSV", "1,one\n2,two\n"),
        ("INSERT INTO {} (a, b) FORMAT CSV 1,one", "2,two\n"),
        ("INSERT INTO {} (a, b) VALUES", "(1, 'one'), (1 + 1, lower('TWO'));"),
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
def test_what_a_format_writes_it_reads_back(client: Client, table: str, name: str) -> None:
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
        target = f"/?{urlencode({'query': f'INSERT INTO {table} (a) FORMAT TSV'})}"
        sock.sendall(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n1\n2\n3\n".encode())
    time.sleep(0.3)
    assert client.run(f"SELECT count() FROM {table}") == b"0\n"


# --- compression ---------------------------------------------------------------------------------------------------------------

_ENCODERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    **{
        name: (lambda data, codec=codec: pa.Codec(codec).compress(data, asbytes=True))
        for name, codec in {"br": "brotli", "zstd": "zstd", "lz4": "lz4"}.items()
    },
}


def _decode(coding: str, data: bytes) -> bytes:
    if coding == "deflate":
        return zlib.decompress(data)
    if coding == "xz":
        return lzma.decompress(data)
    codec = {"br": "brotli"}.get(coding, coding)
    return pa.CompressedInputStream(pa.BufferReader(data), codec).read()


@pytest.mark.parametrize("coding", list(_ENCODERS))
def test_requests_are_decoded(client: Client, table: str, coding: str) -> None:
    rows = "".join(f"{n}\n" for n in range(100_000)).encode()
    answer = client.ask(f"INSERT INTO {table} (a) FORMAT TSV", _ENCODERS[coding](rows), headers={"Content-Encoding": coding})
    assert answer.status == 200, answer.body
    assert client.run(f"SELECT count(), max(a) FROM {table}") == b"100000\t99999\n"


@pytest.mark.parametrize("coding", list(_ENCODERS))
def test_a_request_cut_off_inside_its_coding_inserts_nothing(client: Client, table: str, coding: str) -> None:
    packed = _ENCODERS[coding](b"".join(b"%d\n" % (n * 7919 % 100_003) for n in range(50_000)))
    answer = client.ask(f"INSERT INTO {table} (a) FORMAT TSV", packed[: len(packed) // 2], headers={"Content-Encoding": coding})
    assert answer.code == 271, answer
    assert client.run(f"SELECT count() FROM {table}") == b"0\n"


@pytest.mark.parametrize("coding", [name for name in _ENCODERS if name != "bz2"])
@pytest.mark.parametrize("rows", [1, 300_000])
def test_results_are_coded_as_the_client_accepts(client: Client, coding: str, rows: int) -> None:
    answer = client.ask(f"SELECT number FROM numbers({rows})", headers={"Accept-Encoding": coding})
    assert answer.headers["Content-Encoding"] == coding
    assert _decode(coding, answer.body).splitlines()[-1] == b"%d" % (rows - 1)


def test_results_are_plain_where_coding_is_not_wanted(client: Client) -> None:
    for headers, fields in (
        ({}, {}),
        ({"Accept-Encoding": "gzip;q=0"}, {}),
        ({"Accept-Encoding": "gzip"}, {"enable_http_compression": "0"}),
    ):
        assert client.ask("SELECT 1", headers=headers, **fields).body == b"1\n"
    assert client.ask("SELECT 1", b"x", headers={"Content-Encoding": "rot13"}).code == 89


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        return self._file.read(size)


def _drain(source: FrameReader | FrameWriter) -> bytes:
    return b"".join(iter(lambda: source.read(1 << 20), b""))


def test_clickhouse_block_compression_goes_both_ways(client: Client, table: str) -> None:
    rows = b"".join(b"%d\n" % n for n in range(300_000))
    client.run(f"INSERT INTO {table} (a) FORMAT TSV", _drain(FrameWriter(_Bytes(rows))), decompress="1")
    packed = client.run(f"SELECT a FROM {table} ORDER BY a", compress="1")
    assert len(packed) < len(rows)
    assert _drain(FrameReader(_Bytes(packed), verify=True)) == rows


def test_a_damaged_compressed_block_is_refused(client: Client, table: str) -> None:
    packed = bytearray(_drain(FrameWriter(_Bytes(b"1\n2\n"))))
    packed[-1] ^= 1
    assert client.ask(f"INSERT INTO {table} (a) FORMAT TSV", bytes(packed), decompress="1").code == 40
    assert client.ask(f"INSERT INTO {table} (a) FORMAT TSV", bytes(packed[:20]), decompress="1").code == 271


def test_block_checksums_are_those_the_engine_writes(server: EmbeddedServer, client: Client) -> None:
    client.run("CREATE TABLE sums (n UInt64, s String) ENGINE = MergeTree ORDER BY n SETTINGS min_bytes_for_wide_part = 0")
    for rows in (1, 3, 17, 100, 2_000, 100_000):
        client.run(f"INSERT INTO sums SELECT number, toString(sipHash64(number)) FROM numbers({rows})")
    files = [path for path in server.path.glob("store/*/*/*/[ns].bin") if path.stat().st_size]
    assert len(files) >= 2
    for path in files:
        assert _drain(FrameReader(_Bytes(path.read_bytes()), verify=True))


# --- sessions ------------------------------------------------------------------------------------------------------------------


def test_a_session_keeps_settings_database_and_temporary_tables(client: Client) -> None:
    client.run("SET max_block_size = 77", session_id="s1")
    client.run("USE system", session_id="s1")
    client.run("CREATE TEMPORARY TABLE mine (a Int8)", session_id="s1")
    client.run("INSERT INTO mine VALUES (5)", session_id="s1")
    read = "SELECT getSetting('max_block_size'), currentDatabase(), a FROM mine"
    assert client.run(read, session_id="s1") == b"77\tsystem\t5\n"
    assert client.ask(read, session_id="s2").code == 60
    assert client.ask(read).code == 60


def test_what_a_request_of_a_session_sets_for_itself_does_not_stay(client: Client) -> None:
    client.run("SET max_block_size = 77", session_id="s3")
    both = "SELECT getSetting('max_block_size'), getSetting('max_threads'), currentDatabase()"
    before = client.run(both, session_id="s3")
    assert client.run(both, session_id="s3", max_block_size="5", max_threads="9", database="system") == b"5\t9\tsystem\n"
    assert client.run(both, session_id="s3") == before


def test_session_rules_are_enforced(client: Client, server: EmbeddedServer) -> None:
    assert client.ask("SELECT 1", session_id="unknown", session_check="1").code == 372
    assert client.ask("SELECT 1", session_id="s", session_timeout="many").code == 374
    other = Client(server.port)
    with contextlib.closing(other.connection):
        slow = threading.Thread(target=client.run, args=("SELECT sleep(1)",), kwargs={"session_id": "busy"})
        slow.start()
        time.sleep(0.4)
        assert other.ask("SELECT 1", session_id="busy").code == 373
        slow.join()


# --- forms ---------------------------------------------------------------------------------------------------------------------


def test_a_multipart_form_brings_parameters_and_external_tables(client: Client) -> None:
    boundary = "frontier"
    parts = [
        ('name="query"', b"SELECT sum(a) + {x:Int32} FROM ext"),
        ('name="param_x"', b"100"),
        ('name="ext"; filename="ext.csv"', b"1,one\r\n2,two\r\n"),
    ]
    body = b"".join(b"--frontier\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (head.encode(), data) for head, data in parts)
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    fields = {"ext_format": "CSV", "ext_structure": "a Int32, b String"}
    assert client.ask("", body + b"--frontier--\r\n", headers=headers, **fields).body == b"103\n"
    assert client.ask("", body, headers=headers, **fields).code == 117
    assert client.ask("SELECT * FROM ext").code == 60


# --- concurrency ---------------------------------------------------------------------------------------------------------------


def test_concurrent_clients_do_not_see_each_others_database_or_settings(server: EmbeddedServer, client: Client) -> None:
    for name in ("da", "db", "dc"):
        client.run(f"CREATE DATABASE IF NOT EXISTS {name}")

    def work(number: int) -> int:
        mine = Client(server.port)
        with contextlib.closing(mine.connection):
            for turn in range(40):
                database = ("da", "db", "dc")[(number + turn) % 3]
                size = str(1000 * number + turn + 1)
                query = "SELECT currentDatabase(), getSetting('max_block_size'), {v:String}"
                got = mine.run(query, database=database, max_block_size=size, param_v=size)
                assert got == f"{database}\t{size}\t{size}\n".encode()
                assert mine.run("SELECT currentDatabase(), getSetting('max_block_size') IN (1000, 65409, 65505, 65536)").startswith(
                    b"default\t"
                )
        return number

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


def test_concurrent_inserts_and_reads_lose_nothing(server: EmbeddedServer, client: Client, table: str) -> None:
    def work(number: int) -> None:
        mine = Client(server.port)
        with contextlib.closing(mine.connection):
            for turn in range(20):
                rows = b"".join(b"%d\n" % (number * 1_000_000 + turn * 1000 + n) for n in range(100))
                mine.run(f"INSERT INTO {table} (a) FORMAT TSV", rows)
                assert int(mine.run(f"SELECT count() FROM {table} WHERE intDiv(a, 1000000) = {number}")) == 100 * (turn + 1)

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert client.run(f"SELECT count(), uniqExact(a) FROM {table}") == b"12000\t12000\n"


# --- large results -------------------------------------------------------------------------------------------------------------


def _memory_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


@pytest.mark.parametrize("name", ["Native", "JSON", "ArrowStream"])
def test_ten_million_rows_stream_in_bounded_memory(server: EmbeddedServer, client: Client, name: str) -> None:
    before = _memory_mib(server.pid)
    client.connection.request("GET", f"/?{urlencode({'query': f'SELECT number FROM numbers(10000000) FORMAT {name}'})}")
    response = client.connection.getresponse()
    assert response.headers["Transfer-Encoding"] == "chunked"
    size = peak = 0
    while piece := response.read(4 << 20):
        size += len(piece)
        peak = max(peak, _memory_mib(server.pid))
    assert size > 20_000_000
    assert peak - before < 150, f"{before} MiB before, {peak} MiB during {size} bytes"


def test_a_client_that_leaves_ends_its_query(server: EmbeddedServer, client: Client) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"GET /?query=SELECT+number,'left'+FROM+numbers(100000000000) HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
    running = "SELECT count() FROM system.processes WHERE query LIKE '%numbers(100000000000)%' AND query NOT LIKE '%processes%'"
    deadline = time.monotonic() + 10
    while client.run(running) != b"0\n":
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- the protocol itself -------------------------------------------------------------------------------------------------------


def _raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(request)
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/9\r\n\r\n", 501),
        (b"BREW / HTTP/1.1\r\n\r\n", 501),
        (b"\x00\xff\xfe\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(300)) + b"\r\n", 431),
        (b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
    ],
)
def test_a_malformed_request_is_refused_and_harms_nobody(server: EmbeddedServer, client: Client, request_bytes: bytes, status: int) -> None:
    assert _raw(server.port, request_bytes).startswith(f"HTTP/1.1 {status} ".encode())
    assert client.run("SELECT 1") == b"1\n"


def test_one_connection_serves_many_requests_also_after_errors(client: Client) -> None:
    client.run("SELECT 1")
    first = client.connection.sock
    for _ in range(3):
        assert client.ask("SELECT * FROM no_table", body=b"x" * 300_000).status == 400
        assert client.ask("SELECT * FROM no_table").status == 404
        assert client.run("SELECT 1") == b"1\n"
    assert client.connection.sock is first


def test_pipelined_requests_are_answered_in_order(server: EmbeddedServer) -> None:
    wire = b"".join(b"GET /?query=SELECT+%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(5))
    answers = _raw(server.port, wire)
    assert [part.rsplit(b"\r\n", 1)[1] for part in answers.split(b"HTTP/1.1 200 OK")[1:]] == [b"%d\n" % n for n in range(5)]


def test_connection_close_and_http_1_0_end_the_connection(server: EmbeddedServer) -> None:
    for head in (b"GET /?query=SELECT+1 HTTP/1.0\r\n\r\n", b"GET /?query=SELECT+1 HTTP/1.1\r\nConnection: close\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            sock.sendall(head)
            answer = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))
        assert answer.endswith(b"1\n")
        assert b"Connection: close" in answer


def test_expect_100_continue_is_honoured(server: EmbeddedServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"SELECT 6")
        assert sock.recv(10_000).endswith(b"6\n")


def test_head_runs_the_query_and_sends_no_body(client: Client) -> None:
    answer = client.ask("SELECT 1", method="HEAD")
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "2")


def test_a_query_longer_than_max_query_size_is_refused(client: Client) -> None:
    long = "SELECT 1" + " " * 300_000
    assert client.ask(body=long).code == 62
    assert client.ask(body=long, max_query_size="400000").body == b"1\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_works(server: EmbeddedServer, table: str) -> None:
    def curl(*arguments: str, stdin: bytes = b"") -> bytes:
        return subprocess.run(["curl", "-sS", "--fail-with-body", *arguments], input=stdin, capture_output=True, check=True).stdout

    assert curl(f"{server.url}/ping") == b"Ok.\n"
    curl(f"{server.url}/?{urlencode({'query': f'INSERT INTO {table} (a) FORMAT CSV'})}", "--data-binary", "@-", stdin=b"1\n2\n" * 100_000)
    assert curl(server.url, "-d", f"SELECT count() FROM {table}") == b"200000\n"
    assert curl(server.url, "--compressed", "-d", "SELECT 1 FORMAT JSONCompactEachRow") == b"[1]\n"


# --- who may come in -----------------------------------------------------------------------------------------------------------


def test_a_page_of_another_site_cannot_use_a_server_without_password(client: Client) -> None:
    assert client.ask(body="SELECT 1", headers={"Sec-Fetch-Site": "cross-site"}).code == 516
    assert client.ask(body="SELECT 1", headers={"Sec-Fetch-Site": "none"}).body == b"1\n"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("locked") / "db", user="ann", password="s3:cret") as running:
        yield running


def _basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("headers", "fields", "status", "code"),
    [
        (_basic("ann", "s3:cret"), {}, 200, 0),
        ({"X-ClickHouse-User": "ann", "X-ClickHouse-Key": "s3:cret"}, {}, 200, 0),
        ({}, {"user": "ann", "password": "s3:cret"}, 200, 0),
        (_basic("ann", "wrong"), {}, 403, 516),
        (_basic("bob", "s3:cret"), {}, 403, 516),
        ({"X-ClickHouse-User": "ann"}, {}, 401, 194),
        ({}, {"user": "ann", "password": ""}, 401, 194),
        ({}, {}, 403, 516),
        ({"Authorization": "Bearer token"}, {}, 403, 516),
        ({"Authorization": "Basic ***"}, {}, 403, 516),
        (_basic("ann", "s3:cret"), {"user": "ann"}, 403, 516),
    ],
)
def test_only_the_account_may_query(
    locked: EmbeddedServer, headers: dict[str, str], fields: dict[str, str], status: int, code: int
) -> None:
    made = Client(locked.port)
    with contextlib.closing(made.connection):
        answer = made.ask("SELECT 1", headers=headers, **fields)
        assert (answer.status, answer.code) == (status, code)
        assert b"s3:cret" not in answer.body


def test_ping_needs_no_account_and_the_password_is_not_in_the_process_list(locked: EmbeddedServer) -> None:
    made = Client(locked.port)
    with contextlib.closing(made.connection):
        made.connection.request("GET", "/ping")
        assert made.connection.getresponse().read() == b"Ok.\n"
    assert b"s3:cret" not in Path(f"/proc/{locked.pid}/cmdline").read_bytes()
