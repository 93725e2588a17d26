"""Parts of the soak: the proxy, and the criteria for memory. `make soak` runs the soak."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from headrace.sinks.registry import SINK_CONNECTORS
from testkit.pipelines.pipeline import Finished, Pipeline
from testkit.soak.criteria import Outcome, SoakComparison, fitted, growths, judge
from testkit.soak.kill_peers import KillPeers
from testkit.soak.kill_routes import ROUTES, KillRoute
from testkit.soak.kills import Kill, KillOutcome, KillRounds, render_kills
from testkit.soak.monitors import ProcessSample, Sample
from testkit.soak.proxy import Fault, Proxy
from testkit.soak.report import BEGIN, END, KILLS_BEGIN, KILLS_END, update


@pytest.fixture
def echo_port() -> Iterator[int]:
    """An echo server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer(connection: socket.socket) -> None:
            with connection:
                try:
                    while data := connection.recv(1 << 16):
                        connection.sendall(data)
                except OSError:
                    return

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield int(listening.getsockname()[1])


def connected(wire: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", wire.port), timeout=5)


def echoed(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    got = b""
    while len(got) < len(data):
        got += connection.recv(1 << 16)
    return got


def suffering(wire: Proxy, fault: Fault, seconds: float) -> threading.Thread:
    thread = threading.Thread(target=wire.suffer, args=(fault, seconds))
    thread.start()
    time.sleep(0.1)
    return thread


def test_a_wire_carries_all_bytes_and_is_cut_by_a_reset(echo_port: int) -> None:
    with Proxy("test", echo_port) as wire, connected(wire) as connection:
        data = bytes(range(256)) * 4000
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        got = b""
        while len(got) < len(data):
            got += connection.recv(1 << 16)
        sender.join()
        assert got == data
        wire.suffer(Fault.RESET, 0)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        with connected(wire) as another:
            assert echoed(another, b"again") == b"again"


def test_a_wire_refuses_and_comes_back(echo_port: int) -> None:
    with Proxy("test", echo_port) as wire:
        fault = suffering(wire, Fault.REFUSE, 0.5)
        with pytest.raises(ConnectionRefusedError):
            connected(wire)
        fault.join()
        with connected(wire) as connection:
            assert echoed(connection, b"back") == b"back"


def test_a_stalled_wire_loses_nothing(echo_port: int) -> None:
    with Proxy("test", echo_port) as wire, connected(wire) as connection:
        assert echoed(connection, b"one") == b"one"
        fault = suffering(wire, Fault.STALL, 0.6)
        begun = time.monotonic()
        assert echoed(connection, b"two") == b"two"
        assert time.monotonic() - begun > 0.3
        fault.join()


def test_a_half_open_wire_is_silent_then_reset(echo_port: int) -> None:
    with Proxy("test", echo_port) as wire, connected(wire) as connection:
        assert echoed(connection, b"one") == b"one"
        fault = suffering(wire, Fault.HALF_OPEN, 0.8)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(5)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        fault.join()


def test_a_slow_wire_is_slow(echo_port: int) -> None:
    with Proxy("test", echo_port, slow_bytes_per_s=64 << 10) as wire, connected(wire) as connection:
        fault = suffering(wire, Fault.SLOW, 1.0)
        begun = time.monotonic()
        assert len(echoed(connection, b"x" * (32 << 10))) == 32 << 10
        assert time.monotonic() - begun > 0.4
        fault.join()


def test_an_unavailable_peer_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = int(listening.getsockname()[1])
    # The reset may arrive during the connect.
    with Proxy("test", port) as wire, pytest.raises(ConnectionResetError), connected(wire) as connection:
        connection.recv(1)


def sampled(megabytes: list[float], kind: str = "driver") -> list[Sample]:
    """Samples of a process every ten seconds, from its tenth minute on."""
    return [
        Sample(number * 10.0, (ProcessSample(7, kind, 600 + number * 10.0, 0, int(size * 1e6), 50, 20, 1.0),), {}, 0, 0, 0, 0.0, True)
        for number, size in enumerate(megabytes)
    ]


def memory_is_flat(samples: list[Sample]) -> bool:
    found = judge(Outcome([], samples, [], [], [], [], []))
    return next(finding.met for finding in found if finding.what.startswith("memory"))


def test_memory_that_wobbles_is_flat_and_memory_that_rises_is_not() -> None:
    assert fitted([(0, 1), (10, 3), (20, 5)]) == (0.2, 1.0)
    wobbling = [400 + 20 * (number % 7) for number in range(200)]
    rising = [400 + number * 0.6 for number in range(200)]
    assert memory_is_flat(sampled(wobbling))
    assert not memory_is_flat(sampled(rising))
    # 0.6 MB in ten seconds are 216 in an hour.
    assert round(growths(sampled(rising))[0].per_hour) == 216


def test_filtered_rows_do_not_affect_a_verdict() -> None:
    for verdict in ("3 tables, 9 rows, 0 differences", "3 tables, 9 rows, 0 differences; filters exclude 5 source rows"):
        assert SoakComparison("mysql", verdict, 0).is_equal
    assert not SoakComparison("mysql", "3 tables, 9 rows, 10 differences; filters exclude 0 source rows", 0).is_equal


def test_the_report_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Reliability\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    update(page, "new\n")
    assert page.read_text() == f"# Reliability\n\n{BEGIN}\nnew\n{END}\n\nafter\n"


def test_the_report_of_kill_rounds_counts_them_and_takes_its_own_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before {BEGIN}soak{END} between {KILLS_BEGIN}old{KILLS_END} after")
    kills = [
        Kill("a to b", "all processes", "snapshot", 1.0),
        Kill("a to b", "JVM", "snapshot", 2.0),
        Kill("c", "nothing", "had ended", 3.0),
    ]
    outcome = KillOutcome(7, 3, kills, seconds=60.0)
    outcome.comparisons["a to b"] += 1
    outcome.rows["a to b"] += 1200
    update(page, render_kills(outcome, "today", "abc", "a machine"), KILLS_BEGIN, KILLS_END)
    text = page.read_text()
    assert text.startswith(f"before {BEGIN}soak{END} between {KILLS_BEGIN}\n**Passed**")
    assert text.endswith(f"{KILLS_END} after")
    assert "3 of 3 rounds in 1 minutes" in text
    assert "2 kills; 1 comparisons of 1,200 rows; 0 findings" in text
    for row in ("| a to b | 2 | 2 | 1 | 1,200 |", "| c | 1 | 0 | 0 | 0 |", "| snapshot | 2 |", "| JVM, then the rest | 1 |"):
        assert row in text
    outcome.findings.append("a to b, pipe 2: 3 missing\nmore")
    assert "**FAILED**" in render_kills(outcome, "today", "abc", "a machine")
    assert "- a to b, pipe 2: 3 missing\n" in render_kills(outcome, "today", "abc", "a machine")


def test_rounds_that_were_not_run_are_not_passed() -> None:
    assert not KillOutcome(7, 2, [Kill("a", "JVM", "snapshot", 1.0)]).passed


def test_kinds_of_pipes_have_names_of_their_own() -> None:
    assert len({kind.title for kind in ROUTES}) == len({kind.__name__.lower() for kind in ROUTES}) == len(ROUTES)


def test_every_sink_has_a_kind_of_pipe_that_is_killed() -> None:
    """A sink that a user's code defines, and the standard output of the pipe itself, have tests of their own."""
    elsewhere = {"stdout", "producer"}
    assert {kind.sink for kind in ROUTES} == {one.name for one in SINK_CONNECTORS} - elsewhere


class BrokenRoute(KillRoute):
    """A pipe whose run ends by itself, or whose target differs from its source."""

    title = "broken pipe"

    def __init__(self, peers: KillPeers, trouble: str) -> None:
        super().__init__(peers)
        self._trouble = trouble

    def _make(self) -> Pipeline:
        return BrokenPipeline("no source", "no sink", self.place / "state", () if self._trouble == "code 2" else ("--help",))

    def change(self, chooser: random.Random) -> None:
        del chooser

    def changing(self, seed: int) -> AbstractContextManager[object]:
        return nullcontext(seed)

    def compare(self) -> int:
        if self._trouble == "3 missing":
            raise AssertionError("accounts: 3 missing")
        raise RuntimeError("the target cannot be read")


class BrokenPipeline(Pipeline):
    def once(self, *options: str, timeout_s: float = 0.0) -> Finished:
        del options, timeout_s
        return Finished(0, "")


@pytest.mark.parametrize("trouble", ["code 2", "3 missing", "cannot be read"])
def test_kill_rounds_find_broken_pipes_and_keep_their_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    def broken(peers: KillPeers) -> BrokenRoute:
        return BrokenRoute(peers, trouble)

    monkeypatch.setattr("testkit.soak.kills.ROUTES", (broken,))
    monkeypatch.setattr("testkit.soak.kills._FIRST_GUESS_S", 100_000.0)  # (the round waits until the run ends)
    said: list[str] = []
    outcome = KillRounds(3, tmp_path, said.append).run(1)
    assert not outcome.passed
    (finding,) = outcome.findings
    assert finding.startswith("broken pipe, pipe 1: ")
    assert trouble in finding
    assert f"FINDING: {finding}" in said
    assert sorted(path.name for path in (tmp_path / "brokenroute").iterdir()) == ["1", "2"]
