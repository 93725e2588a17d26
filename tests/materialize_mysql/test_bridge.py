"""The bridge of an embedded server: it starts and stops hosted pipes, and runs requests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.embedded import pipe_bridge
from headrace.embedded.engine.errors import QueryFailure
from headrace.embedded.pipe_bridge import PipeBridge
from headrace.materialize_mysql import keeper
from headrace.materialize_mysql.background_pipe import BackgroundPipe
from headrace.materialize_mysql.bridge import HOSTING, Bridge

SLOW_END = """
import os, pathlib, signal, sys, time
def end(*_):
    pathlib.Path("ending").touch()
    while not pathlib.Path("may-end").exists():
        time.sleep(0.05)
    sys.exit()
signal.signal(signal.SIGTERM, end)
pathlib.Path("begun").write_text(str(os.getpid()))
time.sleep(600)
"""
PATIENCE_S = 60.0


@pytest.fixture
def pipe(tmp_path: Path) -> BackgroundPipe:
    """A pipe whose process does not end before the file `may-end` exists."""
    made = BackgroundPipe(tmp_path / "headrace" / "pipes" / "shop")
    made.directory.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "timeit", "-n", "1", "-r", "1", SLOW_END]
    (made.directory / keeper.PLAN).write_text(json.dumps({"command": command, "retry_ms": 100}))
    (made.directory / keeper.SECRET).write_text("{}")
    return made


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def replicating(pipe: BackgroundPipe) -> int:
    """Return the process of a running pipe; 0 before it has begun."""
    file = pipe.directory / "begun"
    return int(file.read_text() or 0) if pipe.is_running and file.exists() else 0


def test_a_server_resumes_the_pipes_that_the_bridge_of_a_killed_server_stops(pipe: BackgroundPipe, tmp_path: Path) -> None:
    killed = PipeBridge(tmp_path, hosts=True)
    killed.resume()
    until(lambda: replicating(pipe))
    first = replicating(pipe)
    # The kernel closes the control socket of a killed server.
    killed._control.close()
    until((pipe.directory / "ending").exists)
    with PipeBridge(tmp_path, hosts=True) as bridge:
        bridge.resume()
        # Other requests do not wait for the resume; a resume that does not wait ends before the second one.
        for _ in range(2):
            assert bridge.run({"run": "take over"}) == {"stopped": False}
        (pipe.directory / "may-end").touch()
        until(lambda: replicating(pipe) not in (0, first))
        assert killed._process.wait(PATIENCE_S) == 0
        assert pipe.is_running
    assert not pipe.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(first, signal.SIG_DFL)


def test_a_request_whose_process_cannot_start_does_not_end_the_bridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosted pipes are stopped at its end, even if the process for that cannot start at once."""
    popen, started = subprocess.Popen, 0

    def start(command: list[str], **options: int) -> subprocess.Popen[bytes]:
        nonlocal started
        started += 1
        if started in (1, 3):
            raise BlockingIOError("no more processes")
        return popen([sys.executable, "-c", f"print({command[-1]!r})"], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    (tmp_path / "headrace" / "pipes").mkdir(parents=True)
    bridge = Bridge(str(tmp_path))
    ours, theirs = socket.socketpair()
    requests = [socket.socketpair(), socket.socketpair()]
    for _, request in requests:
        with request:
            socket.send_fds(ours, [b"r"], [request.fileno()])
    ours.sendall(HOSTING)
    ours.close()
    with theirs:
        bridge.serve(theirs)
    for (answer, _), expected in zip(requests, [b"", f"{tmp_path}\n".encode()], strict=True):
        with answer, answer.makefile("rb") as stream:
            assert stream.read() == expected
    bridge.end()
    assert started == 4


def test_statements_that_hang_are_few_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    with PipeBridge(tmp_path, hosts=False) as bridge:
        os.kill(bridge._process.pid, signal.SIGSTOP)

        def run() -> None:
            with pytest.raises(QueryFailure) as caught:
                bridge.run_statement({"run": "statement"})
            codes.append(caught.value.code)

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(bridge._open) == 8)
        monkeypatch.setattr(pipe_bridge, "_TURN_S", 0.1)
        run()
        assert codes == [159]
        # The stop of the server ends them together.
        bridge.end_requests()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert codes == [159, *[1002] * 8]
        monkeypatch.setattr(pipe_bridge, "_STATEMENT_S", 0.1)
        run()
        assert codes[-1] == 159
        os.kill(bridge._process.pid, signal.SIGCONT)


def test_a_request_that_the_bridge_cannot_start_has_clickhouse_s_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PipeBridge(tmp_path, hosts=False) as bridge:
        monkeypatch.setattr(socket, "send_fds", lambda *_: 1)
        with pytest.raises(QueryFailure, match="ended without an answer"):
            bridge.run_statement({"run": "statement"})


def test_a_request_that_is_ended_leaves_no_process_suspended(tmp_path: Path) -> None:
    """The bridge ends requests by SIGTERM. One of them may have suspended a pipe."""
    suspended = subprocess.Popen(["sleep", "600"])
    program = f"""
import sys, time
from headrace.materialize_mysql import bridged_request
from headrace.materialize_mysql.background_pipe import BackgroundPipe

BackgroundPipe._keeper_pid = lambda self: {suspended.pid}
def freeze(directory, request):
    with BackgroundPipe(directory).frozen():
        print("suspended", flush=True)
        time.sleep(600)
bridged_request.run_request = freeze
sys.argv = ["bridged_request", {str(tmp_path)!r}]
bridged_request.main()
"""

    def state() -> str:
        return Path(f"/proc/{suspended.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    request = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert request.stdin is not None
        assert request.stdout is not None
        request.stdin.write('{"run": "statement"}\n')
        request.stdin.flush()
        assert request.stdout.readline() == "suspended\n"
        until(lambda: state() == "T")
        request.terminate()
        request.wait(PATIENCE_S)
        until(lambda: state() == "S")
    finally:
        request.kill()
        request.communicate()
        suspended.kill()
        suspended.wait()
