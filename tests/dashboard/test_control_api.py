"""The control API over real sockets: its responses, its access rules, and its resistance to bad clients."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import pytest

from headrace.dashboard import handler
from headrace.dashboard.handler import Asset, load_assets
from headrace.dashboard.server import Server, serve
from headrace.errors import DefiniteError
from testkit.generators.fake_control import HOSTILE, POISON, TOKEN, FakeControl
from testkit.machine.wait_condition import wait_until

PAGE = {
    "/": Asset(b"<!doctype html><title>page</title>", "text/html; charset=utf-8", '"one"'),
    "/app.js": Asset(b"export {};", "text/javascript; charset=utf-8", '"two"'),
}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass(frozen=True)
class Said:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    control: FakeControl
    server: Server

    @property
    def port(self) -> int:
        return self.server.address.port

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Said:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            text = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, text, dict(headers or {}))
            answer = connection.getresponse()
            return Said(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: object = None, **headers: str) -> Said:
        return self.ask("POST", path, {} if body is None else body, {**BEARER, **headers})

    def raw(self, sent: bytes) -> bytes:
        """Return everything until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: client.recv(1 << 16), b""))


@pytest.fixture
def served() -> Iterator[Served]:
    control = FakeControl()
    with serve(control, "127.0.0.1:0", TOKEN, assets=lambda: PAGE) as server:
        yield Served(control, server)


def test_read_requests(served: Served) -> None:
    status = served.ask("GET", "/api/status")
    expected = json.loads(json.dumps(served.control.status().to_json()))
    assert (status.status, status.headers["Content-Type"], status.headers["Cache-Control"]) == (
        200,
        "application/json; charset=utf-8",
        "no-store",
    )
    assert status.json.keys() == expected.keys()
    assert [pipe.keys() for pipe in status.json["pipes"]] == [pipe.keys() for pipe in expected["pipes"]]
    assert [pipe["stage"] for pipe in status.json["pipes"]] == [pipe["stage"] for pipe in expected["pipes"]]
    assert HOSTILE in [table["name"] for table in status.json["pipes"][0]["tables"]]

    samples = served.ask("GET", "/api/pipes/shop/history").json["samples"]
    assert len(samples) == len(served.control.history("shop"))
    assert all(len(sample) == 4 for sample in samples)
    assert [sample[0] for sample in samples] == sorted(sample[0] for sample in samples)
    # A name with a slash is one part of the path.
    assert served.ask("GET", "/api/pipes/orders%2Feast").json["name"] == "orders/east"
    assert served.ask("GET", f"/api/pipes/{quote('orders/west', safe='')}/history").status == 200
    assert served.ask("GET", "/api/pipes/orders/east").status == 404

    health = served.ask("GET", "/health")
    assert (health.status, health.json["status"]) == (200, "ok")
    ready = served.ask("GET", "/ready")
    assert ready.status == 503
    assert {listed["pipe"]: listed["stage"] for listed in ready.json["not_ready"]} == {
        "events": "failed",
        "billing": "retrying",
        "profiles": "starting",
    }
    assert ready.json["not_ready"][0]["remedy"]
    for name in ("events", "billing", "profiles"):
        served.control.set(name, stage="stopped")
    assert (served.ask("GET", "/ready").status, served.ask("GET", "/ready").json) == (200, {"ready": True, "not_ready": []})


