"""HTTP byte by byte: bad requests, persistent connections, and another client library."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from urllib.parse import urlencode

import pytest

from headrace.embedded.process import EmbeddedServer, ping
from testkit.pipelines.embedded_access import PASSWORD
from testkit.pipelines.httpclient import Client

_BAD_SIZES = (b"0x8", b"+8", b"0_8", b"-8", b" 8", b"8 8", b"", b"g", b"8" * 5000, b"\xd9\xa8")
_BAD_LENGTHS = (b"9" * 5000, b"-8", b"+8", b"0x8", b"8_0", b"8 8", b"", b"8, 8")
_POST = f"POST /?password={PASSWORD} HTTP/1.1\r\nHost: localhost\r\n".encode()


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
        (_POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (_POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(300)) + b"\r\n", 431),
        (b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        *((_POST + b"Transfer-Encoding: chunked\r\n\r\n%s\r\nSELECT 1\r\n0\r\n\r\n" % size, 400) for size in _BAD_SIZES),
        (_POST + b"Transfer-Encoding: chunked\r\n\r\n8\r\nSELECT 1\r\n0\r\n" + b"x: y\r\n" * 300 + b"\r\n", 431),
        (_POST + b"Transfer-Encoding: chunked\r\n\r\n8;" + b"x" * 10_000 + b"\r\nSELECT 1\r\n0\r\n\r\n", 400),
        (_POST + b"Transfer-Encoding: chunked\r\n\r\n8\nSELECT 1\r\n0\r\n\r\n", 400),
        (_POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        *((_POST + b"Content-Length: %s\r\n\r\nSELECT 1" % length, 400) for length in _BAD_LENGTHS),
        (_POST + b"Content-Length: 8\r\nContent-Length: 8\r\n\r\nSELECT 1", 400),
        (_POST + b"Host: elsewhere\r\nContent-Length: 8\r\n\r\nSELECT 1", 400),
        (_POST + b"X: " + b"y" * 900_000 + b"\r\nContent-Length: 8\r\n\r\nSELECT 1", 431),
        (_POST + b"X: y\r\n" * 12_000 + b"\r\n", 431),
        (_POST + b"X: y\r\n folded: z\r\nContent-Length: 8\r\n\r\nSELECT 1", 400),
        (_POST + b"X : y\r\nContent-Length: 8\r\n\r\nSELECT 1", 400),
        (_POST + b"X: y\nContent-Length: 8\r\n\r\nSELECT 1", 400),
        (_POST + b"X: y\rContent-Length: 8\r\n\r\nSELECT 1", 400),
        (_POST + b"X: y\x00\r\nContent-Length: 8\r\n\r\nSELECT 1", 400),
        (_POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /?password=" + PASSWORD.encode() + b"&query=SELECT+1 HTTP/1.1\r\n\r\n", 400),
        (b"GET /?" + b"a=b&" * 11_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ],
)
def test_a_malformed_request_is_refused_without_side_effects(
    server: EmbeddedServer, client: Client, request_bytes: bytes, status: int
) -> None:
    assert _raw(server.port, request_bytes).startswith(f"HTTP/1.1 {status} ".encode())
    assert client.run("SELECT 1") == b"1\n"


def test_slow_connections_do_not_block_others(server: EmbeddedServer, client: Client) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(600):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            slow.sendall(b"POST / HT")
        begun = time.monotonic()
        assert ping(server.host, server.port)
        assert _raw(server.port, _POST + b"Content-Length: 8\r\n\r\nSELECT 1").endswith(b"1\n")
        assert time.monotonic() - begun < 5
    client.connection.close()
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
    wire = b"".join(b"GET /?query=SELECT+%d&password=%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (n, PASSWORD.encode()) for n in range(5))
    answers = _raw(server.port, wire)
    assert [part.rsplit(b"\r\n", 1)[1] for part in answers.split(b"HTTP/1.1 200 OK")[1:]] == [b"%d\n" % n for n in range(5)]


def test_connection_close_and_http_1_0_end_the_connection(server: EmbeddedServer) -> None:
    for head in (b"HTTP/1.0\r\n\r\n", b"HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            sock.sendall(b"GET /?query=SELECT+1&password=%s " % PASSWORD.encode() + head)
            answer = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))
        assert answer.endswith(b"1\n")
        assert b"Connection: close" in answer


def test_expect_100_continue_is_honoured(server: EmbeddedServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(
            b"POST /?password=%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n" % PASSWORD.encode()
        )
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


def test_curl_works(server: EmbeddedServer, table: str) -> None:
    def curl(*arguments: str, stdin: bytes = b"") -> bytes:
        return subprocess.run(
            ["curl", "-sS", "--fail-with-body", "--user", f"default:{PASSWORD}", *arguments], input=stdin, capture_output=True, check=True
        ).stdout

    assert curl(f"{server.url}/ping") == b"Ok.\n"
    curl(f"{server.url}/?{urlencode({'query': f'INSERT INTO {table} (a) FORMAT CSV'})}", "--data-binary", "@-", stdin=b"1\n2\n" * 100_000)
    assert curl(server.url, "-d", f"SELECT count() FROM {table}") == b"200000\n"
    assert curl(server.url, "--compressed", "-d", "SELECT 1 FORMAT JSONCompactEachRow") == b"[1]\n"
