"""Limits of the socket server under clients that trickle bytes or stay idle, over real sockets."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest

from headrace.http.request import Body, HeadLimits, HttpError, Request, RequestStream
from headrace.http.response import ResponseWriter
from headrace.http.server import HttpLimits, HttpServer, StopEvent, listen
from testkit.machine.wait_condition import wait_until

LIMITS = HttpLimits(
    connections=2,
    reserved=1,
    idle_s=30,
    receive_s=30,
    io_s=30,
    grace_s=5,
    hurry_s=1,
    head=HeadLimits(),
    busy_response=b"HTTP/1.1 503 Busy\r\n\r\n",
)


@dataclass
class Handler:
    """Answers at once and reads no body; `/wait` is answered when `go_on` is set."""

    liveness_paths: frozenset[str] = frozenset({"/ping"})
    go_on: threading.Event = field(default_factory=threading.Event)
    busy: int = 0

    def receive(self, request: Request, stream: RequestStream) -> None:
        request.body = Body(stream, int(request.headers.get("content-length", "0")))

    def answer(self, request: Request, response: ResponseWriter) -> None:
        if request.path == "/wait":
            self.busy += 1
            self.go_on.wait(60)
        response.send(200, {}, b"")

    def send_error(self, error: HttpError, response: ResponseWriter) -> None:
        response.send(error.status, {}, b"")


@dataclass(frozen=True)
class Served:
    handler: Handler
    port: int

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        client.sendall(sent)
        return client

    def status(self, path: str) -> int:
        """The status of a request on its own connection; 0 if the server closes it without a response."""
        with self.connect(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()) as client, suppress(OSError):
            return int(client.recv(100).split()[1]) if select.select([client], [], [], 20)[0] and client.recv(1, socket.MSG_PEEK) else 0
        return 0

    def occupy(self, stack: ExitStack, count: int) -> None:
        """Keep connections busy."""
        for number in range(count):
            stack.enter_context(self.connect(b"GET /wait HTTP/1.1\r\n\r\n"))
            wait_until(lambda number=number: self.handler.busy == number + 1, 10)


@pytest.fixture
def served() -> Iterator[Served]:
    listener, stop, handler = listen("127.0.0.1", 0), StopEvent(), Handler()
    thread = threading.Thread(target=HttpServer(listener, handler, LIMITS).run, args=(stop,))
    thread.start()
    try:
        yield Served(handler, int(listener.getsockname()[1]))
    finally:
        handler.go_on.set()
        stop.set()
        thread.join(30)
        stop.close()
    assert not thread.is_alive()


def test_idle_reserved_connections_do_not_become_ordinary_ones(served: Served) -> None:
    with ExitStack() as stack:
        served.occupy(stack, 2)
        for _ in range(3):
            stack.enter_context(served.connect())
        assert served.status("/other") == 503
        for _ in range(3):
            stack.enter_context(served.connect(b"GET /wait HTTP/1.1\r\n\r\n"))
        assert served.handler.busy == 2, "only two connections may do work"
        wait_until(lambda: served.status("/ping") == 200, 5)


def test_a_rejected_client_that_sends_single_bytes_is_disconnected(served: Served) -> None:
    with ExitStack() as stack:
        served.occupy(stack, 2)
        refused = stack.enter_context(served.connect(b"GET /other HTTP/1.1\r\n\r\n"))
        assert b" 503 " in refused.recv(100)
        begun = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - begun < 10:
                refused.sendall(b"x")
                time.sleep(0.2)
        assert time.monotonic() - begun < 5
        assert served.status("/ping") == 200


def test_an_unread_body_keeps_no_other_client_out(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            slow = stack.enter_context(served.connect(b"POST /ping HTTP/1.1\r\nContent-Length: 1000\r\n\r\nx"))
            assert b" 200 " in slow.recv(100)
        for _ in range(3):
            # The server may need a moment to note that a connection is answered or closed; the bodies would keep it for 30 s.
            wait_until(lambda: served.status("/other") == 200, 10)


def test_the_rest_of_an_unread_body_is_skipped(served: Served) -> None:
    with served.connect(b"POST /other HTTP/1.1\r\nContent-Length: 3\r\n\r\nx") as client:
        assert b" 200 " in client.recv(100)
        client.sendall(b"yzGET /other HTTP/1.1\r\n\r\n")
        assert b" 200 " in client.recv(100)


def test_a_lack_of_threads_does_not_end_the_server(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as lacking:
        lacking.setattr(threading.Thread, "start", fail)
        assert served.status("/other") == 0
    assert served.status("/other") == 200