def test_control_requests(served: Served) -> None:
    assert served.post("/api/pipes/shop/pause").json == {"done": "pause", "pipe": "shop"}
    assert served.ask("GET", "/api/pipes/shop").json["stage"] == "paused"
    assert served.post("/api/pipes/shop/resume").status == 200
    # All parts of a pipe of several sources at once.
    assert served.post("/api/pipes/orders/stop").status == 200
    assert {pipe.stage for pipe in served.control.status().pipes if pipe.group == "orders"} == {"stopped"}
    assert served.post("/api/pipes/shop/resync", {"tables": ["shop.orders"]}).json["tables"] == ["shop.orders"]
    assert served.post("/api/pipes/shop/verify").status == 200
    assert served.post("/api/pipes/shop/verify", {"tables": ["shop.audit"]}).status == 200
    skipped = served.post("/api/pipes/events/skip", {"place": POISON})
    assert (skipped.status, POISON in skipped.json["skipped"]) == (200, True)
    answer = served.post("/api/query", {"pipe": "shop", "sql": "SELECT 1"})
    # Integers that a browser would round are strings.
    assert answer.json == {
        "columns": ["id", "item", "big"],
        "rows": [[1, "tea", str(2**63)], [2, "<script>alert(1)</script>", -1], [3, None, 0]],
    }
    assert [asked[0] for asked in served.control.asked] == ["pause", "resume", "stop", "resync", "verify", "verify", "skip", "query"]


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/api/pipes/nobody/pause", {}, 404, "nobody"),
        ("/api/pipes/shop/explode", {}, 404, "nothing here"),
        ("/api/nothing", {}, 404, "nothing here"),
        ("/api/status", {}, 405, "GET"),
        ("/api/pipes/shop/pause", b"{", 400, "no JSON"),
        ("/api/pipes/shop/pause", b"[]", 400, "object"),
        ("/api/pipes/shop/pause", {"hard": True}, 400, "hard"),
        ("/api/pipes/shop/resync", {}, 400, "tables"),
        ("/api/pipes/shop/resync", {"tables": "shop.orders"}, 400, "tables"),
        ("/api/pipes/shop/resync", {"tables": [1]}, 400, "tables"),
        ("/api/pipes/events/skip", {}, 400, "place"),
        ("/api/pipes/events/skip", {"place": "elsewhere:4"}, 409, "another event"),
        ("/api/pipes/shop/skip", {"place": POISON}, 409, "does not halt"),
        ("/api/pipes/old/pause", {}, 409, "disabled"),
        ("/api/query", {"pipe": "shop", "sql": "DROP TABLE x"}, 400, "only queries"),
        ("/api/query", {"pipe": "shop"}, 400, "sql"),
    ],
)
def test_invalid_input_is_reported(served: Served, path: str, body: object, status: int, word: str) -> None:
    answer = served.post(path, body)
    assert answer.status == status
    assert answer.json["error"].keys() == {"message", "place", "remedy"}
    assert word in answer.json["error"]["message"]


def test_changes_need_the_token(served: Served) -> None:
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Basic {TOKEN}"}):
        for path in ("/api/pipes/shop/pause", "/api/query", "/api/nothing", "/api/pipes/nobody/pause"):
            answer = served.ask("POST", path, {}, headers)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="headrace"')
            assert "headrace dashboard" in answer.json["error"]["remedy"]
            assert TOKEN not in answer.body.decode()
    # A token in the address is not accepted either.
    assert served.ask("POST", f"/api/pipes/shop/pause?token={TOKEN}", {}).status == 401
    assert served.control.asked == []


