"""Which failures are retried, which halt, and for how long."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.retry import retrying
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translate_error
from headrace.sinks.clickhouse.server.url import ClickHouseTarget

TARGET = ClickHouseTarget("127.0.0.1", password="hunter2")


@contextmanager
def answering(reply: bytes | None) -> Iterator[ClickHouseTarget]:
    """Return a port that sends the bytes on every connection (None: closes it immediately)."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    if reply is not None:
                        peer.recv(65536)
                        peer.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield ClickHouseTarget("127.0.0.1", listener.getsockname()[1], password="hunter2")
        # Wakes the thread that waits in accept.
        listener.shutdown(socket.SHUT_RDWR)


def failure(target: ClickHouseTarget) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        connect(target)
    assert "hunter2" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_a_refused_connection_is_transient() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    error = failure(ClickHouseTarget("127.0.0.1", port, password="hunter2"))
    assert isinstance(error, TransientError)
    assert "Connection refused" in error.message
    assert f"127.0.0.1:{port}" in error.place


def test_a_dropped_connection_is_transient() -> None:
    with answering(None) as target:
        assert isinstance(failure(target), TransientError)


def test_a_busy_proxy_is_transient() -> None:
    with answering(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as target:
        error = failure(target)
    assert isinstance(error, TransientError)
    assert "503" in error.message


def test_another_service_on_the_port_is_definite() -> None:
    with answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as target:
        assert isinstance(failure(target), DefiniteError)


def test_tls_to_a_plain_port_is_definite() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as target:
        error = failure(ClickHouseTarget("127.0.0.1", target.port, password="hunter2", secure=True))
    assert isinstance(error, DefiniteError)
    assert "no TLS" in error.message


def test_an_unknown_host_is_definite() -> None:
    error = failure(ClickHouseTarget("no-such-host.invalid", password="hunter2"))
    assert isinstance(error, DefiniteError)
    assert "no-such-host.invalid is unknown" in error.message


@pytest.mark.parametrize("code", [159, 202, 209, 210, 225, 241, 242, 252, 319, 999])
def test_temporary_error_codes_are_transient(code: int) -> None:
    assert isinstance(translate_error(DatabaseError(f"Code: {code}. DB::Exception: x", code=code), TARGET, "writing"), TransientError)


@pytest.mark.parametrize(
    ("code", "remedy"), [(516, "password"), (497, "grant"), (60, "does not exist"), (53, "ClickHouse's own"), (164, "read")]
)
def test_other_codes_are_definite_and_name_a_remedy(code: int, remedy: str) -> None:
    error = translate_error(DatabaseError(f"Code: {code}. DB::Exception: x. (version 26.9.2.1)", code=code), TARGET, "writing")
    assert isinstance(error, DefiniteError)
    assert remedy in error.hint
    assert "version" not in error.message


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def test_too_many_partitions_is_definite_and_too_many_parts_is_transient() -> None:
    crowded = DatabaseError("Code: 252. DB::Exception: Too many parts (300)", code=252)
    scattered = DatabaseError("Code: 252. DB::Exception: Too many partitions for single INSERT block (more than 100)", code=252)
    assert isinstance(translate_error(crowded, TARGET, "writing"), TransientError)
    assert isinstance(translate_error(scattered, TARGET, "writing"), DefiniteError)


def test_retries_wait_longer_each_time_and_are_reported() -> None:
    clock, reported = Clock(), []
    outcomes = [TransientError("away"), TransientError("away"), TransientError("away"), "done"]

    def call() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, TransientError):
            raise outcome
        return str(outcome)

    result = retrying(
        call,
        first_wait_s=1,
        most_wait_s=3,
        on_wait=lambda e, n, s: reported.append((e.message, n, s)),
        sleep=clock.sleep,
        clock=clock,
        jitter=lambda: 1.0,
    )
    assert result == "done"
    assert reported == [("away", 1, 1.0), ("away", 2, 2.0), ("away", 3, 3.0)]
    assert clock.waits == [1.0, 2.0, 3.0]


def test_retrying_ends_at_the_deadline_with_the_last_error() -> None:
    clock = Clock()

    def call() -> None:
        raise TransientError(f"away at {clock.now:.0f}")

    with pytest.raises(TransientError, match="away at"):
        retrying(call, sleep=clock.sleep, clock=clock)
    assert 500 < clock.now <= 600


def test_retrying_ends_after_so_many_attempts() -> None:
    clock = Clock()
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise TransientError("away")

    with pytest.raises(TransientError):
        retrying(call, attempts=3, sleep=clock.sleep, clock=clock)
    assert len(calls) == 3


def test_a_definite_error_is_not_tried_again() -> None:
    clock = Clock()

    def call() -> None:
        raise DefiniteError("wrong")

    with pytest.raises(DefiniteError):
        retrying(call, sleep=clock.sleep, clock=clock)
    assert clock.waits == []
