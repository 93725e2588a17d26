"""The fork server for sources: the script that Spark starts passes its environment and streams to a fork, and ends with it."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from headrace.spark.runtime.fork_server import RUNNER, ForkServer, python_script
from testkit.machine.wait_condition import wait_until

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ForkServer]]:
    scratch = tmp_path_factory.mktemp("scratch")
    script = scratch / "python"
    script.write_text(python_script(scratch, os.pathsep.join(sys.path)))
    script.chmod(0o700)
    found = ForkServer(scratch, (RUNNER,))
    found.start()
    try:
        yield script, found
    finally:
        found.close()


@contextmanager
def asked(script: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, int]]:
    """Do what Spark does: start the script, and wait until a process has connected and sent its number."""
    with closing(socket.socket(socket.AF_UNIX)) as door:
        door.bind(str(tmp_path / "s"))
        door.listen()
        door.settimeout(PATIENCE_S)
        environment = {"PATH": os.environ["PATH"], "PYTHON_WORKER_FACTORY_SOCK_PATH": str(tmp_path / "s")}
        shell = subprocess.Popen([script, "-m", RUNNER], env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            channel, _ = door.accept()
            with channel:
                channel.settimeout(PATIENCE_S)
                [pid] = struct.unpack(">i", channel.recv(4))
                yield shell, channel, pid
        finally:
            shell.kill()
            shell.wait()
            for stream in (shell.stdin, shell.stderr):
                assert stream is not None
                stream.close()


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def test_a_fork_takes_the_place_of_what_spark_started(forks: tuple[Path, ForkServer], tmp_path: Path) -> None:
    script, _ = forks
    with asked(script, tmp_path) as (shell, channel, pid):
        assert pid != shell.pid
        # It has the shell's streams: Spark receives its output.
        channel.sendall(struct.pack(">i", 1 << 20))
        channel.shutdown(socket.SHUT_WR)
        assert shell.wait(PATIENCE_S) != 0
        assert is_gone(pid)


@pytest.mark.parametrize("victim", ["shell", "fork"])
def test_shell_and_fork_end_together(forks: tuple[Path, ForkServer], tmp_path: Path, victim: str) -> None:
    script, _ = forks
    with asked(script, tmp_path) as (shell, _, pid):
        os.kill(shell.pid if victim == "shell" else pid, signal.SIGKILL)
        shell.wait(PATIENCE_S)
        assert is_gone(pid)


def test_waiting_for_a_missing_fork_ends(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(python_script(tmp_path, os.pathsep.join(sys.path)))
    script.chmod(0o700)
    forks = ForkServer(tmp_path, ("json",))
    forks.start()
    assert forks._process is not None
    forks._process.kill()
    forks._process.wait()
    shell = subprocess.Popen([script, "-m", RUNNER])
    wait_until((tmp_path / "forks" / str(shell.pid)).exists, PATIENCE_S)
    assert shell.poll() is None
    forks.close()
    assert shell.wait(PATIENCE_S) != 0


def test_without_the_fork_server_spark_starts_python_itself(forks: tuple[Path, ForkServer], tmp_path: Path) -> None:
    script, found = forks
    other = [script, "-c", "import sys; print(sys.executable)"]
    assert subprocess.run(other, capture_output=True, text=True, check=True).stdout.strip() == sys.executable
    found.close()
    assert not found.is_alive
    with asked(script, tmp_path) as (shell, _, pid):
        assert pid == shell.pid, "the shell has become Python"
    found.start()
    with asked(script, tmp_path / "..") as (shell, _, pid):
        assert pid != shell.pid