def test_other_names_and_other_sites_are_refused(served: Served) -> None:
    port = served.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", f"[::1]:{port}", "localhost:9999"):
        assert served.ask("GET", "/api/status", headers={"Host": host}).status == 200
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "10.0.0.7", "127.0.0.1@evil.example", "", "[::1"):
        for path in ("/api/status", "/", "/metrics", "/ready", "/api/stream"):
            answer = served.ask("GET", path, headers={"Host": host})
            assert (answer.status, answer.json["error"]["place"]) == (403, "Host")
    own = f"127.0.0.1:{port}"
    assert served.post("/api/pipes/shop/pause", Origin=f"http://{own}").status == 200
    for origin in ("https://evil.example", "null", "http://localhost:3000", f"http://evil.example:{port}", "file://"):
        assert served.post("/api/pipes/shop/resume", Origin=origin).status == 403
    assert served.post("/api/pipes/shop/resume", **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert [asked[0] for asked in served.control.asked] == ["pause"]


def test_named_hosts_are_let_in() -> None:
    with serve(FakeControl(), "0.0.0.0:0", TOKEN, hosts=["Headrace.internal"], assets=lambda: PAGE) as server:
        served = Served(FakeControl(), server)
        assert server.url == f"http://127.0.0.1:{served.port}"
        assert served.ask("GET", "/api/status", headers={"Host": "headrace.internal"}).status == 200
        # Probes use the IP address; a name may be an attack by DNS rebinding.
        assert served.ask("GET", "/ready", headers={"Host": "10.1.2.3:8088"}).status == 503
        assert served.ask("GET", "/api/status", headers={"Host": "evil.example"}).status == 403
        # A proxy that terminates TLS sends its own name as the origin.
        assert served.post("/api/pipes/shop/pause", Origin="https://headrace.internal").status == 200


def test_the_pages_files(served: Served) -> None:
    page = served.ask("GET", "/")
    assert (page.status, page.body, page.headers["Content-Type"]) == (200, PAGE["/"].content, "text/html; charset=utf-8")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert "Python" not in page.headers["Server"]
    again = served.ask("GET", "/", headers={"If-None-Match": page.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert served.ask("GET", "/app.js", headers={"If-None-Match": '"other"'}).status == 200
    head = served.ask("HEAD", "/app.js")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(PAGE["/app.js"].content)))
    for path in (
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/server.py",
        "//etc/passwd",
        "/assets/../../server.py",
        "/app.js/",
        "/app.js%00",
        "/server.py",
        "/index.html\\..",
    ):
        assert served.ask("GET", path).status == 404
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert served.ask(method, "/", {}).status == 405
    assert served.ask("BREW", "/").status == 501


def test_package_files_are_served() -> None:
    assets = load_assets()
    with serve(FakeControl(), "127.0.0.1:0", TOKEN) as server:
        served = Served(FakeControl(), server)
        for path, asset in assets.items():
            assert served.ask("GET", path).body == asset.content
    assert "/grafana.json" in assets
    assert all(path.rpartition(".")[2] != "py" for path in assets)


def test_updates_come_by_themselves(served: Served) -> None:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.request("GET", "/api/stream")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    begun = time.monotonic()
    first, second = _next_status(answer), _next_status(answer)
    assert 0.5 < time.monotonic() - begun < 10
    assert second["cpu_s"] > first["cpu_s"]
    served.control.pause("shop")
    paused = [_next_status(answer) for _ in range(2)][-1]
    assert paused["pipes"][0]["stage"] == "paused"
    # At the end of the process, streams receive an event.
    served.server.close()
    assert b"event: end" in answer.read()
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        served.ask("GET", "/health")


def _next_status(answer: http.client.HTTPResponse) -> Any:
    while (line := answer.readline()) != b"event: status\n":
        assert line
    return json.loads(answer.readline().removeprefix(b"data: "))


def test_bad_clients_do_not_affect_others(served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    host = f"Host: 127.0.0.1:{served.port}\r\n".encode()
    assert b" 400 " in served.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").partition(b"\r\n")[0]
    assert b" 400 " in served.raw(b"GET\r\n\r\n")
    assert b" 414 " in served.raw(b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n")
    assert b" 431 " in served.raw(b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n")
    assert b" 431 " in served.raw(b"GET / HTTP/1.1\r\n" + b"X: yyyyyyyyyyyy\r\n" * 9_000 + b"\r\n")
    post = b"POST /api/pipes/shop/pause HTTP/1.1\r\n" + host + f"Authorization: Bearer {TOKEN}\r\n".encode()
    assert b" 411 " in served.raw(post + b"\r\n{}")
    assert b" 411 " in served.raw(post + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
    assert b" 411 " in served.raw(post + b"Content-Length: -1\r\n\r\n{}")
    too_much = handler.MAX_BODY_BYTES + 1
    assert b" 413 " in served.raw(post + f"Content-Length: {too_much}\r\n\r\n".encode() + b"x" * too_much)
    assert served.raw(post + b"Content-Length: 10\r\n\r\n{}") == b""
    assert served.control.asked == []
    # Two requests on one connection, and a client that closes during a stream.
    both = served.raw(b"GET /health HTTP/1.1\r\n" + host + b"\r\nGET /api/status HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n")
    assert both.count(b"HTTP/1.1 200 OK") == 2
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
        client.sendall(b"GET /api/stream HTTP/1.1\r\n" + host + b"\r\n")
        assert client.recv(100)
    # An internal error has a short response and a full log entry; the server continues.
    monkeypatch.setattr(served.control, "history", lambda _: 1 / 0)
    with caplog.at_level("ERROR"):
        assert served.ask("GET", "/api/pipes/shop/history").status == 500
        wait_until(lambda: "ZeroDivisionError" in caplog.text, 20)
    assert served.ask("GET", "/health").status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "GET"])
@pytest.mark.parametrize("host", ["127.0.0.1", "elsewhere.example"])
def test_a_body_that_is_not_read_never_becomes_a_request(served: Served, method: str, host: str) -> None:
    """A page of another site may send such a request: its body would pass the check of `Host`."""
    hidden = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode()
    head = f"{method} /x HTTP/1.1\r\nHost: {host}:{served.port}\r\nContent-Length: {len(hidden)}\r\n\r\n".encode()
    assert served.raw(head + hidden).count(b"HTTP/1.1 ") == 1


def test_slow_and_many_clients_are_turned_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    _limit(served, connections=4, idle_s=0.3, receive_s=0.3, io_s=0.3)
    monkeypatch.setattr(handler, "MAX_LISTENERS", 2)
    slow = [socket.create_connection(("127.0.0.1", served.port), timeout=20) for _ in range(4)]
    try:
        for client in slow:
            client.sendall(b"GET /health HT")
        # Idle connections do not block others: the oldest is closed.
        assert {served.ask("GET", "/health").status for _ in range(8)} == {200}
        # Each idle connection is closed after a timeout.
        assert all(client.recv(100) == b"" for client in slow)
    finally:
        for client in slow:
            client.close()
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=20)) for _ in range(2)]
        for listener in listeners:
            listener.sendall(f"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
            assert b" 200 " in listener.recv(100)
        assert _streams(served) == 503
        # A client that does not read is closed too, and does not delay others.
        served.control.set("shop", source="x" * 8_000_000)
        begun = time.monotonic()
        wait_until(lambda: served.ask("GET", "/health").status == 200, 20)
        assert time.monotonic() - begun < 5
        wait_until(lambda: _streams(served) == 200, 20)


def test_slow_connections_never_make_the_process_look_dead(served: Served) -> None:
    with ExitStack() as stack:
        for turn in range(served.server.http.limits.connections * 2):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=20))
            client.sendall(b"POST /api/pipes/shop/pause HTTP/1.1\r\nContent-Length: 9\r\n\r\n" if turn % 2 else b"GET /health HT")
            if turn % 16 == 0:
                begun = time.monotonic()
                assert served.ask("GET", "/health").status == 200
                assert time.monotonic() - begun < 5
        assert served.ask("GET", "/api/status").status == 200


