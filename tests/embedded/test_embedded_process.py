"""The embedded server as a process: start, stop, kill, locks, and the end of its owner."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from headrace.cli import main
from headrace.embedded.engine.directory_lock import DirectoryInUse, read_serving_process
from headrace.embedded.process import EmbeddedServer, ping
from headrace.errors import DefiniteError, HeadraceError, TransientError
from testkit.machine.wait_condition import wait_until
from testkit.pipelines.embedded_access import basic


def _run(server: EmbeddedServer, query: str, body: bytes = b"") -> bytes:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", f"/?{urlencode({'query': query})}", body=body, headers=basic(server.password))
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return answer


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "db") as running:
        yield running


def test_the_server_listens_on_loopback_and_says_where(server: EmbeddedServer) -> None:
    record = server.path / "headrace-server.json"
    assert json.loads(record.read_text()) == {"pid": server.pid, "host": "127.0.0.1", "port": server.port}
    assert record.stat().st_mode & 0o777 == 0o600
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert ping(server.host, server.port)


def test_any_directory_name_will_do(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "a b&c=%41 d'ü#") as server:
        _run(server, "CREATE TABLE t (a Int32) ENGINE = MergeTree ORDER BY a")
        assert server.alive
        assert (server.path / "store").is_dir()
    assert not server.alive


def test_data_survives_an_orderly_stop(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "db") as first:
        _run(first, "CREATE DATABASE d")
        _run(first, "CREATE TABLE d.t (a Int32) ENGINE = MergeTree ORDER BY a")
        _run(first, "CREATE TABLE plain (a Int32) ENGINE = MergeTree ORDER BY a")
        _run(first, "INSERT INTO d.t FORMAT TSV", b"1\n2\n")
        _run(first, "INSERT INTO plain FORMAT TSV", b"3\n")
        pid = first.pid
    assert not _alive(pid)
    assert read_serving_process(tmp_path / "db") is None
    with EmbeddedServer(tmp_path / "db") as second:
        assert _run(second, "SELECT sum(a) FROM d.t") == b"3\n"
        assert _run(second, "SELECT sum(a) FROM plain") == b"3\n"


def test_acknowledged_inserts_survive_kill_9_and_unfinished_ones_leave_no_trace(tmp_path: Path) -> None:
    acknowledged = 0
    for turn in range(4):
        server = EmbeddedServer(tmp_path / "db").start()
        _run(server, "CREATE TABLE IF NOT EXISTS t (a Int32, s String) ENGINE = MergeTree ORDER BY a")
        assert int(_run(server, "SELECT count() FROM t")) in (acknowledged, acknowledged + 1000)
        acknowledged = int(_run(server, "SELECT count() FROM t"))
        threading.Timer(0.1 + 0.15 * turn, os.kill, (server.pid, signal.SIGKILL)).start()
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                _run(server, "INSERT INTO t SELECT number, toString(number) FROM numbers(1000)")
                acknowledged += 1000
        server.stop()
    assert acknowledged >= 4000
    with EmbeddedServer(tmp_path / "db") as last:
        assert int(_run(last, "SELECT count() FROM t")) - acknowledged in (0, 1000)
        assert _run(last, "CHECK TABLE t SETTINGS check_query_single_value_result = 1") == b"1\n"


def test_sigterm_lets_a_running_request_finish(server: EmbeddedServer) -> None:
    answers: list[bytes] = []
    query = "SELECT count() FROM numbers(12) WHERE sleepEachRow(0.1) = 0 SETTINGS max_block_size = 1"
    slow = threading.Thread(target=lambda: answers.append(_run(server, query)))
    idle = http.client.HTTPConnection(server.host, server.port)
    idle.request("GET", "/ping")
    idle.getresponse().read()
    slow.start()
    time.sleep(0.5)
    os.kill(server.pid, signal.SIGTERM)
    slow.join()
    idle.close()
    assert answers == [b"12\n"]
    wait_until(lambda: not ping(server.host, server.port), 15)


def test_sigterm_lets_a_running_insert_finish(server: EmbeddedServer) -> None:
    _run(server, "CREATE TABLE t (a Int32) ENGINE = MergeTree ORDER BY a")

    def rows() -> Iterator[bytes]:
        for n in range(10):
            yield b"%d\n" % n
            if n == 3:
                os.kill(server.pid, signal.SIGTERM)
            time.sleep(0.05)

    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", f"/?{urlencode({'query': 'INSERT INTO t FORMAT TSV'})}", body=rows(), headers=basic())
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"")
        assert response.headers["Connection"] == "close"
    server.stop()
    with EmbeddedServer(server.path) as again:
        assert _run(again, "SELECT count() FROM t") == b"10\n"


_OWNER = """
import sys, time
from pathlib import Path
from headrace.embedded.process import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1])).start()
print(server.pid, server.port, flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def _owner(path: Path) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", _OWNER, str(path)], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        try:
            pid, port = map(int, owner.stdout.readline().split())
            yield owner, pid, port
        finally:
            owner.kill()


def test_the_server_dies_with_its_owner_and_frees_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with _owner(path) as (owner, pid, _):
        assert _alive(pid)
        owner.kill()
        owner.wait()
        # No pause: the next owner must handle a server that is still stopping.
        with EmbeddedServer(path) as next_server:
            assert _run(next_server, "SELECT 1") == b"1\n"
        assert not _alive(pid)


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(tmp_path: Path) -> None:
    with _owner(tmp_path / "db") as (owner, pid, _):
        assert os.getsid(pid) == pid != os.getsid(owner.pid)


def test_a_directory_that_is_served_cannot_be_served_twice(server: EmbeddedServer) -> None:
    started = time.monotonic()
    with pytest.raises(DirectoryInUse) as caught:
        EmbeddedServer(server.path, lock_wait_seconds=0.3).start()
    assert time.monotonic() - started < 5
    assert str(server.pid) in str(caught.value)
    assert str(server.path) in str(caught.value)
    assert caught.value.hint
    assert _run(server, "SELECT 1") == b"1\n"


def test_a_directory_held_by_a_foreign_chdb_process_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "db"
    code = f"import chdb, time; c = chdb.connect({str(path)!r}); print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as foreign:
        assert foreign.stdout is not None
        try:
            assert foreign.stdout.readline() == "up\n"
            with pytest.raises(DirectoryInUse):
                EmbeddedServer(path, lock_wait_seconds=0.2).start()
        finally:
            foreign.kill()


def test_connect_or_start_uses_the_running_server(server: EmbeddedServer) -> None:
    found = EmbeddedServer.connect_or_start(server.path)
    assert (found.port, found.owned, found.pid) == (server.port, False, 0)
    with found:
        assert _run(found, "SELECT 1") == b"1\n"
    assert ping(server.host, server.port)


def test_connect_or_start_starts_one_where_none_runs(tmp_path: Path) -> None:
    path = tmp_path / "db"
    first = EmbeddedServer(path).start()
    os.kill(first.pid, signal.SIGKILL)
    first.stop()
    with EmbeddedServer.connect_or_start(path) as second:
        assert second.owned
        assert _run(second, "SELECT 1") == b"1\n"


def test_many_that_connect_or_start_at_once_share_one_server(tmp_path: Path) -> None:
    servers: list[EmbeddedServer] = []
    threads = [threading.Thread(target=lambda: servers.append(EmbeddedServer.connect_or_start(tmp_path / "db"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [server.owned for server in servers].count(True) == 1
    assert len({server.port for server in servers}) == 1
    for server in servers:
        server.stop()


def test_a_port_in_use_and_a_bad_directory_are_definite_errors(server: EmbeddedServer, tmp_path: Path) -> None:
    with pytest.raises(DefiniteError, match="cannot listen") as caught:
        EmbeddedServer(tmp_path / "other", port=server.port).start()
    assert caught.value.place == f"127.0.0.1:{server.port}"
    with pytest.raises(DefiniteError, match="question mark"):
        EmbeddedServer(tmp_path / "what?").start()
    (tmp_path / "file").write_text("")
    with pytest.raises(DefiniteError, match="cannot be created"):
        EmbeddedServer(tmp_path / "file" / "db").start()


def test_a_query_is_printed_as_a_table_or_in_the_format_that_it_names(server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"clickhouse://{server.host}:{server.port}/default"
    assert main(["sql", address, "SELECT 1 AS one, 'a FORMAT b' AS text"]) == 0
    assert [word for word in capsys.readouterr().out.split() if word.isalnum()] == ["one", "text", "1", "a", "FORMAT", "b"]
    assert main(["sql", address, "SELECT 1 AS one, 2 AS two FORMAT TSVWithNames SETTINGS max_threads = 1;"]) == 0
    assert capsys.readouterr().out == "one\ttwo\n1\t2\n"


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            TransientError,
            "the embedded server was ended by SIGTERM while it started",
        ),
        ("import sys; sys.exit(3)", DefiniteError, "the embedded server ended with exit code 3 while it started"),
        ("import sys; sys.exit('no engine')", DefiniteError, "ended with exit code 1 while it started:\nno engine"),
    ],
)
def test_a_server_that_ends_at_its_start_names_the_cause(tmp_path: Path, code: str, kind: type[HeadraceError], message: str) -> None:
    class Failing(EmbeddedServer):
        _program = ("-c", code)

    with pytest.raises(kind) as raised, Failing(tmp_path / "sink"):
        pass
    assert type(raised.value) is kind
    assert raised.value.message.endswith(message)


def test_the_engine_finds_the_auxiliary_vector(tmp_path: Path) -> None:
    """It looks after the environment, which a new variable moves. What it read there made it crash, with some numbers of variables."""
    code = """
import ctypes, os
from headrace.embedded.engine.engine import place_after_environment, read_auxiliary_vector
os.environ["NEW"] = "1"
place_after_environment(read_auxiliary_vector())
words = ctypes.POINTER(ctypes.c_size_t).in_dll(ctypes.CDLL(None), "environ")
end = next(place for place in range(100_000) if not words[place]) + 1
vector = open("/proc/self/auxv", "rb").read()
assert ctypes.string_at(ctypes.addressof(words.contents) + end * ctypes.sizeof(ctypes.c_size_t), len(vector)) == vector
os.environ["NEWER"] = "2"
print(os.popen("echo $NEW $NEWER").read())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "2"]), done.stderr


@pytest.mark.parametrize(("crashes", "starts"), [(2, True), (3, False)])
def test_a_start_in_which_the_engine_crashes_is_repeated(
    tmp_path: Path, crashes: int, starts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Engine crashes are rare and leave nothing behind: the third start succeeds, and a fourth is not tried."""
    counter = tmp_path / "starts"
    counter.write_text("")
    code = (
        f"import pathlib, runpy, os, signal; file = pathlib.Path({str(counter)!r}); file.write_text(file.read_text() + 'x')\n"
        f"if len(file.read_text()) <= {crashes}: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "runpy.run_module('headrace.embedded', run_name='__main__')"
    )

    class Crashing(EmbeddedServer):
        _program = ("-c", code)

    server = Crashing(tmp_path / "sink")
    if starts:
        with server:
            assert _run(server, "SELECT 42") == b"42\n"
    else:
        with pytest.raises(TransientError, match="ended by SIGSEGV while it started") as raised, server:
            pass
        # The child's log shows where the engine crashed.
        assert "Fatal Python error: Segmentation fault" in raised.value.message
    assert counter.read_text() == "xxx"
    assert [record.levelname for record in caplog.records if "ended by SIGSEGV" in record.message] == ["WARNING"] * 2