def test_when_all_connections_are_at_work_the_process_still_says_that_it_lives(served: Served) -> None:
    _limit(served, connections=2)
    with ExitStack() as stack:
        for _ in range(2):
            listener = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=20))
            listener.sendall(f"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
            assert b" 200 " in listener.recv(100)
        wait_until(lambda: served.ask("GET", "/api/status").status == 503, 20)
        assert served.ask("GET", "/health").status == 200


def test_a_client_that_sends_a_byte_now_and_then_is_let_go(served: Served) -> None:
    _limit(served, idle_s=0.6, receive_s=0.6, io_s=0.6)
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
        begun = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - begun < 10:
                client.sendall(b"G")
                time.sleep(0.2)
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: " + b"9" * 5000 + b"\r\n", 413),
        (b"Content-Length: 2\r\nContent-Length: 2\r\n", 400),
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", 411),
        (b"Content-Length: +2\r\n", 411),
        (b"Content-Length: 0x2\r\n", 411),
        (b"Content-Length: 2\r\nHost: elsewhere\r\n", 400),
        (b"Content-Length: 2\nX: y\r\n", 400),
        (b"Content-Length: 2\r\nX: y\rz\r\n", 400),
        (b"Content-Length: 2\r\nX: y\x00z\r\n", 400),
        (b"X: y\r\n folded: z\r\nContent-Length: 2\r\n", 400),
        (b"X: " + b"y" * 900_000 + b"\r\nContent-Length: 2\r\n", 431),
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused(served: Served, head: bytes, status: int) -> None:
    first = b"POST /api/pipes/shop/pause HTTP/1.1\r\n" + f"Host: 127.0.0.1:{served.port}\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
    begun = time.monotonic()
    assert f" {status} ".encode() in served.raw(first + head + b"\r\n{}").partition(b"\r\n")[0]
    assert time.monotonic() - begun < 5
    assert served.control.asked == []
    assert served.ask("GET", "/health").status == 200


def test_a_status_that_is_long_in_coming_holds_up_no_probe(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    known, go_on = served.control.status, threading.Event()
    monkeypatch.setattr(served.control, "status", lambda: go_on.wait(60) and known())
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as listener:
        listener.sendall(f"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        assert b" 200 " in listener.recv(100)
        assert served.ask("GET", "/health").status == 200
        assert _streams(served) == 200
        go_on.set()
        assert served.ask("GET", "/api/status").status == 200


def _limit(served: Served, **limits: Any) -> None:
    """Change the limits for new connections."""
    served.server.http.limits = replace(served.server.http.limits, **limits)


def _streams(served: Served) -> int:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=20)
    try:
        connection.request("GET", "/api/stream")
        return connection.getresponse().status
    finally:
        connection.close()


def test_permitted_listen_addresses() -> None:
    for listen in ("0.0.0.0:0", "[::]:0", "10.0.0.1:0", "example.com:80"):
        with pytest.raises(DefiniteError, match="other machines") as error:
            serve(FakeControl(), listen, TOKEN)
        assert "TLS" in error.value.hint
    for listen in ("8088", "127.0.0.1", "127.0.0.1:x", "http://127.0.0.1:1", "127.0.0.1:99999", "u@127.0.0.1:1"):
        with pytest.raises(DefiniteError, match="no address"):
            serve(FakeControl(), listen, TOKEN)
    with pytest.raises(DefiniteError, match="token"):
        serve(FakeControl(), "127.0.0.1:0", "")
    with serve(FakeControl(), ":0", TOKEN) as server, pytest.raises(DefiniteError, match="in use") as error:
        serve(FakeControl(), str(server.address), TOKEN)
    assert "listen" in error.value.hint
    # The port is free again at once.
    with serve(FakeControl(), str(server.address), TOKEN) as again:
        assert again.url == server.url
